"""Text of foreign origin, made fit for people to read.

Client ids, hosts, names of groups and of principals, and the errors that repeat them, come over the
wire and may hold anything that UTF-8 can say. On a terminal a control character is a command
(clear the screen, rewrite the title), a line end forges a line, and bidirectional controls turn
what follows round.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_LINE = 10_000
"""Characters of one line: what is longer fills screens, and hides what comes after it."""
MOST_OF_A_NAME = 100
"""Characters of a name, a client id for example: a client may send 32,767."""


def in_one_line(text: str, most: int = LONGEST_LINE) -> str:
    """``text`` in at most so many printable characters.

    Whatever ``str.isprintable`` does not hold for is written as Python escapes it: controls, bidi
    and other format characters, surrogates, line ends, and every space but the ordinary one. The
    same text again is left as it is.
    """
    if len(text) <= most and text.isprintable():
        return text
    pieces = [c if c.isprintable() else c.encode("unicode_escape").decode() for c in text]
    if sum(map(len, pieces)) <= most:
        return "".join(pieces)
    left = most - len(_more(len(text)))
    kept = 0
    while kept < len(pieces) and len(pieces[kept]) <= left:
        left -= len(pieces[kept])
        kept += 1
    return "".join(pieces[:kept]) + _more(len(text) - kept)


def some_of(names: Sequence[str], most: int = 5) -> str:
    """The first few of names that clients have chosen, in one line."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(in_one_line(name, MOST_OF_A_NAME) for name in names[:most]) + more


def _more(characters: int) -> str:
    return f"… ({characters} more characters)"


def quoted(name: str, most: int = MOST_OF_A_NAME) -> str:
    """A name that somebody else has chosen, so that it ends where it ends: in quotes, in one line,
    cut at so many characters."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{in_one_line(escaped, most)}"'


def has_controls(text: str) -> bool:
    """Whether it has a control character (category Cc), NUL among them, which Postgres cannot
    keep."""
    return any(c < " " or "\x7f" <= c <= "\x9f" for c in text)
