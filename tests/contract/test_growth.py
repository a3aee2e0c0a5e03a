"""What keeps Postgres quick when tables are large: frequent upkeep, and no reading of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.contract.conftest import Database

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
