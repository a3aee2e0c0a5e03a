"""`tideline retention` and `tideline gc`: nothing is deleted unless it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from spark.common.entry import Job, Outcome
from tideline.cli import jobs
from tideline.cli.jobs import JobFailed
from tideline.errors import UsageError

REMOVAL = {
    "topic": "t", "partition": 0, "state": "HYBRID", "boundary": 100, "log_start": 0,
    "new_log_start": 120, "prefix_before": 100, "suffix_before": 120, "by_time": 2,
    "by_size": 1, "bytes": 30, "kafka_moved_its_start": False, "done": True,
}  # fmt: skip
RETENTION: dict[str, Any] = {
    "dry_run": True, "limited": 1, "removals": [REMOVAL],
    "held_back": [{"topic": "t", "partition": 1, "reason": "a hole in the prefix"}],
    "left_alone": {"u": "unknown topic"}, "problems": [],
}  # fmt: skip
GC: dict[str, Any] = {
    "dry_run": False, "wal_objects_deleted": 3, "objects_deleted": 12, "batches_pruned": 7,
    "listed": 40, "orphans_found": 2, "orphans_deleted": 1,
    "orphans_not_looked_for": {"u": "another cluster"}, "segments_not_judged": None,
}  # fmt: skip


def answer(monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> None:
    def run_here(name: str, work: Callable[[Job], Outcome]) -> Outcome:
        return outcome

    monkeypatch.setattr(jobs, "run_here", run_here)


def invoke(command: Callable[..., None], *arguments: str) -> Any:
    app = Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("command", [jobs.retention, jobs.gc])
@pytest.mark.parametrize("flags", [(), ("--run", "--dry-run")])
def test_it_must_be_said_whether_anything_goes(
    command: Callable[..., None], flags: tuple[str, ...]
) -> None:
    failure = invoke(command, *flags).exception
    assert isinstance(failure, UsageError)
    assert "--dry-run" in str(failure)


def test_retention_shows_what_goes_of_which_part(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, Outcome(RETENTION))
    shown = invoke(jobs.retention, "--dry-run").stdout
    for text in ("would go", "t-0", "0 → 120", "Kafka below 100, suffix below 120",
                 "held back: t-1: a hole in the prefix", "left alone: u"):  # fmt: skip
        assert text in shown


def test_retention_of_logs_within_their_limits_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, Outcome({**RETENTION, "removals": []}))
    assert "Nothing would go" in invoke(jobs.retention, "--dry-run").stdout


def test_a_bad_outcome_is_an_error_after_its_details(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, Outcome(RETENTION, "1 partitions were not trimmed"))
    done = invoke(jobs.retention, "--run", "-o", "json")
    assert isinstance(done.exception, JobFailed)
    assert '"removals"' in done.stdout


def test_gc_shows_what_was_deleted_and_what_was_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer(monkeypatch, Outcome(GC))
    shown = invoke(jobs.gc, "--run").stdout
    for text in ("WAL objects deleted: 3", "objects deleted: 12", "listed 40 objects",
                 "1 of them deleted", "not looked at: u: another cluster"):  # fmt: skip
        assert text in shown
