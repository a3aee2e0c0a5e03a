"""Where settings come from beside the environment: a TOML file with a context for each cluster, and
files that hold one secret each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Set
from pathlib import Path

from tideline.errors import UsageError
from tideline.variables import PAGE, PREFIX, SECRET_FILE, nearest

CONTEXT = f"{PREFIX}CONTEXT"
CHOSEN, CONTEXTS = "context", "contexts"


def from_toml(
    path: Path, context: str | None, known: Set[str], secrets: Set[str]
) -> dict[str, str]:
    """Values by name, in lower case and without prefix: those of the file's top, and over them
    those of one context: ``context``, else the one that the file names by ``context = "…"``.

    ``known``: every setting there is, ``secrets`` those of them that may be named with ``_file``.
    Raises :class:`UsageError` for what is no TOML, no setting, or no context.
    """
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"settings file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"settings file {path} is no TOML: {error}") from None
    contexts = found.pop(CONTEXTS, {})
    if not isinstance(contexts, dict):
        raise UsageError(f"{path}: {CONTEXTS} is {contexts!r}: write a table for each cluster")
    named = found.pop(CHOSEN, None)
    chosen = context or named
    for where, table in (("", found), *((f"[{CONTEXTS}.{n}] ", contexts[n]) for n in contexts)):
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {where}is no table of settings")
        _refuse_unknown(path, where, table, known, secrets)
    if chosen is None and contexts:
        raise UsageError(
            f"{path} has the contexts {', '.join(sorted(contexts))}: choose one with {CONTEXT}, "
            f'or with {CHOSEN} = "…" at the top of the file'
        )
    if chosen is not None and chosen not in list(contexts):
        raise UsageError(
            f"{path} has no context {chosen!r}: it has {', '.join(sorted(contexts)) or 'none'}"
        )
    top, own = (
        {name: _text(path, name, value) for name, value in table.items()}
        for table in (found, contexts.get(chosen, {}) if chosen else {})
    )
    return laid_over(top, own, secrets)


def laid_over(
    lower: Mapping[str, str], upper: Mapping[str, str], secrets: Set[str]
) -> dict[str, str]:
    """``upper`` wins. A secret that it has, itself or by its file, is not looked for in ``lower``,
    however it is given there."""
    named = {name: name + SECRET_FILE.lower() for name in secrets}
    hidden = {
        form for name, file in named.items() if {name, file} & upper.keys() for form in (name, file)
    }
    return {name: value for name, value in lower.items() if name not in hidden} | dict(upper)


def with_secrets(values: Mapping[str, str], secrets: Set[str]) -> dict[str, str]:
    """``values`` with the content of the file, without the newline at its end, wherever one is
    named for one of ``secrets`` (``postgres_dsn_file``): no other is opened. Raises
    :class:`UsageError` when both are given, or the file cannot be read or has nothing in it."""
    made = dict(values)
    for name in secrets:
        file = made.pop(name + SECRET_FILE.lower(), None)
        if not file:
            continue
        variable = f"{PREFIX}{name.upper()}"
        if made.get(name):
            raise UsageError(
                f"{variable} and {variable}{SECRET_FILE} are both given: leave one out"
            )
        try:
            made[name] = Path(file).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
            raise UsageError(
                f"{variable}{SECRET_FILE} names {file}, which cannot be read: {why}"
            ) from None
        if not made[name]:
            raise UsageError(
                f"{variable}{SECRET_FILE} names {file}, which is empty: write the secret into it"
            )
    return made


def _refuse_unknown(
    path: Path, where: str, table: Mapping[str, object], known: Set[str], secrets: Set[str]
) -> None:
    names = known | {name + SECRET_FILE.lower() for name in secrets}
    for name in table:
        if name not in names:
            raise UsageError(
                f"{path}: {where}{name} is no setting{nearest(name, names)} ({PAGE} names them in "
                f"upper case, with {PREFIX} before)"
            )


def _text(path: Path, name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise UsageError(f"{path}: {name} is {value!r}: write a string, a number, true or false")
