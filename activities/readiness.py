"""Phase 7: wait until any replica may serve the prefix, then mark the partition ready.

Ready means that every replica has rolled to B0 or beyond and that remote segments, checked
against the object store, cover ``[log start, B0)`` without a gap (seed 000, "Determining
tieringComplete"). A replica with a stale high watermark never rolls, so it holds this back.
"""

from __future__ import annotations

from activities.attempt import phase_evidence, rounds, waiting
from activities.zombie_cleanup import prefix_end, prefix_gone
from tideline.domain.coverage import Coverage
from tideline.domain.messages import PartitionRef, PhaseInput
from tideline.domain.migration import Phase
from tideline.kafka.observer import DEBUG_CONSUMER, OffsetSpec, PartitionLayout
from tideline.migration.connections import WorkerServices, monotonic_ms
from tideline.migration.prefix import prefix_coverage

OBSERVE_EVERY_MS = 500.0
GROWTH = 1.3
"""Each look comes later than the one before: a roll takes minutes with Kafka's defaults."""


async def readiness(services: WorkerServices, given: PhaseInput) -> None:
    """Set ``tieringComplete`` when it is true. Fails as Waiting, with the reason, at its bound, or
    as BoundaryReset (see :func:`activities.zombie_cleanup.prefix_gone`)."""
    ref, key = given.ref, given.ref.log
    started = monotonic_ms()
    bound = min(float(given.options.segment_wait_ms), services.wait_bound_ms)
    why = "nothing was observed"
    async with phase_evidence(services, given, Phase.READINESS) as evidence:
        async for number in rounds(bound, OBSERVE_EVERY_MS, growth=GROWTH):
            layout = await services.observer.partition(
                ref.topic, ref.partition, topic_id=key.topic_id
            )
            if layout.leader < 0:
                why = "the partition has no leader"
                continue
            start = await services.observer.offset(
                ref.topic,
                ref.partition,
                OffsetSpec.EARLIEST,
                node=layout.leader,
                replica_id=DEBUG_CONSUMER,
            )
            end = await prefix_end(services, given)
            if start.offset >= end:
                evidence.observed |= {"log_start": start.offset}
                log_start = max(start.offset, given.boundary)
                await prefix_gone(services, given, layout, log_start, evidence)
                await services.control_plane.set_tiering_complete(
                    key, given.generation, True, "the prefix is empty"
                )
                return
            if why := await _unrolled(services, ref, layout, end):
                # The bucket and the metadata are asked once it can matter.
                if number:
                    await evidence.waiting(why)
                continue
            coverage = await prefix_coverage(services, ref, layout, end)
            evidence.observed |= coverage_evidence(coverage)
            why = coverage.reason()
            if not why:
                evidence.observed |= {"waited_ms": round(monotonic_ms() - started, 1)}
                await services.control_plane.set_tiering_complete(
                    key, given.generation, True, f"{coverage.segments} segments cover the prefix"
                )
                return
            if number:
                await evidence.waiting(why)
        raise waiting(why)


async def _unrolled(
    services: WorkerServices, ref: PartitionRef, layout: PartitionLayout, boundary: int
) -> str:
    starts = await services.observer.on_replicas(ref.topic, layout, OffsetSpec.EARLIEST_LOCAL)
    return "; ".join(
        why for node, start in sorted(starts.items()) if (why := unrolled(node, start, boundary))
    )


def unrolled(node: int, start: int | str, end: int) -> str:
    """Why a replica whose log begins at ``start``, or that gave this reason instead, may still have
    offsets below ``end`` itself; empty if it has none."""
    if isinstance(start, str):
        return f"replica {node} did not answer: {start}"
    return f"replica {node} has not rolled: it still has {start} to {end}" if start < end else ""


def coverage_evidence(coverage: Coverage) -> dict[str, object]:
    """A coverage as JSON values."""
    return {
        "wanted": str(coverage.wanted),
        "covered_to": coverage.covered_to,
        "earliest_remote": coverage.earliest_remote,
        "segments": coverage.segments,
        "gaps": [str(gap) for gap in coverage.gaps[:10]],
        "overlapping": coverage.overlapping,
        "overshooting": coverage.overshooting,
        "foreign": list(coverage.foreign[:10]),
        "broken": dict(list(coverage.broken.items())[:10]),
    }
