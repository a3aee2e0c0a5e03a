"""Which attached standbys a commit may be acknowledged without."""

from __future__ import annotations

import pytest

from tideline.control_plane.model import CommitDurability, Standby


def durability(names: str, *states: str | None) -> CommitDurability:
    standbys = tuple(Standby(f"s{number}", state) for number, state in enumerate(states, 1))
    return CommitDurability(True, "", {"synchronous_standby_names": names}, standbys)


@pytest.mark.parametrize(
    ("names", "states", "left_out"),
    [
        ("", ("async", "async"), ["s1", "s2"]),
        ("FIRST 1 (s1)", ("sync",), []),
        ("FIRST 1 (s1)", ("sync", "async"), ["s2"]),
        ("s1, s2", ("sync", "potential"), ["s2"]),
        ("FIRST 2 (s1, s2)", ("sync", "sync"), []),
        ("ANY 1 (*)", ("quorum",), []),
        ("ANY 1 (*)", ("quorum", "quorum"), ["s1", "s2"]),
        ("any 2 (s1, s2)", ("quorum", "quorum"), []),
        ("ANY 2 (s1, s2)", ("quorum", "quorum", "async"), ["s3"]),
    ],
)
def test_standbys_that_are_not_waited_for_are_named(
    names: str, states: tuple[str, ...], left_out: list[str]
) -> None:
    found = durability(names, *states)
    assert found.not_waited_for == left_out
    assert found.waits_for_standby == (bool(names) and not left_out)


def test_what_nobody_may_see_is_no_standby_that_is_waited_for() -> None:
    found = durability("FIRST 1 (s1)", None)
    assert not found.waits_for_standby
    assert "pg_read_all_stats" in found.not_waited_for[0]
