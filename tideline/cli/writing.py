"""The one way in which a command opens what it changes: after Kafka, Postgres and both buckets were
found to belong to one installation, and Postgres not to be behind what the fleet has seen.

Raises :class:`tideline.domain.history.WrongHistory` before anything is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from tideline import control_plane
from tideline.control_plane import ControlPlane
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.kafka.client import KafkaCluster
from tideline.migration.connections import WorkerServices, open_services
from tideline.ownership import command_must_own, job_must_own
from tideline.settings import JobsSettings, WorkerSettings, load

APPLICATION = "tideline-cli"


@asynccontextmanager
async def changing_services() -> AsyncIterator[WorkerServices]:
    """Everything that a migration uses."""
    settings = load(WorkerSettings)
    async with open_services(settings) as services:
        await must_own(services)
        yield services


async def must_own(services: WorkerServices) -> None:
    """For a command that opens them itself, because it may also only look."""
    cluster_id = await services.cluster.cluster_id()
    await command_must_own(services.control_plane, services.settings, cluster_id)


@asynccontextmanager
async def changing_plane() -> AsyncIterator[tuple[ControlPlane, KafkaCluster]]:
    """The control plane, with the worker's rights, and the brokers."""
    settings = load(WorkerSettings)
    async with (
        control_plane.connect(settings, application_name=APPLICATION) as plane,
        KafkaCluster.of(settings, APPLICATION) as cluster,
    ):
        await command_must_own(plane, settings, await cluster.cluster_id())
        yield plane, cluster


@contextmanager
def changing_jobs_plane() -> Iterator[JobsControlPlane]:
    """The control plane as the jobs have it."""
    settings = load(JobsSettings)
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        job_must_own(plane, settings, asyncio.run(_cluster_id(settings)))
        yield plane


async def _cluster_id(settings: JobsSettings) -> str:
    async with KafkaCluster.of(settings, APPLICATION) as cluster:
        return await cluster.cluster_id()
