"""Commands that own a stack end in order."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.{hangups})
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
from tideline.stack.signals import end_as_by_ctrl_c
end_as_by_ctrl_c()
try:
    print("up", flush=True)
    time.sleep({at_most})
    print("slept", flush=True)
finally:
    print("down", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_command_that_is_asked_to_end_takes_down_what_it_has_brought_up(
    number: signal.Signals,
) -> None:
    with _program(hangups="SIG_DFL", at_most=60) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        program.send_signal(number)
        assert program.stdout.read() == "down\n"


def test_a_command_under_nohup_outlives_its_terminal() -> None:
    with _program(hangups="SIG_IGN", at_most=0.2) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        program.send_signal(signal.SIGHUP)
        assert program.stdout.read() == "slept\ndown\n"


def _program(hangups: str, at_most: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(hangups=hangups, at_most=at_most)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
