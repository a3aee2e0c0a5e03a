"""Tells the catalog what Postgres has and the bucket lacks.

Two leave something out: a process that was killed between Postgres' answer and the word that it
counts, and a history that begins anew, whose records are its own. So the worker compares now and
then. What it adds lacks what Postgres does not keep: the seeds of a boundary.
"""

from __future__ import annotations

import asyncio

import structlog

from tideline.control_plane.cataloged import CatalogedControlPlane, start_of
from tideline.control_plane.model import TrackedPartition, TrackedTopic, TrackingKind
from tideline.control_plane.plane import ControlPlane
from tideline.domain.catalog import (
    AcceptedGap,
    Boundary,
    BoundaryReset,
    HeldConfig,
    Limits,
    Record,
    Topic,
    TopicDeleted,
)
from tideline.domain.ids import TopicIdPartition
from tideline.errors import TidelineError

EVERY_S = 3_600.0
AGAIN_S = 60.0
LONG_AGO = 0
"""``noted_at_ms`` of what is told later: any word of the call itself is newer."""
TOMBSTONES = 100_000
EVER_MS = 10 * 365 * 86_400_000
log = structlog.get_logger()


async def keep_catalog(plane: ControlPlane) -> None:
    """Until cancelled. ``plane`` is what :func:`tideline.control_plane.connect` opens."""
    assert isinstance(plane, CatalogedControlPlane)
    while True:
        try:
            told = await tell_missing(plane)
            log.info("catalog_compared", told=told)
            pause = EVERY_S
        except TidelineError as error:
            log.warning("catalog_not_compared", why=str(error))
            pause = AGAIN_S
        await asyncio.sleep(pause)


async def tell_missing(plane: CatalogedControlPlane) -> int:
    """Put what Postgres has now and the bucket lacks; how many records."""
    there = await plane.catalog_keys()
    told = 0
    for topic in await plane.tracked_topics():
        told += await plane.count_missing(there, records_of(topic))
    for tombstone in await plane.deleted_topics(EVER_MS, TOMBSTONES):
        if tombstone.topic_id is not None:
            gone = TopicDeleted(tombstone.topic_id, tombstone.deleted_by, tombstone.deleted_why)
            told += await plane.count_missing(there, [gone])
    return told


def records_of(topic: TrackedTopic) -> list[Record]:
    """All that Postgres has of a topic. None, while it has no id."""
    if (topic_id := topic.topic_id) is None or not topic.partitions:
        return []
    born = topic.kind is TrackingKind.BORN_DISKLESS
    total = max(topic.partitions) + 1
    found: list[Record] = [
        Topic(topic_id, topic.name, born, total, 0 if born else total),
        Limits(
            topic_id,
            topic.timestamp_type,
            topic.max_message_bytes,
            topic.timestamp_before_max_ms,
            topic.timestamp_after_max_ms,
            LONG_AGO,
        ),
    ]
    for key, held in sorted(topic.overrides.items()):
        values = (held.override_value, held.user_value)
        found.append(HeldConfig(topic_id, key, True, *values, LONG_AGO))
    for partition, row in sorted(topic.partitions.items()):
        found += _of_partition(TopicIdPartition(topic_id, partition), row, born)
    return found


def _of_partition(log: TopicIdPartition, row: TrackedPartition, born: bool) -> list[Record]:
    at = (log.topic_id, log.partition, row.generation)
    if row.boundary < 0:
        # The generation before it may have had one that was reset.
        return [BoundaryReset(*at, -1, -1)] if row.generation > 1 else []
    found: list[Record] = []
    if not born:
        seeds = () if row.boundary == 0 else None
        largest = (row.prefix_max_timestamp, row.prefix_max_timestamp_offset)
        found.append(Boundary(*at, row.boundary_epoch, row.boundary, seeds, 0, *largest))
    if row.suffix_start > row.boundary:
        found.append(start_of(log, row, row.suffix_start))
    if row.accepted_gap_from >= 0:
        gap = (row.boundary_epoch, row.accepted_gap_from, row.boundary)
        found.append(AcceptedGap(*at, *gap))
    return found
