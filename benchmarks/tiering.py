"""Split and merge beside a raw copy of the same objects in the same S3, round by round.

Each round writes new data to a topic born diskless, copies its WAL objects one by one (as many at
once as Spark has cores: what moving the bytes costs at least), and then tiers it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark.common.entry import Job, Launch
from spark.tiering import job as tiering
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings
from tideline.stack import Stack

PARTITIONS, RECORD_BYTES = 6, 2_000
MB = 1_000_000
COPIES = "benchmark-copy/"


@dataclass(slots=True)
class TieringRound:
    """One round. Times in seconds."""

    bytes: int
    """Merged: the records as they lie in segments."""
    copied_bytes: int
    copy_s: float
    split_s: float
    merge_s: float
    rows_before: int
    rows_after: int
    segments: int

    @property
    def copy_rate(self) -> float:
        """MB/s of reading and writing every WAL object once."""
        return self.copied_bytes / MB / self.copy_s

    @property
    def rate(self) -> float:
        """MB/s of split and merge together: the bytes are read twice and written twice."""
        return self.bytes / MB / (self.split_s + self.merge_s)


@dataclass(slots=True)
class TieringResult:
    """Every round that counts."""

    cores: int
    rounds: list[TieringRound] = field(default_factory=list)


def measure(
    stack: Stack, rounds: int, megabytes: int, step: Callable[[str], None]
) -> TieringResult:
    """``rounds`` rounds of ``megabytes`` each, after one that does not count."""
    bootstrap = stack.endpoints.gateway_bootstrap
    topic = f"tiering-bench-{time.monotonic_ns() % 1_000_000}"
    configs = {"diskless.enable": "true", "segment.bytes": str(64 * 1024 * 1024)}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=configs)])[topic].result(60)
    result = TieringResult(os.cpu_count() or 2)
    settings = JobsSettings.of(stack.environment("jobs"))
    job = Job("tiering", settings, Launch(master=f"local[{result.cores}]"))
    try:
        step("tiering: starting Spark")
        job.spark.range(1).count()
        for number in range(rounds + 1):
            step(f"tiering: round {number} of {rounds}, {megabytes} MB")
            produce(bootstrap, topic, megabytes)
            made = one_round(stack, settings, job, topic)
            if number:
                result.rounds.append(made)
    finally:
        job.close()
    return result


def produce(bootstrap: str, topic: str, megabytes: int) -> None:
    """Uncompressed records that do not repeat themselves, from one idempotent producer."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True,
                         "linger.ms": 20, "batch.size": 200_000})  # fmt: skip
    failures: list[object] = []
    block = os.urandom(MB)
    for n in range(megabytes * MB // RECORD_BYTES):
        at = n * 7 % (MB - RECORD_BYTES)
        while True:
            try:
                producer.produce(
                    topic, block[at : at + RECORD_BYTES], partition=n % PARTITIONS,
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120) or failures:
        raise RuntimeError(f"the benchmark's records were not acknowledged: {failures[:1]}")


def one_round(stack: Stack, settings: JobsSettings, job: Job, topic: str) -> TieringRound:
    """Copy the WAL objects of the topic, then tier it."""
    dsn = stack.endpoints.postgres_dsn("postgres")
    keys = wal_keys(dsn, topic)
    started = time.monotonic()
    copied = copy(settings, keys, job.parallelism)
    copy_s = time.monotonic() - started
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
        copy_s=copy_s,
        split_s=split["elapsed_ms"] / 1000,
        merge_s=merge["elapsed_ms"] / 1000,
        rows_before=before,
        rows_after=rows(dsn, topic),
        segments=merge["segments"],
    )


def copy(settings: JobsSettings, keys: list[str], threads: int) -> int:
    """Read and write every object once; the bytes."""
    store, bucket = ObjectStoreClient(settings), settings.s3_bucket

    def one(key: str) -> int:
        body = store.get(bucket, key)
        store.put(bucket, COPIES + key, body)
        return len(body)

    with ThreadPoolExecutor(threads) as pool:
        size = sum(pool.map(one, keys))
    store.delete(bucket, [COPIES + key for key in keys])
    return size


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


def to_markdown(result: TieringResult, machine: str) -> str:
    """The table that docs/performance.md shows."""

    def cell(values: list[float], digits: int = 1) -> str:
        low, high = min(values), max(values)
        return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"

    found = result.rounds
    ratios = [r.rate / r.copy_rate for r in found]
    return "\n".join(
        [
            f"{len(found)} rounds of {found[0].bytes / MB:.0f} MB in {PARTITIONS} partitions, "
            f"records of {RECORD_BYTES} bytes, local[{result.cores}]. Machine: {machine}. Median "
            "(lowest to highest).",
            "",
            "| what | MB/s |",
            "| --- | --- |",
            f"| raw S3 copy of the same WAL objects | {cell([r.copy_rate for r in found])} |",
            f"| split | {cell([r.bytes / MB / r.split_s for r in found])} |",
            f"| merge | {cell([r.bytes / MB / r.merge_s for r in found])} |",
            f"| split and merge, one after the other | {cell([r.rate for r in found])} |",
            "",
            f"Split and merge / raw copy: {cell(ratios, 2)}; they read and write every byte twice, "
            "the copy once. Batch rows in Postgres before and after: "
            + ", ".join(f"{r.rows_before} → {r.rows_after}" for r in found)
            + f"; segments of a round: {found[0].segments}.",
        ]
    )
