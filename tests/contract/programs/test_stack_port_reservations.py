"""A port of a running stack is not taken by another one while nothing listens there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tideline.stack.ports import PortReservations
from tideline.stack.processes import MARKER


@pytest.fixture
def supervisor() -> Iterator[subprocess.Popen[bytes]]:
    """A process that carries the mark of the stack ``running``."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {MARKER: "running"},
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_the_ports_of_a_running_stack_are_its_own(
    tmp_path: Path, supervisor: subprocess.Popen[bytes]
) -> None:
    reservations = PortReservations(tmp_path / "reservations")
    reservations.reserve("running", supervisor.pid, [19091, 19092])
    assert reservations.of_others("another") == {19091, 19092}
    assert reservations.of_others("running") == set()


def test_a_stack_that_ended_reserves_nothing(
    tmp_path: Path, supervisor: subprocess.Popen[bytes]
) -> None:
    reservations = PortReservations(tmp_path / "reservations")
    reservations.reserve("running", supervisor.pid, [19091])
    supervisor.kill()
    supervisor.wait()
    assert reservations.of_others("another") == set()


def test_a_process_that_has_the_pid_of_an_ended_supervisor_reserves_nothing(tmp_path: Path) -> None:
    reservations = PortReservations(tmp_path / "reservations")
    reservations.reserve("ended", os.getpid(), [19091])
    assert reservations.of_others("another") == set()


def test_a_damaged_record_reserves_nothing(tmp_path: Path) -> None:
    (tmp_path / "reservations").write_text("{")
    assert PortReservations(tmp_path / "reservations").of_others("another") == set()
