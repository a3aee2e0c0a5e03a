"""The pipeline on a real stack: what was produced is read back from segments, byte for byte."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.tiering import job as tiering
from tests.integration.dump_log import finished, start_dump
from tests.support.waiting import HANGS_S
from tests.tiering_topic import CODECS, PARTITIONS, Topic, diskless_topic, job
from tideline.control_plane.tiering_model import MergedSegmentRow
from tideline.errors import ExitCode
from tideline.kafka.segment_files import SegmentFile, object_keys, offset_name
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings
from tideline.stack import Stack


@pytest.fixture
def topic(stack: Stack) -> Iterator[Topic]:
    with diskless_topic(stack) as made:
        yield made


def tideline(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tideline", *arguments],
        env={**os.environ, **stack.environment("jobs")},
        capture_output=True, text=True, timeout=HANGS_S, check=False,
    )  # fmt: skip


def test_aged_data_is_tiered_and_reads_as_before(
    topic: Topic, stack: Stack, spark: SparkSession, tmp_path: Path
) -> None:
    topic.produce()
    before = topic.rows_left()
    assert before > len(CODECS)
    assert topic.states() == {"DISKLESS_ONLY"}

    young = tiering.tiering(job(stack, spark), [topic.name])
    assert young.details["split"]["batches"] == 0, "retention.ms is seven days"  # type: ignore[index]

    status = tideline(stack, "tiering", "status", topic.name, "-o", "json")
    assert status.returncode == ExitCode.OK, status.stderr
    rows = json.loads(status.stdout)["partitions"]
    assert sum(row["pending_batches"] for row in rows) == before
    assert {row["next_step"] for row in rows} == {"split once it is older than local.retention.ms"}

    assert tideline(stack, "tiering", "pause", topic.name).returncode == ExitCode.OK
    assert tideline(stack, "tiering", "trigger", topic.name).returncode == ExitCode.OK
    paused = tiering.tiering(job(stack, spark), [topic.name])
    assert paused.details["split"]["batches"] == 0  # type: ignore[index]
    assert tideline(stack, "tiering", "resume", topic.name).returncode == ExitCode.OK

    plan = tiering.tiering(job(stack, spark), [topic.name], dry_run=True)
    assert {row["partition"] for row in plan.details["eligible"]} == {0, 1}  # type: ignore[attr-defined]
    assert topic.rows_left() == before, "a dry run changes nothing"

    done = tiering.tiering(job(stack, spark), [topic.name])
    assert done.failed is None
    assert done.details["merge"]["batches"] == before  # type: ignore[index]
    assert topic.rows_left() == 0
    assert topic.states() == {"HYBRID"}
    assert topic.read() == topic.records, "all from segments"
    topic.produce(20)
    assert topic.read() == topic.records, "from segments, then from WAL objects"
    kafka_finds_nothing_wrong(stack, topic.name, topic.segments(), tmp_path)


def kafka_finds_nothing_wrong(
    stack: Stack, name: str, rows: list[MergedSegmentRow], directory: Path
) -> None:
    """Kafka's own tool reads the segments, finds every index entry right, and decodes what is
    exported of them."""
    store = ObjectStoreClient(JobsSettings.of(stack.environment("jobs")))
    bucket = stack.endpoints.s3.tiered_bucket
    files: list[Path] = []
    for row in rows:
        place = directory / str(row.partition)
        place.mkdir(exist_ok=True)
        for file, key in object_keys(row.object_key_stem).items():
            path = place / f"{offset_name(row.base_offset)}{file}"
            path.write_bytes(store.get(bucket, key))
            if file is not SegmentFile.LEADER_EPOCHS:
                files.append(path)
    exported = directory / f"{offset_name(0)}.log"
    told = tideline(stack, "export", "remote-log-metadata", name, "-o", str(exported))
    assert told.returncode == ExitCode.OK, told.stderr
    running = [
        start_dump(files, "--deep-iteration"),
        start_dump(files, "--index-sanity-check"),
        start_dump([exported], "--remote-log-metadata-decoder"),
    ]
    deep, sanity, metadata = [finished(process) for process in running]
    assert (deep.complaints, sanity.complaints, metadata.complaints) == ("", "", "")
    said = [line for lines in sanity.sections.values() for line in lines]
    assert sum(line.endswith("passed sanity check.") for line in said) == 2 * len(rows), said
    assert not [line for lines in deep.sections.values() for line in lines if "isvalid: f" in line]
    ((_, lines),) = metadata.sections.items()
    ranges = [
        tuple(int(number) for number in found)
        for line in lines
        for found in re.findall(
            r"RemoteLogSegmentMetadata\{.*startOffset=(\d+), endOffset=(\d+),"
            r".*segmentSizeInBytes=(\d+)", line
        )
    ]  # fmt: skip
    assert ranges == [(row.base_offset, row.last_offset, row.size_bytes) for row in rows]
    assert sum("state=COPY_SEGMENT_FINISHED" in line for line in lines) == len(rows)


def test_a_topic_is_tiered_by_age_in_one_command(topic: Topic, stack: Stack) -> None:
    topic.produce(20)
    told = tideline(stack, "tiering", "trigger", topic.name, "--now")
    assert told.returncode == ExitCode.OK, told.stderr
    result = json.loads(told.stdout.splitlines()[-1])
    assert result["merge"]["segments"] == PARTITIONS
    assert topic.rows_left() == 0
    assert topic.read() == topic.records


def test_a_topic_without_diskless_data_is_refused(stack: Stack) -> None:
    for command in (("status", "no-such-topic"), ("trigger", "no-such-topic")):
        told = tideline(stack, "tiering", *command)
        assert told.returncode == ExitCode.REFUSED
        assert "no-such-topic" in told.stderr
