"""Proof about S3: which objects hold the history, and that none of their bytes was rewritten."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tideline.object_store.client import ObjectEntry

_SEGMENT_FILE = re.compile(r"/(?P<partition>\d+)/(?P<start>\d{20})-[^/.]+\.(?P<kind>[a-z-]+)$")


def segment_of(key: str) -> tuple[int, int, str] | None:
    """(partition, start offset, kind) of an object of the brokers' tiered storage, one per file
    (``tideline-tiered`` layout); ``None`` for another key."""
    found = _SEGMENT_FILE.search(key)
    return (int(found["partition"]), int(found["start"]), found["kind"]) if found else None


@dataclass(frozen=True, slots=True)
class RewriteCount:
    """Bytes of history that the migration wrote again. All must be 0."""

    objects_before: int
    bytes_before: int
    changed_bytes: int
    """Sizes of objects that existed before and have another size, ETag or time now."""
    missing_bytes: int
    """Sizes of objects that existed before and are gone."""
    copied_bytes: int
    """Sizes of new .log objects that start at offsets which were already tiered before."""

    @property
    def total(self) -> int:
        return self.changed_bytes + self.missing_bytes + self.copied_bytes


def count_rewritten(
    before: Mapping[str, ObjectEntry],
    after: Mapping[str, ObjectEntry],
    tiered_before: Mapping[int, int],
) -> RewriteCount:
    """Compare two listings. ``tiered_before``: by partition, the start offset of the last segment
    that was in S3 before the migration began."""
    changed = sum(old.size for key, old in before.items() if key in after and after[key] != old)
    missing = sum(old.size for key, old in before.items() if key not in after)
    copied = 0
    for key, new in after.items():
        segment = segment_of(key)
        if key in before or segment is None or segment[2] != "log":
            continue
        partition, start, _ = segment
        if start <= tiered_before.get(partition, -1):
            copied += new.size
    return RewriteCount(len(before), sum(o.size for o in before.values()), changed, missing, copied)


def last_segment_starts(objects: Iterable[ObjectEntry]) -> dict[int, int]:
    """By partition, the start offset of its last segment in S3."""
    starts: dict[int, int] = defaultdict(lambda: -1)
    for stored in objects:
        segment = segment_of(stored.key)
        if segment is not None and segment[2] == "log":
            partition, start, _ = segment
            starts[partition] = max(starts[partition], start)
    return dict(starts)


@dataclass(frozen=True, slots=True)
class TieredUsage:
    """What the prefix of one partition occupies in S3."""

    segments: int
    bytes: int


def usage_by_partition(objects: Iterable[ObjectEntry]) -> dict[int, TieredUsage]:
    """Segments and bytes (all files) by partition."""
    segments: dict[int, int] = defaultdict(int)
    sizes: dict[int, int] = defaultdict(int)
    for stored in objects:
        if (segment := segment_of(stored.key)) is None:
            continue
        partition, _, kind = segment
        segments[partition] += kind == "log"
        sizes[partition] += stored.size
    return {p: TieredUsage(segments[p], sizes[p]) for p in sizes}
