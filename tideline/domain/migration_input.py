"""Reads what a person or a program typed to start a migration: ``{"topic": "orders"}``.

What always holds: a wrong input changes nothing and is refused with the field, the rule and the
remedy, whether it comes from the Temporal UI, the Admin API or the command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from tideline.domain.messages import TopicMigrationInput
from tideline.domain.options import OPTIONS, MigrationOptions, Option

EXAMPLE = '{"topic": "orders"}'
RETIRED = frozenset({"attested_closed_to_bypass"})
"""Options of earlier versions: without effect, but migrations that run were started with them."""
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Kafka's own rule (``org.apache.kafka.common.internals.Topic``)."""


class InvalidMigrationInput(ValueError):
    """The message names the field, the rule that its value breaks, and the remedy."""


def parse_migration_input(given: object) -> TopicMigrationInput:
    """The input of a ``TopicMigration``; every missing option takes its default.

    Raises :class:`InvalidMigrationInput`.
    """
    if isinstance(given, str):
        raise InvalidMigrationInput(
            f"the input {given!r} is text: write a JSON object, for example {EXAMPLE}"
        )
    if not isinstance(given, Mapping):
        raise InvalidMigrationInput(
            f"the input is {_kind(given)}: write a JSON object, for example {EXAMPLE}"
        )
    known = {f.name for f in fields(TopicMigrationInput)}
    _no_unknown("", given, known)
    topic = given.get("topic")
    if not isinstance(topic, str) or not topic:
        raise InvalidMigrationInput(
            f"topic: {'missing' if topic is None else repr(topic)}; name the topic to migrate, "
            f"for example {EXAMPLE}"
        )
    if not _LEGAL_NAME.fullmatch(topic) or topic in (".", ".."):
        raise InvalidMigrationInput(
            f"topic: {topic[:300]!r} is no topic name; Kafka allows 1 to 249 of letters, digits, "
            "'.', '_' and '-'"
        )
    requested_by = given.get("requested_by", TopicMigrationInput(topic).requested_by)
    if not isinstance(requested_by, str):
        raise InvalidMigrationInput(
            f"requested_by: {requested_by!r} is {_kind(requested_by)}; write text"
        )
    return TopicMigrationInput(topic, parse_options(given.get("options")), requested_by[:200])


def parse_options(given: object) -> MigrationOptions:
    """The ``options`` of an input; ``None`` means all defaults.

    Raises :class:`InvalidMigrationInput`.
    """
    if given is None:
        return MigrationOptions()
    if not isinstance(given, Mapping):
        raise InvalidMigrationInput(f"options: {_kind(given)} instead of a JSON object")
    _no_unknown("options.", given, {*OPTIONS, *RETIRED})
    values: dict[str, Any] = {
        name: _read(OPTIONS[name], value)
        for name, value in given.items()
        if value is not None and name not in RETIRED
    }
    return MigrationOptions(**values)


def to_json(given: TopicMigrationInput) -> dict[str, Any]:
    """The inverse of :func:`parse_migration_input`."""
    return asdict(given)


def _no_unknown(prefix: str, given: Mapping[Any, Any], known: set[str]) -> None:
    for name in given:
        if name not in known:
            raise InvalidMigrationInput(
                f"{prefix}{name}: no such field; known are {', '.join(sorted(known))}"
            )


def _read(option: Option, value: object) -> Any:
    about = f"options.{option.name}: {value!r}"
    if option.choices:
        if not isinstance(value, str) or value not in option.choices:
            raise InvalidMigrationInput(f"{about}; choose among {option.allowed}")
        return option.type(value)
    if option.is_number:
        low, high, unit = option.low, option.high, " (ms)" if option.name.endswith("_ms") else ""
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidMigrationInput(f"{about}; write a whole number{unit} from {low} to {high}")
        return value
    if not isinstance(value, bool):
        raise InvalidMigrationInput(f"{about}; write true or false")
    return value


def _kind(value: object) -> str:
    names = {"NoneType": "missing", "list": "a list", "int": "a number", "float": "a number"}
    name = type(value).__name__
    return names.get(name, f"of type {name}")
