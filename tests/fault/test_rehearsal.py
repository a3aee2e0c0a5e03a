"""Postgres is destroyed under live clients, and rebuilt out of the bucket (docs/restore.md)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from tests import tiering_now
from tests.conftest import HOMES_VARIABLE
from tests.harness import until
from tideline import control_plane
from tideline.demo.context import DemoOptions, DemoOutput
from tideline.demo.rehearsal import Rehearsal
from tideline.demo.report import Check
from tideline.demo.run import Demo
from tideline.demo.workload import GroupConsumer, LibrdkafkaProducer
from tideline.domain.messages import TopicRef
from tideline.settings import WorkerSettings
from tideline.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.fault]

OPTIONS = DemoOptions(
    partitions=2, history_segments=1, librdkafka_rate=100.0, java_rate=0, before_s=1.0,
    after_s=2.0, aging=False,
)  # fmt: skip

BORN, CUT = [b"%d" % n for n in range(50)], 20


@pytest.fixture
def own_stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Of one broker: what is destroyed here is nobody else's."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "one")
    home = Path(os.environ[HOMES_VARIABLE]) / f"{process}-rehearsal"
    home.mkdir(mode=0o755)
    try:
        yield Stack.up(home, brokers=1)
    finally:
        (Stack.take_down if request.session.testsfailed else Stack.purge)(home)


def test_a_postgres_that_is_destroyed_is_rebuilt_out_of_the_bucket(own_stack: Stack) -> None:
    """A hybrid topic whose suffix is in merged segments, split files and WAL objects, one that was
    born diskless, and records that were deleted. Nothing acknowledged is lost, moved or doubled."""
    checks = asyncio.run(lose_and_rebuild(own_stack))
    bad = [check for check in checks if not check.ok]
    for check in bad:
        print(check)
    assert not bad


async def lose_and_rebuild(stack: Stack) -> list[Check]:
    settings = WorkerSettings.of(stack.environment("worker"))
    async with control_plane.connect(settings, application_name="test") as plane:
        demo = Demo(stack, plane, OPTIONS, DemoOutput())
        proof = await demo.run()
        assert proof.ok, proof.checks
        topic = await plane.tracked_topic(OPTIONS.topic)
        assert topic is not None
        await asyncio.to_thread(age, stack, demo)
        await asyncio.to_thread(born_and_cut, demo)
    ref = TopicRef(OPTIONS.topic, str(topic.topic_id), OPTIONS.partitions)
    member = GroupConsumer(
        "attached", demo.bootstrap, ref.topic, f"readers-of-{ref.topic}", demo.ledger
    )
    member.start()
    try:
        checks = await Rehearsal(demo, ref).run()
    finally:
        await asyncio.to_thread(member.stop)
    cut = await asyncio.to_thread(read_births, demo)
    return [*checks, Check("records that were deleted stay so", cut == BORN[CUT:], str(cut))]


def age(stack: Stack, demo: Demo) -> None:
    """Some of the suffix is merged, some is split, the newest is in WAL objects."""
    assert tiering_now.tier(stack, OPTIONS.topic, 20_000)
    more(demo)
    assert tiering_now.split(stack, OPTIONS.topic)
    more(demo)


def more(demo: Demo) -> None:
    producer = LibrdkafkaProducer(
        f"more-{time.monotonic_ns()}", demo.bootstrap, OPTIONS.topic, range(OPTIONS.partitions),
        demo.ledger, records_per_second=200, limit=60,
    )  # fmt: skip
    producer.start()
    producer.wait()


def born_and_cut(demo: Demo) -> None:
    """A topic that was born diskless and is deleted from its front, and one that is deleted."""
    made = demo.admin.create_topics(
        [NewTopic(name, 1, 1, config={"diskless.enable": "true"}) for name in ("births", "gone")]
    )
    for future in made.values():
        future.result(30)
    producer = Producer({"bootstrap.servers": demo.bootstrap, "enable.idempotence": True})
    for name in ("births", "gone"):
        for value in BORN:
            producer.produce(name, value, partition=0)
    assert producer.flush(30) == 0
    at = TopicPartition("births", 0, CUT)
    assert demo.admin.delete_records([at])[at].result(30).low_watermark == CUT
    demo.admin.delete_topics(["gone"])["gone"].result(30)


def read_births(demo: Demo) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": demo.bootstrap,
            "group.id": "births",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition("births", 0), timeout=30)
        assert (low, high) == (CUT, len(BORN))
        consumer.assign([TopicPartition("births", 0, OFFSET_BEGINNING)])
        found: list[bytes] = []
        until(
            "all to be read",
            lambda: (
                len(found) >= high - low
                or found.extend(m.value() for m in consumer.consume(100, 1.0) if not m.error())
            ),
        )
        return found
    finally:
        consumer.close()
