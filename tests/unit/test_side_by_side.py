"""Which process of a run takes which file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.side_by_side import LONG, WORTH_A_STACK, next_file

FILES = [
    "tests/unit/test_a.py",
    "tests/model/test_b.py",
    "tests/nightly/airflow/test_c.py",
    "tests/integration/test_d.py",
    "tests/fault/test_e.py",
]


def test_the_last_of_three_needs_no_stack_and_the_others_take_what_does_from_both_ends() -> None:
    assert [next_file(FILES, process, 3) for process in range(3)] == [
        "tests/nightly/airflow/test_c.py",
        "tests/fault/test_e.py",
        "tests/unit/test_a.py",
    ]
    assert next_file(FILES[:-1], 1, 3) == "tests/integration/test_d.py"
    assert next_file(FILES[:2], 0, 3) == "tests/unit/test_a.py"
    assert next_file(FILES[2:], 2, 3) is None


def test_what_takes_minutes_is_begun_first() -> None:
    files = ["tests/nightly/airflow/test_a.py", *reversed(LONG), "tests/fault/test_b.py"]
    assert [next_file(files, process, 3) for process in (0, 1)] == [LONG[1], files[-1]]
    assert next_file([files[0], LONG[1]], 0, 3) == LONG[1]
    assert all(Path(file).is_file() for file in LONG)


def test_the_last_starts_a_stack_where_enough_is_left_for_one_and_has_it_then() -> None:
    many = [f"tests/fault/test_{n}.py" for n in range(WORTH_A_STACK)]
    assert next_file([*many, *FILES[:2]], 2, 3) == FILES[0]
    assert next_file(many, 2, 3) == many[0]
    assert next_file(many[1:], 2, 3) is None
    assert next_file(many[-1:], 2, 3, has_a_stack=True) == many[-1]


def test_one_that_takes_the_place_of_a_process_that_died_may_start_a_stack() -> None:
    assert next_file(FILES, 3, 3) == "tests/nightly/airflow/test_c.py"


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_each_file_is_taken_whoever_asks_when(processes: int, seed: int) -> None:
    chance, left = random.Random(seed), list(FILES)
    asking = list(range(processes))
    while asking:
        one = chance.choice(asking)
        file = next_file(left, one, processes)
        if file is None:
            asking.remove(one)
        else:
            left.remove(file)
    assert left == []
