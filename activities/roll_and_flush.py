"""Phase 4: observe the log's end until LSO = HW = every in-sync replica's LEO: that is B0.

The boundary is the base offset of the segment that the topic's roll will open later: nothing is
appended in between, so it is the same offset (docs/differences.md).
"""

from __future__ import annotations

import asyncio

from activities.attempt import failure, phase_evidence, rounds
from activities.drain_transactions import looked_ahead
from tideline.domain import failures
from tideline.domain.messages import BoundaryObservation, PhaseInput
from tideline.domain.migration import Phase
from tideline.domain.options import Durability
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.observer import DEBUG_CONSUMER, LeaderMoved, LogEnd, OffsetSpec, PartitionLayout
from tideline.migration.connections import WorkerServices, monotonic_ms
from tideline.migration.prefix import prefix_coverage

SETTLE_EVERY_MS = 5.0
TIERED_EVERY_MS = 250.0


async def roll_and_flush(services: WorkerServices, given: PhaseInput) -> BoundaryObservation:
    """Observe B0 at one leader epoch. Fails as NotSettled when the log does not come to rest
    within half of the quiesce's hold (or, with durability ``tiered``, three quarters)."""
    started = monotonic_ms()
    async with (
        services.pauses.left_on_failure(given.ref.log),
        phase_evidence(services, given, Phase.ROLL_AND_FLUSH) as evidence,
    ):
        if given.options.durability is Durability.TIERED:
            looked_ahead(services, given)
        bound = given.options.quiesce_hold_ms / 2
        end, log_start, tries = await _settle(services, given, bound)
        boundary = end.high_watermark
        layout = end.layout
        evidence.observed |= {
            "boundary": boundary,
            "leader": layout.leader,
            "leader_epoch": layout.leader_epoch,
            "in_sync": list(layout.in_sync),
            "last_stable_offset": end.last_stable_offset,
            "high_watermark": end.high_watermark,
            "log_ends": {str(node): leo for node, leo in end.log_ends.items()},
            "log_start": log_start,
            "observations": tries,
            "took_ms": round(monotonic_ms() - started, 1),
            "durability": given.options.durability.value,
        }
        if given.options.durability is Durability.TIERED:
            left = given.options.quiesce_hold_ms * 0.75 - (monotonic_ms() - started)
            await _wait_tiered(services, given, layout, boundary, max(left, TIERED_EVERY_MS))
        return BoundaryObservation(
            boundary=boundary,
            leader_id=layout.leader,
            leader_epoch=layout.leader_epoch,
            log_start_offset=log_start,
            replicas={str(node): leo for node, leo in sorted(end.log_ends.items())},
        )


async def _settle(
    services: WorkerServices, given: PhaseInput, bound_ms: float
) -> tuple[LogEnd, int, int]:
    """The settled end, the log start and how often it took to see it."""
    topic, partition = given.ref.topic, given.ref.partition
    topic_id = given.ref.log.topic_id
    cached = services.cached.get(given.ref.log)
    layout: PartitionLayout | None = cached.layout if cached is not None else None
    why = "the brokers did not answer"
    async for number in rounds(bound_ms, SETTLE_EVERY_MS):
        try:
            if layout is None:
                layout = await services.observer.partition(topic, partition, topic_id=topic_id)
            if layout.leader < 0:
                why, layout = "the partition has no leader", None
                continue
            end, start = await asyncio.gather(
                services.observer.log_end(topic, layout),
                services.observer.offset(
                    topic,
                    partition,
                    OffsetSpec.EARLIEST,
                    node=layout.leader,
                    leader_epoch=layout.leader_epoch,
                    replica_id=DEBUG_CONSUMER,
                ),
            )
            after = await services.observer.partition(
                topic, partition, layout.leader, topic_id=topic_id
            )
        except (LeaderMoved, KafkaUnavailable) as error:
            why, layout = str(error), None
            continue
        except KafkaError as error:
            if not error.retriable:
                raise
            why, layout = str(error), None
            continue
        same = (
            after.leader == layout.leader
            and after.leader_epoch == layout.leader_epoch
            and set(after.in_sync) == set(layout.in_sync)
        )
        if same and end.settled:
            return end, start.offset, number + 1
        why = end.describe() if same else "the leader or the in-sync replicas changed"
        layout = after
    raise failure(
        failures.NOT_SETTLED,
        f"{topic}-{partition} did not come to rest within {bound_ms:.0f} ms: {why}",
    )


async def _wait_tiered(
    services: WorkerServices,
    given: PhaseInput,
    layout: PartitionLayout,
    boundary: int,
    bound_ms: float,
) -> None:
    """``durability=tiered``: hold B0 back until the whole prefix is in remote storage."""
    why = ""
    async for _ in rounds(bound_ms, TIERED_EVERY_MS):
        coverage = await prefix_coverage(services, given.ref, layout, boundary)
        if coverage.complete:
            return
        why = coverage.reason()
    raise failure(failures.NOT_SETTLED, f"durability=tiered: {why}")
