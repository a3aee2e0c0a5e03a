"""How a running migration is steered and seen: signals, updates, queries and what they carry.

Plain dataclasses of plain values, as in :mod:`tideline.domain.plan`, because an operator meets
them in the Temporal UI too. Times are ISO 8601 in UTC, by the clock of the workflow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.plan import MigrationOptions, PartitionRef

SEARCH_ATTRIBUTES = {
    "TidelinePhase": "Keyword",
    "TidelineTopic": "Keyword",
    "TidelineBoundary": "Int",
    "TidelineWaitingReason": "Text",
}
"""Name to Temporal's type. The worker registers those that a namespace does not have."""


class Update(StrEnum):
    """Updates of both workflows, except that only a topic can be aborted."""

    PAUSE = "pause"
    RESUME = "resume"
    ABORT = "abort"


class Query(StrEnum):
    """Queries of both workflows."""

    STATUS = "status"


class Signal(StrEnum):
    """Between a topic's workflow and those of its partitions; both address the other by its
    workflow id, so either may be started anew in between."""

    REPORT = "report"
    """Partition to topic: a :class:`PartitionReport`."""
    STEER = "steer"
    """Topic to partition: a :class:`Steering`."""


class WaitsFor(StrEnum):
    """What a partition needs from its topic's workflow before it goes on."""

    NOTHING = ""
    PERMIT = "permit"
    """Drained; the write pause may begin when the topic's workflow says so."""
    ROLL = "roll"
    """Crossed; readiness needs the topic's physical roll."""


DONE = "done"
"""Stands for a phase when the migration of the partition has ended well."""
ABORTED = "aborted"
GONE = "gone"
"""The topic was deleted, or the name belongs to another topic now."""
ENDINGS = (DONE, ABORTED, GONE)
TO_DO = "to do"
"""The partition waits for a free place (``parallel_partitions``)."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """Where a partition stands. Sending it twice changes nothing."""

    partition: int
    phase: str
    """A ``Phase``, or one of :data:`ENDINGS`."""
    since: str
    boundary: int = UNDEFINED_OFFSET
    leader_epoch: int = -1
    waits_for: WaitsFor = WaitsFor.NOTHING
    waiting_reason: str = ""
    round: int = 1
    """Grows when B0 was reset and the partition migrates anew."""

    @property
    def crossed(self) -> bool:
        """B0 is persisted."""
        return self.boundary != UNDEFINED_OFFSET

    @property
    def ended(self) -> bool:
        """The partition's workflow is over."""
        return self.phase in ENDINGS


@dataclass(frozen=True, slots=True)
class Steering:
    """What the topic's workflow wants of a partition now; the newest one counts."""

    permit: int = 0
    """The write pause may begin in rounds up to this one."""
    rolled: bool = False
    paused: bool = False
    aborted: bool = False
    report_again: bool = False


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Answer of a partition's ``status`` query."""

    topic: str
    partition: int
    phase: str
    since: str
    waiting_reason: str
    boundary: int
    leader_epoch: int
    generation: int
    write_pauses: int
    """How often producers were parked: more than 1 means that a quiesce started anew."""
    paused: bool
    next_step: str
    durations_ms: dict[str, float] = field(default_factory=dict)
    """How long the last run of each phase took."""


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """Answer of a topic's ``status`` query."""

    topic: str
    topic_id: str
    stage: str
    since: str
    waiting_reason: str
    paused: bool
    next_step: str
    partitions: list[PartitionReport] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PauseOutcome:
    """Answer of the ``pause`` and ``resume`` updates."""

    paused: bool
    explanation: str


@dataclass(slots=True)
class PartitionState:
    """Everything that a partition's workflow must remember when it continues as new."""

    phase: str = ""
    """The phase to run next; empty: not begun."""
    since: str = ""
    generation: int = 0
    boundary: int = UNDEFINED_OFFSET
    leader_epoch: int = -1
    write_pauses: int = 0
    round: int = 1
    paused: bool = False
    steering: Steering = field(default_factory=Steering)
    durations_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionMigrationInput:
    """What starts a ``PartitionMigration``."""

    ref: PartitionRef
    options: MigrationOptions
    topic_workflow_id: str
    state: PartitionState = field(default_factory=PartitionState)
