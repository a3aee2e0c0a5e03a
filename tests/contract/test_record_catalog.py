"""The embedded catalog of the jobs' Iceberg tables on a real Postgres, by the jobs' own role."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors

from benchmarks.s3_alone import s3_alone
from spark.common.record_parts import pending
from spark.common.record_rows import DeletedRow
from spark.common.record_tables import opened, tell
from spark.common.records import Ended, Records
from tests.contract.conftest import Database
from tests.contract.tiering import jobs_settings
from tests.shelf import Shelf
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import ObjectStoreSettings
from tideline.stack.parts.kafka import new_cluster_id

TABLES = ("iceberg_tables", "iceberg_namespace_properties")


def add(database: Database, shelf: Shelf, key: str) -> None:
    settings = jobs_settings(database)
    run = Records(settings, "gc", uuid4(), datetime.now(UTC), lambda text: None, shelf)
    run.add(DeletedRow, [DeletedRow(1, "b", key, "wal", "empty", 5, None, datetime.now(UTC))])
    run.end(Ended(True, "ok", None, {}), tell=False)


def keys(database: Database, shelf: Shelf) -> list[str]:
    with opened(jobs_settings(database), shelf) as tables:
        table = tables.load("deleted_objects")
        assert table is not None
        return sorted(table.scan().to_arrow()["object_key"].to_pylist())


def test_the_jobs_tell_their_tables_through_postgres(database: Database) -> None:
    shelf, settings = Shelf(), jobs_settings(database)
    for key in ("x", "y"):
        add(database, shelf, key)
        assert tell(settings, shelf, lambda text: None, now=True) == 2
    assert keys(database, shelf) == ["x", "y"]
    with psycopg.connect(database.dsn) as connection:
        found = connection.execute(
            "SELECT table_name, metadata_location FROM tideline_records.iceberg_tables"
        ).fetchall()
    assert {name for name, _ in found} == {"deleted_objects", "job_runs"}
    address = f"s3://{settings.s3_bucket}/records/tideline/"
    assert all(location.startswith(address) for _, location in found)


def test_runs_that_end_at_the_same_time_tell_each_row_once(database: Database) -> None:
    shelf, settings = Shelf(), jobs_settings(database)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE tideline_records.iceberg_tables")
    names = [f"{n:02d}" for n in range(12)]

    def end(key: str) -> int:
        add(database, shelf, key)
        return tell(settings, shelf, lambda text: None, now=True)

    with ThreadPoolExecutor(4) as pool:
        told = sum(pool.map(end, names))
    told += tell(settings, shelf, lambda text: None, now=True)
    assert told == 2 * len(names)
    assert keys(database, shelf) == names
    assert pending(settings, shelf) == {}


def test_the_tables_lie_in_a_real_bucket(database: Database, tmp_path: Path) -> None:
    with s3_alone(tmp_path / "s3", new_cluster_id()) as environment:
        of_bucket = ObjectStoreSettings.of(environment).model_dump()
        own = {"s3_prefix": "site-a", "records_namespace": "real"}
        settings = jobs_settings(database).model_copy(update=of_bucket | own)
        store = ObjectStoreClient(settings)
        for key in ("x", "y"):
            run = Records(settings, "gc", uuid4(), datetime.now(UTC), lambda text: None)
            run.add(
                DeletedRow, [DeletedRow(1, "b", key, "wal", "empty", 5, None, datetime.now(UTC))]
            )
            assert run.end(Ended(True, "ok", None, {}), tell=False).problem is None
            assert tell(settings, store, lambda text: None, now=True) == 2
        with opened(settings, store) as tables:
            table = tables.load("deleted_objects")
            assert table is not None
            assert (
                table.location() == f"s3://{settings.s3_bucket}/site-a/records/real/deleted_objects"
            )
            found = table.scan(row_filter="object_key == 'y'").to_arrow()
            assert found["object_key"].to_pylist() == ["y"]
        assert list(store.list_objects(settings.s3_bucket, "site-a/records/pending/")) == []
        store.close()


@pytest.mark.parametrize("role", ["tideline_gateway_1", "tideline_worker"])
def test_nobody_else_has_the_catalog(database: Database, role: str) -> None:
    with psycopg.connect(database.as_role(role), autocommit=True) as connection:
        for table in TABLES:
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(f"SELECT FROM tideline_records.{table}".encode())


def test_the_jobs_change_rows_of_the_catalog_and_nothing_else(database: Database) -> None:
    with psycopg.connect(database.as_role("tideline_jobs"), autocommit=True) as connection:
        for query in (
            "CREATE TABLE tideline_records.mine (n int)",
            "TRUNCATE tideline_records.iceberg_tables",
            "DROP TABLE tideline_records.iceberg_tables",
            "ALTER TABLE tideline_records.iceberg_tables ADD COLUMN n int",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(query.encode())
