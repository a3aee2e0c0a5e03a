"""Split runs of one partition become segments, as Kafka's tiered storage would hold them.

Segments are planned under the partition's merge token, one or several that follow each other. Each
is read out of WAL objects, checked and uploaded (the log last), and then one transaction makes it
count and takes the batch rows away: in the order of their offsets. Whoever lost the token changes
nothing; objects that it left are gc's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from spark.common.retry import retry
from spark.tiering.outcomes import Ended, MergeOutcome
from spark.tiering.segment_build import (
    WRONG,
    Builds,
    Built,
    ReadRanges,
    SegmentShape,
    WrongPlan,
)
from spark.tiering.services import Services
from tideline.control_plane.errors import (
    StaleClaim,
    TieredRangeGone,
    TieringMismatch,
    TopicDeleted,
    UnknownLog,
)
from tideline.control_plane.tiering_model import MergePlan, NewSegment, TieringScope
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_state import StoredProducerState
from tideline.domain.remote_log import EpochStart
from tideline.errors import TidelineError
from tideline.kafka.segment_files import SegmentFile
from tideline.kafka.segment_writer import WrittenSegment

MAX_BATCHES = 100_000
"""Batches of one segment: as many rows go away in its last transaction, in a few seconds."""
SEGMENTS_AT_ONCE = 4
"""Of one partition in one task. Each holds what it reads ahead and what it uploads."""
LOOKS_PER_CLAIM = 4
"""How often a claim is renewed in its time, so that one that is late once does not end it."""
WAIT_S = 1.0
"""Between two looks at a claim of another attempt."""


@dataclass(frozen=True, slots=True)
class MergeOrder:
    """A partition that has enough for a segment, and how its segments are to be."""

    topic: str
    topic_id: UUID
    partition: int
    log_id: int
    pending_bytes: int
    """Split bytes that lie at the frontier without a gap."""
    requested: bool
    limit_bytes: int
    """No segment is larger, unless its first batch is."""
    enough_bytes: int
    """A further segment is made while at least this is left."""
    index_interval_bytes: int
    lineage: tuple[EpochStart, ...] = ()
    """Leader epochs of the whole log, for the checkpoints; empty: only each segment's own."""

    @property
    def log(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)

    def segments_at_once(self, left: int) -> int:
        """How many segments to plan of ``left`` bytes: of each there is surely enough."""
        enough = 1 if self.requested else self.enough_bytes
        further = max(0, left - enough) // self.limit_bytes
        return min(SEGMENTS_AT_ONCE, 1 + further)


def merge_partition(
    services: Services,
    worker: UUID,
    order: MergeOrder,
    *,
    claim_ms: int,
    read: ReadRanges | None = None,
) -> Iterator[MergeOutcome]:
    """Make segments while there is enough for one, until another worker is met or one fails.

    ``read``: of WAL objects; default: by a request for each range. Nothing is yielded when
    another worker has the partition or nothing is left to merge. While ``worker`` itself has a
    claim, its end is waited for: it is that of another attempt of the same task, dead or alive.
    What is not the partition's fault is not counted and ends the task:
    :class:`~tideline.errors.UnreachableError`, refused credentials, a missing bucket.
    """
    left = order.pending_bytes
    while left > 0:
        ended = True
        plans = _plans(services, worker, order, left, claim_ms)
        for outcome in _segments(services, order, plans, claim_ms, read or services.read_ranges):
            yield outcome
            left -= outcome.size_bytes
            ended = outcome.ended != Ended.DONE
        if ended or not (order.requested or left >= order.enough_bytes):
            return


def _segments(
    services: Services,
    order: MergeOrder,
    plans: Sequence[MergePlan],
    claim_ms: int,
    read: ReadRanges,
) -> Iterator[MergeOutcome]:
    started = time.monotonic()
    if not plans:
        return
    shape = SegmentShape(order.index_interval_bytes, order.lineage)
    with Builds(services, read, shape, plans) as builds:
        for plan, future in zip(plans, builds.ready, strict=True):
            for outcome in _one_segment(services, plan, future, claim_ms):
                elapsed_ms = round((time.monotonic() - started) * 1000)
                yield replace(outcome, elapsed_ms=elapsed_ms)
                if outcome.ended != Ended.DONE:
                    return


def _plans(
    services: Services, worker: UUID, order: MergeOrder, left: int, claim_ms: int
) -> list[MergePlan]:
    plane, ids = services.plane, [uuid4() for _ in range(order.segments_at_once(left))]
    waited = False
    while True:
        try:
            plans = retry(
                lambda: plane.begin_merge(
                    order.log, worker, claim_ms, ids, order.limit_bytes, MAX_BATCHES
                )
            )
            held = not plans and retry(lambda: plane.merge_claimed_for(order.log, worker)) > 0
        except (UnknownLog, TieredRangeGone):
            # What retention was removing meanwhile: the next run plans what is left.
            return []
        # A claim that ended between the two calls is asked for once more.
        if plans or not (held or waited):
            return plans
        waited = held
        if held:
            time.sleep(WAIT_S)


def _one_segment(
    services: Services, plan: MergePlan, future: Future[Built], claim_ms: int
) -> Iterator[MergeOutcome]:
    """One outcome; a second one where the segment ends before a batch that is wrong."""
    planned = MergeOutcome(
        plan.topic, str(plan.topic_id), plan.partition, Ended.STALE, str(plan.segment_id),
        base_offset=plan.base_offset, last_offset=plan.last_offset,
    )  # fmt: skip
    try:
        built = _built(services, plan, future, claim_ms)
        segment = _registered(plan, built.written)
        retry(lambda: services.plane.finish_merge(plan.log, plan.token, segment))
    except StaleClaim:
        yield planned
        return
    except (TieredRangeGone, TopicDeleted) as error:
        _abandon(services, plan, error)
        yield planned
        return
    except (*WRONG, WrongPlan, TieringMismatch) as error:
        yield _failed(services, plan, planned, error)
        return
    except Exception as error:
        # Another attempt need not wait for the claim to expire; if Postgres is away, it does.
        with suppress(TidelineError):
            services.plane.abandon_merge(plan.log, plan.token, str(error))
        raise
    written = built.written
    yield replace(
        planned,
        ended=Ended.DONE,
        last_offset=written.last_offset,
        size_bytes=written.log_bytes,
        batches=written.batches,
        records=written.records,
        object_reads=built.object_reads,
        bytes_read=built.bytes_read,
        object_writes=built.object_writes,
    )
    if built.wrong is not None:
        behind = replace(planned, base_offset=written.last_offset + 1)
        yield _failed(services, plan, behind, built.wrong)


def _built(services: Services, plan: MergePlan, future: Future[Built], claim_ms: int) -> Built:
    """Waits, and holds the claim meanwhile. Raises :class:`StaleClaim` when it is lost, and what
    the build raised."""
    while not wait([future], claim_ms / 1000 / LOOKS_PER_CLAIM).done:
        retry(lambda: services.plane.renew_merge(plan.log, plan.token, claim_ms))
    try:
        return future.result()
    except WRONG:
        # Who has lost the claim may look for objects that another one's merge has set free.
        retry(lambda: services.plane.renew_merge(plan.log, plan.token, claim_ms))
        raise


def _registered(plan: MergePlan, written: WrittenSegment) -> NewSegment:
    return NewSegment(
        segment_id=plan.segment_id,
        base_offset=written.base_offset,
        last_offset=written.last_offset,
        size_bytes=written.log_bytes,
        max_timestamp=written.max_timestamp,
        record_count=written.records,
        batch_count=written.batches,
        offset_index_bytes=len(written.beside[SegmentFile.OFFSET_INDEX]),
        time_index_bytes=len(written.beside[SegmentFile.TIME_INDEX]),
        snapshot_bytes=len(written.beside[SegmentFile.SNAPSHOT]),
        epoch_checkpoint_bytes=len(written.beside[SegmentFile.LEADER_EPOCHS]),
        producers=tuple(
            StoredProducerState(
                p.producer_id,
                p.producer_epoch,
                p.last_sequence,
                p.last_offset,
                p.offset_delta,
                p.timestamp,
            )
            for p in written.producers
        ),
    )


def _failed(
    services: Services, plan: MergePlan, outcome: MergeOutcome, error: Exception
) -> MergeOutcome:
    """Count it before the claim is given back, so that nobody takes the partition in between."""
    services.count_failure(TieringScope.MERGE, plan.log_id, str(error))
    _abandon(services, plan, error)
    return replace(outcome, ended=Ended.FAILED, error=str(error))


def _abandon(services: Services, plan: MergePlan, error: Exception) -> None:
    retry(lambda: services.plane.abandon_merge(plan.log, plan.token, str(error)))
