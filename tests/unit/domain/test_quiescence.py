"""A log rests where all its marks meet; a lease has lapsed when its counter stood still for D."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.quiescence import LeaseReading, LeaseWatch, settled_at

A = UUID(int=1)


def reading(renewals: int) -> LeaseReading:
    return LeaseReading(1, A, renewals, lease_ms=3_000)


def test_a_log_rests_where_all_its_marks_meet() -> None:
    assert settled_at(100, 100, (1, 2), {1: 100, 2: 100}) == 100


@pytest.mark.parametrize(
    ("last_stable", "watermark", "log_ends"),
    [
        (99, 100, {1: 100, 2: 100}),
        (100, 99, {1: 100, 2: 100}),
        (100, 100, {1: 100, 2: 99}),
        (100, 100, {1: 100, 2: 101}),
        (100, 100, {1: 100}),
        (100, 100, {}),
    ],
)
def test_a_log_with_one_mark_elsewhere_does_not_rest(
    last_stable: int, watermark: int, log_ends: dict[int, int]
) -> None:
    assert settled_at(last_stable, watermark, (1, 2), log_ends) is None


def test_a_replica_out_of_sync_has_no_say() -> None:
    assert settled_at(100, 100, (1,), {1: 100, 2: 7}) == 100


def test_a_gateway_seen_for_the_first_time_is_not_lapsed() -> None:
    watch = LeaseWatch(margin_ms=500)
    assert not watch.lapsed(reading(5), sent_ms=1e9)


def test_an_unmoved_counter_lapses_after_the_lease_and_the_margin() -> None:
    watch = LeaseWatch(margin_ms=500)
    watch.observe([reading(5)], sent_ms=0, received_ms=10)
    assert not watch.lapsed(reading(5), sent_ms=3_509)
    assert watch.lapsed(reading(5), sent_ms=3_510)


def test_a_renewal_starts_the_measurement_anew() -> None:
    watch = LeaseWatch(margin_ms=500)
    watch.observe([reading(5)], sent_ms=0, received_ms=0)
    watch.observe([reading(6)], sent_ms=3_000, received_ms=3_001)
    assert not watch.lapsed(reading(6), sent_ms=6_000)


def test_a_counter_that_moved_since_the_last_look_is_alive() -> None:
    watch = LeaseWatch(margin_ms=500)
    watch.observe([reading(5)], sent_ms=0, received_ms=0)
    assert not watch.lapsed(reading(6), sent_ms=1e9)


def test_a_gateway_that_left_is_forgotten() -> None:
    watch = LeaseWatch(margin_ms=500)
    watch.observe([reading(5)], sent_ms=0, received_ms=0)
    watch.observe([], sent_ms=1, received_ms=1)
    assert watch.silent_ms(A, 5, sent_ms=9_999) == 0


@given(
    renewed_at=st.lists(st.floats(0, 20_000), max_size=12),
    looks=st.lists(st.tuples(st.floats(0, 30_000), st.floats(0, 400)), min_size=1, max_size=12),
)
def test_the_measured_silence_is_never_longer_than_the_true_one(
    renewed_at: list[float], looks: list[tuple[float, float]]
) -> None:
    """A read takes time; the counter's value belongs to some moment inside it."""
    watch = LeaseWatch()
    renewed_at.sort()
    clock = 0.0
    for start, duration in sorted(looks):
        sent = max(clock, start)
        received = sent + duration
        clock = received
        at = sent + duration / 2
        renewals = sum(1 for moment in renewed_at if moment <= at)
        silent = watch.silent_ms(A, renewals, sent_ms=sent)
        last = max((m for m in renewed_at if m <= at), default=float("-inf"))
        assert silent <= at - last
        watch.observe([reading(renewals)], sent_ms=sent, received_ms=received)
