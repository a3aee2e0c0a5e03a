"""A job's task hands over settings by the environment and fails with the job's own words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tests.support.waiting import HANGS_S
from tideline.airflow.jobs import TidelineJobOperator
from tideline.airflow.results import KEPT_BYTES, JobResult, read_result
from tideline.installation import shipped

SUBMIT = f"""#!{sys.executable}
import os, sys
first = next(i for i, word in enumerate(sys.argv) if word.endswith(".py"))
os.execv(sys.executable, [sys.executable, *sys.argv[first:]])
"""
"""Stands for spark-submit: runs the application without Spark."""

JOB = """
import json, os, sys
variables = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
words = [word for word in sys.argv[1:] if "=" not in word]
given = json.loads(os.environ["STAND_IN"])
if given is not None:
    given["config"] = variables.get("TIDELINE_CONFIG")
    given["holder"] = variables.get("TIDELINE_TIERING_CLAIM_HOLDER")
    assert words[0] == "coverage"
    given["arguments"] = words[1:-4]
    assert (words[-4], words[-2]) == ("--run-id", "--result")
    open(words[-1], "w").write(json.dumps(given))
print("working")
sys.exit(given["exit_code"] if given else 1)
"""
"""Stands for ``tideline_job.py``."""


class StandIn:
    """A job that ends as it is told."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.directory = directory
        (directory / "stand_in.py").write_text(JOB)
        submit = directory / "spark-submit"
        submit.write_text(SUBMIT)
        submit.chmod(0o755)
        monkeypatch.setenv("TIDELINE_AIRFLOW_SPARK_APPLICATION", str(directory / "stand_in.py"))
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://local%5B2%5D")

    def run(self, result: dict[str, Any] | None, *arguments: str) -> dict[str, Any]:
        self._monkeypatch.setenv("STAND_IN", json.dumps(result))
        with DAG("a_dag"):
            operator = TidelineJobOperator(
                task_id="coverage",
                job="coverage",
                arguments=arguments,
            )
        return operator.execute({})


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(tmp_path, monkeypatch)


def test_the_result_of_a_job_is_the_value_of_its_task(job: StandIn) -> None:
    result = job.run({"job": "coverage", "exit_code": 0, "partitions": 3}, "--dry-run")
    assert result["partitions"] == 3
    assert result["arguments"] == ["--dry-run"]


def test_the_jobs_role_has_a_settings_file_of_its_own(
    job: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert job.run({"exit_code": 0})["config"] is None
    monkeypatch.setenv("TIDELINE_AIRFLOW_JOBS_CONFIG", "/etc/tideline/jobs.env")
    assert job.run({"exit_code": 0})["config"] == "/etc/tideline/jobs.env"


def test_what_a_task_claims_is_known_to_the_next_try_and_run_of_the_same_task(job: StandIn) -> None:
    assert job.run({"exit_code": 0})["holder"] == "a_dag.coverage"


def test_a_job_whose_store_is_away_fails_with_its_own_line_and_may_be_tried_again(
    job: StandIn,
) -> None:
    away = {"error": "Postgres at 127.0.0.1:15432: connection refused", "exit_code": 3}
    with pytest.raises(AirflowException) as failed:
        job.run(away)
    assert str(failed.value) == "coverage: Postgres at 127.0.0.1:15432: connection refused"
    assert not isinstance(failed.value, AirflowFailException)


@pytest.mark.parametrize("code", [2, 4])
def test_a_job_that_is_refused_is_not_tried_again(job: StandIn, code: int) -> None:
    with pytest.raises(AirflowFailException, match="coverage: TIDELINE_KAFKA_BOOTSTRAP: is not"):
        job.run({"error": "TIDELINE_KAFKA_BOOTSTRAP: is not set", "exit_code": code})


def test_a_run_of_verify_that_found_differences_is_not_tried_again(job: StandIn) -> None:
    found = {"error": "1 differences in 1 of 9 topics", "exit_code": 1}
    with pytest.raises(AirflowException) as bad:
        job.run(found)
    assert not isinstance(bad.value, AirflowFailException)
    with pytest.raises(AirflowFailException, match="coverage: 1 differences in 1 of 9 topics"):
        job.run({**found, "final": True})


def test_a_job_that_ended_before_it_could_say_why_shows_the_end_of_its_output(
    job: StandIn,
) -> None:
    with pytest.raises(AirflowException, match=r"(?s)coverage ended without a result.*working"):
        job.run(None)


def test_a_large_result_keeps_its_short_values() -> None:
    document = {"job": "gc", "deleted": 7, "keys": ["k" * 100] * KEPT_BYTES}
    assert JobResult(document).kept() == {"job": "gc", "deleted": 7, "left_out": ["keys"]}


@pytest.mark.parametrize("text", ["", "{", "[1]", '"text"'])
def test_what_is_no_result_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "result.json"
    file.write_text(text)
    assert read_result(file) is None
    assert read_result(tmp_path / "missing.json") is None


LAUNCHER = shipped("infra/spark") / "tideline_job.py"


@pytest.mark.parametrize(
    "job", ["coverage", "retention", "split", "merge", "tiering", "gc", "verify"]
)
def test_the_launcher_runs_each_job_and_has_nothing_before_it_in_the_path(
    job: str, tmp_path: Path
) -> None:
    assert [file.name for file in LAUNCHER.parent.glob("*.py")] == ["tideline_job.py"]
    words = [f"TIDELINE_HOME={tmp_path}", job, "--conf", "wrong"]
    ran = subprocess.run(
        [sys.executable, str(LAUNCHER), *words], capture_output=True, text=True, timeout=HANGS_S
    )
    told = json.loads(ran.stdout.splitlines()[-1])
    assert (told["job"], ran.returncode) == (job, 2)
    assert told["error"] == "--conf 'wrong': write key=value"


def test_the_launcher_refuses_what_is_no_job() -> None:
    for words in ([], ["A=b"], ["A=b", "covrage"], ["--help"]):
        ran = subprocess.run(
            [sys.executable, str(LAUNCHER), *words], capture_output=True, text=True, timeout=HANGS_S
        )
        assert ran.returncode == 2
        assert "write one of coverage, retention, split, merge, tiering, gc, verify" in ran.stderr
