"""Reaches Kafka and Temporal for the operators and the trigger: check, start or join, follow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from psycopg.conninfo import conninfo_to_dict
from temporalio.client import Client

from tideline import temporal
from tideline.airflow.temporal.following import WorkflowRun
from tideline.airflow.temporal.target import Target
from tideline.domain.messages import (
    AbortDecision,
    TopicMigrationInput,
    TopicRef,
    Update,
)
from tideline.domain.migration_input import InvalidMigrationInput, parse_migration_input
from tideline.domain.operator_choices import Decider
from tideline.domain.preflight import PreflightReport
from tideline.errors import UsageError
from tideline.migration.connections import open_services
from tideline.migration.overview import resolve_topic
from tideline.migration.preflight import run_preflight
from tideline.settings import KafkaSettings, TemporalSettings, WorkerSettings, load
from tideline.temporal import TemporalUnavailable, temporal_errors

T = TypeVar("T")
CALL_TIMEOUT_S = 10.0
TASK_ENDED = Decider("airflow", "the task was marked or cleared, and abort_when_killed is set")


def target() -> Target:
    """Temporal, as Tideline's settings have it. Raises :class:`UsageError`."""
    settings = load(TemporalSettings)
    return Target(dict(temporal.connect_options(settings)), settings.temporal_ui)


def migration_input(
    topic: str, options: Mapping[str, Any] | None, requested_by: str
) -> TopicMigrationInput:
    """As the command line makes it. Raises :class:`UsageError` with field, rule and remedy."""
    try:
        return parse_migration_input(
            {"topic": topic, "options": dict(options or {}), "requested_by": requested_by}
        )
    except InvalidMigrationInput as error:
        raise UsageError(str(error)) from error


async def check(given: TopicMigrationInput) -> PreflightReport:
    """Every check of the topic. Changes nothing. Raises :class:`UnreachableError`."""
    async with open_services(load(WorkerSettings)) as services:
        return await run_preflight(services, given.topic, given.options)


def addresses(settings: WorkerSettings) -> str:
    """Where the parts are that a check asks, without a secret."""
    brokers = ",".join(f"{host}:{port}" for host, port in settings.kafka_bootstrap)
    postgres = conninfo_to_dict(settings.postgres_dsn.get_secret_value())
    host, port = postgres.get("host", "localhost"), postgres.get("port", 5432)
    s3 = settings.s3_endpoint or f"AWS, {settings.s3_region}"
    return f"Postgres at {host}:{port}, Kafka at {brokers}, S3 at {s3}"


async def resolve(topic: str) -> TopicRef:
    """The topic and its id, as Kafka has them now.

    Raises :class:`KafkaUnavailable`, and :class:`RefusedError` when there is no such topic.
    """
    return await resolve_topic(load(KafkaSettings), topic, client_id="tideline-airflow")


async def start_or_join(given: TopicMigrationInput) -> WorkflowRun:
    """The topic's one workflow, started or found running.

    Raises as :func:`resolve` does, and :class:`TemporalUnavailable`.
    """
    ref = await resolve(given.topic)
    settings = load(TemporalSettings)
    handle = await called(
        settings,
        lambda client: temporal.start_or_join(client, settings.temporal_task_queue, ref, given),
    )
    return WorkflowRun(handle.id, handle.result_run_id or "")


async def ask_for_abort(workflow_id: str) -> AbortDecision:
    """Undo the migration if no partition has its B0 yet."""

    def abort(client: Client) -> Awaitable[AbortDecision]:
        handle = client.get_workflow_handle(workflow_id)
        return temporal.update(handle, Update.ABORT, TASK_ENDED, AbortDecision)

    return await called(load(TemporalSettings), abort)


async def called(
    settings: TemporalSettings,
    call: Callable[[Client], Awaitable[T]],
) -> T:
    """One call on a connection of its own. Raises :class:`TemporalUnavailable` with the address,
    also when there is no answer in time."""
    where = settings.temporal_address
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            client = await temporal.connect(settings)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            with temporal_errors():
                return await call(client)
    except TimeoutError:
        raise TemporalUnavailable(f"Temporal at {where} does not answer in time") from None
    except TemporalUnavailable as error:
        if where in str(error):
            raise
        raise TemporalUnavailable(f"Temporal at {where}: {error}") from error
