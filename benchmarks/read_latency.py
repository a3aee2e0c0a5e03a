"""How long one Fetch takes in each tier of a hybrid topic, beside the same Fetch at a broker.

One partition lies in three tiers: a prefix that its brokers read from remote storage, merged
segments, and WAL objects. A classic topic of the same records is asked at its broker directly, with
which all is compared, and through the gateway (seed 002, 8.3). The ways take turns: what else the
machine does meets all of them.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.page import Figure
from spark.common.entry import Job, Launch
from spark.tiering import job as tiering
from tideline.demo import topic as topics
from tideline.demo.patience import Patience
from tideline.kafka.client import KafkaCluster
from tideline.kafka.log_reader import LogReader
from tideline.kafka.observer import KafkaObserver
from tideline.settings import JobsSettings
from tideline.stack import Stack

RECORDS, RECORD_BYTES = 4_000, 1_000
"""Of each tier."""
FETCH_BYTES = 64 * 1024
DIRECT = "classic, at the broker"
WAL = "WAL objects"
WAYS = (
    DIRECT,
    "classic, through the gateway",
    "tiered prefix",
    "merged segments",
    WAL,
)
WAIT_S = 300.0


@dataclass(slots=True)
class ReadLatency:
    """Milliseconds of every Fetch, by way, in the order of the positions."""

    positions: int
    took: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    load: tuple[float, ...] = ()
    """The machine's load average over one minute at the beginning and at the end."""

    def ratios(self, way: str) -> list[float]:
        """To the direct read of the same turn."""
        return [a / b for a, b in zip(self.took[way], self.took[DIRECT], strict=True)]


@dataclass(frozen=True, slots=True)
class Region:
    """Offsets ``[start, end)`` of partition 0 of a topic, asked at ``address`` of ``node``."""

    topic: str
    start: int
    end: int
    address: str
    node: int


def run_tiering(stack: Stack, topic: str) -> None:
    """By the job, as it is run by hand."""
    with closing(psycopg.connect(stack.endpoints.postgres_dsn("postgres"), autocommit=True)) as sql:
        sql.execute("SELECT tideline.request_tiering(%s)", [topic])
    settings = JobsSettings.of(stack.environment("jobs"))
    job = Job("tiering", settings, Launch(master="local[2]"))
    try:
        outcome = tiering.tiering(job, [topic])
    finally:
        job.close()
    if outcome.failed is not None:
        raise RuntimeError(outcome.failed)


def measure(
    stack: Stack,
    rounds: int,
    step: Callable[[str], None],
    tier: Callable[[Stack, str], object] = run_tiering,
) -> ReadLatency:
    """``20 * rounds`` Fetches of each way, at positions that nobody has asked for before. ``tier``:
    splits and merges what a topic has in WAL objects."""
    regions = prepare(stack, step, tier)
    step("read-latency: the gateways forget what they hold")
    for name in [f"gateway-{node}" for node in stack.endpoints.gateways]:
        stack.stop(name)
        stack.start(name)
    return asyncio.run(ask_all(regions, 20 * rounds, step))


def prepare(
    stack: Stack, step: Callable[[str], None], tier: Callable[[Stack, str], object]
) -> dict[str, Region]:
    """A classic and a hybrid topic with their records where they are to be."""
    bootstrap, mark = stack.endpoints.gateway_bootstrap, time.monotonic_ns() % 1_000_000
    admin = AdminClient({"bootstrap.servers": bootstrap})
    classic, hybrid = f"read-classic-{mark}", f"read-hybrid-{mark}"
    admin.create_topics([NewTopic(classic, 1, 3)])[classic].result(60)
    topics.create_tiered(admin, hybrid, 1, 3)
    step("read-latency: a prefix")
    for topic in (classic, hybrid):
        produce(bootstrap, topic)
    topics.trigger_migration(admin, hybrid)
    with closing(psycopg.connect(stack.endpoints.postgres_dsn("postgres"), autocommit=True)) as sql:
        until_ready(sql, hybrid)
    step("read-latency: merged segments")
    boundary = produce(bootstrap, hybrid) - RECORDS
    tier(stack, hybrid)
    step("read-latency: WAL objects")
    end = produce(bootstrap, hybrid)

    def region(topic: str, start: int, end: int, *, direct: bool = False) -> Region:
        node = leader(stack, topic)
        places = stack.endpoints.brokers if direct else stack.endpoints.gateways
        return Region(topic, start, end, places[node], node)

    merged = end - RECORDS
    return dict(
        zip(
            WAYS,
            (
                region(classic, 0, RECORDS, direct=True),
                region(classic, 0, RECORDS),
                region(hybrid, 0, boundary),
                region(hybrid, boundary, merged),
                region(hybrid, merged, end),
            ),
            strict=True,
        )
    )


def produce(bootstrap: str, topic: str) -> int:
    """As many records as a tier has, by an idempotent producer; the offset behind the last."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True,
                         "linger.ms": 20, "batch.size": 20_000})  # fmt: skip
    told: list[tuple[object, int]] = []
    for _ in range(RECORDS):
        producer.produce(
            topic, os.urandom(RECORD_BYTES), partition=0,
            on_delivery=lambda error, message: told.append((error, message.offset() or 0)),
        )  # fmt: skip
    if producer.flush(120) or any(error for error, _ in told):
        raise RuntimeError("the benchmark's records were not acknowledged")
    return max(offset for _, offset in told) + 1


def until_ready(sql: psycopg.Connection[tuple[object, ...]], topic: str) -> None:
    """The prefix lies in remote storage and nowhere else."""
    patience = Patience(WAIT_S)
    asked = "SELECT bool_and(tiering_complete) FROM tideline.logs WHERE topic_name = %s"
    while sql.execute(asked, [topic]).fetchone() != (True,):
        if patience.over:
            raise TimeoutError(f"{topic} was not migrated within {WAIT_S:.0f} s")
        time.sleep(0.2)


def leader(stack: Stack, topic: str) -> int:
    async def ask() -> int:
        places = [place.rsplit(":", 1) for place in stack.endpoints.brokers.values()]
        bootstrap = [(host, int(port)) for host, port in places]
        async with KafkaCluster(bootstrap, client_id="read-latency") as cluster:
            return (await KafkaObserver(cluster).partition(topic, 0)).leader

    return asyncio.run(ask())


async def ask_all(
    regions: dict[str, Region], positions: int, step: Callable[[str], None]
) -> ReadLatency:
    """Every way in turn, at as many positions, spread over the region at random."""
    result, chance = ReadLatency(positions), random.Random(7)
    places = {
        way: chance.sample(range(region.start, region.end), positions)
        for way, region in regions.items()
    }
    step(f"read-latency: {positions} positions of each way")
    before = os.getloadavg()[0]
    for number in range(positions):
        for way, region in regions.items():
            host, _, port = region.address.rpartition(":")
            async with KafkaCluster([(host, int(port))], client_id="read-latency") as cluster:
                await cluster.node(region.node)
                result.took[way].append(await ask(cluster, region, places[way][number]))
    result.load = (before, os.getloadavg()[0])
    return result


async def ask(cluster: KafkaCluster, region: Region, offset: int) -> float:
    """One Fetch that brings records, in ms; an empty answer is asked again, as a consumer does."""
    began, patience = time.perf_counter(), Patience(WAIT_S)
    reader = LogReader(cluster, timeout_ms=60_000)
    while not (
        await reader.fetch(region.topic, 0, offset, node=region.node, max_bytes=FETCH_BYTES)
    ).data:
        if patience.over:
            raise TimeoutError(f"nothing is read of {region.topic} at {offset}")
    return (time.perf_counter() - began) * 1000


def figure(result: ReadLatency) -> Figure:
    ours, direct = statistics.median(result.took[WAL]), statistics.median(result.took[DIRECT])
    ratio = statistics.median(result.ratios(WAL))
    return Figure(f"{ours:.1f}", f"{DIRECT}: {direct:.1f}", ratio)


def to_markdown(result: ReadLatency, machine: str) -> str:
    """The report."""

    def row(way: str) -> str:
        took, ratios = result.took[way], result.ratios(way)
        return (
            f"| {way} | {statistics.median(took):.1f} | {percentile(took, 95):.1f} "
            f"| {statistics.median(ratios):.1f} |"
        )

    before, after = result.load
    return "\n".join(
        [
            f"{result.positions} Fetches of {FETCH_BYTES // 1024} KiB of each way, in turn, at "
            f"random positions of {RECORDS} records of {RECORD_BYTES} bytes. Machine: {machine}, "
            f"load {before:.0f} to {after:.0f}.",
            "",
            "| way | ms, median | ms, p95 | times the direct read, median |",
            "| --- | ---: | ---: | ---: |",
            *map(row, WAYS),
        ]
    )


def percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]
