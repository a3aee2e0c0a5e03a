"""Phase 1: the topic's preflight; then of each partition what it cannot know of that moment."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from activities.attempt import (
    failure,
    heartbeat,
    phase_evidence,
    rounds,
    typed_failures,
    wait_bound_ms,
    waiting,
)
from tideline.domain import failures
from tideline.domain.messages import PartitionRef, PhaseInput, TopicStep
from tideline.domain.migration import Phase
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import PartitionLayout
from tideline.migration.connections import WorkerServices
from tideline.migration.preflight import run_preflight

OBSERVE_EVERY_MS = 500.0


async def validate_topic(services: WorkerServices, step: TopicStep) -> None:
    """The workflow's preflight. Fails as PreflightRefused with every reason and remedy; as Waiting
    when something could not be observed, a broker that has just started for example."""
    ref = step.ref
    with typed_failures():
        report = await run_preflight(services, ref.topic, step.options, heartbeat)
    if report.topic_id and report.topic_id != ref.topic_id:
        raise failure(
            failures.TOPIC_CHANGED,
            f"{ref.topic!r} has id {report.topic_id} now, not {ref.topic_id}: it was created again",
        )
    if report.undecided:
        raise waiting(f"{ref.topic!r}: {report.refusal()}")
    if not report.accepted:
        raise failure(failures.PREFLIGHT_REFUSED, f"{ref.topic!r}: {report.refusal()}")


async def validate_partition(services: WorkerServices, given: PhaseInput) -> None:
    """Pin topic id and leader epoch; wait until every replica is in sync and none is moving.

    Fails as TopicChanged when the name means another topic now, or none, as Waiting at its bound.
    """
    ref = given.ref
    why = ""
    async with phase_evidence(services, given, Phase.VALIDATE) as evidence:
        async for number in rounds(wait_bound_ms(services), OBSERVE_EVERY_MS):
            layout = await _layout(services, ref)
            moving = await services.topics.reassigning(ref.topic, [ref.partition])
            behind = sorted(set(layout.replicas) - set(layout.in_sync))
            evidence.observed |= {
                "leader": layout.leader,
                "leader_epoch": layout.leader_epoch,
                "replicas": list(layout.replicas),
                "in_sync": list(layout.in_sync),
            }
            if layout.leader >= 0 and not behind and not moving:
                return
            why = (
                "the partition is being reassigned"
                if moving
                else f"replicas {behind} are not in sync"
                if behind
                else "the partition has no leader"
            )
            if number:
                await evidence.waiting(why)
        raise waiting(why)


async def _layout(services: WorkerServices, ref: PartitionRef) -> PartitionLayout:
    try:
        return await services.observer.partition(
            ref.topic, ref.partition, topic_id=ref.log.topic_id
        )
    except KafkaError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise
        why = f"{ref.topic!r} has no partition {ref.partition}"
        raise failure(failures.UNKNOWN_TOPIC, why) from error
