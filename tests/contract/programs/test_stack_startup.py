"""Parts start in order of need; a failure is told with its reason and stops the rest."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import psutil
import pytest

from tests.support.waiting import until
from tideline.stack.errors import NotReadyError, StackError
from tideline.stack.parts.base import StackPart
from tideline.stack.processes import Program, busy_seconds
from tideline.stack.startup import (
    PROBE_INTERVAL_S,
    Patience,
    Progress,
    Startup,
    Step,
    await_ready,
    tail,
)
from tideline.stack.supervision import ProcessInfo, Supervisor


class FakeSupervisor:
    """Programs run as soon as they are started, unless they crash."""

    def __init__(self, *crashing: str, running: tuple[str, ...] = ()) -> None:
        self.crashing = crashing
        self.started: list[str] = list(running)
        self._lock = threading.Lock()

    def start(self, name: str) -> None:
        with self._lock:
            self.started.append(name)

    def process(self, name: str) -> ProcessInfo:
        if name in self.crashing:
            return ProcessInfo(name, "BACKOFF", None, 0, "exited too quickly")
        if name in self.started:
            return ProcessInfo(name, "RUNNING", 1, 1, "")
        return ProcessInfo(name, "STOPPED", None, 0, "")

    def processes(self) -> dict[str, ProcessInfo]:
        return {name: self.process(name) for name in self.started}


class FakePart(StackPart):
    def __init__(self, name: str, *needs: str, log: Path = Path("/nowhere")) -> None:
        self._name, self._needs, self._log = name, needs, log
        self.prepared = 0
        self.finished = threading.Event()
        self.refusals = 0

    name = property(lambda self: self._name)  # type: ignore[assignment]
    needs = property(lambda self: self._needs)  # type: ignore[assignment]
    where = "here"

    def program(self) -> Program:
        return Program(self._name, ("x",), self._log)

    def prepare(self) -> None:
        self.prepared += 1

    def probe(self) -> None:
        if self.refusals > 0:
            self.refusals -= 1
            raise NotReadyError("still asleep")

    def finish(self) -> None:
        self.finished.set()


def start(supervisor: FakeSupervisor, *parts: FakePart) -> list[Progress]:
    told: list[Progress] = []
    Startup(parts, cast(Supervisor, supervisor), told.append).run()
    return told


def test_a_part_starts_only_when_what_it_needs_is_finished() -> None:
    first, second = FakePart("first"), FakePart("second", "first")
    first.refusals = 2
    supervisor = FakeSupervisor()
    start(supervisor, second, first)
    assert supervisor.started == ["first", "second"]
    assert first.finished.is_set()


def test_a_need_that_is_not_part_of_this_start_is_not_waited_for() -> None:
    supervisor = FakeSupervisor()
    start(supervisor, FakePart("only", "left-out"))
    assert supervisor.started == ["only"]


def test_a_part_that_runs_already_is_asked_but_not_started() -> None:
    part = FakePart("old")
    told = start(FakeSupervisor(running=("old",)), part)
    assert part.prepared == 0
    assert part.finished.is_set()
    assert told[-1].note == "ran before"


def test_a_crash_is_told_with_the_end_of_the_log_and_the_rest_gives_up(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first line\nno space left\n")
    told: list[Progress] = []
    parts = [FakePart("bad", log=log), FakePart("waiting", "bad")]
    supervisor = FakeSupervisor("bad")
    with pytest.raises(StackError, match=r"(?s)bad ended: exited too quickly.*no space left"):
        Startup(parts, cast(Supervisor, supervisor), told.append).run()
    assert {step.name: step.step for step in told} == {
        "bad": Step.FAILED,
        "waiting": Step.ABANDONED,
    }


def test_the_bound_on_readiness_names_what_was_awaited() -> None:
    part = FakePart("slow")
    part.refusals = 10_000
    with pytest.raises(
        StackError, match=r"slow is not ready after \d+ s, and it makes no progress: still asleep"
    ):
        await_ready(
            part,
            cast(Supervisor, FakeSupervisor(running=("slow",))),
            within_s=0.3,
            busy_seconds=lambda pid: 0.0,
        )
    assert part.refusals > 10_000 - 5 / PROBE_INTERVAL_S


def test_a_part_that_is_given_up_though_it_works_is_not_said_to_stand_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tideline.stack.startup.AT_MOST", 1)
    monkeypatch.setattr("tideline.stack.startup.WORK_MEASURED_EVERY_S", 0.1)
    part = FakePart("busy")
    part.refusals = 10_000
    used = itertools.count()
    with pytest.raises(
        StackError, match=r"busy is not ready after \d+ s, though the start makes progress"
    ):
        await_ready(
            part,
            cast(Supervisor, FakeSupervisor(running=("busy",))),
            within_s=1,
            busy_seconds=lambda pid: float(next(used)),
        )


class Waiting:
    """A wait of at most ten still seconds, told second by second what moves."""

    def __init__(self) -> None:
        self.now = self.used = 0.0
        self.steps = 0
        self._patience = Patience(10, lambda: self.used, lambda: self.steps, lambda: self.now)

    def lasts(self, seconds: int, share: float = 0.0, steps: int = 0) -> bool:
        """Whether patience holds for so long, with this use of a core and steps of others."""
        for _ in range(seconds):
            self.now += 1
            self.used += share
            self.steps += steps
            if self._patience.is_over():
                return False
        return True


def test_a_part_that_works_is_waited_for_and_one_that_stands_still_is_not() -> None:
    waiting = Waiting()
    assert waiting.lasts(60, share=0.2)
    assert waiting.lasts(9)
    assert not waiting.lasts(1)


def test_a_part_that_only_tries_again_and_again_stands_still() -> None:
    assert not Waiting().lasts(10, share=0.02)


def test_a_part_may_stand_still_while_others_of_its_start_go_on() -> None:
    waiting = Waiting()
    assert waiting.lasts(60, steps=1)
    assert not waiting.lasts(10)


def test_whatever_works_for_ever_is_given_up_at_last() -> None:
    waiting = Waiting()
    assert waiting.lasts(99, share=1.0)
    assert not waiting.lasts(1, share=1.0)


def test_the_work_of_a_program_is_that_of_its_children_too_ended_or_not() -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    script = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {burn!r}])\n"
        "print(flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        whole_ticks = 2 / os.sysconf("SC_CLK_TCK")  # of the user's time and of the system's
        assert busy_seconds(program.pid) > 0.5 - whole_ticks
    assert busy_seconds(program.pid) == 0


def test_a_program_that_waits_for_a_core_is_busy() -> None:
    """Two that would each use all of one core: what one of them uses, the other waits for."""
    core = min(os.sched_getaffinity(0))
    burn = f"import os, time\nos.sched_setaffinity(0, [{core}])\nwhile True: time.process_time()"
    with (
        subprocess.Popen([sys.executable, "-c", burn]) as one,
        subprocess.Popen([sys.executable, "-c", burn]) as other,
    ):
        try:
            pids = one.pid, other.pid
            until("both to have waited", lambda: all(_waited(pid) > 0.3 for pid in pids))
        finally:
            one.kill()
            other.kill()


def _waited(pid: int) -> float:
    return busy_seconds(pid) - sum(psutil.Process(pid).cpu_times()[:2])


def test_the_tail_of_a_log_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log, 3) == []
    log.write_text("".join(f"line {n}\n" for n in range(100_000)))
    assert tail(log, 2) == ["line 99998", "line 99999"]
    assert len(tail(log, 10_000, limit_bytes=100)) <= 10
