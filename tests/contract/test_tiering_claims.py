"""Which files a claim of split takes, what it reads to find them, and claims at once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from spark.tiering.split_files import runs
from tests.contract.conftest import Database
from tests.contract.scenes import batch
from tests.contract.tiering import ALL_OLD, Tiered, Worker, jobs
from tests.support.waiting import WITHIN_S
from tideline.control_plane.tiering_model import ClaimedFile
from tideline.domain.ids import TopicIdPartition

PARTITIONS = 24
SEEDS = range(6)
WIDE, DEEP = 20, 1_000
"""Logs, each with so many batches; a file has one of each log."""
FILES = """
    INSERT INTO wal_files (object_key, gateway_id, incarnation)
        SELECT 'wal/' || n, 1, gen_random_uuid() FROM generate_series(1, %s::int) AS n
        RETURNING file_id
"""
BATCHES = """
    INSERT INTO batches (log_id, last_offset, base_offset, file_id, byte_offset, byte_size,
            log_append_time, append_time, max_timestamp, running_max_timestamp)
        SELECT l.log_id, n, n, f.file_id, 0, 100, false, n, n, n
        FROM logs AS l CROSS JOIN unnest(%s::bigint[]) WITH ORDINALITY AS f (file_id, n)
        ORDER BY n
"""
READ = """
    SELECT sum(pg_stat_get_xact_tuples_returned(oid))::bigint FROM (
        SELECT 'batches'::regclass AS oid
        UNION SELECT indexrelid FROM pg_index WHERE indrelid = 'batches'::regclass) AS t
"""


def oldest_files(
    ages: Mapping[int, Sequence[int]], max_files: int, max_batches: int, from_ms: int | None = None
) -> list[int]:
    """What a claim takes of the files that may be claimed, oldest first.

    ``ages``: file → age of each of its batches, all of them eligible.
    """
    first = {
        file: min(found)
        for file, times in ages.items()
        if (found := [age for age in times if from_ms is None or age >= from_ms])
    }
    taken: list[int] = []
    batches = 0
    for file in sorted(first, key=lambda file: (first[file], file))[:max_files]:
        batches += len(ages[file])
        if taken and batches > max_batches:
            break
        taken.append(file)
    return taken


async def random_files(
    tiered: Tiered, logs: list[TopicIdPartition], chance: random.Random
) -> dict[int, list[int]]:
    """Each with batches of some logs, no two batches equally old; file → their times."""
    files: dict[int, list[int]] = {}
    for begun in chance.sample(range(1, 1_000), 30):
        chosen = chance.sample(logs, chance.choice([1, 3, PARTITIONS // 2, PARTITIONS]))
        # Of one file close to each other, or all over the place.
        spread = chance.choice([30, 30_000])
        old = [begun * 30 + n * spread for n in range(len(chosen))]
        await tiered.scene.commit(
            tiered.gateway,
            *[batch(log, timestamp=age) for log, age in zip(chosen, old, strict=True)],
        )
        ((file_id,),) = tiered.scene.sql("SELECT max(file_id) FROM wal_files")
        files[int(str(file_id))] = old
    return files


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_claim_takes_the_files_of_the_oldest_batches_in_their_order(
    tiered: Tiered, seed: int
) -> None:
    chance = random.Random(seed)
    _, logs = await tiered.scene.diskless_topic(PARTITIONS)
    free = await random_files(tiered, logs, chance)
    cutoffs, from_ms, claims = {logs[0].topic_id: ALL_OLD}, None, 0
    while free:
        limits = chance.randint(1, 5), chance.choice([1, 20, 1_000])
        files = tiered.worker.claim(
            cutoffs, max_files=limits[0], max_batches=limits[1], from_ms=from_ms
        )
        found = [file.file_id for file in files]
        assert found == oldest_files(free, *limits, from_ms)
        for file in files:
            assert sorted(b.max_timestamp for b in file.batches) == sorted(free.pop(file.file_id))
        # Some go on where they ended, some begin anew.
        from_ms = chance.choice([None, files[-1].oldest_ms]) if files else None
        claims += 1
    assert claims > 5


@contextmanager
def many_batches(tiered: Tiered, database: Database) -> Iterator[psycopg.Connection[Any]]:
    """:data:`WIDE` logs of :data:`DEEP` batches, and the superuser in one transaction."""
    with psycopg.connect(database.dsn, options="-c search_path=tideline") as connection:
        files = [row[0] for row in connection.execute(FILES, [DEEP]).fetchall()]
        connection.execute(BATCHES, [files])
        connection.execute("UPDATE logs SET high_watermark = %s", [DEEP + 1])
        connection.execute("ANALYZE batches, wal_files, logs, topics")
        connection.commit()
        yield connection


def rows_read(connection: psycopg.Connection[Any]) -> int:
    """Of batches and of their indexes, in this transaction."""
    found = connection.execute(READ).fetchone()
    assert found is not None
    return int(found[0])


def claim_counting(
    connection: psycopg.Connection[Any], log: TopicIdPartition, files: int, from_ms: int | None
) -> tuple[int, int, int]:
    """Batches that were claimed, rows of batches and of their indexes that it took, and the oldest
    of the last file."""
    before = rows_read(connection)
    claimed = connection.execute(
        "SELECT max_timestamp FROM claim_wal_files(%s, %s, 10000, 60000, %s, %s, %s)",
        [uuid4(), files, [log.topic_id], [ALL_OLD], from_ms],
    ).fetchall()
    return len(claimed), rows_read(connection) - before, max(row[0] for row in claimed)


async def test_the_oldest_batch_of_each_log_is_found_without_reading_the_others(
    tiered: Tiered, database: Database
) -> None:
    _, (log, *_) = await tiered.scene.diskless_topic(WIDE)
    with many_batches(tiered, database) as connection:
        before = rows_read(connection)
        found = connection.execute(
            "SELECT max_timestamp FROM oldest_unsplit(%s, %s)", [[log.topic_id], [ALL_OLD]]
        ).fetchall()
        assert found == [(1,)] * WIDE
        assert rows_read(connection) - before <= 2 * WIDE
        before = rows_read(connection)
        work = connection.execute(
            "SELECT partitions, max_timestamp FROM split_work(%s, %s)", [[log.topic_id], [ALL_OLD]]
        ).fetchone()
        assert work == (WIDE, 1)
        assert rows_read(connection) - before <= 2 * WIDE


async def test_a_claim_reads_a_batch_of_each_log_and_then_in_proportion_to_what_it_takes(
    tiered: Tiered, database: Database
) -> None:
    _, (log, *_) = await tiered.scene.diskless_topic(WIDE)
    with many_batches(tiered, database) as connection:
        for files in (2, 50):
            claimed, read, _ = claim_counting(connection, log, files, None)
            assert claimed == files * WIDE
            assert read <= 4 * claimed + WIDE
            connection.rollback()


async def test_a_claim_that_goes_on_where_one_ended_reads_nothing_of_what_that_one_took(
    tiered: Tiered, database: Database
) -> None:
    _, (log, *_) = await tiered.scene.diskless_topic(WIDE)
    with many_batches(tiered, database) as connection:
        _, alone, _ = claim_counting(connection, log, 2, None)
        connection.rollback()
        _, _, reached = claim_counting(connection, log, 200, None)
        _, anew, _ = claim_counting(connection, log, 2, None)
        _, going_on, _ = claim_counting(connection, log, 2, reached)
        assert anew >= 200 * WIDE, "it had to pass what is claimed"
        assert going_on <= alone + 3 * WIDE


async def test_files_are_finished_by_looks_in_proportion_to_their_runs(
    tiered: Tiered, database: Database
) -> None:
    """Not to all that their files hold, nor to the square of the runs: an object of 500 partitions
    has 500 of them."""
    _, (log, *_) = await tiered.scene.diskless_topic(WIDE)
    with many_batches(tiered, database) as connection:
        files = tiered.worker.claim({log.topic_id: ALL_OLD}, max_files=DEEP, max_batches=10**6)
        recorded = [run for file in files for run in runs(file)]
        assert len(recorded) == 250 * WIDE
        arguments = [
            [getattr(one, name) for one in some]
            for some, names in (
                (files, ("file_id", "token")),
                (recorded, ("file_id", "log_id", "base_offset", "last_offset", "byte_size",
                            "batch_count", "max_timestamp")),
            )
            for name in names
        ]  # fmt: skip
        before, started = rows_read(connection), time.monotonic()
        connection.execute(
            "SELECT finish_split(%s, %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],"
            " %s::bigint[], %s::bigint[], %s::bigint[], %s::integer[], %s::bigint[])",
            [tiered.worker.worker, *arguments],
        )
        print(f"{len(recorded)} runs in {time.monotonic() - started:.1f} s")
        assert rows_read(connection) - before <= 8 * len(recorded)


async def test_a_claim_takes_250_files_at_most(tiered: Tiered, database: Database) -> None:
    _, (log, *_) = await tiered.scene.diskless_topic(WIDE)
    with many_batches(tiered, database):
        files = tiered.worker.claim({log.topic_id: ALL_OLD}, max_files=DEEP, max_batches=10**6)
    assert len(files) == 250


async def test_claims_at_once_take_every_file_and_none_twice(
    tiered: Tiered, database: Database
) -> None:
    _, (log, *_) = await tiered.scene.diskless_topic(WIDE)
    cutoffs = {log.topic_id: ALL_OLD}

    def claim_all(_: int) -> list[ClaimedFile]:
        found: list[ClaimedFile] = []
        with jobs(database) as plane:
            worker = Worker(plane)
            while files := worker.claim(cutoffs, max_files=3):
                found += files
        return found

    with many_batches(tiered, database):
        tiered.scene.sql("DELETE FROM batches WHERE max_timestamp > 200")
        with ThreadPoolExecutor(4) as pool:
            shares = list(pool.map(claim_all, range(4)))
    times = Counter(file.file_id for share in shares for file in share)
    assert len(times) == 200
    assert set(times.values()) == {1}
    by_token: dict[int, set[int]] = defaultdict(set)
    for share in shares:
        for file in share:
            assert len(file.batches) == WIDE
            by_token[file.token].add(file.file_id)
    assert all(len(files) == 1 for files in by_token.values())


@pytest.mark.parametrize("workers", [1, 4])
async def test_as_many_workers_as_there_are_split_a_share_each_at_once(
    tiered: Tiered, database: Database, workers: int
) -> None:
    """Reading and writing of objects, which takes the most time, is between a claim and its end:
    there nobody waits for anybody."""
    _, (log, *_) = await tiered.scene.diskless_topic(WIDE)
    at_work = threading.Barrier(workers)

    def split(_: int) -> int:
        with jobs(database) as plane:
            worker = Worker(plane)
            files = worker.claim({log.topic_id: ALL_OLD}, max_files=3)
            at_work.wait(WITHIN_S)
            for file in files:
                worker.finish(file)
            return len(files)

    with many_batches(tiered, database), ThreadPoolExecutor(workers) as pool:
        assert list(pool.map(split, range(workers))) == [3] * workers
