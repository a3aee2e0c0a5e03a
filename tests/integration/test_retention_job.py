"""Retention by size and by time across B0, as consumers see it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from spark.retention.job import retention
from tests.aged_topic import PER_SEGMENT, AgedTopic, aged_topic, run, settings_of, tier
from tests.support.waiting import joined, until
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.domain.remote_log import EpochStart
from tideline.kafka.segment_files import SegmentFile, decode_leader_epochs, object_keys
from tideline.object_store.client import ObjectStoreClient
from tideline.stack import Stack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1800)

AGES = (50, 40, 30)
PREFIX = PER_SEGMENT * len(AGES)
MERGED, WAL, YOUNG = 60, 30, 20
SMALL = b"s" * 1_000


@pytest.fixture(scope="module")
def aged(stack: Stack) -> Iterator[AgedTopic]:
    with aged_topic(stack, AGES, "retained") as topic:
        yield topic


def applied(stack: Stack, spark: SparkSession, aged: AgedTopic, **how: bool) -> dict[str, Any]:
    """One run for the topic; the details of what it did."""
    return run(stack, spark, lambda job: retention(job, [aged.case.topic], **how))


def assert_log_starts_at(aged: AgedTopic, start: int) -> None:
    """What a Kafka user expects of a log that begins at ``start``."""
    assert aged.readers.earliest == start
    if start < aged.readers.latest:
        ((offset, _, value),) = aged.readers.read(start, 1)
        assert (offset, value[:6]) == (start, b"%06d" % start)
    assert start == 0 or aged.readers.out_of_range(start - 1)


class Follower:
    """A consumer that reads on while retention works behind it."""

    def __init__(self, aged: AgedTopic, start: int) -> None:
        self.offsets: list[int] = []
        self.failure: BaseException | None = None
        self._aged, self._start = aged, start
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        consumer = self._aged.readers.consumer(self._start)
        try:
            while not self._stop.is_set():
                message = consumer.poll(0.1)
                if message is None:
                    continue
                if message.error() is not None:
                    raise AssertionError(message.error())
                self.offsets.append(message.offset())
        except BaseException as error:
            self.failure = error
        finally:
            consumer.close()

    def stop(self) -> None:
        self._stop.set()
        joined(self._thread, 30)
        if self.failure is not None:
            raise self.failure


def checkpoints(stack: Stack, topic: str) -> set[tuple[EpochStart, ...]]:
    """Those of the merged segments, as they lie in the bucket."""
    settings = settings_of(stack)
    store = ObjectStoreClient(settings)
    with connect_jobs(settings, application_name="test") as plane:
        rows = [r for r in plane.merged_segments(*plane.log_id_range()) if r.topic == topic]
    assert rows
    return {
        decode_leader_epochs(
            store.get(
                settings.s3_tiered_bucket,
                object_keys(row.object_key_stem)[SegmentFile.LEADER_EPOCHS],
            )
        )
        for row in rows
    }


def test_retention_over_prefix_and_suffix_is_that_of_one_log(
    stack: Stack, spark: SparkSession, aged: AgedTopic
) -> None:
    assert aged.state == ("HYBRID", PREFIX)
    # A limit below what is kept locally is refused, as Kafka does.
    aged.configure(local_retention_bytes=-2, retention_bytes=10**9)
    aged.keep_hours(1_000)
    details = applied(stack, spark, aged)
    assert details["removals"] == []  # an empty suffix pulls nothing
    assert_log_starts_at(aged, 0)

    aged.produce(MERGED, 20, first=PREFIX, value=SMALL)
    tier(stack, spark, aged.case.topic)
    assert checkpoints(stack, aged.case.topic) == {(EpochStart(0, 0),)}, "the log's, not B0's own"
    aged.produce(WAL, 10, first=PREFIX + MERGED, value=SMALL)
    aged.produce(YOUNG, 0, first=PREFIX + MERGED + WAL, value=SMALL)
    end = PREFIX + MERGED + WAL + YOUNG
    assert aged.readers.latest == end
    follower = Follower(aged, 0)
    until("the follower to read all", lambda: follower.offsets[-1:] == [end - 1])

    # By size. What a limit of nothing would remove is the size of the log.
    aged.configure(retention_bytes=0)
    all_of_it = applied(stack, spark, aged, dry_run=True)
    ((removal),) = all_of_it["removals"]
    assert (removal["new_log_start"], removal["suffix_before"]) == (end, end)
    assert_log_starts_at(aged, 0)
    total = all_of_it["bytes"]

    aged.configure(retention_bytes=total - int(1.5 * PER_SEGMENT * 10_000))
    ((removal),) = applied(stack, spark, aged)["removals"]
    first = removal["new_log_start"]
    assert (removal["by_size"], removal["suffix_before"]) == (1, None)
    assert 0 < first <= PER_SEGMENT + 2
    assert_log_starts_at(aged, first)
    assert aged.state == ("HYBRID", PREFIX)

    aged.configure(retention_bytes=(MERGED + WAL + YOUNG) * 900)
    applied(stack, spark, aged)
    assert_log_starts_at(aged, PREFIX)
    assert aged.state == ("HYBRID", PREFIX)  # merged segments are left

    # By time, in the suffix.
    aged.configure(retention_bytes=-1)
    aged.keep_hours(15)
    applied(stack, spark, aged)
    assert_log_starts_at(aged, PREFIX + MERGED)
    assert aged.state == ("DISKLESS_ONLY", PREFIX)
    aged.keep_hours(5)
    applied(stack, spark, aged)
    assert_log_starts_at(aged, PREFIX + MERGED + WAL)

    # Emptied, it stays, and goes on at its end.
    aged.configure(retention_bytes=0)
    applied(stack, spark, aged)
    assert_log_starts_at(aged, end)
    assert aged.readers.latest == end
    assert applied(stack, spark, aged)["removals"] == []
    aged.produce(5, 0, first=end, value=SMALL)
    assert_log_starts_at(aged, end)
    until("the follower to go on", lambda: follower.offsets[-1:] == [end + 4])
    follower.stop()
    assert follower.offsets == list(range(end + 5))
    assert aged.state == ("DISKLESS_ONLY", PREFIX)
