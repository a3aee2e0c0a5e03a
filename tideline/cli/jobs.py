"""``tideline retention``, and what it shares with ``tideline gc``: Spark jobs run from a command
on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from spark.common.entry import Job, Outcome
from spark.retention.job import retention as retention_job
from tideline.cli.output import Format, FormatOption, console, echo_json
from tideline.errors import TidelineError, UsageError
from tideline.settings import JobsSettings, load

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


def run_here(
    name: str, work: Callable[[Job], Outcome], *, whole: bool, dry: bool = False
) -> Outcome:
    """``carry_out`` a job's work with a Spark session of its own. Raises :class:`TidelineError`."""
    from spark.common.entry import Job, carry_out, failure_of

    job = Job(name, load(JobsSettings))
    try:
        return carry_out(job, work, whole=whole, dry=dry)
    except Exception as error:
        if (failure := failure_of(error)) is None:
            raise
        failed = JobFailed(failure.message)
        failed.exit_code = failure.exit_code
        raise failed from error
    finally:
        job.close()


def finish(outcome: Outcome) -> None:
    """Raise :class:`JobFailed` for a bad outcome."""
    if outcome.failed is not None:
        raise JobFailed(outcome.failed)


def retention(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    dry_run: DryRunFlag = False,
    run: RunFlag = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Apply retention.ms and retention.bytes over prefix and suffix as one log, or show it."""
    dry = choose(dry_run, run, "retention")
    outcome = run_here(
        "retention",
        lambda job: retention_job(job, [topic] if topic else [], dry),
        whole=not topic and not dry,
        dry=dry,
    )
    if output is Format.JSON:
        echo_json(outcome.details)
    else:
        show_retention(outcome.details)
    finish(outcome)


def show_retention(details: Mapping[str, Any]) -> None:
    screen = console()
    removals: Sequence[Mapping[str, Any]] = details["removals"]
    verb = "would go" if details["dry_run"] else "went"
    if removals:
        table = Table(title=f"What {verb}", title_justify="left")
        for column in ("partition", "state", "B0", "log start", "by time", "by size", "bytes"):
            table.add_column(
                column, justify="left" if column in ("partition", "state") else "right"
            )
        table.add_column("where")
        for entry in removals:
            table.add_row(
                f"{entry['topic']}-{entry['partition']}",
                str(entry["state"]),
                "" if entry["boundary"] < 0 else str(entry["boundary"]),
                f"{entry['log_start']} → {entry['new_log_start']}",
                str(entry["by_time"]),
                str(entry["by_size"]),
                str(entry["bytes"]),
                _where(entry),
            )
        screen.print(table)
    else:
        screen.print(f"Nothing {verb}: {details['limited']} partitions are within their limits.")
    for entry in details["held_back"]:
        screen.print(f"held back: {entry['topic']}-{entry['partition']}: {entry['reason']}")
    for name, reason in details["left_alone"].items():
        screen.print(f"left alone: {name}: {reason}")
    for entry in details["problems"]:
        screen.print(
            f"problem: {entry['topic']}-{entry['partition']}: {entry['problem']}", markup=False
        )


def _where(entry: Mapping[str, Any]) -> str:
    parts = []
    if entry["prefix_before"] is not None:
        parts.append(f"Kafka below {entry['prefix_before']}")
    if entry["suffix_before"] is not None:
        parts.append(f"suffix below {entry['suffix_before']}")
    if entry["kafka_moved_its_start"] and not parts:
        parts.append("Kafka has moved its start: noted")
    return ", ".join(parts)
