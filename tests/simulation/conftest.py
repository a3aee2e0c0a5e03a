"""A run of the simulation leaves nothing behind in the process that other tests would meet."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Levels of logging, clocks and chance are those from before the test."""
    chance, levels = random.getstate(), logging.getLogger().level
    clocks = (time.monotonic, time.time, time.clock_gettime, os.urandom, os.fsync)
    yield
    assert (time.monotonic, time.time, time.clock_gettime, os.urandom, os.fsync) == clocks
    assert logging.getLogger().level == levels
    random.setstate(chance)
