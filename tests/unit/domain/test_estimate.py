"""What a migration will take, from what was observed, or from what is documented."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.estimate import (
    DOCUMENTED,
    ENOUGH,
    BrokerIntervals,
    InForce,
    MigrationEstimate,
    Range,
    Source,
    Span,
    StepDuration,
    TopicScale,
    estimate,
)
from tideline.domain.migration import Phase
from tideline.domain.options import Durability, MigrationOptions

SCALE = TopicScale(partitions=12, replicas=3, brokers=3, gateways=3, segments=120)
OPTIONS = MigrationOptions()
OBSERVED = (
    StepDuration(Span.CROSSING, 40, 2.0, 5.0),
    StepDuration(Span.WRITE_PAUSE, 40, 0.1, 0.3),
    StepDuration(Phase.ZOMBIE_CLEANUP, 40, 0.1, 9.0),
    StepDuration(Span.TIERING, 1, 70.0, 70.0),
)


def sources(found: MigrationEstimate) -> dict[str, Source]:
    return {basis.step: basis.source for basis in found.based_on}


def seconds(found: Range | None) -> tuple[float, float]:
    assert found is not None
    return found.p50, found.p90


def test_twelve_partitions_four_at_once_take_three_times_what_one_takes() -> None:
    found = estimate(SCALE, OPTIONS, InForce(), OBSERVED)
    assert found.at_once == 4
    # A place is taken until the first try at the cleanup is over: half a second at most.
    assert seconds(found.to_boundaries_s) == (6.3, 16.5)
    assert seconds(found.to_ready_s) == (76.3, 86.5)
    assert found.write_pause_ms == Range(100, 300)


def test_what_is_observed_counts_and_what_is_not_is_said_to_be_documented() -> None:
    assert set(sources(estimate(SCALE, OPTIONS, InForce())).values()) == {Source.DOCUMENTED}
    found = sources(estimate(SCALE, OPTIONS, InForce(), OBSERVED))
    assert found[Span.CROSSING] is Source.OBSERVED
    assert found[Span.TIERING] is Source.OBSERVED
    assert found[Phase.QUIESCE] is Source.DOCUMENTED


def test_a_few_partitions_are_no_median() -> None:
    few = [StepDuration(Span.CROSSING, ENOUGH - 1, 100.0, 100.0)]
    found = estimate(SCALE, OPTIONS, InForce(), few)
    assert sources(found)[Span.CROSSING] is Source.DOCUMENTED
    assert found == estimate(SCALE, OPTIONS, InForce())


def test_write_pauses_follow_one_another_however_many_partitions_cross() -> None:
    slow = [StepDuration(Span.CROSSING, 40, 4.0, 4.0), StepDuration(Span.WRITE_PAUSE, 40, 2.0, 2.0)]
    wide = replace(OPTIONS, parallel_partitions=12)
    assert seconds(estimate(SCALE, wide, InForce(), slow).to_boundaries_s) == (24.0, 24.0)
    two_workers = InForce(write_pauses=2)
    assert seconds(estimate(SCALE, wide, two_workers, slow).to_boundaries_s) == (12.0, 12.0)


def test_operators_limits_are_shared_with_the_topics_that_migrate_now() -> None:
    assert estimate(SCALE, OPTIONS, InForce(partitions=3)).at_once == 3
    assert estimate(SCALE, OPTIONS, InForce(partitions=3, topics=5, others=2)).at_once == 1


@pytest.mark.parametrize("limits", [InForce(partitions=0), InForce(topics=0)])
def test_under_a_limit_of_zero_it_never_ends_and_says_why(limits: InForce) -> None:
    found = estimate(SCALE, OPTIONS, limits)
    assert (found.to_boundaries_s, found.to_ready_s) == (None, None)
    assert any("tideline limits" in why for why in found.left_out)


def test_a_topic_whose_share_is_taken_up_by_others_gets_one_when_one_of_them_has_crossed() -> None:
    found = estimate(SCALE, OPTIONS, InForce(partitions=4, topics=9, others=4))
    assert found.at_once == 1
    assert found.to_boundaries_s is not None
    assert any("a share of 4 partitions: 4 topics cross" in why for why in found.left_out)


def test_no_more_topics_share_than_there_are_places() -> None:
    assert InForce(partitions=8, topics=2, others=7).at_once(OPTIONS, 12) == 4


def test_a_pause_that_waits_for_remote_storage_may_take_its_whole_hold_whatever_was_seen() -> None:
    options = replace(OPTIONS, durability=Durability.TIERED)
    found = estimate(SCALE, options, InForce(), OBSERVED)
    assert found.write_pause_ms.p90 == options.quiesce_hold_ms


def test_what_nobody_can_foresee_is_named() -> None:
    options = replace(OPTIONS, first_partitions=1)
    found = " ".join(estimate(SCALE, options, InForce(topics=2, holding=2)).left_out)
    assert "open transactions" in found
    assert "one of 2 places" in found
    assert "after 1 partitions" in found


def test_an_untiered_topic_is_hybrid_with_its_last_boundary_and_lists_nothing() -> None:
    tiered = estimate(SCALE, OPTIONS, InForce())
    found = estimate(replace(SCALE, tiered=False), OPTIONS, InForce())
    assert found.to_ready_s == found.to_boundaries_s
    assert found.object_store_requests == 12 + 2 * 12
    assert tiered.object_store_requests == found.object_store_requests + 4 * 12
    assert found.kafka_requests < tiered.kafka_requests


def test_tiering_goes_by_the_brokers_intervals_until_a_topic_was_tiered_here() -> None:
    quick = BrokerIntervals(retention_check_s=10.0, copy_s=1.0)
    found = estimate(SCALE, OPTIONS, InForce(), intervals=quick)
    (basis,) = [b for b in found.based_on if b.step == Span.TIERING]
    assert (basis.source, basis.p50_s, basis.p90_s) == (Source.DOCUMENTED, 12.0, 32.0)


def test_many_segments_are_listed_page_by_page() -> None:
    few = estimate(SCALE, OPTIONS, InForce()).object_store_requests
    many = replace(SCALE, segments=12 * 1_000)
    assert estimate(many, OPTIONS, InForce()).object_store_requests == few + 12 * 4 * 5


def test_a_write_pause_ends_with_its_hold() -> None:
    short = replace(OPTIONS, quiesce_hold_ms=300)
    assert estimate(SCALE, short, InForce()).write_pause_ms == Range(300, 300)


def test_a_pause_that_waits_for_remote_storage_may_last_as_long_as_its_hold() -> None:
    tiered = replace(OPTIONS, durability=Durability.TIERED)
    assert estimate(SCALE, tiered, InForce()).write_pause_ms == Range(
        1_000 * DOCUMENTED[Span.WRITE_PAUSE].p50, 10_000
    )


durations = st.tuples(st.floats(0, 100), st.floats(0, 100)).map(sorted)


@given(
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(1, 50),
    st.integers(0, 50),
    durations,
    durations,
)
def test_more_partitions_never_take_less_and_a_higher_limit_never_takes_more(
    partitions: int,
    more: int,
    limit: int,
    higher: int,
    crossing: list[float],
    pause: list[float],
) -> None:
    observed = [
        StepDuration(Span.CROSSING, 99, *crossing),
        StepDuration(Span.WRITE_PAUSE, 99, *pause),
    ]
    options = replace(OPTIONS, parallel_partitions=1_000)

    def of(count: int, at_once: int) -> MigrationEstimate:
        scale = replace(SCALE, partitions=count)
        return estimate(scale, options, InForce(partitions=at_once), observed)

    found = of(partitions, limit)
    larger, wider = of(partitions + more, limit), of(partitions, limit + higher)
    now = seconds(found.to_boundaries_s)
    for less, middle, longer in zip(
        seconds(wider.to_boundaries_s), now, seconds(larger.to_boundaries_s), strict=True
    ):
        assert less <= middle <= longer
    assert found.kafka_requests <= larger.kafka_requests
    assert found.object_store_requests <= larger.object_store_requests
    assert found.rows_added <= larger.rows_added
