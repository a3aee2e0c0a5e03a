"""Proof about S3: which objects hold the history, and that none of their bytes was rewritten."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_SEGMENT_FILE = re.compile(r"/(?P<partition>\d+)/(?P<start>\d{20})-[^/.]+\.(?P<kind>[a-z-]+)$")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of the brokers' tiered storage (``tideline-tiered`` layout: one per file)."""

    key: str
    size: int
    etag: str
    modified: datetime

    @property
    def segment(self) -> tuple[int, int, str] | None:
        """(partition, start offset, kind) read from the key."""
        found = _SEGMENT_FILE.search(self.key)
        return (int(found["partition"]), int(found["start"]), found["kind"]) if found else None


def list_objects(s3: S3Client, bucket: str, prefix: str) -> dict[str, StoredObject]:
    """Every object below ``prefix``, by key."""
    found = {}
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            found[item["Key"]] = StoredObject(
                item["Key"], item["Size"], item["ETag"], item["LastModified"]
            )
    return found


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
    before: Mapping[str, StoredObject],
    after: Mapping[str, StoredObject],
    tiered_before: Mapping[int, int],
) -> RewriteCount:
    """Compare two listings. ``tiered_before``: by partition, the start offset of the last segment
    that was in S3 before the migration began."""
    changed = sum(
        old.size
        for key, old in before.items()
        if key in after
        and (after[key].size, after[key].etag, after[key].modified)
        != (old.size, old.etag, old.modified)
    )
    missing = sum(old.size for key, old in before.items() if key not in after)
    copied = 0
    for key, new in after.items():
        segment = new.segment
        if key in before or segment is None or segment[2] != "log":
            continue
        partition, start, _ = segment
        if start <= tiered_before.get(partition, -1):
            copied += new.size
    return RewriteCount(len(before), sum(o.size for o in before.values()), changed, missing, copied)


def last_segment_starts(objects: Iterable[StoredObject]) -> dict[int, int]:
    """By partition, the start offset of its last segment in S3."""
    starts: dict[int, int] = defaultdict(lambda: -1)
    for stored in objects:
        if stored.segment is not None and stored.segment[2] == "log":
            partition, start, _ = stored.segment
            starts[partition] = max(starts[partition], start)
    return dict(starts)


@dataclass(frozen=True, slots=True)
class TieredUsage:
    """What the prefix of one partition occupies in S3."""

    segments: int
    bytes: int


def usage_by_partition(objects: Iterable[StoredObject]) -> dict[int, TieredUsage]:
    """Segments and bytes (all files) by partition."""
    segments: dict[int, int] = defaultdict(int)
    sizes: dict[int, int] = defaultdict(int)
    for stored in objects:
        if stored.segment is None:
            continue
        partition, _, kind = stored.segment
        segments[partition] += kind == "log"
        sizes[partition] += stored.size
    return {p: TieredUsage(segments[p], sizes[p]) for p in sizes}
