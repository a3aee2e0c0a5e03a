"""What the bucket of the brokers' tiered segments holds.

Two layouts are read: ``<prefix><topic>-<topicIdB64>/<partition>/<20 digits>-<segmentB64>.<kind>``
with one object per file (this project's remote storage manager), and the same names with packed
indexes (Aiven's plugin). Only keys and sizes are looked at: no byte of history is read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from uuid import UUID

from botocore.exceptions import BotoCoreError, ClientError

from tideline.domain.coverage import SegmentObjects
from tideline.domain.ids import TopicIdPartition, topic_id_from_base64, topic_id_to_base64
from tideline.object_store.client import ObjectStoreUnavailable, make_client
from tideline.settings import ObjectStoreSettings

CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 10.0
ATTEMPTS = 4
CONNECTIONS = 10
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
    """Lists segments, and keeps the exports of divergent tails."""

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self._s3 = make_client(
            settings,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            read_timeout_s=READ_TIMEOUT_S,
            attempts=ATTEMPTS,
            connections=CONNECTIONS,
        )
        self._tiered_bucket = settings.s3_tiered_bucket
        self._prefix = settings.s3_tiered_prefix
        self._bucket = settings.s3_bucket

    async def objects(self, topic: str, log: TopicIdPartition) -> dict[UUID, SegmentObjects]:
        """The objects of one partition, by segment. Raises :class:`ObjectStoreUnavailable`."""
        prefix = partition_prefix(self._prefix, topic, log)
        return await asyncio.to_thread(self._list, prefix)

    def _list(self, prefix: str) -> dict[UUID, SegmentObjects]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(
            Bucket=self._tiered_bucket, Prefix=prefix
        )
        try:
            return group_by_segment(
                (entry["Key"], entry["Size"])
                for page in pages
                for entry in page.get("Contents", ())
            )
        except (BotoCoreError, ClientError) as error:
            raise ObjectStoreUnavailable(
                f"cannot list s3://{self._tiered_bucket}/{prefix}: {error}"
            ) from error

    async def check(self) -> str | None:
        """Why the bucket of the segments cannot be read, or ``None`` when it can."""
        try:
            await asyncio.to_thread(self._s3.head_bucket, Bucket=self._tiered_bucket)
        except (BotoCoreError, ClientError) as error:
            return f"s3://{self._tiered_bucket}: {error}"
        return None

    async def export(self, key: str, data: bytes) -> str:
        """Keep ``data`` for forensics under ``key``; the same key twice is the same export.

        Returns the object's address. Raises :class:`ObjectStoreUnavailable`.
        """
        try:
            await asyncio.to_thread(self._s3.put_object, Bucket=self._bucket, Key=key, Body=data)
        except (BotoCoreError, ClientError) as error:
            raise ObjectStoreUnavailable(
                f"cannot write s3://{self._bucket}/{key}: {error}"
            ) from error
        return f"s3://{self._bucket}/{key}"
