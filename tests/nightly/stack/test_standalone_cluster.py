"""docs/spark.md, taken as it stands, on a standalone cluster: a master and two workers here.

The environment that ``make spark-env`` makes runs the jobs, and nothing that the tests have
installed does but Spark itself. What the test puts in the place of the page's addresses and paths:

| the page | here |
| --- | --- |
| ``spark://master``, its ports | the cluster's |
| ``/etc/tideline/jobs.toml`` | the settings of the stack's jobs |
| ``/srv/tideline`` | where the archive is |
| ``/opt/tideline`` | where it is unpacked |
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.harness import migration_case
from tests.rehearsed import blocks, substituted
from tests.standalone import Standalone, standalone
from tests.support.waiting import HANGS_S
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings
from tideline.stack import Stack
from tideline.stack.kafka_classes import QUICK_START
from tideline.stack.ports import LOOPBACK
from tideline.stack.spark_classes import driver_options

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "spark.md"
ARCHIVE = ROOT / "dist" / "tideline-spark-env.tar.gz"
SMALL = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.driver.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.driver.extraJavaOptions": " ".join(driver_options()),
    "spark.executor.extraJavaOptions": " ".join(QUICK_START),
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
OBJECTS = 7


@dataclass(frozen=True)
class Site:
    """The cluster, the environment, and what belongs in the place of the page's names."""

    cluster: Standalone
    stack: Stack
    directory: Path
    table: dict[str, str]

    @property
    def environment(self) -> Path:
        return self.directory / "opt"

    def block(self, name: str) -> str:
        return substituted(blocks(PAGE)[0][name].text, self.table)

    def variables(self, name: str) -> dict[str, str]:
        """Of a block of ``NAME=value`` lines."""
        words = shlex.split(self.block(name))
        return dict(word.split("=", 1) for word in words)

    def run(self, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
        """In the environment of an Airflow worker that has the worker's settings."""
        home = self.directory / "airflow"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TIDELINE_")}
        return subprocess.run(
            command,
            env={
                **inherited,
                **self.stack.environment("worker"),
                "AIRFLOW_HOME": str(home),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}",
                "SPARK_LOCAL_IP": LOOPBACK,
                **variables,
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=800,
        )

    def submitted(self, block: str, *words: str) -> dict[str, Any]:
        """What the operator's task comes to under the page's settings."""
        settings = self.variables(block)
        conf = {**json.loads(settings.get("TIDELINE_AIRFLOW_SPARK_CONF", "{}")), **SMALL}
        settings["TIDELINE_AIRFLOW_SPARK_CONF"] = json.dumps(conf)
        ran = self.run([sys.executable, "-m", "tests.submitted", *words], **settings)
        assert ran.stdout.strip(), ran.stderr[-3000:]
        found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        assert "failed" not in found, (found, ran.stdout[-3000:])
        return found


@pytest.fixture(scope="module")
def archive() -> Path:
    """What the page's command makes."""
    subprocess.run(["make", "spark-env"], cwd=ROOT, check=True, capture_output=True, timeout=600)
    return ARCHIVE


@pytest.fixture(scope="module")
def site(stack: Stack, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("spark")
    settings = directory / "jobs.toml"
    settings.write_text(
        "".join(
            f"{name.removeprefix('TIDELINE_').lower()} = {json.dumps(value)}\n"
            for name, value in stack.environment("jobs").items()
        )
    )
    with tarfile.open(archive) as tar:
        tar.extractall(directory / "opt", filter="tar")
    with standalone(directory) as cluster:
        table = {
            '"spark://master"': f'"spark://{LOOPBACK}"',
            "spark://master:7077": cluster.master,
            "7077": str(cluster.ports["spark-master"]),
            "6066": str(cluster.ports["spark-master-rest"]),
            "/etc/tideline/jobs.toml": str(settings),
            "/srv/tideline": str(archive.parent),
            "/opt/tideline": str(directory / "opt"),
        }
        yield Site(cluster, stack, directory, table)


@pytest.fixture(scope="module")
def hybrid(stack: Stack) -> Iterator[str]:
    """A topic whose segments lie in the tiered bucket and whose remote log the metadata tells."""
    with migration_case(stack, name="on-a-cluster") as case:
        case.trigger()
        case.until_ready()
        yield case.topic


@pytest.fixture(scope="module")
def listed(stack: Stack) -> Iterator[int]:
    """Objects that nobody knows: the executors list at least so many."""
    settings = JobsSettings.of(stack.environment("jobs"))
    store = ObjectStoreClient(settings)
    keys = [f"{settings.diskless_prefix}wal/{uuid4().hex}" for _ in range(OBJECTS)]
    for key in keys:
        store.put(settings.s3_bucket, key, b"of nobody")
    yield OBJECTS
    store.delete(settings.s3_bucket, keys)


def test_the_environment_runs_where_it_is_unpacked_and_knows_no_other_place(site: Site) -> None:
    script = (
        "import sys, pyarrow, pandas, confluent_kafka, psycopg, uvloop, spark\n"
        "import tideline.control_plane.jobs, tideline.kafka.wire as wire; wire.library()\n"
        "print(*sys.path, sep='\\n'); print(open('/proc/self/maps').read())"
    )
    # Without PySpark, which is the cluster's.
    ran = subprocess.run(
        [site.environment / "bin/python", "-c", script],
        env={}, cwd="/", capture_output=True, text=True, timeout=HANGS_S,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    elsewhere = [sys.base_prefix, sys.prefix, str(ROOT)]
    assert [place for place in elsewhere if f"{place}/" in ran.stdout] == []
    text = [
        file
        for file in site.environment.rglob("*")
        if file.is_file() and file.suffix in ("", ".py", ".pth", ".json", ".cfg", ".pyc")
        and not os.access(file, os.X_OK) and file.stat().st_size < 5_000_000
    ]  # fmt: skip
    assert len(text) > 1_000
    named = re.compile("|".join(re.escape(f"{place}/") for place in elsewhere).encode())
    assert [str(file) for file in text if named.search(file.read_bytes())] == []


def test_a_driver_on_this_machine_has_its_executors_take_the_archive(
    site: Site, hybrid: str
) -> None:
    """They read Kafka, Postgres and objects; the driver's machine has no Python where they do."""
    assert "./environment" in site.block("by-hand")
    found = site.submitted("standalone-client", "coverage", "--topic", hybrid)
    assert (found["ok"], found["covered"], found["not_covered"]) == (True, 1, 0), found


def test_a_driver_in_the_cluster_leaves_its_result_in_the_object_store(
    site: Site, hybrid: str, listed: int
) -> None:
    found = site.submitted("standalone-cluster", "gc", "--dry-run")
    assert (found["ok"], found["dry_run"]) == (True, True)
    assert found["listed"] > listed
    assert found["segments_not_judged"] is None, "executors read what the brokers wrote"
    drivers = list(site.directory.glob("work-*/driver-*/stdout"))
    assert [json.loads(out.read_text().splitlines()[-1])["run_id"] for out in drivers] == [
        found["run_id"]
    ], "a worker ran the driver"
    settings = JobsSettings.of(site.stack.environment("jobs"))
    key = f"{settings.diskless_prefix}runs/gc/{found['run_id']}.json"
    left = json.loads(ObjectStoreClient(settings).get(settings.s3_bucket, key))
    # A task keeps nothing that is too long for Airflow's database, and names what it left out.
    for name in found.pop("left_out", []):
        assert name in left
    assert left | found == left


def test_a_job_by_hand(site: Site) -> None:
    command = shlex.split(site.block("by-hand").replace("\\\n", " "))
    small = [word for pair in SMALL.items() for word in ("--conf", "=".join(pair))]
    # Its executors would do what those of the first test do.
    ran = site.run([command[0], *small, *command[1:], "--no-orphans"])
    found = json.loads(ran.stdout.splitlines()[-1])
    assert (found["ok"], found["dry_run"]) == (True, True), ran.stderr[-3000:]
