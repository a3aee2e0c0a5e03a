"""How the control plane grows with its batch rows: ``python -m benchmarks --only growth``.

A Postgres of its own with generated rows (:mod:`benchmarks.growth_rows`), durable as in production
while it is measured. The named alternative: the same table in hash partitions by log, in the same
run.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import psycopg

from benchmarks.growth_claims import CLAIMED, DRIVERS, claimed_per_second
from benchmarks.growth_rows import (
    BATCH_BYTES,
    FIRST_MS,
    LOGS,
    PER_FILE,
    RECORDS,
    Connection,
    grow,
    make_logs,
)
from benchmarks.page import Figure
from benchmarks.throwaway import throwaway
from tideline.control_plane import ControlPlane, connect
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.migrate import apply, schema_directory
from tideline.control_plane.model import BatchToCommit, FindBatchesRequest
from tideline.demo.ledger import quantile
from tideline.domain.ids import TopicIdPartition
from tideline.settings import JobsSettings

SERVER = {
    "shared_buffers": "4GB",
    "maintenance_work_mem": "1GB",
    "max_wal_size": "8GB",
    "random_page_cost": "1.1",
    "effective_cache_size": "14GB",
}
"""A sixth of the machine's memory; the rest is the system's cache."""
COMMITS = 1_000
READS = 1_000
WARM_UP = 50
ASKED_AT_ONCE = 10
"""Partitions of one look-up, each answered with ten batches."""
DIED = 50_000
"""Batch rows, and the files that held nothing else, that a round of the collection takes away."""
STEP = 10_000
GRACE_MS = 0
GATEWAY = 1
YEAR_MS = 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of a table's rows and of its indexes."""

    heap: int
    indexes: int


@dataclass(frozen=True, slots=True)
class GrowthResult:
    """Times in ms, but where named otherwise; ``rows`` when measuring began."""

    rows: int
    parts: int
    grow_s: float
    """How long it took to generate the rows, without fsync."""
    commit: tuple[float, ...]
    wal_bytes: float
    """Written by Postgres for each batch that is committed, of the second half: after a checkpoint
    whole pages are written at first, which is shared by all batches until the next one."""
    read_tail: tuple[float, ...]
    read_anywhere: tuple[float, ...]
    idle_rounds: tuple[float, ...]
    rounds: tuple[float, ...]
    claims: tuple[float, ...]
    large_claims: tuple[float, ...]
    """Of ten times as many files and batches."""
    drivers: tuple[tuple[float, ...], ...]
    """Batches a second that so many of :data:`DRIVERS` claim together."""
    lags: tuple[float, ...]
    status_s: float | None
    """Of ``tiering_status``, which counts rows; ``None``: it was cancelled at the jobs' timeout."""
    vacuum_s: float
    """All indexes of ``batches`` after the rounds."""
    batches: Size
    files: Size
    crowd: float
    """Load average of the minute before measuring ended: programs that wanted a core."""


def measure(
    sizes: Sequence[int], parts: Sequence[int], rounds: int, step: Callable[[str], None]
) -> list[GrowthResult]:
    """``parts``: hash partitions of ``batches`` to try one after the other; 0: one table."""
    return [_measure_one(rows, number, rounds, step) for rows in sorted(sizes) for number in parts]


def _measure_one(rows: int, parts: int, rounds: int, step: Callable[[str], None]) -> GrowthResult:
    with throwaway(SERVER) as server:
        server.start(fsync="off", wal_level="minimal", max_wal_senders="0", autovacuum="off")
        _make_schema(server.dsn, parts)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("SET search_path = tideline")
            make_logs(connection)
            step(f"growth: generating {rows:,} rows, {parts or 'no'} parts")
            grow_s = grow(connection, rows)
        server.stop()
        os.sync()  # what was written without fsync
        server.start()
        step(f"growth: measuring at {rows:,} rows")
        return asyncio.run(_measure_at(server.dsn, rows, parts, grow_s, rounds))


def _make_schema(dsn: str, parts: int) -> None:
    """With ``batches`` in so many hash partitions instead of one table, if any."""
    if not parts:
        apply(dsn)
        return
    with tempfile.TemporaryDirectory(prefix="tideline-schema-") as directory:
        schema = Path(shutil.copytree(schema_directory(), Path(directory) / "schema"))
        pieces = "\n".join(
            f"CREATE TABLE batches_{n} PARTITION OF batches"
            f" FOR VALUES WITH (MODULUS {parts}, REMAINDER {n});"
            for n in range(parts)
        )
        (schema / "migrations" / "V9999__Partition_batches.sql").write_text(
            "ALTER TABLE batches RENAME TO whole;\n"
            "CREATE TABLE batches (LIKE whole INCLUDING DEFAULTS INCLUDING INDEXES)"
            f" PARTITION BY HASH (log_id);\nDROP TABLE whole;\n{pieces}\n"
        )
        apply(dsn, schema)


async def _measure_at(dsn: str, rows: int, parts: int, grow_s: float, rounds: int) -> GrowthResult:
    # No broker is asked for anything.
    settings = JobsSettings.of(
        {"TIDELINE_POSTGRES_DSN": dsn, "TIDELINE_KAFKA_BOOTSTRAP": "127.0.0.1:1"}
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET search_path = tideline")
        logs = [
            TopicIdPartition(UUID(str(topic)), int(str(partition)))
            for topic, partition in connection.execute(
                "SELECT topic_id, partition FROM logs ORDER BY log_id"
            )
        ]
        batches, files = _size(connection, "batches"), _size(connection, "wal_files")
        async with connect(settings, application_name="growth", in_lanes=True) as plane:
            fleet = Fleet(plane, logs, rows)
            await fleet.register()
            commit = await fleet.timed(COMMITS, fleet.commit)
            before = _wal_position(connection)
            commit += await fleet.timed(COMMITS, fleet.commit)
            wal = (_wal_position(connection) - before) / ((WARM_UP + COMMITS) * PER_FILE)
            tail = await fleet.timed(READS, fleet.read_tail)
            anywhere = await fleet.timed(READS, fleet.read_anywhere)
            with closing(JobsControlPlane(settings, "growth-jobs")) as jobs:
                upkeep = Upkeep(jobs, logs)
                idle = [upkeep.round() for _ in range(rounds)]
                claims = [upkeep.claim(CLAIMED) for _ in range(rounds)]
                large = [upkeep.claim(10 * CLAIMED) for _ in range(rounds)]
                drivers = claimed_per_second(settings, upkeep.cutoffs, rounds)
                lags = [upkeep.lag() for _ in range(rounds)]
                full = []
                for number in range(rounds):
                    upkeep.expire(number + 1)
                    full.append(upkeep.round())
                status_s = upkeep.status_s()
        started = time.perf_counter()
        connection.execute("VACUUM (INDEX_CLEANUP ON) batches")
        vacuum_s = time.perf_counter() - started
    return GrowthResult(
        rows, parts, grow_s, commit, wal, tail, anywhere, tuple(idle), tuple(full), tuple(claims),
        tuple(large), drivers, tuple(lags), status_s, vacuum_s, batches, files, os.getloadavg()[0],
    )  # fmt: skip


def _wal_position(connection: Connection) -> int:
    found = connection.execute(
        "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
    ).fetchone()
    assert found is not None
    return int(str(found[0]))


def _size(connection: Connection, table: str) -> Size:
    found = connection.execute(
        "SELECT sum(pg_table_size(t.oid)), sum(pg_indexes_size(t.oid)) FROM (SELECT %s::regclass"
        " AS oid UNION SELECT inhrelid FROM pg_inherits WHERE inhparent = %s::regclass) AS t",
        [table, table],
    ).fetchone()
    assert found is not None
    return Size(int(str(found[0])), int(str(found[1])))


class Fleet:
    """One gateway that commits and reads."""

    def __init__(self, plane: ControlPlane, logs: Sequence[TopicIdPartition], rows: int) -> None:
        self._plane, self._logs = plane, logs
        self._incarnation, self._chance = uuid4(), random.Random(rows)
        self._now = FIRST_MS + rows // PER_FILE
        self._end = rows // LOGS * RECORDS
        self._sequences = dict.fromkeys(range(LOGS), 0)
        self._keys: list[str] = []

    async def register(self) -> None:
        await self._plane.register_gateway(
            GATEWAY, GATEWAY, self._incarnation, "127.0.0.1:9", "1", 3_000, None
        )

    async def timed(self, times: int, prepare: Callable[[], Awaitable[Call]]) -> tuple[float, ...]:
        """ms of each call, without its preparation and the first ones."""
        found = []
        for _ in range(WARM_UP + times):
            call = await prepare()
            started = time.perf_counter()
            await call()
            found.append((time.perf_counter() - started) * 1000)
        return tuple(found[WARM_UP:])

    async def commit(self) -> Call:
        """A WAL object of :data:`PER_FILE` idempotent batches, each of another log."""
        if not self._keys:
            self._keys = [f"wal/{uuid4()}" for _ in range(100)]
            await self._plane.register_object_keys(GATEWAY, self._incarnation, self._keys)
        key = self._keys.pop()
        self._now += 1
        batches = []
        for place, log in enumerate(self._chance.sample(range(LOGS), PER_FILE)):
            first = self._sequences[log]
            self._sequences[log] += RECORDS
            batches.append(
                BatchToCommit(
                    self._logs[log], place * BATCH_BYTES, BATCH_BYTES, RECORDS, self._now,
                    "CreateTime", producer_id=log, producer_epoch=0, base_sequence=first,
                    last_sequence=first + RECORDS - 1,
                )
            )  # fmt: skip
        size = PER_FILE * BATCH_BYTES
        return lambda: self._plane.commit_file(GATEWAY, self._incarnation, key, size, batches)

    async def read_tail(self) -> Call:
        """What a consumer asks for that keeps up."""
        return self._reading(lambda: self._end - 10 * RECORDS)

    async def read_anywhere(self) -> Call:
        """What one asks for that is behind, wherever."""
        return self._reading(lambda: self._chance.randrange(self._end))

    def _reading(self, offset: Callable[[], int]) -> Call:
        asked = [
            FindBatchesRequest(self._logs[log], offset(), 10 * BATCH_BYTES)
            for log in self._chance.sample(range(LOGS), ASKED_AT_ONCE)
        ]
        return lambda: self._plane.find_batches(asked)


class Upkeep:
    """What the collection and the tiering ask of Postgres, without an object store. In ms."""

    def __init__(self, jobs: JobsControlPlane, logs: Sequence[TopicIdPartition]) -> None:
        self._jobs, self._logs = jobs, logs
        now = FIRST_MS + 10**9
        self.cutoffs = {log.topic_id: now for log in logs}
        """Every row is old enough."""

    def round(self) -> float:
        """The rows' part of one run of the collection."""
        return _timed(self._round)

    def _round(self) -> None:
        self._jobs.expire_producers(YEAR_MS, STEP)
        while self._jobs.prune_batches(STEP) == STEP:
            pass
        self._jobs.forget_uncommitted_keys(YEAR_MS, STEP)
        self._jobs.mark_dead_objects(YEAR_MS, STEP)
        while keys := self._jobs.claim_dead_files(GRACE_MS, STEP):
            self._jobs.forget_dead_files(keys)

    def expire(self, number: int) -> None:
        """Retention reaches :data:`DIED` batches more, the oldest."""
        before = number * DIED // LOGS * RECORDS
        for log in self._logs:
            self._jobs.delete_records(log.topic_id, log.partition, before)

    def claim(self, batches: int) -> float:
        """One claim of split where every row is old enough."""
        worker = uuid4()
        taken = _timed(
            lambda: self._jobs.claim_wal_files(
                worker,
                max_files=batches // PER_FILE,
                max_batches=batches,
                claim_ms=60_000,
                cutoffs=self.cutoffs,
            )
        )
        self._jobs.release_claims(worker)
        return taken

    def lag(self) -> float:
        """What the worker's gauges of the lag ask."""
        return _timed(lambda: self._jobs.oldest_unsplit(self.cutoffs))

    def status_s(self) -> float | None:
        """``tideline tiering status`` of everything, in s."""
        try:
            return _timed(lambda: self._jobs.tiering_status(cutoffs=self.cutoffs)) / 1000
        except ControlPlaneUnavailable:
            return None


Call = Callable[[], Awaitable[object]]


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def quantiles(values: Sequence[float]) -> str:
    """p50 / p99."""
    return f"{quantile(values, 0.5):.1f} / {quantile(values, 0.99):.1f}"


def figure(results: Sequence[GrowthResult]) -> Figure | None:
    """Commits of the first table in one beside the first one in hash partitions, if there are."""
    whole = next((r for r in results if not r.parts), None)
    parts = next((r for r in results if r.parts), None)
    if whole is None or parts is None:
        return None
    ratio = quantile(whole.commit, 0.5) / quantile(parts.commit, 0.5)
    beside = f"{parts.parts} hash partitions: {quantiles(parts.commit)}"
    return Figure(quantiles(whole.commit), beside, ratio)


def to_markdown(results: Sequence[GrowthResult], machine: str) -> str:
    """The report: a column for each size."""

    def spread(values: Sequence[float]) -> str:
        return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"

    def size(of: Size, rows: int) -> str:
        whole = of.heap + of.indexes
        return f"{whole / 1e9:.2f} GB, {of.heap / rows:.0f} + {of.indexes / rows:.0f} B"

    rows: list[tuple[str, Callable[[GrowthResult], str]]] = [
        (f"`commit_file` of {PER_FILE} batches, p50 / p99", lambda r: quantiles(r.commit)),
        ("WAL of Postgres a batch, B", lambda r: f"{r.wal_bytes:,.0f}"),
        ("`find_batches` at the tail", lambda r: quantiles(r.read_tail)),
        ("`find_batches` anywhere", lambda r: quantiles(r.read_anywhere)),
        ("round of the collection, nothing dead", lambda r: spread(r.idle_rounds)),
        (f"the same, {DIED:,} rows and their files dead", lambda r: spread(r.rounds)),
        (f"one claim of split, {CLAIMED:,} batches", lambda r: spread(r.claims)),
        (f"one of {10 * CLAIMED:,}", lambda r: spread(r.large_claims)),
        (
            f"batches claimed a second, {' / '.join(map(str, DRIVERS))} drivers, claims kept",
            lambda r: " / ".join(f"{statistics.median(found):,.0f}" for found in r.drivers),
        ),
        ("`oldest_unsplit`", lambda r: spread(r.lags)),
        (
            "`tiering_status`, all topics",
            lambda r: "over 60 s" if r.status_s is None else f"{r.status_s * 1000:,.0f}",
        ),
        ("`VACUUM` with all indexes, s", lambda r: f"{r.vacuum_s:.1f}"),
        ("`batches` on disk; rows + indexes a row", lambda r: size(r.batches, r.rows)),
        ("`wal_files`; a file", lambda r: size(r.files, r.rows // PER_FILE)),
        ("generated in, s", lambda r: f"{r.grow_s:.0f}"),
        ("load average while measured", lambda r: f"{r.crowd:.1f}"),
    ]
    heads = [f"{r.rows:,}" + (f" in {r.parts} parts" if r.parts else "") for r in results]
    return "\n".join(
        [
            f"{LOGS:,} partitions, {2 * COMMITS:,} commits and {READS:,} look-ups of "
            f"{ASKED_AT_ONCE} partitions, one at a time; in ms. {machine}",
            "",
            f"| batch rows | {' | '.join(heads)} |",
            f"| --- |{' ---: |' * len(results)}",
            *(f"| {name} | {' | '.join(show(r) for r in results)} |" for name, show in rows),
        ]
    )
