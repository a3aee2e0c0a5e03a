"""Phase 5: seed the producer state and persist B0 in one transaction. The point of no return.

Everything read here is read at the leader epoch at which B0 was observed, and the log's end is
read once more after the producers: a late append between the two would otherwise put its
sequence into the seeds (schedules.md, 5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from activities.attempt import failure, phase_evidence
from activities.drain_transactions import looked_ahead, prefix_maximum
from tideline.background import cancel_and_wait, spawn
from tideline.control_plane import errors as refusals
from tideline.control_plane.model import BoundaryToPersist
from tideline.domain import failures
from tideline.domain.ids import TopicPartition
from tideline.domain.messages import PhaseInput
from tideline.domain.migration import UNDEFINED_OFFSET, Phase
from tideline.domain.producer_tail import LastSequence
from tideline.domain.topic_configs import NOT_TIERED
from tideline.domain.transactions import blockers
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.observer import DEBUG_CONSUMER, LeaderMoved, OffsetSpec, PartitionLayout
from tideline.kafka.topic_observer import ActiveProducer
from tideline.migration.connections import WorkerServices, monotonic_ms


async def seed_and_persist(services: WorkerServices, given: PhaseInput) -> None:
    """Persist ``given.boundary``. Succeeds at once if exactly that is persisted already.

    Fails as NotSettled when the world moved since B0 was observed, as QuiesceVoid or
    StaleGeneration when this attempt has lost its right.
    """
    plane, key = services.control_plane, given.ref.log
    started = monotonic_ms()
    async with (
        services.pauses.left_on_failure(key),
        phase_evidence(services, given, Phase.SEED_AND_PERSIST) as evidence,
    ):
        observing = spawn(_observe(services, given), "observe")
        try:
            row = await plane.tracked_partition(key.topic_id, key.partition)
            if row is None:
                raise failure(failures.REFUSED, f"{given.ref.topic}-{key.partition} is not tracked")
            found = await observing if row.boundary == UNDEFINED_OFFSET else None
        finally:
            # A repeat after success needs no observation, whatever that has found: the log may
            # have moved on since.
            await cancel_and_wait(observing)
        if found is not None:
            request, layout = found
            await evidence.begun()
            # Last of all before the write, however long the others took: the log still ends at
            # B0, and its leader is still the one of this epoch.
            await _confirm_end(services, given, layout)
            observed = monotonic_ms()
            await _persist(services, request)
            evidence.observed |= {
                "seeds": len(request.seeds),
                "producers": len({seed.producer_id for seed in request.seeds}),
                "prefix_log_start": request.prefix_log_start,
                "prefix_max_timestamp": request.prefix_max_timestamp,
                "observed_ms": round(observed - started, 1),
                "persisted_ms": round(monotonic_ms() - observed, 1),
            }
        elif (row.boundary, row.boundary_epoch) != (given.boundary, given.leader_epoch):
            raise failure(
                failures.REFUSED,
                f"{given.ref.topic}-{key.partition} has B0 = {row.boundary} at leader epoch "
                f"{row.boundary_epoch} already, not {given.boundary} at {given.leader_epoch}",
            )
        services.forget(key)
        await services.pauses.leave(key)
        evidence.observed |= {"boundary": given.boundary, "leader_epoch": given.leader_epoch}


@contextmanager
def _unsettled() -> Iterator[None]:
    """What the brokers cannot say now asks for a new observation, not for the same one again."""
    try:
        yield
    except (LeaderMoved, KafkaUnavailable) as error:
        # A leader that does not answer may be one no more.
        raise failure(failures.NOT_SETTLED, str(error)) from error
    except KafkaError as error:
        if error.retriable:
            raise failure(failures.NOT_SETTLED, str(error)) from error
        raise


async def _observe(
    services: WorkerServices, given: PhaseInput
) -> tuple[BoundaryToPersist, PartitionLayout]:
    topic, partition, key = given.ref.topic, given.ref.partition, given.ref.log
    epoch, boundary = given.leader_epoch, given.boundary
    with _unsettled():
        cached = looked_ahead(services, given)
        layout = cached.layout
        if layout.leader_epoch != epoch:
            layout = await services.observer.partition(topic, partition, topic_id=key.topic_id)
        if layout.leader_epoch != epoch:
            raise failure(
                failures.NOT_SETTLED,
                f"leader epoch {layout.leader_epoch} follows {epoch}, at which B0 was observed",
            )
        active, transactions, local_start, log_start = await asyncio.gather(
            services.topics.producers(topic, partition, layout.leader),
            services.topics.open_transactions(),
            _offset(services, given, layout, OffsetSpec.EARLIEST_LOCAL),
            _offset(services, given, layout, OffsetSpec.EARLIEST),
        )
        if log_start < boundary and not cached.tiered:
            services.forget(key)
            raise failure(failures.NOT_SETTLED, f"{topic}-{partition}: {NOT_TIERED}")
        if local_start > cached.scanned_end:
            raise failure(
                failures.NOT_SETTLED,
                f"local segments up to {local_start} went since the look ahead, which saw "
                f"{cached.scanned_end}: their largest timestamp is not looked for while producers "
                "wait",
            )
        open_now = [p.open() for p in active if p.transaction_start >= 0]
        if open_still := blockers(
            TopicPartition(topic, partition), open_now, transactions, open_now
        ):
            raise failure(failures.NOT_SETTLED, open_still[0].describe())
        sequences = _sequences(active)
        tail, maximum = await asyncio.gather(
            services.tails.catch_up(topic, key, layout, boundary),
            prefix_maximum(
                services, given.ref, layout, log_start, local_start=local_start, end=boundary
            ),
        )
    if tail is None:
        services.forget(key)
        raise failure(
            failures.NOT_SETTLED,
            f"leader epoch {epoch} began since the look ahead: what producers wrote before is not "
            "looked for while they wait",
        )
    request = BoundaryToPersist(
        log=key,
        boundary=boundary,
        leader_epoch=epoch,
        generation=given.generation,
        seeds=tail.seeds(sequences, boundary),
        prefix_log_start=log_start,
        prefix_max_timestamp=maximum[0],
        prefix_max_timestamp_offset=maximum[1],
    )
    return request, layout


async def _confirm_end(
    services: WorkerServices, given: PhaseInput, layout: PartitionLayout
) -> None:
    with _unsettled():
        end = await _offset(services, given, layout, OffsetSpec.LATEST)
    if end != given.boundary:
        raise failure(
            failures.NOT_SETTLED, f"the log's end moved from {given.boundary} to {end} meanwhile"
        )


async def _offset(
    services: WorkerServices, given: PhaseInput, layout: PartitionLayout, spec: OffsetSpec
) -> int:
    answer = await services.observer.offset(
        given.ref.topic,
        given.ref.partition,
        spec,
        node=layout.leader,
        leader_epoch=given.leader_epoch,
        replica_id=DEBUG_CONSUMER,
    )
    return answer.offset


def _sequences(active: Sequence[ActiveProducer]) -> list[LastSequence]:
    return [
        LastSequence(p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp)
        for p in active
    ]


async def _persist(services: WorkerServices, request: BoundaryToPersist) -> None:
    try:
        await services.control_plane.initialize_diskless_migration(request)
    except refusals.StaleGeneration as error:
        raise failure(failures.STALE_GENERATION, str(error)) from error
    except refusals.QuiesceNotClosed as error:
        raise failure(failures.QUIESCE_VOID, str(error)) from error
    except (refusals.StaleLeaderEpoch, refusals.BoundaryBelowAcknowledged) as error:
        raise failure(failures.NOT_SETTLED, str(error)) from error
