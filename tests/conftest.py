"""One embedded stack per run, for the tests that need real brokers and stores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tideline.stack import ALL_PARTS, Stack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME_VARIABLE = "TIDELINE_TEST_HOME"
"""Names the home of a stack to reuse and leave running, for quick turns while developing."""

PARTS_VARIABLE = "TIDELINE_TEST_PARTS"
"""Comma-separated kinds of parts to start; all of them by default."""


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Three brokers, their stores, gateways and worker; taken down after the last test."""
    parts = tuple(filter(None, os.environ.get(PARTS_VARIABLE, "").split(","))) or ALL_PARTS
    if reused := os.environ.get(HOME_VARIABLE):
        yield Stack.up(reused, parts=parts)
        return
    home = Path(tempfile.mkdtemp(prefix="tideline-test-"))
    home.chmod(0o755)
    try:
        yield Stack.up(home, brokers=3, parts=parts)
    finally:
        if request.session.testsfailed:
            Stack.take_down(home)
            print(f"\nThe stack's files are kept in {home}")
        else:
            Stack.purge(home)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session in this process for the whole run; two cores, on loopback."""
    from spark.session import make_session

    session = make_session(
        "tideline-tests",
        "local[2]",
        {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"},
    )
    try:
        yield session
    finally:
        session.stop()
