"""The suffix as a pure model: no gap, no answer below B0, at least one batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.producer_state import Verdict
from tideline.domain.suffix_log import Produced, SuffixLog


def filled(*timestamps: int) -> SuffixLog:
    log = SuffixLog(10)
    for timestamp in timestamps:
        log.append(Produced(5, 100, timestamp), 1_000)
    return log


def test_offsets_begin_at_b0_and_have_no_gap() -> None:
    log = filled(1, 2, 3)
    assert [(b.base_offset, b.last_offset) for b in log.batches] == [(10, 14), (15, 19), (20, 24)]
    assert log.high_watermark == 25


def test_a_refused_batch_takes_no_offset() -> None:
    log = SuffixLog(10)
    log.append(Produced(1, 100, 1, 7, 0, 0, 0), 1_000)
    refused = log.append(Produced(1, 100, 1, 7, 0, 5, 5), 1_001)
    again = log.append(Produced(1, 100, 1, 7, 0, 0, 0), 1_002)
    assert (refused.verdict, refused.base_offset) == (Verdict.OUT_OF_ORDER_SEQUENCE, -1)
    assert (again.verdict, again.base_offset, again.append_time) == (Verdict.DUPLICATE, 10, 1_000)
    assert log.high_watermark == 11


@pytest.mark.parametrize(
    ("offset", "max_bytes", "error", "bases"),
    [
        (9, 1_000, "BELOW_BOUNDARY", []),
        (10, 0, "NONE", [10]),
        (12, 200, "NONE", [10, 15]),
        (25, 1_000, "NONE", []),
        (26, 1_000, "OFFSET_OUT_OF_RANGE", []),
    ],
)
def test_a_read(offset: int, max_bytes: int, error: str, bases: list[int]) -> None:
    found = filled(1, 2, 3).find(offset, max_bytes)
    assert (found[0], [b.base_offset for b in found[1]]) == (error, bases)


def test_a_start_past_a_batch_hides_it_from_reads_and_lookups() -> None:
    log = filled(100, 900, 200)
    assert log.delete_records(20) == 20
    assert log.delete_records(12) == 20
    assert log.find(19, 100)[0] == "OFFSET_OUT_OF_RANGE"
    largest, first = log.of_max_timestamp(), log.at_timestamp(150)
    assert largest == first == log.batches[2]
    with pytest.raises(ValueError, match="high watermark"):
        log.delete_records(26)


@given(timestamps=st.lists(st.integers(0, 20), max_size=8), wanted=st.integers(0, 21))
def test_a_lookup_finds_the_first_batch_at_or_after_the_time(
    timestamps: list[int], wanted: int
) -> None:
    found = filled(*timestamps).at_timestamp(wanted)
    expected = next((n for n, t in enumerate(timestamps) if t >= wanted), None)
    assert (found.base_offset if found else None) == (
        None if expected is None else 10 + 5 * expected
    )
