"""Seeds that no other run of the tests plays: nothing that was promised is broken."""

from __future__ import annotations

import pytest

from tests.simulation.run import simulate
from tests.simulation.shrink import shrink
from tests.simulation.story import story


@pytest.mark.parametrize("seed", range(1000, 1050))
def test_no_schedule_breaks_a_promise(seed: int) -> None:
    result = simulate(seed)
    assert not result.violations, story(shrink(result))
