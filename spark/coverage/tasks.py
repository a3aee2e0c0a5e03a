"""What the bucket of tiered segments holds, one row per segment.

Each task lists the prefixes of its partitions one after the other. A segment's objects have one
stem, so they are neighbours in a listing: memory is one segment, however many there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from spark.coverage.packing import PACKED, pack_objects
from tideline.domain.coverage import AIVEN_KINDS, OWN_KINDS
from tideline.domain.ids import TopicIdPartition, topic_id_from_base64
from tideline.object_store.client import ObjectEntry, ObjectStoreClient
from tideline.object_store.inventory import partition_prefix
from tideline.settings import ObjectStoreSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KIND_BITS = {kind: 1 << n for n, kind in enumerate((*sorted(OWN_KINDS), "txnindex"))}
KIND_BITS |= {kind: 64 << n for n, kind in enumerate(sorted(AIVEN_KINDS))}
"""A segment's other objects as a bit mask."""
ROWS_AT_ONCE = 10_000
SCHEMA = """log_id bigint, segment_id binary, start_offset bigint, log_bytes bigint, kinds int,
last_modified bigint"""
"""``log_bytes``: size of the ``.log`` object, null without one. ``kinds``: :data:`KIND_BITS` of the
others. ``last_modified``: of the newest object, ms by S3's clock."""
ARROW = pa.schema(
    [
        pa.field("log_id", pa.int64(), nullable=False),
        pa.field("segment_id", pa.binary(), nullable=False),
        pa.field("start_offset", pa.int64(), nullable=False),
        pa.field("log_bytes", pa.int64(), nullable=True),
        pa.field("kinds", pa.int32(), nullable=False),
        pa.field("last_modified", pa.int64(), nullable=False),
    ]
)
_NAME = re.compile(r"(?P<start>\d{20})-(?P<segment>[A-Za-z0-9_-]{22})\.(?P<kind>[a-z-]+)$")


@dataclass(frozen=True, slots=True)
class ListedPartition:
    """A partition whose prefix is listed."""

    log_id: int
    topic: str
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """What a listing has of one segment. ``log_bytes`` is ``None`` without a ``.log`` object."""

    segment_id: UUID
    start_offset: int
    log_bytes: int | None
    kinds: int
    last_modified: int


def kind_bits(kinds: Iterable[str]) -> int:
    """A bit mask of suffixes; those of no segment count nothing."""
    return sum(KIND_BITS.get(kind, 0) for kind in set(kinds))


def segments_listed(objects: Iterable[ObjectEntry]) -> Iterator[ListedSegment]:
    """Objects in the order of their keys, as segments. Foreign keys are left out."""
    stem, found = "", None
    for entry in objects:
        if (name := _NAME.search(entry.key)) is None:
            continue
        modified = int(entry.last_modified.timestamp() * 1000)
        if found is None or name["segment"] != stem:
            if found is not None:
                yield found
            stem = name["segment"]
            found = ListedSegment(topic_id_from_base64(stem), int(name["start"]), None, 0, modified)
        is_log = name["kind"] == "log"
        found = ListedSegment(
            found.segment_id,
            found.start_offset,
            entry.size if is_log else found.log_bytes,
            found.kinds | KIND_BITS.get(name["kind"], 0),
            max(found.last_modified, modified),
        )
    if found is not None:
        yield found


def inventory(
    spark: SparkSession,
    settings: ObjectStoreSettings,
    partitions: Sequence[ListedPartition],
    tasks: int,
    *,
    packed: bool = False,
) -> DataFrame:
    """The segments of ``partitions`` as the bucket has them now; columns: :data:`SCHEMA`, or
    packed as :func:`spark.coverage.packing.pack_objects` makes of them.

    Reading it raises :class:`tideline.object_store.ObjectStoreUnavailable`.
    """
    wanted = spark.createDataFrame(
        [(p.log_id, p.topic, p.topic_id.bytes, p.partition) for p in partitions],
        "log_id bigint, topic string, topic_id binary, partition int",
    ).repartition(max(1, min(tasks, len(partitions))))
    store, bucket, prefix = (
        ObjectStoreClient(settings),
        settings.s3_tiered_bucket,
        settings.s3_tiered_prefix,
    )

    def list_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[dict[str, Any]] = []
        for batch in batches:
            for partition in batch.to_pylist():
                log = TopicIdPartition(UUID(bytes=partition["topic_id"]), partition["partition"])
                keys = partition_prefix(prefix, partition["topic"], log)
                for found in segments_listed(store.list_objects(bucket, keys)):
                    rows.append(
                        {
                            "log_id": partition["log_id"],
                            "segment_id": found.segment_id.bytes,
                            "start_offset": found.start_offset,
                            "log_bytes": found.log_bytes,
                            "kinds": found.kinds,
                            "last_modified": found.last_modified,
                        }
                    )
                    if len(rows) >= ROWS_AT_ONCE:
                        yield made(rows)
                        rows = []
        if rows:
            yield made(rows)

    def made(rows: list[dict[str, Any]]) -> pa.RecordBatch:
        batch = pa.RecordBatch.from_pylist(rows, schema=ARROW)
        return pack_objects(batch) if packed else batch

    return wanted.mapInArrow(list_all, PACKED if packed else SCHEMA)
