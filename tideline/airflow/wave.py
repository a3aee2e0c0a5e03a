"""A migration wave: a list of topics, migrated batch after batch, one DAG run per batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tideline.domain.migration_input import InvalidMigrationInput, parse_migration_input
from tideline.domain.options import OPTIONS, Option
from tideline.errors import UsageError

PLAN_VARIABLE = "tideline_migration_wave"
"""Airflow Variable: the wave that starts by itself when coverage was found complete."""
MAX_TOPICS = 10_000
MAX_BATCH = 100
MAX_PATIENCE = 7 * 24 * 60
"""Minutes."""
TOPIC_PATTERN = "^[a-zA-Z0-9._-]{1,249}$"


@dataclass(frozen=True, slots=True)
class Wave:
    """What is left of a wave when a batch begins."""

    topics: tuple[str, ...]
    options: Mapping[str, Any]
    """Only those that were given; see :class:`MigrationOptions`."""
    batch_size: int
    approve_each_batch: bool
    number: int
    """Of this batch, from 1."""
    name: str
    """The run id of the first batch; empty in that run itself."""
    plan: str = ""
    """Of a planned wave; empty when a person named the topics."""
    patience_minutes: int | None = None
    """So long each topic may hold its batch up; ``None``: for as long as it takes."""
    asked_at: int = 0
    """ms; when a person asked for it. 0 in the first batch, and in every batch of a plan."""

    @property
    def is_asked_for_now(self) -> bool:
        """A person named the topics of this very run: that asks anew for each of them."""
        return not self.plan and self.number == 1

    def batch(self, left_out: Collection[str] = ()) -> list[dict[str, Any]]:
        """Arguments of the operators, one entry per topic of this batch."""
        options = dict(self.options)
        chosen = [topic for topic in self.topics if topic not in left_out][: self.batch_size]
        return [
            {
                "topic": topic,
                "options": options,
                "plan": self.plan,
                "patience_minutes": self.patience_minutes,
            }
            for topic in chosen
        ]

    def rest(self, run_id: str, begun_at: int, last: str) -> dict[str, Any] | None:
        """The parameters of the next batch's run, of what stands behind ``last``, the last topic
        of this batch; ``None`` after the last batch. ``begun_at``: of this run, ms."""
        left = self.topics[self.topics.index(last) + 1 :]
        if not left:
            return None
        return {
            **self.options,
            "topics": list(left),
            "batch_size": self.batch_size,
            "approve_each_batch": self.approve_each_batch,
            "patience_minutes": self.patience_minutes,
            "batch": self.number + 1,
            "wave": self.name or run_id,
            "plan": self.plan,
            "asked_at": 0 if self.plan else self.asked_at or begun_at,
        }


def read_wave(params: Mapping[str, Any], planned: object, default_batch: int) -> Wave | None:
    """The wave that the run's parameters name, else the planned one; ``None`` without either.

    ``planned`` is a list of topics or an object of the same fields as the parameters. Raises
    :class:`UsageError` with the field, the rule and the remedy.
    """
    given = dict(params)
    plan = str(given.get("plan") or "")
    if not given.get("topics") and planned:
        planned, plan = _fields(planned), plan_of(planned)
        if unknown := sorted(set(planned) - set(given)):
            raise UsageError(
                f"Variable {PLAN_VARIABLE}: no field {unknown[0]!r}; known are "
                f"{', '.join(sorted(given))}"
            )
        given |= planned
    if not given.get("topics"):
        return None
    options = {name: given[name] for name in OPTIONS if given.get(name) is not None}
    return Wave(
        topics=_topics(given["topics"], options),
        options=options,
        batch_size=_batch_size(given.get("batch_size"), default_batch),
        approve_each_batch=bool(given.get("approve_each_batch")),
        number=int(given.get("batch") or 1),
        name=str(given.get("wave") or ""),
        plan=plan,
        patience_minutes=_patience(given.get("patience_minutes")),
        asked_at=int(given.get("asked_at") or 0),
    )


def plan_of(planned: object) -> str:
    """The name of what the Variable plans: another text is another plan, in which nothing has been
    started. Empty: nothing is planned. Raises :class:`UsageError`."""
    if not planned:
        return ""
    text = json.dumps(_fields(planned), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def by_hand(wave: str) -> str:
    """Under this name people's decisions about a wave without a plan are kept."""
    return f"by hand: {wave}"


def _fields(planned: object) -> Mapping[str, Any]:
    if isinstance(planned, list):
        return {"topics": planned}
    if not isinstance(planned, Mapping):
        raise UsageError(f"Variable {PLAN_VARIABLE}: write a JSON list of topics or an object")
    return planned


def _topics(given: object, options: Mapping[str, Any]) -> tuple[str, ...]:
    if not isinstance(given, list) or len(given) > MAX_TOPICS:
        raise UsageError(f"topics: write a list of at most {MAX_TOPICS} names")
    for topic in given:
        try:
            parse_migration_input({"topic": topic, "options": options})
        except InvalidMigrationInput as error:
            raise UsageError(str(error)) from error
    return tuple(dict.fromkeys(given))


def _batch_size(given: object, default: int) -> int:
    size = default if given is None else given
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_BATCH:
        raise UsageError(f"batch_size: {size!r}; write a whole number from 1 to {MAX_BATCH}")
    return size


def _patience(given: object) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MAX_PATIENCE:
        raise UsageError(
            f"patience_minutes: {given!r}; write a whole number from 1 to {MAX_PATIENCE}, or none"
        )
    return given


def schemas(default_batch: int) -> dict[str, dict[str, Any]]:
    """JSON schema and default of each parameter of a wave."""

    return {
        "topics": {
            "default": [],
            "type": "array",
            "items": {"type": "string", "pattern": TOPIC_PATTERN},
            "maxItems": MAX_TOPICS,
            "title": "topics",
            "description": f"One per line. Empty: what the Variable `{PLAN_VARIABLE}` plans.",
        },
        "batch_size": _number(
            "batch_size",
            1,
            MAX_BATCH,
            f"Topics that migrate at once; empty: {default_batch}, the setting "
            "`TIDELINE_MIGRATION_PARALLEL_TOPICS`. The pool `tideline_migrations` bounds it too.",
        ),
        "approve_each_batch": {
            "default": False,
            "type": "boolean",
            "title": "approve_each_batch",
            "description": "Ask a person before each further batch (Required Actions).",
        },
        "patience_minutes": _number(
            "patience_minutes",
            1,
            MAX_PATIENCE,
            "So long each topic may hold its batch up; then the wave goes on without it, and its "
            "migration goes on by itself. Empty: the next batch waits for as long as it takes.",
        ),
        **{option.name: _schema(option) for option in OPTIONS.values()},
        "batch": {
            "default": 1,
            "type": "integer",
            "minimum": 1,
            "title": "batch",
            "description": "Filled in: the number of this batch.",
        },
        "wave": {
            "default": "",
            "type": "string",
            "maxLength": 250,
            "title": "wave",
            "description": "Filled in: the run of the first batch.",
        },
        "plan": {
            "default": "",
            "type": "string",
            "maxLength": 250,
            "title": "plan",
            "description": "Filled in: the plan that this batch belongs to.",
        },
        "asked_at": {
            "default": 0,
            "type": "integer",
            "minimum": 0,
            "title": "asked_at",
            "description": "Filled in: when the wave was asked for, in ms.",
        },
    }


def _schema(option: Option) -> dict[str, Any]:
    described = f"{option.help.removesuffix('.')}; empty: {option.default}."
    if option.choices:
        return {
            "default": None,
            "type": ["null", "string"],
            "enum": [None, *option.choices],
            "title": option.name,
            "description": described,
        }
    if option.is_number:
        return _number(option.name, option.low, option.high, described)
    return {
        "default": option.default,
        "type": "boolean",
        "title": option.name,
        "description": option.help,
    }


def _number(name: str, low: int, high: int, description: str) -> dict[str, Any]:
    return {
        "default": None,
        "type": ["null", "integer"],
        "minimum": low,
        "maximum": high,
        "title": name,
        "description": description,
    }
