"""What an operator may ask of a migration."""

from __future__ import annotations

import json

import pytest

from tideline.domain.messages import Update
from tideline.domain.operator_choices import UPDATES, Decider, GapRequest

ADA = Decider("ada", "the disk of broker 2 is lost")


@pytest.mark.parametrize(
    ("partition", "first", "end", "why"),
    [
        (0, 90, 120, None),
        (0, 0, 1, None),
        (1, 90, 10_000, None),
        (2, 0, 1, "partition 2: the migration has 2"),
        (-1, 0, 1, "partition -1: the migration has 2"),
        (0, 90, 121, "0 <= first < end <= B0, which is 120"),
        (0, 90, 90, "first 90, end 90"),
        (1, -1, 90, "first -1, end 90"),
    ],
)
def test_a_gap_lies_in_a_partition_of_the_topic_and_below_its_b0(
    partition: int, first: int, end: int, why: str | None
) -> None:
    """B0 of partition 0 is 120, that of partition 1 not known yet."""
    found = GapRequest(partition, first, end, ADA).problem([120, -1])
    assert found is None if why is None else why in str(found)


def test_each_update_has_a_shape_that_reads_its_own_example() -> None:
    assert UPDATES.keys() == set(Update)
    for shape in UPDATES.values():
        assert shape.read(json.loads(shape.example)).__class__ is shape.type
