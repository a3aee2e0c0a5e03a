"""The embedded stack starts once, moves its ports, and cleans up after itself and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.conftest import HOMES_VARIABLE
from tests.support.waiting import HANGS_S, until
from tideline.stack import Stack, StackError, StackNotRunningError, supervision
from tideline.stack import stack as starts
from tideline.stack.home import Home, exclusive
from tideline.stack.ports import LOOPBACK, is_free
from tideline.stack.processes import MARKER, PROGRAM_MARKER, Program, marked
from tideline.stack.supervision import Supervisor

SMALL = ("postgres", "temporal")
"""Parts that start within a second."""


@pytest.fixture
def home() -> Iterator[Path]:
    """Nothing was ever started there."""
    with a_home() as path:
        yield path


@pytest.fixture(scope="module")
def small_stacks() -> Iterator[Path]:
    with a_home() as path:
        yield path


@pytest.fixture
def used_home(small_stacks: Path) -> Iterator[Path]:
    """Nothing runs there, and what the parts have on disk need not be made: half of the CPU."""
    try:
        yield small_stacks
    finally:
        Stack.take_down(small_stacks)


@contextmanager
def a_home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="small-", dir=os.environ[HOMES_VARIABLE]))
    path.chmod(0o755)
    try:
        yield path
    finally:
        Stack.purge(path)


def processes_of(home: Path) -> list[str]:
    state = Home.locate(home).state()
    assert state is not None
    return [each.program for each in marked(state.id)]


@pytest.fixture
def turn() -> Iterator[None]:
    """No other stack of this user starts meanwhile: it might take a port that is free."""
    held = exclusive(starts._turn_file(), starts.STARTING_TURN_S, "the start of another stack")
    with held, pytest.MonkeyPatch.context() as patch:
        patch.setattr(starts, "exclusive", lambda *_: nullcontext())  # it is this test's already
        yield


@pytest.mark.usefixtures("turn")
def test_a_taken_port_is_moved_and_the_move_is_remembered(used_home: Path) -> None:
    stack = Stack.up(used_home, parts=("temporal",))
    usual = stack.endpoints.temporal
    stack.down()
    with socket.create_server((LOOPBACK, int(usual.rpartition(":")[2]))):
        stack = Stack.up(used_home, parts=("temporal",))
        moved = stack.endpoints.temporal
        assert moved != usual
        stack.down()
    assert Stack.up(used_home, parts=("temporal",)).endpoints.temporal == moved


def test_down_after_the_supervisor_was_killed_leaves_no_process_and_touches_no_other(
    used_home: Path,
) -> None:
    bystander = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env=os.environ | {MARKER: "another-home"},
    )
    try:
        stack = Stack.up(used_home, parts=SMALL)
        os.kill(stack.supervisor_pid, signal.SIGKILL)
        assert {"postgres", "temporal"} <= set(processes_of(used_home))
        assert {"postgres", "temporal"} <= set(Stack.take_down(used_home).leftovers)
        assert processes_of(used_home) == []
        assert bystander.poll() is None
    finally:
        bystander.communicate(b"\n", timeout=HANGS_S)


def test_up_after_the_supervisor_was_killed_starts_anew_with_the_same_data(used_home: Path) -> None:
    stack = Stack.up(used_home, parts=SMALL)
    dsn = stack.endpoints.postgres_dsn("postgres")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    before = stack.pid("postgres")
    os.kill(stack.supervisor_pid, signal.SIGKILL)
    stack = Stack.up(used_home, parts=SMALL)
    assert not stack.was_running
    assert stack.pid("postgres") != before
    with psycopg.connect(stack.endpoints.postgres_dsn("postgres")) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


@pytest.mark.usefixtures("turn")
def test_down_frees_the_ports_and_says_what_it_stopped(used_home: Path) -> None:
    stack = Stack.up(used_home, parts=SMALL)
    port = int(stack.endpoints.temporal.rpartition(":")[2])
    assert set(stack.down().programs) == {"postgres", "temporal"}
    assert is_free(port)
    assert processes_of(used_home) == []
    with pytest.raises(StackNotRunningError, match="tideline stack up"):
        Stack.attach(used_home)
    assert Stack.attach(used_home, running=False).log_path("temporal").exists()
    assert Stack.take_down(used_home).programs == []


def test_a_home_that_is_purged_keeps_only_what_others_put_there(home: Path) -> None:
    Stack.up(home, parts=("postgres",))
    (home / "mine.txt").write_text("keep")
    assert Stack.purge(home).programs == ["postgres"]
    assert [path.name for path in home.iterdir()] == ["mine.txt"]
    (home / "mine.txt").unlink()


def test_postgres_runs_from_a_home_that_its_system_user_cannot_reach(home: Path) -> None:
    home.chmod(0o700)
    stack = Stack.up(home, parts=("postgres",))
    with psycopg.connect(stack.endpoints.postgres_dsn("postgres")) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert stack.data_path("postgres").is_relative_to(home) == (os.getuid() != 0)


def test_a_killed_program_comes_back_unless_told_otherwise(used_home: Path) -> None:
    stack = Stack.up(used_home, parts=SMALL)
    before = stack.pid("postgres")
    stack.kill("postgres")
    stack.wait_ready("postgres")
    assert stack.pid("postgres") != before
    stack.kill("postgres", restart=False)
    with pytest.raises(StackError, match="postgres does not run"):
        stack.pid("postgres")
    stack.start("postgres")
    assert stack.pid("postgres")


def test_a_suspended_program_answers_again_after_its_resumption(used_home: Path) -> None:
    stack = Stack.up(used_home, parts=SMALL)
    stack.suspend("postgres")
    until(
        "it to stand still",
        lambda: psutil.Process(stack.pid("postgres")).status() == psutil.STATUS_STOPPED,
    )
    still = r"postgres is not ready after \d+ s, and it makes no progress"
    with pytest.raises(StackError, match=still):
        stack.wait_ready("postgres", within_s=1)
    stack.resume("postgres")
    stack.wait_ready("postgres")
    stack.suspend("postgres")
    assert "postgres" in stack.down().programs
    assert processes_of(used_home) == []


def test_down_does_not_wait_for_a_supervisor_that_hangs(
    used_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack.up(used_home, parts=SMALL)
    supervisor = stack.supervisor_pid
    monkeypatch.setattr(supervision, "ANSWER_TIMEOUT_S", 0.5)
    os.kill(supervisor, signal.SIGSTOP)
    assert {"supervisord", "postgres", "temporal"} <= set(stack.down().leftovers)
    assert processes_of(used_home) == []


def test_a_part_that_cannot_start_is_named_with_its_log_and_nothing_is_left(home: Path) -> None:
    Stack.up(home, parts=SMALL).down()
    state = Home.locate(home).state()
    assert state is not None
    (Path(state.postgres_data) / "postgresql.conf").write_text("no such setting = 1\n")
    with pytest.raises(StackError, match=r"(?s)postgres ended.*token \"setting\""):
        Stack.up(home, parts=SMALL)
    assert processes_of(home) == []


def test_parts_can_be_added_to_a_running_stack(used_home: Path) -> None:
    Stack.up(used_home, parts=("temporal",))
    stack = Stack.up(used_home, parts=SMALL)
    assert not stack.was_running
    assert {row.info.name: row.info.is_up for row in stack.status()} == {
        "postgres": True,
        "temporal": True,
    }


def test_a_program_has_other_settings_from_its_next_start_on(home: Path) -> None:
    place = Home.locate(home)
    place.create()
    state = place.new_state(brokers=1, parts=[], cluster_id="none")

    def sleeping(setting: str) -> Program:
        return Program("x", ("sleep", "600"), place.logs / "x.log", {"TIDELINE_X": setting})

    supervisor = Supervisor(place, state, "secret")
    supervisor.launch([sleeping("before")])
    try:
        supervisor.start("x")
        before = _environment(supervisor)
        supervisor.update([sleeping("after")])
        supervisor.start("x")
        assert _environment(supervisor) == before, "it runs"
        assert before["TIDELINE_X"] == "before"
        supervisor.stop("x", 20)
        supervisor.start("x")
        assert _environment(supervisor)["TIDELINE_X"] == "after"
        supervisor.stop("x", 20)
    finally:
        ended = psutil.Process(supervisor.pid())
        supervisor.shut_down()
        ended.wait(HANGS_S)


def _environment(supervisor: Supervisor) -> dict[str, str]:
    """Of the program, once it is not the supervisor's fork any more."""
    found: dict[str, str] = {}

    def own() -> bool:
        found.update(psutil.Process(supervisor.process("x").pid).environ())
        return found.get(PROGRAM_MARKER) == "x"

    until("the program", own)
    return found
