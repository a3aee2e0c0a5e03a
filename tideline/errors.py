"""Errors a person meets, and the exit codes of every command.

An error message names the value, the rule that it breaks and the remedy.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Documented in docs/cli.md."""

    OK = 0
    FAILED = 1
    """The job was done and its outcome is bad: a failed check, a failed migration."""
    USAGE = 2
    """The command line or the settings are wrong; nothing was attempted."""
    UNREACHABLE = 3
    """A part that the command needs did not answer."""
    REFUSED = 4
    """A rule forbids what was asked: preflight failed, abort after B0, unknown topic."""
    TIMED_OUT = 5
    """The wait ended first; what was started goes on."""


class TidelineError(Exception):
    """Base of errors that are shown to a person without a traceback."""

    exit_code: ExitCode = ExitCode.FAILED
    is_outage: bool = False
    """See :func:`is_outage`."""


class UsageError(TidelineError):
    """The input is wrong. Nothing was changed."""

    exit_code = ExitCode.USAGE


class UnreachableError(TidelineError):
    """A part could not be reached. Trying again may help."""

    exit_code = ExitCode.UNREACHABLE
    is_outage = True


class RefusedError(TidelineError):
    """A rule forbids it. Trying again does not help until something else changes."""

    exit_code = ExitCode.REFUSED


class FencedError(RefusedError):
    """A newer generation, leader epoch or incarnation exists: the caller is out of date."""


def is_outage(error: BaseException | None) -> bool:
    """Whether nobody answered: a connection that was lost, a timeout, a server that starts, stops
    or has no connection left. Everything else is an answer: who is refused does not go on by what
    it knew before, and trying again does not help by itself."""
    return isinstance(error, TidelineError) and error.is_outage
