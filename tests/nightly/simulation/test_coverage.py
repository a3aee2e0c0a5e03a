"""A hundred schedules that no other run plays break no promise and come to what they are for:
each place that is hard to come to, and batches under way at B0 that meet a fault."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation import coverage
from tests.simulation.run import simulate
from tests.simulation.shrink import shrink
from tests.simulation.story import story

SEEDS = range(2000, 2100)
AT_LEAST = 0.5
"""Of the batches that are under way at B0, how many meet a fault."""


@pytest.mark.timeout(1200)
def test_schedules_come_to_every_place_and_to_half_of_the_batches_at_b0() -> None:
    results = [simulate(seed) for seed in SEEDS]
    reached: Counter[str] = Counter()
    for result in results:
        assert not result.violations, story(shrink(result))
        reached.update(result.reached)
    assert coverage.missing(reached) == [], coverage.summary(results)
    assert reached[coverage.AT_B0_MET] >= AT_LEAST * reached[coverage.AT_B0]
