"""A planted bug's run is made small, and told so that a person sees who was told what."""

from __future__ import annotations

from tests.history.operations import Produce
from tests.simulation.planted import BUGS
from tests.simulation.run import simulate
from tests.simulation.shrink import kinds_of, shrink
from tests.simulation.story import story


def test_a_planted_bug_shrinks_to_fewer_clients_and_faults_and_breaks_the_same_promise() -> None:
    bug = BUGS["seeds dropped"]
    runs = (simulate(seed, planted=bug.planted()) for seed in range(1, 30))
    found = next(run for run in runs if kinds_of(run) & bug.kinds and len(run.faults) > 2)
    small = shrink(found, bug.planted)
    assert kinds_of(small) & kinds_of(found) & bug.kinds
    assert len(small.faults) < len(found.faults)
    assert small.without
    assert small.ends_at is not None
    sent = next(one for v in small.violations for one in v.evidence if isinstance(one, Produce))
    assert f"{sent.producer} sends batch {sent.number} " in story(small)
    assert f"lies at offset {sent.base_offset}" in story(small)
