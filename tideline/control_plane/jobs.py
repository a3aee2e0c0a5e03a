"""The control plane as the periodic jobs call it: synchronous, from Spark drivers and executors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tideline.control_plane.jobs_connection import JobsConnection
from tideline.control_plane.jobs_garbage import JobsGarbage
from tideline.control_plane.jobs_reading import JobsReading
from tideline.control_plane.jobs_retention import JobsRetention
from tideline.control_plane.jobs_tiering import JobsTiering
from tideline.control_plane.jobs_totals import JobsTotals
from tideline.control_plane.jobs_upkeep import JobsUpkeep
from tideline.settings import JobsSettings


class JobsControlPlane(
    JobsReading, JobsTiering, JobsUpkeep, JobsRetention, JobsGarbage, JobsTotals
):
    """Every operation of the jobs.

    Each raises ``ControlPlaneUnavailable`` when Postgres cannot be reached in time, and a typed
    refusal of :mod:`tideline.control_plane.errors` when a rule forbids it. All may be repeated.
    """

    def __init__(self, connection: JobsConnection, tiered_prefix: str) -> None:
        self._connection = connection
        # As the brokers' remote storage manager takes it: with a slash at its end or without.
        self._tiered_prefix = f"{tiered_prefix.rstrip('/')}/" if tiered_prefix else ""


@contextmanager
def connect_jobs(settings: JobsSettings, *, application_name: str) -> Iterator[JobsControlPlane]:
    """The control plane at ``settings``. Does not fail while Postgres is down: the operations do,
    until it answers.
    """
    connection = JobsConnection(settings, application_name)
    try:
        yield JobsControlPlane(connection, settings.s3_tiered_prefix)
    finally:
        connection.close()
