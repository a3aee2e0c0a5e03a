"""The report of a test that failed says what its stack went through."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.last_words import (
    MOST_BYTES,
    SHOWN,
    WIDTH,
    LastWords,
    of_the_machine,
    of_witnesses,
    worth_a_look,
)
from tideline.stack import Stack
from tideline.stack.errors import StackNotRunningError


class OneProgram:
    """A stack of a gateway alone."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "logs").mkdir()
        self.log = home / "logs" / "gateway-1.log"
        self.supervisor = home / "logs" / "supervisord.log"
        self.is_up = True

    @property
    def programs(self) -> list[str]:
        return ["gateway-1"]

    def log_path(self, name: str) -> Path:
        return self.log

    def status(self) -> list[Any]:
        if not self.is_up:
            raise StackNotRunningError("it does not answer")
        info = SimpleNamespace(name="gateway-1", state="BACKOFF", why="exited too quickly")
        return [SimpleNamespace(info=info, where="", log=self.log)]


@pytest.fixture
def one(tmp_path: Path) -> OneProgram:
    return OneProgram(tmp_path)


def words(one: OneProgram) -> LastWords:
    return LastWords(cast(Stack, one))


def test_it_says_how_programs_stand_and_what_was_written_since_the_test_began(
    one: OneProgram,
) -> None:
    one.log.write_text('{"event": "an earlier test\'s", "level": "error"}\n')
    told = words(one)
    with one.log.open("a") as log:
        log.write('{"event": "of no interest", "level": "info"}\n')
        log.write('{"event": "the disk is full", "level": "error"}\n')
    one.supervisor.write_text("INFO spawned: 'gateway-1' with pid 7\n")
    assert told.told().splitlines() == [
        "gateway-1: BACKOFF, exited too quickly",
        "supervisord.log: INFO spawned: 'gateway-1' with pid 7",
        'gateway-1.log: {"event": "the disk is full", "level": "error"}',
    ]


def test_it_stays_short_whatever_was_written(one: OneProgram) -> None:
    told = words(one)
    one.log.write_text(f"ERROR {'x' * 1_000}\n" * (MOST_BYTES // 500))
    lines = told.told().splitlines()[1:]
    assert len(lines) == SHOWN
    assert max(map(len, lines)) == len("gateway-1.log: ") + WIDTH


def test_a_log_that_was_rolled_is_read_from_its_beginning(one: OneProgram) -> None:
    one.log.write_text("ERROR of an earlier test\n" * 10)
    told = words(one)
    one.log.write_text("ERROR of this one\n")
    assert told.told().splitlines()[1:] == ["gateway-1.log: ERROR of this one"]


def test_a_stack_that_is_gone_is_no_second_failure(one: OneProgram) -> None:
    told = words(one)
    one.is_up = False
    assert "does not answer" in told.told()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"event": "gateway listens", "level": "info"}', True),
        ('{"event": "peers.changed", "level": "info"}', False),
        ('{"event": "lost", "level": "warning"}', True),
        ('{"event": "cut', True),
        ("[2026-01-01 00:00:00,000] WARN [RaftManager id=1] no node", True),
        ("[2026-01-01 00:00:00,000] INFO [RaftManager id=1] a node", False),
        ("discarding closed connection", False),
    ],
)
def test_what_begins_and_ends_and_what_is_more_than_a_note_is_told(line: str, told: bool) -> None:
    assert worth_a_look(line) is told


class Server:
    def __init__(self, words: str) -> None:
        self.words = words

    def last_words(self) -> str:
        if not self.words:
            raise OSError("its log is gone")
        return self.words


def test_a_server_of_the_test_is_asked_and_one_that_cannot_answer_is_no_second_failure() -> None:
    given = {"postgres": Server("FATAL: the disk is full"), "s3": Server(""), "tmp_path": Path()}
    assert dict(of_witnesses(given)) == {
        "postgres": "FATAL: the disk is full",
        "s3": "has nothing to say: OSError('its log is gone')",
    }


def test_the_stacks_of_a_test_are_those_it_was_given_and_those_that_what_it_was_given_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks = []
    for name in ("shared", "of a case", "of a migration"):
        (tmp_path / name).mkdir()
        stacks.append(OneProgram(tmp_path / name))
    monkeypatch.setattr("tests.last_words.Stack", OneProgram)
    shared, of_a_case, of_a_migration = stacks
    given = {
        "stack": shared,
        "again": shared,
        "held": SimpleNamespace(stack=of_a_case),
        "migration": SimpleNamespace(case=SimpleNamespace(stack=of_a_migration)),
        "number": 1,
    }
    assert [words._stack for words in LastWords.of(given)] == stacks


def test_it_says_how_busy_the_machine_is() -> None:
    told = of_the_machine()
    assert "programs want each core" in told
    assert "most CPU so far: " in told
