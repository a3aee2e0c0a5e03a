"""Reads what a person or a program typed to start or to steer a workflow: ``{"topic": "orders"}``.

What always holds: a wrong input changes nothing and is refused with the field, the rule and an
example, whether it comes from the Temporal UI, the Admin API or the command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from tideline.domain.messages import TopicMigrationInput
from tideline.domain.options import OPTIONS, MigrationOptions, Option

T = TypeVar("T")
LONGEST_TEXT = 1_000
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Kafka's own rule (``org.apache.kafka.common.internals.Topic``)."""


class InvalidMigrationInput(ValueError):
    """The message names the field, the rule that its value breaks, and the remedy."""


Reader = Callable[[str, object], Any]
"""From the name of a field and its value, ``None`` where there is none, to what is meant. Raises
:class:`InvalidMigrationInput`."""


@dataclass(frozen=True, slots=True)
class Shape(Generic[T]):
    """A JSON object that starts or steers a workflow, or a part of one."""

    type: Callable[..., T]
    fields: Mapping[str, Reader]
    example: str
    optional: frozenset[str] = frozenset()
    """Fields that may be missing, or null: they take the default of ``type``."""

    def read(self, given: object) -> T:
        """Raises :class:`InvalidMigrationInput` with field, rule and example."""
        try:
            return self.member("", given)
        except InvalidMigrationInput as error:
            raise InvalidMigrationInput(f"{error}; for example {self.example}") from None

    def member(self, name: str, given: object) -> T:
        """The same, as the field ``name`` of another one: a :data:`Reader`."""
        given = as_object(name, given, self.fields)
        prefix = _inside(name)
        return self.type(
            **{
                field: read(prefix + field, given.get(field))
                for field, read in self.fields.items()
                if field not in self.optional or given.get(field) is not None
            }
        )


def _inside(name: str) -> str:
    """How the names of an object's fields begin."""
    return f"{name}." if name else ""


def as_object(name: str, given: object, known: Iterable[str]) -> Mapping[str, Any]:
    """A JSON object of ``known`` fields. ``name``: empty for the whole input."""
    if not isinstance(given, Mapping):
        what = name or "the input"
        raise InvalidMigrationInput(f"{what}: {_kind(given)} instead of a JSON object")
    prefix = _inside(name)
    for field in given:
        if field not in known:
            raise InvalidMigrationInput(
                f"{prefix}{field}: no such field; known are {', '.join(sorted(known))}"
            )
    return given


def text(name: str, value: object) -> str:
    """What is kept, in Postgres too, which knows no NUL."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise InvalidMigrationInput(f"{name}: {shown(value)}; write text that is not blank")
    return value[:LONGEST_TEXT]


def whole_number(low: int, high: int, unit: str = "") -> Reader:
    """Both bounds are allowed."""

    def read(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidMigrationInput(
                f"{name}: {shown(value)}; write a whole number{unit} from {low} to {high}"
            )
        return value

    return read


def choice(names: Iterable[str]) -> Reader:
    """One of ``names``."""
    allowed = list(names)

    def read(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise InvalidMigrationInput(
                f"{name}: {shown(value)}; choose among {', '.join(allowed)}"
            )
        return value

    return read


def topic_name(name: str, value: object) -> str:
    """One that Kafka allows."""
    if not isinstance(value, str) or not value:
        raise InvalidMigrationInput(f"{name}: {shown(value)}; name the topic")
    if not _LEGAL_NAME.fullmatch(value) or value in (".", ".."):
        raise InvalidMigrationInput(
            f"{name}: {shown(value)} is no topic name; Kafka allows 1 to 249 of letters, digits, "
            "'.', '_' and '-'"
        )
    return value


def requester(name: str, value: object) -> str:
    """Who asks, as far as it says so."""
    if not isinstance(value, str):
        raise InvalidMigrationInput(f"{name}: {value!r} is {_kind(value)}; write text")
    return value[:200]


def parse_migration_input(given: object) -> TopicMigrationInput:
    """The input of a ``TopicMigration``; every missing option takes its default.

    Raises :class:`InvalidMigrationInput`.
    """
    return START.read(given)


def parse_options(given: object) -> MigrationOptions:
    """The ``options`` of an input; ``None`` means all defaults.

    Raises :class:`InvalidMigrationInput`.
    """
    return MigrationOptions() if given is None else read_options("options", given)


def read_options(name: str, given: object) -> MigrationOptions:
    """A :data:`Reader`; those that are missing or null take their defaults."""
    values: dict[str, Any] = {
        option: _read(OPTIONS[option], value)
        for option, value in as_object(name, given, OPTIONS).items()
        if value is not None
    }
    return MigrationOptions(**values)


def to_json(given: TopicMigrationInput) -> dict[str, Any]:
    """The inverse of :func:`parse_migration_input`."""
    return asdict(given)


def _read(option: Option, value: object) -> Any:
    name = f"options.{option.name}"
    if option.choices:
        return option.type(choice(option.choices)(name, value))
    if option.is_number:
        unit = " (ms)" if option.name.endswith("_ms") else ""
        return whole_number(option.low, option.high, unit)(name, value)
    if not isinstance(value, bool):
        raise InvalidMigrationInput(f"{name}: {value!r}; write true or false")
    return value


def shown(value: object) -> str:
    """A value in a message."""
    return "missing" if value is None else repr(value)[:300]


def _kind(value: object) -> str:
    names = {
        "NoneType": "missing", "list": "a list", "int": "a number", "float": "a number",
        "str": "text",
    }  # fmt: skip
    name = type(value).__name__
    return names.get(name, f"of type {name}")


START = Shape(
    TopicMigrationInput,
    {"topic": topic_name, "options": read_options, "requested_by": requester},
    '{"topic": "orders"}',
    frozenset({"options", "requested_by"}),
)
"""Input of a ``TopicMigration``."""
