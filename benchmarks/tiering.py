"""Split and merge beside a raw copy of the same WAL objects in the same S3, round by round, where
an object holds one, fifty or five hundred partitions.

Each round commits WAL objects of a topic born diskless, as a gateway would that gathers 8 MiB,
copies them one by one (as many at once as Spark has cores: what moving the bytes costs at least),
and then tiers them.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import psycopg
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import SecretStr

from benchmarks.beside import spread
from benchmarks.page import Figure
from spark.common.entry import Job, Launch
from spark.tiering import job as tiering
from tideline.control_plane import connect
from tideline.control_plane.model import BatchToCommit
from tideline.demo.topic import topic_id
from tideline.domain.ids import TopicIdPartition
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings
from tideline.stack import Stack

MB = 1_000_000
OBJECT_BYTES, BATCH_BYTES, RECORD_BYTES = 8 * 1024 * 1024, 16 * 1024, 2_000
SHAPES = {1: 6, 50: 50, 500: 500}
"""Partitions of one WAL object, and of the topic."""
ROUND_MB = {1: 1.0, 50: 1.5, 500: 6.0}
"""Of a round, times the megabytes that were asked for: a segment of a partition is to have a
megabyte at least, as it has by default."""
CATALOG_PUTS = 2
"""Of a segment, beside its own objects: told before and after it counts."""
COPIES = "benchmark-copy/"


@dataclass(slots=True)
class TieringRound:
    """One round. Times in seconds, ``puts`` in requests of split and merge that write."""

    bytes: int
    """Merged: the records as they lie in segments."""
    copied_bytes: int
    objects: int
    copy_s: float
    split_s: float
    merge_s: float
    puts: int
    gets: int
    rows_before: int
    rows_after: int
    segments: int

    @property
    def copy_rate(self) -> float:
        """MB/s of reading and writing every WAL object once."""
        return self.copied_bytes / MB / self.copy_s

    @property
    def rate(self) -> float:
        """MB/s of split and merge together."""
        return self.bytes / MB / (self.split_s + self.merge_s)

    @property
    def puts_per_gb(self) -> float:
        return self.puts / (self.bytes / 1e9)


@dataclass(slots=True)
class TieringResult:
    """Every round that counts, by partitions of a WAL object."""

    cores: int
    rounds: dict[int, list[TieringRound]] = field(default_factory=dict)


def measure(
    stack: Stack, rounds: int, megabytes: int, step: Callable[[str], None]
) -> TieringResult:
    """``rounds`` rounds of each shape, after one that does not count."""
    result = TieringResult(os.cpu_count() or 2)
    settings = JobsSettings.of(stack.environment("jobs"))
    job = Job("tiering", settings, Launch(master=f"local[{result.cores}]"))
    try:
        step("tiering: starting Spark")
        job.spark.range(1).count()
        for fan_out, partitions in SHAPES.items():
            topic = f"tiering-bench-{fan_out}-{time.monotonic_ns() % 1_000_000}"
            log = created(stack, topic, partitions)
            size = round(megabytes * ROUND_MB[fan_out])
            found = result.rounds.setdefault(fan_out, [])
            for number in range(rounds + 1):
                step(f"tiering: {fan_out} partitions, round {number} of {rounds}, {size} MB")
                asyncio.run(write(stack, settings, log, fan_out, partitions, size))
                made = one_round(stack, settings, job, topic)
                if number:
                    found.append(made)
    finally:
        job.close()
    return result


def created(stack: Stack, topic: str, partitions: int) -> UUID:
    """A topic born diskless; its id."""
    bootstrap = stack.endpoints.gateway_bootstrap
    configs = {"diskless.enable": "true", "segment.bytes": str(64 * 1024 * 1024)}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(120)
    return topic_id(admin, topic)


async def write(
    stack: Stack, settings: JobsSettings, log: UUID, fan_out: int, partitions: int, megabytes: int
) -> None:
    """WAL objects of 8 MiB with batches of 16 KB of ``fan_out`` partitions each, in their order,
    put
    and committed in the name of a gateway of the stack."""
    dsn = stack.endpoints.postgres_dsn("postgres")
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT gateway_id, incarnation FROM tideline.gateways LIMIT 1")
        ((gateway, incarnation),) = found.fetchall()
    now = round(time.time() * 1000)
    batches = [record_batch(now) for _ in range(64)]
    per_object = OBJECT_BYTES // BATCH_BYTES
    store = ObjectStoreClient(settings)
    plain = settings.model_copy(update={"postgres_dsn": SecretStr(dsn)})
    async with connect(plain, application_name="tiering-bench") as plane:
        for number in range(-(-megabytes * MB // OBJECT_BYTES)):
            shared = [(number * fan_out + n) % partitions for n in range(fan_out)]
            # Of one partition one after the other, as a gateway writes them.
            order = sorted(shared[n % fan_out] for n in range(per_object))
            body, rows = bytearray(), []
            for n, partition in enumerate(order):
                raw = batches[(number + n) % len(batches)]
                at = TopicIdPartition(log, partition)
                records = BATCH_BYTES // RECORD_BYTES
                rows.append(BatchToCommit(at, len(body), len(raw), records, now, "CreateTime"))
                body += raw
            key = f"{settings.diskless_prefix}wal/{uuid4().hex}"
            await plane.register_object_keys(gateway, incarnation, [key])
            await asyncio.to_thread(store.put, settings.s3_bucket, key, bytes(body))
            await plane.commit_file(gateway, incarnation, key, len(body), rows)


def record_batch(now: int) -> bytes:
    """Eight uncompressed records that do not repeat themselves, as a producer sends them."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=1 << 20,
    )  # fmt: skip
    for n in range(BATCH_BYTES // RECORD_BYTES):
        builder.append(n, timestamp=now, key=None, value=os.urandom(RECORD_BYTES), headers=[])
    return bytes(builder.build())


def one_round(stack: Stack, settings: JobsSettings, job: Job, topic: str) -> TieringRound:
    """Copy the WAL objects of the topic, then tier it."""
    dsn = stack.endpoints.postgres_dsn("postgres")
    keys = wal_keys(dsn, topic)
    copied, copy_s = copy(settings, keys, job.parallelism)
    before = rows(dsn, topic)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT tideline.request_tiering(%s)", [topic])
    outcome = tiering.tiering(job, [topic])
    if outcome.failed is not None:
        raise RuntimeError(outcome.failed)
    split, merge = outcome.details["split"], outcome.details["merge"]
    assert isinstance(split, dict)
    assert isinstance(merge, dict)
    return TieringRound(
        bytes=merge["bytes"],
        copied_bytes=copied,
        objects=len(keys),
        copy_s=copy_s,
        split_s=split["elapsed_ms"] / 1000,
        merge_s=merge["elapsed_ms"] / 1000,
        puts=merge["object_writes"] + CATALOG_PUTS * merge["segments"],
        gets=merge["object_reads"],
        rows_before=before,
        rows_after=rows(dsn, topic),
        segments=merge["segments"],
    )


def copy(settings: JobsSettings, keys: list[str], threads: int) -> tuple[int, float]:
    """Read and write every object once; the bytes, and how many seconds that took. A client is
    there before, as in Spark's workers, and what was written goes away after."""
    store, bucket = ObjectStoreClient(settings), settings.s3_bucket
    store.connect()

    def one(key: str) -> int:
        body = store.get(bucket, key)
        store.put(bucket, COPIES + key, body)
        return len(body)

    with ThreadPoolExecutor(threads) as pool:
        started = time.monotonic()
        size = sum(pool.map(one, keys))
        taken_s = time.monotonic() - started
    store.delete(bucket, [COPIES + key for key in keys])
    return size, taken_s


def wal_keys(dsn: str, topic: str) -> list[str]:
    return [
        str(key)
        for (key,) in _query(
            dsn,
            "SELECT DISTINCT object_key FROM tideline.batches JOIN tideline.logs USING (log_id)"
            " JOIN tideline.wal_files USING (file_id) WHERE topic_name = %s",
            topic,
        )
    ]


def rows(dsn: str, topic: str) -> int:
    """Batch rows of the topic in Postgres."""
    ((count,),) = _query(
        dsn,
        "SELECT count(*) FROM tideline.batches JOIN tideline.logs USING (log_id)"
        " WHERE topic_name = %s",
        topic,
    )
    return int(str(count))


def _query(dsn: str, query: str, topic: str) -> Iterator[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield from connection.execute(query.encode(), [topic]).fetchall()


def figure(result: TieringResult) -> Figure:
    """Of objects with 50 partitions."""
    found = result.rounds[50]
    copied = f"raw copy: {spread([r.copy_rate for r in found], '.1f')}"
    ratio = statistics.median(r.rate / r.copy_rate for r in found)
    return Figure(spread([r.rate for r in found], ".1f"), copied, ratio)


def to_markdown(result: TieringResult, machine: str) -> str:
    """The report."""

    lines = [
        f"Batches of {BATCH_BYTES // 1024} KiB in WAL objects of 8 MiB, segments of up to 64 MiB, "
        f"local[{result.cores}]. Machine: {machine}. Median (lowest to highest) of "
        f"{len(next(iter(result.rounds.values())))} rounds.",
        "",
        "| partitions of an object | MB, objects, segments of a round | raw copy, MB/s "
        "| split, MB/s | merge, MB/s | split and merge, MB/s | of the copy | PUTs a GB "
        "| GETs a GB | rows |",
        "| ---: | --- | --- | --- | --- | --- | --- | ---: | ---: | --- |",
    ]
    for fan_out, found in result.rounds.items():
        first = found[0]
        lines.append(
            f"| {fan_out} | {first.bytes / MB:.0f}, {first.objects}, {first.segments} "
            f"| {spread([r.copy_rate for r in found], '.1f')} "
            f"| {spread([r.bytes / MB / r.split_s for r in found], '.1f')} "
            f"| {spread([r.bytes / MB / r.merge_s for r in found], '.1f')} "
            f"| {spread([r.rate for r in found], '.1f')} "
            f"| {spread([r.rate / r.copy_rate for r in found], '.2f')} "
            f"| {statistics.median(r.puts_per_gb for r in found):.0f} "
            f"| {statistics.median(r.gets / (r.bytes / 1e9) for r in found):.0f} "
            f"| {first.rows_before} → {first.rows_after} |"
        )
    return "\n".join(lines)
