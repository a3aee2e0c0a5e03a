"""The worker process: connects, serves workflows and activities, takes requests, stops cleanly."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import structlog
from prometheus_client import REGISTRY
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)

from activities.registration import bound_activities
from tideline import __version__, pages, temporal
from tideline.background import Watch, cancel_and_wait, done_before, keep, spawn, watching
from tideline.control_plane.catalog_keeper import keep_catalog
from tideline.control_plane.connections import check_connections
from tideline.domain.history import HistoryWatch
from tideline.domain.kafka_release import why_too_old
from tideline.domain.messages import TopicMigrationInput, TopicRef, waits_queue
from tideline.errors import RefusedError, is_outage
from tideline.kafka.client import KafkaCluster
from tideline.kafka.topic_identity import TopicIdentity
from tideline.migration.connections import WorkerServices, open_services
from tideline.migration.replicas import ReplicaKeeper
from tideline.object_store.client import WORKER, ObjectStoreClient
from tideline.ownership import establish
from tideline.settings import WorkerSettings
from tideline.worker.attendance import Attendance
from tideline.worker.binding import OwnTasks, identity
from tideline.worker.gateway_metrics import keep_gateway_metrics
from tideline.worker.health import Health, keep_looking, looks_of
from tideline.worker.history import HistoryKeeper
from tideline.worker.identity import IdentityMetrics, IdentityReconciler
from tideline.worker.metrics import (
    MigrationGauges,
    keep_coverage_metrics,
    keep_gc_metrics,
    keep_migration_metrics,
    keep_tiered_topics,
    keep_tiering_metrics,
)
from tideline.worker.replicas import ReplicaWatch
from tideline.worker.reports import ReportKeeper
from tideline.worker.requests import RequestDispatcher
from tideline.worker.sdk_metrics import with_metrics
from tideline.worker.watches import KafkaWatch
from workflows.partition_migration import PartitionMigration
from workflows.tiered_storage_change import TieredStorageChange
from workflows.topic_migration import TopicMigration

log = structlog.get_logger()
T = TypeVar("T")

START_FOR_S = 300.0
"""How long parts may be away at the start; then the process ends and says which one is."""
MANY_WAITS = 1_000
"""Activities that wait are coroutines that sleep: cheap, and every one of them must be served."""


async def run(settings: WorkerSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises :class:`tideline.errors.UnreachableError` when a part
    stays away, what refuses this process, and
    :class:`tideline.background.BackgroundTaskEnded` when something of the worker has ended."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    health = Health(versions={"version": __version__})
    stop_pages = pages.serve(settings.metrics_address, health.pages())
    try:
        with watching() as watch:
            await _serve(settings, health, stopping, watch)
    finally:
        stop_pages()


async def _serve(
    settings: WorkerSettings, health: Health, stopping: asyncio.Event, watch: Watch
) -> None:
    async with AsyncExitStack() as stack:
        starting = spawn(_start(settings, health, stack), "start")
        if not await done_before(starting, stopping):
            log.info("stopped_while_starting")
            return
        await starting
        health.ready()
        log.info("serving", task_queue=settings.temporal_task_queue, version=__version__)
        try:
            await watch.until(stopping)
        finally:
            log.info("stopping", bound_ms=settings.worker_graceful_shutdown_ms)
            health.waiting("stopping")


async def _start(settings: WorkerSettings, health: Health, stack: AsyncExitStack) -> None:
    native, told = with_metrics(settings.temporal_metrics_address)
    REGISTRY.register(told)
    stack.callback(REGISTRY.unregister, told)
    client = await retry_at_start(health, lambda: temporal.connect(settings, native))
    await retry_at_start(health, lambda: temporal.need_search_attributes(client))
    history, store = HistoryWatch(), ObjectStoreClient(settings, bounds=WORKER)
    services = await retry_at_start(
        health,
        lambda: stack.enter_async_context(open_services(settings, client, history, at_once=True)),
    )
    plane, cluster = services.control_plane, services.cluster
    await retry_at_start(health, lambda: refuse_old_brokers(cluster))
    services.cluster_id = own = await retry_at_start(
        health, lambda: establish(plane, store, settings, cluster.cluster_id, history)
    )
    await retry_at_start(health, lambda: check_connections(plane, settings, is_gateway=False))
    queue = settings.temporal_task_queue
    await retry_at_start(health, lambda: temporal.refuse_other_workers(client, queue, own))
    for worker in workers(settings, client, services, own):
        await stack.enter_async_context(worker)
    reported = asyncio.Event()
    dispatcher = RequestDispatcher(
        services.control_plane,
        _starter(settings, client),
        _current_id(services),
        partial(temporal.outcome_of, client),
        partial(temporal.running_topics, client),
        reported,
    )
    topics, found = TopicIdentity(services.cluster), IdentityMetrics()
    migrations = MigrationGauges()
    keeper = HistoryKeeper(
        plane, store, settings, history, position_s=settings.history_position_ms / 1000
    )
    for name, background in (
        ("readiness", keep_looking(health, looks_of(settings, client, identity(own)))),
        ("history", keeper.run()),
        ("catalog", keep_catalog(plane)),
        ("requests", dispatcher.run()),
        ("migration-metrics", keep_migration_metrics(services.control_plane, migrations)),
        (
            "tiered-topics",
            keep_tiered_topics(migrations, cluster, settings.kafka_request_timeout_ms),
        ),
        ("gateway-metrics", keep_gateway_metrics(services.control_plane)),
        ("coverage-metrics", keep_coverage_metrics(settings)),
        ("tiering-metrics", keep_tiering_metrics(settings)),
        ("gc-metrics", keep_gc_metrics(settings)),
        ("topic-identity", IdentityReconciler(plane, topics, found).run()),
        ("reports", _reports(services, topics, found, reported).run()),
        ("kafka-watch", KafkaWatch(services).run()),
        ("attendance", _attendance(services, client).run()),
        ("replicas", _replicas(services).run()),
    ):
        stack.push_async_callback(cancel_and_wait, keep(background, name))


def _attendance(services: WorkerServices, client: Client) -> Attendance:
    return Attendance(
        services.control_plane,
        partial(temporal.running_topics, client),
        partial(temporal.outcome_of, client),
    )


def _replicas(services: WorkerServices) -> ReplicaWatch:
    settings = services.settings
    keeper = ReplicaKeeper(
        services.control_plane, services.cluster, settings.kafka_request_timeout_ms
    )
    return ReplicaWatch(keeper, settings.replicas_moved_at_once)


def _reports(
    services: WorkerServices,
    identity: TopicIdentity,
    metrics: IdentityMetrics,
    reported: asyncio.Event,
) -> ReportKeeper:
    plane, observer = services.control_plane, services.observer
    return ReportKeeper(plane, identity, observer, services.topics, metrics, heard=reported)


def workers(
    settings: WorkerSettings, client: Client, services: WorkerServices, cluster_id: str
) -> list[Worker]:
    """One per task queue. Both know every activity, so that moving one between the queues needs
    no particular order of deployment."""
    activities = bound_activities(services)
    common: dict[str, Any] = {
        "activities": activities,
        "identity": identity(cluster_id),
        "interceptors": [OwnTasks(cluster_id)],
        "graceful_shutdown_timeout": timedelta(milliseconds=settings.worker_graceful_shutdown_ms),
        "deployment_config": WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(deployment_name="tideline", build_id=__version__),
            use_worker_versioning=False,
        ),
    }
    queue = settings.temporal_task_queue
    return [
        Worker(
            client,
            task_queue=queue,
            workflows=[TopicMigration, PartitionMigration, TieredStorageChange],
            # The sandbox imports a workflow's module anew for each of them, a fifth of what a
            # partition costs. Tests run in it, and replay.
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_concurrent_activities=settings.worker_max_concurrent_activities,
            **common,
        ),
        Worker(
            client, task_queue=waits_queue(queue), max_concurrent_activities=MANY_WAITS, **common
        ),
    ]


async def refuse_old_brokers(cluster: KafkaCluster) -> None:
    """Raises :class:`RefusedError` if the broker that answers is of a release that is not
    supported; one that does not say its release is no reason. What the others are, preflight says.
    """
    connection = await cluster.any()
    if (why := why_too_old(await connection.metadata_level())) is not None:
        raise RefusedError(f"the brokers are of {why}")


async def retry_at_start(health: Health, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try for :data:`START_FOR_S`, showing what does not answer."""

    def report(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        health.waiting(str(error))
        log.warning("waits_for_a_part", why=str(error), attempt=state.attempt_number)

    async for trial in AsyncRetrying(
        retry=retry_if_exception(is_outage),
        wait=wait_random_exponential(multiplier=0.2, max=5),
        stop=stop_after_delay(START_FOR_S),
        before_sleep=report,
        reraise=True,
    ):
        with trial:
            return await attempt()
    raise AssertionError("tenacity ends by returning or raising")


def _starter(
    settings: WorkerSettings, client: Client
) -> Callable[[TopicRef, TopicMigrationInput], Awaitable[object]]:
    async def start(ref: TopicRef, given: TopicMigrationInput) -> object:
        return await temporal.start_or_join(client, settings.temporal_task_queue, ref, given)

    return start


def _current_id(services: WorkerServices) -> Callable[[str], Awaitable[UUID | None]]:
    async def current_id(topic: str) -> UUID | None:
        found = await services.observer.topic(topic)
        return found.topic_id if found is not None else None

    return current_id
