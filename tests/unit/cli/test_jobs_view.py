"""What ``tideline jobs`` tells of the periodic jobs."""

from __future__ import annotations

import io
from uuid import UUID

from rich.console import Console

from tideline.cli.runs import HANGS_MS, advice, as_json, jobs_table
from tideline.control_plane.job_model import JobRow

NOW = 10 * HANGS_MS
RUN = UUID(int=7)


def row(job: str, *, began: int = 60_000, ended: int | None = 0, well: int | None = 0,
        failed: int | None = None, error: str | None = None) -> JobRow:  # fmt: skip
    """Times are ms ago."""

    def at(ago: int | None) -> int | None:
        return None if ago is None else NOW - ago

    return JobRow(job, RUN, at(began), at(ended), at(well), at(failed), error, None, 0, NOW)


def shown(rows: list[JobRow]) -> dict[str, str]:
    screen = Console(width=200, record=True, file=io.StringIO())
    screen.print(jobs_table(rows))
    lines = screen.export_text().splitlines()[1:]
    return {line.split()[0]: line for line in lines}


def test_every_job_has_its_line_also_one_that_never_ran() -> None:
    lines = shown([row("gc"), row("merge", well=120_000, failed=30_000, error="S3 is away")])
    assert list(lines) == ["coverage", "gc", "merge", "retention", "split"]
    assert "1 min 0 s ago" in lines["gc"]
    assert "ended well" in lines["gc"]
    assert "failed" in lines["merge"]
    assert lines["split"].count("never") == 2


def test_what_is_wrong_is_said_with_what_to_do() -> None:
    found = [
        row("coverage"),
        row("gc", well=120_000, failed=30_000, error="S3 is away"),
        row("merge", began=HANGS_MS + 60_000, ended=None),
        row("retention", began=HANGS_MS - 60_000, ended=None),
    ]
    assert list(advice(found)) == [
        "gc: S3 is away",
        f"merge: run {RUN} has not ended for 6 h 1 min: it hangs, or its driver was killed; look "
        "at what runs it",
        "split: no whole run was ever begun: is it scheduled? docs/jobs.md",
    ]


def test_a_failure_that_a_success_followed_is_no_trouble() -> None:
    assert [line for line in advice([row("gc", failed=30_000, error="x")]) if "gc" in line] == []


def test_times_are_text_for_programs() -> None:
    told = as_json(row("gc", ended=None))
    assert told["ended_at"] is None
    assert told["began_at"].tzinfo is not None
    assert told["run_id"] == RUN
