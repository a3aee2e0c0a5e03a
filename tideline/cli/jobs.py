"""Running a Spark job from a command, on this machine, and telling how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tideline.errors import TidelineError, UsageError
from tideline.settings import JobsSettings, load

if TYPE_CHECKING:
    from spark.common.entry import Job, Outcome

DryRunFlag = Annotated[bool, typer.Option("--dry-run", help="Show what would go; change nothing.")]
RunFlag = Annotated[bool, typer.Option("--run", help="Do it now, on this machine's Spark.")]


class JobFailed(TidelineError):
    """A job ended with an error that a person can act on; the exit code is the job's."""


def choose(dry_run: bool, run: bool, command: str) -> bool:
    """Whether it is a dry run. Raises :class:`UsageError` unless exactly one is asked for."""
    if dry_run == run:
        raise UsageError(
            f"`tideline {command}` deletes: say --dry-run to see what would go, or --run to do it"
        )
    return dry_run


def run_here(name: str, work: Callable[[Job], Outcome]) -> Outcome:
    """Run a job's work with a Spark session of its own. Raises :class:`TidelineError`."""
    from spark.common.entry import Job
    from spark.common.failures import failure_of

    job = Job(name, load(JobsSettings))
    try:
        return work(job)
    except Exception as error:
        if (failure := failure_of(error)) is None:
            raise
        told = JobFailed(failure.message)
        told.exit_code = failure.exit_code
        raise told from error
    finally:
        job.close()


def finish(outcome: Outcome) -> None:
    """Raise :class:`JobFailed` for a bad outcome."""
    if outcome.failed is not None:
        raise JobFailed(outcome.failed)
