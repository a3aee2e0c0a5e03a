"""Garbage collection on a real stack: what nothing refers to goes after its grace, nothing else."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from spark.common.record_tables import tell
from spark.gc.history import HistoryUnknown, adopt_history
from spark.gc.job import gc
from tests.aged_topic import (
    PER_SEGMENT,
    VALUE,
    Readers,
    keys,
    let_the_grace_pass,
    run,
    settings_of,
    tier,
)
from tests.aged_topic import produce as produce_to
from tests.harness import create_tiered
from tests.records_asked import asked, of_the_page
from tests.tiering_topic import Rereader, Topic, diskless_topic
from tideline import control_plane
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.demo.topic import wait_until_tiered
from tideline.domain.ids import topic_id_to_base64
from tideline.kafka.segment_files import object_keys
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import WorkerSettings
from tideline.stack import Stack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def collected(stack: Stack, spark: SparkSession, **how: bool) -> dict[str, Any]:
    """One run under the default grace of ten minutes."""
    return run(stack, spark, lambda job: gc(job, **({"orphans": False} | how)))


def segment_keys(stack: Stack, topic: str) -> set[str]:
    """Objects of the topic in the tiered bucket."""
    settings = settings_of(stack)
    root = f"{settings.s3_tiered_prefix.rstrip('/')}/{topic}-"
    return keys(stack, settings.s3_tiered_bucket, root)


def wal_keys(stack: Stack, topic: Topic) -> set[str]:
    """WAL objects that hold a batch of the topic."""
    with psycopg.connect(stack.endpoints.postgres_dsn("postgres")) as connection:
        rows = connection.execute(
            "SELECT DISTINCT object_key FROM tideline.wal_files JOIN tideline.batches"
            " USING (file_id) JOIN tideline.logs USING (log_id) WHERE topic_name = %s",
            [topic.name],
        ).fetchall()
    return {row[0] for row in rows}


def test_what_was_merged_or_deleted_goes_after_its_grace_and_readers_notice_nothing(
    stack: Stack, spark: SparkSession
) -> None:
    bucket = settings_of(stack).s3_bucket
    with diskless_topic(stack) as topic:
        topic.produce(20)
        first_files = wal_keys(stack, topic)
        tier(stack, spark, topic.name)
        topic.produce(10)
        live_files = wal_keys(stack, topic)
        with Rereader(topic) as reader:
            preview = collected(stack, spark, dry_run=True)
            assert preview["later"]["wal"] >= len(first_files)
            collected(stack, spark)
            assert first_files <= keys(stack, bucket, "wal/"), "the grace is not over"
            let_the_grace_pass(stack)
            details = collected(stack, spark)
        assert details["segments_looked_at"] > 0
        assert details["segments_not_whole"] == []
        assert not reader.wrong, reader.wrong[0]
        assert details["deleted"]["wal"] >= len(first_files)
        left = keys(stack, bucket, "wal/")
        assert not first_files & left
        assert live_files <= left
        assert topic.read() == topic.records
        merged = topic.segments()
        known = {key for row in merged for key in object_keys(row.object_key_stem).values()}
        assert segment_keys(stack, topic.name) == known

        with connect_jobs(settings_of(stack), application_name="test") as plane:
            for row in merged:
                plane.delete_records(row.topic_id, row.partition, row.last_offset + 1)
                for offset in range(row.base_offset, row.last_offset + 1):
                    del topic.records[row.partition][offset]
        collected(stack, spark)
        let_the_grace_pass(stack)
        collected(stack, spark)
        assert segment_keys(stack, topic.name) == set()
        assert topic.segments() == []
        assert topic.states() == {"DISKLESS_ONLY"}
    # The topic is deleted now, through a gateway.
    collected(stack, spark)
    let_the_grace_pass(stack)
    collected(stack, spark)
    assert not live_files & keys(stack, bucket, "wal/")
    first, second = deleted_this_month(stack, details["run"])
    assert first == details["deleted"]
    assert second["wal"] > first["wal"], "of every run"


def deleted_this_month(stack: Stack, run_id: str) -> tuple[dict[str, int], dict[str, int]]:
    """Objects by kind as docs/records.md asks for them: of one run, and of all."""
    settings = settings_of(stack)
    tell(settings, ObjectStoreClient(settings), print, now=True)
    begin = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (begin + timedelta(days=32)).replace(day=1)
    month = {
        "'2026-03-01 00:00:00+00'": f"'{begin.isoformat()}'",
        "'2026-04-01 00:00:00+00'": f"'{end.isoformat()}'",
    }
    whole = of_the_page("FROM deleted_objects", **month)
    of_run = whole.replace("WHERE", f"WHERE run_id = '{run_id}' AND")
    found = []
    for query in (of_run, whole):
        counts: dict[str, int] = {}
        for row in asked(settings, "deleted_objects", query):
            counts[row["kind"]] = counts.get(row["kind"], 0) + row["objects"]
        found.append(counts)
    return found[0], found[1]


def listed_as_deleted(stack: Stack, report: str) -> set[str]:
    """Keys in the parts of a run's report."""
    bucket, _, prefix = report.partition("/")
    store = ObjectStoreClient(settings_of(stack))
    parts = [gzip.decompress(store.get(bucket, key)) for key in keys(stack, bucket, prefix)]
    lines = [json.loads(line) for part in parts for line in part.splitlines()]
    return {line["key"] for line in lines if "key" in line}


def test_a_restored_postgres_collects_nothing_until_somebody_adopts_the_bucket(
    stack: Stack, spark: SparkSession
) -> None:
    """Its runs go back behind those that have collected in the bucket."""
    collected(stack, spark)
    with psycopg.connect(stack.endpoints.postgres_dsn("postgres"), autocommit=True) as connection:
        (lost,) = connection.execute(
            "DELETE FROM tideline.gc_runs WHERE run_number ="
            " (SELECT max(run_number) FROM tideline.gc_runs) RETURNING run_number"
        ).fetchone() or (0,)
        with pytest.raises(HistoryUnknown, match=f"run {lost} .* has collected in this bucket"):
            collected(stack, spark)
        settings = settings_of(stack)
        with connect_jobs(settings, application_name="test") as plane:
            adopt_history(settings, plane, "ann", "this test took a run away")
        assert collected(stack, spark)["run_number"] > lost


@contextmanager
def tracked_tiered_topic(stack: Stack) -> Iterator[Readers]:
    """A tiered topic with segments of Kafka's own, known to the control plane."""
    settings = settings_of(stack)
    bootstrap = stack.endpoints.gateway_bootstrap
    name = f"orphans-{time.monotonic_ns() % 1_000_000}"
    topic_id = create_tiered(AdminClient({"bootstrap.servers": bootstrap}), name, 1, 1)
    produce_to(bootstrap, name, 2 * PER_SEGMENT + 10, int(time.time() * 1000))
    store = ObjectStoreClient(settings)
    prefix = f"{settings.s3_tiered_prefix.rstrip('/')}/{name}-"
    wait_until_tiered(store, settings.s3_tiered_bucket, prefix, 1, segments=2, timeout_s=90)

    async def track(begin: bool) -> None:
        worker = WorkerSettings.of(stack.environment("worker"))
        async with control_plane.connect(worker, application_name="test") as plane:
            if begin:
                (attested, *_) = await plane.attestations()
                await plane.begin_migration(
                    name, topic_id, 1, "CreateTime", 1_048_588, attested.cluster_id
                )
            else:
                await plane.delete_topic(topic_id)

    asyncio.run(track(True))
    try:
        yield Readers(bootstrap, name)
    finally:
        asyncio.run(track(False))


def test_orphans_go_days_after_their_report_and_what_a_broker_knows_never(
    stack: Stack, spark: SparkSession
) -> None:
    settings = settings_of(stack)
    store = ObjectStoreClient(settings)
    with tracked_tiered_topic(stack) as readers:
        of_kafka = segment_keys(stack, readers.topic)
        assert len({key.rsplit(".", 1)[0] for key in of_kafka}) >= 2
        directory = min(of_kafka).rsplit("/", 1)[0]
        orphan = topic_id_to_base64(uuid4())
        ours = {f"{directory}/{0:020d}-{orphan}.{kind}" for kind in ("log", "index", "snapshot")}
        foreign = f"{directory}/notes.txt"
        wal = f"wal/{uuid4().hex}"
        for key in (*ours, foreign):
            store.put(settings.s3_tiered_bucket, key, b"x")
        for key in (wal, "wal/notes.txt"):
            store.put(settings.s3_bucket, key, b"x")

        seen = collected(stack, spark, orphans=True)
        assert seen["segments_not_judged"] is None
        assert seen["orphans_found"] >= len(ours) + 1
        assert ours <= segment_keys(stack, readers.topic), "the first sight only reports"
        collected(stack, spark, orphans=True)
        assert ours <= segment_keys(stack, readers.topic), "its report is young"
        let_the_grace_pass(stack)
        shown = collected(stack, spark, orphans=True, dry_run=True)
        due = {(o["key"], o["reason"]) for o in shown["objects"] if o["due"]}
        assert {(key, "unknown") for key in (*ours, wal)} <= due
        assert ours <= segment_keys(stack, readers.topic), "a dry run deletes nothing"
        done = collected(stack, spark, orphans=True)
        assert ours | {wal} <= listed_as_deleted(stack, done["report"])

        assert segment_keys(stack, readers.topic) == of_kafka | {foreign}
        left = keys(stack, settings.s3_bucket, "wal/")
        assert wal not in left
        assert "wal/notes.txt" in left
        store.delete(settings.s3_bucket, ["wal/notes.txt"])
        count = 2 * PER_SEGMENT + 10
        assert [v[:6] for _, _, v in readers.read(0, count)] == [b"%06d" % n for n in range(count)]
        assert all(len(v) > len(VALUE) for _, _, v in readers.read(0, 3))
