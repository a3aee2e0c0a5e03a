"""What clients were told, by files that outlive Postgres, is compared with what is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.unit.rebuild.buckets import Bucket, Stream, footer_batch
from tideline.control_plane.model import TopicStatus, TrackedPartition, TrackedTopic, TrackingKind
from tideline.domain.catalog import Boundary, Topic
from tideline.domain.migration import MigrationState
from tideline.errors import UsageError
from tideline.gateway.tracking.snapshot import PostgresIdentity, SnapshotFile
from tideline.rebuild.reader import BucketReader
from tideline.rebuild.survey import Choices, Survey, survey
from tideline.rebuild.told import differences, read_told

TOPIC = UUID(int=21)
GROUPS = """
Consumer group 'billing' has no active members.

GROUP    TOPIC   PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG  CONSUMER-ID  HOST  CLIENT-ID
billing  orders  0          {position}      20              1    -            -     -
billing  orders  1          -               20              -    -            -     -
billing  classic 0          900             900             0    -            -     -
"""


@pytest.fixture
def found() -> Survey:
    """B0 = 10, and three batches behind it: the log ends at 13."""
    bucket = Bucket()
    bucket.note(Topic(TOPIC, "orders", False, 1, 1), Boundary(TOPIC, 0, 3, 5, 10, (), 2, 900, 4))
    stream = Stream(bucket)
    stream.commit(10, footer_batch(TOPIC, records=3))
    stream.store()
    return survey(BucketReader(bucket, "wal", ""), None, Choices())


@pytest.mark.parametrize(("position", "missed"), [(13, False), (14, True)])
def test_a_group_that_has_read_further_is_told(
    found: Survey, tmp_path: Path, position: int, missed: bool
) -> None:
    file = tmp_path / "groups.txt"
    file.write_text(GROUPS.format(position=position))
    told = differences(read_told(file), found)
    assert bool(told) is missed
    if missed:
        assert told == [
            "orders-0: group billing was told of offsets up to 13, and the last one that is known "
            "is 12"
        ]


@pytest.mark.parametrize(("acknowledged", "missed"), [(12, False), (13, True)])
def test_a_record_that_a_producer_was_told_of_is_there_or_is_told(
    found: Survey, tmp_path: Path, acknowledged: int, missed: bool
) -> None:
    file = tmp_path / "acks.jsonl"
    file.write_text(json.dumps({"topic": "orders", "partition": 0, "acknowledged": acknowledged}))
    assert bool(differences(read_told(file), found)) is missed


@pytest.mark.parametrize("written", ["at once", "by partition", "and another was begun"])
@pytest.mark.parametrize(("boundary", "missed"), [(10, False), (11, True)])
def test_a_gateways_snapshot_names_the_same_b0_or_is_told(
    found: Survey, tmp_path: Path, boundary: int, missed: bool, written: str
) -> None:
    before = TrackedPartition(TOPIC, 0, MigrationState.MIGRATING, 3, True)
    row = replace(before, state=MigrationState.HYBRID, quiesced=False, boundary=boundary)
    topic = TrackedTopic(
        "orders", TOPIC, TrackingKind.MIGRATED, TopicStatus.ACTIVE, "CreateTime", 1_000,
        partitions={0: row}, overrides={}, round=1,
    )  # fmt: skip
    file, identity = SnapshotFile(tmp_path, 1), PostgresIdentity("1", 1)
    if written != "at once":
        file.write(identity, [replace(topic, partitions={0: before})])
    file.write(identity, [topic])
    if written == "and another was begun":
        with file.path.open("a") as begun:
            begun.write('{"name":"orders","rows":[{"par')
    told = differences(read_told(file.path), found)
    assert bool(told) is missed


def test_a_topic_that_a_gateway_tracks_and_nobody_knows_is_told(
    found: Survey, tmp_path: Path
) -> None:
    row = TrackedPartition(uuid4(), 0, MigrationState.HYBRID, 3, False, boundary=5)
    topic = TrackedTopic(
        "lost", row.topic_id, TrackingKind.MIGRATED, TopicStatus.ACTIVE, "CreateTime", 1_000,
        partitions={0: row}, overrides={}, round=1,
    )  # fmt: skip
    file = SnapshotFile(tmp_path, 1)
    file.write(PostgresIdentity("1", 1), [topic])
    (told,) = differences(read_told(file.path), found)
    assert told.startswith("lost-0: ")


def test_a_file_of_another_kind_is_refused_with_what_is_read(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing was lost, I think\n")
    with pytest.raises(UsageError, match="kafka-consumer-groups"):
        read_told(file)
