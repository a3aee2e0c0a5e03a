"""What an operator may ask of a migration."""

from __future__ import annotations

import pytest

from tideline.domain.operator_choices import Decider, GapRequest

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


def test_who_gives_up_a_gap_says_who_and_why() -> None:
    assert GapRequest(0, 0, 1, Decider("", "")).problem([120]) is not None
