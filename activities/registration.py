"""Which function is which activity: the names are those that the workflows know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

from temporalio import activity

from activities import configs, following, operators, places, tiered_storage, topic, validate
from activities.attempt import heartbeating
from activities.drain_transactions import drain_transactions
from activities.quiesce import quiesce
from activities.readiness import readiness
from activities.roll_and_flush import roll_and_flush
from activities.seed_and_persist import seed_and_persist
from activities.topic_readiness import await_readiness
from activities.zombie_cleanup import zombie_cleanup
from tideline.domain.messages import TopicActivity
from tideline.domain.migration import Phase
from tideline.domain.tiered_storage_change import TieredStorageActivity
from tideline.migration.connections import WorkerServices

ActivityFunction = Callable[[WorkerServices, Any], Awaitable[Any]]

ACTIVITIES: dict[str, ActivityFunction] = {
    TopicActivity.RESOLVE_TOPIC: topic.resolve_topic,
    TopicActivity.FOLLOW_TOPIC_MIGRATION: following.follow_topic_migration,
    TopicActivity.VALIDATE_TOPIC: validate.validate_topic,
    TopicActivity.TAKE_PLACE: places.take_place,
    TopicActivity.LEAVE_PLACE: places.leave_place,
    TopicActivity.PARTITION_SHARE: places.partition_share,
    TopicActivity.BEGIN_TRACKING: topic.begin_tracking,
    TopicActivity.AWAIT_TRACKING: topic.await_tracking,
    TopicActivity.RECONCILE_CONFIGS: configs.reconcile_configs,
    TopicActivity.PROVE_COVERAGE_FOR_ROLL: configs.prove_coverage_for_roll,
    TopicActivity.AWAIT_READINESS: await_readiness,
    TopicActivity.TELL_OF_GROWTH: topic.tell_of_growth,
    TopicActivity.ABORT_MIGRATION: topic.abort_migration,
    TopicActivity.STOP_TRACKING: topic.stop_tracking,
    TopicActivity.RECORD_CONFIGURATION: operators.record_configuration,
    TopicActivity.FORCE_COMPLETION: operators.force_completion,
    TopicActivity.ACCEPT_GAP: operators.accept_gap,
    TopicActivity.OBSERVE_PARTITION: topic.observe_partition,
    TopicActivity.REOPEN_PARTITION: topic.reopen_partition,
    TieredStorageActivity.REVIEW: tiered_storage.review_tiered_storage,
    TieredStorageActivity.SET: tiered_storage.set_tiered_storage,
    TieredStorageActivity.PROVE: tiered_storage.prove_tiered_again,
    TieredStorageActivity.DELETE: tiered_storage.finish_remote_deletion,
    Phase.VALIDATE: validate.validate_partition,
    Phase.DRAIN_TRANSACTIONS: drain_transactions,
    Phase.QUIESCE: quiesce,
    Phase.ROLL_AND_FLUSH: roll_and_flush,
    Phase.SEED_AND_PERSIST: seed_and_persist,
    Phase.ZOMBIE_CLEANUP: zombie_cleanup,
    Phase.READINESS: readiness,
}


def bound_activities(services: WorkerServices) -> list[Callable[..., Any]]:
    """Every activity over the services of one worker process."""
    return [_bound(name, run, services) for name, run in ACTIVITIES.items()]


def _bound(name: str, run: ActivityFunction, services: WorkerServices) -> Callable[..., Any]:
    async def bound(given: Any) -> Any:
        async with heartbeating():
            return await run(services, given)

    # Temporal decodes the input by these.
    types = get_type_hints(run)
    [given] = types.keys() - {"services", "return"}
    bound.__annotations__ = {"given": types[given], "return": types["return"]}
    return activity.defn(name=name)(bound)
