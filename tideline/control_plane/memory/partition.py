"""One partition: generations and quiesce, and when B0 may be set, set again, aborted or reset.

What always holds: B0 is set at most once between resets, at an epoch that never goes back, under a
closed generation that every gateway which may act has acknowledged, above every offset that a
gateway has acknowledged, together with seeds that all lie below it (seed 000, I2; schedules 5, 7,
13, 14, 20).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from uuid import UUID

from tideline.control_plane.errors import (
    BoundaryAlreadySet,
    BoundaryBelowAcknowledged,
    BoundaryUnset,
    GapAcceptedAlready,
    InvalidInput,
    NotMigrating,
    OffsetOutOfRange,
    QuiesceNotClosed,
    ResetRefused,
    SeedMismatch,
    SeedNotBelowBoundary,
    StaleGeneration,
    StaleLeaderEpoch,
)
from tideline.control_plane.memory.suffix import Suffix
from tideline.control_plane.model import (
    SUFFIX_HOLE,
    BatchToCommit,
    CommittedBatch,
    FindBatchesRequest,
    FoundBatches,
    GatewayRegistration,
    ListOffsetsKind,
    PartitionMigrationStatus,
    PhaseRecord,
    SuffixOffset,
    TrackedPartition,
)
from tideline.domain.ack_gate import Standing
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import UNDEFINED_OFFSET, MigrationState, Phase
from tideline.domain.prefix import past_gap, prefix_end
from tideline.domain.producer_state import ProducerEntry, entries_from_seeds, in_order
from tideline.domain.producer_tail import ProducerSeed

LONGEST_HOLD_MS = 600_000
OUTRUN = 1_000_000
"""By so much generations go on in a new history."""


class QuiesceState(StrEnum):
    """A generation is closed at most once: open → closed → reopened.

    An acknowledgement of a closure that became void must not count for another closure, because
    the gateway has appended in between. Only a new generation is open again.
    """

    OPEN = "open"
    CLOSED = "closed"
    REOPENED = "reopened"


@dataclass(slots=True)
class Partition:
    """One row of ``logs``, with what hangs on it. A method that raises has changed nothing."""

    log: TopicIdPartition
    topic: str
    is_migrating: bool = True
    """Without B0: False after an abort."""
    generation: int = 0
    quiesce: QuiesceState = QuiesceState.OPEN
    deadline_ms: int = -1
    acknowledged: dict[tuple[int, int, UUID], int] = field(default_factory=dict)
    """By generation, gateway and incarnation: the highest offset it has acknowledged."""
    witnesses: frozenset[UUID] = frozenset()
    """Incarnations that could act when the generation was closed."""
    epoch: int = -1
    """Leader epoch of the last B0, or at which its reset was seen: older ones are stale."""
    seeds: tuple[ProducerSeed, ...] | None = None
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    suffix: Suffix | None = None
    log_start: int = UNDEFINED_OFFSET
    """Earliest readable offset of the whole log."""
    prefix_max_timestamp: int = -1
    prefix_max_timestamp_offset: int = -1
    tiering_complete: bool = False
    accepted_gap_from: int = UNDEFINED_OFFSET
    accepted_gap_epoch: int = -1
    deleted: bool = False
    phases: dict[Phase, PhaseRecord] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.topic}-{self.log.partition}"

    @property
    def boundary(self) -> int:
        """B0, or -1."""
        return UNDEFINED_OFFSET if self.suffix is None else self.suffix.boundary

    @property
    def high_watermark(self) -> int:
        return UNDEFINED_OFFSET if self.suffix is None else self.suffix.high_watermark

    @property
    def suffix_start(self) -> int:
        return UNDEFINED_OFFSET if self.suffix is None else self.suffix.start

    @property
    def state(self) -> MigrationState:
        if self.suffix is None:
            return MigrationState.MIGRATING if self.is_migrating else MigrationState.TIERED_ONLY
        tiered = self.suffix.tiered_start >= 0
        return MigrationState.HYBRID if tiered else MigrationState.DISKLESS_ONLY

    # Generations and quiesce

    def next_generation(self) -> int:
        """A new attempt: everything older is stale, an older quiesce void."""
        self._assert_migrating()
        self.begin_generation()
        self.acknowledged.clear()
        return self.generation

    def outrun(self) -> None:
        """A new history: whoever holds a generation of a state that is gone is stale."""
        self.generation += OUTRUN
        self.witnesses = frozenset()
        self.acknowledged.clear()
        if self.boundary < 0:
            self._end_quiesce(QuiesceState.OPEN)

    def begin_generation(self) -> None:
        self.generation += 1
        self.witnesses = frozenset()
        self._end_quiesce(QuiesceState.OPEN)

    def close(
        self,
        generation: int,
        hold_ms: int,
        now_ms: int,
        gateways: Sequence[GatewayRegistration] = (),
    ) -> None:
        """Quiesce ``generation``. Once reopened it stays so. ``gateways``: those that may act; a
        closing that is repeated makes no new witnesses of them."""
        if self.boundary >= 0:
            raise BoundaryAlreadySet(f"{self.label} has B0 {self.boundary} already")
        if self.quiesce is QuiesceState.REOPENED:
            raise QuiesceNotClosed(
                f"generation {generation} of {self.label} was closed before and is void"
            )
        if self.quiesce is QuiesceState.OPEN:
            self.witnesses = frozenset(gateway.incarnation for gateway in gateways)
        self.quiesce, self.deadline_ms = QuiesceState.CLOSED, now_ms + hold_ms

    def assert_closable(self, generation: int, hold_ms: int) -> None:
        self.assert_generation(generation)
        self._assert_migrating()
        if not 1 <= hold_ms <= LONGEST_HOLD_MS:
            raise InvalidInput(f"a hold of {hold_ms} ms is not allowed")

    def acknowledge(
        self, generation: int, gateway_id: int, incarnation: UUID, highest: int
    ) -> None:
        self.assert_generation(generation)
        if self.quiesce is not QuiesceState.CLOSED:
            raise QuiesceNotClosed(f"generation {generation} of {self.label} is not closed")
        key = (generation, gateway_id, incarnation)
        self.acknowledged[key] = max(highest, self.acknowledged.get(key, -1))

    def standing(self, gateway_id: int, incarnation: UUID, *, active: bool) -> Standing:
        """What a gateway is told that asks whether it may tell what Kafka answered."""
        key = (self.generation, gateway_id, incarnation)
        return Standing(
            generation=self.generation,
            boundary=self.boundary,
            active=active,
            closed=self.quiesce is QuiesceState.CLOSED,
            awaited=incarnation in self.witnesses and key not in self.acknowledged,
        )

    def reopen(self, generation: int) -> bool:
        """Whether the partition takes classic appends again."""
        if generation != self.generation or self.boundary >= 0:
            return False
        if self.quiesce is QuiesceState.CLOSED:
            self._end_quiesce(QuiesceState.REOPENED)
        return True

    def void_expired(self, now_ms: int) -> bool:
        """Whether a gateway may un-park to the classic log."""
        holds = self.quiesce is QuiesceState.CLOSED and now_ms < self.deadline_ms
        return not holds and self.reopen(self.generation)

    # B0

    def persist(
        self,
        boundary: int,
        epoch: int,
        generation: int,
        seeds: Sequence[ProducerSeed],
        prefix_log_start: int,
        gateways: Sequence[GatewayRegistration],
        now_ms: int,
    ) -> bool:
        """Seed and set B0, unless it is set so already; whether anything changed.

        The same boundary with the same seeds succeeds again, at its epoch or a higher one: a retry
        after a leader change finds its own success. ``gateways``: those at the quiesce barrier.
        """
        self._assert_epoch(epoch)
        if self.suffix is not None:
            self._assert_same_boundary(boundary)
            self._assert_same_seeds(seeds)
            return False
        self.assert_generation(generation)
        self._assert_migrating()
        self._assert_below(seeds, boundary)
        self._assert_may_set(boundary, prefix_log_start, gateways, now_ms)
        self._write_seeds(seeds, now_ms)
        self.open_suffix(boundary, epoch, prefix_log_start)
        return True

    def persist_directly(
        self,
        boundary: int,
        epoch: int,
        gateways: Sequence[GatewayRegistration],
        now_ms: int,
        *,
        forced_by: str | None = None,
    ) -> bool:
        """Seed 000 ``setDisklessLogStartOffset``: -1 resets; never around the epoch or quiesce."""
        self._assert_epoch(epoch)
        if boundary == UNDEFINED_OFFSET:
            return self.suffix is not None and self._reset(epoch, forced_by)
        if self.suffix is not None:
            self._assert_same_boundary(boundary)
            return False
        self._assert_migrating()
        self._assert_below(self.seeds or (), boundary)
        self._assert_may_set(boundary, 0, gateways, now_ms)
        self.open_suffix(boundary, epoch, 0)
        return True

    def open_suffix(self, boundary: int, epoch: int, prefix_log_start: int) -> None:
        prefix = prefix_log_start if boundary > 0 else UNDEFINED_OFFSET
        self.suffix = Suffix(boundary, producers=self.producers, prefix_start=prefix)
        self.epoch, self.log_start = epoch, prefix_log_start
        self.tiering_complete = boundary == 0
        self._end_quiesce(QuiesceState.OPEN)

    def seed(self, seeds: Sequence[ProducerSeed], now_ms: int) -> None:
        """Overwritable while B0 is unset."""
        if self.suffix is not None:
            self._assert_same_seeds(seeds)
        else:
            self._assert_below(seeds, None)
            self._write_seeds(seeds, now_ms)

    def reset(self, generation: int, epoch: int, *, forced_by: str | None = None) -> bool:
        """Unset B0 while the suffix is empty; whether anything changed. ``epoch``: of the leader
        that was asked. ``forced_by``: who forced the topic's completion, if somebody did."""
        self.assert_generation(generation)
        self._assert_epoch(epoch)
        return self.suffix is not None and self._reset(epoch, forced_by)

    def assert_gap(self, generation: int, leader_epoch: int, first: int, end: int) -> None:
        """Whether ``[first, end)`` may be given up, as far as this row knows."""
        if self.boundary < 0:
            raise BoundaryUnset(f"{self.label} has no B0")
        self.assert_generation(generation)
        self._assert_epoch(leader_epoch)
        start = max(self.log_start, 0)
        if end != self.boundary:
            raise InvalidInput(
                f"a log gap of {self.label} ends at B0 {self.boundary}, not at {end}"
            )
        if not start <= first < end:
            raise InvalidInput(
                f"offset {first} of {self.label} lies outside {start} (log start) to {end} (B0)"
            )
        if leader_epoch < self.accepted_gap_epoch:
            raise StaleLeaderEpoch(
                f"leader epoch {leader_epoch} of {self.label} is stale: a gap was accepted at "
                f"epoch {self.accepted_gap_epoch}"
            )
        if 0 <= self.accepted_gap_from < first:
            raise GapAcceptedAlready(
                f"the loss of {self.accepted_gap_from} to {end - 1} of {self.label} is accepted "
                "already"
            )

    def abort(self) -> None:
        """Back to tiered only. The caller has seen that no partition of the topic has B0."""
        self.is_migrating, self.seeds = False, None
        self.producers.clear()
        self.begin_generation()

    # The suffix

    def commit(self, batch: BatchToCommit, object_key: str, now_ms: int) -> CommittedBatch:
        """The caller has seen that B0 is set."""
        suffix = self._opened()
        outcome = suffix.append(batch, object_key, now_ms)
        return replace(outcome, log_start=self.log_start, high_watermark=suffix.high_watermark)

    def read_error(self) -> str:
        """Why no read of the suffix is answered, or ``NONE``."""
        if self.deleted:
            return "TOPIC_DELETED"
        return "BOUNDARY_UNSET" if self.suffix is None else "NONE"

    def find(self, request: FindBatchesRequest, limit: int) -> FoundBatches:
        """At most ``limit`` batches, but one at least."""
        error = self.read_error()
        if error != "NONE":
            return FoundBatches(error, self.log_start, self.high_watermark)
        suffix, offset = self._opened(), request.fetch_offset
        error = suffix.find_error(offset)
        segment = suffix.segment_at(offset) if error == "NONE" else None
        found = [] if segment else suffix.find(offset, request.max_bytes, limit)
        if error == "NONE" and not segment and not found and offset < suffix.high_watermark:
            error = SUFFIX_HOLE
        return FoundBatches(error, self.log_start, suffix.high_watermark, tuple(found), segment)

    def list_offsets(self, kind: ListOffsetsKind, timestamp: int) -> SuffixOffset:
        error = self.read_error()
        if error != "NONE":
            return SuffixOffset(error, suffix_start=self.suffix_start)
        return self._opened().list_offsets(kind, timestamp)

    def delete_records(self, before_offset: int) -> int:
        """The suffix's start, advanced: never back, never past the high watermark."""
        if self.suffix is None:
            raise BoundaryUnset(f"partition {self.label} has no diskless suffix yet")
        suffix = self.suffix
        before = suffix.high_watermark if before_offset == -1 else before_offset
        if not 0 <= before <= suffix.high_watermark:
            raise OffsetOutOfRange(
                f"offset {before_offset} of {self.label} lies outside 0..{suffix.high_watermark} "
                "(its high watermark)"
            )
        if before > suffix.start:
            suffix.start = before
            self.log_start = max(self.log_start, before)
        return suffix.start

    def advance_prefix(self, log_start: int) -> None:
        """Kafka's log start moved. Without a prefix nothing is missing from it."""
        if self.suffix is None or self.suffix.prefix_start < 0:
            return
        end = prefix_end(self.accepted_gap_from, self.suffix.boundary)
        self.suffix.advance_prefix(past_gap(log_start, end, self.suffix.boundary))
        if self.suffix.prefix_start < 0:
            self.tiering_complete = True
        start = self.suffix.prefix_start
        self.log_start = max(self.log_start, start if start >= 0 else self.suffix.start)

    def set_tiering_complete(self, generation: int, complete: bool) -> None:
        self.assert_generation(generation)
        if complete and self.suffix is None:
            raise BoundaryUnset(f"{self.label} has no B0 yet")
        self.tiering_complete = complete or self.state is MigrationState.DISKLESS_ONLY

    # Views

    def tracked(self) -> TrackedPartition:
        return TrackedPartition(
            topic_id=self.log.topic_id,
            partition=self.log.partition,
            state=self.state,
            generation=self.generation,
            quiesced=self.quiesce is QuiesceState.CLOSED,
            boundary=self.boundary,
            boundary_epoch=self.epoch,
            high_watermark=self.high_watermark,
            suffix_start=self.suffix_start,
            prefix_max_timestamp=self.prefix_max_timestamp,
            prefix_max_timestamp_offset=self.prefix_max_timestamp_offset,
            ready=self.tiering_complete,
            accepted_gap_from=self.accepted_gap_from,
            prefix_gone=self.suffix is not None and not self.suffix.has_prefix,
        )

    def status(self) -> PartitionMigrationStatus:
        return PartitionMigrationStatus(
            topic=self.topic,
            log=self.log,
            state=self.state,
            generation=self.generation,
            quiesced=self.quiesce is QuiesceState.CLOSED,
            boundary=self.boundary,
            boundary_epoch=self.epoch,
            high_watermark=self.high_watermark,
            tiering_complete=self.tiering_complete,
            phases=tuple(sorted(self.phases.values(), key=lambda phase: phase.started_at)),
        )

    # What must hold

    def assert_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise StaleGeneration(
                f"generation {generation} of {self.label} is stale: {self.generation} is current"
            )

    def _assert_migrating(self) -> None:
        if self.state is MigrationState.TIERED_ONLY:
            raise NotMigrating(f"{self.label} is {self.state}: its migration was aborted")

    def _assert_epoch(self, epoch: int) -> None:
        if epoch < max(self.epoch, 0):
            raise StaleLeaderEpoch(
                f"leader epoch {epoch} of {self.label} is stale: B0 was set, or reset, at epoch "
                f"{self.epoch}"
            )

    def _assert_same_boundary(self, boundary: int) -> None:
        if boundary != self.boundary:
            raise BoundaryAlreadySet(
                f"B0 of {self.label} is {self.boundary} (epoch {self.epoch}), it cannot become "
                f"{boundary}"
            )

    def _assert_same_seeds(self, seeds: Sequence[ProducerSeed]) -> None:
        if self.seeds != in_order(seeds):
            raise SeedMismatch(
                f"B0 of {self.label} is set ({self.boundary}) with other producer seeds"
            )

    def _assert_below(self, seeds: Sequence[ProducerSeed], boundary: int | None) -> None:
        for s in seeds:
            lies = 0 <= s.base_offset <= s.last_offset or (
                s.is_unlocated and s.last_offset == s.base_offset
            )
            is_batch = lies and min(s.producer_id, s.producer_epoch) >= 0
            if not is_batch or (boundary is not None and s.last_offset >= boundary):
                raise SeedNotBelowBoundary(
                    f"the seed of producer {s.producer_id} (epoch {s.producer_epoch}, offsets "
                    f"{s.base_offset} to {s.last_offset}) is not below B0 {boundary} of "
                    f"{self.label}"
                )

    def _assert_may_set(
        self,
        boundary: int,
        prefix_log_start: int,
        gateways: Sequence[GatewayRegistration],
        now_ms: int,
    ) -> None:
        if self.quiesce is not QuiesceState.CLOSED or self.deadline_ms <= now_ms:
            is_closed = self.quiesce is QuiesceState.CLOSED
            why = "past its deadline" if is_closed else self.quiesce.value
            raise QuiesceNotClosed(f"generation {self.generation} of {self.label} is {why}")
        for gateway in gateways:
            if self.acknowledged_by(gateway, self.generation) is None:
                raise QuiesceNotClosed(
                    f"gateway {gateway.gateway_id} has not acknowledged generation "
                    f"{self.generation} of {self.label}"
                )
        highest = max(
            (offset for key, offset in self.acknowledged.items() if key[0] == self.generation),
            default=-1,
        )
        if boundary <= highest:
            raise BoundaryBelowAcknowledged(
                f"B0 {boundary} of {self.label} is not above offset {highest}, which a gateway has "
                "acknowledged"
            )
        if not 0 <= prefix_log_start <= boundary:
            raise InvalidInput(
                f"log start {prefix_log_start} of {self.label} lies outside 0..{boundary} (B0)"
            )

    def acknowledged_by(self, gateway: GatewayRegistration, generation: int) -> int | None:
        """What the gateway acknowledged for ``generation``, if it did."""
        return self.acknowledged.get((generation, gateway.gateway_id, gateway.incarnation))

    # Changes

    def _end_quiesce(self, state: QuiesceState) -> None:
        self.quiesce, self.deadline_ms = state, -1

    def _write_seeds(self, seeds: Sequence[ProducerSeed], now_ms: int) -> None:
        self.seeds = in_order(seeds)
        self.producers = entries_from_seeds(seeds, now_ms)

    def _reset(self, epoch: int, forced_by: str | None) -> bool:
        suffix = self._opened()
        if suffix.high_watermark > suffix.boundary:
            raise ResetRefused(
                f"the suffix of {self.label} holds offsets {suffix.boundary} to "
                f"{suffix.high_watermark - 1}"
            )
        if self.state is not MigrationState.HYBRID:
            raise ResetRefused(f"{self.label} is {self.state}: it has no prefix")
        if forced_by is not None:
            raise ResetRefused(
                f"the completion of topic {self.topic} was forced by {forced_by}: its classic log "
                f"is being sealed and takes no records of {self.label}"
            )
        self.epoch = epoch
        self.accepted_gap_from = self.accepted_gap_epoch = -1
        self.suffix, self.seeds, self.log_start = None, None, UNDEFINED_OFFSET
        self.producers = {}
        self.prefix_max_timestamp = self.prefix_max_timestamp_offset = -1
        self.is_migrating, self.tiering_complete = True, False
        self._end_quiesce(QuiesceState.REOPENED)
        return True

    def _opened(self) -> Suffix:
        if self.suffix is None:
            raise BoundaryUnset(f"{self.label} has no B0 yet")
        return self.suffix
