"""Between phase 1 and 2: every gateway learns of the topic before anything of it changes.

A gateway that does not answer holds the start back with its name as the reason, until it answers
or an operator retires it, attesting that it is cut off. It is never fenced here: it may be
serving the topic as a classic one right now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from activities.attempt import (
    current_run,
    failure,
    heartbeat,
    is_buried,
    refuse_forgotten,
    rounds,
    typed_failures,
    waiting,
)
from tideline.control_plane.errors import AbortRefused, TrackingIncomplete, UnknownTopic
from tideline.control_plane.model import (
    UNACCOUNTED,
    GatewayRegistration,
    TopicStatus,
    unaccounted_reason,
)
from tideline.domain import failures
from tideline.domain.config_changes import LIMITS, limits_of
from tideline.domain.messages import (
    AbortDecision,
    GrowthFound,
    PartitionRef,
    PartitionSituation,
    PhaseInput,
    TopicMigrationInput,
    TopicRef,
    TopicStep,
)
from tideline.domain.migration import UNDEFINED_OFFSET, MigrationState
from tideline.domain.topic_configs import (
    CREATE_TIME,
    DEFAULT_AFTER_MAX_MS,
    DEFAULT_BEFORE_MAX_MS,
    DEFAULT_MAX_MESSAGE_BYTES,
    TIMESTAMP_AFTER_MAX_MS,
    TIMESTAMP_BEFORE_MAX_MS,
    TIMESTAMP_TYPE,
)
from tideline.kafka.new_logs import look_at_new_logs
from tideline.migration.connections import WorkerServices
from tideline.migration.growth import take_in

POLL_MS = 100.0
ROUNDS = 40
MOST_TOLD = 3
"""Partitions that came past the gateways, each with what its log holds."""
SETTLE_S = 0.05
"""Looks at what every broker shows, and the pause between them."""


async def resolve_topic(services: WorkerServices, given: TopicMigrationInput) -> TopicRef:
    """Pin a topic's name to its id. Fails as UnknownTopic, changing nothing."""
    topic = given.topic
    with typed_failures():
        found = await services.observer.topic(topic)
    if found is None:
        raise failure(
            failures.UNKNOWN_TOPIC,
            f"topic {topic!r} does not exist: check the spelling, names are case-sensitive",
        )
    return TopicRef(topic, found.topic_id.hex, len(found.partitions), services.cluster_id)


async def begin_tracking(services: WorkerServices, step: TopicStep) -> None:
    """Write the topic and its partitions into Postgres; gateways hear of it at once.

    Fails as TopicChanged, changing nothing, when partitions were added since the topic was looked
    up, and when its id is gone from Kafka."""
    ref = step.ref
    with typed_failures():
        await _refuse_growth(services, ref)
        configs = await services.topics.configs(ref.topic)

        def value(key: str, default: str) -> str:
            entry = configs.get(key)
            return default if entry is None or entry.value is None else entry.value

        tracked = await services.control_plane.tracked_topic(ref.topic)
        max_message_bytes = int(value("max.message.bytes", str(DEFAULT_MAX_MESSAGE_BYTES)))
        if tracked is not None and tracked.topic_id == UUID(ref.topic_id):
            # Kafka's value may be our own seal by now: what the user had was kept at the start.
            max_message_bytes = tracked.max_message_bytes
        await services.control_plane.begin_migration(
            ref.topic,
            UUID(ref.topic_id),
            ref.partitions,
            value(TIMESTAMP_TYPE, CREATE_TIME),
            max_message_bytes,
            await services.cluster.cluster_id(),
            run=current_run(),
        )
        if tracked is not None and tracked.status is TopicStatus.ACTIVE:
            return  # Its limits are kept up by the gateways that answer changes of configs.
        await services.control_plane.update_topic_limits(
            UUID(ref.topic_id),
            timestamp_before_max_ms=int(value(TIMESTAMP_BEFORE_MAX_MS, str(DEFAULT_BEFORE_MAX_MS))),
            timestamp_after_max_ms=int(value(TIMESTAMP_AFTER_MAX_MS, str(DEFAULT_AFTER_MAX_MS))),
        )


async def await_tracking(services: WorkerServices, step: TopicStep) -> None:
    """Wait until every gateway has durably acknowledged the topic, then activate it.

    Fails as Waiting at its bound, naming the gateways that are missing; as TopicChanged when a
    gateway that did not know yet let partitions be added; as UnknownTopic when the topic was
    deleted meanwhile: nobody acknowledges a dead name, and another topic of the name is not ours;
    as Untracked when Postgres does not know it any more.
    """
    ref = step.ref
    missing = "no gateway was asked"
    with typed_failures():
        round_ = await _round(services, ref)
        async with services.acks.subscribe(f"tracking:{ref.topic}") as acknowledged:
            async for _ in rounds(services.wait_bound_ms, POLL_MS, acknowledged):
                entries = await services.control_plane.tracking_barrier(ref.topic)
                open_entries = [e for e in entries if not e.acknowledged]
                if not open_entries:
                    # From here on no gateway lets partitions be added.
                    await _refuse_growth(services, ref)
                    try:
                        await services.control_plane.activate_topic(ref.topic, round_)
                    except UnknownTopic:
                        await refuse_forgotten(services, ref.topic, UUID(ref.topic_id))
                        raise
                    except TrackingIncomplete:
                        continue  # a gateway has registered since
                    await _adopt_limits(services, ref)
                    return
                missing = _not_tracking(ref.topic, [e.gateway for e in open_entries])
    raise waiting(missing)


async def _round(services: WorkerServices, ref: TopicRef) -> int | None:
    """Which round of tracking the topic is in, ``None`` if it is in none. Barriers go by name:
    fails as UnknownTopic when the name is another topic's, or nobody's, and ours was deleted."""
    tracked = await services.control_plane.tracked_topic(ref.topic)
    if tracked is None or tracked.topic_id != UUID(ref.topic_id):
        await refuse_forgotten(services, ref.topic, UUID(ref.topic_id))
        return None
    return tracked.round


async def _adopt_limits(services: WorkerServices, ref: TopicRef) -> None:
    """Make the limits in Postgres those that Kafka has now that every gateway knows the topic: what
    one that did not know it let through is in Kafka only; from here on each change is in both.

    Not past the first B0, from which on Postgres has the limits. Fails as Waiting while brokers
    differ."""
    for number in range(ROUNDS):
        if number:
            heartbeat()
            await asyncio.sleep(SETTLE_S)
        topic = await services.control_plane.tracked_topic(ref.topic)
        if topic is None or topic.topic_id != UUID(ref.topic_id):
            return  # The next step says so.
        if any(row.boundary != UNDEFINED_OFFSET for row in topic.partitions.values()):
            return
        keys = set(LIMITS) - topic.overrides.keys()
        found, *others = [
            limits_of({key: entry.value for key, entry in view.items()}, keys)
            for view in await services.topics.configs_by_broker(ref.topic)
        ]
        if any(other != found for other in others):
            continue
        changed: dict[str, Any] = {
            name: value for name, value in found.items() if getattr(topic.limits, name) != value
        }
        if not changed:
            return
        await services.control_plane.update_topic_limits(UUID(ref.topic_id), **changed)
    raise waiting(f"not every broker shows the same limits of batches of {ref.topic!r} yet")


def _not_tracking(topic: str, missing: Sequence[GatewayRegistration]) -> str:
    """Who holds the topic back, and what to do about each kind."""
    silent = ", ".join(str(g) for g in missing if g.status != UNACCOUNTED)
    reasons = [unaccounted_reason(g) for g in missing if g.status == UNACCOUNTED]
    if silent:
        reasons.insert(
            0,
            f"gateway {silent} has not acknowledged that it tracks {topic!r}: bring it back, or "
            "retire it with `tideline gateway retire` if it is cut off",
        )
    return "; ".join(reasons)


async def _refuse_growth(services: WorkerServices, ref: TopicRef) -> None:
    """A partition without a row is served by nobody and never migrated (schedules.md, 22). One
    broker may lag behind the controller: every one is asked."""
    await services.observer.topic(ref.topic, topic_id=UUID(ref.topic_id))  # or it raises
    found = await services.observer.partition_count(UUID(ref.topic_id))
    if found > ref.partitions:
        raise failure(
            failures.TOPIC_CHANGED,
            f"{ref.topic!r} had {ref.partitions} partitions when its migration began and has "
            f"{found} now: start the migration again, it goes on with all of them",
        )


async def tell_of_growth(services: WorkerServices, step: TopicStep) -> GrowthFound:
    """Partitions that came past the gateways while the topic migrated: those that are empty get
    their rows, the others are told of. Nothing is waited for: the watch goes on looking."""
    ref, topic_id = step.ref, UUID(step.ref.topic_id)
    with typed_failures():
        topic = await services.control_plane.tracked_topic(ref.topic)
        if topic is None or topic.topic_id != topic_id:
            await refuse_forgotten(services, ref.topic, topic_id)
            return GrowthFound()
        logs = await look_at_new_logs(services.observer, ref.topic, topic_id, topic.partitions)
        if not logs:
            return GrowthFound()
        left = await take_in(services.control_plane, topic, logs)
    if not left:
        return GrowthFound()
    more = f" and {len(left) - MOST_TOLD} more" if left[MOST_TOLD:] else ""
    return GrowthFound(
        f"{', '.join(map(str, left[:MOST_TOLD]))}{more} came past the gateways and is served by "
        f"nobody: see `tideline status {ref.topic}`"
    )


async def stop_tracking(services: WorkerServices, step: TopicStep) -> None:
    """Let the gateways treat the topic as a classic one again, after an abort."""
    ref = step.ref
    with typed_failures():
        tracked = await services.control_plane.tracked_topic(ref.topic)
        if tracked is not None:
            await services.control_plane.stop_tracking(ref.topic, tracked.round)
    for partition in range(ref.partitions):
        services.forget(PartitionRef(ref.topic, ref.topic_id, partition).log)
    services.remote_log.forget(UUID(ref.topic_id))


async def abort_migration(services: WorkerServices, step: TopicStep) -> AbortDecision:
    """The one update that decides (schedules.md, 20). Lost if some partition has its B0; a topic
    that is not tracked has nothing to restore."""
    with typed_failures():
        try:
            await _abort(services, UUID(step.ref.topic_id))
        except AbortRefused as error:
            return AbortDecision(False, str(error))
        except UnknownTopic as error:
            return AbortDecision(True, str(error), tracked=False)
    return AbortDecision(True)


async def _abort(services: WorkerServices, topic_id: UUID) -> None:
    """Abort what is tracked, and what an attempt of this run that sleeps now may begin yet."""
    with suppress(UnknownTopic):
        await services.control_plane.abort_migration(topic_id)
    if (run := current_run()) is not None:
        await services.control_plane.end_tracking_run(run)
    await services.control_plane.abort_migration(topic_id)


async def observe_partition(services: WorkerServices, ref: PartitionRef) -> PartitionSituation:
    """Where Postgres says that the partition stands."""
    with typed_failures():
        while True:
            row = await services.control_plane.tracked_partition(ref.log.topic_id, ref.partition)
            if row is not None and row.state is not MigrationState.TIERED_ONLY:
                return PartitionSituation(
                    tracked=True,
                    generation=row.generation,
                    quiesced=row.quiesced,
                    boundary=row.boundary,
                    leader_epoch=row.boundary_epoch,
                    ready=row.ready,
                )
            known = await services.control_plane.migration_status(ref.topic)
            status = next((status for status in known if status.log == ref.log), None)
            if status is None:  # deleted topics are in no status at all
                buried = await is_buried(services, ref.log.topic_id)
                return PartitionSituation(tracked=False, why="deleted" if buried else "untracked")
            if status.state is MigrationState.TIERED_ONLY:
                return PartitionSituation(tracked=False, why="aborted")
            # It has been tracked since its row was asked for.


async def reopen_partition(services: WorkerServices, given: PhaseInput) -> PartitionSituation:
    """Let gateways un-park if B0 is unset: the newest quiesce is given up, whichever attempt
    closed it (one that failed on its way does not know its own generation)."""
    key = given.ref.log
    with typed_failures():
        row = await services.control_plane.tracked_partition(key.topic_id, key.partition)
        if row is not None and row.quiesced:
            await services.control_plane.reopen_generation(key, row.generation)
    await services.pauses.leave(key)
    return await observe_partition(services, given.ref)
