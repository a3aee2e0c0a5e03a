"""Several processes take seeds in turn."""

from __future__ import annotations

import os
import time

import pytest

from tests.simulation.jobs import Died, in_order


def _the_first_is_slow(seed: int) -> int:
    time.sleep(0.2 if seed == 1 else 0.0)
    return seed


def _the_second_dies(seed: int) -> int:
    if seed == 2:
        os._exit(1)
    return _the_first_is_slow(seed)


def test_the_lowest_seed_is_told_first_although_higher_ones_ended_before() -> None:
    assert list(in_order(_the_first_is_slow, range(1, 8), 3)) == [*range(1, 8)]


def test_a_process_that_dies_is_an_error_that_names_its_seed_in_its_turn() -> None:
    runs = in_order(_the_second_dies, range(1, 8), 2)
    assert next(runs) == 1
    with pytest.raises(Died, match=r"seed 2: its process died, 1$"):
        next(runs)


def test_processes_end_when_nobody_asks_any_more() -> None:
    runs = in_order(lambda _: os.getpid(), range(1, 8), 2)
    process = next(runs)
    runs.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
