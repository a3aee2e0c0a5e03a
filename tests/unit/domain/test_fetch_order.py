"""The partitions of a Fetch share its bytes in the order of the request (KIP-74)."""

from __future__ import annotations

import pytest

from tideline.domain.fetch_order import FetchBytes


@pytest.mark.parametrize(
    ("max_bytes", "wanted", "served"),
    [
        (100, [(10, 60), (10, 60), (10, 60)], [60, 40, 0]),
        (100, [(10, 0), (70, 70), (40, 40), (30, 30)], [0, 70, 0, 30]),
        (100, [(300, 900), (10, 20)], [300, 0]),
        (100, [(50, 50), (300, 900), (10, 20)], [50, 0, 20]),
        (0, [(10, 10), (10, 10)], [10, 0]),
        (-1, [(0, 0), (10, 20), (10, 20)], [0, 10, 0]),
    ],
)
def test_each_gets_what_is_left_and_the_first_with_records_a_batch_in_any_case(
    max_bytes: int, wanted: list[tuple[int, int]], served: list[int]
) -> None:
    """``wanted``: bytes of the first batch, and of all; 0: no records."""
    budget, got = FetchBytes(max_bytes), []
    for first, size in wanted:
        got.append(min(size, budget.most(first)) if size else 0)
        budget.serve(got[-1])
    assert got == served
