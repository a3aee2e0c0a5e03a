"""kill -9 of the driver of retention and of gc at each step: the next run ends what was begun."""

from __future__ import annotations

from typing import TYPE_CHECKING, LiteralString

import psycopg
import pytest
from psycopg.rows import TupleRow

from spark.gc.job import gc
from spark.retention.job import retention
from tests.aged_topic import (
    PER_SEGMENT,
    aged_topic,
    keys,
    let_the_grace_pass,
    run,
    settings_of,
    tier,
)
from tests.killed_driver import Step, killed_at
from tests.tiering_topic import Rereader, diskless_topic
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.domain.wal_footer import decode_tail
from tideline.kafka.segment_files import object_keys
from tideline.object_store.client import ObjectStoreClient
from tideline.stack import Stack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1800)
SMALL = b"s" * 1_000


RETENTION = (
    Step("Kafka has deleted the prefix, Postgres does not know", "UPDATE ON tideline.logs",
         "NEW.migration_state <> OLD.migration_state", False, in_spark=True),
    Step("the prefix is gone, the suffix is not trimmed", "UPDATE ON tideline.logs",
         "NEW.suffix_start > OLD.suffix_start", False, in_spark=True),
)  # fmt: skip
GC = (
    Step("segments are being marked", "UPDATE ON tideline.merged_segments",
         "NEW.state = 'DELETE_SEGMENT_STARTED'", True),
    Step("WAL objects are being marked", "UPDATE ON tideline.wal_files",
         "NEW.status = 'deleting'", False),
    Step("WAL objects are gone, their marks are not", "DELETE ON tideline.wal_files",
         "true", False),
    Step("segment objects are gone, their marks are not", "DELETE ON tideline.marked_objects",
         "true", False, in_spark=True),
)  # fmt: skip
"""In the order in which one state follows from the other."""


def test_retention_killed_at_each_step_is_finished_by_the_next_run(
    stack: Stack, spark: SparkSession
) -> None:
    with aged_topic(stack, (50,), "killed") as aged:
        first = PER_SEGMENT
        aged.produce(30, 20, first=first, value=SMALL)
        aged.produce(30, 10, first=first + 30, value=SMALL)
        aged.produce(30, 0, first=first + 60, value=SMALL)
        end = first + 90
        starts = (first, first + 30, first + 60)
        aged.keep_hours(15)
        for step in RETENTION:
            killed_at(stack, step, "spark.retention", "--topic", aged.case.topic)
            start = aged.readers.earliest
            assert start in starts, f"after {step.name!r}"
            assert aged.readers.read(start, end - start)[0][2][:6] == b"%06d" % start
            assert aged.state[1] == first, "B0 never moves"
        aged.keep_hours(5)
        run(stack, spark, lambda job: retention(job, [aged.case.topic]))
        assert aged.readers.earliest == first + 60
        assert aged.readers.out_of_range(first + 59)
        assert aged.state == ("DISKLESS_ONLY", first)
        assert [v[:6] for _, _, v in aged.readers.read(first + 60, 30)] == [
            b"%06d" % n for n in range(first + 60, end)
        ]


def test_gc_killed_at_each_step_loses_and_leaks_nothing(stack: Stack, spark: SparkSession) -> None:
    settings = settings_of(stack)
    dsn = stack.endpoints.postgres_dsn("postgres")
    root = settings.s3_tiered_prefix.rstrip("/")
    with (
        diskless_topic(stack) as topic,
        connect_jobs(settings, application_name="test") as plane,
        psycopg.connect(dsn, autocommit=True) as postgres,
    ):
        # Of a gateway that was fenced before: its key is forgotten, and it goes as an orphan.
        never_committed = wal_objects(stack) - known_files(postgres, "status <> 'registered'")
        topic.produce(6)
        tier(stack, spark, topic.name)
        expired = topic.segments()
        topic.produce(6)
        tier(stack, spark, topic.name)
        topic.produce(6)
        for row in expired:
            plane.delete_records(row.topic_id, row.partition, row.last_offset + 1)
            for offset in range(row.base_offset, row.last_offset + 1):
                del topic.records[row.partition][offset]
        with Rereader(topic) as reader:
            for step in GC:
                let_the_grace_pass(stack)
                killed_at(stack, step, "spark.gc", "--no-orphans")
                reader.read_again()
                assert not reader.wrong, f"after {step.name!r}: {reader.wrong[0]}"
            let_the_grace_pass(stack)
            run(stack, spark, lambda job: gc(job, orphans=False))
            reader.read_again()
        assert not reader.wrong, reader.wrong[0]
        known = {
            key for row in topic.segments() for key in object_keys(row.object_key_stem).values()
        }
        assert known, "a segment lives"
        assert keys(stack, settings.s3_tiered_bucket, f"{root}/{topic.name}-") == known
        unknown = wal_objects(stack) - known_files(postgres, "true") - never_committed
        assert not {key for key in unknown if not is_statement(stack, key)}

        assert topic.read() == topic.records


def wal_objects(stack: Stack) -> set[str]:
    settings = settings_of(stack)
    return keys(stack, settings.s3_bucket, f"{settings.diskless_prefix}wal/")


def known_files(postgres: psycopg.Connection[TupleRow], which: LiteralString) -> set[str]:
    """Keys of WAL objects that Postgres knows, and that are as ``which`` says."""
    rows = postgres.execute(f"SELECT object_key FROM tideline.wal_files WHERE {which}")
    return {str(key) for (key,) in rows}


def is_statement(stack: Stack, key: str) -> bool:
    """What a gateway says of other objects when it is fenced or stops: it holds no record, Postgres
    does not know it, and it goes as an orphan."""
    settings = settings_of(stack)
    store = ObjectStoreClient(settings)
    body = store.get(settings.s3_bucket, key)
    return not decode_tail(body, len(body)).batches
