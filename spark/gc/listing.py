"""Looks for orphans: lists what lies under Tideline's own names, and asks who knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from spark.common import metadata_topic, remote_log
from spark.common.control_plane import partitions
from spark.common.entry import Job
from spark.common.metadata_topic import Extent
from spark.common.snapshots import Identity, Seen, SnapshotStore
from spark.gc import frames
from spark.gc.tasks import (
    APPLICATION,
    Sweep,
    listed_segments,
    on_disk,
    sweep_diskless,
    sweep_tiered,
)
from tideline.control_plane.tiering_model import PartitionRow
from tideline.domain.collection import Amount
from tideline.domain.ids import topic_id_to_base64
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import KafkaObserver
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import JobsSettings

SHOWN = 1_000
KAFKA_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Listing:
    """What one look found. ``ours``: WAL objects, merged segments and orphans; the brokers' own
    segments are no part of it."""

    listed: int
    ours: Amount
    unknown: int
    skipped: dict[str, str] = field(default_factory=dict)
    """Topics whose segments were not looked at, with why."""
    not_judged: str | None = None
    """Why no segment could be judged."""
    newer_kafka: bool = False
    """It could not, because Kafka writes what this Tideline does not know."""

    def details(self) -> dict[str, object]:
        return {
            "listed": self.listed,
            "orphans_found": self.unknown,
            "orphans_not_looked_for": dict(list(self.skipped.items())[:SHOWN]),
            "segments_not_judged": self.not_judged,
        }


def look_for_orphans(job: Job, run_number: int | None) -> Listing:
    """List the buckets and report what nothing knows. ``run_number``: ``None`` reports nothing."""
    job.progress("listing WAL objects")
    diskless = sweep_diskless(job, run_number)
    rows = list(partitions(job.settings))
    living, skipped = _topics_of_this_cluster(job.settings, rows)
    job.progress(f"listing segments of {len(living)} partitions")
    tiered = _tiered_orphans(job, living, run_number) if living else Listing(0, Amount(), 0)
    return Listing(
        diskless.listed + tiered.listed,
        Amount(diskless.listed, diskless.size) + tiered.ours,
        diskless.unknown + tiered.unknown,
        skipped,
        tiered.not_judged,
        tiered.newer_kafka,
    )


def _tiered_orphans(job: Job, rows: Sequence[PartitionRow], run_number: int | None) -> Listing:
    listed = listed_segments(job, rows)
    count = listed.count()
    # From here on the metadata is read: it must be younger than the listing.
    try:
        # Before its ends are noted: coverage may be reading on meanwhile.
        read_before = _read_before(job.settings, metadata_topic.identity(job.settings))
        identity, extents = metadata_topic.look(job.settings)
    except KafkaError as error:
        return Listing(count, Amount(), 0, not_judged=str(error))
    if why := what_was_lost(read_before, identity, extents):
        return Listing(count, Amount(), 0, not_judged=why)
    if expired := [e.partition for e in extents if e.start > 0]:
        return Listing(count, Amount(), 0, not_judged=(
            f"records of __remote_log_metadata-{expired[0]} have expired, so that a segment "
            "without a record may be a live one: set retention.ms=-1 on that topic"
        ))  # fmt: skip
    topics = {row.topic_id for row in rows}
    events = remote_log.events(job.spark, job.settings, extents, topics)
    known = on_disk(frames.known_segments(events))
    if not frames.is_readable(known):
        return Listing(count, Amount(), 0, newer_kafka=True, not_judged=(
            "some records of __remote_log_metadata do not parse or are of an unknown kind, so that "
            "a segment without a record may be a live one: run a Tideline that knows this Kafka"
        ))  # fmt: skip
    swept: Sweep = sweep_tiered(job, frames.orphans(listed, known), run_number)
    return Listing(count, Amount(swept.listed, swept.size), swept.unknown)


def _read_before(settings: JobsSettings, now: Identity) -> Seen:
    store = SnapshotStore(
        ObjectStoreClient(settings), settings.s3_bucket, settings.diskless_prefix, now
    )
    return store.seen()


def what_was_lost(before: Seen, now: Identity, extents: Sequence[Extent]) -> str:
    """Why the metadata may lack what coverage has read of it, so that a segment without a record
    may be the only copy of its records; empty if it has all of it."""
    adopt = "If that is meant, delete {} in the diskless bucket"
    ends = {one.partition: one.end for one in extents}
    for topic_id, (prefix, read) in before.items():
        if topic_id != topic_id_to_base64(now.topic_id):
            return (
                f"__remote_log_metadata was deleted and created again (it was topic {topic_id}): "
                f"what it said of older segments is gone. {adopt.format(prefix)}"
            )
        for partition, end in read.items():
            if end > ends.get(partition, 0):
                return (
                    f"__remote_log_metadata-{partition} ends at {ends.get(partition, 0)}, and was "
                    f"read up to {end} before: it has lost records. {adopt.format(prefix)}"
                )
    return ""


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
    async with KafkaCluster.of(settings, APPLICATION) as cluster:
        observer = KafkaObserver(cluster, settings.kafka_request_timeout_ms)

        async def one(topic_id: UUID, name: str) -> UUID | None:
            async with slots:
                found = await observer.topic(name)
                return topic_id if found is not None and found.topic_id == topic_id else None

        found = await asyncio.gather(*(one(*topic) for topic in live.items()))
    return frozenset(topic_id for topic_id in found if topic_id is not None)
