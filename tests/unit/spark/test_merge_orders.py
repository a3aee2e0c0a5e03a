"""Which partitions have enough for a segment."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from spark.tiering.job import order_of
from tideline.control_plane.tiering_model import MergeCandidate
from tideline.domain.tiering import TieringConfig
from tideline.kafka.topic_policies import TieringPolicies
from tideline.settings import JobsSettings

CONFIG = TieringConfig(
    local_retention_ms=1, segment_bytes=1_000, segment_ms=60_000, index_interval_bytes=4_096
)
NOW = 1_000_000


def candidate(size: int, *, split_at: int = NOW, requested: bool = False) -> MergeCandidate:
    return MergeCandidate(
        "t", UUID(int=1), 0, 7, 0, 9, size, 10, 2, split_at, 0, requested, ()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "merged"),
    [
        (candidate(499), False),
        (candidate(500), True),
        (candidate(1, requested=True), True),
        (candidate(1, split_at=NOW - 60_001), True),
        (candidate(0, requested=True), False),
    ],
)
def test_a_partition_waits_until_it_has_enough(found: MergeCandidate, merged: bool) -> None:
    settings = JobsSettings.model_validate(
        {"postgres_dsn": "host=x", "kafka_bootstrap": "a:1", "tiering_min_segment_bytes": 500}
    )
    policies = TieringPolicies({found.topic_id: CONFIG})
    ready = list(policies.ready([found], settings, NOW))
    assert ready == ([(found, CONFIG)] if merged else [])
    made = order_of(found, CONFIG, settings)
    assert (made.limit_bytes, made.enough_bytes) == (1_000, 500)


def test_a_topic_with_small_segments_does_not_wait_for_more_than_one() -> None:
    settings = JobsSettings.model_validate({"postgres_dsn": "host=x", "kafka_bootstrap": "a:1"})
    small = replace(CONFIG, segment_bytes=200)
    made = order_of(candidate(200), small, settings)
    assert made.limit_bytes == made.enough_bytes == 200
