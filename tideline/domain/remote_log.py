"""What a broker's remote log holds, folded from its metadata records.

A segment is readable only in ``COPY_SEGMENT_FINISHED``. A state never goes back to a more
readable one: a record that claims so is counted as an anomaly and ignored, because believing it
would count bytes that may be gone (Kafka: ``RemoteLogSegmentState``, ``RemoteLogMetadataCache``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from uuid import UUID

from tideline.domain.ids import TopicIdPartition


class SegmentState(IntEnum):
    """``RemoteLogSegmentState``, with Kafka's numbers."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


LEGAL_TRANSITIONS: frozenset[tuple[SegmentState, SegmentState]] = frozenset(
    {
        (SegmentState.COPY_SEGMENT_STARTED, SegmentState.COPY_SEGMENT_FINISHED),
        (SegmentState.COPY_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_STARTED),
        (SegmentState.COPY_SEGMENT_FINISHED, SegmentState.DELETE_SEGMENT_STARTED),
        (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED),
    }
)
"""``RemoteLogSegmentState.isValidTransition``; staying put is legal too."""


class PartitionDeleteState(IntEnum):
    """``RemotePartitionDeleteState``."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True)
class EpochStart:
    """A leader epoch and its first offset (inclusive)."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """One remote segment. Offsets are inclusive at both ends; times in ms."""

    log: TopicIdPartition
    topic: str
    segment_id: UUID
    start_offset: int
    end_offset: int
    size_bytes: int
    leader_epochs: tuple[EpochStart, ...]
    state: SegmentState
    broker_id: int = -1
    max_timestamp: int = -1
    event_timestamp: int = -1
    """When the broker wrote the newest record about this segment."""
    txn_index_empty: bool = False


@dataclass(frozen=True, slots=True)
class SegmentUpdate:
    """``RemoteLogSegmentMetadataUpdate``: a segment changes its state."""

    log: TopicIdPartition
    segment_id: UUID
    state: SegmentState
    broker_id: int = -1
    event_timestamp: int = -1


@dataclass(frozen=True, slots=True)
class PartitionDelete:
    """``RemotePartitionDeleteMetadata``."""

    log: TopicIdPartition
    state: PartitionDeleteState
    event_timestamp: int = -1


RemoteLogEvent = RemoteSegment | SegmentUpdate | PartitionDelete


@dataclass(slots=True)
class RemoteLogIndex:
    """Every partition's remote segments, kept by folding events in the order of the topic."""

    segments: dict[TopicIdPartition, dict[UUID, RemoteSegment]] = field(default_factory=dict)
    anomalies: int = 0
    """Events that no legal history contains: unknown segments, states going back."""
    finished_once: dict[TopicIdPartition, dict[int, int]] = field(default_factory=dict)
    """By leader epoch the highest offset (inclusive) of a segment that was ever finished; deleting
    it changes nothing, as in Kafka (``RemoteLogLeaderEpochState.highestLogOffset``)."""

    def apply(self, event: RemoteLogEvent) -> None:
        """Fold one event. Never raises: an impossible event is counted and cannot add data."""
        match event:
            case RemoteSegment():
                self._apply_segment(event)
            case SegmentUpdate():
                self._apply_update(event)
            case PartitionDelete():
                if event.state is PartitionDeleteState.DELETE_PARTITION_FINISHED:
                    self.segments.pop(event.log, None)
                    self.finished_once.pop(event.log, None)

    def _apply_segment(self, segment: RemoteSegment) -> None:
        known = self.segments.setdefault(segment.log, {})
        current = known.get(segment.segment_id)
        if current is None:
            known[segment.segment_id] = segment
            if segment.state is SegmentState.COPY_SEGMENT_FINISHED:
                self._remember(segment)
        else:
            self._move(current, segment.state, segment.event_timestamp)

    def _apply_update(self, update: SegmentUpdate) -> None:
        current = self.segments.get(update.log, {}).get(update.segment_id)
        if current is None:
            # A repeated DELETE_SEGMENT_FINISHED is normal: the broker retries deletions.
            if update.state is not SegmentState.DELETE_SEGMENT_FINISHED:
                self.anomalies += 1
            return
        self._move(current, update.state, update.event_timestamp)

    def _move(self, current: RemoteSegment, state: SegmentState, event_timestamp: int) -> None:
        if state == current.state:
            return
        if (current.state, state) not in LEGAL_TRANSITIONS:
            self.anomalies += 1
            if state < current.state:
                return
        if state is SegmentState.COPY_SEGMENT_FINISHED:
            self._remember(current)
        log = self.segments[current.log]
        if state is SegmentState.DELETE_SEGMENT_FINISHED:
            del log[current.segment_id]
        else:
            log[current.segment_id] = replace(current, state=state, event_timestamp=event_timestamp)

    def _remember(self, segment: RemoteSegment) -> None:
        highest = self.finished_once.setdefault(segment.log, {})
        starts = segment.leader_epochs
        ends = [entry.start_offset - 1 for entry in starts[1:]] + [segment.end_offset]
        for entry, end in zip(starts, ends, strict=True):
            highest[entry.epoch] = max(highest.get(entry.epoch, -1), end)

    def of(self, log: TopicIdPartition) -> tuple[RemoteSegment, ...]:
        """The partition's segments in every state, by start offset."""
        found = self.segments.get(log, {}).values()
        return tuple(sorted(found, key=lambda s: (s.start_offset, s.end_offset)))

    def topic_segments(self, topic_id: UUID) -> Iterator[RemoteSegment]:
        """Every segment of a topic, in no particular order."""
        for log, segments in self.segments.items():
            if log.topic_id == topic_id:
                yield from segments.values()


def stuck_copies(
    segments: tuple[RemoteSegment, ...], now_ms: int, older_than_ms: int
) -> tuple[RemoteSegment, ...]:
    """Copies that began long ago and neither finished nor were cleaned up.

    A kill in mid-copy, or a failed clean-up, leaves ``COPY_SEGMENT_STARTED`` with its objects
    behind until retention passes it. Many of them mean that tiering is not healthy.
    """
    return tuple(
        segment
        for segment in segments
        if segment.state is SegmentState.COPY_SEGMENT_STARTED
        and now_ms - segment.event_timestamp > older_than_ms
    )
