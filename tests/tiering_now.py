"""Splits and merges what a topic has committed, at once and without Spark."""

from __future__ import annotations

import time
from uuid import uuid4

from spark.tiering.merge_partition import MergeOrder, merge_partition
from spark.tiering.outcomes import Ended
from spark.tiering.services import FromSettings
from spark.tiering.split_files import split as split_files
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.settings import JobsSettings
from tideline.stack import Stack

SEGMENT_BYTES = 20_000


def split(stack: Stack, topic: str, most: int | None = None) -> int:
    """Split everything that is committed by now, or the oldest, out of ``most`` WAL files; returns
    out of how many."""
    settings = JobsSettings.of(stack.environment("jobs"))
    worker, done = uuid4(), 0
    with FromSettings(settings, "test-tiering")() as services:
        services.plane.request_tiering(topic)
        while files := services.plane.claim_wal_files(
            worker, max_files=most or 1_000, max_batches=10_000, claim_ms=60_000, cutoffs={}
        ):
            outcomes = list(split_files(services, worker, files, time.monotonic()))
            assert {outcome.ended for outcome in outcomes} == {Ended.DONE}
            done += len(files)
            if most is not None:
                break
    return done


def merge(stack: Stack, topic: str, segment_bytes: int = SEGMENT_BYTES) -> int:
    """Merge everything that is split by now; returns how many segments came."""
    settings = JobsSettings.of(stack.environment("jobs"))
    worker, segments = uuid4(), 0
    with FromSettings(settings, "test-tiering")() as services:
        for row in [row for row in services.plane.merge_candidates() if row.topic == topic]:
            order = MergeOrder(
                topic=topic, topic_id=row.topic_id, partition=row.partition, log_id=row.log_id,
                pending_bytes=row.bytes, requested=True, limit_bytes=segment_bytes,
                enough_bytes=1, index_interval_bytes=500,
            )  # fmt: skip
            for outcome in merge_partition(services, worker, order, claim_ms=60_000):
                assert outcome.ended == Ended.DONE, outcome.error
                segments += 1
    return segments


def merged_end(stack: Stack, topic: str) -> int:
    """The first offset behind the topic's merged segments."""
    settings = JobsSettings.of(stack.environment("jobs"))
    with connect_jobs(settings, application_name="test") as plane:
        rows = plane.merged_segments(*plane.log_id_range())
        return max(row.last_offset for row in rows if row.topic == topic) + 1


def tier(
    stack: Stack, topic: str, segment_bytes: int = SEGMENT_BYTES, most: int | None = None
) -> int:
    """Split and merge everything that is committed by now, or what the oldest ``most`` WAL files
    hold; returns how many segments came."""
    split(stack, topic, most)
    return merge(stack, topic, segment_bytes)
