"""Every refusal of the SQL has its class, and every other failure is named for what it is."""

from __future__ import annotations

import re

import psycopg
import pytest
from psycopg import errors
from psycopg_pool import PoolTimeout

from tideline import __version__
from tideline.control_plane.errors import (
    ERRORS,
    ControlPlaneFailure,
    ControlPlaneUnavailable,
    OtherSchema,
    translate,
)
from tideline.control_plane.migrate import schema_directory
from tideline.errors import ExitCode

SOURCES = sorted((schema_directory() / "functions").glob("*.sql"))


def test_every_sqlstate_of_the_functions_has_a_class_and_the_reverse() -> None:
    raised = {code for path in SOURCES for code in re.findall(r"'(TL\d{3})'", path.read_text())}
    assert raised == set(ERRORS)


def test_every_class_says_what_it_means() -> None:
    assert all(kind.__doc__ for kind in ERRORS.values())
    assert len(set(ERRORS.values())) == len(ERRORS)


@pytest.mark.parametrize(
    "error",
    [
        psycopg.OperationalError("server closed the connection unexpectedly"),
        PoolTimeout("couldn't get a connection after 3.00 sec"),
        errors.lookup("57014")("canceling statement due to statement timeout"),
        errors.lookup("57P01")("terminating connection"),
        errors.lookup("40P01")("deadlock detected"),
        errors.lookup("25006")("cannot execute UPDATE in a read-only transaction"),
        TimeoutError(),
        ConnectionResetError("reset"),
    ],
)
def test_what_may_pass_is_unavailable(error: Exception) -> None:
    typed = translate(error)
    assert isinstance(typed, ControlPlaneUnavailable)
    assert typed.exit_code is ExitCode.UNREACHABLE


@pytest.mark.parametrize("state", ["42501", "42883", "23505"])
def test_what_does_not_pass_is_a_failure(state: str) -> None:
    typed = translate(errors.lookup(state)("no"))
    assert isinstance(typed, ControlPlaneFailure)
    assert state in str(typed)


def test_a_function_of_another_version_names_both_and_the_way_out() -> None:
    """A worker beside a schema that was upgraded: the waiting reason says what to do."""
    missing = "function tideline.begin_migration(unknown, uuid) does not exist\nLINE 1: SELECT"
    typed = translate(errors.lookup("42883")(missing))
    assert isinstance(typed, OtherSchema)
    for part in (f"tideline {__version__}", "begin_migration", "docs/install.md"):
        assert part in str(typed)
    assert "LINE 1" not in str(typed)
