"""Every deploy mode that the Spark provider knows gets a command that works: the provider itself
builds each of them here, out of a connection and the settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tideline.airflow import jobs
from tideline.airflow.jobs import RUN_KEY, TidelineJobOperator
from tideline.installation import shipped
from tideline.object_store.client import ObjectMissing

HERE = str(shipped("infra/spark") / "tideline_job.py")
IN_IMAGE = "/opt/tideline/tideline_job.py"
RUNNER = "org.apache.spark.deploy.PythonRunner"
PYTHON, DRIVER_PYTHON = "spark.pyspark.python", "spark.pyspark.driver.python"
RM = {"yarn_resourcemanager_webapp_address": "http://rm:8088"}
MASTERS = {
    "local": {"host": "local[2]"},
    "standalone": {"host": "spark://m", "port": 7077},
    "yarn": {"host": "yarn"},
    "kubernetes": {"host": "k8s://https://k", "port": 6443},
}


@dataclass
class Command:
    """What spark-submit would be called with."""

    options: dict[str, str] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)
    application: str = ""
    words: list[str] = field(default_factory=list)
    """Behind the application, up to the job's name: ``NAME=VALUE``."""
    arguments: list[str] = field(default_factory=list)
    """The job's name, and what comes behind it."""

    @classmethod
    def of(cls, argv: list[str]) -> Command:
        found, rest = cls(), argv[1:]
        while rest[0].startswith("--"):
            name, value, *rest = rest
            if name == "--conf":
                key, _, text = value.partition("=")
                found.conf[key] = text
            else:
                found.options[name] = value
        found.application, *rest = rest
        while rest[0] != "coverage":
            found.words.append(rest.pop(0))
        found.arguments = rest
        return found

    @property
    def result(self) -> str:
        return self.arguments[self.arguments.index("--result") + 1]

    @property
    def run_id(self) -> str:
        return self.arguments[self.arguments.index("--run-id") + 1]


@dataclass
class Spark:
    """The provider's own hook and operator, up to the point where a process would be started."""

    monkeypatch: pytest.MonkeyPatch
    commands: list[Command] = field(default_factory=list)
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Results by key, beside that of each run."""
    left: dict[str, Any] | None = field(default_factory=lambda: {"exit_code": 0})
    """What each run has left, if it has left something."""
    ends: Exception | None = None
    state: dict[str, Any] = field(default_factory=dict)

    def connect(self, master: str, deploy_mode: str | None = None, **extra: str) -> None:
        if deploy_mode:
            extra["deploy-mode"] = deploy_mode
        connection = {"conn_type": "spark", **MASTERS[master], "extra": extra}
        self.monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))

    def configure(self, **settings: str | dict[str, Any]) -> None:
        for name, value in settings.items():
            text = value if isinstance(value, str) else json.dumps(value)
            self.monkeypatch.setenv(f"TIDELINE_{name.upper()}", text)

    def run(self, **kwargs: Any) -> dict[str, Any]:
        with DAG("a_dag"):
            operator = TidelineJobOperator(
                task_id="coverage", job="coverage", arguments=["--dry-run"], **kwargs
            )
        return operator.execute({"task_state_store": self})  # type: ignore[arg-type]

    def command(self, **kwargs: Any) -> Command:
        self.run(**kwargs)
        return self.commands[-1]

    # The task's state store

    def get(self, key: str) -> Any:
        return self.state.get(key)

    def set(self, key: str, value: Any) -> None:
        self.state[key] = value


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    found = Spark(monkeypatch)

    def submit(hook: Any, application: str = "", **_: Any) -> str:
        hook._validate_yarn_track_via_rm_api_config()
        command = Command.of(hook._build_spark_submit_command(application))
        found.commands.append(command)
        hook._yarn_application_id, hook._kubernetes_driver_pod = "application_1_1", "a-driver"
        if not command.result.startswith("s3://"):
            Path(command.result).write_text(json.dumps({"exit_code": 0, "told": "by the file"}))
        if found.ends is not None and not hook._should_track_driver_status:
            raise found.ends
        return "driver-1"

    def poll(_: object, __: object, ___: object) -> None:
        if found.ends is not None:
            raise found.ends

    class Store:
        def __init__(self, _: object) -> None:
            """Nothing is opened."""

        def get(self, bucket: str, key: str) -> bytes:
            if key in found.objects:
                return json.dumps(found.objects[key]).encode()
            if found.left is None:
                raise ObjectMissing(f"bucket {bucket}: get {key}")
            return json.dumps({"told": key} | found.left).encode()

    monkeypatch.setattr(SparkSubmitHook, "submit", submit)
    monkeypatch.setattr(SparkSubmitOperator, "poll_until_complete", poll)
    monkeypatch.setattr("tideline.object_store.client.ObjectStoreClient", Store)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    return found


ARCHIVE = "hdfs:///tideline/env.tar.gz"
UNPACKED = "./environment/bin/python"


COMBINATIONS = [
    (master, mode)
    for master in MASTERS
    for mode in (None, "client", "cluster")
    if (master, mode) != ("local", "cluster")
]


@pytest.mark.parametrize("archive", [None, ARCHIVE], ids=["installed", "archive"])
@pytest.mark.parametrize(("master", "mode"), COMBINATIONS)
def test_each_combination_builds_a_command_that_works(
    spark: Spark, master: str, mode: str | None, archive: str | None
) -> None:
    spark.connect(master, mode)
    spark.configure(airflow_jobs_config="/etc/tideline/jobs.env")
    if archive:
        spark.configure(airflow_spark_archive=archive)
    command = spark.command()
    remote = mode == "cluster"

    assert command.options.get("--deploy-mode") == mode
    assert command.arguments[:2] == ["coverage", "--dry-run"]
    # The environment: words, and nothing that a cluster would refuse or show.
    assert [word for word in command.words if word.startswith("TIDELINE_")] == [
        "TIDELINE_CONFIG=/etc/tideline/jobs.env",
        "TIDELINE_CONTEXT=",
        "TIDELINE_TIERING_CLAIM_HOLDER=a_dag.coverage",
    ]
    assert not any("Env." in key for key in command.conf)

    # Where the application, the Pythons and the result are.
    if (master, remote) == ("standalone", True):
        assert command.options["--class"] == RUNNER
        assert command.application == "/opt/tideline/tideline_job.jar"
        assert command.words[:2] == [IN_IMAGE, ""]
        assert command.conf[DRIVER_PYTHON] == "/opt/tideline/bin/python"
    else:
        at_the_driver = f"local://{IN_IMAGE}" if (master, remote) == ("kubernetes", True) else HERE
        assert command.application == at_the_driver
        assert command.conf.get(DRIVER_PYTHON) == (None if remote else sys.executable)
    installed = {
        "local": sys.executable,
        "standalone": "/opt/tideline/bin/python" if remote else None,
        "kubernetes": "/opt/tideline/bin/python",
    }
    wanted = UNPACKED if archive and master != "local" else installed.get(master)
    assert command.conf.get(PYTHON) == wanted
    assert command.options.get("--archives") == (
        f"{archive}#environment" if archive and master != "local" else None
    )
    assert command.conf.get("spark.yarn.maxAppAttempts") == (
        "1" if (master, remote) == ("yarn", True) else None
    )
    key = f"runs/coverage/{UUID(command.run_id)}.json"
    if remote:
        assert command.result == f"s3://tideline-diskless/{key}"
    else:
        assert command.result.endswith("/result.json")
        assert not Path(command.result).exists(), "it goes with the task"


def test_the_result_of_a_driver_elsewhere_is_read_below_the_installations_prefix(
    spark: Spark,
) -> None:
    spark.configure(s3_prefix="a", s3_bucket="b")
    spark.connect("kubernetes", "cluster")
    told = spark.run()
    (command,) = spark.commands
    assert command.result == f"s3://b/a/runs/coverage/{command.run_id}.json"
    assert told["told"] == f"a/runs/coverage/{command.run_id}.json"


@pytest.mark.parametrize(
    ("master", "conf"),
    [
        ("yarn", "spark.yarn.submit.waitAppCompletion"),
        ("kubernetes", "spark.kubernetes.submission.waitAppCompletion"),
    ],
)
def test_spark_submit_waits_for_a_driver_unless_its_state_may_be_asked_of_the_cluster(
    spark: Spark, master: str, conf: str
) -> None:
    spark.connect(master, "cluster", namespace="jobs", **RM)
    assert conf not in spark.command().conf
    assert spark.state == {}
    spark.configure(airflow_spark_track_driver="true")
    assert spark.command().conf[conf] == "false"
    assert spark.state[RUN_KEY] == spark.commands[-1].run_id


def test_a_driver_that_an_earlier_try_has_submitted_is_found_with_its_result(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.connect("standalone", "cluster")
    monkeypatch.setattr(SparkSubmitOperator, "get_job_status", lambda *_: "RUNNING")
    spark.run()
    first = spark.commands[-1].run_id
    spark.objects = {f"runs/coverage/{first}.json": {"exit_code": 0, "told": "the first"}}
    assert spark.run()["told"] == "the first"
    assert len(spark.commands) == 1, "nothing was submitted a second time"


def test_a_connection_that_lacks_what_tracking_needs_is_not_tried_again(spark: Spark) -> None:
    spark.configure(airflow_spark_track_driver="true")
    spark.connect("yarn", "cluster")
    with pytest.raises(AirflowFailException, match="yarn_resourcemanager_webapp_address"):
        spark.run()
    spark.connect("kubernetes", "cluster")
    with pytest.raises(AirflowFailException, match="requires a namespace"):
        spark.run()


@pytest.mark.parametrize("error", [RuntimeError("exited with status FAILED"), AirflowException()])
def test_a_driver_elsewhere_that_failed_is_told_of_in_the_jobs_own_words(
    spark: Spark, error: Exception
) -> None:
    spark.connect("standalone", "cluster")
    spark.ends = error

    spark.left = {"exit_code": 3, "error": "S3 is away"}
    with pytest.raises(AirflowException, match="coverage: S3 is away"):
        spark.run()
    spark.left = None
    with pytest.raises(AirflowException, match="coverage ended without a result"):
        spark.run()


def test_a_result_that_cannot_be_read_fails_no_job_that_succeeded(spark: Spark) -> None:
    spark.connect("standalone", "cluster")
    spark.left = None
    assert spark.run() == {"job": "coverage"}


def test_the_environment_may_lie_anywhere(spark: Spark) -> None:
    spark.configure(airflow_spark_environment="/srv/env/", airflow_spark_files="/etc/jobs.toml")
    spark.connect("standalone", "cluster")
    command = spark.command()
    assert command.application == "/srv/env/tideline_job.jar"
    assert command.words[0] == "/srv/env/tideline_job.py"
    assert command.conf[PYTHON] == command.conf[DRIVER_PYTHON] == "/srv/env/bin/python"
    assert command.options["--files"] == "/etc/jobs.toml"
    spark.connect("yarn", "client")
    assert spark.command().conf[PYTHON] == "/srv/env/bin/python"
    spark.configure(airflow_spark_application="s3a://b/tideline_job.py")
    spark.connect("kubernetes", "cluster")
    assert spark.command().application == "s3a://b/tideline_job.py"


def test_what_an_operator_says_of_spark_goes_over_the_settings_and_they_over_the_rest(
    spark: Spark,
) -> None:
    spark.connect("standalone")
    spark.configure(
        airflow_spark_conf={"spark.executor.memory": "1g", "spark.cores.max": "4", PYTHON: "p"},
        airflow_spark_job_conf={
            "coverage": {"spark.executor.memory": "2g", "spark.cores.max": "8"},
            "merge": {"spark.executor.memory": "9g"},
        },
    )
    conf = spark.command(conf={"spark.cores.max": 16}).conf
    wanted = {"spark.executor.memory": "2g", "spark.cores.max": "16", PYTHON: "p"}
    assert wanted.items() <= conf.items()


def test_the_jvm_of_a_standalone_clusters_driver_is_opened_for_arrow(spark: Spark) -> None:
    options = "spark.driver.extraJavaOptions"
    spark.configure(airflow_spark_conf={options: "-Xss4m"})
    spark.connect("standalone", "cluster")
    said = spark.command().conf[options].split(" ")
    assert "--add-opens=java.base/java.nio=ALL-UNNAMED" in said
    assert said[-1] == "-Xss4m"
    spark.connect("standalone", "client")
    assert spark.command().conf[options] == "-Xss4m", "Spark does it by itself"


def test_the_workers_own_python_variables_are_not_overridden(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/a/python")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/b/python")
    for master in ("local", "standalone", "yarn"):
        spark.connect(master)
        assert not {PYTHON, DRIVER_PYTHON} & spark.command().conf.keys()


REFUSED: Mapping[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a driver in no cluster": (
        {"master": "local", "deploy_mode": "cluster"}, {}, "no cluster is there"
    ),
    "another mode": ({"master": "yarn", "deploy_mode": "remote"}, {}, "'remote': client or"),
    "the mode as configuration": (
        {"master": "yarn"},
        {"airflow_spark_conf": {"spark.submit.deployMode": "cluster"}},
        "the Spark connection has it",
    ),
    "no object": ({"master": "yarn"}, {"airflow_spark_conf": "a=b"}, "is no JSON object"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_cluster_would_run_is_refused_with_its_remedy(spark: Spark, case: str) -> None:
    connection, settings, why = REFUSED[case]
    spark.connect(**connection)
    spark.configure(**settings)
    with pytest.raises(AirflowFailException, match=why):
        spark.run()
    assert spark.commands == []


def test_a_master_on_kubernetes_without_its_provider_names_the_extra(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_hook(_: object) -> None:
        raise NameError("name 'kube_client' is not defined")

    spark.connect("kubernetes")
    monkeypatch.setattr(SparkSubmitOperator, "_get_hook", no_hook)
    monkeypatch.setattr(jobs, "_is_installed", lambda module: False)
    with pytest.raises(AirflowFailException, match=r"install tideline\[airflow,kubernetes\]"):
        spark.run()
