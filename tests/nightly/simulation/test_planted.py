"""The planted bugs whose seeds `make test` does not play."""

from __future__ import annotations

import pytest

from tests.simulation.planted import BUGS
from tests.simulation.power import seen
from tests.simulation.test_planted import FOUND, SHARE


@pytest.mark.parametrize("name", sorted(FOUND.keys() - set(SHARE)))
def test_a_recorded_seed_finds_the_planted_bug(name: str) -> None:
    assert seen(BUGS[name], FOUND[name].seed), "look for it anew: make simulate-power"
