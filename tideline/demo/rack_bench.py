"""What the demo of racks works with: its topics, clients in racks, looks and waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import httpx
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from tideline import control_plane
from tideline.control_plane.model import RequestState
from tideline.demo import topic as topics
from tideline.demo.ledger import Ledger
from tideline.demo.patience import Patience
from tideline.demo.report import Check
from tideline.demo.run import is_ready
from tideline.demo.workload import QUIET, GroupConsumer, LibrdkafkaProducer
from tideline.demo.zones import (
    Counted,
    Meter,
    Placed,
    Stage,
    acknowledged_since,
    has_passed,
    rack_gap_ms,
    since,
)
from tideline.errors import TidelineError
from tideline.settings import WorkerSettings
from tideline.stack import Stack

T = TypeVar("T")
Config = Mapping[str, str | int]

BORN = "sensors"
"""Born diskless."""
WIDE, NARROW = "orders", "clicks"
"""Migrated: with a replica in each rack, and with one alone, on the broker that is lost first."""
PARTITIONS = {BORN: 12, WIDE: 1, NARROW: 1}
PLAIN = "plain"
"""The producer of a migrated topic, which does not say where it is."""
PER_PARTITION = 2.0
"""Records a second of each producer."""
VALUE_BYTES = 1_000
REFRESH: Config = {"topic.metadata.refresh.interval.ms": 2_000}
"""How soon clients hear of a nearer leader; librdkafka's own default is five minutes."""
WINDOW_S = 4.0
"""How long each state is counted, once it is reached."""
QUIET_S = 2.5
"""Nobody leaves a rack any more when nobody has for so long: longer than ``REFRESH``."""
WAIT_S = 90.0
TRIES = 3


@dataclass
class RackBench:
    """A stack that is up, its clients, and what was seen."""

    stack: Stack
    say: Callable[[str], None]
    checks: list[Check] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bootstrap = self.stack.endpoints.gateway_bootstrap
        self.admin = self._looker("looks")
        self._lookers = {"": self.admin}
        self.meter = Meter()
        self.acknowledged = {topic: Ledger() for topic in PARTITIONS}
        self.producers: list[LibrdkafkaProducer] = []
        self.readers: list[tuple[str, str, GroupConsumer, Ledger]] = []
        """Topic, name, client, what it has read."""
        self.lost: set[int] = set()
        nodes = self.admin.describe_cluster().result(30).nodes
        self.rack_of = {node.id: str(node.rack) for node in nodes}
        self.racks = sorted(set(self.rack_of.values()))

    def _looker(self, client_id: str) -> AdminClient:
        config = {"bootstrap.servers": self.bootstrap, "client.id": client_id}
        return AdminClient({**config, "log_level": QUIET})

    def produce(
        self,
        topic: str,
        name: str,
        config: Config | None = None,
        limit: int | None = None,
    ) -> LibrdkafkaProducer:
        """Start a producer of all partitions; without ``limit`` it goes on."""
        partitions = range(PARTITIONS[topic])
        rate = 1e9 if limit else PER_PARTITION * len(partitions)
        producer = LibrdkafkaProducer(
            name, self.bootstrap, topic, partitions, self.acknowledged[topic],
            records_per_second=rate, value_bytes=VALUE_BYTES, limit=limit, config=config,
        )  # fmt: skip
        producer.start()
        if limit is None:
            self.producers.append(producer)
        return producer

    def consume(self, topic: str, name: str, config: Config | None = None) -> None:
        """Start a consumer, alone in its group, from the first offset on."""
        ledger = Ledger()
        group = f"{name}-reads-{topic}"
        reader = GroupConsumer(group, self.bootstrap, topic, group, ledger, config=config)
        reader.start()
        self.readers.append((topic, name, reader, ledger))

    def until_all_go_on(self, at: float) -> None:
        """:meth:`until_goes_on` of every topic."""
        for topic in PARTITIONS:
            self.until_goes_on(topic, at)

    def until_goes_on(self, topic: str, at: float) -> None:
        """Each producer was answered in each partition after ``at``, and each reader has read
        what was."""
        names = self.racks if topic == BORN else [PLAIN]
        written = self.acknowledged[topic]
        probe = partial(acknowledged_since, written, names, PARTITIONS[topic], at)
        answered = self.until(f"acknowledgements in every partition of {topic}", probe)
        for read, name, reader, ledger in self.readers:
            if read == topic:
                passed = partial(has_passed, ledger, answered)
                try:
                    self.until(f"{name} to read {topic} on", passed)
                except TidelineError as error:
                    raise TidelineError(f"{error}: {reader.state()}") from None

    def reader(self, topic: str, offset: int) -> Consumer:
        """Of the only partition of a migrated topic."""
        config = {"bootstrap.servers": self.bootstrap, "group.id": "looks", "log_level": QUIET}
        consumer = Consumer({**config, "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, offset)])
        return consumer

    def offsets_from(self, topic: str, offset: int) -> list[int]:
        """What a new consumer reads from ``offset`` on, at least as much as was acknowledged."""
        end = self.acknowledged[topic].acknowledged_through(0)
        consumer, found = self.reader(topic, offset), list[int]()
        try:
            patience = Patience(WAIT_S)
            while (found[-1] if found else -1) < end:
                if patience.over:
                    raise TidelineError(f"{topic} was read to {found[-1:]} of {end}")
                messages = consumer.consume(1_000, 0.5)
                found += [m.offset() or 0 for m in messages if m.error() is None]
        finally:
            consumer.close()
        return found

    async def migrated(self, asked: Sequence[str]) -> dict[str, int]:
        """B0 of topics of one partition, once they are ready. What the preflight could not look at
        for a moment is asked for again."""
        settings = WorkerSettings.of(self.stack.environment("worker"))
        found: dict[str, int] = {}
        again = dict.fromkeys(asked, TRIES)
        async with control_plane.connect(settings, application_name="tideline-demo") as plane:
            patience = Patience(2 * WAIT_S)
            while len(found) < len(asked):
                if patience.over:
                    raise TidelineError(f"of {asked} only {list(found)} became hybrid")
                await asyncio.sleep(0.25)
                for topic in asked:
                    for status in await plane.migration_status(topic):
                        if is_ready(status):
                            found[topic] = status.boundary
                    for request in await plane.list_requests(topic):
                        if request.state is RequestState.REFUSED:
                            if not again[topic]:
                                raise TidelineError(request.reason)
                            again[topic] -= 1
                            await asyncio.to_thread(topics.trigger_migration, self.admin, topic)
        return found

    @retry(
        retry=retry_if_exception_type(KafkaException),
        stop=stop_after_delay(30),
        wait=wait_fixed(0.2),
        reraise=True,
    )
    def placed(self, topic: str, rack: str = "") -> list[Placed]:
        """By partition, as a client in ``rack`` is told."""
        if rack not in self._lookers:
            self._lookers[rack] = self._looker(f"looks,diskless_az={rack}")
        found = self._lookers[rack].list_topics(topic, timeout=30).topics[topic].partitions
        return [
            Placed(tuple(p.replicas), tuple(p.isrs), p.leader) for _, p in sorted(found.items())
        ]

    def read_meter(self) -> Counted:
        for name, where in self.stack.endpoints.metrics.items():
            node = name.removeprefix("gateway-")
            if node.isdigit() and int(node) not in self.lost:
                try:
                    self.meter.read(name, httpx.get(f"http://{where}/metrics", timeout=5).text)
                except httpx.TransportError:
                    continue
        return self.meter.total

    def count(self) -> None:
        """Let the state last, so that there is something to count."""
        time.sleep(WINDOW_S)

    def until_nobody_leaves(self) -> None:
        seen, at = self._leaving(), time.monotonic()

        def quiet() -> bool:
            nonlocal seen, at
            if (now := self._leaving()) != seen:
                seen, at = now, time.monotonic()
            return time.monotonic() - at >= QUIET_S

        self.until("clients to stay in their racks", quiet, every_s=0.5)

    def _leaving(self) -> float:
        return sum(crossing.other for crossing in self.read_meter().values())

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[], Counted]]:
        """Counts what happens in it; gives what was counted, afterwards."""
        before, began = self.read_meter(), time.monotonic()
        stage: list[Stage] = []
        yield lambda: stage[0].bytes
        bytes_, ended = since(self.read_meter(), before), time.monotonic()
        born = self.acknowledged[BORN]
        gaps = {rack: rack_gap_ms(born, rack, began, ended) for rack in self.racks}
        stage.append(Stage(name, began, ended, bytes_, gaps))
        self.stages += stage

    def check(self, name: str, ok: bool, found: str) -> None:
        self.checks.append(Check(name, ok, found))

    def until(self, what: str, probe: Callable[[], T | None], every_s: float = 0.2) -> T:
        """Ask until there is an answer that is true. Raises :class:`TidelineError`."""
        patience = Patience(WAIT_S)
        while not (found := probe()):
            if patience.over:
                raise TidelineError(f"waited {WAIT_S:.0f} s for {what}")
            time.sleep(every_s)
        return found
