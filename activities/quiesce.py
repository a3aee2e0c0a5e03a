"""Phase 3: close a new generation and wait until every gateway that may speak has parked.

The write pause begins here, once this process has looked at the partition: what the drain saw may
be another worker's knowledge, or old. With all gateways alive the pause takes a few milliseconds:
one update that takes the generation, one that closes it, and the gateways' acknowledgements.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from activities.attempt import PhaseEvidence, failure, phase_evidence, rounds
from activities.drain_transactions import look_ahead
from tideline.control_plane.lease_observer import reading
from tideline.control_plane.model import BarrierEntry
from tideline.domain import failures
from tideline.domain.ids import TopicIdPartition
from tideline.domain.messages import PhaseInput, QuiesceResult
from tideline.domain.migration import UNDEFINED_OFFSET, Phase, PhaseStatus
from tideline.migration.connections import WorkerServices, monotonic_ms

log = structlog.get_logger()

POLL_MS = 20.0
SAFETY_MS = 500.0
"""Of the hold that is left for the steps after the barrier; less is not worth starting them."""


async def quiesce(services: WorkerServices, given: PhaseInput) -> QuiesceResult:
    """Take and close the next generation; pass the barrier, fencing gateways whose lease ended.

    Fails as QuiesceVoid when the hold is nearly over first. The caller's next attempt takes a
    newer generation, which makes this one stale.
    """
    plane, key = services.control_plane, given.ref.log
    async with (
        services.pauses.left_on_failure(key),
        phase_evidence(services, given, Phase.QUIESCE) as evidence,
    ):
        row = await plane.tracked_partition(key.topic_id, key.partition)
        if row is not None and row.boundary != UNDEFINED_OFFSET:
            raise failure(
                failures.REFUSED,
                f"{given.ref.topic}-{key.partition} has its boundary B0 = {row.boundary} already: "
                "it is never quiesced again",
            )
        await look_ahead(services, given.ref, given.options.durability)
        hold = given.options.quiesce_hold_ms
        await services.pauses.enter(key, hold_ms=hold, bound_ms=hold / 4)
        started = monotonic_ms()
        generation = await plane.next_generation(key)
        evidence.generation = generation
        # Before the close: until then nobody waits for this write.
        await evidence.record(PhaseStatus.RUNNING)
        closing = monotonic_ms()
        await plane.close_generation(key, generation, hold)
        entries, fenced = await _pass_barrier(services, given, generation, started, evidence)
        highest = max((e.highest_acknowledged_offset for e in entries), default=UNDEFINED_OFFSET)
        evidence.observed |= {
            "generation": generation,
            "gateways": [e.gateway.gateway_id for e in entries],
            "fenced": fenced,
            "highest_acknowledged_offset": highest,
            "barrier_ms": round(monotonic_ms() - closing, 1),
            "took_ms": round(monotonic_ms() - started, 1),
        }
        return QuiesceResult(generation, highest, fenced)


async def _pass_barrier(
    services: WorkerServices,
    given: PhaseInput,
    generation: int,
    started: float,
    evidence: PhaseEvidence,
) -> tuple[Sequence[BarrierEntry], list[int]]:
    """The gateways that acknowledged, and those that were fenced instead."""
    key = given.ref.log
    fenced: list[int] = []
    bound = given.options.quiesce_hold_ms - SAFETY_MS - (monotonic_ms() - started)
    missing: Sequence[BarrierEntry] = ()
    async with services.acks.subscribe(ack_payload(key, generation)) as acknowledged:
        async for _ in rounds(max(bound, POLL_MS), POLL_MS, acknowledged):
            sent = monotonic_ms()
            entries = await services.control_plane.quiesce_barrier(key, generation)
            missing = [e for e in entries if not e.acknowledged and e.gateway.status == "active"]
            for entry in missing:
                if services.leases.watch.lapsed(reading(entry.gateway), sent_ms=sent):
                    await _fence(services, entry, given, fenced)
            # One that was fenced just now is gone from the barrier when it is read again.
            if not missing:
                return [e for e in entries if e.acknowledged], fenced
            if monotonic_ms() - started > given.options.quiesce_hold_ms / 4:
                await evidence.waiting(_names(missing))
    raise failure(failures.QUIESCE_VOID, f"the hold is over: {_names(missing)}")


async def _fence(
    services: WorkerServices, entry: BarrierEntry, given: PhaseInput, fenced: list[int]
) -> None:
    gateway = entry.gateway
    reason = (
        f"no lease renewal for {gateway.lease_ms} ms and a margin while "
        f"{given.ref.topic}-{given.ref.partition} was quiesced"
    )
    # Refused if it has renewed since it was looked at: its lease is valid again, it may tell.
    if not await services.control_plane.fence_gateway(
        gateway.gateway_id, gateway.incarnation, gateway.renewals, reason
    ):
        return
    fenced.append(gateway.gateway_id)
    log.warning("gateway_fenced", gateway=gateway.gateway_id, why=reason)


def _names(missing: Sequence[BarrierEntry]) -> str:
    names = ", ".join(f"{e.gateway.gateway_id} at {e.gateway.address}" for e in missing)
    return f"gateway {names} has not acknowledged the quiesce" if missing else "no barrier was read"


def ack_payload(key: TopicIdPartition, generation: int) -> str:
    """What a gateway's acknowledgement notifies."""
    return f"quiesce:{key.topic_id}:{key.partition}:{generation}"
