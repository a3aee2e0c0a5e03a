"""How far a consumer may see while B0 may be set without this gateway knowing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.read_ceiling import (
    NO_CEILING,
    UNKNOWN_CEILING,
    ReadCeiling,
    may_say_out_of_range,
    prefix_answer,
)
from tideline.domain.request_handling import (
    CLASSIC,
    DELETED,
    KafkaErrorCode,
    PartitionRoute,
    RouteKind,
)

PENDING = PartitionRoute(RouteKind.PENDING, 1)
QUIESCING = PartitionRoute(RouteKind.QUIESCING, 2)
SUFFIX = PartitionRoute(RouteKind.SUFFIX, 2, 100, 5)


def test_there_is_no_ceiling_with_a_lease_and_without_a_quiesce() -> None:
    assert ReadCeiling().limit(PENDING, lease_valid=True) == NO_CEILING
    assert ReadCeiling().limit(CLASSIC, lease_valid=False) == NO_CEILING


def test_a_late_append_is_not_shown_after_the_quiesce_acknowledgement() -> None:
    """Schedule 2: the consumer would commit B0 + 1 and skip the suffix's record at B0."""
    ceiling = ReadCeiling()
    ceiling.observe(100, lease_valid=True)
    assert ceiling.freeze() == 100
    ceiling.observe(101, lease_valid=True)
    assert ceiling.limit(QUIESCING, lease_valid=True) == 100


def test_what_was_seen_without_a_lease_does_not_count() -> None:
    ceiling = ReadCeiling()
    ceiling.observe(50, lease_valid=True)
    ceiling.observe(60, lease_valid=False)
    assert ceiling.limit(PENDING, lease_valid=False) == 50


def test_nothing_is_shown_without_a_lease_if_nothing_was_seen_with_one() -> None:
    assert ReadCeiling().limit(PENDING, lease_valid=False) == UNKNOWN_CEILING
    assert ReadCeiling().limit(DELETED, lease_valid=True) == UNKNOWN_CEILING


def test_the_ceiling_goes_when_the_quiesce_is_void() -> None:
    """Schedule 13."""
    ceiling = ReadCeiling()
    ceiling.freeze()
    ceiling.thaw()
    assert ceiling.limit(PENDING, lease_valid=True) == NO_CEILING


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=20), st.integers(0, 20))
def test_the_ceiling_never_exceeds_what_was_seen_before_the_acknowledgement(
    seen: list[tuple[int, bool]], frozen_after: int
) -> None:
    ceiling = ReadCeiling()
    for number, (high_watermark, lease) in enumerate(seen):
        if number == frozen_after:
            ceiling.freeze()
        ceiling.observe(high_watermark, lease_valid=lease)
    before = [hw for hw, lease in seen[:frozen_after] if lease]
    ceiling.freeze()
    allowed = max((hw for hw, lease in seen if lease), default=UNKNOWN_CEILING)
    if frozen_after < len(seen):
        allowed = max(before, default=UNKNOWN_CEILING)
    assert ceiling.limit(QUIESCING, lease_valid=True) == allowed


def test_out_of_range_is_told_only_by_a_gateway_that_would_know_of_a_boundary() -> None:
    """Schedule 3: else a consumer past B0 would reset its position."""
    told = {
        (route.kind, lease): may_say_out_of_range(
            route, lease_valid=lease, fetch_offset=150, log_start=None
        )
        for route in (PENDING, QUIESCING, SUFFIX)
        for lease in (True, False)
    }
    assert [key for key, value in told.items() if value] == [(RouteKind.PENDING, True)]


def test_out_of_range_of_the_prefix_is_told_only_below_the_log_start() -> None:
    def told(offset: int, log_start: int | None, lease: bool = True) -> bool:
        return may_say_out_of_range(
            SUFFIX, lease_valid=lease, fetch_offset=offset, log_start=log_start
        )

    assert told(10, log_start=20)
    assert not told(20, log_start=20)
    assert not told(10, log_start=None)
    assert not told(10, log_start=20, lease=False)


def test_a_replica_that_is_behind_does_not_say_empty_for_ever() -> None:
    """Schedule 4."""

    def code(high_watermark: int, empty: bool) -> KafkaErrorCode:
        return prefix_answer(
            fetch_offset=90, boundary=100, broker_high_watermark=high_watermark, empty=empty
        )

    assert code(90, empty=True) is KafkaErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(95, empty=False) is KafkaErrorCode.NONE
    assert code(100, empty=True) is KafkaErrorCode.NONE
