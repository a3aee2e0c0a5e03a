"""What a topic's workflow remembers, and what follows from it. Pure: no Temporal in here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from tideline.domain.messages import (
    ABORTED,
    DONE,
    FORCED,
    GONE,
    PAUSED_REASON,
    TO_DO,
    PartitionReport,
    Steering,
    TopicMigrationStatus,
    TopicRef,
    WaitsFor,
)
from tideline.domain.options import MigrationOptions

MOST_WRITE_PAUSES = 2
"""Partitions of one topic whose producers are parked at once: more would make each pause longer,
because they share brokers, gateways and worker. A partition that was permitted counts until it
reports again: crossed, or back at the drain because its pause failed."""


class Stage(StrEnum):
    """What the topic's workflow does. In this order, except that an abort goes to ABORTING."""

    VALIDATING = "validating"
    TRACKING = "tracking"
    CROSSING = "crossing"
    """Partitions get their B0, ``parallel_partitions`` at once."""
    ROLLING = "rolling"
    """Every partition has its B0: the segments are rolled, after coverage is proven."""
    TIERING = "tiering"
    """Partitions wait for their prefix to be complete in remote storage."""
    FREEZING = "freezing"
    ABORTING = "aborting"
    ENDED = "ended"


NEXT_STEP = {
    Stage.VALIDATING: "tell every gateway to track the topic",
    Stage.TRACKING: "move the partitions across B0",
    Stage.CROSSING: "roll the segments once every partition has its B0",
    Stage.ROLLING: "wait until every prefix is complete in remote storage",
    Stage.TIERING: "freeze copying and seal the classic log",
    Stage.FREEZING: "nothing: the topic is hybrid",
    Stage.ABORTING: "nothing: the topic is as it was",
    Stage.ENDED: "nothing",
}


MOST_REASONS = 10
"""Waiting reasons that are shown at once."""


@dataclass(slots=True)
class Tally:
    """Everything that is counted over the partitions, in one pass over perhaps thousands."""

    phases: Counter[str] = field(default_factory=Counter)
    crossed: int = 0
    busy: int = 0
    """Started, and B0 is not persisted yet."""
    to_do: list[int] = field(default_factory=list)
    want_permit: list[PartitionReport] = field(default_factory=list)
    waiting: list[PartitionReport] = field(default_factory=list)
    """The first that wait for something outside of the migration."""
    gone: str = ""
    """Why the topic is no more."""

    def add(self, report: PartitionReport) -> None:
        self.phases[report.phase] += 1
        self.crossed += report.crossed
        if report.phase == TO_DO:
            self.to_do.append(report.partition)
        elif not report.crossed and not report.ended:
            self.busy += 1
        if report.waits_for is WaitsFor.PERMIT:
            self.want_permit.append(report)
        if report.waiting_reason and not report.waits_for and len(self.waiting) < MOST_REASONS:
            self.waiting.append(report)
        if report.phase == GONE:
            self.gone = self.gone or report.waiting_reason or "the topic was deleted"


@dataclass
class TopicState:
    """Survives continue-as-new. Lists are indexed by partition."""

    ref: TopicRef
    options: MigrationOptions
    stage: Stage = Stage.VALIDATING
    since: str = ""
    partitions: list[PartitionReport] = field(default_factory=list)
    asked_for_place: bool = False
    """One of the places of topics that migrate at once: it has one, or waits for it."""
    permits: list[int] = field(default_factory=list)
    """The round up to which each partition's write pause may begin."""
    armed: bool = False
    rolled: bool = False
    sealed: bool = False
    """The classic log was asked to be sealed: every partition had its B0."""
    paused: bool = False
    aborted: bool = False
    """The SQL update has won."""
    restore: bool = True
    """After an abort: the topic was tracked, so configs and tracking must be put back."""
    to_steer: list[int] = field(default_factory=list)
    """Partitions that must still be steered."""
    lost: list[int] = field(default_factory=list)
    """Partitions that should run and perhaps do not."""
    configured: bool = False
    """An operator changed the options since the start."""
    forced_by: str = ""
    """Who forced the completion."""
    incomplete: list[int] = field(default_factory=list)
    """Partitions whose prefix was not complete then."""

    def __post_init__(self) -> None:
        self._tally: Tally | None = None

    def begin(self) -> None:
        if not self.partitions:
            count = self.ref.partitions
            self.partitions = [PartitionReport(p, TO_DO, self.since) for p in range(count)]
            self.permits = [0] * count
            self._tally = None

    def receive(self, report: PartitionReport) -> None:
        """Remember the newest report of a partition. One of an unknown partition is ignored."""
        if not 0 <= report.partition < len(self.partitions):
            return
        self.partitions[report.partition] = report
        self._tally = None
        if report.phase == ABORTED:
            # Only the SQL update aborts a partition, and it aborts the whole topic.
            self.aborted = True

    @property
    def tally(self) -> Tally:
        """Counted when it is asked for after a report."""
        if self._tally is None:
            self._tally = Tally()
            for report in self.partitions:
                self._tally.add(report)
        return self._tally

    @property
    def all_crossed(self) -> bool:
        return self.tally.crossed == len(self.partitions)

    @property
    def all_done(self) -> bool:
        ended = self.tally.phases[DONE] + self.tally.phases[FORCED]
        return ended == len(self.partitions)

    @property
    def must_freeze(self) -> bool:
        """An operator forced the completion: nothing is waited for any more."""
        return bool(self.forced_by) and self.stage in (Stage.ROLLING, Stage.TIERING)

    @property
    def gone(self) -> str:
        """Why the topic is no more, or empty."""
        return self.tally.gone

    @property
    def must_cross_again(self) -> bool:
        """B0 of a partition was reset after all had crossed."""
        return self.stage in (Stage.ROLLING, Stage.TIERING) and not self.all_crossed

    def running(self) -> list[int]:
        """Partitions whose workflow was started and has not ended."""
        return [p.partition for p in self.partitions if p.phase != TO_DO and not p.ended]

    def to_start(self) -> list[int]:
        """Partitions that may start now: a place is free until B0 is persisted."""
        if self.paused or self.aborted:
            return []
        free = max(0, self.options.parallel_partitions - self.tally.busy)
        return self.tally.to_do[:free]

    def to_permit(self) -> list[int]:
        """Partitions that are drained and may begin their write pause now."""
        if self.paused or self.aborted or self.stage is not Stage.CROSSING:
            return []
        waiting = self.tally.want_permit
        held_up = [p.partition for p in waiting if self.permits[p.partition] < p.round]
        free = max(0, MOST_WRITE_PAUSES - (len(waiting) - len(held_up)))
        return held_up[:free]

    def steering(self, partition: int) -> Steering:
        """What is wanted of ``partition`` now."""
        return Steering(
            permit=self.permits[partition],
            rolled=self.rolled,
            paused=self.paused,
            aborted=self.aborted,
            completed=bool(self.forced_by),
            options=self.options if self.configured else None,
        )

    def boundaries(self) -> dict[str, int]:
        """B0 by partition, where it is set."""
        return {str(p.partition): p.boundary for p in self.partitions if p.crossed}

    def status(self, waiting_reason: str) -> TopicMigrationStatus:
        """For the ``status`` query. ``waiting_reason`` is the workflow's own; without one, that
        of a partition counts."""
        return TopicMigrationStatus(
            topic=self.ref.topic,
            topic_id=self.ref.topic_id,
            stage=self.stage,
            since=self.since,
            waiting_reason=waiting_reason or self._reason(),
            paused=self.paused,
            next_step=NEXT_STEP[self.stage],
            partitions=list(self.partitions),
            options=self.options,
            completion_forced_by=self.forced_by,
        )

    def _reason(self) -> str:
        if self.paused:
            return PAUSED_REASON
        for first in self.tally.waiting:
            return f"partition {first.partition}: {first.waiting_reason}"
        return ""

    def details(self, known: TopicMigrationStatus) -> list[tuple[str, object]]:
        counted = ", ".join(f"{n} {phase}" for phase, n in self.tally.phases.items())
        return [
            ("topic", f"{known.topic} (id {known.topic_id})"),
            ("stage", f"**{known.stage}** since {known.since}"),
            ("paused", "yes" if known.paused else ""),
            ("waits because", known.waiting_reason),
            ("partitions", counted),
            ("next", known.next_step),
            *((f"partition {p.partition}", p.waiting_reason) for p in self.tally.waiting),
        ]
