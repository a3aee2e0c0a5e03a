"""When the next object is put."""

from __future__ import annotations

import pytest

from tideline.domain.pace import paced


@pytest.mark.parametrize(
    ("wanted_at", "last", "at"),
    [
        (7.0, float("-inf"), 7.0),
        (7.0, 6.75, 7.0),
        (7.0, 6.0, 7.0),
        (7.0, 6.9, 7.15),
        (7.0, 7.0, 7.25),
    ],
)
def test_it_is_a_pause_behind_the_last_one_and_at_once_after_a_silence(
    wanted_at: float, last: float, at: float
) -> None:
    assert paced(wanted_at, last, 0.25) == pytest.approx(at)
