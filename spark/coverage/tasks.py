"""What the bucket of tiered segments holds, one row per segment.

Each task lists the prefixes of its partitions one after the other. A segment's objects have one
stem, so they are neighbours in a listing: memory is one segment, however many there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from spark.common.packing import KIND_BITS, Packed, pack_objects
from spark.common.rows import ROWS_AT_ONCE, chunks, from_batch, spark_schema, to_batch, to_frame
from tideline.control_plane.tiering_model import PartitionRow
from tideline.domain.ids import topic_id_from_base64
from tideline.object_store.client import ObjectEntry, ObjectStoreClient
from tideline.object_store.inventory import partition_prefix
from tideline.settings import ObjectStoreSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME = re.compile(r"(?P<start>\d{20})-(?P<segment>[A-Za-z0-9_-]{22})\.(?P<kind>[a-z-]+)$")


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """What a listing has of one segment."""

    log_id: int
    segment_id: UUID
    start_offset: int
    log_bytes: int | None
    """Of the ``.log`` object; ``None`` without one."""
    kinds: int
    """:data:`spark.common.packing.KIND_BITS` of the other objects."""
    last_modified: int
    """Of the newest object, ms by S3's clock."""


def segments_listed(log_id: int, objects: Iterable[ObjectEntry]) -> Iterator[ListedSegment]:
    """A log's objects in the order of their keys, as segments. Foreign keys are left out."""
    stem, found = "", None
    for entry in objects:
        if (name := _NAME.search(entry.key)) is None:
            continue
        modified = int(entry.last_modified.timestamp() * 1000)
        if found is None or name["segment"] != stem:
            if found is not None:
                yield found
            stem = name["segment"]
            segment_id, start = topic_id_from_base64(stem), int(name["start"])
            found = ListedSegment(log_id, segment_id, start, None, 0, modified)
        is_log = name["kind"] == "log"
        found = replace(
            found,
            log_bytes=entry.size if is_log else found.log_bytes,
            kinds=found.kinds | KIND_BITS.get(name["kind"], 0),
            last_modified=max(found.last_modified, modified),
        )
    if found is not None:
        yield found


def inventory(
    spark: SparkSession,
    settings: ObjectStoreSettings,
    partitions: Sequence[PartitionRow],
    tasks: int,
) -> DataFrame:
    """The segments of ``partitions`` as the bucket has them now, packed by
    :func:`spark.common.packing.pack_objects` where they are listed.

    Reading it raises :class:`tideline.object_store.ObjectStoreUnavailable`.
    """
    store, bucket = ObjectStoreClient(settings), settings.s3_tiered_bucket
    root = settings.s3_tiered_prefix

    def listed(batches: Iterator[pa.RecordBatch]) -> Iterator[ListedSegment]:
        for batch in batches:
            for row in from_batch(PartitionRow, batch):
                objects = store.list_objects(bucket, partition_prefix(root, row.topic, row.log))
                yield from segments_listed(row.log_id, objects)

    def list_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for some in chunks(listed(batches), ROWS_AT_ONCE):
            yield pack_objects(to_batch(ListedSegment, some))

    wanted = to_frame(spark, PartitionRow, partitions, tasks)
    return wanted.mapInArrow(list_all, spark_schema(Packed))
