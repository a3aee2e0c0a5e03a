"""Whether the periodic jobs run, and how they end: ``inkless_job_*``, from what Postgres knows."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from tideline.control_plane.job_model import JOBS, NEVER, VERIFY, JobRow


class JobGauges:
    """Of whole runs: all topics, and no dry ones."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def by_job(name: str, text: str) -> Gauge:
            return Gauge(name, text, ["job"], registry=registry)

        self._succeeded = by_job(
            "inkless_job_last_success_timestamp_seconds",
            "When a whole run of the job last ended well; 0: never",
        )
        self._age = by_job(
            "inkless_job_last_success_age_seconds",
            "Since then, on Postgres' clock; absent before the first",
        )
        self._began = by_job(
            "inkless_job_last_attempt_timestamp_seconds",
            "When the newest whole run of the job began; 0: never",
        )
        self._failed = by_job(
            "inkless_job_last_failure_timestamp_seconds",
            "When a whole run of the job last failed; 0: never",
        )
        self._unfinished = by_job(
            "inkless_job_unfinished_seconds",
            "For how long the newest whole run has not ended: it runs, or was killed; 0: it has",
        )
        self._overdue = Gauge(
            "inkless_job_records_overdue_seconds",
            "For how long rows for the tables of the jobs have been due to be appended, as the run "
            "that ended last saw it; 0: none were",
            registry=registry,
        )
        self._lost = by_job(
            "inkless_job_records_lost_rows",
            "Rows for those tables that could not be kept, of all runs of the job",
        )

    def update(self, found: Iterable[JobRow]) -> None:
        """``found``: without jobs that never ran."""
        rows = {row.job: row for row in found}
        self._age.clear()
        self._overdue.set(_overdue_s(rows.values()))
        for job in (*JOBS, VERIFY):
            row = rows.get(job, NEVER)
            self._succeeded.labels(job).set(_seconds(row.succeeded_ms))
            self._began.labels(job).set(_seconds(row.began_ms))
            self._failed.labels(job).set(_seconds(row.failed_ms))
            self._unfinished.labels(job).set(_seconds(row.unfinished_ms))
            self._lost.labels(job).set(row.records_lost)
            if row.succeeded_ms is not None:
                self._age.labels(job).set(_seconds(row.now_ms - row.succeeded_ms))


def _overdue_s(rows: Iterable[JobRow]) -> float:
    ended = [row for row in rows if row.ended_ms is not None]
    newest = max(ended, key=lambda row: row.ended_ms or 0, default=None)
    if newest is None or newest.records_overdue_ms is None:
        return 0
    return _seconds(newest.now_ms - newest.records_overdue_ms)


def _seconds(ms: int | None) -> float:
    return (ms or 0) / 1000
