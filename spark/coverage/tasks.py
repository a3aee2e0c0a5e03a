"""What the bucket of tiered segments holds, by segment.

A segment's objects have one stem, so they are neighbours in a listing: memory is a partition's
segments, not its objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import numpy as np
import pyarrow as pa

from spark.common.fold import Ints
from spark.common.packing import KIND_BITS, Objects, id_halves
from tideline.domain.ids import topic_id_from_base64
from tideline.object_store.client import ObjectEntry, ObjectStoreClient

_NEVER = datetime.min.replace(tzinfo=UTC)
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
    stem, start, kinds, newest = "", 0, 0, _NEVER
    log_bytes: int | None = None

    def made() -> ListedSegment:
        modified = int(newest.timestamp() * 1000)
        return ListedSegment(log_id, topic_id_from_base64(stem), start, log_bytes, kinds, modified)

    # Millions in a run: plain variables, one row a segment.
    for entry in objects:
        if (name := _NAME.search(entry.key)) is None:
            continue
        first, segment, kind = name.groups()
        if segment != stem:
            if stem:
                yield made()
            stem, start, log_bytes, kinds = segment, int(first), None, 0
            newest = entry.last_modified
        if kind == "log":
            log_bytes = entry.size
        else:
            kinds |= KIND_BITS.get(kind, 0)
        if entry.last_modified > newest:
            newest = entry.last_modified
    if stem:
        yield made()


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where the objects are listed, from an executor."""

    store: ObjectStoreClient
    bucket: str
    server: str
    """The store's URL; empty: AWS'."""

    def listed(self, log_id: int, prefix: str) -> Objects:
        """What lies under ``prefix`` now. Raises
        :class:`tideline.object_store.ObjectStoreUnavailable`."""
        found = segments_listed(log_id, self.store.list_objects(self.bucket, prefix))
        return objects_of(list(found))


def objects_of(found: Sequence[ListedSegment]) -> Objects:
    """Listed segments by column."""
    high, low = id_halves(pa.array([one.segment_id.bytes for one in found], pa.binary()))

    def ints(values: Iterable[int]) -> Ints:
        return np.fromiter(values, np.int64, len(found))

    return Objects(
        high,
        low,
        ints(one.start_offset for one in found),
        ints(-1 if one.log_bytes is None else one.log_bytes for one in found),
        ints(one.kinds for one in found),
        ints(one.last_modified for one in found),
    )
