"""Phase 7 for all partitions of a topic at once: which of them may any replica serve by now?

The rule is that of :mod:`activities.readiness`, asked with one request per broker for many
partitions. Buckets and leader epochs are looked at once what is cheap to know says that it can
matter. What is more than a wait is left to the partition's own workflow.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from kio.schema.errors import ErrorCode

from activities.attempt import heartbeat, refuse_forgotten, rounds, typed_failures
from activities.readiness import coverage_evidence, unrolled
from tideline.control_plane.model import ReadinessLook, TrackedPartition
from tideline.domain.ids import TopicIdPartition
from tideline.domain.messages import PartitionRef, ReadinessFound, ReadinessRequest
from tideline.domain.migration import UNDEFINED_OFFSET, MigrationState
from tideline.domain.remote_log import SegmentState
from tideline.errors import UnreachableError
from tideline.kafka.errors import KafkaError, MetadataNotUnderstood
from tideline.kafka.observer import OffsetAnswer, OffsetSpec, PartitionLayout
from tideline.migration.connections import WorkerServices
from tideline.migration.prefix import prefix_coverage
from tideline.migration.side_by_side import side_by_side

BOUND_MS = 60_000.0
OBSERVE_EVERY_MS = 500.0
GROWTH = 1.3
AT_MOST_MS = 10_000.0
"""Each look comes later than the one before: a roll takes minutes with Kafka's defaults."""
GATHER_MS = 1_000.0
"""How long the first that are ready wait for others, so that fewer answers are needed."""
JUDGED_AT_ONCE = 100
"""What was found of so many is kept before more are looked at: an attempt that is cut off has not
been for nothing."""
PARTITIONS_AT_ONCE = 500
"""In one request to a broker."""
WRITTEN_AT_ONCE = 50
"""In one transaction: commits to these partitions wait for it."""
MOST_REASONS = 5
T = TypeVar("T")


@dataclass(slots=True)
class _Look:
    """What one look has found so far, by partition."""

    rows: dict[int, TrackedPartition]
    layouts: dict[int, PartitionLayout]
    open: dict[int, None] = field(default_factory=dict)
    """Nothing speaks against them yet."""
    complete: list[ReadinessLook] = field(default_factory=list)
    waiting: dict[int, str] = field(default_factory=dict)
    """Why it is not ready yet."""
    own: list[int] = field(default_factory=list)
    """More than a wait: its own workflow must look."""
    ready: list[int] = field(default_factory=list)
    """And Postgres has it so."""

    def place(self, partition: int) -> None:
        """Where a partition that was asked for stands in Postgres and Kafka."""
        row = self.rows.get(partition)
        if row is None or row.boundary == UNDEFINED_OFFSET or partition not in self.layouts:
            self.own.append(partition)
        elif row.ready:
            # By B0, a coverage run, or an attempt that was cut off: nobody need look again.
            empty = row.state is MigrationState.DISKLESS_ONLY
            reason = "the prefix is empty" if empty else "remote storage was found to have it"
            self.covered(partition, reason, {})
        else:
            self.open[partition] = None

    def waits(self, partition: int, why: str) -> None:
        self.open.pop(partition, None)
        self.waiting[partition] = why

    def covered(self, partition: int, reason: str, evidence: dict[str, object]) -> None:
        self.open.pop(partition, None)
        generation = self.rows[partition].generation
        self.complete.append(ReadinessLook(partition, generation, True, reason, evidence))

    def end(self, partition: int) -> int:
        """Where what Kafka must hold ends (exclusive): B0, or a log gap that was given up."""
        return self.rows[partition].prefix_end


async def await_readiness(services: WorkerServices, request: ReadinessRequest) -> ReadinessFound:
    """Look until some partition is ready, or the bound has passed. Sets ``tieringComplete`` of
    those that are. Fails as the adapters' errors say; as UnknownTopic when the topic is gone."""
    asked = dict.fromkeys(request.partitions)
    ready: list[int] = []
    own: list[int] = []
    waiting: dict[int, str] = {}

    async def look() -> None:
        nonlocal waiting
        found, left, waiting = await _look(services, request, list(asked))
        ready.extend(found)
        own.extend(left)
        for partition in (*found, *left):
            del asked[partition]

    bound = min(BOUND_MS, 6 * services.wait_bound_ms)
    with typed_failures():
        async for _ in rounds(bound, OBSERVE_EVERY_MS, growth=GROWTH, at_most_ms=AT_MOST_MS):
            await look()
            if ready or own:
                if asked:
                    await asyncio.sleep(GATHER_MS / 1000)
                    await look()
                break
    shown = sorted(waiting)[:MOST_REASONS]
    return ReadinessFound(sorted(ready), sorted(own), {str(p): waiting[p] for p in shown})


async def _look(
    services: WorkerServices, request: ReadinessRequest, asked: Sequence[int]
) -> tuple[list[int], list[int], dict[int, str]]:
    """Who is ready, who must look alone, and why the others wait."""
    ref = request.ref
    topic = await services.control_plane.tracked_topic(ref.topic)
    if topic is None or topic.topic_id != ref.id:
        await refuse_forgotten(services, ref.topic, ref.id)
        return [], list(asked), {}
    layout = await services.observer.topic(ref.topic, topic_id=ref.id)
    assert layout is not None  # else it raises
    look = _Look(dict(topic.partitions), dict(layout.partitions))
    for partition in asked:
        look.place(partition)
    await _prefix_starts(services, request, look)
    await _unrolled(services, request, look)
    await _coverage(services, request, look)
    await _write(services, request, look)
    return look.ready, look.own, look.waiting


async def _prefix_starts(services: WorkerServices, request: ReadinessRequest, look: _Look) -> None:
    """A prefix of which retention has left nothing is another case than one to wait for."""
    by_leader: dict[int, list[int]] = defaultdict(list)
    for partition in list(look.open):
        leader = look.layouts[partition].leader
        if leader < 0:
            look.waits(partition, "the partition has no leader")
        else:
            by_leader[leader].append(partition)
    for leader, partitions in by_leader.items():
        answers = await _offsets(services, request, OffsetSpec.EARLIEST, leader, partitions)
        for partition, answer in answers:
            if isinstance(answer, str):
                look.waits(partition, f"the leader {leader} did not answer: {answer}")
            elif answer >= look.end(partition):
                del look.open[partition]
                look.own.append(partition)


async def _unrolled(services: WorkerServices, request: ReadinessRequest, look: _Look) -> None:
    by_node: dict[int, list[int]] = defaultdict(list)
    for partition in look.open:
        for node in look.layouts[partition].replicas:
            by_node[node].append(partition)
    behind: dict[int, list[str]] = defaultdict(list)
    for node, partitions in sorted(by_node.items()):
        answers = await _offsets(services, request, OffsetSpec.EARLIEST_LOCAL, node, partitions)
        for partition, answer in answers:
            if why := unrolled(node, answer, look.end(partition)):
                behind[partition].append(why)
    for partition, reasons in behind.items():
        look.waits(partition, "; ".join(reasons))


async def _offsets(
    services: WorkerServices,
    request: ReadinessRequest,
    spec: OffsetSpec,
    node: int,
    partitions: Sequence[int],
) -> list[tuple[int, int | str]]:
    """One offset of each partition at ``node``, or why not."""
    found: list[tuple[int, int | str]] = []
    for some in _portions(partitions, PARTITIONS_AT_ONCE):
        try:
            answers = await services.observer.offsets(request.ref.topic, some, spec, node=node)
        except (UnreachableError, KafkaError) as error:
            # Not asked once more for each portion: a broker that hangs takes its time each time.
            answered = {partition for partition, _ in found}
            found += [(p, str(error)) for p in partitions if p not in answered]
            break
        found += [(partition, _offset(answers[partition])) for partition in some]
    return found


def _offset(answer: OffsetAnswer | ErrorCode) -> int | str:
    return answer.offset if isinstance(answer, OffsetAnswer) else answer.name


async def _coverage(services: WorkerServices, request: ReadinessRequest, look: _Look) -> None:
    """Of those that have rolled everywhere. The bucket and the lineage are asked for only where the
    brokers' metadata reach B0."""
    if not look.open:
        return
    try:
        await services.remote_log.refresh(request.ref.id)
    except MetadataNotUnderstood as error:
        # What was found of others stays found.
        for partition in list(look.open):
            look.waits(partition, str(error))
        return
    reached: list[int] = []
    for partition in list(look.open):
        log, end = TopicIdPartition(request.ref.id, partition), look.end(partition)
        copied = max(
            (
                segment.end_offset + 1
                for segment in services.remote_log.known(log)
                if segment.state is SegmentState.COPY_SEGMENT_FINISHED
            ),
            default=0,
        )
        if copied >= end:
            reached.append(partition)
        else:
            look.waits(partition, f"remote storage has offsets up to {copied}, of {end}")

    away: list[int] = []

    async def judge(partition: int) -> None:
        ref = PartitionRef(request.ref.topic, request.ref.topic_id, partition)
        try:
            coverage = await prefix_coverage(
                services, ref, look.layouts[partition], look.end(partition),
                segments=services.remote_log.known(ref.log),
            )  # fmt: skip
        except (UnreachableError, KafkaError) as error:
            # Of this partition: another's leader and objects may well be there.
            away.append(partition)
            look.waits(partition, str(error))
            return
        if why := coverage.reason():
            look.waits(partition, why)
            return
        reason = f"{coverage.segments} segments cover the prefix"
        look.covered(partition, reason, coverage_evidence(coverage))

    remaining = iter(reached)
    for some in _portions(remaining, JUDGED_AT_ONCE):
        heartbeat()
        away.clear()
        await side_by_side(judge, some)
        await _write(services, request, look)
        if len(away) == len(some):
            break  # nothing answers
    for partition in remaining:
        look.waits(partition, look.waiting[away[0]])


async def _write(services: WorkerServices, request: ReadinessRequest, look: _Look) -> None:
    """Keep what was found, what is new of it."""
    for some in _portions(_news(services, request, look), WRITTEN_AT_ONCE):
        kept = set(await services.control_plane.record_readiness(request.ref.id, some))
        for each in some:
            key = TopicIdPartition(request.ref.id, each.partition)
            if each.partition not in kept:
                # Another generation, or B0 was unset meanwhile: the next look sees it.
                services.unready.pop(key, None)
            elif each.complete:
                services.unready.pop(key, None)
                look.ready.append(each.partition)
            else:
                services.remember_unready(key, each.reason)
    look.complete.clear()


def _news(
    services: WorkerServices, request: ReadinessRequest, look: _Look
) -> Iterator[ReadinessLook]:
    yield from look.complete
    for partition, why in look.waiting.items():
        if services.unready.get(TopicIdPartition(request.ref.id, partition)) != why:
            yield ReadinessLook(partition, look.rows[partition].generation, False, why, {})


def _portions(items: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while portion := list(islice(remaining, size)):
        yield portion
