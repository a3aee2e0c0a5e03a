"""Garbage collection of objects: what nothing refers to any more goes, after a grace.

``python -m spark.gc [--dry-run] [--no-orphans]``. docs/gc.md says what is dead, who marks it, and
why a reader never misses anything.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated
from uuid import UUID

import typer

from spark.common import remote_log
from spark.common.control_plane import partitions
from spark.common.entry import DryRunOption, Job, Outcome
from spark.gc import frames
from spark.gc.tasks import (
    APPLICATION,
    MarkedObject,
    Sweep,
    delete_marked,
    listed_segments,
    sweep_diskless,
    sweep_tiered,
)
from tideline.control_plane.jobs import JobsControlPlane, connect_jobs
from tideline.control_plane.model import KEYS_KEPT_AHEAD_MS
from tideline.control_plane.tiering_model import Bucket, PartitionRow
from tideline.errors import UsageError
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import KafkaObserver
from tideline.kafka.topic_observer import TopicObserver
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings

ROUND = 20_000
"""Objects that are claimed at once: claiming looks at every live WAL file once per round."""
STEP = 10_000
"""Rows of one housekeeping call."""
SHOWN = 1_000
KAFKA_AT_ONCE = 32
PRODUCER_EXPIRATION = "producer.id.expiration.ms"
PRODUCER_EXPIRATION_DEFAULT_MS = 86_400_000

OrphansOption = Annotated[
    bool,
    typer.Option(help="Also list the buckets and look for objects that nothing knows."),
]


def gc(
    job: Job,
    dry_run: DryRunOption = False,
    orphans: OrphansOption = True,
    *,
    shortest_grace_ms: int = KEYS_KEPT_AHEAD_MS + 1,
) -> Outcome:
    """Delete objects that nothing refers to any more."""
    if job.settings.gc_grace_ms < shortest_grace_ms and not dry_run:
        raise UsageError(
            f"TIDELINE_GC_GRACE_MS is {job.settings.gc_grace_ms}: gateways keep keys that they "
            f"have registered ahead for {KEYS_KEPT_AHEAD_MS} ms; set {shortest_grace_ms} at "
            "least, and more than any upload or read may last"
        )
    details: dict[str, object] = {"dry_run": dry_run, "grace_ms": job.settings.gc_grace_ms}
    with connect_jobs(job.settings, application_name=APPLICATION) as plane:
        if dry_run:
            details |= preview(job, plane)
        else:
            details |= housekeeping(job, plane)
            details |= delete_dead(job, plane)
    if orphans:
        details |= look_for_orphans(job, dry_run)
    return Outcome(details)


CHANGES_KEPT_MS = 3_600_000
"""Gateways ask for changes every few seconds; one that did not for this long reads everything."""


def preview(job: Job, plane: JobsControlPlane) -> dict[str, object]:
    """What the control plane knows to be dead. Changes nothing."""
    found = plane.preview_garbage(job.settings.gc_grace_ms, SHOWN)
    due = Counter(row.kind for row in found if row.due)
    later = Counter(row.kind for row in found if not row.due)
    return {
        "due": dict(due),
        "later": dict(later),
        "shown_at_most": SHOWN,
        "objects": [
            {"bucket": r.bucket, "key": r.object_key, "kind": r.kind, "due": r.due} for r in found
        ],
    }


def housekeeping(job: Job, plane: JobsControlPlane) -> dict[str, object]:
    """Rows first: an object is dead only when the last row about it is gone."""
    job.progress("rows of expired producers and batches")
    idle_ms = asyncio.run(_producer_expiration(job.settings))
    return {
        "producers_expired": _repeat(partial(plane.expire_producers, idle_ms, STEP)),
        "batches_pruned": _repeat(partial(plane.prune_batches, STEP)),
        "changes_forgotten": plane.forget_tracking_changes(CHANGES_KEPT_MS),
    }


def _repeat(step: Callable[[], int]) -> int:
    total = 0
    while True:
        done = step()
        total += done
        if done < STEP:
            return total


async def _producer_expiration(settings: JobsSettings) -> int:
    async with KafkaCluster(
        settings.kafka_bootstrap,
        client_id=APPLICATION,
        timeout_ms=settings.kafka_request_timeout_ms,
    ) as cluster:
        observer = TopicObserver(cluster, settings.kafka_request_timeout_ms)
        found = await observer.broker_config(min(await cluster.nodes()), PRODUCER_EXPIRATION)
    return PRODUCER_EXPIRATION_DEFAULT_MS if found is None else int(found)


def delete_dead(job: Job, plane: JobsControlPlane) -> dict[str, object]:
    """WAL objects, split files and segments that Postgres has marked a grace ago."""
    grace = job.settings.gc_grace_ms

    def files() -> list[MarkedObject]:
        keys = plane.claim_dead_files(grace, ROUND)
        return [MarkedObject(Bucket.DISKLESS, key, is_wal=True) for key in keys]

    def objects() -> list[MarkedObject]:
        dead = plane.claim_dead_objects(grace, ROUND)
        return [MarkedObject(one.bucket, one.object_key, is_wal=False) for one in dead]

    job.progress("WAL objects without a live batch")
    wal = _in_rounds(job, files)
    job.progress("split files and segments that nothing reads")
    return {"wal_objects_deleted": wal, "objects_deleted": _in_rounds(job, objects)}


def _in_rounds(job: Job, claim: Callable[[], list[MarkedObject]]) -> int:
    """Claim and delete until nothing is claimed any more, or a round makes no progress."""
    total = 0
    while marked := claim():
        gone = delete_marked(job, marked)
        total += gone
        if gone == 0:
            break
    return total


def look_for_orphans(job: Job, dry_run: bool) -> dict[str, object]:
    """List the buckets; mark what nothing knows, and delete what was marked a grace ago."""
    job.progress("listing WAL objects and split files")
    store = ObjectStoreClient(job.settings)
    splits = list(store.list_prefixes(job.settings.s3_bucket, "split/"))
    diskless = sweep_diskless(job, splits, dry_run)
    rows = list(partitions(job.settings))
    living, skipped = _topics_of_this_cluster(job.settings, rows)
    job.progress(f"listing segments of {len(living)} partitions")
    tiered, listed, problem = _tiered_orphans(job, living, dry_run) if living else (Sweep(), 0, "")
    return {
        "listed": diskless.listed + listed,
        "orphans_found": diskless.unknown + tiered.unknown,
        "orphans_due" if dry_run else "orphans_deleted": diskless.deleted + tiered.deleted,
        "orphans_not_looked_for": dict(list(skipped.items())[:SHOWN]),
        "segments_not_judged": problem or None,
    }


def _tiered_orphans(
    job: Job, rows: Sequence[PartitionRow], dry_run: bool
) -> tuple[Sweep, int, str]:
    """What was swept, how many objects were listed, and why nothing could be judged."""
    listed = listed_segments(job, rows)
    count = listed.count()
    # From here on the metadata is read: it must be younger than the listing.
    try:
        extents = remote_log.extent(job.settings)
    except KafkaError as error:
        return Sweep(), count, str(error)
    if expired := [e.partition for e in extents if e.start > 0]:
        return Sweep(), count, (
            f"records of __remote_log_metadata-{expired[0]} have expired, so that a segment "
            "without a record may be a live one: set retention.ms=-1 on that topic"
        )  # fmt: skip
    known = frames.known_segments(remote_log.events(job.spark, job.settings, extents))
    known = known.localCheckpoint()
    if not frames.is_readable(known):
        return Sweep(), count, (
            "some records of __remote_log_metadata do not parse, so that a segment without a "
            "record may be a live one: run a Tideline that knows this Kafka"
        )  # fmt: skip
    return sweep_tiered(job, frames.orphans(listed, known), dry_run), count, ""


def _topics_of_this_cluster(
    settings: JobsSettings, rows: Sequence[PartitionRow]
) -> tuple[list[PartitionRow], dict[str, str]]:
    """Partitions whose segments may be judged by this cluster's metadata; and topics that may not,
    with why. A live topic that Kafka does not know by its id belongs to another cluster, or is
    about to be reported deleted: either way nothing of it is touched."""
    live = {row.topic_id: row.topic for row in rows if not row.deleted}
    known = asyncio.run(_known_topics(settings, live)) if live else frozenset()
    skipped = {
        name: f"Kafka has no topic of this name with the id {topic_id}"
        for topic_id, name in live.items()
        if topic_id not in known
    }
    return [r for r in rows if r.deleted or r.topic_id in known], skipped


async def _known_topics(settings: JobsSettings, live: dict[UUID, str]) -> frozenset[UUID]:
    slots = asyncio.Semaphore(KAFKA_AT_ONCE)
    async with KafkaCluster(
        settings.kafka_bootstrap,
        client_id=APPLICATION,
        timeout_ms=settings.kafka_request_timeout_ms,
    ) as cluster:
        observer = KafkaObserver(cluster, settings.kafka_request_timeout_ms)

        async def one(topic_id: UUID, name: str) -> UUID | None:
            async with slots:
                found = await observer.topic(name)
                return topic_id if found is not None and found.topic_id == topic_id else None

        found = await asyncio.gather(*(one(*topic) for topic in live.items()))
    return frozenset(topic_id for topic_id in found if topic_id is not None)
