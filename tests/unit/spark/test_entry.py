"""A job tells how it ended: one JSON document, an exit code, and one line for a person."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from spark.common import attempts, results
from spark.common.entry import (
    DryRunOption,
    Job,
    Outcome,
    TopicsOption,
    failure_of,
    launch,
    main,
    run_job,
)
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.errors import ExitCode, RefusedError
from tideline.object_store import ObjectStoreUnavailable


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELINE_POSTGRES_DSN", "host=127.0.0.1")
    monkeypatch.setenv("TIDELINE_KAFKA_BOOTSTRAP", "127.0.0.1:9092")
    monkeypatch.setenv("TIDELINE_RECORDS_CATALOG", "off")


def told(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, object], str]:
    answer = capsys.readouterr()
    return json.loads(answer.out.splitlines()[-1]), answer.err


def test_the_result_is_the_last_line_and_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    code = run_job("example", lambda job: Outcome({"rows": 3}), launch(result=str(file)))
    document, _ = told(capsys)
    assert code is ExitCode.OK
    assert document == json.loads(file.read_text())
    assert document["rows"] == 3
    assert document["ok"] is True
    assert document["job"] == "example"


def test_what_a_job_tells_people_is_one_line_that_commands_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It may repeat what a broker or a store has said."""

    def fails(job: Job) -> Outcome:
        job.progress("\x1b[2J")
        raise ObjectStoreUnavailable("\x1b]0;title\x07\nerror: forged")

    run_job("example", fails, launch())
    _, err = told(capsys)
    assert "\x1b" not in err
    assert r"\x1b[2J" in err
    assert len(err.splitlines()) == 2


def test_what_cannot_be_written_is_a_warning_after_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away:
        def __init__(self, _: object) -> None:
            """Nothing is opened."""

        def put(self, bucket: str, key: str, body: bytes) -> None:
            raise ObjectStoreUnavailable(f"bucket {bucket}: put {key}: no route")

    monkeypatch.setattr(results, "ObjectStoreClient", Away)
    for place in (f"{tmp_path}/of-another-machine/result.json", "s3://bucket/runs/x.json"):
        code = run_job("example", lambda job: Outcome({"rows": 3}), launch(result=place))
        document, err = told(capsys)
        assert (code, document["rows"]) == (ExitCode.OK, 3)
        assert f"warning: the result is not in {place}: " in err


def test_a_result_may_be_an_object_also_of_a_run_with_wrong_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put: dict[tuple[str, str], dict[str, object]] = {}

    class Store:
        def __init__(self, _: object) -> None:
            """Nothing is opened."""

        def put(self, bucket: str, key: str, body: bytes) -> None:
            put[bucket, key] = json.loads(body)

    monkeypatch.setattr(results, "ObjectStoreClient", Store)
    run_id = UUID(int=7)
    how = launch(result=f"s3://b/a/runs/example/{run_id}.json", run_id=run_id)
    assert run_job("example", lambda job: Outcome({"run": job.run_id}), how) is ExitCode.OK
    (document,) = put.values()
    assert document == told(capsys)[0]
    assert (document["run"], document["run_id"]) == (str(run_id), str(run_id))
    monkeypatch.delenv("TIDELINE_KAFKA_BOOTSTRAP")
    monkeypatch.setenv("TIDELINE_HOME", "/nowhere")
    assert run_job("example", lambda job: Outcome({}), how) is ExitCode.USAGE
    (document,) = put.values()
    assert (document["exit_code"], document["run_id"]) == (2, str(run_id))


def test_a_result_that_names_no_object_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work(job: Job) -> Outcome:
        raise AssertionError("must not start")

    assert run_job("example", work, launch(result="s3://bucket")) is ExitCode.USAGE
    assert "write s3://bucket/key" in told(capsys)[1]


def test_a_spark_that_does_not_stop_well_fails_no_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(job: Job) -> Outcome:
        job.__dict__["spark"] = SimpleNamespace(stop=lambda: 1 / 0)
        return Outcome({"rows": 3})

    assert run_job("example", work, launch()) is ExitCode.OK
    document, err = told(capsys)
    assert document["rows"] == 3
    assert "Spark did not stop: division by zero" in err


def test_a_store_that_is_away_is_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def work(job: Job) -> Outcome:
        raise ObjectStoreUnavailable("bucket a: list 'b':\n\tno route")

    assert run_job("example", work, launch()) is ExitCode.UNREACHABLE
    document, err = told(capsys)
    assert document["store"] == "S3"
    assert err == "error: S3 is away: bucket a: list 'b': no route\n"


def test_a_bad_outcome_has_its_details_too(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome({"parked": 2}, failed="2 partitions are parked")
    assert run_job("example", lambda job: outcome, launch()) is ExitCode.FAILED
    document, _ = told(capsys)
    assert document["parked"] == 2
    assert document["error"] == "2 partitions are parked"


def test_a_bad_outcome_says_whether_another_run_may_find_a_better_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for final in (False, True):
        outcome = Outcome({}, failed="1 differences", final=final)
        assert run_job("example", lambda job, it=outcome: it, launch()) is ExitCode.FAILED
        assert told(capsys)[0]["final"] is final


def test_a_setting_that_is_not_key_value_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work(job: Job) -> Outcome:
        raise AssertionError("must not start")

    assert run_job("example", work, launch(conf=["spark.executor.cores"])) is ExitCode.USAGE
    assert "write key=value" in told(capsys)[1]


def test_missing_settings_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDELINE_HOME", str(tmp_path))
    monkeypatch.delenv("TIDELINE_KAFKA_BOOTSTRAP")
    assert run_job("example", lambda job: Outcome({}), launch()) is ExitCode.USAGE
    assert "TIDELINE_KAFKA_BOOTSTRAP: is not set" in told(capsys)[1]


def test_a_defect_of_a_job_keeps_its_traceback() -> None:
    def work(job: Job) -> Outcome:
        raise KeyError("defect")

    with pytest.raises(KeyError):
        run_job("example", work, launch())


def test_an_executors_error_is_read_from_its_traceback() -> None:
    text = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "x.py", line 1, in <module>
botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
tideline.object_store.client.ObjectStoreUnavailable: bucket a: list 'b': Could not connect
"""
    found = failure_of(RuntimeError(text))
    assert found is not None
    assert found.exit_code is ExitCode.UNREACHABLE
    assert found.store == "S3"
    assert found.message == "S3 is away: bucket a: list 'b': Could not connect"


def test_an_error_that_was_wrapped_is_found_behind_its_wrapping() -> None:
    def wrapped() -> None:
        try:
            raise RefusedError("no")
        except RefusedError as error:
            raise ValueError("outer") from error

    with pytest.raises(ValueError, match="outer") as caught:
        wrapped()
    found = failure_of(caught.value)
    assert found is not None
    assert found.message == "no"


def test_a_job_has_its_own_options_and_those_of_every_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def job(job: Job, topic: TopicsOption = None, *, not_an_option: int = 7) -> Outcome:
        """Count."""
        return Outcome({"topics": topic, "other": not_an_option})

    file = tmp_path / "result.json"
    arguments = ["--topic", "a", "--topic", "b", "--result", str(file)]
    monkeypatch.setattr("sys.argv", ["example", *arguments])
    with pytest.raises(SystemExit) as ended:
        main("example", job)
    assert ended.value.code == ExitCode.OK
    document = json.loads(file.read_text())
    assert (document["topics"], document["other"]) == (["a", "b"], 7)
    monkeypatch.setattr("sys.argv", ["example", "--not-an-option", "8"])
    with pytest.raises(SystemExit) as refused:
        main("example", job)
    assert refused.value.code == ExitCode.USAGE


class Noted:
    """A control plane that hears of whole runs, or is away."""

    def __init__(self, away: bool = False) -> None:
        self.away, self.begun, self.ended = away, list[str](), list[tuple[str, str | None]]()
        self.runs = set[UUID]()

    def __call__(self, settings: object, name: str) -> Noted:
        return self

    def note_job_begun(self, jobs: Sequence[str], run_id: UUID) -> None:
        if self.away:
            raise ControlPlaneUnavailable("no answer")
        self.begun += jobs
        self.runs.add(run_id)

    def note_job_ended(
        self, jobs: Sequence[str], run_id: UUID, error: str | None, since: object, lost: int
    ) -> None:
        if self.away:
            raise ControlPlaneUnavailable("no answer")
        self.ended += [(job, error) for job in jobs]
        self.runs.add(run_id)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> Noted:
    found = Noted()
    monkeypatch.setattr(attempts, "JobsControlPlane", found)
    return found


def example(job: Job, topic: TopicsOption = None, dry_run: DryRunOption = False) -> Outcome:
    return Outcome({}, failed="no" if topic == ["bad"] else None)


@pytest.mark.parametrize(
    ("command", "arguments", "noted"),
    [
        ("retention", [], ["retention"]),
        ("tiering", [], ["split", "merge"]),
        ("retention", ["--dry-run"], []),
        ("retention", ["--topic", "a"], []),
    ],
)
def test_a_whole_run_is_noted(
    monkeypatch: pytest.MonkeyPatch,
    plane: Noted,
    command: str,
    arguments: list[str],
    noted: list[str],
) -> None:
    monkeypatch.setattr("sys.argv", [command, *arguments])
    with pytest.raises(SystemExit) as ended:
        main(command, example)
    assert ended.value.code == 0
    assert plane.begun == noted
    assert plane.ended == [(job, None) for job in noted]
    assert len(plane.runs) <= 1


def test_why_a_run_failed_is_noted(plane: Noted) -> None:
    bad = Outcome({}, failed="2 partitions are parked")
    assert run_job("example", lambda job: bad, launch(), whole=True) is ExitCode.FAILED

    def away(job: Job) -> Outcome:
        raise ObjectStoreUnavailable("no route")

    assert run_job("example", away, launch(), whole=True) is ExitCode.UNREACHABLE

    def defect(job: Job) -> Outcome:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_job("example", defect, launch(), whole=True)
    assert [error for _, error in plane.ended] == [
        "2 partitions are parked",
        "S3 is away: no route",
        "KeyError: 'x'",
    ]


def test_a_run_that_cannot_be_noted_has_not_failed(
    plane: Noted, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.away = True
    assert run_job("example", lambda job: Outcome({}), launch(), whole=True) is ExitCode.OK
    assert "its end is not noted: no answer" in told(capsys)[1]
