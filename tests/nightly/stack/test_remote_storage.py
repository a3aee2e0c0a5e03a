"""Brokers tier to S3 through our storage manager, read back, delete, live through outages."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness import again, alter_configs, create_topics, delete_topics, leader_of
from tests.support.waiting import HANGS_S, flushed, until
from tideline.stack import Stack

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

RECORD_BYTES = 50_000
RECORDS_PER_MIB = 20
SUFFIXES = {"log", "index", "timeindex", "snapshot", "leader-epoch-checkpoint"}


@dataclass
class TieredTopic:
    """One partition, three replicas, segments of 1 MiB."""

    stack: Stack
    name: str
    admin: AdminClient
    produced: list[str]
    """Digest of each acknowledged value, in the order of offsets."""

    def produce(self, count: int) -> None:
        """``count`` incompressible records, each acknowledged by all replicas."""
        producer = Producer(
            {
                "bootstrap.servers": self.stack.endpoints.kafka_bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 60_000,
                "linger.ms": 5,
            }
        )
        failures: list[object] = []
        for _ in range(count):
            value = os.urandom(RECORD_BYTES)
            self.produced.append(hashlib.sha256(value).hexdigest())
            producer.produce(
                self.name,
                value,
                partition=0,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        flushed(producer, 60)
        assert not failures

    def consume_from(self, offset: int = 0) -> list[str]:
        """Digests of the records from ``offset`` to the end."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.stack.endpoints.kafka_bootstrap,
                "group.id": f"reader-{self.name}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.error.backoff.ms": 100,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(self.name, 0, offset)])
        digests: list[str] = []

        def all_read() -> bool:
            for message in consumer.consume(100, 0.5):
                if message.error() is None:
                    value = message.value()
                    assert isinstance(value, bytes)
                    digests.append(hashlib.sha256(value).hexdigest())
            return len(digests) >= len(self.produced) - offset

        until(f"the records of {self.name} from {offset} on", all_read)
        consumer.close()
        return digests

    def set_configs(self, **values: str) -> None:
        alter_configs(self.admin, self.name, values)

    def objects(self) -> dict[str, str]:
        """File name without the segment id (as on a broker's disk): key in S3."""
        found: dict[str, str] = {}
        for name, key in self.named_keys():
            assert name not in found, "one set of objects per segment"
            found[name] = key
        return found

    def named_keys(self) -> Iterator[tuple[str, str]]:
        s3 = self.stack.endpoints.s3
        pages = s3_client(self.stack).get_paginator("list_objects_v2")
        for page in pages.paginate(
            Bucket=s3.tiered_bucket, Prefix=f"{s3.tiered_prefix}/{self.name}-"
        ):
            for entry in page.get("Contents", []):
                parts = re.fullmatch(r".*/0/(\d{20})-[\w-]{22}\.([a-z-]+)", entry["Key"])
                assert parts is not None, entry["Key"]
                yield f"{parts[1]}.{parts[2]}", entry["Key"]

    def segments(self) -> set[int]:
        """Base offsets of the segments whose ``.log`` is in S3. A put that a suspended server
        carries out after its client gave up leaves an object of another set: no segment."""
        return {int(name[:20]) for name, _ in self.named_keys() if name.endswith(".log")}

    def content(self, key: str) -> bytes:
        answer = s3_client(self.stack).get_object(
            Bucket=self.stack.endpoints.s3.tiered_bucket, Key=key
        )
        return answer["Body"].read()

    def replica_directories(self) -> list[Path]:
        return [
            self.stack.data_path(f"kafka-{node}") / f"{self.name}-0"
            for node in self.stack.endpoints.brokers
        ]

    def leader_directory(self) -> Path:
        """Of the replica that uploads. One that follows closes its segments at other offsets where
        it has fetched several batches at once."""
        leader, _ = leader_of(self.stack, self.name, 0)
        return self.stack.data_path(f"kafka-{leader}") / f"{self.name}-0"

    def local_bases(self, directory: Path) -> list[int]:
        return sorted(int(path.stem) for path in directory.glob("*.log"))

    def await_tiered(self, within_s: float = 30) -> None:
        """Every segment but the active one is in S3."""

        def are_tiered() -> bool:
            closed = self.local_bases(self.leader_directory())[:-1]
            return bool(closed) and set(closed) <= self.segments()

        until("every closed segment to be in S3", are_tiered, within_s)

    def await_local_deletion(self) -> None:
        """Each replica has only the active segment."""
        until(
            "each replica to have only its active segment",
            lambda: all(len(self.local_bases(each)) == 1 for each in self.replica_directories()),
            30,
        )


def s3_client(stack: Stack) -> S3Client:
    s3 = stack.endpoints.s3
    return boto3.client(
        "s3",
        endpoint_url=s3.url,
        region_name=s3.region,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
        config=Config(s3={"addressing_style": "path"}),
    )


@pytest.fixture
def topic(stack: Stack, request: pytest.FixtureRequest) -> Iterator[TieredTopic]:
    admin = AdminClient({"bootstrap.servers": stack.endpoints.kafka_bootstrap})
    name = "tiered-" + hashlib.sha256(f"{request.node.name}{time.time()}".encode()).hexdigest()[:8]
    new = NewTopic(
        name,
        1,
        replication_factor=min(3, stack.brokers),
        config={
            "remote.storage.enable": "true",
            "segment.bytes": "1048576",
            "retention.ms": "-1",
        },
    )
    create_topics(admin, new)
    yield TieredTopic(stack, name, admin, [])
    with suppress(KafkaException):  # a test may have deleted it
        delete_topics(admin, name)


def test_objects_are_byte_identical_to_the_files_on_a_brokers_disk(topic: TieredTopic) -> None:
    topic.produce(4 * RECORDS_PER_MIB)
    topic.await_tiered()
    objects = {name: topic.content(key) for name, key in topic.objects().items()}
    disk = topic.leader_directory()
    bases = topic.local_bases(disk)
    for base, following in pairwise(bases):
        stem = f"{base:020d}"
        assert {name[21:] for name in objects if name.startswith(stem)} == SUFFIXES
        for suffix in ("log", "index", "timeindex"):
            assert objects[f"{stem}.{suffix}"] == (disk / f"{stem}.{suffix}").read_bytes()
        # A segment goes with the producer state at its end.
        snapshot = disk / f"{following:020d}.snapshot"
        assert objects[f"{stem}.snapshot"] == snapshot.read_bytes()
        epochs = (disk / "leader-epoch-checkpoint").read_bytes()
        assert objects[f"{stem}.leader-epoch-checkpoint"] == epochs


def test_a_consumer_reads_from_s3_what_the_brokers_no_longer_have(topic: TieredTopic) -> None:
    topic.produce(5 * RECORDS_PER_MIB)
    topic.await_tiered()
    topic.set_configs(**{"local.retention.bytes": "1"})
    topic.await_local_deletion()
    assert topic.consume_from(0) == topic.produced
    middle = len(topic.produced) // 2
    assert topic.consume_from(middle) == topic.produced[middle:]


def test_an_aborted_transaction_stays_invisible_when_it_is_read_from_s3(
    topic: TieredTopic,
) -> None:
    topic.produce(RECORDS_PER_MIB)
    aborting = Producer(
        {
            "bootstrap.servers": topic.stack.endpoints.kafka_bootstrap,
            "transactional.id": f"aborting-{topic.name}",
        }
    )
    aborting.init_transactions(HANGS_S)
    aborting.begin_transaction()
    for _ in range(RECORDS_PER_MIB):
        aborting.produce(topic.name, os.urandom(RECORD_BYTES), partition=0)
    flushed(aborting, 30)
    aborting.abort_transaction(HANGS_S)
    topic.produce(2 * RECORDS_PER_MIB)
    topic.await_tiered()
    topic.set_configs(**{"local.retention.bytes": "1"})
    topic.await_local_deletion()
    assert any(name.endswith(".txnindex") for name in topic.objects())
    assert topic.consume_from(0) == topic.produced


def test_deleting_records_deletes_the_objects_of_whole_segments_below(topic: TieredTopic) -> None:
    topic.produce(4 * RECORDS_PER_MIB)
    topic.await_tiered()
    bases = topic.local_bases(topic.leader_directory())
    third = TopicPartition(topic.name, 0, bases[2])
    deleted = again(
        "records to be deleted",
        lambda: topic.admin.delete_records([third])[third].result(HANGS_S),
    )
    assert deleted.low_watermark == bases[2]
    until(
        "the objects below to be deleted",
        lambda: min(int(name[:20]) for name in topic.objects()) == bases[2],
        30,
    )


def test_deleting_the_topic_deletes_its_objects(topic: TieredTopic) -> None:
    topic.produce(3 * RECORDS_PER_MIB)
    topic.await_tiered()
    delete_topics(topic.admin, topic.name)
    until("its objects to be deleted", lambda: topic.objects() == {}, 30)


@pytest.mark.parametrize("outage", ["suspended", "killed"])
def test_an_outage_of_s3_loses_nothing_and_tiering_goes_on(
    topic: TieredTopic, stack: Stack, outage: str
) -> None:
    topic.produce(2 * RECORDS_PER_MIB)
    topic.await_tiered()
    before = len(topic.segments())
    if outage == "killed":
        stack.kill("s3", restart=False)
    else:
        stack.suspend("s3")
    try:
        topic.produce(3 * RECORDS_PER_MIB)
        # The outage must have met a copy, or this proves nothing.
        until("a copy to fail", lambda: a_copy_failed(topic), 30)
        assert topic.consume_from(0) == topic.produced
    finally:
        if outage == "killed":
            stack.start("s3")
        else:
            stack.resume("s3")
            stack.wait_ready("s3")
    topic.produce(RECORDS_PER_MIB)
    topic.await_tiered(within_s=60)
    assert len(topic.segments()) > before
    topic.set_configs(**{"local.retention.bytes": "1"})
    topic.await_local_deletion()
    assert topic.consume_from(0) == topic.produced


def a_copy_failed(topic: TieredTopic) -> bool:
    logs = [topic.stack.log_path(f"kafka-{node}") for node in topic.stack.endpoints.brokers]
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    return any("Copy failed, cleaning segment" in line and topic.name in line for line in lines)
