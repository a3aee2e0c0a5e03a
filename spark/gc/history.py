"""Whether the bucket's last run of the collection is known to Postgres.

Runs are numbered by Postgres, and their reports lie in the bucket. A report that Postgres does not
know means that it was restored from before that run, or that another Postgres (a clone, a second
installation) collects in this bucket: what is unknown here may be somebody's only copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID, uuid4

from spark.gc.reports import PREFIX, Report, ReportStore
from tideline.control_plane.garbage_model import GcRunRow
from tideline.control_plane.jobs import JobsControlPlane
from tideline.domain import catalog
from tideline.errors import RefusedError
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings

_NAME = re.compile(r"/(?P<number>\d{10})-(?P<run>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-\d+")
KNOWN_RUNS = 1_000
"""Newest runs among which the newest reported one must be: hourly ones of weeks."""


class HistoryUnknown(RefusedError):
    """Another Postgres has collected here, or a later state of this one."""


class CatalogUnknown(RefusedError):
    """A newer version keeps the catalog here."""


class Runs(Protocol):
    """The part of :class:`tideline.control_plane.jobs.JobsControlPlane` that is needed."""

    def gc_runs(self, limit: int) -> list[GcRunRow]: ...


@dataclass(frozen=True, slots=True, order=True)
class ReportedRun:
    run_number: int
    run_id: UUID


def newest_reported(store: ReportStore, bucket: str, root: str = "") -> list[ReportedRun]:
    """The run of the highest number that has a report; several if two gave the same number."""
    days = sorted(store.list_prefixes(bucket, f"{root}{PREFIX}"))
    entries = store.list_objects(bucket, days[-1]) if days else ()
    names = filter(None, (_NAME.search(entry.key) for entry in entries))
    found = sorted({ReportedRun(int(name["number"]), UUID(name["run"])) for name in names})
    return [run for run in found if run.run_number == found[-1].run_number]


def must_know(reported: Iterable[ReportedRun], plane: Runs) -> None:
    """Raises :class:`HistoryUnknown` for a run that Postgres does not know."""
    rows = plane.gc_runs(KNOWN_RUNS)
    known = {ReportedRun(row.run_number, row.run_id) for row in rows}
    for run in reported:
        if run not in known:
            newest = max((row.run_number for row in rows), default=0)
            raise HistoryUnknown(
                f"run {run.run_number} ({run.run_id}) has collected in this bucket, and Postgres, "
                f"whose newest run is number {newest}, does not know it: Postgres was restored "
                "from before that run, or another one collects here, too. Nothing is deleted. Once "
                "all that was acknowledged is known again, and no other Postgres collects here: "
                "tideline gc adopt --reason '…' (docs/failures.md)"
            )


def must_know_catalog(store: ReportStore, bucket: str, root: str = "") -> None:
    """Raises :class:`CatalogUnknown` for records of a version or kind that this one does not know:
    they may speak of objects that look dead here."""
    try:
        versions = list(store.list_prefixes(bucket, f"{root}{catalog.ROOT}"))
        catalog.assert_known(versions, root)
        for version in versions:
            catalog.assert_known(store.list_prefixes(bucket, version), root)
    except catalog.CatalogError as error:
        raise CatalogUnknown(f"nothing is judged and nothing is deleted: {error}") from error


def adopt_history(
    settings: JobsSettings, plane: JobsControlPlane, decided_by: str, reason: str
) -> int:
    """Let this Postgres collect in the bucket again: its runs go on behind those that are reported,
    and every orphan is reported anew. The number that runs go on from. Raises ``InvalidInput``."""
    store = ObjectStoreClient(settings)
    root = settings.diskless_prefix
    newest = newest_reported(store, settings.s3_bucket, root)
    number, run_id = (newest[-1].run_number if newest else 0) + 1, uuid4()
    plane.adopt_gc_runs(number, run_id, decided_by, reason)
    report = Report(store, settings.s3_bucket, number, run_id, datetime.now(UTC), root)
    report.write([{"adopted_by": decided_by, "because": reason}])
    return number
