"""kill -9 of the tiering driver at each of its steps: the next run finds its way, nothing is lost
or served twice, nothing is leaked, and a reader notices nothing.

Each step leaves something else behind. A split is recorded, its batches are marked and its claim
ends in one transaction (``finish_split``); a segment counts and the frontier moves in one
(``finish_merge``). "Split recorded" and "segment uploaded" are what is left when the last of these
is undone.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from spark.gc.job import gc
from spark.tiering.job import tiering
from tests.aged_topic import let_the_grace_pass
from tests.killed_driver import Step, killed_at
from tests.support.waiting import until
from tests.tiering_topic import Rereader, Topic, diskless_topic, job
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.kafka.segment_files import object_keys
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings
from tideline.stack import Stack

pytestmark = pytest.mark.timeout(1800)
SHORT_CLAIMS = {"TIDELINE_TIERING_SPLITTER_CLAIM_DURATION_MS": "1000"}


STEPS = (
    Step("WAL files claimed", "INSERT ON tideline.wal_file_claims", "true", True),
    Step("split recorded", "INSERT ON tideline.split_files", "true", False),
    Step("split counts", "INSERT ON tideline.split_files", "true", True),
    Step("segment begun", "INSERT ON tideline.merged_segments", "true", True),
    Step("segment uploaded", "UPDATE ON tideline.merged_segments",
         "NEW.state = 'COPY_SEGMENT_FINISHED'", False, in_spark=True),
    Step("segment counts", "UPDATE ON tideline.merged_segments",
         "NEW.state = 'COPY_SEGMENT_FINISHED'", True),
)  # fmt: skip


def test_killed_at_each_step_in_turn_nothing_is_lost_doubled_or_leaked(
    stack: Stack, spark: SparkSession
) -> None:
    settings = JobsSettings.of(stack.environment("jobs"))
    store = ObjectStoreClient(settings)
    with (
        diskless_topic(stack) as topic,
        connect_jobs(settings, application_name="test") as plane,
    ):
        run = ("spark.tiering", "--topic", topic.name)
        seen: set[str] = set()
        with Rereader(topic) as reader:
            for step in STEPS:
                topic.produce(8)
                plane.request_tiering(topic.name)
                killed_at(stack, step, *run, **SHORT_CLAIMS)
                reader.read_again()
                assert not reader.wrong, f"after {step.name!r}: {reader.wrong[0]}"
                seen |= segment_objects(store, settings, topic)
                until("the claims of the dead to expire", lambda: not topic.claims())
            plane.request_tiering(topic.name)
            assert tiering(job(stack, spark, **SHORT_CLAIMS), [topic.name]).failed is None
            reader.read_again()
            assert topic.rows_left() == 0, "all is merged"
            assert topic.read() == topic.records
        assert reader.rounds > len(STEPS)
        assert not reader.wrong, reader.wrong[0]

        let_the_grace_pass(stack)
        gc(job(stack, spark), orphans=False)
        known = {
            key for row in topic.segments() for key in object_keys(row.object_key_stem).values()
        }
        assert segment_objects(store, settings, topic) == known
        assert seen - known, "a kill left objects of a segment that does not count"
        assert topic.read() == topic.records


def segment_objects(store: ObjectStoreClient, settings: JobsSettings, topic: Topic) -> set[str]:
    prefix = f"{settings.s3_tiered_prefix.rstrip('/')}/{topic.name}-"
    return {entry.key for entry in store.list_objects(settings.s3_tiered_bucket, prefix)}
