"""The topic is deleted and created again under its name while clients go on: what they were told
of either topic holds."""

from __future__ import annotations

import pytest

from tests.history.operations import Outcome, Produce
from tests.simulation.recreation import RECREATION, plan_of
from tests.simulation.run import Result, simulate
from tests.simulation.shrink import shrink
from tests.simulation.story import story

STRANDED = 36
"""Deleted while its gateways were to acknowledge that they track it: the migration of the dead
topic waited for them for ever, and would have activated another topic of the name."""


def _told(result: Result) -> set[str]:
    """The topics of which anything was acknowledged."""
    return {
        operation.partition.topic
        for operation in result.operations
        if isinstance(operation, Produce) and operation.outcome is Outcome.ACKNOWLEDGED
    }


@pytest.mark.parametrize("seed", [*range(1, 7), STRANDED])
def test_what_was_told_of_either_topic_holds(seed: int) -> None:
    result = simulate(seed, family=RECREATION)
    assert not result.violations, story(shrink(result))


def test_both_topics_are_written_to() -> None:
    result = simulate(2, faults=[], family=RECREATION)
    assert not result.violations, result.text()
    assert len(_told(result)) == 2


def test_seeds_choose_different_ways_of_creating_it_again() -> None:
    plans = [plan_of(seed) for seed in range(50)]
    assert len({(plan.after, plan.born_diskless, plan.migrated) for plan in plans}) > 12
    assert {(plan.version, plan.by_id) for plan in plans} == {(5, False), (6, False), (6, True)}
