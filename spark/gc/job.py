"""Garbage collection of objects: what nothing refers to any more goes, after a grace.

``python -m spark.gc [--dry-run] [--no-orphans]``. docs/gc.md says what is dead, who marks it, and
why a reader never misses anything.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from spark.common.entry import DryRunOption, Job, Outcome
from spark.common.owned import must_own
from spark.gc.deletion import Graces, delete_all_due, measured
from spark.gc.history import must_know, must_know_catalog, newest_reported
from spark.gc.listing import SHOWN, Listing, look_for_orphans
from spark.gc.merged import look_at_merged
from spark.gc.reports import Report
from spark.gc.results import forget_old_results
from spark.gc.tasks import APPLICATION
from tideline.control_plane.cataloged_jobs import CatalogedJobs, connect_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.model import KEYS_KEPT_AHEAD_MS
from tideline.domain.collection import Amount, Bounds, held_because
from tideline.errors import UsageError
from tideline.kafka.client import KafkaCluster
from tideline.kafka.topic_observer import TopicObserver
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings

STEP = 10_000
"""Rows of one housekeeping call."""
DAY_MS = 86_400_000
PRODUCER_EXPIRATION = "producer.id.expiration.ms"
PRODUCER_EXPIRATION_DEFAULT_MS = DAY_MS
CHANGES_KEPT_MS = 3_600_000
"""Gateways ask for changes every few seconds; one that did not for this long reads everything."""

OrphansOption = Annotated[
    bool,
    typer.Option(help="Also list the buckets and look for objects that nothing knows."),
]


def gc(
    job: Job,
    dry_run: DryRunOption = False,
    orphans: OrphansOption = True,
) -> Outcome:
    """Delete objects that nothing refers to any more."""
    if not dry_run:
        _check_graces(job.settings)
    must_own(job)
    settings = job.settings
    must_know_catalog(ObjectStoreClient(settings), settings.s3_bucket, settings.diskless_prefix)
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        if not dry_run:
            return collect(job, plane, orphans)
        details = preview(job, plane)
    if orphans:
        details |= look_for_orphans(job, None).details()
    return Outcome(details)


def _check_graces(settings: JobsSettings) -> None:
    if settings.gc_grace_ms <= KEYS_KEPT_AHEAD_MS:
        raise UsageError(
            f"TIDELINE_GC_GRACE_MS is {settings.gc_grace_ms}: gateways keep keys that they "
            f"have registered ahead for {KEYS_KEPT_AHEAD_MS} ms; set {KEYS_KEPT_AHEAD_MS + 1} at "
            "least, and more than any upload or read may last"
        )
    if settings.gc_orphan_grace_ms < DAY_MS:
        raise UsageError(
            f"TIDELINE_GC_ORPHAN_GRACE_MS is {settings.gc_orphan_grace_ms}: after a restore of "
            "Postgres an acknowledged record may lie in an object that looks like an orphan; set "
            f"{DAY_MS} at least, and more than it takes to mend that"
        )


def preview(job: Job, plane: JobsControlPlane) -> dict[str, object]:
    """What the control plane knows to be dead, and why. Changes nothing."""
    settings = job.settings
    found = plane.preview_garbage(
        settings.gc_grace_ms, SHOWN, orphan_grace_ms=settings.gc_orphan_grace_ms
    )
    due = Counter(row.kind for row in found if row.due)
    later = Counter(row.kind for row in found if not row.due)
    return {
        "dry_run": True,
        "grace_ms": settings.gc_grace_ms,
        "orphan_grace_ms": settings.gc_orphan_grace_ms,
        "due": dict(due),
        "later": dict(later),
        "shown_at_most": SHOWN,
        "objects": [
            {
                "bucket": r.bucket,
                "key": r.object_key,
                "kind": r.kind,
                "reason": r.reason,
                "due": r.due,
            }
            for r in found
        ],
    }


def collect(job: Job, plane: CatalogedJobs, orphans: bool) -> Outcome:
    """One run: count what is due, be held or delete it, and keep a list of it."""
    settings = job.settings
    store = ObjectStoreClient(settings)

    root = settings.diskless_prefix

    def still_owns() -> None:
        """Before anything is judged, and again before each round of deletions."""
        must_own(job)
        must_know_catalog(store, settings.s3_bucket, root)
        must_know(newest_reported(store, settings.s3_bucket, root), plane)

    still_owns()
    begun = plane.begin_gc_run(job.run_id)
    report = Report(store, settings.s3_bucket, begun.run_number, job.run_id, job.started_at, root)
    report.write([{"run": begun, "grace_ms": settings.gc_grace_ms}])
    details: dict[str, object] = {
        "dry_run": False,
        "run": str(job.run_id),
        "run_number": begun.run_number,
        "report": f"{settings.s3_bucket}/{report.prefix}",
        "grace_ms": settings.gc_grace_ms,
        "orphan_grace_ms": settings.gc_orphan_grace_ms,
    }
    details |= housekeeping(job, plane)
    # The record of a merged segment is there before what it was merged from goes.
    details["segments_told"] = plane.tell_segments()
    merged = look_at_merged(job, plane)
    details["segments_looked_at"] = merged.looked_at
    details["segments_not_whole"] = list(merged.not_whole)
    listing = look_for_orphans(job, begun.run_number) if orphans else None
    graces = Graces(settings.gc_grace_ms, settings.gc_orphan_grace_ms, begun)
    due = measured(plane, graces)
    because = held_because(
        due.all, due.orphans, _whole(plane, listing), _bounds(settings), graces.allowed
    )
    plane.judge_gc_run(
        begun.run_number,
        listed=None if listing is None else listing.ours,
        due=due.all,
        orphans=due.orphans,
        held_because=because,
    )
    report.write([{"due": due.amounts, "allowed_by_run": begun.held_run, "held": because}])
    details |= (listing.details() if listing else {}) | {
        "due": [
            {"kind": a.kind, "reason": a.reason, "objects": a.objects, "bytes": a.bytes}
            for a in due.amounts
        ],
        "allowed_run": begun.held_run and str(begun.held_run),
        "held": because,
    }
    if because is not None:
        return Outcome(details | {"deleted": {}}, _both(merged.problem, _held(job, because)))
    deleted = delete_all_due(job, plane, report, due, graces, still_owns)
    plane.end_gc_run(begun.run_number, sum(deleted.values()), begun.held_run)
    report.forget_old(settings.gc_reports_kept_days)
    forget_old_results(
        store, settings.s3_bucket, root, job.started_at, settings.jobs_results_kept_days
    )
    newer = listing.not_judged if listing and listing.newer_kafka else None
    return Outcome(details | {"deleted": deleted}, _both(merged.problem, newer))


def _both(*problems: str | None) -> str | None:
    return "; ".join(filter(None, problems)) or None


def _held(job: Job, because: str) -> str:
    return (
        f"{because}. Nothing was deleted. `tideline gc --dry-run` shows what is due and why. If "
        f"all of it may go: `tideline gc allow {job.run_id} --reason '…'`, and the next run "
        "deletes what this one found (docs/failures.md)"
    )


def _bounds(settings: JobsSettings) -> Bounds:
    return Bounds(
        settings.gc_max_percent,
        settings.gc_max_orphan_percent,
        Amount(settings.gc_free_objects, settings.gc_free_bytes),
    )


def _whole(plane: JobsControlPlane, listing: Listing | None) -> Amount | None:
    """What shares are of: this run's listing, else the newest one of an earlier run."""
    if listing is not None:
        return listing.ours
    for row in plane.gc_runs(SHOWN):
        if row.listed_objects is not None and row.listed_bytes is not None:
            return Amount(row.listed_objects, row.listed_bytes)
    return None


def housekeeping(job: Job, plane: JobsControlPlane) -> dict[str, object]:
    """Rows first: an object is dead only when the last row about it is gone."""
    job.progress("rows of expired producers and batches")
    idle_ms = asyncio.run(_producer_expiration(job.settings))
    grace = job.settings.gc_grace_ms
    done: dict[str, object] = {
        "producers_expired": _repeat(partial(plane.expire_producers, idle_ms, STEP)),
        "batches_pruned": _repeat(partial(plane.prune_batches, STEP)),
        "changes_forgotten": plane.forget_tracking_changes(CHANGES_KEPT_MS),
        "uncommitted_keys_forgotten": _repeat(partial(plane.forget_uncommitted_keys, grace, STEP)),
    }
    plane.mark_dead_objects(grace, STEP)
    return done


def _repeat(step: Callable[[], int]) -> int:
    total = 0
    while True:
        done = step()
        total += done
        if done < STEP:
            return total


async def _producer_expiration(settings: JobsSettings) -> int:
    async with KafkaCluster.of(settings, APPLICATION) as cluster:
        observer = TopicObserver(cluster, settings.kafka_request_timeout_ms)
        found = await observer.broker_config(min(await cluster.nodes()), PRODUCER_EXPIRATION)
    return PRODUCER_EXPIRATION_DEFAULT_MS if found is None else int(found)
