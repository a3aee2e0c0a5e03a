"""The classes that a broker loads, as the JVM maps them: its start takes half of the time.

A class-data archive (JEP 350) of one JVM and the jars as they are. It is a cache: a JVM that cannot
use it loads its classes from the jars, and says nothing of it.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tideline.stack.errors import NotReadyError
from tideline.stack.ports import LOOPBACK
from tideline.stack.probes import kafka_nodes

ARCHIVE = "classes.jsa"
SILENT = "-Xlog:cds=off,cds+dynamic=off,class+path=off"
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A JVM that ends after seconds or minutes need not compile for hours, nor collect in parallel."""
STARTS_WITHIN_S = 60
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
_TIERED = "Initialized topic-based RLMM resources"
"""What a broker writes once its part of tiered storage has started, too, after it answers."""
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{broker},CONTROLLER://{host}:{controller}
log.dirs={logs}
offsets.topic.replication.factor=1
remote.log.storage.system.enable=true
remote.log.storage.manager.class.name=org.tideline.kafka.tiered.S3RemoteStorageManager
remote.log.storage.manager.class.path={rsm}/*
remote.log.metadata.manager.listener.name=PLAINTEXT
rlmm.config.remote.log.metadata.topic.replication.factor=1
rlmm.config.remote.log.metadata.topic.num.partitions=1
rsm.config.bucket=none
rsm.config.region=us-east-1
rsm.config.endpoint=http://{host}:9
rsm.config.access.key=none
rsm.config.secret.key=none
"""
"""With tiered storage, as every broker of a stack has it: a third of what it loads. Nobody asks the
store for anything, so nobody answers there."""


def archived_classes(libraries: Path) -> tuple[str, ...]:
    """Options of a JVM whose class path is ``broker-libs/*`` below ``libraries``."""
    archive = libraries / ARCHIVE
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", SILENT) if archive.exists() else ()


def archive_classes(java: str, jars: Path, rsm: Path, config: Path, libraries: Path) -> None:
    """Start a broker of its own, stop it, and keep what it has loaded. Nothing is kept where it
    does not start, or not in time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        _archive_classes(java, jars, rsm, config, libraries)


def _archive_classes(java: str, jars: Path, rsm: Path, config: Path, libraries: Path) -> None:
    archive = libraries / ARCHIVE
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=libraries) as scratch:
        place = Path(scratch)
        broker, controller = _free_ports()
        properties = place / "broker.properties"
        properties.write_text(
            _PROPERTIES.format(
                host=LOOPBACK, broker=broker, controller=controller, logs=place / "data", rsm=rsm
            )
        )
        made = place / ARCHIVE
        logging = f"-Dlog4j2.configurationFile={config / 'log4j2.properties'}"
        rest = [SILENT, logging, f"-Dtideline.log={place / 'log'}", "-cp", f"{jars}/*"]
        format_ = [java, *rest, "kafka.tools.StorageTool", "format"]
        recording = [java, *QUICK_START, f"-XX:ArchiveClassesAtExit={made}", *rest]
        with (libraries / "classes.log").open("wb") as log:
            subprocess.run(
                [*format_, "-t", _CLUSTER, "-c", str(properties)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                check=False, timeout=STARTS_WITHIN_S,
            )  # fmt: skip
            process = subprocess.Popen(
                [*recording, "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                answers = _answers(process, broker, place / "log")
                process.terminate()
                process.wait(STARTS_WITHIN_S)
            finally:
                process.kill()
                process.wait()
        if answers and made.exists():
            made.replace(archive)


def _answers(process: subprocess.Popen[bytes], port: int, written: Path) -> bool:
    ends = time.monotonic() + STARTS_WITHIN_S
    while process.poll() is None and time.monotonic() < ends:
        with contextlib.suppress(NotReadyError):
            kafka_nodes((LOOPBACK, port))
            if _TIERED in written.read_text():
                return True
        time.sleep(0.1)
    return False


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind((LOOPBACK, 0))
        other.bind((LOOPBACK, 0))
        return one.getsockname()[1], other.getsockname()[1]
