"""A segment is whole when each of its objects has the size that was recorded."""

from __future__ import annotations

import pytest

from tideline.domain.segment_objects import what_is_not_whole


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({".log": 300, ".index": 8, ".snapshot": 6}, ""),
        ({".log": 300, ".index": 8, ".snapshot": 5}, ""),
        ({".log": 0, ".index": 8, ".snapshot": 6}, ".log has 0 bytes, not 300"),
        ({".log": 301, ".index": 8, ".snapshot": 6}, ".log has 301 bytes, not 300"),
        ({".index": 4}, ".log is missing, .index has 4 bytes, not 8, .snapshot is missing"),
    ],
    ids=["whole", "no size was recorded", "cut", "longer", "missing"],
)
def test_what_is_missing_or_of_another_size_is_named(found: dict[str, int], said: str) -> None:
    assert what_is_not_whole({".log": 300, ".index": 8, ".snapshot": None}, found) == said
