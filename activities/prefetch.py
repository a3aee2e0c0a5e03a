"""What can be known of a partition before its write pause, so that the pause need not find out."""

from __future__ import annotations

from tideline.domain.messages import PartitionRef
from tideline.domain.producer_tail import LastSequence
from tideline.domain.remote_log import SegmentState
from tideline.kafka.observer import CONSUMER, DEBUG_CONSUMER, OffsetSpec, PartitionLayout
from tideline.migration.connections import CachedObservation, WorkerServices


async def prefetch(services: WorkerServices, ref: PartitionRef) -> CachedObservation:
    """Connect to every replica's broker, scan the tail for producers, find the prefix's largest
    timestamp. Run while appends go on: all of it is extended inside the pause."""
    observer, topic, partition = services.observer, ref.topic, ref.partition
    layout = await observer.partition(topic, partition)
    await observer.on_replicas(topic, layout, OffsetSpec.LATEST)

    async def at_leader(spec: OffsetSpec, replica_id: int = DEBUG_CONSUMER) -> int:
        answer = await observer.offset(
            topic,
            partition,
            spec,
            node=layout.leader,
            leader_epoch=layout.leader_epoch,
            replica_id=replica_id,
        )
        return answer.offset

    log_start = await at_leader(OffsetSpec.EARLIEST)
    local_start = await at_leader(OffsetSpec.EARLIEST_LOCAL)
    watermark = await at_leader(OffsetSpec.LATEST, CONSUMER)
    active = await services.topics.producers(topic, partition, layout.leader)
    sequences = [
        LastSequence(p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp)
        for p in active
    ]
    await services.tails.scan(
        topic, ref.log, layout, sequences, local_start=local_start, end=watermark
    )
    timestamp, offset = await prefix_maximum(
        services, ref, layout, log_start, local_start=local_start, end=watermark
    )
    observation = CachedObservation(layout, watermark, timestamp, offset)
    services.cache(ref.log, observation)
    return observation


async def prefix_maximum(
    services: WorkerServices,
    ref: PartitionRef,
    layout: PartitionLayout,
    log_start: int,
    *,
    local_start: int,
    end: int,
) -> tuple[int, int]:
    """The largest record timestamp (ms) below ``end`` and the offset of its first record, or
    (−1, −1) for an empty prefix.

    The broker answers for the segments that it has locally; older ones come from their remote
    metadata, which is looked at only if nothing cached covers them.
    """
    if log_start >= end:
        return -1, -1
    local = await services.observer.offset(
        ref.topic,
        ref.partition,
        OffsetSpec.MAX_TIMESTAMP,
        node=layout.leader,
        leader_epoch=layout.leader_epoch,
        replica_id=DEBUG_CONSUMER,
    )
    best = (local.timestamp, local.offset) if 0 <= local.offset < end else (-1, -1)
    cached = services.cached.get(ref.log)
    if cached is not None and local_start <= cached.scanned_end:
        known = (cached.max_timestamp, cached.max_timestamp_offset)
        return known if known[0] >= best[0] else best
    if local_start <= log_start:
        return best
    remote = max(
        (
            s.max_timestamp
            for s in await services.remote_log.segments(ref.log)
            if s.state is SegmentState.COPY_SEGMENT_FINISHED and s.start_offset < end
        ),
        default=-1,
    )
    if remote <= best[0]:
        return best
    first = await services.observer.offset(
        ref.topic,
        ref.partition,
        remote,
        node=layout.leader,
        leader_epoch=layout.leader_epoch,
        replica_id=DEBUG_CONSUMER,
    )
    return (first.timestamp, first.offset) if 0 <= first.offset < end else best
