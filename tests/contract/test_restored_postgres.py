"""A Postgres that was restored from before acknowledgements: what the collection takes then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.contract.conftest import Database
from tests.contract.scenes import TABLES, batch
from tests.contract.test_tiering_garbage import listed
from tests.contract.tiering import Tiered, segment_of
from tideline.control_plane.tiering_model import Bucket

GRACE_MS = 600_000
ORPHAN_GRACE_MS = 7 * 86_400_000
LATER = "interval '1 day'"
"""Between runs after the restore: far past the grace, far from that of orphans."""


@contextmanager
def lost_afterwards(database: Database) -> Iterator[None]:
    """Every table has at the end the rows that it had at the beginning, as after a restore."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:

        def run(statement: str) -> Any:
            return connection.execute(statement.encode())

        run("SET search_path = tideline")
        run("SET session_replication_role = replica")
        for table in TABLES:
            run(f"CREATE TEMP TABLE kept_{table} AS TABLE {table}")
        yield
        for table in TABLES:
            ((stored,),) = run(
                "SELECT string_agg(attname, ', ') FROM pg_attribute "
                f"WHERE attrelid = 'tideline.{table}'::regclass AND attnum > 0 "
                "AND NOT attisdropped AND attgenerated = ''"
            ).fetchall()
            run(f"DELETE FROM {table}")
            run(
                f"INSERT INTO {table} ({stored}) OVERRIDING SYSTEM VALUE "
                f"SELECT {stored} FROM kept_{table}"
            )


def pass_a_day(tiered: Tiered) -> None:
    for table, column in (
        ("wal_files", "registered_at"),
        ("wal_files", "unreferenced_at"),
        ("marked_objects", "marked_at"),
        ("orphan_reports", "first_seen"),
        ("wal_file_claims", "expires_at"),
        ("merge_claims", "expires_at"),
    ):
        tiered.scene.sql(f"UPDATE {table} SET {column} = {column} - {LATER}")


def collect(tiered: Tiered, run: int, bucket: set[str], tiered_bucket: set[str]) -> set[str]:
    """What a run deletes of these objects; as ``spark/gc`` does it."""
    plane = tiered.plane
    plane.prune_batches()
    plane.forget_uncommitted_keys(GRACE_MS)
    plane.mark_dead_objects(GRACE_MS)
    plane.report_orphans(run, Bucket.DISKLESS, listed(*bucket))
    plane.report_orphans(run, Bucket.TIERED, listed(*tiered_bucket))
    gone = set(files := plane.claim_dead_files(GRACE_MS))
    plane.forget_dead_files(files)
    objects = plane.claim_dead_objects(GRACE_MS, orphan_grace_ms=ORPHAN_GRACE_MS)
    gone |= {one.object_key for one in objects}
    plane.forget_dead_objects([one.object_key for one in objects])
    orphans = plane.claim_orphans(run, ORPHAN_GRACE_MS)
    gone |= {one.object_key for one in orphans}
    for one in orphans:
        plane.forget_orphans(one.bucket, [one.object_key])
    return gone


async def test_what_was_acknowledged_after_a_backup_outlives_the_runs_after_its_restore(
    tiered: Tiered, database: Database
) -> None:
    """A file committed whose key the backup has as registered, one whose key it does not have, a
    segment that it has as begun, and one that it does not have."""
    scene, gateway, worker = tiered.scene, tiered.gateway, tiered.worker
    log = await tiered.diskless(files=2, batches=2)
    worker.split(log.topic_id)
    plan = worker.begun(log)
    await scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["ahead"])
    with lost_afterwards(database):
        tiered.plane.finish_merge(log, plan.token, segment_of(plan))
        await scene.commit(gateway, batch(log), key="ahead")
        await scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["later"])
        await scene.commit(gateway, batch(log), key="later")
    segment = {plan.object_key_stem + ".log", plan.object_key_stem + ".index"}
    unknown_segment = {"seg/00000000000000000002-AAAAAAAAAAAAAAAAAAAAAA.log"}
    wal, rest = {"ahead", "later"}, segment | unknown_segment
    for run in range(1, 7):
        assert not collect(tiered, run, wal, rest) & (wal | rest), f"run {run}"
        pass_a_day(tiered)
    gone: set[str] = set()
    for run in range(7, 11):
        gone |= collect(tiered, run, wal, rest)
        pass_a_day(tiered)
    assert gone >= wal | rest, "what nobody has made known in a week is garbage"
