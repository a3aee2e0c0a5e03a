"""What remote storage has of a prefix, and of what Kafka takes for tiered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from tideline.domain.coverage import Coverage, assess, lineage_ranges
from tideline.domain.ids import TopicIdPartition
from tideline.domain.messages import PartitionRef
from tideline.domain.remote_log import RemoteSegment
from tideline.domain.tiered_storage import highest_claimed
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import DEBUG_CONSUMER, OffsetSpec, PartitionLayout
from tideline.migration.connections import WorkerServices


async def prefix_coverage(
    services: WorkerServices,
    ref: PartitionRef,
    layout: PartitionLayout,
    end: int,
    start: int | None = None,
    segments: Sequence[RemoteSegment] | None = None,
) -> Coverage:
    """What remote storage has of ``[start, end)``; ``start`` defaults to the log start.
    ``segments``: of the brokers' metadata, if they were read just now.

    Else they are read after the log start: retention that moves it meanwhile makes the answer
    stricter, never looser.
    """
    log_start = await services.observer.offset(
        ref.topic, ref.partition, OffsetSpec.EARLIEST, node=layout.leader, replica_id=DEBUG_CONSUMER
    )
    first = log_start.offset if start is None else max(start, log_start.offset)
    if first >= end:
        return assess(first, end, (), None, ())
    lineage = await services.observer.lineage(ref.topic, layout, log_start.offset)
    if segments is None:
        segments = await services.remote_log.segments(ref.log)
    objects = await services.inventory.objects(ref.topic, ref.log)
    return assess(first, end, segments, objects, lineage)


@dataclass(frozen=True, slots=True)
class Claimed:
    """Up to where Kafka takes one partition's records for tiered, and what of them is."""

    highest: int
    """Offset, inclusive; -1: nothing is."""
    coverage: Coverage
    silent: tuple[int, ...] = ()
    """Replicas that did not answer: they may claim more."""

    def problem(self) -> str:
        """Why a replica might delete what is nowhere else; empty when none can."""
        if self.silent:
            return f"replica {', '.join(map(str, self.silent))} does not answer"
        if self.coverage.complete:
            return ""
        return (
            f"Kafka says that offsets up to {self.highest} are in remote storage, but "
            f"{self.coverage.reason()}"
        )


async def claimed_prefix(
    services: WorkerServices, ref: PartitionRef, layout: PartitionLayout
) -> Claimed:
    """What some replica has locally and Kafka takes, or may come to take, for tiered: is it?"""
    tiered, local = await asyncio.gather(
        services.observer.on_replicas(ref.topic, layout, OffsetSpec.LATEST_TIERED),
        services.observer.on_replicas(ref.topic, layout, OffsetSpec.EARLIEST_LOCAL),
    )
    lowest = min((a for a in local.values() if isinstance(a, int)), default=0)
    answers = {node: answer for node, answer in tiered.items() if isinstance(answer, int)}
    once = await _finished_once(services, ref.log)
    lineage = await services.observer.lineage(ref.topic, layout, lowest) if once else ()
    highest = highest_claimed(answers, once, lineage_ranges(lineage))
    coverage = await prefix_coverage(services, ref, layout, highest + 1, lowest)
    silent = tuple(sorted(set(tiered) - set(answers)))
    return Claimed(highest, coverage, silent)


async def unreadable_start(
    services: WorkerServices, ref: PartitionRef, layout: PartitionLayout
) -> int | None:
    """Where the log begins to be readable, if that is past its log start; ``None``: at it.

    Kafka moves the log start of a tiered topic only when it deletes a remote segment. What it never
    uploaded and deletes locally by retention leaves offsets behind that no place has: consumers
    that begin at the first offset are sent back to it for ever. Judged by Kafka's metadata alone: a
    bucket that cannot be read must not count as empty. Local starts are read before the metadata,
    so that what was deleted locally because it was uploaded is found there.
    """
    start = await services.observer.offset(
        ref.topic, ref.partition, OffsetSpec.EARLIEST, node=layout.leader, replica_id=DEBUG_CONSUMER
    )
    local = await services.observer.on_replicas(ref.topic, layout, OffsetSpec.EARLIEST_LOCAL)
    known = [answer for answer in local.values() if isinstance(answer, int)]
    if len(known) < len(local) or start.offset >= min(known, default=0):
        return None
    lineage = await services.observer.lineage(ref.topic, layout, start.offset)
    segments = await services.remote_log.segments(ref.log)
    gaps = assess(start.offset, min(known), segments, None, lineage).gaps
    return gaps[0].end if gaps and gaps[0].start == start.offset else None


async def _finished_once(services: WorkerServices, log: TopicIdPartition) -> Mapping[int, int]:
    try:
        return await services.remote_log.finished_once(log)
    except KafkaError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise
        return {}  # No topic of this cluster was ever tiered.
