"""One seed is one history, in whichever process and at whichever hour it runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.jobs import in_order
from tests.simulation.run import simulate
from tests.simulation.schedules import schedule

SEEDS = (1, 2, 6)
PRINT = f"""
from tests.simulation.run import simulate
print(*(simulate(seed).digest for seed in {SEEDS}))
"""


def _elsewhere(hash_seed: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PRINT],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.split()


def _digest(seed: int) -> str:
    return simulate(seed).digest


@pytest.fixture(scope="module")
def here() -> list[str]:
    """In this process, where many other runs came before."""
    return [_digest(seed) for seed in SEEDS]


def test_a_seed_gives_the_same_history_in_processes_with_other_hashes(here: list[str]) -> None:
    mine = os.environ.get("PYTHONHASHSEED", "random")
    assert _elsewhere("2" if mine == "1" else "1") == here


def test_a_seed_gives_the_same_history_whichever_of_several_processes_has_it(
    here: list[str],
) -> None:
    assert list(in_order(_digest, reversed(SEEDS), 2)) == here[::-1]


def test_seeds_choose_different_schedules() -> None:
    assert len({str(schedule(seed)) for seed in range(50)}) > 40


def test_a_migration_without_faults_crosses_and_breaks_nothing() -> None:
    result = simulate(0, faults=[])
    assert result.crossed
    assert result.violations == [], result.text()
