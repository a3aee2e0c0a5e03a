"""``tideline records``: the Iceberg tables that runs of the jobs tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table

from spark.common.record_parts import Part, overdue_since, pending
from spark.common.record_rows import TABLES
from spark.common.record_tables import RecordTables, opened, tell
from spark.common.records import OFF
from tideline.cli.output import Format, FormatOption, age, console, echo_json
from tideline.cli.writing import changing_jobs_plane
from tideline.errors import RefusedError, TidelineError, UnreachableError
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings, load

TellFlag = Annotated[
    bool, typer.Option("--tell", help="First append what waits, whatever its age.")
]


class CatalogAway(UnreachableError):
    """The catalog of the tables, or what it is reached by, gave an error of its own."""


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as its newest snapshot has it. ``location`` is ``None`` before the first append."""

    table: str
    location: str | None
    metadata_location: str | None
    rows: int
    files: int
    bytes: int
    appended_at: datetime | None
    waiting_parts: int
    """Of runs, in the bucket."""
    waiting_rows: int


def records(tell_now: TellFlag = False, output: FormatOption = Format.TABLE) -> None:
    """Show the Iceberg tables that runs of the jobs tell: where each is, what it has, what
    waits."""
    settings = load(JobsSettings)
    if settings.records_catalog == OFF:
        raise RefusedError(
            "TIDELINE_RECORDS_CATALOG is off: runs of the jobs tell nothing (docs/records.md)"
        )
    store = ObjectStoreClient(settings)
    progress = console(stderr=True).print
    try:
        if tell_now:
            with changing_jobs_plane():
                tell(settings, store, progress, now=True)
        waiting = pending(settings, store)
        with opened(settings, store) as tables:
            found = [_state(tables, name, waiting.get(name, ())) for name in TABLES]
    except TidelineError:
        raise
    except Exception as error:
        raise CatalogAway(
            f"catalog {settings.records_catalog!r} of the records: {type(error).__name__}: "
            f"{' '.join(str(error).split())}"
        ) from error
    since = overdue_since(waiting, settings)
    if output is Format.JSON:
        echo_json({"tables": found, "overdue_since": since})
        return
    screen = console()
    screen.print(records_table(found))
    if since is not None:
        screen.print(
            f"What waits should have been appended {age(since)} ago: the next run that ends does "
            "it, or says why not; or `tideline records --tell`",
            markup=False,
        )


def _state(tables: RecordTables, name: str, parts: Sequence[Part]) -> TableState:
    rows = sum(part.rows for part in parts)
    if (table := tables.load(name)) is None:
        return TableState(name, None, None, 0, 0, 0, None, len(parts), rows)
    snapshot = table.current_snapshot()
    summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    at = None if snapshot is None else datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    return TableState(
        name, table.location(), table.metadata_location,
        int(summary.get("total-records", 0)), int(summary.get("total-data-files", 0)),
        int(summary.get("total-files-size", 0)), at, len(parts), rows,
    )  # fmt: skip


def records_table(found: Iterable[TableState]) -> Table:
    table = Table(
        "table", "rows", "files", "bytes", "last append", "rows that wait", "metadata",
        box=None, pad_edge=False,
    )  # fmt: skip
    for one in found:
        last = "never" if one.appended_at is None else f"{age(one.appended_at)} ago"
        table.add_row(
            one.table, str(one.rows), str(one.files), str(one.bytes), last, str(one.waiting_rows),
            one.metadata_location or "",
        )  # fmt: skip
    return table
