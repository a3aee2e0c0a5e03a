"""kill -9 of the tiering driver at each of its steps: the next run finds its way, nothing is lost
or served twice, nothing is leaked, and a reader notices nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import psycopg
import pytest
from pyspark.sql import SparkSession

from spark.gc import gc
from tests.harness import until
from tests.tiering_topic import Rereader, Topic, diskless_topic, job
from tideline.control_plane.jobs import connect_jobs
from tideline.kafka.segment_files import object_keys
from tideline.object_store.bulk import BulkStore
from tideline.settings import JobsSettings
from tideline.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.fault]
KEY = 815_002
CLAIM_MS = 1_000


@dataclass(frozen=True)
class Step:
    """Where the driver or one of its executors dies: before a write of Postgres counts.

    ``commits``: the write was sent, so Postgres ends it after the death; else it is undone.
    """

    name: str
    event: str
    when: str
    commits: bool


SPLIT = (
    Step("keys of split files registered", "INSERT ON tideline.split_files", "true", True),
    Step("split files uploaded", "UPDATE ON tideline.split_files", "NEW.status = 'live'", False),
    Step("split files count", "UPDATE ON tideline.split_files", "NEW.status = 'live'", True),
)
MERGE = (
    Step("segment begun", "INSERT ON tideline.merged_segments", "true", True),
    Step("segment uploaded", "UPDATE ON tideline.merged_segments",
         "NEW.state = 'COPY_SEGMENT_FINISHED'", False),
    Step("segment counts", "UPDATE ON tideline.merged_segments",
         "NEW.state = 'COPY_SEGMENT_FINISHED'", True),
    Step("split files deleted", "DELETE ON tideline.doomed_objects", "true", False),
)  # fmt: skip


UPLOADED = MERGE[1]


@contextmanager
def breakpoint_at(dsn: str, step: Step) -> Iterator[psycopg.Connection]:
    """Whoever writes at ``step`` waits until the end of the block."""
    table = step.event.split(" ON ")[1]
    row = "OLD" if step.event.startswith("DELETE") else "NEW"
    with psycopg.connect(dsn, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(%s)", [KEY])
        holder.execute(
            f"""
            CREATE OR REPLACE FUNCTION tideline.test_tiering_step() RETURNS trigger
            LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM pg_advisory_xact_lock_shared({KEY});
                RETURN {row};
            END $$;
            CREATE OR REPLACE TRIGGER test_tiering_step BEFORE {step.event}
                FOR EACH ROW WHEN ({step.when}) EXECUTE FUNCTION tideline.test_tiering_step();
            """.encode()
        )
        try:
            yield holder
        finally:
            # Those that wait hold locks on the table: let them go on before the trigger goes.
            holder.execute("SELECT pg_advisory_unlock_all()")
            holder.execute(f"DROP TRIGGER test_tiering_step ON {table}".encode())


def waiting(holder: psycopg.Connection) -> list[int]:
    """Backends that wait at the breakpoint."""
    rows = holder.execute(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %s",
        [KEY],
    ).fetchall()
    return [int(row[0]) for row in rows]


def start(stack: Stack, topic: Topic) -> subprocess.Popen[bytes]:
    """A driver of its own, with its JVM and Python workers."""
    return subprocess.Popen(
        [sys.executable, "-m", "spark.tiering", "--topic", topic.name, "--master", "local[2]"],
        env={
            **os.environ,
            **stack.environment("jobs"),
            "TIDELINE_TIERING_SPLITTER_CLAIM_DURATION_MS": str(CLAIM_MS),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_nine(driver: subprocess.Popen[bytes]) -> None:
    """The driver, its JVM and its executors, before any of them can react."""
    family = [driver_of := psutil.Process(driver.pid), *driver_of.children(recursive=True)]
    for process in family:
        process.suspend()
    for process in family:
        process.kill()
    psutil.wait_procs(family, timeout=20)
    driver.wait(20)


@pytest.mark.parametrize("steps", [SPLIT, MERGE], ids=["split", "merge"])
def test_killed_at_each_step_in_turn(stack: Stack, steps: tuple[Step, ...]) -> None:
    settings = JobsSettings.of(stack.environment("jobs"))
    dsn = stack.endpoints.postgres_dsn("postgres")
    with (
        diskless_topic(stack) as topic,
        Rereader(topic) as reader,
        connect_jobs(settings, application_name="test") as plane,
    ):
        for step in steps:
            topic.produce(8)
            plane.request_tiering(topic.name)
            with breakpoint_at(dsn, step) as holder:
                driver = start(stack, topic)
                try:
                    until(f"a run to reach {step.name!r}", lambda: waiting(holder), 120)
                finally:
                    kill_nine(driver)
                if not step.commits:
                    for pid in waiting(holder):
                        holder.execute("SELECT pg_terminate_backend(%s)", [pid])
                    until("the write to be undone", lambda: not waiting(holder))
            assert not reader.wrong, f"after {step.name!r}: {reader.wrong[0]}"
        plane.request_tiering(topic.name)
        assert start(stack, topic).wait(120) == 0
        assert topic.rows_left() == 0, "all is merged"
        assert topic.read() == topic.records
    assert reader.rounds > len(steps)
    assert not reader.wrong, reader.wrong[0]


def test_what_a_killed_run_leaves_goes_with_the_next_gc(stack: Stack, spark: SparkSession) -> None:
    settings = JobsSettings.of(stack.environment("jobs"))
    dsn = stack.endpoints.postgres_dsn("postgres")
    store = BulkStore(settings)
    with (
        diskless_topic(stack) as topic,
        connect_jobs(settings, application_name="test") as plane,
    ):
        topic.produce(8)
        plane.request_tiering(topic.name)
        with breakpoint_at(dsn, UPLOADED) as holder:
            driver = start(stack, topic)
            try:
                until("a segment to be uploaded", lambda: waiting(holder), 120)
            finally:
                kill_nine(driver)
            for pid in waiting(holder):
                holder.execute("SELECT pg_terminate_backend(%s)", [pid])
        left = segment_objects(store, settings, topic)
        assert left, "the kill left objects"
        assert start(stack, topic).wait(120) == 0
        gc(False, False)(job(stack, spark, TIDELINE_GC_GRACE_MS="0"))
        known = {
            key for row in topic.segments() for key in object_keys(row.object_key_stem).values()
        }
        assert segment_objects(store, settings, topic) == known
        assert not left <= known, "objects of the killed run are gone"
        assert splits(store, settings, topic) == []
        assert topic.read() == topic.records


def segment_objects(store: BulkStore, settings: JobsSettings, topic: Topic) -> set[str]:
    prefix = f"{settings.s3_tiered_prefix.rstrip('/')}/{topic.name}-"
    return {entry.key for entry in store.list_objects(settings.s3_tiered_bucket, prefix)}


def splits(store: BulkStore, settings: JobsSettings, topic: Topic) -> list[str]:
    prefix = f"split/{topic.id_base64}/"
    return [entry.key for entry in store.list_objects(settings.s3_bucket, prefix)]
