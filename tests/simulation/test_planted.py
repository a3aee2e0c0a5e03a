"""Bugs that are planted are found, by what they do to clients."""

from __future__ import annotations

import pytest

from tests.simulation.planted import BUGS, FOUND_BY
from tests.simulation.recreation import RECREATION
from tests.simulation.run import MIGRATION, simulate
from tests.simulation.shrink import kinds_of


@pytest.mark.parametrize("name", sorted(FOUND_BY))
def test_a_recorded_seed_finds_the_planted_bug(name: str) -> None:
    bug = BUGS[name]
    family = RECREATION if bug.recreation else MIGRATION
    found = simulate(FOUND_BY[name], planted=bug.planted(), family=family)
    assert kinds_of(found) & bug.kinds, found.text()
