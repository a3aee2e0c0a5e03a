"""Postgres is told when a whole run begins and how it ends, so that one that never does is seen.

A note that cannot be made changes nothing of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from uuid import UUID

from spark.common.records import Told
from tideline.control_plane.jobs import JobsControlPlane
from tideline.errors import TidelineError
from tideline.settings import JobsSettings

JOBS_OF = {"tiering": ("split", "merge")}
"""Commands that do the work of several jobs."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run. ``whole``: of all topics, and no dry one; nobody is told of any other."""

    name: str
    run_id: UUID
    settings: JobsSettings
    progress: Callable[[str], None]
    whole: bool

    @property
    def jobs(self) -> Sequence[str]:
        return JOBS_OF.get(self.name, (self.name,))

    def begin(self) -> None:
        """It begins now."""
        self._note("beginning", lambda plane: plane.note_job_begun(self.jobs, self.run_id))

    def end(self, error: str | None, told: Told | None) -> None:
        """It has ended; ``error``: why it is not good, ``told``: what became of its records."""
        overdue_since, lost = (told.overdue_since, told.lost_rows) if told else (None, 0)
        self._note(
            "end",
            lambda plane: plane.note_job_ended(self.jobs, self.run_id, error, overdue_since, lost),
        )

    def _note(self, what: str, note: Callable[[JobsControlPlane], None]) -> None:
        if not self.whole:
            return
        try:
            plane = JobsControlPlane(self.settings, f"tideline-{self.name}-noted")
            with closing(plane):
                note(plane)
        except TidelineError as error:
            self.progress(f"its {what} is not noted: {error}")
