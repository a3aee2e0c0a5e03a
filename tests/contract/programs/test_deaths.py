"""A test hears of what it has started and what died, instead of waiting for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from tests import deaths
from tests.clients.driving import Program, Told
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def told_here_only() -> Iterator[None]:
    yield
    deaths.forget()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_wait_ends_with_the_error_of_a_thread_that_died() -> None:
    def die() -> None:
        raise ValueError("no such partition")

    thread = threading.Thread(target=die, name="reader")
    thread.start()
    with pytest.raises(AssertionError, match=r"(?s)thread reader ended.*no such partition"):
        until("a record", lambda: None)
    thread.join()


def test_a_wait_ends_with_the_last_words_of_a_program_that_died() -> None:
    dying = Program([sys.executable, "-c", "raise SystemExit('the broker is away')"], Told())
    with pytest.raises(AssertionError, match="the broker is away"):
        until("a record", lambda: None)
    dying.stop()


def test_a_wait_ends_with_the_error_of_a_client_that_died_in_a_program_that_lives() -> None:
    line = '{"client": "reader", "event": "ended", "value": "IllegalState", "offset": -1}'
    living = Program([sys.executable, "-c", f"print({line!r}, flush=True); input()"], Told())
    with pytest.raises(AssertionError, match="client reader ended by an error: IllegalState"):
        until("a record", lambda: None)
    living.stop()


def test_a_program_that_is_stopped_has_not_died() -> None:
    living = Program([sys.executable, "-c", "import sys; sys.stdin.read()"], Told())
    living.stop()
    deaths.check()
