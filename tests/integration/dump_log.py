"""Kafka's own checker of log files, started side by side because a JVM costs a second."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import HANGS_S
from tideline.stack.kafka_jars import tool_command


@dataclass(frozen=True)
class Dump:
    """What ``kafka.tools.DumpLogSegments`` said. It ends with 0 whatever it finds."""

    sections: dict[str, list[str]]
    """Lines by file name."""
    complaints: str


def start_dump(files: list[Path], *options: str) -> subprocess.Popen[str]:
    listed = ",".join(str(file) for file in files)
    return subprocess.Popen(
        tool_command("kafka.tools.DumpLogSegments", "--files", listed, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> Dump:
    out, complaints = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, complaints
    sections: dict[str, list[str]] = {}
    for line in out.splitlines():
        if line.startswith("Dumping "):
            lines = sections.setdefault(Path(line.removeprefix("Dumping ")).name, [])
        elif sections:
            lines.append(line)
    return Dump(sections, complaints)
