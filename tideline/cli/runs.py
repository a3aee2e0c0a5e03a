"""``tideline jobs``: how the periodic jobs went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from tideline.cli.output import Format, FormatOption, age, console, echo_json, line, moment
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.job_model import JOBS, NEVER, JobRow
from tideline.settings import JobsSettings, load

HANGS_MS = 6 * 3_600_000
"""The newest run has not ended for so long: as the alert TidelineJobDoesNotEnd has it."""


def jobs(output: FormatOption = Format.TABLE) -> None:
    """When each periodic job last ended well, and what is wrong with those that did not."""
    with connect_jobs(load(JobsSettings), application_name="tideline-cli") as plane:
        found = plane.known_jobs()
    if output is Format.JSON:
        echo_json({"jobs": [as_json(row) for row in found]})
        return
    screen = console()
    screen.print(jobs_table(found))
    for said in advice(found):
        screen.print(said)


def as_json(row: JobRow) -> dict[str, Any]:
    """A row for programs; times as text."""
    times = {
        name: moment(getattr(row, f"{name.removesuffix('_at')}_ms"))
        for name in ("began_at", "ended_at", "succeeded_at", "failed_at")
    }
    return {"job": row.job, "run_id": row.run_id, **times, "error": row.error}


def jobs_table(found: Iterable[JobRow]) -> Table:
    table = Table("job", "last success", "last attempt", "it", "run", box=None, pad_edge=False)
    rows = {row.job: row for row in found}
    for job in sorted({*JOBS, *rows}):
        row = rows.get(job, NEVER)
        table.add_row(
            job,
            _ago(row, row.succeeded_ms),
            _ago(row, row.began_ms),
            "" if row.began_ms is None else _how(row),
            str(row.run_id or ""),
        )
    return table


def _ago(row: JobRow, ms: int | None) -> Text | str:
    if ms is None:
        return line("never", "red")
    return f"{age(moment(ms), moment(row.now_ms))} ago"


def _how(row: JobRow) -> Text | str:
    if row.ended_ms is None:
        return "has not ended"
    return line("failed", "red") if row.failing else line("ended well", "green")


def advice(found: Iterable[JobRow]) -> Iterator[str]:
    """Why a job fails; what one that does not run needs."""
    rows = {row.job: row for row in found}
    for job in sorted({*JOBS, *rows}):
        row = rows.get(job, NEVER)
        if row.began_ms is None:
            yield f"{job}: no whole run was ever begun: is it scheduled? docs/jobs.md"
            continue
        if row.failing:
            yield f"{job}: {row.error}"
        if (unfinished := row.unfinished_ms) is not None and unfinished > HANGS_MS:
            since = age(moment(row.began_ms), moment(row.now_ms))
            yield (
                f"{job}: run {row.run_id} has not ended for {since}: it hangs, or its driver was "
                "killed; look at what runs it"
            )
