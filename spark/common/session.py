"""The one place that makes a Spark session.

A job runs on whatever master it is given. Under ``spark-submit`` nothing is set that the command
line or the cluster's defaults say; without it, and without a master, Spark runs in this process
on the machine's cores, on loopback only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tideline.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*]"
FORCED = {
    # Answers depend on these: timestamps, and sums that would wrap around in silence.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Tasks claim, write and delete. A copy of one that is only slow would take its claims away, and
    # be taken for the whole by Spark when the first one sees that and ends.
    "spark.speculation": "false",
}
"""What no command line and no cluster's defaults change."""
COMMON = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # What reaches Python in one message is bounded by rows and, since a row of packed observations
    # may be a megabyte, by bytes.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024 * 1024),
}
"""What they may."""
DAEMON = ("spark.python.daemon.module", "spark.common.daemon")
"""They may, too. Not where modules are sent along: those reach executors when it has imported
others."""
LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
QUIET = ("spark.ui.showConsoleProgress", "false")
"""Jobs have progress lines of their own; Spark's shell switches its bar on by itself."""


def submitted() -> bool:
    """Whether ``spark-submit`` started this process, with a master of its own."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def make_session(
    name: str, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """A session called ``name``. ``config`` overrides everything else but :data:`FORCED`.

    ``master``: as Spark spells it; ``None``: what ``spark-submit`` gives, else this machine.
    Raises :class:`UsageError` when Spark cannot start here.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = SparkConf(loadDefaults=False)
    for key, value in (config or {}).items():
        given.set(key, value)
    if master:
        given.setMaster(master)
    if not submitted():
        given.setIfMissing(*QUIET)
    try:
        # The driver's JVM knows what spark-submit and the cluster's defaults say.
        SparkContext._ensure_initialized(conf=given)
        conf = SparkConf()
        for key, value in given.getAll():
            conf.set(key, value)
        conf.setIfMissing("spark.master", LOCAL_MASTER)
        local = not submitted() and str(conf.get("spark.master")).startswith("local")
        for key, value in (COMMON | LOOPBACK if local else COMMON).items():
            conf.setIfMissing(key, value)
        if not conf.get("spark.submit.pyFiles", ""):
            conf.setIfMissing(*DAEMON)
        if local:
            # Spark's own default is a cluster's: 200 tasks cost a small job more than its work.
            conf.setIfMissing("spark.sql.shuffle.partitions", str(4 * (os.cpu_count() or 1)))
        for key, value in FORCED.items():
            conf.set(key, value)
        session = SparkSession.builder.appName(name).config(conf=conf).getOrCreate()
    except (PySparkException, OSError) as error:
        raise UsageError(
            f"Spark did not start ({error}): a JDK 17 must be on the PATH or named by JAVA_HOME"
        ) from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def cores(session: SparkSession, asked: int = 0) -> int:
    """Tasks that a job's frames are cut into: ``asked``, or what Spark has cores for."""
    return asked or max(2, int(session.sparkContext.defaultParallelism))
