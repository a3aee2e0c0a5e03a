"""The tables of Apache Iceberg that runs of the jobs tell, and their upkeep.

A catalog by setting; the embedded one has its pointers in Postgres (the schema
``tideline_records``) and its files in the diskless bucket. Appends are optimistic: whoever meets
another one's looks again at what that one has told. So each part is told once, whoever is killed
where, and however many runs end at the same time.
"""

from __future__ import annotations

import io
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform

from spark.common.bucket_files import files_of
from spark.common.record_parts import (
    MOST_PARTS,
    MOST_ROWS,
    ROOT,
    Part,
    due,
    pending,
    pending_root,
)
from spark.common.record_rows import TABLES, columns
from tideline.control_plane.pool import conninfo
from tideline.object_store.client import ObjectMissing, ObjectStoreClient
from tideline.object_store.runs import SCHEME
from tideline.settings import JobsSettings

EMBEDDED = "embedded"
SCHEMA = "tideline_records"
CATALOG = "tideline"
"""Name of the embedded catalog, which its rows in Postgres have."""
PARTS = "tideline.parts"
"""Property of a snapshot: the parts that it has told."""
UPKEEP = "tideline.upkeep"
"""Property of a table: the day of its last upkeep."""
ATTEMPTS = 6
"""One append among others at the same time."""
SNAPSHOTS_KEPT = timedelta(days=3)
"""They say which parts were told: far longer than a part can lie there after it was. It is also how
old a file that nothing refers to must be before it goes: longer than any append or read lasts."""
PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    # Another's append is looked at before the next attempt, which pyiceberg's own does not.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


@dataclass(frozen=True, slots=True)
class RecordTables:
    """The tables in an open catalog. ``root``: address of the embedded ones with a slash at its
    end; ``None``: the catalog's own business."""

    catalog: Catalog
    settings: JobsSettings
    store: ObjectStoreClient
    root: str | None

    def load(self, name: str) -> Table | None:
        """The table as it is; ``None``: nothing was told to it yet."""
        try:
            return self.catalog.load_table((self.settings.records_namespace, name))
        except NoSuchTableError:
            return None

    def ready(self, name: str) -> Table:
        """The table, made if it is not there, with every column that is told."""
        identifier = (self.settings.records_namespace, name)
        table = self._not_behind(name)
        if table is None:
            self.catalog.create_namespace_if_not_exists(self.settings.records_namespace)
            location = None if self.root is None else f"{self.root}{name}"
            try:
                with (
                    self.catalog.create_table_transaction(
                        identifier, columns(name), location=location, properties=PROPERTIES
                    ) as making,
                    making.update_spec() as spec,
                ):
                    spec.add_field("started_at", DayTransform(), "started_day")
            except (TableAlreadyExistsError, CommitFailedException):
                """Another run has made it."""
            table = self.catalog.load_table(identifier)
        known = {field.name for field in table.schema().fields}
        if any(column not in known for column in columns(name).names):
            with table.update_schema() as change:
                change.union_by_name(columns(name))
        return table

    # Postgres may have been lost, or restored: the bucket says where the table has come to.

    def _not_behind(self, name: str) -> Table | None:
        newest = self._newest(name)
        # Read behind that: what other runs append meanwhile is never behind it.
        table = self.load(name)
        if newest is None or (table and _version(newest) <= _version(table.metadata_location)):
            return table
        if table is not None:
            self.catalog.drop_table(table.name())
        self.catalog.create_namespace_if_not_exists(self.settings.records_namespace)
        return self.catalog.register_table((self.settings.records_namespace, name), newest)

    def _newest(self, name: str) -> str | None:
        if self.root is None:
            return None
        try:
            return self.store.get(*self._pointer(name)).decode()
        except ObjectMissing:
            return None

    def note(self, name: str, table: Table) -> None:
        """The bucket is told where the table has come to."""
        if self.root is not None:
            self.store.put(*self._pointer(name), table.metadata_location.encode())

    def _pointer(self, name: str) -> tuple[str, str]:
        settings = self.settings
        key = f"{settings.diskless_prefix}{ROOT}{settings.records_namespace}/{name}.newest"
        return settings.s3_bucket, key


@contextmanager
def opened(settings: JobsSettings, store: ObjectStoreClient) -> Iterator[RecordTables]:
    """The catalog of the settings."""
    with ExitStack() as stack:
        root = None
        if settings.records_catalog == EMBEDDED:
            files = stack.enter_context(files_of(store))
            root = f"{SCHEME}{settings.s3_bucket}/{settings.diskless_prefix}{ROOT}"
            root += f"{settings.records_namespace}/"
            catalog: Catalog = SqlCatalog(
                CATALOG, uri=_uri(settings), init_catalog_tables="false", warehouse=root, **files
            )
        else:
            catalog = load_catalog(settings.records_catalog, **settings.records_options)
        stack.callback(catalog.close)
        yield RecordTables(catalog, settings, store, root)


def _uri(settings: JobsSettings) -> str:
    """Postgres as SQLAlchemy spells it, with the schema of the catalog alone in its path."""
    found = conninfo_to_dict(conninfo(settings, "tideline-records"))
    parts = {name: str(value) for name, value in found.items()}
    parts["options"] += f" -c search_path={SCHEMA}"
    return f"postgresql+psycopg:///?{urlencode(parts)}"


def tell(
    settings: JobsSettings,
    store: ObjectStoreClient,
    progress: Callable[[str], None],
    *,
    now: bool = False,
) -> int:
    """Append what is due, or with ``now`` all that waits; how many rows. Raises what the store, the
    catalog and what it is reached by raise; what was appended by then stays so."""
    waiting = pending(settings, store)
    told = 0
    with opened(settings, store) as tables:
        for name in TABLES:
            parts = waiting.get(name, ())
            if parts and (now or due(parts, settings)):
                for some in _appends(parts):
                    told += _append(tables, name, some)
                progress(f"told {name} what {len(parts)} parts of runs had for it")
        for name in TABLES:
            keep_up(tables, name)
    return told


def _appends(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """``parts`` in groups that one append takes."""
    some: list[Part] = []
    for part in parts:
        if some and (len(some) == MOST_PARTS or sum(p.rows for p in some) + part.rows > MOST_ROWS):
            yield some
            some = []
        some.append(part)
    if some:
        yield some


def _append(tables: RecordTables, name: str, parts: Sequence[Part]) -> int:
    """Tell those of ``parts`` that nobody has told, and forget them; rows that were appended."""
    settings, store = tables.settings, tables.store
    root = pending_root(settings)
    for attempt in range(ATTEMPTS):
        try:
            table = tables.ready(name)
            told = told_parts(table)
            done = [part for part in parts if part.name in told]
            frames = []
            for part in parts:
                if part.name not in told and (frame := _read(tables, table, part)) is not None:
                    frames.append(frame)
                    done.append(part)
            if frames:
                names = ",".join(part.name for part in done if part.name not in told)
                table.append(pa.concat_tables(frames), snapshot_properties={PARTS: names})
                tables.note(name, table)
        except CommitFailedException:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(random.uniform(0.05, 0.2) * 2**attempt)
            continue
        store.delete(settings.s3_bucket, [f"{root}{part.key}" for part in done])
        return sum(frame.num_rows for frame in frames)
    raise AssertionError("the last attempt returns or raises")


def told_parts(table: Table) -> set[str]:
    """Names of the parts that the table's snapshots have told."""
    summaries = (snapshot.summary for snapshot in table.metadata.snapshots)
    names = (summary.additional_properties.get(PARTS, "") for summary in summaries if summary)
    return {part for text in names for part in text.split(",")}


def _read(tables: RecordTables, table: Table, part: Part) -> pa.Table | None:
    """The rows of a part with the table's columns, null where the part lacks one. ``None``: another
    run has just told it, or it has columns that the table lacks: who knows them must tell it."""
    settings = tables.settings
    key = pending_root(settings) + part.key
    try:
        rows = pq.read_table(io.BytesIO(tables.store.get(settings.s3_bucket, key)))
    except ObjectMissing:
        return None
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    if any(name not in schema.names for name in rows.column_names):
        return None
    arrays = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def keep_up(tables: RecordTables, name: str) -> None:
    """Once a day: rows beyond ``records_kept_days`` go, snapshots that nobody needs, and files that
    nothing refers to. Only the embedded tables: others are kept up by their platform."""
    today = datetime.now(UTC).date()
    table = tables.load(name)
    if table is None or tables.root is None or table.properties.get(UPKEEP) == today.isoformat():
        return
    oldest = today - timedelta(days=tables.settings.records_kept_days)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # That no row is as old is no news.
            table.delete(f"started_at < '{oldest.isoformat()}T00:00:00+00:00'")
        table.maintenance.expire_snapshots().older_than(datetime.now(UTC) - SNAPSHOTS_KEPT).commit()
        with table.transaction() as change:
            change.set_properties({UPKEEP: today.isoformat()})
    except CommitFailedException:
        return  # Another run appends, or does the same: the next one looks again.
    tables.note(name, table)
    _delete_unreferenced(tables, table)


def _delete_unreferenced(tables: RecordTables, table: Table) -> None:
    """pyiceberg forgets snapshots, and leaves their files."""
    needed = set(_files(table))
    bucket = tables.settings.s3_bucket
    prefix = table.location().removeprefix(f"{SCHEME}{bucket}/") + "/"
    young = datetime.now(UTC) - SNAPSHOTS_KEPT
    tables.store.delete(
        bucket,
        (
            entry.key
            for entry in tables.store.list_objects(bucket, prefix)
            if entry.last_modified < young and f"{SCHEME}{bucket}/{entry.key}" not in needed
        ),
    )


def _files(table: Table) -> Iterator[str]:
    """Every file that the table's metadata refers to, itself included."""
    yield table.metadata_location
    yield from (entry.metadata_file for entry in table.metadata.metadata_log)
    seen = set()
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    yield entry.data_file.file_path


def _version(metadata_location: str) -> int:
    """How many commits a table's metadata has behind it: its file's name begins with that."""
    return int(metadata_location.rpartition("/")[2].partition("-")[0])
