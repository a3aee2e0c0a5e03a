"""How far a consumer may see while B0 may be set without this gateway knowing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.read_ceiling import (
    NO_CEILING,
    UNKNOWN_CEILING,
    UNKNOWN_EPOCH,
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


def test_what_is_shown_past_the_ceiling_has_to_be_confirmed() -> None:
    ceiling = ReadCeiling()
    assert ceiling.limit(PENDING) == UNKNOWN_CEILING
    assert ceiling.asks(100, 3)
    ceiling.confirmed(100, 3)
    assert ceiling.limit(PENDING) == 100
    assert not ceiling.asks(100, 3)
    assert ceiling.asks(101, 3)


def test_a_classic_partition_has_no_ceiling() -> None:
    assert ReadCeiling().limit(CLASSIC) == NO_CEILING
    assert ReadCeiling().limit(DELETED) == UNKNOWN_CEILING


def test_a_late_append_is_not_shown_after_the_quiesce_acknowledgement() -> None:
    """Schedule 2: the consumer would commit B0 + 1 and skip the suffix's record at B0."""
    ceiling = ReadCeiling()
    ceiling.confirmed(100, 3)
    assert ceiling.freeze() == 100
    ceiling.confirmed(101, 3)
    assert ceiling.limit(QUIESCING) == 100


def test_the_ceiling_rises_again_when_the_quiesce_is_void() -> None:
    """Schedule 13."""
    ceiling = ReadCeiling()
    ceiling.freeze()
    ceiling.thaw()
    ceiling.confirmed(7, 3)
    assert ceiling.limit(PENDING) == 7


def test_a_new_leader_with_a_shorter_log_lowers_the_ceiling() -> None:
    """Schedule 28: after an unclean election B0 may be set at its end, below the old ceiling."""
    ceiling = ReadCeiling()
    ceiling.confirmed(100, 3)
    assert ceiling.asks(60, 4)
    ceiling.confirmed(60, 4)
    assert (ceiling.limit(PENDING), ceiling.leader_epoch) == (60, 4)
    ceiling.confirmed(100, 3)
    assert ceiling.limit(PENDING) == 60


def test_an_observation_without_an_epoch_raises_the_ceiling_and_keeps_its_epoch() -> None:
    ceiling = ReadCeiling()
    ceiling.confirmed(100, 3)
    ceiling.confirmed(110, UNKNOWN_EPOCH)
    assert (ceiling.limit(PENDING), ceiling.leader_epoch) == (110, 3)


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(0, 20))
def test_the_ceiling_never_exceeds_what_was_seen_before_the_acknowledgement(
    seen: list[int], frozen_after: int
) -> None:
    ceiling = ReadCeiling()
    for number, high_watermark in enumerate(seen):
        if number == frozen_after:
            ceiling.freeze()
        ceiling.confirmed(high_watermark, 1)
    allowed = max(seen[:frozen_after], default=UNKNOWN_CEILING)
    assert ceiling.limit(QUIESCING) == allowed


def test_out_of_range_is_told_only_by_a_gateway_that_would_know_of_a_boundary() -> None:
    """Schedule 3: else a consumer past B0 would reset its position."""
    told = {
        (route.kind, lease, confirmed): may_say_out_of_range(
            route, lease_valid=lease, confirmed=confirmed, fetch_offset=150, log_start=None
        )
        for route in (PENDING, QUIESCING, SUFFIX)
        for lease in (True, False)
        for confirmed in (True, False)
    }
    assert [key for key, value in told.items() if value] == [
        (RouteKind.PENDING, True, True),
        (RouteKind.QUIESCING, True, True),
    ]


def test_out_of_range_of_the_prefix_is_told_only_below_the_log_start() -> None:
    def told(offset: int, log_start: int | None, lease: bool = True) -> bool:
        return may_say_out_of_range(
            SUFFIX, lease_valid=lease, confirmed=False, fetch_offset=offset, log_start=log_start
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
