"""From what a Spark job raised to one line for a person.

An error of an executor reaches the driver as the text of its traceback, often several times
wrapped. Its last line still names the class and the message of ours.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tideline.errors import ExitCode, TidelineError

_RAISED = re.compile(r"^\s*(?P<module>tideline(?:\.\w+)+)\.(?P<name>\w+): (?P<message>.+)$", re.M)
_STORES = {
    "tideline.object_store": "S3",
    "tideline.kafka": "Kafka",
    "tideline.control_plane": "Postgres",
    "tideline.temporal": "Temporal",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job failed. ``store``: the part that did not answer, if it was one."""

    message: str
    exit_code: ExitCode
    store: str | None = None


def failure_of(error: BaseException) -> Failure | None:
    """What an operator can act on; ``None``: the error is a defect of the job itself."""
    for cause in _causes(error):
        if isinstance(cause, TidelineError):
            return _told(type(cause), str(cause))
        for raised in reversed(list(_RAISED.finditer(str(cause)))):
            if (kind := _class(raised["module"], raised["name"])) is not None:
                return _told(kind, raised["message"].strip())
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _class(module: str, name: str) -> type[TidelineError] | None:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, TidelineError) else None


def _told(kind: type[TidelineError], message: str) -> Failure:
    message = " ".join(message.split())
    code = kind.exit_code
    if code is not ExitCode.UNREACHABLE:
        return Failure(message, code)
    store = next((s for prefix, s in _STORES.items() if kind.__module__.startswith(prefix)), None)
    named = store is None or store.lower() in message.lower()
    return Failure(message if named else f"{store} is away: {message}", code, store)
