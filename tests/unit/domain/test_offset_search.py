"""One offset out of two regions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.offset_search import (
    NOTHING,
    Candidate,
    EpochEnd,
    WrongSide,
    below,
    earliest,
    end_below,
    end_in_suffix,
    end_without_prefix,
    has_whole_prefix,
    is_of_prefix,
    latest_of_maxima,
    smallest,
)

records = st.lists(st.integers(0, 50), max_size=12)


@given(timestamps=records, boundary=st.integers(0, 12), wanted=st.integers(0, 60))
def test_the_two_region_search_finds_what_one_scan_of_the_log_finds(
    timestamps: list[int], boundary: int, wanted: int
) -> None:
    """Timestamps in any order (seed 000: "even when record timestamps are not monotonic")."""

    def scan(start: int, end: int) -> Candidate:
        for offset in range(start, min(end, len(timestamps))):
            if timestamps[offset] >= wanted:
                return Candidate(offset, timestamps[offset])
        return NOTHING

    # Kafka may hold a late append at B0 and beyond: it searches its whole log.
    kafka = scan(0, len(timestamps))
    found = smallest(kafka, scan(boundary, len(timestamps)), boundary)
    assert found == scan(0, len(timestamps))


def test_a_late_append_in_kafka_does_not_answer_a_search() -> None:
    """Schedule 2: what Kafka has at B0 is not what the suffix has there."""
    assert smallest(Candidate(100, 5), Candidate(103, 7), 100) == Candidate(103, 7)
    assert below(Candidate(100), 100) is NOTHING


def test_a_suffix_that_answers_below_the_boundary_is_not_believed() -> None:
    with pytest.raises(WrongSide, match="99, below B0 100"):
        smallest(NOTHING, Candidate(99), 100)


def test_the_largest_timestamp_of_both_regions_wins_and_the_first_of_equals() -> None:
    prefix, suffix = Candidate(10, 500), Candidate(110, 500)
    assert latest_of_maxima(prefix, suffix, 100) is prefix
    assert latest_of_maxima(prefix, Candidate(110, 501), 100).offset == 110
    assert latest_of_maxima(NOTHING, suffix, 100) is suffix


def test_the_log_starts_in_kafka_until_its_prefix_is_gone() -> None:
    assert earliest(40, 100, 100) == 40
    assert earliest(100, 100, 100) == 100
    assert earliest(100, 130, 100) == 130
    assert earliest(None, 0, 0) == 0


def test_epochs_from_the_boundarys_on_end_at_the_high_watermark() -> None:
    """Schedule 8: also an epoch that Kafka came to after the migration."""
    assert end_in_suffix(7, 7, 250) == EpochEnd(7, 250)
    assert end_in_suffix(9, 7, 250) == EpochEnd(7, 250)
    assert end_in_suffix(6, 7, 250) is None


def test_epochs_that_went_with_the_prefix_end_at_the_boundary() -> None:
    assert end_without_prefix(7, 7, 100, 250) == EpochEnd(7, 250)
    assert end_without_prefix(6, 7, 100, 250) == EpochEnd(6, 100)
    assert end_without_prefix(-1, 7, 100, 250) == EpochEnd(-1, -1)
    assert end_without_prefix(0, 0, 0, 250) == EpochEnd(0, 250)


def test_older_epochs_end_at_most_at_the_boundary() -> None:
    assert end_below(120, 100, 100) == 100
    assert end_below(80, 100, 100) == 80
    assert end_below(-1, 100, 100) == -1


def test_an_epoch_that_ends_at_an_accepted_gap_ends_at_the_boundary() -> None:
    assert end_below(80, 80, 100) == 100
    assert end_below(79, 80, 100) == 79


def test_a_replica_whose_boundary_epoch_ends_too_early_has_lost_the_end_of_the_prefix() -> None:
    assert has_whole_prefix(100, 100)
    assert has_whole_prefix(130, 100)
    assert not has_whole_prefix(99, 100)
    assert not has_whole_prefix(-1, 100)


def test_a_record_found_below_the_boundary_is_of_the_prefix_if_its_epoch_says_so() -> None:
    assert is_of_prefix(Candidate(42, 600, 7), 100, 7)
    assert is_of_prefix(Candidate(99, 600, 3), 100, 7)
    assert not is_of_prefix(Candidate(95, 600, 8), 100, 7), "appended past the gateways"
    assert not is_of_prefix(Candidate(95, 600), 100, 7), "it has none"
    assert not is_of_prefix(Candidate(100, 600, 7), 100, 7)
    assert not is_of_prefix(NOTHING, 100, 7)
