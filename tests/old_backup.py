"""Topics that live on after a backup of Postgres was taken, and what must be true of them when it
is all that was left, and was rebuilt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from spark.gc.history import adopt_history
from spark.gc.job import gc
from spark.retention.job import retention
from tests import tiering_now
from tests.aged_topic import (
    HOUR_MS,
    Readers,
    let_the_grace_pass,
    produce,
    run,
    settings_of,
    tier,
)
from tests.harness import Case, create_topics, delete_topics, described, migration_case
from tests.raw_batches import raw_batches
from tests.support.waiting import HANGS_S
from tests.tiering_topic import PARTITIONS, Topic, diskless_topic
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.demo.topic import set_config
from tideline.stack import Stack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD, YOUNG = 20, 10
"""Records of the topic of which retention removes those that are old."""
LARGEST = 2_000_000
"""Of a batch, in bytes: larger than what clients gather in an outage."""
CLASSIC, AGED, GONE = "never-migrated", "aged-without-disks", "deleted-later"
BORN_DISKLESS = {"diskless.enable": "true"}


@dataclass(frozen=True)
class Suffix:
    """One partition, up to where it had come when Postgres was lost."""

    topic: str
    partition: int
    start: int
    end: int
    batches: tuple[bytes, ...]


@dataclass
class World:
    """``orders`` is hybrid, ``late`` classic with clients, the other ones were born diskless."""

    stack: Stack
    orders: Case
    late: Case
    born: Topic
    _held: ExitStack
    young: Topic | None = None
    """Born after the backup."""
    boundaries: tuple[list[int], list[int]] = ([], [])
    suffixes: list[Suffix] = field(default_factory=list)

    @property
    def aged(self) -> Readers:
        return Readers(self.orders.bootstrap, AGED)

    def live_on(self) -> None:
        """Everything that the backup does not know. Nothing is under way at the end."""
        self.late.produce()
        self.late.trigger()
        self.orders.write(60)
        assert tiering_now.tier(self.stack, self.orders.topic)
        self.orders.write(60)
        assert tiering_now.split(self.stack, self.orders.topic)
        self.orders.write(60)
        self.born.produce(20)
        self._cut(self.born)
        self.young = self._held.enter_context(diskless_topic(self.stack))
        self.young.produce(20)
        produce(self.late.bootstrap, AGED, YOUNG, _now_ms(), first=OLD, value=b"young")
        admin = self.orders.admin
        delete_topics(admin, GONE)
        set_config(admin, AGED, "retention.ms", str(HOUR_MS))
        set_config(admin, self.orders.topic, "max.message.bytes", str(LARGEST))
        self.late.until_ready()
        self.late.until_acknowledged(20)
        self.late.rest()

    def remember(self) -> None:
        """What clients were told, as it lies there now."""
        self.boundaries = self.orders.boundaries(), self.late.boundaries()
        assert min(map(min, self.boundaries)) >= 0
        ends = {
            (case.topic, p): (boundary, case.ledger.acknowledged_through(p) + 1)
            for case, boundaries in zip((self.orders, self.late), self.boundaries, strict=True)
            for p, boundary in enumerate(boundaries)
        }
        ends |= {
            (topic.name, p): (min(records), max(records) + 1)
            for topic in self._born_diskless
            for p, records in topic.records.items()
        }
        ends[AGED, 0] = (0, OLD + YOUNG)
        self.suffixes = [
            Suffix(name, p, start, end, tuple(raw_batches(self.stack, name, p, start, end)))
            for (name, p), (start, end) in ends.items()
        ]

    def assert_the_same(self, *, aged_from: int = 0) -> None:
        """Nothing that was acknowledged is lost, moved or other bytes; what was deleted stays so.
        Records of :data:`AGED` begin at ``aged_from``."""
        assert (self.orders.boundaries(), self.late.boundaries()) == self.boundaries
        for one in self.suffixes:
            start = aged_from if one.topic == AGED else one.start
            now = tuple(raw_batches(self.stack, one.topic, one.partition, start, one.end))
            whole = now == one.batches if start == one.start else now == one.batches[-len(now) :]
            assert now, f"nothing is left of {one.topic}-{one.partition}"
            assert whole, f"{one.topic}-{one.partition} has other bytes"
        for topic in self._born_diskless:
            assert topic.read() == topic.records
        assert (self.aged.earliest, self.aged.latest) == (aged_from, OLD + YOUNG)
        values = self.aged.read(aged_from, OLD + YOUNG - aged_from)
        assert [value[:6] for _, _, value in values] == [
            b"%06d" % n for n in range(aged_from, OLD + YOUNG)
        ]
        admin = self.orders.admin
        assert GONE not in admin.list_topics(timeout=HANGS_S).topics
        assert described(admin, AGED)["retention.ms"].value == str(HOUR_MS)
        assert described(admin, self.orders.topic)["max.message.bytes"].value == str(LARGEST)

    def run_the_jobs(self, spark: SparkSession) -> set[str]:
        """Those that take something away, and the collection again when all graces are over; the
        topics of which retention has removed something."""
        with connect_jobs(settings_of(self.stack), application_name="test") as plane:
            adopt_history(settings_of(self.stack), plane, "ann", "Postgres was rebuilt")
        removed = run(self.stack, spark, retention)["removals"]
        tier(self.stack, spark, self.orders.topic)
        run(self.stack, spark, gc)
        let_the_grace_pass(self.stack)
        deleted = run(self.stack, spark, gc)["deleted"]
        assert deleted["wal"], "nothing was collected"
        return {removal["topic"] for removal in removed}

    @property
    def _born_diskless(self) -> list[Topic]:
        assert self.young is not None
        return [self.born, self.young]

    def _cut(self, topic: Topic) -> None:
        """DeleteRecords in the middle of each partition."""
        for partition, records in topic.records.items():
            middle = (min(records) + max(records)) // 2
            at = TopicPartition(topic.name, partition, middle)
            assert (
                self.orders.admin.delete_records([at])[at].result(HANGS_S).low_watermark == middle
            )
            for offset in [offset for offset in records if offset < middle]:
                del records[offset]


@contextmanager
def before_the_backup(stack: Stack) -> Iterator[World]:
    """With consumers attached to ``orders`` and ``late``."""
    with ExitStack() as held:
        orders, late = (
            held.enter_context(migration_case(stack, partitions=PARTITIONS, name=name))
            for name in ("orders", "late")
        )
        create_topics(
            orders.admin,
            *(
                NewTopic(name, 1, 1, config=BORN_DISKLESS if name != CLASSIC else {})
                for name in (AGED, GONE, CLASSIC)
            ),
        )
        for case in (orders, late):
            case.consume()
        orders.trigger()
        orders.until_ready()
        orders.write(60)
        assert tiering_now.tier(stack, orders.topic)
        orders.write(60)
        born = held.enter_context(diskless_topic(stack))
        born.produce(20)
        produce(orders.bootstrap, AGED, OLD, _now_ms() - 2 * HOUR_MS, value=b"old")
        produce(orders.bootstrap, GONE, OLD, _now_ms())
        yield World(stack, orders, late, born, held)


def _now_ms() -> int:
    return int(time.time() * 1000)
