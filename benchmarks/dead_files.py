"""``python -m benchmarks.dead_files --dsn DSN``: what it costs to find the WAL files that died.

In an empty database, with generated rows. The named alternative is what the collection did before:
it asked of every live file whether a batch is left in it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

from tideline.control_plane.migrate import apply

PER_FILE = 5
"""Batches."""
DIED = 1_000
"""Files that lose their batches between two runs."""
GRACE_MS = 600_000
ALL_LIVE = """
    UPDATE wal_files AS f SET unreferenced_at = clock_timestamp()
        WHERE f.status = 'committed' AND f.unreferenced_at IS NULL
            AND NOT EXISTS (SELECT FROM batches AS b WHERE b.file_id = f.file_id)
"""
NOTED = f"SELECT count(*) FROM claim_dead_files({GRACE_MS}, 20000)"
FILES = """
    INSERT INTO wal_files (object_key, gateway_id, incarnation, status, committed_at, size,
            outcome_errors, outcome_base_offsets, outcome_append_times, outcome_log_starts,
            outcome_high_watermarks)
        SELECT 'wal/' || md5(n::text), 1, gen_random_uuid(), 'committed', now(), 1000,
               array_fill('NONE'::text, ARRAY[5]), array_fill(n::bigint, ARRAY[5]),
               array_fill(n::bigint, ARRAY[5]), array_fill(n::bigint, ARRAY[5]),
               array_fill(n::bigint, ARRAY[5])
        FROM generate_series(%s::int, %s::int) AS n
"""
BATCHES = """
    INSERT INTO batches (log_id, last_offset, base_offset, file_id, byte_offset, byte_size,
            log_append_time, append_time, max_timestamp, running_max_timestamp)
        SELECT b, f.file_id, f.file_id, f.file_id, b * 200, 200, false, 0, 0, 0
        FROM wal_files AS f CROSS JOIN generate_series(1, 5) AS b
        WHERE f.unreferenced_at IS NULL
            AND NOT EXISTS (SELECT FROM batches AS known WHERE known.file_id = f.file_id)
"""
DIE = """
    WITH oldest AS (SELECT DISTINCT file_id FROM batches WHERE log_id = 1
            AND last_offset IN (SELECT last_offset FROM batches WHERE log_id = 1
                ORDER BY last_offset LIMIT %s)),
        gone AS (DELETE FROM batches WHERE file_id IN (SELECT file_id FROM oldest)
            RETURNING file_id)
    INSERT INTO lessened_files (file_id) SELECT DISTINCT file_id FROM gone
"""


@dataclass(frozen=True, slots=True)
class Result:
    """Medians in ms, at ``batches`` rows."""

    batches: int
    all_live: float
    noted: float


def measure(dsn: str, sizes: list[int], rounds: int) -> Iterator[Result]:
    apply(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET search_path = tideline")
        files = 0
        for batches in sizes:
            wanted = batches // PER_FILE
            connection.execute(FILES, [files + 1, wanted])
            connection.execute(BATCHES)
            files = wanted
            connection.execute("ANALYZE")
            before, now = [], []
            for _ in range(rounds):
                connection.execute(DIE, [DIED])
                # What one finds the other would not: each looks, and only the last one stays.
                with connection.transaction(force_rollback=True):
                    before.append(_timed(connection, ALL_LIVE))
                now.append(_timed(connection, NOTED))
            yield Result(batches, statistics.median(before), statistics.median(now))


def _timed(connection: psycopg.Connection[tuple[object, ...]], statement: str) -> float:
    started = time.perf_counter()
    connection.execute(statement.encode())
    return (time.perf_counter() - started) * 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn", required=True, help="an empty database, as its owner")
    parser.add_argument("--batches", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("| batch rows | every live file | files that lost batches | ratio |")
    print("| ---: | ---: | ---: | ---: |")
    for r in measure(arguments.dsn, sorted(arguments.batches), arguments.rounds):
        ratio = r.all_live / r.noted
        print(f"| {r.batches:,} | {r.all_live:,.1f} ms | {r.noted:,.1f} ms | {ratio:.1f} |")


if __name__ == "__main__":
    main()
