"""What ``spark-submit`` has to be told, by the kind of cluster and by where the driver runs.

The executors' Python comes from the environment that ``make spark-env`` makes (docs/spark.md).
What the driver gets beside its settings file goes as words before the job's name, which is the
same in every deploy mode (``infra/spark/tideline_job.py``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from tideline.errors import UsageError
from tideline.installation import refuse_strangers, shipped
from tideline.settings import AirflowSettings

LAUNCHER = "tideline_job.py"
JAR = "tideline_job.jar"
"""Of the environment, and empty: a driver of a standalone cluster must have one."""
PYTHON_RUNNER = "org.apache.spark.deploy.PythonRunner"
"""What Spark itself starts Python by. It refuses Python applications in deploy mode cluster of a
standalone cluster, and runs them there by this name."""
IMAGE = "/opt/tideline"
"""The environment in the image of the executors."""
UNPACKED = "environment"
"""What the archive is called in the working directory of drivers and executors."""
PYTHON, DRIVER_PYTHON = "spark.pyspark.python", "spark.pyspark.driver.python"
DEPLOY_MODE = "spark.submit.deployMode"
DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref",
    "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar",
)  # fmt: skip
"""Packages of ``java.base`` that Spark and Arrow look into. Spark opens them for every driver but
that of a standalone cluster."""


class Cluster(StrEnum):
    """Kinds of masters."""

    LOCAL = "local"
    STANDALONE = "standalone"
    YARN = "yarn"
    KUBERNETES = "kubernetes"


_MASTERS = {
    "local": Cluster.LOCAL,
    "spark://": Cluster.STANDALONE,
    "yarn": Cluster.YARN,
    "k8s://": Cluster.KUBERNETES,
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a job goes. ``remote``: its driver runs in the cluster."""

    cluster: Cluster
    remote: bool

    @classmethod
    def of(cls, master: str, deploy_mode: str | None) -> Self:
        """Of a Spark connection. Raises :class:`UsageError`."""
        found = next((kind for start, kind in _MASTERS.items() if master.startswith(start)), None)
        if found is None:
            raise UsageError(
                f"the Spark connection's master is {master!r}: write local[n], spark://host:port, "
                "yarn or k8s://https://host:port"
            )
        if deploy_mode not in (None, "", "client", "cluster"):
            raise UsageError(f"the Spark connection's deploy-mode is {deploy_mode!r}: client or "
                             "cluster")  # fmt: skip
        if found is Cluster.LOCAL and deploy_mode == "cluster":
            raise UsageError(
                f"the Spark connection's deploy-mode is cluster, and its master {master}: no "
                "cluster is there; leave deploy-mode out"
            )
        return cls(found, deploy_mode == "cluster")


@dataclass(frozen=True, slots=True)
class Submission:
    """What a ``SparkSubmitOperator`` is given. ``words`` come before those of the job itself."""

    cluster: Cluster
    application: str
    java_class: str | None = None
    words: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    archives: str | None = None
    files: str | None = None
    tracked: bool = False
    """The driver's state is asked of the cluster; spark-submit does not wait for it."""


def submission(
    target: Target, job: str, settings: AirflowSettings, conf: Mapping[str, str]
) -> Submission:
    """For ``job``. ``conf``: of the operator; it goes over the settings, and they over what is
    worked out here. Raises :class:`UsageError`."""
    said = {**settings.airflow_spark_conf, **settings.airflow_spark_job_conf.get(job, {}), **conf}
    if DEPLOY_MODE in said:
        raise UsageError(f"{DEPLOY_MODE} is set as configuration: the Spark connection has it, as "
                         "deploy-mode")  # fmt: skip
    archive = settings.airflow_spark_archive if target.cluster is not Cluster.LOCAL else None
    standalone_driver = target.cluster is Cluster.STANDALONE and target.remote
    launcher = settings.airflow_spark_application or _launcher(target, settings)
    opened = _opened(said) if standalone_driver else {}
    return Submission(
        target.cluster,
        f"{_environment(target, settings)}/{JAR}" if standalone_driver else launcher,
        java_class=PYTHON_RUNNER if standalone_driver else None,
        words=(launcher, "") if standalone_driver else (),
        conf=_pythons(target, settings, archive) | _attempts(target) | said | opened,
        archives=f"{archive}#{UNPACKED}" if archive else None,
        files=settings.airflow_spark_files,
        tracked=target.remote
        and (target.cluster is Cluster.STANDALONE or settings.airflow_spark_track_driver),
    )


def _attempts(target: Target) -> dict[str, str]:
    """Who scheduled a job tries it again, as another run; YARN would repeat one under its id."""
    again = target.cluster is Cluster.YARN and target.remote
    return {"spark.yarn.maxAppAttempts": "1"} if again else {}


def _opened(said: Mapping[str, str]) -> dict[str, str]:
    """Options of the driver's JVM, before those that somebody has set."""
    options = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    options += ["-Dio.netty.tryReflectionSetAccessible=true", said.get(DRIVER_OPTIONS, "")]
    return {DRIVER_OPTIONS: " ".join(filter(None, options))}


def _environment(target: Target, settings: AirflowSettings) -> str | None:
    """Where the environment lies unpacked, beyond this machine."""
    if named := settings.airflow_spark_environment:
        return named.rstrip("/")
    in_image = target.cluster is Cluster.KUBERNETES
    return IMAGE if in_image or (target.cluster is Cluster.STANDALONE and target.remote) else None


def _launcher(target: Target, settings: AirflowSettings) -> str:
    """A driver here, and one of YARN, to which spark-submit sends it, have this installation's."""
    if not target.remote or target.cluster is Cluster.YARN:
        refuse_strangers()
        return str(shipped("infra/spark") / LAUNCHER)
    scheme = "local://" if target.cluster is Cluster.KUBERNETES else ""
    return f"{scheme}{_environment(target, settings)}/{LAUNCHER}"


def _pythons(target: Target, settings: AirflowSettings, archive: str | None) -> dict[str, str]:
    """As configuration, which reaches drivers and executors in every deploy mode; the worker's
    own PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON count where the driver is the worker's."""
    found: dict[str, str] = {}
    if target.cluster is Cluster.LOCAL:
        if "PYSPARK_PYTHON" not in os.environ:
            found[PYTHON] = sys.executable
    elif archive is not None:
        found[PYTHON] = f"./{UNPACKED}/bin/python"
    elif (installed := _environment(target, settings)) is not None:
        found[PYTHON] = f"{installed}/bin/python"
    if not target.remote:
        if "PYSPARK_DRIVER_PYTHON" not in os.environ:
            found[DRIVER_PYTHON] = sys.executable
    elif target.cluster is Cluster.STANDALONE:
        # Archives are unpacked by the driver's own context: it cannot be started out of one.
        found[DRIVER_PYTHON] = f"{_environment(target, settings)}/bin/python"
    return found
