"""Work on executors of their own: ``python -m tests.on_local_cluster WORK ANSWER``.

``local-cluster``: a master, workers and one JVM for each executor, so that tasks are retried and
executors can die, which they cannot in ``local[n]``. ``WORK`` is a pickled function of a Spark
session, and ``ANSWER`` the file for what it returns.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyspark
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession

from spark.common.session import make_session
from tideline.stack.kafka_classes import QUICK_START
from tideline.stack.spark_classes import driver_options

ROOT = Path(__file__).parents[1]
MASTER = "local-cluster[2,1,1024]"
CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": " ".join(QUICK_START),
    "spark.sql.shuffle.partitions": "2",
    # As a platform may have it by default, and eager: what is slow is begun a second time at once.
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
}


def on_local_cluster(
    work: Callable[[SparkSession], Any], directory: Path, **environment: str
) -> Any:
    """What ``work`` returns in a fresh interpreter. ``directory``: of the executors' files, too."""
    given, answer, local = directory / "work", directory / "answer", directory / "local"
    local.mkdir()
    home = directory / "spark"  # in which its workers have their directories
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    given.write_bytes(cloudpickle.dumps(work))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.on_local_cluster", str(given), str(answer)],
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(local),
            "SPARK_SUBMIT_OPTS": " ".join(driver_options()),
            **environment,
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
    )
    (directory / "stderr").write_text(ran.stderr)
    assert answer.exists(), f"{ran.stderr[-2000:]} (the rest is in {directory}/stderr)"
    return pickle.loads(answer.read_bytes())


def attempt() -> int:
    """Of the task that runs this; 0 is the first."""
    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


def kill_executor_once(marker: Path) -> None:
    """The JVM of this task, and with it all that it runs: nothing is told, nothing is tidied, and
    what it holds of shuffles is lost, so that a stage begins anew. ``marker``: a file that whoever
    is first makes; nobody else dies."""
    try:
        marker.open("x").close()
    except FileExistsError:
        return
    (jvm, *_) = [p for p in psutil.Process().parents() if p.name() == "java"]
    os.kill(jvm.pid, signal.SIGKILL)
    signal.pause()


def main(given: str, answer: str) -> None:
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    session = make_session("local-cluster", MASTER, CONF | local)
    try:
        found = pickle.loads(Path(given).read_bytes())(session)
        Path(answer).write_bytes(pickle.dumps(found))
    finally:
        session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
