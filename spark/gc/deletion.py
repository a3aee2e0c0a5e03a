"""What is due, counted before anything goes, and its deletion in rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from spark.common.record_rows import DeletedRow
from spark.gc.reports import Report
from spark.gc.tasks import DueObject, Holds, delete_due
from tideline.control_plane.garbage_model import DeadReason, GarbageAmount, GcRunBegun
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import Bucket
from tideline.domain.collection import Amount

if TYPE_CHECKING:
    from spark.common.entry import Job

ROUND = 20_000
"""Objects that are claimed, listed and deleted at once."""
HOLDS = {"wal": Holds.FILES, "segment": Holds.MARKS, "orphan": Holds.REPORTS}


@dataclass(frozen=True, slots=True)
class Graces:
    """When what was marked or reported may go. A run that does what another one was held for
    counts from when that one did: what became due since then waits for the next."""

    shortest_ms: int
    longest_ms: int
    begun: GcRunBegun

    @property
    def dead_ms(self) -> int:
        return self.shortest_ms + max(self.begun.held_age_ms, 0)

    @property
    def orphan_ms(self) -> int:
        return self.longest_ms + max(self.begun.held_age_ms, 0)

    @property
    def allowed(self) -> Amount | None:
        """What an operator lets this run delete."""
        begun = self.begun
        return Amount(begun.held_objects, begun.held_bytes) if begun.held_run else None


@dataclass(frozen=True, slots=True)
class Due:
    amounts: Sequence[GarbageAmount]

    @property
    def all(self) -> Amount:
        return sum((Amount(a.objects, a.bytes) for a in self.amounts), Amount())

    @property
    def orphans(self) -> Amount:
        found = (Amount(a.objects, a.bytes) for a in self.amounts if a.kind == "orphan")
        return sum(found, Amount())

    def objects_of(self, holds: Holds) -> int:
        return sum(a.objects for a in self.amounts if HOLDS[a.kind] is holds)


def measured(plane: JobsControlPlane, graces: Graces) -> Due:
    return Due(
        [
            amount
            for amount in plane.measure_garbage(
                graces.begun.run_number, graces.dead_ms, graces.orphan_ms
            )
            if amount.objects
        ]
    )


def delete_all_due(
    job: Job,
    plane: JobsControlPlane,
    report: Report,
    due: Due,
    graces: Graces,
    still_owns: Callable[[], None],
) -> dict[str, int]:
    """Delete what was counted, the oldest first, and never more; how many objects, by kind.

    Each round is in the report before it goes, and asks ``still_owns`` first.
    """
    deleted: defaultdict[str, int] = defaultdict(int)
    for holds in Holds:
        job.progress(f"{due.objects_of(holds)} objects that are due: {holds}")
        left = due.objects_of(holds)
        while left > 0 and (some := _claim(plane, holds, graces, min(left, ROUND))):
            still_owns()
            report.write(some)
            gone = delete_due(job, some)
            job.records.add(DeletedRow, record_rows(job, some, graces.begun.run_number))
            for one in some:
                deleted[one.kind] += 1
            left -= len(some)
            if gone == 0:
                break
    return dict(deleted)


def record_rows(job: Job, gone: Sequence[DueObject], run_number: int) -> Iterator[DeletedRow]:
    """Objects of a round that S3 has confirmed to be gone, for the table ``deleted_objects``."""
    settings, now = job.settings, datetime.now(UTC)
    names = {Bucket.TIERED: settings.s3_tiered_bucket, Bucket.DISKLESS: settings.s3_bucket}
    for one in gone:
        reported = one.reported_ms
        yield DeletedRow(
            run_number, names[one.bucket], one.key, one.kind, one.reason.value, one.size,
            None if reported is None else datetime.fromtimestamp(reported / 1000, UTC), now,
        )  # fmt: skip


def _claim(plane: JobsControlPlane, holds: Holds, graces: Graces, limit: int) -> list[DueObject]:
    match holds:
        case Holds.FILES:
            return [
                DueObject(holds, Bucket.DISKLESS, key, "wal", DeadReason.EMPTY)
                for key in plane.claim_dead_files(graces.dead_ms, limit)
            ]
        case Holds.MARKS:
            found = plane.claim_dead_objects(
                graces.dead_ms, limit, orphan_grace_ms=graces.orphan_ms
            )
            return [DueObject(holds, d.bucket, d.object_key, "segment", d.reason) for d in found]
        case Holds.REPORTS:
            return [
                DueObject(
                    holds,
                    o.bucket,
                    o.object_key,
                    "orphan",
                    DeadReason.UNKNOWN,
                    o.size,
                    o.reported_ms,
                )
                for o in plane.claim_orphans(graces.begun.run_number, graces.orphan_ms, limit)
            ]
