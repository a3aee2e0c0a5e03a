"""What the bucket of the brokers' tiered segments holds.

Two layouts are read: ``<prefix><topic>-<topicIdB64>/<partition>/<20 digits>-<segmentB64>.<kind>``
with one object per file (this project's remote storage manager), and the same names with packed
indexes (Aiven's plugin). Only keys and sizes are looked at: no byte of history is read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from uuid import UUID

from tideline.domain.coverage import SegmentObjects
from tideline.domain.ids import TopicIdPartition, topic_id_from_base64, topic_id_to_base64
from tideline.object_store.client import (
    WORKER,
    ObjectStoreClient,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
)
from tideline.settings import ObjectStoreSettings

T = TypeVar("T")
_NAME = re.compile(r"(?P<start>\d{20})-(?P<segment>[A-Za-z0-9_-]{22})\.(?P<kind>[a-z-]+)$")


def partition_prefix(key_prefix: str, topic: str, log: TopicIdPartition) -> str:
    """Where the segments of one partition lie. ``key_prefix`` may end with a slash or not."""
    root = f"{key_prefix.rstrip('/')}/" if key_prefix else ""
    return f"{root}{topic}-{topic_id_to_base64(log.topic_id)}/{log.partition}/"


def segment_stem(
    key_prefix: str, topic: str, log: TopicIdPartition, start_offset: int, segment_id: UUID
) -> str:
    """The key of a segment's objects, without the suffix."""
    name = f"{start_offset:020d}-{topic_id_to_base64(segment_id)}"
    return f"{partition_prefix(key_prefix, topic, log)}{name}"


def group_by_segment(objects: Iterator[tuple[str, int]]) -> dict[UUID, SegmentObjects]:
    """Keys with their sizes in bytes, as the objects of each segment. Foreign keys are left out."""
    sizes: dict[UUID, int | None] = {}
    kinds: dict[UUID, set[str]] = {}
    for key, size in objects:
        if (name := _NAME.search(key)) is None:
            continue
        segment_id = topic_id_from_base64(name["segment"])
        sizes.setdefault(segment_id, None)
        if name["kind"] == "log":
            sizes[segment_id] = size
        else:
            kinds.setdefault(segment_id, set()).add(name["kind"])
    return {
        segment_id: SegmentObjects(size, frozenset(kinds.get(segment_id, ())))
        for segment_id, size in sizes.items()
    }


@dataclass(frozen=True, slots=True)
class KeptSegments:
    """What a call of :meth:`SegmentInventory.keep` has found or made."""

    address: str
    """Under which all copies of the partition's segments lie."""
    segments: int
    objects: int
    bytes: int
    copied: int
    """Objects that were not there before."""


def copies_prefix(topic: str, log: TopicIdPartition) -> str:
    """Where copies of one partition's segments lie in the diskless bucket."""
    return f"forensics/{topic}-{topic_id_to_base64(log.topic_id)}/{log.partition}/segments/"


class SegmentInventory:
    """Lists segments, and keeps the exports of divergent tails and copies of segments.

    The worker waits for the store whatever is wrong with it: what the store refuses is raised as
    :class:`ObjectStoreUnavailable` too.
    """

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self._store = ObjectStoreClient(settings, bounds=WORKER)
        self._store.connect()  # boto3 must not make clients in several threads at once
        self._tiered_bucket = settings.s3_tiered_bucket
        self._prefix = settings.s3_tiered_prefix
        self._bucket = settings.s3_bucket

    async def objects(self, topic: str, log: TopicIdPartition) -> dict[UUID, SegmentObjects]:
        """The objects of one partition, by segment. Raises :class:`ObjectStoreUnavailable`."""
        prefix = partition_prefix(self._prefix, topic, log)
        list_them = partial(self._list, self._tiered_bucket, prefix)
        return await asyncio.to_thread(_patiently, list_them)

    async def keys(self, topic: str, log: TopicIdPartition) -> list[str]:
        """Every object of the partition's segments, each set's log object first: what says that a
        set is whole goes first when they are deleted. Raises :class:`ObjectStoreUnavailable`."""
        prefix = partition_prefix(self._prefix, topic, log)
        list_them = partial(self._keys, prefix)
        return await asyncio.to_thread(_patiently, list_them)

    def _keys(self, prefix: str) -> list[str]:
        listed = self._store.list_objects(self._tiered_bucket, prefix)
        found = [entry.key for entry in listed if _NAME.search(entry.key)]
        return sorted(found, key=lambda key: (not key.endswith(".log"), key))

    async def delete(self, keys: Collection[str]) -> None:
        """Delete objects of segments; one that is gone counts as deleted. Raises
        :class:`ObjectStoreUnavailable`; then some may be deleted."""
        delete_them = partial(self._store.delete, self._tiered_bucket, list(keys))
        await asyncio.to_thread(_patiently, delete_them)

    async def copies(self, topic: str, log: TopicIdPartition) -> dict[UUID, SegmentObjects]:
        """What :meth:`keep` has kept of one partition, by segment. Raises
        :class:`ObjectStoreUnavailable`."""
        list_them = partial(self._list, self._bucket, copies_prefix(topic, log))
        return await asyncio.to_thread(_patiently, list_them)

    async def keep(
        self, topic: str, log: TopicIdPartition, segments: Collection[UUID]
    ) -> KeptSegments:
        """Copy every object of these segments to where no broker deletes it; what is there in its
        size is not copied again. The log object comes last, so that its copy says that the set is
        whole. Raises :class:`ObjectStoreUnavailable`, ``ObjectMissing`` when a broker deletes one
        meanwhile."""
        return await asyncio.to_thread(self._keep, topic, log, frozenset(segments))

    def _keep(self, topic: str, log: TopicIdPartition, segments: frozenset[UUID]) -> KeptSegments:
        source = partition_prefix(self._prefix, topic, log)
        target = copies_prefix(topic, log)
        there = {e.key: e.size for e in self._store.list_objects(self._bucket, target)}
        wanted = [
            (entry, f"{target}{entry.key.removeprefix(source)}")
            for entry in self._store.list_objects(self._tiered_bucket, source)
            if (name := _NAME.search(entry.key)) is not None
            and topic_id_from_base64(name["segment"]) in segments
        ]
        wanted.sort(key=lambda pair: pair[0].key.endswith(".log"))
        missing = [(entry, key) for entry, key in wanted if there.get(key) != entry.size]
        for entry, key in missing:
            self._store.copy(self._tiered_bucket, entry.key, self._bucket, key)
        return KeptSegments(
            f"s3://{self._bucket}/{target}",
            len(segments),
            len(wanted),
            sum(entry.size for entry, _ in wanted),
            len(missing),
        )

    def _list(self, bucket: str, prefix: str) -> dict[UUID, SegmentObjects]:
        entries = self._store.list_objects(bucket, prefix)
        return group_by_segment((entry.key, entry.size) for entry in entries)

    async def check(self) -> str | None:
        """Why the bucket of the segments cannot be read, or ``None`` when it can."""
        try:
            await asyncio.to_thread(self._store.check, self._tiered_bucket)
        except (ObjectStoreUnavailable, ObjectStoreRefused) as error:
            return str(error)
        return None

    async def export(self, key: str, data: bytes) -> str:
        """Keep ``data`` for forensics under ``key``; the same key twice is the same export.

        Returns the object's address. Raises :class:`ObjectStoreUnavailable`.
        """
        await asyncio.to_thread(_patiently, partial(self._store.put, self._bucket, key, data))
        return f"s3://{self._bucket}/{key}"


def _patiently(call: Callable[[], T]) -> T:
    try:
        return call()
    except ObjectStoreRefused as error:
        raise ObjectStoreUnavailable(str(error)) from error
