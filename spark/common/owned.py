"""What every job does before it changes anything: Kafka, Postgres and both buckets must belong to
one installation, and Postgres must not be behind what the fleet has seen. Its planner must not take
tables for empty that were so a minute ago."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.jobs import JobsControlPlane
from tideline.kafka.client import KafkaCluster
from tideline.ownership import job_must_own
from tideline.settings import JobsSettings

if TYPE_CHECKING:
    from spark.common.entry import Job

APPLICATION = "tideline-jobs"


def must_own(job: Job) -> None:
    """The job's settings demand the same Postgres of its executors from now on.

    Raises :class:`tideline.domain.history.WrongHistory`, or an
    :class:`tideline.errors.UnreachableError`.
    """
    cluster_id = asyncio.run(_cluster_id(job.settings))
    with connect_jobs(job.settings, application_name=APPLICATION) as plane:
        job.settings = job.settings.having_seen(job_must_own(plane, job.settings, cluster_id))
        look_at_grown_tables(plane)


def look_at_grown_tables(plane: JobsControlPlane) -> None:
    """Before plans are made for tables that were empty a minute ago. No job fails for it."""
    with suppress(ControlPlaneUnavailable):
        plane.refresh_statistics()


async def _cluster_id(settings: JobsSettings) -> str:
    async with KafkaCluster.of(settings, APPLICATION) as cluster:
        return await cluster.cluster_id()
