"""What a rebuild needs of merged segments: that they are there, and their producers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tideline.domain.catalog import MergedSegment
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_state import StoredProducerState
from tideline.kafka.segment_files import MalformedSnapshot, decode_snapshot
from tideline.object_store.client import ObjectMissing
from tideline.object_store.inventory import group_by_segment, partition_prefix, segment_stem
from tideline.rebuild.reader import Store


@dataclass(frozen=True, slots=True)
class SegmentReader:
    """The bucket of the segments; ``prefix`` is empty, or ends with a slash."""

    store: Store
    bucket: str
    prefix: str

    def missing(
        self, topic: str, log: TopicIdPartition, segments: Iterable[MergedSegment]
    ) -> list[str]:
        """Of ``segments`` those whose log object is not there in its size, one line each. Raises
        what the store raises."""
        wanted = list(segments)
        if not wanted:
            return []
        listed = self.store.list_objects(self.bucket, partition_prefix(self.prefix, topic, log))
        there = group_by_segment((entry.key, entry.size) for entry in listed)
        return [
            f"segment {one.segment_id} with offsets {one.base_offset} to {one.last_offset} is not "
            f"in bucket {self.bucket} with its {one.size_bytes} bytes"
            for one in wanted
            if one.segment_id not in there or there[one.segment_id].log_bytes != one.size_bytes
        ]

    def producers(
        self, topic: str, log: TopicIdPartition, segment: MergedSegment
    ) -> tuple[StoredProducerState, ...] | None:
        """At the segment's end; ``None``: its snapshot is missing or damaged."""
        stem = segment_stem(self.prefix, topic, log, segment.base_offset, segment.segment_id)
        try:
            entries = decode_snapshot(self.store.get(self.bucket, f"{stem}.snapshot"))
        except (ObjectMissing, MalformedSnapshot):
            return None
        return tuple(
            StoredProducerState(
                one.producer_id,
                one.producer_epoch,
                one.last_sequence,
                one.last_offset,
                one.offset_delta,
                one.timestamp,
            )
            for one in entries
        )
