"""`python -m benchmarks.soak [--minutes N]`: whether gateways and worker stay as large as they are.

Three brokers with their gateways carry a classic topic, a topic born diskless and one that migrates
while it is written to. Beside producers and consumers that stay, clients come and go, each under a
name of its own, some in the middle of a request: what a gateway keeps of a client must go with it.
Every few seconds the memory of each process is read that belongs to it alone (unique set size). Of
a gateway what its allocator keeps free is told apart: it stays when a busy moment is over, is
bounded (:mod:`tideline.gateway.allocator`), and hides whether there is more of anything.

Ends with 1 when a record was lost or told twice, or when a process grew, apart from that: by more
than ``GROWTH_AN_HOUR``, along the straight line through the second half of its readings.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import psutil
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.own_stack import own_stack
from tideline.demo import topic as topics
from tideline.demo.run import machine
from tideline.stack import Stack

PARTITIONS = 6
RECORD_BYTES = 1_000
SAMPLE_S = 15.0
GROWTH_AN_HOUR = 0.05
"""Of what a process had in the middle of the run."""
SLACK_MB = 2.0
"""Below it a slope is the allocator's."""
CLASSIC, BORN, MIGRATED = "soak-classic", "soak-born", "soak-migrated"
FINISH_S = 120.0
HEAP, BLOCKS = "inkless_gateway_heap_bytes", "inkless_gateway_python_blocks"
SETTINGS = {"TIDELINE_CACHE_MAX_BYTES": str(16 * 1024 * 1024)}
"""A reader's cache that is full after minutes: until then a gateway grows as it should."""


@dataclass(slots=True)
class Flow:
    """One topic: what was acknowledged and what was read of it."""

    topic: str
    rate: float
    acknowledged: dict[int, int] = field(default_factory=dict)
    """Records by partition."""
    read: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    refused: int = 0


class Load:
    """Threads that write to and read from a stack's gateways until they are told to stop."""

    def __init__(self, bootstrap: str, flows: Sequence[Flow]) -> None:
        self._bootstrap, self.flows = bootstrap, flows
        self._producing, self._reading = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self.visitors = 0

    def start(self) -> None:
        for flow in self.flows:
            self._run(self._produce, flow)
            self._run(self._consume, flow)
        self._run(self._visit, self.flows)

    def finish(self) -> None:
        """No more is written; then what was written is read to its end."""
        self._producing.set()
        deadline = time.monotonic() + FINISH_S
        while time.monotonic() < deadline and any(f.read != f.acknowledged for f in self.flows):
            time.sleep(0.5)
        self._reading.set()
        for thread in self._threads:
            thread.join(FINISH_S)

    def _run(self, what: Callable[..., None], *given: object) -> None:
        thread = threading.Thread(target=what, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _produce(self, flow: Flow) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 5,
             "client.id": f"{flow.topic}-writer", "log_level": 0}
        )  # fmt: skip

        def settled(error: KafkaError | None, message: Message) -> None:
            partition = message.partition()
            if error is not None or partition is None:
                flow.refused += 1
                return
            flow.acknowledged[partition] = flow.acknowledged.get(partition, 0) + 1

        value, began = b"x" * RECORD_BYTES, time.monotonic()
        for number in count():
            if self._producing.is_set():
                break
            while number > (time.monotonic() - began) * flow.rate:
                producer.poll(0.01)
            producer.produce(flow.topic, value, partition=number % PARTITIONS, on_delivery=settled)
        if producer.flush(FINISH_S):
            flow.wrong.append(f"{flow.topic}: a record was neither acknowledged nor refused")

    def _consume(self, flow: Flow) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": f"{flow.topic}-readers",
             "auto.offset.reset": "error", "enable.auto.commit": True, "log_level": 0,
             "client.id": f"{flow.topic}-reader"}
        )  # fmt: skip
        consumer.assign([TopicPartition(flow.topic, n, 0) for n in range(PARTITIONS)])
        try:
            while not self._reading.is_set():
                for message in consumer.consume(500, 0.5):
                    partition, offset = message.partition(), message.offset()
                    if message.error() is not None or partition is None:
                        flow.wrong.append(f"{flow.topic}: {message.error()}")
                        return
                    if offset != (expected := flow.read.get(partition, 0)):
                        flow.wrong.append(
                            f"{flow.topic}-{partition}: {offset} came instead of {expected}"
                        )
                        return
                    flow.read[partition] = expected + 1
        finally:
            consumer.close()

    def _visit(self, flows: Sequence[Flow]) -> None:
        """Clients that come and go: one that reads a little, one that asks, one that hangs up."""
        host, _, port = self._bootstrap.split(",")[0].rpartition(":")
        while not self._producing.wait(0.2):
            self.visitors += 1
            name = f"visitor-{self.visitors}"
            flow = flows[self.visitors % len(flows)]
            config: dict[str, str | int | float | bool] = {
                "bootstrap.servers": self._bootstrap, "client.id": name, "log_level": 0
            }  # fmt: skip
            try:
                match self.visitors % 3:
                    case 0:
                        reader = Consumer(
                            {**config, "group.id": name, "auto.offset.reset": "latest"}
                        )
                        reader.assign([TopicPartition(flow.topic, 0, 0)])
                        reader.consume(100, 2.0)
                        reader.close()
                    case 1:
                        AdminClient(config).list_topics(timeout=5)
                    case _:
                        with socket.create_connection((host, int(port)), timeout=5) as gone:
                            gone.sendall(b"\x00\x00\x10\x00\x00\x00")
            except (KafkaException, OSError):
                continue  # they are guests; what is wrong shows at those that stay


@dataclass(frozen=True, slots=True)
class Reading:
    minutes: float
    """Since the begin."""
    own: float
    """MB that belong to the process alone."""
    free: float
    """MB of them that its allocator keeps, where it tells."""
    blocks: float
    """Of Python objects that live, where it tells."""

    @property
    def needed(self) -> float:
        return self.own - self.free


@dataclass(slots=True)
class Sizes:
    """Readings of one process."""

    readings: list[Reading] = field(default_factory=list)

    @property
    def second_half(self) -> list[Reading]:
        return self.readings[len(self.readings) // 2 :]

    @property
    def growth_mb_an_hour(self) -> float:
        """Slope of the straight line through the second half."""
        minutes = [reading.minutes for reading in self.second_half]
        needed = [reading.needed for reading in self.second_half]
        return statistics.linear_regression(minutes, needed).slope * 60

    @property
    def grew(self) -> bool:
        middle = statistics.median(reading.needed for reading in self.second_half)
        return self.growth_mb_an_hour > max(SLACK_MB, GROWTH_AN_HOUR * middle)


def own_megabytes(pid: int) -> float:
    main = psutil.Process(pid)
    family = [main, *main.children(recursive=True)]
    return sum(float(process.memory_full_info().uss) for process in family) / 1e6


def read(stack: Stack, name: str, pid: int, began: float) -> Reading:
    own, free, blocks = own_megabytes(pid), 0.0, 0.0
    with urlopen(f"http://{stack.endpoints.metrics[name]}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == HEAP and sample.labels["state"] == "free":
                free = sample.value / 1e6
            elif sample.name == BLOCKS:
                blocks = sample.value
    return Reading((time.monotonic() - began) / 60, own, free, blocks)


def measure(
    stack: Stack, minutes: float, rate: float, step: Callable[[str], None]
) -> tuple[Load, dict[str, Sizes]]:
    bootstrap = stack.endpoints.gateway_bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    small = {"segment.bytes": "10485760", "retention.bytes": "52428800"}
    made = admin.create_topics([
        NewTopic(CLASSIC, PARTITIONS, 3, config=small),
        NewTopic(BORN, PARTITIONS, 1, config={"diskless.enable": "true"}),
        NewTopic(MIGRATED, PARTITIONS, 3, config={"remote.storage.enable": "true"}),
    ])  # fmt: skip
    for one in made.values():
        one.result(30)
    load = Load(bootstrap, [Flow(name, rate) for name in (CLASSIC, BORN, MIGRATED)])
    load.start()
    names = [n for n in stack.programs if n == "worker" or n.startswith("gateway")]
    sizes = {name: Sizes() for name in names}
    pids = {name: stack.pid(name) for name in names}
    began, asked = time.monotonic(), False
    while (elapsed := time.monotonic() - began) < minutes * 60:
        time.sleep(SAMPLE_S)
        if not asked and elapsed > min(60.0, minutes * 15):
            topics.trigger_migration(admin, MIGRATED)
            asked = True
            step(f"{MIGRATED} migrates")
        for name, size in sizes.items():
            size.readings.append(read(stack, name, pids[name], began))
        if len(sizes["worker"].readings) % 20 == 0:
            step(", ".join(f"{n} {s.readings[-1].own:.0f} MB" for n, s in sizes.items()))
    step("no more is written; what was written is read to its end")
    load.finish()
    return load, sizes


def to_markdown(load: Load, sizes: dict[str, Sizes], minutes: float) -> str:
    rows = []
    for name, size in sizes.items():
        looked = [size.readings[at] for at in (0, len(size.readings) // 2, -1)]
        own = " / ".join(f"{reading.own:.0f}" for reading in looked)
        needed = " / ".join(f"{reading.needed:.0f}" for reading in looked)
        blocks = " / ".join(f"{reading.blocks:,.0f}" for reading in looked)
        rows.append(f"| {name} | {own} | {needed} | {blocks} | {size.growth_mb_an_hour:+.1f} |")
    told = [
        f"{flow.topic}: {sum(flow.acknowledged.values()):,} acknowledged, "
        f"{sum(flow.read.values()):,} read, {flow.refused} refused"
        for flow in load.flows
    ]
    return "\n".join(
        [
            f"{minutes:g} minutes, {load.visitors:,} clients that came and went. "
            f"Machine: {machine()}.",
            "",
            "| at first / half-way / at the end | MB of its own | less what the allocator keeps "
            "| Python's blocks | MB an hour, second half |",
            "| --- | --- | --- | --- | ---: |",
            *rows,
            "",
            "; ".join(told) + ".",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=100, help="records a second and topic")
    parser.add_argument("--reports", type=Path, default=Path("reports"))
    arguments = parser.parse_args()
    started = time.monotonic()

    def step(text: str) -> None:
        print(f"{time.monotonic() - started:7.1f} s  {text}", file=sys.stderr, flush=True)

    with own_stack(step, settings=SETTINGS) as stack:
        load, sizes = measure(stack, arguments.minutes, arguments.rate, step)
    text = to_markdown(load, sizes, arguments.minutes)
    arguments.reports.mkdir(parents=True, exist_ok=True)
    (arguments.reports / "soak.md").write_text(text + "\n")
    print(f"# soak\n\n{text}\n")
    wrong = [said for flow in load.flows for said in flow.wrong]
    wrong += [f"{f.topic}: not all was read" for f in load.flows if f.read != f.acknowledged]
    wrong += [f"{name} grew" for name, size in sizes.items() if size.grew]
    for said in wrong:
        print(f"wrong: {said}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
