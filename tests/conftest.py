"""One embedded stack per process of a run, for the tests that need real brokers and stores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tideline.domain.places import SETTING as PLACES
from tideline.stack import ALL_PARTS, Stack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long one example takes says how busy the machine is, and nothing else.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

HOME_VARIABLE = "TIDELINE_TEST_HOME"
"""Names the home of a stack to reuse and leave running, for quick turns while developing."""

PARTS_VARIABLE = "TIDELINE_TEST_PARTS"
"""Comma-separated kinds of parts to start; all of them by default."""

HOMES_VARIABLE = "TIDELINE_TEST_HOMES"
"""Tells the processes of a run where the homes of their stacks go; set by the first of them."""


SHARED = {PLACES: "50"}
"""Tests that share a stack do not wait for each other's topics."""


def is_one_of_several(config: pytest.Config) -> bool:
    """Whether this process was started by another one of the same run."""
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    if not is_one_of_several(config):
        homes = tempfile.mkdtemp(prefix="tideline-test-")
        Path(homes).chmod(0o755)
        os.environ[HOMES_VARIABLE] = homes


def pytest_unconfigure(config: pytest.Config) -> None:
    """A process that was interrupted may not have taken its stack down."""
    if not is_one_of_several(config):
        homes = Path(os.environ.pop(HOMES_VARIABLE))
        for home in homes.iterdir():
            Stack.take_down(home)
            print(f"The files of a stack are kept in {home}")
        with suppress(OSError):  # not empty
            homes.rmdir()


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Three brokers, their stores, gateways and worker; taken down after the last test."""
    parts = tuple(filter(None, os.environ.get(PARTS_VARIABLE, "").split(","))) or ALL_PARTS
    process = os.environ.get("PYTEST_XDIST_WORKER", "one")
    if reused := os.environ.get(HOME_VARIABLE):
        yield Stack.up(reused, parts=parts)
        return
    home = Path(os.environ[HOMES_VARIABLE]) / process
    home.mkdir(mode=0o755)
    try:
        yield Stack.up(home, brokers=3, parts=parts, settings=SHARED)
    finally:
        if request.session.testsfailed:
            Stack.take_down(home)
        else:
            Stack.purge(home)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session in this process for the whole run; two cores, on loopback."""
    from spark.common.session import make_session

    session = make_session(
        "tideline-tests",
        "local[2]",
        {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"},
    )
    try:
        yield session
    finally:
        session.stop()
