"""A port of a running stack is not taken by another one while nothing listens there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tideline.stack.claims import ClaimedPorts
from tideline.stack.programs import MARKER


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
    claims = ClaimedPorts(tmp_path / "claims")
    claims.claim("running", supervisor.pid, [19091, 19092])
    assert claims.of_others("another") == {19091, 19092}
    assert claims.of_others("running") == set()


def test_a_stack_that_ended_claims_nothing(
    tmp_path: Path, supervisor: subprocess.Popen[bytes]
) -> None:
    claims = ClaimedPorts(tmp_path / "claims")
    claims.claim("running", supervisor.pid, [19091])
    supervisor.kill()
    supervisor.wait()
    assert claims.of_others("another") == set()


def test_a_process_that_has_the_pid_of_an_ended_supervisor_claims_nothing(tmp_path: Path) -> None:
    claims = ClaimedPorts(tmp_path / "claims")
    claims.claim("ended", os.getpid(), [19091])
    assert claims.of_others("another") == set()


def test_a_damaged_record_claims_nothing(tmp_path: Path) -> None:
    (tmp_path / "claims").write_text("{")
    assert ClaimedPorts(tmp_path / "claims").of_others("another") == set()
