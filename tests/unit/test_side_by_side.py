"""Which process of a run takes which file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.side_by_side import LONG, WITH_A_STACK, next_file

FILES = [
    "tests/unit/test_a.py",
    "tests/model/test_b.py",
    "tests/nightly/airflow/test_c.py",
    "tests/integration/test_d.py",
    "tests/nightly/faults/test_e.py",
]


def test_who_may_have_a_stack_takes_what_needs_one_from_both_ends_and_nobody_else_does() -> None:
    assert [next_file(FILES, process, 3, 2) for process in range(3)] == [
        "tests/nightly/airflow/test_c.py",
        "tests/nightly/faults/test_e.py",
        "tests/unit/test_a.py",
    ]
    assert next_file(FILES[:-1], 1, 3, 2) == "tests/integration/test_d.py"
    assert next_file(FILES[:2], 0, 3, 2) == "tests/unit/test_a.py"
    assert next_file(FILES[2:], 2, 3, 2) is None


def test_with_one_stack_one_process_takes_all_that_needs_one() -> None:
    assert next_file(FILES, 0, 3, 1) == "tests/nightly/airflow/test_c.py"
    assert next_file(FILES, 1, 3, 1) == "tests/unit/test_a.py"
    assert next_file(FILES[2:], 1, 3, 1) is None


def test_what_takes_minutes_is_begun_first() -> None:
    files = ["tests/nightly/faults/test_a.py", *reversed(LONG), "tests/nightly/faults/test_b.py"]
    assert [next_file(files, process, 3, 2) for process in (0, 1)] == [LONG[-1], files[-1]]
    assert next_file([files[0], LONG[-1]], 0, 3, 2) == LONG[-1]


def test_what_the_rule_names_is_there() -> None:
    assert all(Path(file).is_file() for file in LONG)
    assert all(any(Path(folder).glob("test_*.py")) for folder in WITH_A_STACK)


def test_one_that_takes_the_place_of_a_process_that_died_starts_a_stack_at_last() -> None:
    assert next_file(FILES, 3, 3, 1) == "tests/unit/test_a.py"
    assert next_file(FILES[2:], 3, 3, 1) == "tests/nightly/airflow/test_c.py"


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("stacks", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_each_file_is_taken_whoever_asks_when(processes: int, stacks: int, seed: int) -> None:
    chance, left = random.Random(seed), list(FILES)
    asking = list(range(processes))
    while asking:
        one = chance.choice(asking)
        file = next_file(left, one, processes, stacks)
        if file is None:
            asking.remove(one)
        else:
            left.remove(file)
    assert left == []
