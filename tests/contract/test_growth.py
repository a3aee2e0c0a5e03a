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


RAN_BEFORE = "INSERT INTO producer_expiry (last_run) VALUES (clock_timestamp())"
"""The first run of the expiry forgets nobody."""


def count(connection: psycopg.Connection[Any], query: str) -> int:
    found = connection.execute(query.encode()).fetchone()
    assert found is not None
    return int(found[0])


def read_of(*tables: str) -> str:
    """How many rows of these were read, by whatever index."""
    named = f"'{{{','.join(tables)}}}'::regclass[]"
    return (
        "SELECT sum(pg_stat_get_xact_tuples_returned(read))::bigint"
        f" FROM (SELECT unnest({named}) UNION ALL"
        f" SELECT indexrelid FROM pg_index WHERE indrelid = ANY ({named})) AS of (read)"
    )


READ_OF_BATCHES = read_of("batches")


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
    read = read_of("lessened_files")
    before = count(connection, read)
    assert count(connection, "SELECT judge_lessened_files(10000)") == 2_000
    assert count(connection, read) - before <= 5 * 2_000


LOGS, SPLITS, EACH = 20, 100, 10
"""Logs, runs of each that split recorded, and batches of each run; a batch has one record."""
SPLIT_BATCHES = f"""
    WITH recorded AS (
        INSERT INTO split_files (file_id, token, log_id, base_offset, last_offset,
                byte_size, batch_count, max_timestamp)
            SELECT log * {SPLITS} + run, 1, log, run * {EACH}, run * {EACH} + {EACH} - 1,
                {EACH}, {EACH}, 1
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
        OVERRIDING SYSTEM VALUE SELECT file_id, 'wal/' || file_id || repeat('-', 1500), 1,
            gen_random_uuid(), 'committed', now(), 1, '{}', '{}', '{}', '{}', '{}'
        FROM split_files WHERE log_id = 7
"""
"""With keys so long that to read all of the table is not as cheap as to look one up."""
HALF_EXPIRED = f"""
    SET LOCAL session_replication_role = replica;
    INSERT INTO logs (log_id, topic_id, partition, topic_name, migration_state,
            diskless_log_start_offset, diskless_log_start_epoch, suffix_start,
            high_watermark)
        OVERRIDING SYSTEM VALUE SELECT log, gen_random_uuid(), log, 't', 'DISKLESS_ONLY', 0, 0,
            {SPLITS * EACH // 2}, {SPLITS * EACH} FROM generate_series(1, {LOGS}) AS log
"""


def as_if_empty(connection: psycopg.Connection[Any], *tables: str) -> None:
    """Statistics say so, as when they were made at a moment at which nothing was there."""
    # Else autovacuum, which may be at one of them, would wait for the row that is changed here, and
    # an ANALYZE of this transaction for autovacuum.
    connection.execute(f"LOCK TABLE {', '.join(tables)} IN SHARE UPDATE EXCLUSIVE MODE".encode())
    connection.execute(
        "UPDATE pg_class SET reltuples = 0, relpages = pg_relation_size(oid) / 8192 WHERE oid IN"
        " (SELECT unnest(ARRAY[indrelid, indexrelid]) FROM pg_index"
        " WHERE indrelid = ANY (%s::regclass[]))",
        [list(tables)],
    )


@pytest.fixture
def split_again(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """What is split, with the statistics of when all that was before it had been merged."""
    connection.execute(SPLIT_BATCHES)
    as_if_empty(connection, "batches", "split_files")
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


TOPIC = """
    INSERT INTO topics (name, topic_id, kind, status, timestamp_type, max_message_bytes)
        SELECT 't', topic_id, 'migrated', 'active', 'CreateTime', 1 FROM logs WHERE log_id = 7
"""
OF_TOPIC = "ARRAY(SELECT topic_id FROM topics)"
LATER = 10_000
"""More batches of log 7, behind the others."""


@pytest.fixture
def one_topic(split_again: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Log 7 is a topic's, its first half has expired; statistics know of no file either."""
    split_again.execute(HALF_EXPIRED.encode())
    split_again.execute(FILES)
    split_again.execute(TOPIC)
    as_if_empty(split_again, "wal_files")
    return split_again


def test_the_plan_of_a_segment_reads_no_batches_but_its_own_and_no_files_but_theirs(
    one_topic: psycopg.Connection[Any],
) -> None:
    read = read_of("batches", "wal_files")
    before = count(one_topic, read)
    plans = (
        "SELECT sum(cardinality(p.object_keys)) FROM generate_series(0, 99) AS run,"
        f" planned_batches(7, run * {EACH}, run * {EACH} + {EACH} - 1) AS p"
    )
    assert count(one_topic, plans) == SPLITS
    assert count(one_topic, read) - before <= 5 * SPLITS * EACH


FIRST_FEW = {
    "fetch": (
        f"SELECT count(*) FROM find_batches({OF_TOPIC}, ARRAY[7], ARRAY[1000], ARRAY[5])",
        5,
    ),
    "by timestamp": (
        "SELECT found_offset FROM topics AS t, list_offsets(t.topic_id, 7, 'timestamp', 5000)",
        5_000,
    ),
    "of the largest timestamp": (
        "SELECT found_offset FROM topics AS t, list_offsets(t.topic_id, 7, 'max_timestamp', -1)",
        SPLITS * EACH + LATER - 1,
    ),
    "segments": (
        "SELECT count(*) FROM topics AS t, begin_merge(t.topic_id, 7, gen_random_uuid(), 60000,"
        " ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 5)), 'p/', 1000, 100)",
        5,
    ),
    "retention": (
        "SELECT before_offset FROM retention_wal_cut(ARRAY[7], ARRAY[1000], ARRAY[20000],"
        " ARRAY[0], 10)",
        1_010,
    ),
    "a page": (f"SELECT count(*) FROM tiering_batches(7, {LOGS}, 1000, 10)", 10),
    "the oldest": (
        f"SELECT partitions FROM split_work({OF_TOPIC}, ARRAY[100000])",
        1,
    ),
}


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("analyzed", [False, True], ids=["never analyzed", "analyzed before"])
@pytest.mark.parametrize(("asked", "answer"), FIRST_FEW.values(), ids=FIRST_FEW)
def test_the_first_few_batches_of_a_log_are_found_without_reading_it_to_its_end(
    one_topic: psycopg.Connection[Any], asked: str, answer: int, analyzed: bool, plans: str
) -> None:
    one_topic.execute(
        "INSERT INTO batches (log_id, last_offset, base_offset, file_id, byte_offset, byte_size,"
        " log_append_time, append_time, max_timestamp, running_max_timestamp, split_id)"
        " SELECT 7, n, n, 700, 0, 1, false, n, n, n, 1"
        " FROM generate_series(%s::bigint, %s::bigint) AS n",
        [SPLITS * EACH, SPLITS * EACH + LATER - 1],
    )
    one_topic.execute(
        "UPDATE batches SET append_time = last_offset, max_timestamp = last_offset,"
        " running_max_timestamp = last_offset, split_id = CASE last_offset WHEN 10998 THEN NULL"
        " ELSE 1 END WHERE log_id = 7"
    )
    one_topic.execute("UPDATE logs SET high_watermark = 11000 WHERE log_id = 7")
    if analyzed:
        one_topic.execute("ANALYZE batches")
    as_if_empty(one_topic, "batches")
    one_topic.execute(f"SET LOCAL plan_cache_mode = {plans}".encode())
    before = count(one_topic, READ_OF_BATCHES)
    assert count(one_topic, asked) == answer
    assert count(one_topic, READ_OF_BATCHES) - before <= 6_000


ALL, MERGED = 100_000, 5_000
"""Batches of a long log, and merged segments of one, of one record each."""
LONG_LOG = f"""
    INSERT INTO batches (log_id, last_offset, base_offset, file_id, byte_offset, byte_size,
            log_append_time, append_time, max_timestamp, running_max_timestamp)
        SELECT 7, n, n, 700, 0, 1, false, n, n, n FROM generate_series(0, {ALL} - 1) AS n
"""
LONG_MERGED = f"""
    SET LOCAL session_replication_role = replica;
    INSERT INTO merged_segments (segment_id, log_id, token, state, object_key_stem, base_offset,
            last_offset, size_bytes, leader_epoch, batch_count, finished_at)
        SELECT md5(n::text)::uuid, 7, 1, 'COPY_SEGMENT_FINISHED', 'segment/' || n, n, n, 3, 0, 1,
            now() FROM generate_series(0, {MERGED} - 1) AS n
"""


@pytest.fixture
def cleaned_after(database: Database, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Indexes keep entries of what is taken back, which others would count."""
    yield
    connection.rollback()
    with psycopg.connect(database.dsn, autocommit=True) as cleaning:
        cleaning.execute("VACUUM tideline.batches, tideline.merged_segments")


@pytest.mark.usefixtures("cleaned_after")
@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("analyzed", [False, True], ids=["never analyzed", "analyzed before"])
@pytest.mark.parametrize(
    ("table", "fill", "end_of_log"),
    [("batches", LONG_LOG, ALL), ("merged_segments", LONG_MERGED, MERGED)],
    ids=["batches", "merged segments"],
)
def test_where_the_first_thousand_offsets_of_a_log_are_asked_for_no_more_rows_are_read(
    connection: psycopg.Connection[Any],
    table: str,
    fill: str,
    end_of_log: int,
    analyzed: bool,
    plans: str,
) -> None:
    """A stream asks for one such range after another."""
    connection.execute(fill.encode())
    if analyzed:
        connection.execute(f"ANALYZE {table}".encode())
    as_if_empty(connection, table)
    connection.execute(f"SET LOCAL plan_cache_mode = {plans}".encode())
    read = read_of(table)
    asked = "SELECT sum(last_offset - base_offset + 1) FROM table_suffix(7, {}, {}, 100)"
    for start, end in ((0, 1_000), (2_000, 3_000), (end_of_log - 1_000, end_of_log + 1_000)):
        before = count(connection, read)
        assert count(connection, asked.format(start, end)) == 1_000
        # And one that tells where to end.
        assert count(connection, read) - before <= 1_001, (start, end)


@pytest.mark.usefixtures("cleaned_after")
def test_segments_are_read_once_for_the_largest_timestamp_of_a_log(
    one_topic: psycopg.Connection[Any],
) -> None:
    one_topic.execute(LONG_MERGED.encode())
    as_if_empty(one_topic, "merged_segments")
    read = read_of("merged_segments")
    before = count(one_topic, read)
    newest = "SELECT found_offset FROM topics AS t, list_offsets(t.topic_id, 7, 'max_timestamp', 0)"
    assert count(one_topic, newest) == SPLITS * EACH // 2
    assert count(one_topic, read) - before <= MERGED + 1


def test_idle_producers_are_expired_without_reading_all_for_each(
    connection: psycopg.Connection[Any],
) -> None:
    connection.execute(PRODUCERS, ["now", 1, 2_000])
    connection.execute(PRODUCERS, ["2020-02-02 02:02:02+00", 2_001, 2_500])
    as_if_empty(connection, "producer_state")
    before = count(connection, read_of("producer_state"))
    connection.execute(RAN_BEFORE)
    assert count(connection, f"SELECT expire_producers({YEAR_MS}, 10000)") == 500
    assert count(connection, read_of("producer_state")) - before <= 5 * 2_500


def test_producers_of_deleted_topics_are_found_without_reading_all_logs_for_each(
    split_again: psycopg.Connection[Any],
) -> None:
    split_again.execute(HALF_EXPIRED.encode())
    split_again.execute("UPDATE logs SET deleted_at = now() WHERE log_id = 1")
    split_again.execute("ANALYZE logs")
    split_again.execute(PRODUCERS, ["now", 1, 2_000])
    as_if_empty(split_again, "producer_state")
    before = count(split_again, read_of("logs"))
    split_again.execute("SELECT prune_batches(10)")
    assert count(split_again, "SELECT count(*) FROM producer_state") == 0
    assert count(split_again, read_of("logs")) - before <= 10 * LOGS


DEAD = 500
DEAD_SEGMENTS = f"""
    SET LOCAL session_replication_role = replica;
    INSERT INTO merged_segments (segment_id, log_id, token, state, object_key_stem, base_offset,
            last_offset, size_bytes, leader_epoch, batch_count)
        SELECT md5(n::text)::uuid, 1, 1, 'DELETE_SEGMENT_STARTED', 'segment/' || n, n, n, 3, 0, 1
        FROM generate_series(1, {DEAD}) AS n;
    INSERT INTO marked_objects (bucket, object_key, segment_id, reason, marked_at)
        SELECT 'tiered', object_key_stem || '.log', segment_id, 'expired',
            now() - interval '1 day' FROM merged_segments
"""


def test_what_is_due_is_measured_and_forgotten_without_reading_all_of_it_for_each(
    connection: psycopg.Connection[Any],
) -> None:
    connection.execute(DEAD_SEGMENTS.encode())
    as_if_empty(connection, "merged_segments", "marked_objects", "split_files")
    read = read_of("merged_segments", "marked_objects")
    before = count(connection, read)
    due = "SELECT bytes FROM measure_garbage(1, 0, 0) WHERE kind = 'segment'"
    assert count(connection, due) == 3 * DEAD
    forgotten = "SELECT forget_dead_objects(ARRAY(SELECT object_key FROM marked_objects))"
    assert count(connection, forgotten) == DEAD
    assert count(connection, "SELECT count(*) FROM merged_segments") == 0
    assert count(connection, read) - before <= 20 * DEAD


def test_files_of_lapsed_claims_and_of_pending_runs_are_looked_up_one_by_one(
    one_topic: psycopg.Connection[Any],
) -> None:
    one_topic.execute(
        "INSERT INTO wal_file_claims (file_id, worker, token, expires_at)"
        " SELECT file_id + 1000000, gen_random_uuid(), 1, now() - interval '1 day' FROM wal_files"
    )
    one_topic.execute(
        "INSERT INTO tiering_failures (scope, key, failures, error, parked, retry_at)"
        " SELECT 'split', file_id + 1000000, 1, '', true, now() FROM wal_files"
    )
    before = count(one_topic, read_of("wal_files"))
    assert count(one_topic, "SELECT objects FROM pending_reads(ARRAY[7])") == SPLITS
    one_topic.execute("SELECT mark_dead_objects(1, 1000)")
    assert count(one_topic, "SELECT count(*) FROM wal_file_claims") == 0
    assert count(one_topic, "SELECT count(*) FROM tiering_failures") == 0
    assert count(one_topic, read_of("wal_files")) - before <= 12 * SPLITS


def test_what_dead_files_tell_is_looked_up_one_by_one(
    one_topic: psycopg.Connection[Any],
) -> None:
    one_topic.execute("DELETE FROM batches WHERE log_id = 7")
    one_topic.execute("INSERT INTO lessened_files (file_id) SELECT file_id FROM wal_files")
    one_topic.execute(FILES.replace("log_id = 7", "log_id <> 7"))
    one_topic.execute("UPDATE wal_files SET carried_by = 1 WHERE file_id NOT BETWEEN 700 AND 799")
    as_if_empty(one_topic, "wal_files")
    before = count(one_topic, read_of("wal_files"))
    assert count(one_topic, "SELECT judge_lessened_files(10000)") == SPLITS
    assert count(one_topic, read_of("wal_files")) - before <= 5 * LOGS * SPLITS
    dead = "SELECT count(*) FROM wal_files WHERE unreferenced_at IS NOT NULL"
    assert count(one_topic, dead) == SPLITS


def test_a_page_of_segments_reads_nothing_but_itself(connection: psycopg.Connection[Any]) -> None:
    connection.execute(DEAD_SEGMENTS.encode())
    connection.execute(HALF_EXPIRED.encode())
    pages = (
        f"SELECT count(*) FROM generate_series(1, {DEAD}) AS n,"
        " tiering_segments(1, 9, n, md5(n::text)::uuid, 1)"
    )
    before = count(connection, read_of("merged_segments", "logs"))
    assert count(connection, pages) == DEAD - 1
    assert count(connection, read_of("merged_segments", "logs")) - before <= 10 * DEAD


def test_idle_producers_are_found_without_reading_those_that_are_not(
    connection: psycopg.Connection[Any],
) -> None:
    connection.execute(PRODUCERS, ["now", 1, 20_000])
    connection.execute(PRODUCERS, ["2020-02-02 02:02:02+00", 20_001, 20_003])
    connection.execute("ANALYZE producer_state")
    read_whole = "SELECT pg_stat_get_xact_numscans('producer_state'::regclass)"
    before = count(connection, read_whole)
    connection.execute(RAN_BEFORE)
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


def test_what_a_job_finds_grown_is_looked_at_before_it_begins(database: Database) -> None:
    """Autovacuum has looked at it when it was empty, and comes by again in a minute or so."""
    known = "SELECT reltuples::int FROM pg_class WHERE oid = 'batches'::regclass"
    with psycopg.connect(database.dsn, autocommit=True) as connection, jobs(database) as plane:
        connection.execute("SET search_path = tideline")
        connection.execute("ALTER TABLE batches SET (autovacuum_enabled = off)")
        try:
            connection.execute(SPLIT_BATCHES)
            connection.execute("DELETE FROM batches")
            # Else what it has deleted may be counted after the look, and off what comes then.
            connection.execute("SELECT pg_stat_force_next_flush()")
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
