"""What runs did reaches the tables once, late if need be, and never stops a run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from spark.common import record_tables, records
from spark.common.bucket_files import files_of
from spark.common.entry import Job, Outcome, carry_out
from spark.common.record_parts import PENDING, Part, pending
from spark.common.record_rows import RUNS, TABLES, DeletedRow, OfRun, RunRow, columns
from spark.common.record_tables import RecordTables, keep_up, tell
from spark.common.records import Ended, Records, figures
from tests.shelf import Shelf
from tideline.domain.history import ServerIdentity
from tideline.errors import UsageError
from tideline.object_store.client import ObjectStoreUnavailable
from tideline.settings import JobsSettings, load

STARTED = datetime(2026, 3, 5, 12, tzinfo=UTC)
DELETED = "deleted_objects"
OK = Ended(True, "ok", None, {"deleted": {"wal": 3}, "dry_run": False, "listed": 7})


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> JobsSettings:
    monkeypatch.setenv("TIDELINE_POSTGRES_DSN", "host=127.0.0.1")
    monkeypatch.setenv("TIDELINE_KAFKA_BOOTSTRAP", "127.0.0.1:9092")
    monkeypatch.setenv("TIDELINE_S3_PREFIX", "site-a")
    monkeypatch.setenv("TIDELINE_RECORDS_EVERY_MS", "0")
    return load(JobsSettings)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def tables(
    settings: JobsSettings, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RecordTables]:
    """The embedded catalog with its pointers in a file; contract tests have them in Postgres."""
    root = f"s3://{settings.s3_bucket}/site-a/records/tideline/"
    with files_of(shelf) as files:
        catalog = SqlCatalog("tideline", uri=f"sqlite:///{tmp_path}/catalog.db", **files)
        found = RecordTables(catalog, settings, shelf, root)

        class Opened:
            def __init__(self, *_: object) -> None: ...

            def __enter__(self) -> RecordTables:
                return found

            def __exit__(self, *_: object) -> None: ...

        monkeypatch.setattr(record_tables, "opened", Opened)
        yield found
        catalog.close()


def run_of(settings: JobsSettings, shelf: Shelf, said: list[str] | None = None) -> Records:
    progress = (lambda text: None) if said is None else said.append
    return Records(settings, "gc", uuid4(), STARTED, progress, shelf)


def deleted(*keys: str) -> list[DeletedRow]:
    return [DeletedRow(1, "b", key, "wal", "empty", None, None, STARTED) for key in keys]


def told(tables: RecordTables, name: str = DELETED) -> list[dict[str, object]]:
    table = tables.load(name)
    return [] if table is None else table.scan().to_arrow().to_pylist()


def keys_told(tables: RecordTables) -> list[object]:
    return sorted(str(row["object_key"]) for row in told(tables))


def tell_now(settings: JobsSettings, shelf: Shelf) -> int:
    return tell(settings, shelf, lambda text: None, now=True)


def test_a_part_is_found_again_by_its_key() -> None:
    part = Part("segments", 1_700_000_000_000, str(uuid4()), 3, 20)
    assert Part.of(part.key) == part
    assert Part.of("segments/other.parquet") is None
    older = Part("segments", 1_600_000_000_000, str(uuid4()), 9, 1)
    assert sorted([part.key, older.key]) == [older.key, part.key]


def test_rows_lie_in_the_bucket_as_soon_as_they_are_added(
    settings: JobsSettings, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "ROWS_PER_PART", 2)
    run_of(settings, shelf).add(DeletedRow, iter(deleted("x", "y", "z")))
    (parts,) = pending(settings, shelf).values()
    assert [(part.table, part.number, part.rows) for part in parts] == [
        (DELETED, 0, 2),
        (DELETED, 1, 1),
    ]
    (first, _) = shelf.objects.values()
    rows = pq.read_table(io.BytesIO(first))
    assert rows.schema.equals(columns(DELETED))
    assert rows["part"].to_pylist() == [0, 0]
    assert rows["started_at"].to_pylist() == [STARTED, STARTED]
    assert all(key.startswith(f"site-a/{PENDING}{DELETED}/") for _, key in shelf.objects)


def test_a_run_tells_what_it_did_and_then_itself(
    settings: JobsSettings, shelf: Shelf, tables: RecordTables
) -> None:
    run = run_of(settings, shelf)
    run.add(DeletedRow, deleted("x", "y"))
    end = run.end(OK, tell=True)
    assert (end.rows, end.lost_rows, end.told_rows, end.waiting_parts) == (3, 0, 3, 0)
    assert end.problem is None
    assert keys_told(tables) == ["x", "y"]
    (row,) = told(tables, RUNS)
    assert (row["job"], row["outcome"], row["whole"]) == ("gc", "ok", True)
    assert dict(row["counts"]) == {"deleted.wal": 3, "listed": 7}  # type: ignore[call-overload]
    assert {one["run_id"] for one in told(tables)} == {row["run_id"]}
    assert pending(settings, shelf) == {}


def test_young_rows_wait_and_go_with_older_ones(
    settings: JobsSettings, shelf: Shelf, tables: RecordTables
) -> None:
    patient = settings.model_copy(update={"records_every_ms": 3_600_000})
    young = Records(patient, "gc", uuid4(), datetime.now(UTC), lambda text: None, shelf)
    young.add(DeletedRow, deleted("x"))
    end = young.end(OK, tell=True)
    assert (end.told_rows, end.waiting_parts, end.overdue_since) == (0, 2, None)
    old = datetime.now(UTC) - timedelta(hours=1)
    Records(patient, "gc", uuid4(), old, lambda text: None, shelf).add(DeletedRow, deleted("y"))
    assert run_of(patient, shelf).end(OK, tell=True).waiting_parts == 0
    assert keys_told(tables) == ["x", "y"]
    table = tables.load(DELETED)
    assert table is not None
    assert len(table.metadata.snapshots) == 1, "an append for several runs"


def test_off_keeps_nothing(settings: JobsSettings, shelf: Shelf) -> None:
    off = settings.model_copy(update={"records_catalog": "off"})
    run = run_of(off, shelf)
    run.add(DeletedRow, deleted("x"))
    assert run.end(OK, tell=True).rows == 0
    assert shelf.objects == {}


def test_a_store_that_is_away_loses_rows_and_says_so_and_is_asked_once(
    settings: JobsSettings, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "ROWS_PER_PART", 2)
    said: list[str] = []
    asked: list[str] = []
    shelf.away = {"put"}
    run = run_of(settings, shelf, said)
    monkeypatch.setattr(shelf, "_asked", lambda c, k: asked.append(k) or Shelf._asked(shelf, c, k))
    run.add(DeletedRow, deleted("x", "y", "z"))
    end = run.end(OK, tell=True)
    assert (end.rows, end.lost_rows) == (0, 4)
    assert end.problem is not None
    assert "no route" in end.problem
    assert len(asked) == 1
    assert said == [f"what it did is not told to {DELETED}: {said[0].partition(': ')[2]}"]


def test_a_catalog_that_is_away_makes_rows_late(
    settings: JobsSettings, shelf: Shelf, tables: RecordTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(settings, shelf)
    run.add(DeletedRow, deleted("x"))
    with monkeypatch.context() as away:
        away.setattr(
            tables.catalog, "load_table", lambda name: (_ for _ in ()).throw(OSError("no"))
        )
        end = run.end(OK, tell=True)
    assert (end.rows, end.lost_rows, end.told_rows, end.waiting_parts) == (2, 0, 0, 2)
    assert end.problem == "OSError: no"
    assert end.overdue_since == STARTED
    assert tell_now(settings, shelf) == 2
    assert keys_told(tables) == ["x"]


def test_a_run_that_was_killed_after_its_append_is_not_told_twice(
    settings: JobsSettings, shelf: Shelf, tables: RecordTables
) -> None:
    run_of(settings, shelf).add(DeletedRow, deleted("x"))
    shelf.away = {"delete"}
    with pytest.raises(Exception, match="no route"):
        tell_now(settings, shelf)
    shelf.away = set()
    assert keys_told(tables) == ["x"]
    assert list(pending(settings, shelf)) == [DELETED], "it waits, and was told"
    run_of(settings, shelf).add(DeletedRow, deleted("y"))
    assert tell_now(settings, shelf) == 1
    assert keys_told(tables) == ["x", "y"]
    assert pending(settings, shelf) == {}


def test_two_runs_that_tell_at_the_same_time_tell_each_part_once(
    settings: JobsSettings, shelf: Shelf, tables: RecordTables
) -> None:
    """The second comes when the first has read the parts, and is done before the first appends."""
    run_of(settings, shelf).add(DeletedRow, deleted("x"))
    tell_now(settings, shelf)
    run_of(settings, shelf).add(DeletedRow, deleted("y"))
    overtaken = []

    def overtake(key: str) -> None:
        if PENDING in key and not overtaken:
            overtaken.append(key)
            body = shelf.objects[settings.s3_bucket, key]
            assert tell_now(settings, shelf) == 1
            shelf.put(settings.s3_bucket, key, body)

    shelf.before["get"] = overtake
    assert tell_now(settings, shelf) == 0
    assert overtaken
    assert keys_told(tables) == ["x", "y"]
    assert pending(settings, shelf) == {}


def test_a_large_run_is_appended_in_bounded_pieces(
    settings: JobsSettings, shelf: Shelf, tables: RecordTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "ROWS_PER_PART", 10)
    monkeypatch.setattr(record_tables, "MOST_ROWS", 25)
    run_of(settings, shelf).add(DeletedRow, deleted(*(f"{n:03d}" for n in range(64))))
    assert tell_now(settings, shelf) == 64
    table = tables.load(DELETED)
    assert table is not None
    sizes = [s.summary["added-records"] for s in table.metadata.snapshots if s.summary]
    assert sizes == ["20", "20", "24"]
    assert keys_told(tables) == [f"{n:03d}" for n in range(64)]


def put_part(settings: JobsSettings, shelf: Shelf, rows: pa.Table, number: int = 0) -> Part:
    part = Part(DELETED, round(STARTED.timestamp() * 1000), str(uuid4()), number, rows.num_rows)
    file = io.BytesIO()
    pq.write_table(rows, file)
    key = f"{settings.diskless_prefix}{PENDING}{part.key}"
    shelf.put(settings.s3_bucket, key, file.getvalue())
    return part


def whole_rows(*keys: str) -> pa.Table:
    of_run = records.to_batch(OfRun, [OfRun("r", STARTED, "gc", 0)] * len(keys))
    own = records.to_batch(DeletedRow, deleted(*keys))
    return pa.Table.from_arrays([*of_run.columns, *own.columns], schema=columns(DELETED))


def test_what_a_part_lacks_is_null_and_who_knows_another_column_must_tell_it(
    settings: JobsSettings, shelf: Shelf, tables: RecordTables
) -> None:
    put_part(settings, shelf, whole_rows("x").drop_columns(["reason"]))
    unknown = whole_rows("y").append_column("region", pa.array(["north"]))
    put_part(settings, shelf, unknown)
    assert tell_now(settings, shelf) == 1
    (row,) = told(tables)
    assert (row["object_key"], row["reason"]) == ("x", None)
    assert len(pending(settings, shelf)[DELETED]) == 1


def test_a_table_is_given_the_columns_that_it_lacks(
    settings: JobsSettings,
    shelf: Shelf,
    tables: RecordTables,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fewer = pa.schema([field for field in columns(DELETED) if field.name != "reason"])
    with monkeypatch.context() as before:
        before.setattr(record_tables, "columns", lambda name: fewer)
        put_part(settings, shelf, whole_rows("x").drop_columns(["reason"]))
        tell_now(settings, shelf)
    put_part(settings, shelf, whole_rows("y"))
    assert tell_now(settings, shelf) == 1
    assert {row["object_key"]: row["reason"] for row in told(tables)} == {"x": None, "y": "empty"}


def test_upkeep_drops_old_rows_old_snapshots_and_files_that_nothing_refers_to(
    settings: JobsSettings, shelf: Shelf, tables: RecordTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Records(
        settings, "gc", uuid4(), datetime(2020, 1, 1, tzinfo=UTC), lambda text: None, shelf
    )
    with monkeypatch.context() as later:
        later.setattr(record_tables, "keep_up", lambda tables, name: None)
        old.add(DeletedRow, deleted("gone"))
        tell_now(settings, shelf)
        new = Records(settings, "gc", uuid4(), datetime.now(UTC), lambda text: None, shelf)
        new.add(DeletedRow, deleted("kept"))
        tell_now(settings, shelf)
    stray = f"site-a/records/tideline/{DELETED}/data/of-a-lost-append.parquet"
    shelf.put(settings.s3_bucket, stray, b"x")
    before = set(shelf.objects)
    monkeypatch.setattr(record_tables, "SNAPSHOTS_KEPT", timedelta(seconds=-60))
    keep_up(tables, DELETED)
    assert keys_told(tables) == ["kept"]
    table = tables.load(DELETED)
    assert table is not None
    assert len(table.metadata.snapshots) == 1
    gone = {key for _, key in before - set(shelf.objects)}
    assert stray in gone
    assert any(key.endswith(".parquet") and key != stray for key in gone)
    assert any("/snap-" in key for key in gone)
    versions = table.metadata_location
    keep_up(tables, DELETED)
    again = tables.load(DELETED)
    assert again is not None
    assert again.metadata_location == versions, "once a day"


@pytest.mark.parametrize("restored", [False, True], ids=["lost", "restored"])
def test_tables_outlive_their_catalog(
    settings: JobsSettings, shelf: Shelf, tables: RecordTables, restored: bool
) -> None:
    run_of(settings, shelf).add(DeletedRow, deleted("x"))
    tell_now(settings, shelf)
    table = tables.load(DELETED)
    assert table is not None
    behind = table.metadata_location
    run_of(settings, shelf).add(DeletedRow, deleted("y"))
    tell_now(settings, shelf)
    tables.catalog.drop_table(("tideline", DELETED))
    if restored:
        tables.catalog.register_table(("tideline", DELETED), behind)
    run_of(settings, shelf).add(DeletedRow, deleted("z"))
    tell_now(settings, shelf)
    assert keys_told(tables) == ["x", "y", "z"]


def test_another_catalog_is_one_of_pyiceberg(
    settings: JobsSettings, shelf: Shelf, tmp_path: Path
) -> None:
    """Here with a file; with files of its own, and kept up by whoever has it."""
    text = f"type=sql, uri=sqlite:///{tmp_path}/other.db, warehouse=file://{tmp_path}"
    other = JobsSettings.of(
        {
            "TIDELINE_POSTGRES_DSN": "host=127.0.0.1",
            "TIDELINE_KAFKA_BOOTSTRAP": "127.0.0.1:9092",
            "TIDELINE_RECORDS_CATALOG": "platform",
            "TIDELINE_RECORDS_PROPERTIES": text,
            "TIDELINE_RECORDS_NAMESPACE": "site_a",
        }
    )
    run_of(other, shelf).add(DeletedRow, deleted("x"))
    assert tell_now(other, shelf) == 1
    with record_tables.opened(other, shelf) as tables:
        assert tables.root is None
        assert keys_told(tables) == ["x"]
        table = tables.load(DELETED)
        assert table is not None
        assert table.location().startswith(f"file://{tmp_path}")
        assert record_tables.UPKEEP not in table.properties
    assert shelf.objects == {}


def test_properties_are_checked_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELINE_POSTGRES_DSN", "host=127.0.0.1")
    monkeypatch.setenv("TIDELINE_KAFKA_BOOTSTRAP", "127.0.0.1:9092")
    monkeypatch.setenv("TIDELINE_RECORDS_PROPERTIES", "type=rest,secret")
    with pytest.raises(UsageError, match="property 2 is not key=value") as refused:
        load(JobsSettings)
    assert "secret" not in str(refused.value).replace("TIDELINE_RECORDS_PROPERTIES", "")


@pytest.mark.parametrize(
    ("owned", "dry", "kept"), [(True, False, 2), (True, True, 0), (False, False, 0)]
)
def test_a_run_tells_unless_it_is_dry_or_has_not_found_the_bucket_to_be_its_own(
    settings: JobsSettings, shelf: Shelf, tables: RecordTables, owned: bool, dry: bool, kept: int
) -> None:
    seen = ServerIdentity.__new__(ServerIdentity)
    job = Job("gc", settings.having_seen(seen) if owned else settings)
    job.__dict__["records"] = run_of(settings, shelf)

    def work(job: Job) -> Outcome:
        if owned and not dry:
            job.records.add(DeletedRow, deleted("x"))
        return Outcome({"listed": 3})

    outcome = carry_out(job, work, whole=False, dry=dry)
    assert ("records" in outcome.details) == (kept > 0)
    assert len(told(tables)) + len(told(tables, RUNS)) == kept


def test_why_a_run_failed_is_told_by_the_next(
    settings: JobsSettings, shelf: Shelf, tables: RecordTables
) -> None:
    job = Job("gc", settings.having_seen(ServerIdentity.__new__(ServerIdentity)))
    job.__dict__["records"] = run_of(settings, shelf)

    def work(job: Job) -> Outcome:
        job.records.add(DeletedRow, deleted("x"))
        raise ObjectStoreUnavailable("no route")

    with pytest.raises(ObjectStoreUnavailable):
        carry_out(job, work, whole=False)
    assert told(tables, RUNS) == [], "nothing is told while a store may be away"
    tell_now(settings, shelf)
    (row,) = told(tables, RUNS)
    assert (row["outcome"], row["error"]) == ("unreachable", "S3 is away: no route")
    assert keys_told(tables) == ["x"]


def test_figures_are_the_whole_numbers_of_a_result() -> None:
    details = {"a": 1, "b": True, "c": "x", "d": {"e": 2, "f": {"g": 3}}, "h": [1], "i": 2.5}
    assert figures(details) == {"a": 1, "d.e": 2}


def test_each_table_has_a_row_class_of_plain_columns() -> None:
    for name in TABLES:
        schema = columns(name)
        assert schema.names[:4] == ["run_id", "started_at", "job", "part"]
        assert len(set(schema.names)) == len(schema.names)
    assert list(TABLES)[-1] == RUNS, "it says that a run is whole"
    assert TABLES[RUNS] is RunRow
