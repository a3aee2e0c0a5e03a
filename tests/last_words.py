"""What explains the failure of a test, for its report: what the programs of its stacks went
through, what servers and fakes of its own have to say, and what else the machine did.

Files are kept on the machine where they were written; a report travels.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Protocol, runtime_checkable

import psutil

from tideline.demo.patience import crowd
from tideline.stack import Stack
from tideline.stack.startup import tail

MOST_BYTES = 500_000
"""Of what each log has grown by."""
SHOWN = 6
"""Lines of each program."""
WIDTH = 300
WORDS = re.compile(r"\b(?:WARN|ERROR|FATAL|PANIC)\b|refuses connections|listens|ended|failed")
"""What is told of a line that has no level of its own, and of one at INFO."""


@runtime_checkable
class Witness(Protocol):
    """A server or fake of a test that can say what happened to it."""

    def last_words(self) -> str: ...


class LastWords:
    """Begins with a test, and tells what was written since."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._supervisor = stack.home / "logs" / "supervisord.log"
        self._sizes = {
            log: _size(log) for log in (self._supervisor, *map(stack.log_path, stack.programs))
        }

    @classmethod
    def of(cls, arguments: Mapping[str, object]) -> list[LastWords]:
        """Of each stack that a test has been given, itself or by what it runs on. None without
        logs: no test fails because of that."""
        found = []
        for stack in dict.fromkeys(_stacks(arguments)):
            with suppress(OSError):
                found.append(cls(stack))
        return found

    def told(self) -> str:
        """How each program stands, which were started and have ended, and of their logs what is
        worth a look. Never an error: the test's own is to be seen."""
        try:
            return self._told()
        except Exception as error:
            return f"the stack does not answer: {error!r}"

    def _told(self) -> str:
        states = self._stack.status()
        lines = [f"{each.info.name}: {each.info.state}, {each.info.why}" for each in states]
        for log in self._sizes:
            written = self._written(log)
            if log == self._supervisor:
                lines += _shown(log, written, 3 * SHOWN)
            else:
                lines += _shown(log, [line for line in written if worth_a_look(line)], SHOWN)
        return "\n".join(lines)

    def _written(self, log: Path) -> list[str]:
        size, before = _size(log), self._sizes[log]
        grown = size - before if before <= size else size  # it was rolled
        return tail(log, MOST_BYTES, min(grown, MOST_BYTES))


def _stacks(arguments: Mapping[str, object]) -> Iterator[Stack]:
    for given in arguments.values():
        for path in ((), ("stack",), ("case", "stack")):
            with suppress(Exception):  # of a fixture's own property
                found = reduce(getattr, path, given)
                if isinstance(found, Stack):
                    yield found


def of_witnesses(arguments: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Whose words, and the words. Never an error."""
    for name, given in arguments.items():
        if isinstance(given, Witness):
            try:
                yield name, given.last_words()
            except Exception as error:
                yield name, f"has nothing to say: {error!r}"


def of_the_machine() -> str:
    """How busy it is, who was at work, and how what this process has started stands. Never an
    error."""
    try:
        return _of_the_machine()
    except Exception as error:
        return f"it is not told: {error!r}"


def _of_the_machine() -> str:
    load = ", ".join(f"{of:.1f}" for of in os.getloadavg())
    busy = sorted(psutil.process_iter(["cpu_times", "name"]), key=_cpu_s, reverse=True)[:SHOWN]
    lines = [
        f"load {load}; {crowd():.1f} programs want each core; {psutil.virtual_memory().percent} % "
        "of the memory is taken",
        "most CPU so far: " + ", ".join(f"{p.info['name']} {_cpu_s(p):.0f} s" for p in busy),
    ]
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            age = time.time() - child.create_time()
            line = child.name()
            with suppress(psutil.Error):  # one that has ended has none
                line = " ".join(child.cmdline())[:WIDTH]
            lines.append(f"{child.pid} {child.status()} for {age:.0f} s: {line}")
    return "\n".join(lines)


def _cpu_s(process: psutil.Process) -> float:
    times = process.info["cpu_times"]
    return 0.0 if times is None else times.user + times.system


def worth_a_look(line: str) -> bool:
    """Whether it is more than a note, or says that something begins or ends."""
    if line.startswith("{"):
        try:
            if json.loads(line).get("level") not in ("info", "debug"):
                return True
        except ValueError:
            return True
    return WORDS.search(line) is not None


def _shown(log: Path, lines: Sequence[str], most: int) -> list[str]:
    return [f"{log.name}: {line[:WIDTH]}" for line in lines[-most:]]


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0
