"""Kafka's jars and our remote storage manager: fetched and built by Maven when sources changed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tideline.installation import shipped
from tideline.stack.errors import StackError
from tideline.stack.home import exclusive
from tideline.stack.kafka_classes import archive_classes, archived_classes

SOURCES = shipped("infra/kafka")
RELEASE = "TIDELINE_KAFKA_RELEASE"
"""Names another release of Kafka than the one of ``pom.xml``."""
BUILD_TIMEOUT_S = 900
SHOWN_LOG_LINES = 25


@dataclass(frozen=True)
class KafkaLibraries:
    """Directories of jars, and of the configuration that goes with them."""

    output: Path
    config: Path = SOURCES / "config"
    release: str | None = None
    """``None``: the one of ``pom.xml``."""

    @property
    def broker(self) -> Path:
        return self.output / "broker-libs"

    @property
    def rsm(self) -> Path:
        """The remote storage manager alone: loaded child first, so nothing of Kafka's own."""
        return self.output / "rsm-libs"


def libraries() -> KafkaLibraries:
    """Beside the sources, or in the user's cache when those cannot be written; of each release
    that is asked for by :data:`RELEASE` in a place of its own. Raises :class:`StackError`."""
    output = SOURCES / "target"
    if not os.access(output if output.exists() else SOURCES, os.W_OK):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        output = cache / "tideline" / "kafka"
    release = os.environ.get(RELEASE)
    if not release:
        return KafkaLibraries(output)
    if not re.fullmatch(r"\d+\.\d+\.\d+", release):
        raise StackError(
            f"{RELEASE}={release!r} is no release of Kafka: write all three numbers, as 4.1.2"
        )
    return KafkaLibraries(output / release, release=release)


def maven_options(jars: KafkaLibraries) -> list[str]:
    """Where jars go, and of which release they are."""
    options = [f"-Doutput={jars.output}"]
    return options if jars.release is None else [*options, f"-Dkafka.version={jars.release}"]


def java(executable: str = "java") -> str:
    """The JDK's ``java`` from ``JAVA_HOME``, else from the path."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(executable, path=f"{home}/bin") if home else None
    found = found or shutil.which(executable)
    if found is None:
        raise StackError(
            f"`{executable}` was not found: Kafka needs a JDK 17. "
            "Install one (Debian: apt-get install openjdk-17-jdk-headless) or set JAVA_HOME."
        )
    return found


def tool_command(main_class: str, *arguments: str) -> list[str]:
    """The command that runs one of Kafka's tools, for example
    ``org.apache.kafka.tools.ProducerPerformance``. Log lines go to stderr."""
    jars = libraries()
    return [
        java(),
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        *archived_classes(jars.output),
        f"-Dlog4j2.configurationFile={jars.config / 'tools-log4j2.properties'}",
        "-cp",
        f"{jars.broker}/*",
        main_class,
        *arguments,
    ]


def is_current(jars: KafkaLibraries) -> bool:
    """Whether the jars were built from the sources as they are now."""
    try:
        return _stamp(jars).read_text() == _digest()
    except FileNotFoundError:
        return False


def ensure(jars: KafkaLibraries) -> None:
    """Build when needed. Raises :class:`StackError` with the end of Maven's log on failure."""
    if is_current(jars):
        return
    maven = shutil.which("mvn")
    if maven is None:
        raise StackError(
            "`mvn` was not found: it fetches Kafka's jars (Debian: apt-get install maven)."
        )
    jars.output.mkdir(parents=True, exist_ok=True)
    with exclusive(jars.output / ".lock", BUILD_TIMEOUT_S, f"another build in {jars.output}"):
        if is_current(jars):
            return
        _stamp(jars).unlink(missing_ok=True)
        for directory in (jars.broker, jars.rsm):
            shutil.rmtree(directory, ignore_errors=True)
        log = jars.output / "maven.log"
        with log.open("w") as output:
            command = [maven, "--batch-mode", "--no-transfer-progress", *maven_options(jars)]
            try:
                code = subprocess.run(
                    [*command, "package"],
                    cwd=SOURCES,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=BUILD_TIMEOUT_S,
                ).returncode
            except subprocess.TimeoutExpired:
                raise StackError(
                    f"Maven did not end within {BUILD_TIMEOUT_S} s; its log is {log}"
                ) from None
        if code != 0:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LOG_LINES:])
            raise StackError(f"Maven failed with {code}; the end of {log}:\n{end}")
        if any(jars.broker.glob("*.jar")):
            archive_classes(java(), jars.broker, jars.rsm, jars.config, jars.output)
        _stamp(jars).write_text(_digest())


def _stamp(jars: KafkaLibraries) -> Path:
    return jars.output / ".built-from"


def _digest() -> str:
    digest = hashlib.sha256()
    sources = [SOURCES / "pom.xml", *SOURCES.glob("*/pom.xml"), *SOURCES.glob("*/src/**/*.java")]
    for source in sorted(sources):
        digest.update(str(source.relative_to(SOURCES)).encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()
