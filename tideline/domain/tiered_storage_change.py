"""What crosses Temporal when tiered storage of a topic is switched: see ``tiered_storage.py``.

The workflow has the id of the topic's migration, so that of the two only one runs. Plain
dataclasses of plain values: ``{"topic": "orders", "target": "read-only"}`` starts it by hand.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from tideline.domain.messages import TopicRef
from tideline.domain.migration_input import (
    InvalidMigrationInput,
    Shape,
    choice,
    requester,
    topic_name,
    whole_number,
)
from tideline.domain.tiered_storage import AS_THE_TOTAL, LocalRetention, Target

TIERED_STORAGE_WORKFLOW = "TieredStorageChange"
COLLECT_AFTER_S = 600
"""Longer than any copy or deletion that a broker has under way takes."""
LONGEST_GRACE_S = 30 * 24 * 3600
"""Kafka deletes within minutes, or never."""
BIGGEST = 2**63 - 1
"""Of Kafka's configs of this kind."""


class TieredStorageActivity(StrEnum):
    REVIEW = "review_tiered_storage"
    """``ReviewRequest`` -> ``Review``. Fails as Refused, in Kafka's words where it is Kafka
    that refuses, as TopicChanged, as UnknownTopic."""
    SET = "set_tiered_storage"
    """``ConfigsToSet`` -> nothing, when every broker shows them. Fails as Refused, as Waiting."""
    PROVE = "prove_tiered_again"
    """``TopicRef`` -> ``Proof``. Fails as Waiting, saying what is not proven; as Refused when
    somebody has turned tiered storage off meanwhile."""
    DELETE = "finish_remote_deletion"
    """``DeletionLook`` -> ``Remaining``. Fails as Refused when tiered storage is on again."""


class TieredStorageUpdate(StrEnum):
    TARGET = "target"
    """``TieredStorageInput`` -> ``TieredStorageStatus``: another target from now on."""


class TieredStorageQuery(StrEnum):
    UNFINISHED = "unfinished"
    """Nothing -> ``TieredStorageInput | None``: what would go on where this run is, while it holds
    local retention. Asked of runs that have ended, too."""


@dataclass(frozen=True, slots=True)
class TieredStorageInput:
    topic: str
    target: str
    """A ``Target``."""
    local_retention_ms: int | None = None
    """To have once coverage is proven; ``None``: what the topic has now."""
    local_retention_bytes: int | None = None
    collect_after_s: int = COLLECT_AFTER_S
    """How long Kafka is left to delete by itself before what is left is collected."""
    requested_by: str = "temporal"
    before_hold: LocalRetention | None = None
    """The user's local retention, of a topic whose local retention an earlier run that did not
    finish has left held; ``None``: there was none."""


@dataclass(frozen=True, slots=True)
class ReviewRequest:
    ref: TopicRef
    given: TieredStorageInput


@dataclass(frozen=True, slots=True)
class Review:
    """What was found before anything changes."""

    state: str
    """A ``TieringState``."""
    users: LocalRetention


@dataclass(frozen=True, slots=True)
class ConfigsToSet:
    ref: TopicRef
    configs: dict[str, str | None]
    """``None``: unset."""


@dataclass(frozen=True, slots=True)
class Proof:
    """All that Kafka takes for tiered is, or has expired."""

    users: LocalRetention | None = None
    """Nothing was proven: somebody has changed the local retention meanwhile, to this."""


@dataclass(frozen=True, slots=True)
class DeletionLook:
    ref: TopicRef
    collect: bool = False
    """Delete what is left, too."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a disabled topic has in remote storage."""

    segments: int = 0
    """That Kafka's metadata do not call deleted."""
    objects: int = 0
    collected: int = 0
    """Objects that were deleted now."""

    @property
    def nothing(self) -> bool:
        return not (self.segments or self.objects)

    def describe(self) -> str:
        return f"{self.segments} segments and {self.objects} objects are left in remote storage"


@dataclass(frozen=True, slots=True)
class TieredStorageOutcome:
    """Result of a ``TieredStorageChange``."""

    topic: str
    topic_id: str
    state: str
    """The ``TieringState`` that was reached."""
    was: str
    collected: int = 0
    """Objects that Kafka had left behind."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class TieredStorageStatus:
    topic: str
    topic_id: str
    target: str
    step: str
    """A ``Step``, ``reviewing`` or ``ended``."""
    since: str
    waiting_reason: str
    holds_local_retention: bool
    then: list[str] = field(default_factory=list)
    """The steps that follow."""


@dataclass(slots=True)
class TieredStorageProgress:
    """Everything that the workflow must remember when it continues as new."""

    ref: TopicRef
    given: TieredStorageInput
    users: LocalRetention | None = None
    """The user's local retention, once it is known."""
    held: bool = False
    was: str = ""
    steps: list[str] = field(default_factory=list)
    """Still to do; empty: not reviewed."""
    collected: int = 0
    collect_at: str = ""
    """ISO 8601, by the workflow's clock."""
    note: str = ""


def parse_change(given: object) -> TieredStorageInput:
    """The input of a ``TieredStorageChange``.

    Raises :class:`InvalidMigrationInput`, naming the field, the rule and an example.
    """
    return SWITCH.read(given)


def to_json(given: TieredStorageInput) -> dict[str, Any]:
    """The inverse of :func:`parse_change`."""
    return asdict(given)


def _kafkas(name: str, value: object) -> str | None:
    """A config as Kafka has it; null: not set."""
    if value is not None and not isinstance(value, str):
        raise InvalidMigrationInput(f"{name}: {value!r}; values are strings, or null")
    return value


SWITCH = Shape(
    TieredStorageInput,
    {
        "topic": topic_name,
        "target": choice(Target),
        "local_retention_ms": whole_number(-2, BIGGEST),
        "local_retention_bytes": whole_number(-2, BIGGEST),
        "collect_after_s": whole_number(0, LONGEST_GRACE_S),
        "requested_by": requester,
        "before_hold": Shape(
            LocalRetention, {"ms": _kafkas, "bytes": _kafkas}, "", frozenset({"ms", "bytes"})
        ).member,
    },
    '{"topic": "orders", "target": "read-only"}',
    frozenset({f.name for f in fields(TieredStorageInput)} - {"topic", "target"}),
)
"""Input of a ``TieredStorageChange``, and of its update ``target``."""


def users_local_retention(given: TieredStorageInput, found: LocalRetention) -> LocalRetention:
    """What the user has, of a topic with ``found``: of what an unfinished run has left held what
    was there before; what somebody has set since is the user's."""
    before = given.before_hold
    if before is None:
        return found
    return LocalRetention(
        before.ms if found.ms == AS_THE_TOTAL else found.ms,
        before.bytes if found.bytes == AS_THE_TOTAL else found.bytes,
    )


def wanted_local_retention(given: TieredStorageInput, users: LocalRetention) -> LocalRetention:
    """What the topic has at the end: what was asked for, else what the user had."""
    ms, size = given.local_retention_ms, given.local_retention_bytes
    return LocalRetention(
        users.ms if ms is None else str(ms), users.bytes if size is None else str(size)
    )
