"""Generated rows of the control plane: WAL files, their batches, the logs that they lie in.

A row is what a commit would have written: each file has a batch of :data:`PER_FILE` logs, which
take turns, each batch ten records. So the table lies in the order of time, its indexes by log.
"""

from __future__ import annotations

import time

import psycopg

TOPICS, PARTITIONS = 20, 100
LOGS = TOPICS * PARTITIONS
PER_FILE = 50
"""Batches of a WAL object: 4 objects a second of a gateway are 200 batches a second."""
RECORDS = 10
BATCH_BYTES = 20_000
FIRST_MS = 1_800_000_000_000
ROWS_AT_ONCE = 1_000_000
BULK = 20_000_000
"""From so many rows on indexes are dropped first and built over the whole at the end."""

FILES = f"""
    INSERT INTO wal_files (object_key, gateway_id, incarnation, status, committed_at, size,
            outcome_errors, outcome_base_offsets, outcome_append_times, outcome_log_starts,
            outcome_high_watermarks)
        SELECT 'wal/' || md5(n::text), 1, '00000000-0000-0000-0000-000000000001', 'committed',
               now(), {PER_FILE * BATCH_BYTES}, array_fill('NONE'::text, ARRAY[{PER_FILE}]),
               offsets, array_fill({FIRST_MS} + n, ARRAY[{PER_FILE}]),
               array_fill(0::bigint, ARRAY[{PER_FILE}]), offsets
        FROM generate_series(%s::bigint, %s::bigint) AS n CROSS JOIN LATERAL (
            SELECT array_agg((n * {PER_FILE} + k) / {LOGS} * {RECORDS} ORDER BY k) AS offsets
                FROM generate_series(0, {PER_FILE - 1}) AS k) AS of_batches
"""
BATCHES = f"""
    INSERT INTO batches (log_id, last_offset, base_offset, file_id, byte_offset, byte_size,
            log_append_time, append_time, max_timestamp, running_max_timestamp)
        SELECT 1 + r %% {LOGS}, r / {LOGS} * {RECORDS} + {RECORDS - 1}, r / {LOGS} * {RECORDS},
               1 + r / {PER_FILE}, r %% {PER_FILE} * {BATCH_BYTES}, {BATCH_BYTES}, false,
               {FIRST_MS} + r / {PER_FILE}, {FIRST_MS} + r / {PER_FILE},
               {FIRST_MS} + r / {PER_FILE}
        FROM generate_series(%s::bigint, %s::bigint) AS r
"""
LOG_ENDS = f"""
    UPDATE logs SET high_watermark = %s::bigint / {LOGS} * {RECORDS}, max_timestamp = {FIRST_MS}
"""

Connection = psycopg.Connection[tuple[object, ...]]


def make_logs(connection: Connection) -> None:
    """Topics that were born diskless, in an empty database: their logs are 1 to :data:`LOGS`."""
    for number in range(TOPICS):
        connection.execute(
            "SELECT begin_tracking(%s, gen_random_uuid(), 'born_diskless', %s, 'CreateTime',"
            " 1048588, NULL)",
            [f"topic-{number}", PARTITIONS],
        )
    found = connection.execute("SELECT min(log_id), max(log_id) FROM logs").fetchone()
    if found != (1, LOGS):
        raise RuntimeError(f"log ids are {found}, not 1 to {LOGS}: the database was not empty")


def grow(connection: Connection, wanted: int) -> float:
    """``wanted`` batch rows, a multiple of :data:`LOGS`; seconds."""
    started = time.monotonic()
    indexes = _without_indexes(connection) if wanted >= BULK else []
    for first in range(0, wanted, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, wanted) - 1
        connection.execute(FILES, [first // PER_FILE, last // PER_FILE])
        connection.execute(BATCHES, [first, last])
    for statement in indexes:
        connection.execute(statement.encode())
    connection.execute(LOG_ENDS, [wanted])
    taken = time.monotonic() - started
    connection.execute("VACUUM ANALYZE")
    return taken


def _without_indexes(connection: Connection) -> list[str]:
    """Drop those of ``batches``; the statements that make them again."""
    rows = connection.execute(
        "SELECT indexname, indexdef FROM pg_indexes"
        " WHERE schemaname = 'tideline' AND tablename = 'batches'"
    ).fetchall()
    connection.execute("ALTER TABLE batches DROP CONSTRAINT batches_pkey")
    statements = []
    for name, definition in rows:
        if name == "batches_pkey":
            statements.append("ALTER TABLE batches ADD PRIMARY KEY (log_id, last_offset)")
        else:
            connection.execute(f"DROP INDEX {name}".encode())
            statements.append(str(definition))
    return statements
