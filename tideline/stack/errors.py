"""What goes wrong with the embedded stack, in words for a person."""

from __future__ import annotations

from tideline.errors import ExitCode, TidelineError


class StackError(TidelineError):
    """A part of the stack could not be started, stopped or prepared."""


class StackNotRunningError(TidelineError):
    """The command needs a running stack and this home has none."""

    exit_code = ExitCode.UNREACHABLE


class NotReadyError(Exception):
    """A part does not answer yet; the message says what is awaited."""
