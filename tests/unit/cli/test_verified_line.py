"""``tideline status`` tells the last verification, and when it is too old to count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from tideline.cli.status import verified
from tideline.control_plane.table_model import VerifyVerdict

NOW = datetime(2026, 11, 27, tzinfo=UTC)


def verdict(hours: float, sample: float = 1.0, differences: int = 0) -> VerifyVerdict:
    detail = [{"partition": 3, "offset": 41, "what": "x"}] if differences else []
    return VerifyVerdict(
        "orders", UUID(int=1), UUID(int=2), NOW - timedelta(hours=hours), sample, 4, 1_200, 9_000,
        differences, detail,
    )  # fmt: skip


def test_a_verdict_is_told_with_its_age_and_what_it_is_of() -> None:
    assert verified(verdict(3), NOW) == "verified 3 h 0 min ago: no difference in 1200 records"
    assert verified(verdict(3, 0.1), NOW).endswith("in 1200 records, a sample of 10%")


def test_a_verdict_of_more_than_a_day_ago_is_stale_and_a_difference_is_named() -> None:
    assert verified(verdict(25), NOW).endswith(", stale")
    assert "2 differences, the first in partition 3 at offset 41" in verified(
        verdict(1, differences=2), NOW
    )
