"""What keeps Postgres quick when tables are large: frequent upkeep, and no reading of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.contract.conftest import Database
from tests.contract.tiering import jobs

PRODUCERS = """
    INSERT INTO producer_state (log_id, producer_id, producer_epoch, base_sequences,
            last_sequences, base_offsets, append_times, updated_at)
        SELECT 1, n, 0, '{}', '{}', '{}', '{}', %s::timestamptz
        FROM generate_series(%s::int, %s::int) AS n
"""
YEAR_MS = 365 * 86_400_000


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """As the owner, in one transaction that is taken back."""
    with psycopg.connect(database.dsn) as connection:
        connection.execute("SET search_path = tideline")
        yield connection
        connection.rollback()


def count(connection: psycopg.Connection[Any], query: str) -> int:
    found = connection.execute(query.encode()).fetchone()
    assert found is not None
    return int(found[0])


@pytest.mark.parametrize("table", ["batches", "wal_files", "producer_state", "merged_segments"])
def test_a_table_that_grows_with_what_clients_send_is_vacuumed_long_before_a_fifth_of_it_is_dead(
    connection: psycopg.Connection[Any], table: str
) -> None:
    options = dict(
        connection.execute(
            "SELECT option_name, option_value FROM pg_class, pg_options_to_table(reloptions) "
            "WHERE oid = %s::regclass",
            [table],
        ).fetchall()
    )
    assert float(options["autovacuum_vacuum_scale_factor"]) <= 0.02
    assert options["vacuum_truncate"] == "off", "its lock would hold commits up"


def test_notes_of_lessened_files_are_read_once_also_when_statistics_know_of_none(
    connection: psycopg.Connection[Any],
) -> None:
    """Most of the time the table is empty: so it is when its statistics are made."""
    fill = "INSERT INTO lessened_files (file_id) SELECT n FROM generate_series(1, 2000) AS n"
    connection.execute(fill)
    connection.execute("DELETE FROM lessened_files")
    connection.execute("ANALYZE lessened_files")
    connection.execute(fill)
    read = (
        "SELECT sum(pg_stat_get_xact_tuples_returned(t))::bigint FROM (VALUES"
        " ('lessened_files'::regclass), ('lessened_files_pkey'::regclass)) AS of (t)"
    )
    before = count(connection, read)
    assert count(connection, "SELECT judge_lessened_files(10000)") == 2_000
    assert count(connection, read) - before <= 5 * 2_000


LOGS, SPLITS, EACH = 20, 100, 10
"""Logs, runs of each that split recorded, and batches of each run; a batch has one record."""
SPLIT_BATCHES = f"""
    WITH recorded AS (
        INSERT INTO split_files (file_id, token, status, log_id, base_offset, last_offset,
                byte_size, batch_count, max_timestamp)
            SELECT log * {SPLITS} + run, 1, 'live', log, run * {EACH}, (run + 1) * {EACH} - 1,
                   1, {EACH}, 1
            FROM generate_series(1, {LOGS}) AS log, generate_series(0, {SPLITS} - 1) AS run
            RETURNING split_id, log_id, base_offset, file_id
    )
    INSERT INTO batches (log_id, last_offset, base_offset, file_id, byte_offset, byte_size,
            log_append_time, append_time, max_timestamp, running_max_timestamp, split_id)
        SELECT log_id, base_offset + n, base_offset + n, file_id, 0, 1, false, 1, 1, 1, split_id
        FROM recorded, generate_series(0, {EACH} - 1) AS n
"""
FILES = """
    INSERT INTO wal_files (file_id, object_key, gateway_id, incarnation, status, committed_at, size,
            outcome_errors, outcome_base_offsets, outcome_append_times, outcome_log_starts,
            outcome_high_watermarks)
        OVERRIDING SYSTEM VALUE SELECT file_id, 'wal/' || file_id, 1, gen_random_uuid(),
            'committed', now(), 1, '{}', '{}', '{}', '{}', '{}'
        FROM split_files WHERE log_id = 7
"""
HALF_EXPIRED = f"""
    SET LOCAL session_replication_role = replica;
    INSERT INTO logs (log_id, topic_id, partition, topic_name, migration_state,
            diskless_log_start_offset, diskless_log_start_epoch, suffix_start,
            high_watermark)
        OVERRIDING SYSTEM VALUE SELECT log, gen_random_uuid(), log, 't', 'DISKLESS_ONLY', 0, 0,
            {SPLITS * EACH // 2}, {SPLITS * EACH} FROM generate_series(1, {LOGS}) AS log
"""
READ_OF_BATCHES = """
    SELECT sum(pg_stat_get_xact_tuples_returned(c))::bigint FROM (
        SELECT 'batches'::regclass::oid UNION ALL
        SELECT indexrelid FROM pg_index WHERE indrelid = 'batches'::regclass) AS of (c)
"""


@pytest.fixture
def split_again(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """What is split, with the statistics of when all that was before it had been merged."""
    connection.execute(SPLIT_BATCHES)
    connection.execute(
        "UPDATE pg_class SET reltuples = 0, relpages = pg_relation_size(oid) / 8192 WHERE oid IN"
        " (SELECT unnest(ARRAY[indrelid, indexrelid]) FROM pg_index"
        " WHERE indrelid IN ('batches'::regclass, 'split_files'::regclass))"
    )
    return connection


def test_a_segment_reads_no_batches_but_its_own_also_when_statistics_know_of_none(
    split_again: psycopg.Connection[Any],
) -> None:
    before = count(split_again, READ_OF_BATCHES)
    taken = split_again.execute(
        "SELECT split_ids FROM take_merged_batches(7, 0, %s)", [SPLITS * EACH - 6]
    ).fetchone()
    ended = split_again.execute("SELECT cardinality(merged_splits(%s))", taken).fetchone()
    assert ended == (SPLITS - 1,), "five batches of the last run are left"
    assert count(split_again, READ_OF_BATCHES) - before <= 5 * SPLITS * EACH


def test_files_that_lost_batches_are_judged_by_their_own_also_when_statistics_know_of_none(
    split_again: psycopg.Connection[Any],
) -> None:
    split_again.execute(FILES)
    split_again.execute("INSERT INTO lessened_files (file_id) SELECT file_id FROM wal_files")
    before = count(split_again, READ_OF_BATCHES)
    assert count(split_again, "SELECT judge_lessened_files(10000)") == SPLITS
    assert count(split_again, READ_OF_BATCHES) - before <= 5 * SPLITS * EACH


def test_batches_below_the_start_of_their_suffix_go_without_a_look_at_others_for_each(
    split_again: psycopg.Connection[Any],
) -> None:
    split_again.execute(HALF_EXPIRED.encode())
    before = count(split_again, READ_OF_BATCHES)
    assert count(split_again, "SELECT prune_batches(2000)") == 2_000
    assert count(split_again, READ_OF_BATCHES) - before <= 5 * 2_000


def test_a_dry_run_of_gc_looks_at_the_batches_of_the_files_that_it_names(
    split_again: psycopg.Connection[Any],
) -> None:
    split_again.execute(HALF_EXPIRED.encode())
    split_again.execute(FILES)
    before = count(split_again, READ_OF_BATCHES)
    dead = f"SELECT count(*) FROM preview_garbage(0, 0, {LOGS * SPLITS * EACH})"
    assert count(split_again, dead) == SPLITS // 2
    assert count(split_again, READ_OF_BATCHES) - before <= 5 * LOGS * SPLITS * EACH


def test_what_a_job_finds_grown_is_looked_at_before_it_begins(database: Database) -> None:
    """Autovacuum has looked at it when it was empty, and comes by again in a minute or so."""
    known = "SELECT reltuples::int FROM pg_class WHERE oid = 'batches'::regclass"
    with psycopg.connect(database.dsn, autocommit=True) as connection, jobs(database) as plane:
        connection.execute("SET search_path = tideline")
        connection.execute("ALTER TABLE batches SET (autovacuum_enabled = off)")
        try:
            connection.execute(SPLIT_BATCHES)
            connection.execute("DELETE FROM batches")
            connection.execute("VACUUM ANALYZE batches")
            assert count(connection, known) == 0
            connection.execute(SPLIT_BATCHES)
            connection.execute("SELECT pg_stat_force_next_flush()")
            assert "batches" in plane.refresh_statistics()
            assert count(connection, known) == LOGS * SPLITS * EACH
            assert "batches" not in plane.refresh_statistics(), "once is enough"
        finally:
            connection.execute("TRUNCATE batches, split_files")
            connection.execute("ALTER TABLE batches RESET (autovacuum_enabled)")


def test_idle_producers_are_found_without_reading_those_that_are_not(
    connection: psycopg.Connection[Any],
) -> None:
    connection.execute(PRODUCERS, ["now", 1, 20_000])
    connection.execute(PRODUCERS, ["2020-02-02 02:02:02+00", 20_001, 20_003])
    connection.execute("ANALYZE producer_state")
    read_whole = "SELECT pg_stat_get_xact_numscans('producer_state'::regclass)"
    before = count(connection, read_whole)
    assert count(connection, f"SELECT expire_producers({YEAR_MS}, 10000)") == 3
    assert count(connection, read_whole) == before
    assert count(connection, "SELECT count(*) FROM producer_state") == 20_000


def test_a_producer_that_goes_on_within_the_hour_costs_no_new_entries_of_indexes(
    connection: psycopg.Connection[Any],
) -> None:
    connection.execute(PRODUCERS, ["2020-02-02 02:02:02+00", 1, 1])
    for _ in range(3):
        connection.execute("UPDATE producer_state SET updated_at = updated_at + interval '10 min'")
    hot = "SELECT pg_stat_get_xact_tuples_hot_updated('producer_state'::regclass)"
    assert count(connection, hot) == 3
    assert count(connection, "SELECT updated_hour FROM producer_state") == 439_058
