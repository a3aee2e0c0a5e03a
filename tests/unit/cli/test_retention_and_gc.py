"""`tideline retention` and `tideline gc`: nothing is deleted unless it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from typer import Typer
from typer.testing import CliRunner

from spark.common.entry import Job, Outcome
from tideline.cli import collection, jobs
from tideline.cli.jobs import JobFailed
from tideline.control_plane.garbage_model import GcRunRow
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
    "dry_run": False, "deleted": {"wal": 3, "segment": 12, "orphan": 1}, "batches_pruned": 7,
    "report": "b/gc-reports/x", "listed": 40, "orphans_found": 2,
    "orphans_not_looked_for": {"u": "another cluster"}, "segments_not_judged": None,
}  # fmt: skip


def answer(monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> None:
    def run_here(name: str, work: Callable[[Job], Outcome], **how: bool) -> Outcome:
        return outcome

    monkeypatch.setattr(jobs, "run_here", run_here)
    monkeypatch.setattr(collection, "run_here", run_here)


def invoke(command: Callable[..., None] | Typer, *arguments: str) -> Any:
    if isinstance(command, Typer):
        return CliRunner().invoke(command, list(arguments))
    app = Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("command", [jobs.retention, collection.app])
@pytest.mark.parametrize("flags", [(), ("--run", "--dry-run")])
def test_it_must_be_said_whether_anything_goes(
    command: Callable[..., None] | Typer, flags: tuple[str, ...]
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
    shown = invoke(collection.app, "--run").stdout
    for text in ("WAL objects deleted: 3", "objects of merged segments deleted: 12",
                 "orphans deleted: 1", "report: b/gc-reports/x", "listed 40 objects",
                 "2 are known to nobody", "not looked at: u: another cluster"):  # fmt: skip
        assert text in shown


def test_a_dry_run_says_why_each_object_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = [
        {"bucket": "diskless", "key": "wal/a", "kind": "wal", "reason": "empty", "due": True},
        {"bucket": "diskless", "key": "wal/b", "kind": "orphan", "reason": "unknown", "due": False},
    ]
    shown = {"dry_run": True, "due": {"wal": 1}, "later": {"orphan": 1}, "objects": objects}
    answer(monkeypatch, Outcome(shown))
    text = invoke(collection.app, "--dry-run").stdout
    assert "WAL objects: 1 would go now, 0 after their grace" in text
    assert "orphans: 0 would go now, 1 after their grace" in text
    assert "diskless: wal/a: empty" in text
    assert "wal/b" not in text


@dataclass
class Runs:
    """What Postgres has of the runs, and is told."""

    rows: list[GcRunRow] = field(default_factory=list)
    allowed: list[tuple[UUID, str, str]] = field(default_factory=list)

    def gc_runs(self, limit: int) -> list[GcRunRow]:
        return self.rows[:limit]

    def allow_gc_run(self, run_id: UUID, decided_by: str, reason: str) -> None:
        self.allowed.append((run_id, decided_by, reason))


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(collection, "_plane", lambda: nullcontext(runs))
    monkeypatch.setattr(collection, "changing_jobs_plane", lambda: nullcontext(runs))
    return runs


def test_held_runs_are_shown_with_why_and_what_became_of_them(postgres: Runs) -> None:
    counts = (5, 50, 0, 0, 0)
    postgres.rows = [
        GcRunRow(3, UUID(int=3), "held", 0, 0, 6, 60, *counts, "too much", None, None, None, 0),
        GcRunRow(2, UUID(int=2), "held", 0, 0, 6, 60, *counts, "too much", "ann", "fine", 4, 0),
    ]
    shown = " ".join(invoke(collection.app, "runs").stdout.split())
    assert "3 was held: too much" in shown
    assert "2 was held: too much; allowed by ann (fine), done by run 4" in shown


def test_a_held_run_is_allowed_by_somebody_with_a_reason(postgres: Runs) -> None:
    done = invoke(collection.app, "allow", str(UUID(int=3)), "--by", "ann", "--reason", "fine")
    assert done.exit_code == 0
    assert postgres.allowed == [(UUID(int=3), "ann", "fine")]
    assert invoke(collection.app, "allow", str(UUID(int=3))).exit_code == 2
    wrong = invoke(collection.app, "allow", "all", "--reason", "fine").exception
    assert isinstance(wrong, UsageError)
    assert "tideline gc runs" in str(wrong)
