"""A stack's processes are found by their mark, ended, and no other is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest

from tideline.stack import processes
from tideline.stack.processes import MARKER, PROGRAM_MARKER, end, family, marked

Start = Callable[..., subprocess.Popen[bytes]]

WAITS = "print(flush=True); input()"
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def start(identity: str, code: str = WAITS, program: str = "some") -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {MARKER: identity, PROGRAM_MARKER: program},
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_processes_are_found_by_their_mark_only(start: Start) -> None:
    mine, other = uuid.uuid4().hex, uuid.uuid4().hex
    ours = start(mine, program="kafka-1")
    start(other)
    assert [(each.process.pid, each.program) for each in marked(mine)] == [(ours.pid, "kafka-1")]


def test_a_child_without_the_mark_counts_as_its_parents(start: Start) -> None:
    identity = uuid.uuid4().hex
    parent = start(
        identity,
        "import subprocess, sys; c = subprocess.Popen(['sleep', '60'], env={}); "
        "print(flush=True); input()",
        "postgres",
    )
    assert {each.process.pid for each in marked(identity)} == {
        process.pid for process in family(parent.pid)
    }
    assert len(marked(identity)) == 2
    end(marked(identity))


def test_leftovers_end_and_others_stay(start: Start) -> None:
    mine, other = uuid.uuid4().hex, uuid.uuid4().hex
    start(mine, program="kafka-1")
    bystander = start(other)
    assert end(marked(mine)) == ["kafka-1"]
    assert marked(mine) == []
    assert bystander.poll() is None


def test_a_suspended_leftover_and_one_that_ignores_its_signal_end_too(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 0.5)
    identity = uuid.uuid4().hex
    suspended = start(identity)
    start(identity, IGNORES_TERM)
    suspended.send_signal(signal.SIGSTOP)
    end(marked(identity))
    assert marked(identity) == []


def test_the_family_of_a_process_that_is_gone_is_empty() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert family(gone.pid) == []
