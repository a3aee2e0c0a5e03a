"""What the bucket of the brokers' tiered segments holds.

Two layouts are read: ``<prefix><topic>-<topicIdB64>/<partition>/<20 digits>-<segmentB64>.<kind>``
with one object per file (this project's remote storage manager), and the same names with packed
indexes (Aiven's plugin). Only keys and sizes are looked at: no byte of history is read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
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


class SegmentInventory:
    """Lists segments, and keeps the exports of divergent tails.

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
        return await asyncio.to_thread(_patiently, partial(self._list, prefix))

    def _list(self, prefix: str) -> dict[UUID, SegmentObjects]:
        entries = self._store.list_objects(self._tiered_bucket, prefix)
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
