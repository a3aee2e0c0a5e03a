"""What a topic's workflow remembers, and what follows from it. Pure: no Temporal in here."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice

from tideline.domain.messages import (
    ABORTED,
    DONE,
    FORCED,
    MOST_REPORTS,
    PAUSED_REASON,
    TO_DO,
    PartitionColumns,
    PartitionReport,
    Steering,
    TopicMigrationStatus,
    TopicRef,
    WaitsFor,
)
from tideline.domain.migration import LET_THROUGH, MOST_WRITE_PAUSES, Phase
from tideline.domain.options import MigrationOptions
from tideline.domain.report_columns import packed, unpacked
from tideline.domain.waits import Waits
from workflows.tally import Tally


class Stage(StrEnum):
    """What the topic's workflow does. In this order, except that an abort goes to ABORTING, a B0
    that was reset back to CROSSING, and from there a topic that is not tracked to TRACKING."""

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
    through: list[int] = field(default_factory=list)
    """Partitions that were started with a permit, as they are once the topic is armed, and may be
    before or in the write pause that it is for."""
    tried_first: bool = False
    """As many partitions as the options name have crossed, and the topic was paused for them."""
    share: int | None = None
    """Of the partitions that operators allow to all topics between validation and B0."""
    untracked: bool = False
    """A partition that crosses has found that Postgres does not have the topic tracked any more."""
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
    ready: dict[str, int] = field(default_factory=dict)
    """By partition the round in which its prefix was found to be complete, until it has ended."""
    own_look: dict[str, bool] = field(default_factory=dict)
    """Partitions that must look for themselves whether they are ready."""
    grown: str = ""
    """Partitions that came past the gateways and that nobody serves when the migration ends."""
    looked_after: int = 0
    """Partitions below this one were checked on, in this round of all."""
    columns: PartitionColumns | None = None
    """In the place of ``partitions``, of a large topic that continues as new."""

    def __post_init__(self) -> None:
        self._tally: Tally | None = None

    def begin(self) -> None:
        """At the start of a run."""
        if self.columns is not None:
            self.partitions, self.columns = unpacked(self.columns), None
            self._tally = None
        if not self.partitions:
            count = self.ref.partitions
            self.partitions = [PartitionReport(p, TO_DO, self.since) for p in range(count)]
            self.permits = [0] * count
            self._tally = None

    def receive(self, report: PartitionReport) -> None:
        """Remember the newest report of a partition. One of an unknown partition is ignored."""
        if not 0 <= report.partition < len(self.partitions):
            return
        if report.unsure or report.rests:
            report = self._as_known(report)
        before, self.partitions[report.partition] = self.partitions[report.partition], report
        if report.crossed or report.ended or report.round > self.permits[report.partition]:
            self.not_through(report.partition)
        if self._tally is not None:
            self._tally.remove(before)
            self._tally.add(report)
        if before.crossed and not report.crossed:
            # B0 was unset: what was found under it says nothing of the next one.
            self.ready.pop(str(report.partition), None)
            self.own_look.pop(str(report.partition), None)
        self.hold_after_first()
        if report.phase == ABORTED:
            # Only the SQL update aborts a partition, and it aborts the whole topic.
            self.aborted = True
        if report.waits_for is WaitsFor.TRACKING and self.stage is not Stage.TRACKING:
            self.untracked = True

    def _as_known(self, report: PartitionReport) -> PartitionReport:
        """Of a workflow that does not know where its partition stands: what was known holds. Only
        one that has read Postgres takes B0 back."""
        before = self.partitions[report.partition]
        if not (report.unsure and before.crossed):
            return replace(report, unsure=False)
        if before.ended:
            return before
        reason, waits = report.waiting_reason, report.waits
        return replace(before, waiting_reason=reason, waits=waits, rests=False)

    @property
    def tally(self) -> Tally:
        """Counted once in a run, and kept up with each report."""
        if self._tally is None:
            self._tally = Tally.of(self.partitions)
        return self._tally

    def to_carry(self) -> TopicState:
        """What the next run begins with."""
        if len(self.partitions) <= MOST_REPORTS:
            return self
        return replace(self, partitions=[], columns=packed(self.partitions))

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

    @property
    def may_track_again(self) -> bool:
        """A partition has no B0 yet. Of a sealed log nobody would know what the user had."""
        return self.stage in (Stage.TRACKING, Stage.CROSSING) and not self.sealed

    @property
    def must_track_again(self) -> bool:
        """Before another write pause: a history was begun that lacks that gateways track it."""
        return self.untracked and self.may_track_again and self.stage is Stage.CROSSING

    @property
    def must_open(self) -> bool:
        """The classic log is sealed, and a partition whose B0 was reset writes to it again."""
        return self.sealed and self.stage is Stage.CROSSING

    @property
    def first_have_crossed(self) -> bool:
        """Those that were to cross before the others have, and nobody has looked at them yet."""
        first = self.options.first_partitions
        if self.tried_first or not 0 < first < len(self.partitions):
            return False
        return self.tally.crossed >= first

    def hold_after_first(self) -> None:
        """Pause when they have: with each report, and with other options."""
        if self.first_have_crossed:
            self.tried_first = self.paused = True

    # Readiness, which is looked for once for all partitions that wait for it

    @property
    def may_look_for_ready(self) -> bool:
        waits = self.rolled and bool(self.tally.want_ready)
        return waits and not (self.paused or self.aborted or self.forced_by)

    def wants_ready(self) -> list[int]:
        """Partitions whose prefix is to be looked for in remote storage."""
        return sorted(self.tally.want_ready)

    def still_wants_ready(self, partition: int, round: int) -> bool:
        """It waits under the B0 that it had when it was looked for: B0 may have been reset."""
        return partition in self.tally.want_ready and self.partitions[partition].round == round

    def found_ready(self, partition: int) -> None:
        """Under the B0 that it has."""
        self.ready[str(partition)] = self.partitions[partition].round
        self.not_waiting(partition)

    def must_look_itself(self, partition: int) -> None:
        self.own_look[str(partition)] = True
        self.not_waiting(partition)

    @property
    def somebody_looks(self) -> bool:
        """A workflow of a partition's finds out what the topic's could not decide."""
        return any(not self.partitions[int(p)].ended for p in self.own_look)

    def told_of_ready(self, partition: int, now: str) -> None:
        """Its workflow was steered by :meth:`steering`: it ends, and need not report that."""
        report = self.partitions[partition]
        if report.phase == Phase.READINESS and self.ready.get(str(partition), 0) >= report.round:
            self.receive(replace(report, phase=DONE, since=now, waiting_reason=""))
            del self.ready[str(partition)]

    def not_waiting(self, partition: int) -> None:
        """It knows, or is being told, how it goes on."""
        report = self.partitions[partition]
        if report.waits_for is WaitsFor.READY:
            self.receive(replace(report, waits_for=WaitsFor.NOTHING, waiting_reason=""))

    def running(self) -> list[int]:
        """Partitions whose workflow was started and has not ended."""
        return [
            p.partition for p in self.partitions if p.phase != TO_DO and not p.ended and not p.rests
        ]

    def force_resting(self, now: str) -> None:
        """An operator forced the completion: those that wait without a workflow of their own."""
        for report in list(self.partitions):
            if report.rests and not report.ended:
                forced = replace(report, phase=FORCED, since=now, waits_for=WaitsFor.NOTHING)
                self.receive(forced)

    def to_look_after(self, heard_of: Container[int], most: int) -> list[int]:
        """The next partitions, in turn, that run and of which this run hears nothing by itself. The
        next run goes on behind them: one run reaches some hundred of a large topic."""
        silent = [p for p in self.running() if p not in heard_of]
        behind = [p for p in silent if p >= self.looked_after] or silent
        self.looked_after = behind[:most][-1] + 1 if behind else 0
        return behind[:most]

    def to_start(self) -> list[int]:
        """Partitions that may start now: a place is free until B0 is persisted."""
        if self.paused or self.aborted or self.untracked or self.stage is Stage.TRACKING:
            return []
        allowed = self.options.parallel_partitions
        if self.share is not None:
            allowed = min(allowed, self.share)
        free = max(0, allowed - self.tally.busy)
        if (first := self.options.first_partitions) and not self.tried_first:
            begun = len(self.partitions) - len(self.tally.to_do)
            free = min(free, max(0, first - begun))
        if self.starts_with_permit:
            free = min(free, self._free_to_let_through())
        return list(islice(self.tally.to_do, free))

    @property
    def starts_with_permit(self) -> bool:
        """Nobody has to be asked between the drain and the write pause."""
        return self.armed and self.options.durability.lets_through

    def _free_to_let_through(self) -> int:
        """None while one waits that has to be asked for: it would never have its turn."""
        permitted, held_up = self._asking()
        if held_up:
            return 0
        return max(0, LET_THROUGH * (MOST_WRITE_PAUSES - permitted) - len(self.through))

    def let_through(self, partition: int) -> None:
        """It is started with its permit."""
        self.permits[partition] = self.partitions[partition].round
        self.through.append(partition)

    def take_back(self, partition: int) -> None:
        """It runs already, and was not started with its permit: it asks like others."""
        self.permits[partition] -= 1
        self.not_through(partition)

    def not_through(self, partition: int) -> None:
        """It has no use for the permit that it was started with any more."""
        if partition in self.through:
            self.through.remove(partition)

    def round_to_start(self, partition: int) -> int:
        """In which round its workflow begins. One that is started again asks before it parks
        anybody, if it still has to: its permit was for another pause, of a topic that was armed."""
        known = self.partitions[partition].round
        if partition in self.through:
            return known
        return max(known, self.permits[partition] + 1)

    def _asking(self) -> tuple[int, list[int]]:
        """How many have the permit that they asked for, and who waits for it."""
        waiting = [report for _, report in sorted(self.tally.want_permit.items())]
        held_up = [p.partition for p in waiting if self.permits[p.partition] < p.round]
        return len(waiting) - len(held_up), held_up

    def to_permit(self) -> list[int]:
        """Partitions that are drained and may begin their write pause now."""
        if self.paused or self.aborted or self.untracked or self.stage is not Stage.CROSSING:
            return []
        if self.sealed:
            return []  # the topic is unsealed first: that and the arming change the same configs
        permitted, held_up = self._asking()
        under_way = permitted + -(-len(self.through) // LET_THROUGH)
        return held_up[: max(0, MOST_WRITE_PAUSES - under_way)]

    def steering(self, partition: int) -> Steering:
        """What is wanted of ``partition`` now."""
        return Steering(
            permit=self.permits[partition],
            paused=self.paused,
            aborted=self.aborted,
            completed=bool(self.forced_by),
            options=self.options if self.configured else None,
            ready=self.ready.get(str(partition), 0),
            own_look=str(partition) in self.own_look,
        )

    def boundaries(self) -> dict[str, int]:
        """B0 by partition, where it is set."""
        return {str(p.partition): p.boundary for p in self.partitions if p.crossed}

    def status(self, waiting_reason: str) -> TopicMigrationStatus:
        """For the ``status`` query. ``waiting_reason`` is the workflow's own; without one, that
        of a partition counts."""
        large = len(self.partitions) > MOST_REPORTS
        return TopicMigrationStatus(
            topic=self.ref.topic,
            topic_id=self.ref.topic_id,
            stage=self.stage,
            since=self.since,
            waiting_reason=self.reason(waiting_reason),
            paused=self.paused,
            next_step=NEXT_STEP[self.stage],
            partitions=[] if large else list(self.partitions),
            options=self.options,
            completion_forced_by=self.forced_by,
            columns=packed(self.partitions) if large else None,
        )

    def reason(self, waiting_reason: str) -> str:
        """Why the migration waits: the workflow's own reason, or that of a partition."""
        return waiting_reason or self._why()[0]

    def waits(self, waits: Waits) -> Waits:
        """The kind of that reason; ``waits``: of the workflow's own."""
        return waits or self._why()[1]

    def _why(self) -> tuple[str, Waits]:
        if self.paused and self.tried_first and self.stage is Stage.CROSSING:
            why = (
                f"{self.tally.crossed} partitions have crossed before the others "
                f"(first_partitions={self.options.first_partitions}): look at them, then resume"
            )
            return why, Waits.OPERATOR
        if self.paused:
            return PAUSED_REASON, Waits.PAUSED
        if self.share == 0 and self.stage is Stage.CROSSING and self.tally.to_do:
            why = "no partition may begin to cross: operators allow none now (`tideline limits`)"
            return why, Waits.OPERATOR
        for first in self.tally.waiting[:1]:
            report = self.partitions[first]
            return f"partition {first}: {report.waiting_reason}", Waits(report.waits)
        return "", Waits.NOTHING

    def details(self, reason: str) -> list[tuple[str, object]]:
        """For the Temporal UI; costs the same however many partitions there are. ``reason``: of
        :meth:`reason`."""
        tally = self.tally
        counted = ", ".join(f"{n} {phase}" for phase, n in tally.phases.items())
        return [
            ("topic", f"{self.ref.topic} (id {self.ref.topic_id})"),
            ("stage", f"**{self.stage}** since {self.since}"),
            ("paused", "yes" if self.paused else ""),
            ("waits because", reason),
            ("partitions", counted),
            ("next", NEXT_STEP[self.stage]),
            *((f"partition {p}", self.partitions[p].waiting_reason) for p in tally.waiting),
        ]
