"""A standalone Spark cluster on this machine: a master and workers, on loopback."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pyspark

from tests.support.waiting import HANGS_S, stopped, until
from tideline.stack.kafka_classes import QUICK_START
from tideline.stack.ports import LOOPBACK, allocate

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DEPLOY = "org.apache.spark.deploy"
PORTS = {"spark-master": 7077, "spark-master-rest": 6066, "spark-master-ui": 7080}
CORES = 2
"""Of each worker: one for a driver of deploy mode cluster, and one for an executor."""


@dataclass(frozen=True)
class Standalone:
    """``directory``: where the workers run drivers and executors."""

    directory: Path
    ports: Mapping[str, int]

    @property
    def master(self) -> str:
        return f"spark://{LOOPBACK}:{self.ports['spark-master']}"

    def state(self) -> dict[str, Any]:
        """What the master says of itself; empty while it does not answer, or with its page, which
        it shows under any path for the moment before it has attached this one."""
        with suppress(URLError, ConnectionError, json.JSONDecodeError):
            address = f"http://{LOOPBACK}:{self.ports['spark-master-ui']}/json/"
            with urlopen(address, timeout=HANGS_S) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        return {}


@contextmanager
def standalone(directory: Path, workers: int = 2) -> Iterator[Standalone]:
    """A cluster until the end of the block; nothing of it stays."""
    cluster = Standalone(directory, allocate(PORTS, {}))
    properties = directory / "master.conf"
    properties.write_text(
        "spark.master.rest.enabled true\n"
        f"spark.master.rest.host {LOOPBACK}\n"
        f"spark.master.rest.port {cluster.ports['spark-master-rest']}\n"
    )
    here = ["--host", LOOPBACK, "--webui-port"]
    ports = cluster.ports
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(
            _start(
                directory, "master", f"{DEPLOY}.master.Master",
                *here, str(ports["spark-master-ui"]), "--port", str(ports["spark-master"]),
                "--properties-file", str(properties),
            )
        )  # fmt: skip
        until("the Spark master", lambda: cluster.state())
        for number in range(workers):
            started.append(
                _start(
                    directory, f"worker-{number}", f"{DEPLOY}.worker.Worker", cluster.master,
                    *here, "0", "--cores", str(CORES), "--memory", "2g",
                    "--work-dir", str(directory / f"work-{number}"),
                )
            )  # fmt: skip
        until("the workers", lambda: cluster.state().get("aliveworkers") == workers)
        yield cluster
    finally:
        for process in reversed(started):
            _end(process)


def _start(directory: Path, name: str, *command: str) -> subprocess.Popen[bytes]:
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [SPARK_CLASS, *command],
            env={
                **os.environ,
                "SPARK_LOCAL_IP": LOOPBACK,
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": " ".join(QUICK_START),
            },
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """A worker ends what it runs; what does not end with it is killed."""
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        stopped(process)
        _, left = psutil.wait_procs(family, timeout=10)
        for one in left:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.kill()
    process.wait()
