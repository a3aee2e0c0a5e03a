"""Phase 2: wait until no transaction is open on the partition, while appends go on.

Gateways refuse new transactions on the topic since tracking, so what is open is all there is.
At its end the phase prefetches what the write pause that follows need not find out then.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from activities.attempt import (
    PhaseEvidence,
    failure,
    phase_evidence,
    rounds,
    wait_bound_ms,
    waiting,
)
from activities.configs import shows_tiered
from tideline.domain import failures
from tideline.domain.config_changes import REMOTE_STORAGE
from tideline.domain.ids import TopicPartition
from tideline.domain.messages import PartitionRef, PhaseInput
from tideline.domain.migration import Phase
from tideline.domain.options import Durability, OpenTransactionsPolicy
from tideline.domain.producer_tail import LastSequence
from tideline.domain.remote_log import SegmentState
from tideline.domain.topic_configs import NOT_TIERED
from tideline.domain.transactions import Blocker, Remedy, blockers, remedy
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import CONSUMER, DEBUG_CONSUMER, OffsetSpec, PartitionLayout
from tideline.migration.connections import CachedObservation, WorkerServices, monotonic_ms

OBSERVE_EVERY_MS = 250.0
FRESH_MS = 5_000.0
"""A prefetch that is older than this is made anew before producers are parked."""


async def drain_transactions(services: WorkerServices, given: PhaseInput) -> None:
    """Return when the partition is drained. Fails as Waiting, with the reason, at its bound.

    Past the operator's deadline (counted from the phase's first recorded attempt) ongoing
    transactions are aborted if the options say so.
    """
    partition = TopicPartition(given.ref.topic, given.ref.partition)
    why = ""
    async with phase_evidence(services, given, Phase.DRAIN_TRANSACTIONS) as evidence:
        since = await _first_attempt_ms(services, given)
        deadline = since + given.options.drain_deadline_ms
        abort = given.options.open_transactions is OpenTransactionsPolicy.ABORT
        aborted: list[str] = []
        async for number in rounds(wait_bound_ms(services), OBSERVE_EVERY_MS):
            leader = (
                await services.observer.partition(
                    partition.topic, partition.partition, topic_id=given.ref.log.topic_id
                )
            ).leader
            found = await _observe(services, partition, leader)
            if not found:
                observation = await prefetch(services, given.ref)
                evidence.observed |= {
                    "open_transactions": 0,
                    "aborted": aborted,
                    "leader": observation.layout.leader,
                    "high_watermark": observation.scanned_end,
                }
                return
            passed = time.time() * 1000 >= deadline
            for blocker in found:
                action = remedy(blocker, deadline_passed=passed, abort_allowed=abort)
                if await _act(services, partition, leader, blocker, action):
                    aborted.append(blocker.describe())
            why = _reason(found, passed=passed, abort=abort)
            if number:
                await _record(evidence, found, aborted, why)
        raise waiting(why)


async def _first_attempt_ms(services: WorkerServices, given: PhaseInput) -> float:
    began = await services.control_plane.phase_began(given.ref.log, Phase.DRAIN_TRANSACTIONS)
    return time.time() * 1000 if began is None else began.timestamp() * 1000


async def _observe(
    services: WorkerServices, partition: TopicPartition, leader: int
) -> tuple[Blocker, ...]:
    """The leader before, the coordinators, the leader after (domain/transactions.py says why)."""
    before = await services.topics.producers(partition.topic, partition.partition, leader)
    transactions = await services.topics.open_transactions()
    after = await services.topics.producers(partition.topic, partition.partition, leader)
    return blockers(
        partition,
        (p.open() for p in before if p.transaction_start >= 0),
        transactions,
        (p.open() for p in after if p.transaction_start >= 0),
    )


async def _act(
    services: WorkerServices,
    partition: TopicPartition,
    leader: int,
    blocker: Blocker,
    action: Remedy,
) -> bool:
    if action is Remedy.FENCE and blocker.transactional_id is not None:
        return await services.admin.fence_transaction(blocker.transactional_id)
    if action is Remedy.WRITE_ABORT_MARKER:
        await services.admin.write_abort_marker(partition, leader, blocker)
        return True
    return False


def _reason(found: tuple[Blocker, ...], *, passed: bool, abort: bool) -> str:
    described = "; ".join(blocker.describe() for blocker in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    if passed and abort:
        return f"{described}{more}; being aborted"
    if passed:
        return f"{described}{more}; end it, or migrate with open transactions aborted"
    return f"{described}{more}"


async def _record(
    evidence: PhaseEvidence, found: tuple[Blocker, ...], aborted: list[str], why: str
) -> None:
    evidence.observed |= {"open_transactions": len(found), "aborted": aborted}
    await evidence.waiting(why)


# What can be known before the write pause, so that the pause need not find out.


async def look_ahead(
    services: WorkerServices, ref: PartitionRef, durability: Durability = Durability.FSYNCED
) -> None:
    """Prefetch, unless this process did so within :data:`FRESH_MS`; with durability ``tiered`` also
    read remote metadata, which the pause asks for then and which may take minutes at first."""
    if durability is Durability.TIERED:
        await services.remote_log.segments(ref.log)
    known = services.cached.get(ref.log)
    if known is None or monotonic_ms() - known.at_ms > FRESH_MS:
        await prefetch(services, ref)


def looked_ahead(services: WorkerServices, given: PhaseInput) -> CachedObservation:
    """What this process saw just before the pause of ``given`` began.

    Fails as NotSettled when it saw nothing, or only long ago: producers are let go, and the next
    attempt looks first.
    """
    known = services.cached.get(given.ref.log)
    # The wait for a turn among the pauses, and the pause.
    longest = FRESH_MS + given.options.quiesce_hold_ms * 1.25
    if known is None or monotonic_ms() - known.at_ms > longest:
        raise failure(
            failures.NOT_SETTLED,
            "this worker took over inside the write pause: what it would read first is not "
            "read while producers wait",
        )
    return known


async def prefetch(services: WorkerServices, ref: PartitionRef) -> CachedObservation:
    """Connect to every replica's broker, scan the tail for producers, find the prefix's largest
    timestamp. Run while appends go on: all of it is extended inside the pause. Fails as Waiting
    where there will be a prefix and the topic is not tiered."""
    observer, topic, partition = services.observer, ref.topic, ref.partition
    layout = await observer.partition(topic, partition, topic_id=ref.log.topic_id)
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
    tiered = await _is_tiered(services, topic)
    if log_start < watermark and not tiered:
        raise waiting(f"{topic}-{partition}: {NOT_TIERED}, or abort the migration")
    active = await services.topics.producers(topic, partition, layout.leader)
    sequences = [
        LastSequence(p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp)
        for p in active
    ]
    await services.tails.look_back(
        topic,
        ref.log,
        layout,
        sequences,
        log_start=log_start,
        local_start=local_start,
        end=watermark,
    )
    timestamp, offset = await prefix_maximum(
        services, ref, layout, log_start, local_start=local_start, end=watermark
    )

    async def high_watermark() -> int:
        return await at_leader(OffsetSpec.LATEST, CONSUMER)

    seen_at = await _caught_up(services, ref, layout, high_watermark)
    observation = CachedObservation(layout, watermark, tiered, timestamp, offset, seen_at)
    services.cache(ref.log, observation)
    return observation


async def _is_tiered(services: WorkerServices, topic: str) -> bool:
    views = (await services.topics.configs_of((topic,), (REMOTE_STORAGE,)))[topic]
    if isinstance(views, KafkaError):
        raise views
    return shows_tiered(views)


CATCH_UPS = 5
LITTLE_MS = 200.0


async def _caught_up(
    services: WorkerServices,
    ref: PartitionRef,
    layout: PartitionLayout,
    watermark: Callable[[], Awaitable[int]],
) -> float:
    """Read what was appended while the log was looked at, which may have taken a minute, until
    that takes a moment: the pause is left with as little. Answers when the log was seen to end
    there, by :func:`monotonic_ms`."""
    for _ in range(CATCH_UPS):
        seen_at = monotonic_ms()
        end = await watermark()
        await services.tails.catch_up(ref.topic, ref.log, layout, end)
        if monotonic_ms() - seen_at < LITTLE_MS:
            break
    return seen_at


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
