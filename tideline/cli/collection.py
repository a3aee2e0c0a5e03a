"""``tideline gc``: what would go and why, and what an operator decides about held runs."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.table import Table

from spark.gc.history import adopt_history
from spark.gc.job import gc as gc_job
from tideline.cli.jobs import DryRunFlag, RunFlag, choose, finish, run_here
from tideline.cli.output import (
    ByOption,
    Format,
    FormatOption,
    ReasonOption,
    console,
    echo,
    echo_json,
)
from tideline.cli.writing import changing_jobs_plane
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.garbage_model import GcRunRow
from tideline.control_plane.jobs import JobsControlPlane
from tideline.errors import UsageError
from tideline.settings import JobsSettings, load

KINDS = {
    "wal": "WAL objects",
    "segment": "objects of merged segments",
    "orphan": "orphans",
}
app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    help="Delete objects that nothing refers to any more, after a grace, or show them.",
)


@app.callback()
def gc(
    context: typer.Context,
    dry_run: DryRunFlag = False,
    run: RunFlag = False,
    orphans: Annotated[
        bool, typer.Option(help="Also list the buckets for objects that nothing knows.")
    ] = True,
    output: FormatOption = Format.TABLE,
) -> None:
    """Delete objects that nothing refers to any more, after their grace, or show them."""
    if context.invoked_subcommand is not None:
        return
    dry = choose(dry_run, run, "gc")
    outcome = run_here("gc", lambda job: gc_job(job, dry, orphans), whole=not dry, dry=dry)
    if output is Format.JSON:
        echo_json(outcome.details)
    else:
        show_gc(outcome.details)
    finish(outcome)


def show_gc(details: Mapping[str, Any]) -> None:
    screen = console()
    if details["dry_run"]:
        for kind, name in KINDS.items():
            due, later = details["due"].get(kind, 0), details["later"].get(kind, 0)
            screen.print(f"{name}: {due} would go now, {later} after their grace")
        for entry in details["objects"]:
            if entry["due"]:
                screen.print(
                    f"  {entry['bucket']}: {entry['key']}: {entry['reason']}", markup=False
                )
    else:
        for kind, name in KINDS.items():
            screen.print(f"{name} deleted: {details['deleted'].get(kind, 0)}")
        screen.print(f"batch rows pruned: {details['batches_pruned']}")
        screen.print(f"report: {details['report']}")
    if "listed" in details:
        screen.print(
            f"listed {details['listed']} objects: {details['orphans_found']} are known to nobody"
        )
        for topic, reason in details["orphans_not_looked_for"].items():
            screen.print(f"not looked at: {topic}: {reason}")
        if details["segments_not_judged"]:
            screen.print(f"segments were not judged: {details['segments_not_judged']}")


@app.command()
def runs(
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="So many of the newest.")] = 20,
    output: FormatOption = Format.TABLE,
) -> None:
    """The newest runs of the collection: what was due, what went, and which are held."""
    with _plane() as plane:
        found = plane.gc_runs(limit)
    if output is Format.JSON:
        echo_json([asdict(row) for row in found])
        return
    table = Table(title="Runs of the collection", title_justify="left")
    for column in ("number", "started", "state", "due", "bytes", "orphans due", "deleted", "run"):
        table.add_column(column)
    for row in found:
        table.add_row(
            str(row.run_number),
            datetime.fromtimestamp(row.started_ms / 1000, UTC).isoformat(timespec="seconds"),
            row.state,
            str(row.due_objects),
            str(row.due_bytes),
            str(row.due_orphans),
            str(row.deleted_objects),
            str(row.run_id),
        )
    screen = console()
    screen.print(table)
    for row in found:
        if row.held_because:
            screen.print(f"{row.run_number} was held: {_what_became_of(row)}")


def _what_became_of(row: GcRunRow) -> str:
    if row.allowed_by is None:
        return str(row.held_because)
    used = f"done by run {row.used_by}" if row.used_by else "not done yet"
    return f"{row.held_because}; allowed by {row.allowed_by} ({row.allowed_because}), {used}"


@app.command()
def allow(
    run: Annotated[str, typer.Argument(help="The id of a held run, as its error names it.")],
    reason: ReasonOption,
    by: ByOption = None,
) -> None:
    """Let the next run delete what this held run found, and nothing that became due since."""
    try:
        run_id = UUID(run)
    except ValueError:
        raise UsageError(
            f"{run!r} is no id of a run: `tideline gc runs` shows the held ones"
        ) from None
    with changing_jobs_plane() as plane:
        plane.allow_gc_run(run_id, by or getpass.getuser(), reason)
    echo(f"The next run deletes what run {run_id} found due. This is void in a day.")


@app.command()
def adopt(reason: ReasonOption, by: ByOption = None) -> None:
    """Let this Postgres collect again in a bucket where runs have collected that it does not know.

    Only when everything that was acknowledged is known to it again, and nobody else collects there.
    """
    with changing_jobs_plane() as plane:
        number = adopt_history(load(JobsSettings), plane, by or getpass.getuser(), reason)
    echo(
        f"Runs go on from number {number}; every orphan is reported anew and keeps its whole grace."
    )


@contextmanager
def _plane() -> Iterator[JobsControlPlane]:
    with connect_jobs(load(JobsSettings), application_name="tideline-gc") as plane:
        yield plane
