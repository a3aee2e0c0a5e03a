"""What a line of the log is about: whatever one request of a client does says whose it is.

A subject is of a task and of what that awaits or gathers. Work that is started to go on by itself
(:func:`tideline.background.spawn`) has none: a WAL object is not about the request that filled it.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol


class Subject(Protocol):
    """Of log lines."""

    def words(self) -> Mapping[str, object]:
        """What each line has beside its own words."""


_subject: ContextVar[Subject | None] = ContextVar("subject", default=None)


def begin(subject: Subject) -> None:
    """Lines of this task are about ``subject`` from now on."""
    _subject.set(subject)


def without() -> Context | None:
    """A context that is like the present one and has no subject; ``None``: the present one."""
    if _subject.get() is None:
        return None
    apart = copy_context()
    apart.run(_subject.set, None)
    return apart


def add_words(
    logger: object, method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A processor of structlog. A line's own words win."""
    if (subject := _subject.get()) is not None:
        for name, value in subject.words().items():
            line.setdefault(name, value)
    return line
