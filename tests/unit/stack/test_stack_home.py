"""A home keeps its secrets to its owner and remembers what it was."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tideline.errors import UsageError
from tideline.stack import stack as starts
from tideline.stack.credentials import load_or_create
from tideline.stack.errors import StackError
from tideline.stack.home import Home, meeting_place
from tideline.stack.ports import PortReservations


def home_at(path: Path) -> Home:
    home = Home.locate(path)
    home.create()
    return home


def test_the_environment_says_where_the_home_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELINE_HOME", str(tmp_path / "elsewhere"))
    assert Home.locate().path == tmp_path / "elsewhere"
    monkeypatch.delenv("TIDELINE_HOME")
    monkeypatch.chdir(tmp_path)
    assert Home.locate().path == tmp_path / ".tideline"


def test_a_state_is_remembered_as_it_was(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    assert home.state() is None
    state = home.new_state(brokers=1, parts=["postgres"], cluster_id="x")
    state.ports = {"postgres": 1}
    home.remember(state)
    assert home.state() == state


def test_a_damaged_state_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    home.state_file.write_text("{")
    with pytest.raises(StackError, match="Remove the directory to start afresh"):
        home.state()


def test_the_supervisors_socket_keeps_to_the_kernels_limit_in_a_deep_home(tmp_path: Path) -> None:
    home = Home(tmp_path / ("deep-" * 20))
    state = home.new_state(brokers=1, parts=[], cluster_id="x")
    assert len(state.runtime_dir) < 90


def test_credentials_are_made_once_and_are_private(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    made = load_or_create(home)
    assert load_or_create(home) == made
    assert home.credentials_file.stat().st_mode & 0o777 == 0o600
    assert made.postgres_worker not in repr(made)
    assert made.login_passwords(2).keys() == {
        "tideline_gateway_1",
        "tideline_gateway_2",
        "tideline_worker",
        "tideline_jobs",
    }
    assert len(set(made.login_passwords(2).values())) == 4


def test_a_second_start_waits_its_turn_and_then_says_for_what(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    with (
        home.locked(),
        pytest.raises(StackError, match="another start or stop"),
        home.locked(wait_s=0.2),
    ):
        pass


def test_a_path_that_would_break_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="',' has a meaning"):
        Home.locate(tmp_path / "a,b").create()
    assert not (tmp_path / "a,b").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StackError, match="Set TIDELINE_HOME"):
        Home.locate(tmp_path / "file" / "home").create()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that all users share."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_where_the_stacks_of_a_user_meet_nobody_else_gets_in(temporary: Path) -> None:
    directory = meeting_place()
    assert directory.parent == temporary
    assert directory.stat().st_mode & 0o777 == 0o700
    assert meeting_place() == directory
    assert starts._turn_file().parent == directory
    PortReservations().reserve("one", os.getpid(), [1])
    assert [path.name for path in temporary.iterdir()] == [directory.name]


def opened(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o777)


def linked(directory: Path) -> None:
    target = directory.with_name("of-another")
    target.mkdir(mode=0o700)
    directory.symlink_to(target)


@pytest.mark.parametrize("made", [opened, linked, Path.touch])
def test_what_another_user_may_have_put_there_is_refused(
    temporary: Path, made: Callable[[Path], None]
) -> None:
    """A lock file that another one holds is waited for, a file of his is written through."""
    made(temporary / f"tideline-{os.getuid()}")
    with pytest.raises(StackError, match=r"belongs to this user alone.*TMPDIR"):
        meeting_place()


def test_a_directory_of_another_user_is_refused(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = os.getuid() + 1
    (temporary / f"tideline-{another}").mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: another)
    with pytest.raises(StackError, match=r"belongs to this user alone.*TMPDIR"):
        meeting_place()
