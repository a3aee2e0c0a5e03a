"""Postgres is destroyed under live clients, and rebuilt out of the bucket (docs/restore.md)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from tests import tiering_now
from tests.conftest import HOMES_VARIABLE
from tests.harness import (
    LASTING_SESSION,
    Breakpoint,
    Case,
    command,
    create_topics,
    delete_topics,
    migration_case,
    write,
)
from tests.old_backup import AGED, CLASSIC, OLD, World, before_the_backup
from tests.refusals import Refusals
from tests.support.waiting import HANGS_S, flushed, until
from tests.two_servers import SOON
from tideline import control_plane
from tideline.demo.context import DemoContext, DemoOptions, DemoOutput
from tideline.demo.rehearsal import Rehearsal
from tideline.demo.report import Check
from tideline.demo.run import Demo
from tideline.demo.workload import GroupConsumer
from tideline.domain.messages import TopicRef
from tideline.domain.migration import Phase
from tideline.object_store.client import ObjectStoreClient
from tideline.ownership import fleet_position
from tideline.settings import WorkerSettings
from tideline.stack import Stack
from tideline.stack.credentials import SUPERUSER

OPTIONS = DemoOptions(
    partitions=2, history_segments=1, librdkafka_rate=100.0, java_rate=0, before_s=1.0,
    after_s=2.0, aging=False,
)  # fmt: skip

BORN, CUT = [b"%d" % n for n in range(50)], 20
AFTERWARDS = [b"there", b"lost", b"there, too"]


@pytest.fixture(scope="module")
def own_stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Of one broker: what is destroyed here is nobody else's."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "one")
    home = Path(os.environ[HOMES_VARIABLE]) / f"{process}-rehearsal"
    home.mkdir(mode=0o755)
    try:
        yield Stack.up(home, brokers=1, settings=SOON)
    finally:
        (Stack.take_down if request.session.testsfailed else Stack.purge)(home)


def test_a_postgres_that_is_destroyed_is_rebuilt_out_of_the_bucket(own_stack: Stack) -> None:
    """A hybrid topic whose suffix is in merged segments, split files and WAL objects, one that was
    born diskless, records that were deleted, and a migration that has set one B0 of two. Nothing
    acknowledged is lost, moved or doubled; the migration goes on when it is started again. A record
    that is lost for good is given up."""
    with crossed_halfway(own_stack) as halfway:
        (boundary, _) = halfway.boundaries()
        bad = [check for check in asyncio.run(lose_and_rebuild(own_stack)) if not check.ok]
        assert not bad, "\n".join(map(str, bad))
        halfway.write(60)
        command(own_stack, "migrate", halfway.topic, "--wait", "--timeout", "300", wait=True)
        assert halfway.until_crossed()[0] == boundary
        halfway.produce()
        halfway.end_well()


@contextmanager
def crossed_halfway(stack: Stack) -> Iterator[Case]:
    """Partition 0 has its B0 and records behind it, partition 1 waits for its write pause. What
    holds it there is lost with Postgres."""
    with migration_case(stack, partitions=2, name="halfway") as case:
        case.consume()
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.QUIESCE, partition=1)
        case.trigger()
        stop.wait_until_hit()
        until("the first B0", lambda: case.boundaries()[0] >= 0)
        assert case.boundaries()[1] == -1
        case.write(60)
        yield case


def test_a_backup_that_is_minutes_old_becomes_the_postgres_that_was_lost(
    own_stack: Stack, spark: SparkSession
) -> None:
    """After it: records on every topic, segments, a migration, starts that moved, a topic that was
    deleted, one that was born, limits that were changed. Every role refuses what the backup holds
    until it is rebuilt; then clients go on, and no job takes away what was acknowledged."""
    with before_the_backup(own_stack) as world:
        backup = own_stack.back_up_postgres()
        beat = newest_beat(own_stack)
        world.live_on()
        world.remember()
        until("the fleet to have seen more than the backup has", lambda: seen(own_stack) > beat)
        bad = [check for check in asyncio.run(from_backup(world, backup)) if not check.ok]
        assert not bad, "\n".join(map(str, bad))
        world.assert_the_same()
        for case in (world.orders, world.late):
            case.write(60)
            # Few: each is an object of its own, and the jobs look at all of them.
            case.produce("later", rate=4)
        assert world.run_the_jobs(spark) == {AGED}
        world.assert_the_same(aged_from=OLD)
        for case in (world.orders, world.late):
            case.settle()


async def from_backup(world: World, backup: Path) -> list[Check]:
    stack, orders = world.stack, world.orders
    settings = WorkerSettings.of(stack.environment("worker"))
    async with control_plane.connect(settings, application_name="test") as plane:
        demo = DemoContext(stack, plane, OPTIONS, DemoOutput())
    demo.ledger = orders.ledger
    ref = TopicRef(orders.topic, str(orders.topic_id), orders.partitions)
    refusals = Refusals(stack, orders.topic, world.boundaries[0][0], CLASSIC)
    return await Rehearsal(demo, ref, backup, refusals.checks).run()


def newest_beat(stack: Stack) -> int:
    with psycopg.connect(stack.endpoints.postgres_dsn("postgres")) as connection:
        row = connection.execute("SELECT max(beat) FROM tideline.history_beats").fetchone()
    assert row is not None
    return int(row[0])


def seen(stack: Stack) -> int:
    """The newest beat that lies in the bucket."""
    settings = WorkerSettings.of(stack.environment("worker"))
    position = fleet_position(ObjectStoreClient(settings), settings)
    return -1 if position is None else position.beat


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
        "attached", demo.bootstrap, ref.topic, f"readers-of-{ref.topic}", demo.ledger,
        config=LASTING_SESSION,
    )  # fmt: skip
    member.start()
    rehearsal = Rehearsal(demo, ref)
    try:
        checks = await rehearsal.run()
    finally:
        await asyncio.to_thread(member.stop)
    cut = await asyncio.to_thread(read_births, demo)
    checks.append(Check("records that were deleted stay so", cut == BORN[CUT:], str(cut)))
    return [*checks, *await lose_for_good(stack, rehearsal)]


async def lose_for_good(stack: Stack, rehearsal: Rehearsal) -> list[Check]:
    """A record whose row and object are gone: nobody reads past it, until it is given up."""
    demo, ends = rehearsal.demo, ("gateway-", "worker")
    programs = [name for name in stack.programs if name.startswith(ends)]
    for value in AFTERWARDS:
        await asyncio.to_thread(born, demo, "births", [value])
    await asyncio.gather(*(asyncio.to_thread(stack.stop, name) for name in programs))
    lost = await asyncio.to_thread(lose_object, stack, demo, len(BORN) + 1)
    said = of_births(await rehearsal.rebuild("--fill-holes"))
    assert (said["verdict"], said["to_fill"]) == ("holes", [lost]), said
    written = await rehearsal.rebuild("--write", "--fill-holes", "--reason", "lost", "--by", "demo")
    for name in programs:
        await asyncio.to_thread(stack.start, name)
    later = await rehearsal.rebuild()
    read = await asyncio.to_thread(read_births, demo, len(AFTERWARDS), len(AFTERWARDS) - 1)
    wanted = [*BORN[CUT:], AFTERWARDS[0], *AFTERWARDS[2:]]
    told = (of_births(written)["filled_now"], written["fine"], later["fine"])
    return [
        Check("what is given up is said, once", told == ([lost], False, True), str(told)),
        Check("a consumer reads over what was given up", read == wanted, str(read)),
    ]


def of_births(report: dict[str, Any]) -> dict[str, Any]:
    (found,) = (log for log in report["logs"] if log["topic"] == "births")
    return dict(found)


def lose_object(stack: Stack, demo: Demo, offset: int) -> list[int]:
    """Of the batch at ``offset`` of topic births; its first and last offset."""
    with psycopg.connect(stack.endpoints.postgres_dsn(SUPERUSER)) as connection:
        ((key, base, last),) = connection.execute(
            "DELETE FROM tideline.batches AS b USING tideline.wal_files AS f, tideline.logs AS l "
            "WHERE f.file_id = b.file_id AND l.log_id = b.log_id AND l.topic_name = 'births' "
            "AND %s BETWEEN b.base_offset AND b.last_offset "
            "RETURNING f.object_key, b.base_offset, b.last_offset",
            [offset],
        ).fetchall()
        others = connection.execute(
            "SELECT 1 FROM tideline.batches JOIN tideline.wal_files USING (file_id) "
            "WHERE object_key = %s",
            [key],
        ).fetchall()
    assert others == [], "nothing else is lost"
    ObjectStoreClient(demo.s3).delete(demo.s3.s3_bucket, [key])
    return [base, last]


def age(stack: Stack, demo: Demo) -> None:
    """Some of the suffix is merged, some is split, the newest is in WAL objects."""
    assert tiering_now.tier(stack, OPTIONS.topic, 20_000)
    more(demo)
    assert tiering_now.split(stack, OPTIONS.topic)
    more(demo)


def more(demo: Demo) -> None:
    write(demo.bootstrap, OPTIONS.topic, OPTIONS.partitions, demo.ledger, 60)


def born_and_cut(demo: Demo) -> None:
    """A topic that was born diskless and is deleted from its front, and one that is deleted."""
    names, diskless = ("births", "gone"), {"diskless.enable": "true"}
    create_topics(demo.admin, *(NewTopic(name, 1, 1, config=diskless) for name in names))
    for name in ("births", "gone"):
        born(demo, name, BORN)
    at = TopicPartition("births", 0, CUT)
    assert demo.admin.delete_records([at])[at].result(HANGS_S).low_watermark == CUT
    delete_topics(demo.admin, "gone")


def born(demo: Demo, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": demo.bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, partition=0)
    flushed(producer, 60)


def read_births(demo: Demo, more: int = 0, there: int = 0) -> list[bytes]:
    """Everything, of a log with ``more`` offsets and ``there`` records behind the first ones."""
    consumer = Consumer(
        {
            "bootstrap.servers": demo.bootstrap,
            "group.id": "births",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition("births", 0), timeout=HANGS_S)
        assert (low, high) == (CUT, len(BORN) + more)
        consumer.assign([TopicPartition("births", 0, OFFSET_BEGINNING)])
        found: list[bytes] = []
        until(
            "all to be read",
            lambda: (
                len(found) >= len(BORN) - CUT + there
                or found.extend(m.value() for m in consumer.consume(100, 1.0) if not m.error())
            ),
        )
        return found
    finally:
        consumer.close()
