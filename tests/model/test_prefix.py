"""I3: a replica that does not lead gives nobody a wrong prefix, whatever tieringComplete says."""

from __future__ import annotations

import pytest

from tests.model.prefix import FLAG, PROTECTIONS, explore


def test_no_replica_gives_foreign_records_an_early_end_or_a_wrong_out_of_range() -> None:
    """Without the flag: no gateway reads it."""
    found = explore(PROTECTIONS)
    print(f"{found.states} states, {found.transitions} transitions")
    assert found.wrong == "", found.steps
    assert found.states > 500


@pytest.mark.parametrize(
    ("protection", "wrong"),
    [("empty is no end", "the log ends"), ("out of range below the start", "out of range")],
)
def test_each_rule_of_the_gateway_is_needed(protection: str, wrong: str) -> None:
    assert wrong in explore(PROTECTIONS - {protection}).wrong


def test_the_flag_alone_does_not_keep_what_it_is_for() -> None:
    """Copying is complete, and a replica that has lost its disk says that the log ends at once."""
    found = explore(frozenset({FLAG}))
    assert "the log ends" in found.wrong
    assert explore(PROTECTIONS | {FLAG}).wrong == ""
