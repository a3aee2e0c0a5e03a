"""The reconciler: the only writer of a tracked topic's configs, once per stage and topic.

Postgres has the overrides and what the user had. A stage first changes Postgres, key by key,
keeping the user's value from before the first change; then Postgres is read once more and Kafka
made to follow it, until Kafka shows it. A key is let go of only after Kafka shows the user's
value, so that a crash in between repeats and forgets nothing. A stalled attempt that wakes is
refused by what Postgres says by then: it cannot undo a later stage (schedules.md, 12).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode

from activities.attempt import (
    current_run,
    failure,
    heartbeat,
    refuse_forgotten,
    typed_failures,
    waiting,
)
from tideline.control_plane.model import TopicStatus, TrackedTopic
from tideline.domain import failures
from tideline.domain.config_changes import REMOTE_STORAGE
from tideline.domain.messages import ConfigStep, PartitionRef, TopicRef, TopicStep
from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.remote_log import SegmentState
from tideline.domain.topic_configs import (
    AT_ONCE,
    LOCAL_RETENTION_BYTES,
    TopicProgress,
    desired,
    differences,
    refusal,
    waits_for,
)
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import DEBUG_CONSUMER, OffsetSpec, PartitionLayout
from tideline.kafka.topic_observer import ConfigEntry
from tideline.migration.connections import Proof, WorkerServices
from tideline.migration.prefix import claimed_prefix
from tideline.migration.side_by_side import side_by_side

log = structlog.get_logger()

ROUNDS = 40
SETTLE_S = 0.05
"""Look, write, look again: rounds, and the pause between them, until every broker shows what
Postgres says. Brokers follow the controller one by one, so one that lags must neither pass for
what is set nor for what the user had."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What all brokers show alike of a topic's configs."""

    own: dict[str, str | None]
    """What is set on the topic itself."""
    tiered: bool
    knows_copy_lag: bool


async def reconcile_configs(services: WorkerServices, step: ConfigStep) -> None:
    """Hold what the stage asks for.

    Fails as StaleStage when Postgres no longer allows the stage, as Waiting when a roll is not
    proven safe yet, has no tiered storage, or Kafka does not show what was written.
    """
    ref, stage = step.ref, step.stage
    written: dict[str, str | None] = {}
    with typed_failures():
        async for shown in looks(services, ref):
            overridden = await _override(services, step, shown)
            # Read again, because what was decided above may be out of date by now.
            topic = await _topic(services, ref)
            if why := refusal(stage, _progress(topic, shown)):
                raise failure(failures.STALE_STAGE, f"stage {stage.value} of {ref.topic!r}: {why}")
            target = {
                key: override.override_value if key in overridden else override.user_value
                for key, override in topic.overrides.items()
            }
            changes = differences(target, shown.own)
            if not changes:
                if not await _released(services, topic, overridden.keys()):
                    continue  # the user has changed one meanwhile
                log.info("topic_configs", topic=ref.topic, stage=stage.value, written=written)
                return
            # Kafka alters by name only, and another topic of the name would be sealed.
            await same_topic(services, ref)
            await services.admin.alter_configs(ref.topic, changes)
            written |= {change.key: change.value for change in changes}
    what = written or "not every broker agrees on them"
    raise waiting(f"Kafka does not show the configs of {ref.topic!r} that were written: {what}")


async def looks(services: WorkerServices, ref: TopicRef) -> AsyncIterator[Shown]:
    """The topic's configs again and again, with a pause, each time that brokers agree; at most
    :data:`ROUNDS` times."""
    for number in range(ROUNDS):
        heartbeat()
        if number:
            await asyncio.sleep(SETTLE_S)
        if (shown := await own_configs(services, ref)) is not None:
            yield shown


async def _released(
    services: WorkerServices, topic: TrackedTopic, overridden: Collection[str]
) -> bool:
    """Let go of every key that is not overridden any more: Kafka has what the user had."""
    assert topic.topic_id is not None
    done = [
        await services.control_plane.release_config(
            topic.topic_id, key, override.user_value, topic.round
        )
        for key, override in topic.overrides.items()
        if key not in overridden
    ]
    return all(done)


async def same_topic(services: WorkerServices, ref: TopicRef) -> None:
    """Fails as TopicChanged when the name is another topic's now, or no topic's."""
    await services.observer.topic(ref.topic, topic_id=UUID(ref.topic_id))


async def own_configs(services: WorkerServices, ref: TopicRef) -> Shown | None:
    """The topic's configs, ``None`` while brokers differ in what is set on it. No endless wait for
    a topic that is gone: fails as TopicChanged."""
    try:
        return await _dynamic(services, ref)
    except KafkaError as error:
        if error.code is ErrorCode.unknown_topic_or_partition:
            await same_topic(services, ref)
        raise


async def _dynamic(services: WorkerServices, ref: TopicRef) -> Shown | None:
    views = await services.topics.configs_by_broker(ref.topic)
    owns = [{k: e.value for k, e in view.items() if e.own} for view in views]
    if any(own != owns[0] for own in owns):
        return None
    knows_copy_lag = all(AT_ONCE.keys() <= view.keys() for view in views)
    return Shown(owns[0], shows_tiered(views), knows_copy_lag)


def shows_tiered(views: Iterable[Mapping[str, ConfigEntry]]) -> bool:
    """Whether every broker, whose configs of a topic these are, has its tiered storage on."""
    shown = (view.get(REMOTE_STORAGE) for view in views)
    return all(entry is not None and entry.value == "true" for entry in shown)


async def _override(
    services: WorkerServices, step: ConfigStep, shown: Shown
) -> dict[str, str | None]:
    """Write into Postgres what the stage overrides, and what the user had before it did."""
    ref, stage = step.ref, step.stage
    topic = await _topic(services, ref)
    progress = _progress(topic, shown)
    if why := refusal(stage, progress):
        raise failure(failures.STALE_STAGE, f"stage {stage.value} of {ref.topic!r}: {why}")
    if why := waits_for(stage, progress):
        raise waiting(f"{ref.topic!r}: {why}")
    wanted = desired(stage, progress, step.options.durability)
    rolls = wanted.get(LOCAL_RETENTION_BYTES) == "0"
    if rolls and progress.overrides.get(LOCAL_RETENTION_BYTES) != "0":
        await offsets_proven_for_roll(services, ref)
    for key, value in wanted.items():
        if progress.overrides.get(key, ...) != value:
            await services.control_plane.override_config(
                UUID(ref.topic_id), key, value, shown.own.get(key), topic.round
            )
    return wanted


async def _topic(services: WorkerServices, ref: TopicRef) -> TrackedTopic:
    topic = await services.control_plane.tracked_topic(ref.topic)
    if topic is None or topic.topic_id != UUID(ref.topic_id):
        await refuse_forgotten(services, ref.topic, UUID(ref.topic_id))
        raise failure(
            failures.STALE_STAGE, f"{ref.topic!r} ({ref.topic_id}) is not tracked: nothing to hold"
        )
    return topic


def _progress(topic: TrackedTopic, shown: Shown) -> TopicProgress:
    partitions = topic.partitions.values()
    return TopicProgress(
        aborted=topic.status is TopicStatus.ABORTED,
        partitions=len(partitions),
        crossed=sum(p.boundary != UNDEFINED_OFFSET for p in partitions),
        ready=sum(p.ready for p in partitions),
        overrides={key: override.override_value for key, override in topic.overrides.items()},
        tiered=shown.tiered,
        shows_copy_lag=shown.knows_copy_lag,
        has_prefix=any(p.partly_in_kafka for p in partitions),
        forced=topic.completion_forced_by is not None,
    )


async def prove_coverage_for_roll(services: WorkerServices, step: TopicStep) -> None:
    """Before every partition is asked for its roll. Fails as Waiting."""
    await offsets_proven_for_roll(services, step.ref)


async def offsets_proven_for_roll(services: WorkerServices, ref: TopicRef) -> dict[str, int]:
    """Prove that everything which Kafka takes for tiered is: up to the highest tiered offset.

    ``local.retention.bytes=0`` lets Kafka delete local segments up to an offset that it may have
    kept from before tiering was turned off and on again; what was never uploaded would be lost
    (schedules.md, 11). What this run has proven not long ago counts (:class:`ProofsForRoll`) while
    the segments are there that it rests on: somebody may have turned it off and on since.
    Returns the proven offsets (exclusive) by partition. Fails as Waiting.
    """
    with typed_failures():
        topic = await services.observer.topic(ref.topic, topic_id=UUID(ref.topic_id))
        assert topic is not None
        layouts, run = dict(sorted(topic.partitions.items())), current_run()
        keys = [PartitionRef(ref.topic, ref.topic_id, number).log for number in layouts]
        if any(proof.rests_on for key in keys if (proof := services.proofs.of(key, run))):
            await services.remote_log.refresh(topic.topic_id)

        async def prove(number: int) -> int:
            partition = PartitionRef(ref.topic, ref.topic_id, number)
            proof = services.proofs.of(partition.log, run)
            if proof is None or not await _stands(services, partition, layouts[number], proof):
                services.proofs.forget(partition.log)
                proof = await _proven_for_roll(services, partition, layouts[number])
                services.proofs.keep(partition.log, run, proof)
                heartbeat()
            return proof.end

        ends = await side_by_side(prove, layouts)
        return {str(number): end for number, end in zip(layouts, ends, strict=True)}


async def _stands(
    services: WorkerServices, partition: PartitionRef, layout: PartitionLayout, proof: Proof
) -> bool:
    """Whether every segment that the proof rests on is finished, as of the last reading of the
    metadata, or has expired: Kafka raises the log start before it deletes."""
    there = {
        segment.segment_id
        for segment in services.remote_log.known(partition.log)
        if segment.state is SegmentState.COPY_SEGMENT_FINISHED
    }
    gone = [end for segment, end in proof.rests_on.items() if segment not in there]
    if not gone:
        return True
    start = await services.observer.offset(
        partition.topic,
        partition.partition,
        OffsetSpec.EARLIEST,
        node=layout.leader,
        replica_id=DEBUG_CONSUMER,
    )
    return max(gone) < start.offset


async def _proven_for_roll(
    services: WorkerServices, partition: PartitionRef, layout: PartitionLayout
) -> Proof:
    claimed = await claimed_prefix(services, partition, layout)
    if why := claimed.problem():
        hint = (
            ""
            if claimed.silent
            else ". If tiering was turned off and on again, these offsets exist "
            "locally only and must not be rolled"
        )
        raise waiting(f"{partition.topic}-{partition.partition}: {why}{hint}")
    return Proof(claimed.coverage.wanted.end, claimed.coverage.rests_on)
