"""What the control plane knows of the periodic jobs. Times are ms since the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

JOBS = ("coverage", "gc", "merge", "retention", "split")
"""Those that an installation with diskless topics needs."""
VERIFY = "verify"
"""Reads every record that it looks at: nightly, not hourly."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """How whole runs of a job went: all topics, and no dry ones. On Postgres' clock."""

    job: str
    run_id: UUID | None
    """Of the newest run."""
    began_ms: int | None
    ended_ms: int | None
    """Of the newest run: ``None`` while it runs, or if it was killed."""
    succeeded_ms: int | None
    """When a run last ended well."""
    failed_ms: int | None
    """When one last failed, and ``error`` says why."""
    error: str | None
    records_overdue_ms: int | None
    """When rows for the tables of the jobs should have been appended that still wait, as the newest
    run saw it; ``None``: none did."""
    records_lost: int
    """Rows of all runs that could not be kept for those tables."""
    now_ms: int
    """When it was asked."""

    @property
    def failing(self) -> bool:
        """A run has failed since one last ended well."""
        return self.failed_ms is not None and self.failed_ms >= (self.succeeded_ms or 0)

    @property
    def unfinished_ms(self) -> int | None:
        """For how long the newest run has not ended; ``None``: it has."""
        if self.began_ms is None or self.ended_ms is not None:
            return None
        return self.now_ms - self.began_ms


NEVER = JobRow("", None, None, None, None, None, None, None, 0, now_ms=0)
"""Of a job of which no whole run was ever begun."""
