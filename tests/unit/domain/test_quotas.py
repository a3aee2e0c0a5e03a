"""Which of Kafka's quotas holds for a client, and when it has to wait."""

from __future__ import annotations

import pytest

from tideline.domain.quotas import (
    Default,
    Limit,
    QuotaEntity,
    QuotaWindow,
    Usage,
    candidates,
    limit_of,
)

ANY = Default.NAME
IN_ORDER = [
    (QuotaEntity("u", "c"), ("u", "c")),
    (QuotaEntity("u", ANY), ("u", "c")),
    (QuotaEntity("u", None), ("u", "")),
    (QuotaEntity(ANY, "c"), ("u", "c")),
    (QuotaEntity(ANY, ANY), ("u", "c")),
    (QuotaEntity(ANY, None), ("u", "")),
    (QuotaEntity(None, "c"), ("", "c")),
    (QuotaEntity(None, ANY), ("", "c")),
]
"""``ClientQuotaManager``: most specific first, and who shares what it grants."""


def test_the_most_specific_quota_holds() -> None:
    assert list(candidates("u", "c")) == [entity for entity, _ in IN_ORDER]
    quotas = {entity: float(n + 1) for n, (entity, _) in enumerate(IN_ORDER)}
    for n, (entity, shared) in enumerate(IN_ORDER):
        assert limit_of(quotas, "u", "c") == Limit(n + 1, shared)
        del quotas[entity]
    assert limit_of(quotas, "u", "c") is None


@pytest.mark.parametrize(
    "entity", [QuotaEntity("other", None), QuotaEntity("u", "other"), QuotaEntity(None, "other")]
)
def test_a_quota_of_somebody_else_does_not_hold(entity: QuotaEntity) -> None:
    assert limit_of({entity: 1.0}, "u", "c") is None


def test_who_stays_within_the_rate_is_never_throttled() -> None:
    usage = Usage(QuotaWindow())
    for tick in range(600):
        usage.record(100, tick / 10)
        assert usage.throttle_s(1_000.01 * 11 / 10, tick / 10) == 0.0


def test_a_burst_of_an_idle_client_may_use_the_whole_window() -> None:
    window = QuotaWindow(samples=11, sample_s=1.0)
    assert window.most_s == 10.0
    usage = Usage(window)
    usage.record(10_000, 50.0)
    assert usage.throttle_s(1_000, 50.0) == 0.0
    usage.record(1_000, 50.0)
    assert usage.throttle_s(1_000, 50.0) == pytest.approx(1.0)


def test_who_waits_as_told_is_within_its_quota_then() -> None:
    usage = Usage(QuotaWindow(samples=3, sample_s=1.0))
    now, sent = 0.0, 0
    for _ in range(200):
        usage.record(500, now)
        sent += 500
        now += usage.throttle_s(1_000, now)
    assert sent / now == pytest.approx(1_000, rel=0.05)


def test_what_was_used_before_the_window_is_forgotten() -> None:
    usage = Usage(QuotaWindow(samples=2, sample_s=1.0))
    usage.record(1_000_000, 0.0)
    assert usage.throttle_s(1, 1.9) > 0
    assert usage.throttle_s(1, 2.0) == 0.0
    assert not usage._samples


def test_a_quota_of_nothing_lets_nothing_through() -> None:
    usage = Usage(QuotaWindow())
    usage.record(1, 0.0)
    assert usage.throttle_s(0.0, 0.0) == pytest.approx(10.0)
