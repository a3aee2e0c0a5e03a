"""Starts the programs of :mod:`tests.clients`, tells them what to do, and keeps what they tell."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests import deaths
from tests.support.waiting import HANGS_S, joined, stopped, until
from tideline.stack.kafka_jars import SOURCES, libraries, maven_options, tool_command

INTEGRATION = Path(__file__).parents[1] / "integration"
FETCH_TIMEOUT_S = 180
"""Of a package registry; past it the client that needs it is left out."""
ANSWERS_WITHIN_S = 180.0
"""Of a program that may have to settle what a client was sending first."""
LAST_WORDS = 2_000
"""Characters of what a program that died wrote to stderr."""


class UnavailableError(Exception):
    """A client library cannot be had on this machine; the text says why."""


@dataclass
class Told:
    """What all programs told, by the name of the client."""

    read: defaultdict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    acked: defaultdict[str, list[tuple[int, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    errors: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


class Program:
    """One of them, running."""

    def __init__(self, command: list[str], told: Told) -> None:
        self._told, self._stopping = told, False
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (until it is stopped)
        self._answers: queue.Queue[str] = queue.Queue()
        self._process = subprocess.Popen(
            command,
            cwd=INTEGRATION.parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def ask(self, *words: str) -> str:
        """Tell it a command; its answer, which may be a refusal of a broker, not a failure."""
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)
        said = f"the answer to {' '.join(words)}"
        until(said, lambda: not self._answers.empty(), ANSWERS_WITHIN_S)
        answer = self._answers.get()
        assert not answer.startswith("failed"), (words, answer)
        return answer

    def stop(self) -> None:
        self._stopping = True
        stopped(self._process, by=self._end_input)
        joined(self._thread)
        self._errors.close()

    def _end_input(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and that was told
            self._process.stdin.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            client, value = told["client"], told["value"]
            if told["event"] == "answer":
                self._answers.put(value)
            elif told["event"] == "told":
                self._told.errors[client].append(value)
            elif told["event"] == "ended":
                deaths.note(f"client {client}", value)
            else:
                kind = self._told.read if told["event"] == "read" else self._told.acked
                kind[client].append((told["offset"], value))
        if not self._stopping:
            self._errors.seek(0)
            deaths.note(str(self._process.args), self._errors.read()[-LAST_WORDS:])
        self._answers.put("failed: the program has ended")


@contextmanager
def program(command: list[str], told: Told) -> Iterator[Program]:
    running = Program(command, told)
    try:
        yield running
    finally:
        running.stop()


def python_command(module: str, ways: Path) -> list[str]:
    return [sys.executable, "-m", f"tests.clients.{module}", str(ways)]


def java_command(ways: Path) -> list[str]:
    return tool_command(str(INTEGRATION / "java" / "ClientsProbe.java"), str(ways))


def streams_command(ways: Path, state: Path) -> list[str]:
    """Its jar comes from where those of the brokers come from, in their version."""
    built = libraries()
    jars = built.output / "streams-libs"
    pinned = re.search(r"<kafka.version>(.+)</", (SOURCES / "pom.xml").read_text())
    assert pinned is not None
    if not (jars / f"kafka-streams-{built.release or pinned[1]}.jar").exists():
        shutil.rmtree(jars, ignore_errors=True)
        pom = INTEGRATION / "java" / "pom.xml"
        _fetched(
            "Kafka Streams",
            [
                "mvn",
                "--batch-mode",
                "--quiet",
                "-f",
                str(pom),
                *maven_options(built),
                "package",
            ],
        )
    command = tool_command(str(INTEGRATION / "java" / "StreamsProbe.java"), str(ways), str(state))
    command[command.index("-cp") + 1] += f":{jars}/*"
    return command


def go_command(ways: Path, directory: Path) -> list[str]:
    """Built into ``directory``."""
    sources = INTEGRATION / "go"
    _fetched("Go's modules", ["go", "mod", "download"], sources)
    binary = directory / "clients"
    subprocess.run(
        ["go", "build", "-o", str(binary), "."],
        cwd=sources, env=_go_environment(), check=True, timeout=HANGS_S,
    )  # fmt: skip
    return [str(binary), str(ways)]


def _go_environment() -> dict[str, str]:
    return {**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false"}


def _fetched(what: str, command: list[str], directory: Path | None = None) -> None:
    try:
        subprocess.run(
            command, cwd=directory, env=_go_environment(), check=True, text=True,
            timeout=FETCH_TIMEOUT_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except FileNotFoundError:
        raise UnavailableError(f"`{command[0]}` is not installed") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{what}: not downloaded in {FETCH_TIMEOUT_S} s") from None
    except subprocess.CalledProcessError as error:
        last = (error.output.strip().splitlines() or [""])[-1]
        raise UnavailableError(f"{what} cannot be had: {last[:300]}") from None
