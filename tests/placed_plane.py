"""The control plane in memory, put into any situation at once: a test need not live through it."""

from __future__ import annotations

from tideline.control_plane.memory import MemoryControlPlane
from tideline.control_plane.memory.partition import LONGEST_HOLD_MS, Partition, QuiesceState
from tideline.control_plane.memory.suffix import Suffix
from tideline.control_plane.memory.topics import Topic
from tideline.control_plane.model import TrackedPartition, TrackedTopic
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import MigrationState


class PlacedPlane(MemoryControlPlane):
    """Rows are put where a worker's calls would have brought them."""

    def put(self, topic: TrackedTopic) -> None:
        """The topic's rows as they are shown; a suffix that stays at its B0 keeps its batches."""
        known = self.topics.live(topic.name)
        made = Topic(
            topic.name,
            topic.topic_id,
            topic.kind,
            topic.timestamp_type,
            topic.max_message_bytes,
            topic.status,
            overrides=dict(topic.overrides),
            round=topic.round,
            timestamp_before_max_ms=topic.timestamp_before_max_ms,
            timestamp_after_max_ms=topic.timestamp_after_max_ms,
        )
        if known is not None:
            self.topics.rows.remove(known)
            if known.topic_id == topic.topic_id:
                made.partitions = known.partitions
        self.topics.rows.append(made)
        for row in topic.partitions.values():
            self._put(made, row)

    def put_row(self, row: TrackedPartition, name: str) -> None:
        """Change one row, and tell who listens."""
        self._put(self.topics.live_or_refuse(name), row)
        self._notify_log(TopicIdPartition(row.topic_id, row.partition))

    def _put(self, topic: Topic, row: TrackedPartition) -> None:
        known = topic.partitions.get(row.partition)
        made = Partition(TopicIdPartition(row.topic_id, row.partition), topic.name)
        if row.boundary >= 0:
            made.open_suffix(row.boundary, row.boundary_epoch, prefix_log_start=0)
            assert made.suffix is not None
            made.suffix.high_watermark = max(row.boundary, row.high_watermark)
            made.suffix.start = max(row.boundary, row.suffix_start)
            if known is not None and known.boundary == row.boundary:
                made.suffix, made.log_start = known.suffix, known.log_start
            gone = row.prefix_gone or row.state is MigrationState.DISKLESS_ONLY
            if made.suffix is not None and gone:
                made.suffix.prefix_start = -1
        made.is_migrating = row.state is not MigrationState.TIERED_ONLY
        made.generation, made.epoch = row.generation, row.boundary_epoch
        if row.quiesced:
            made.quiesce, made.deadline_ms = QuiesceState.CLOSED, self.now_ms() + LONGEST_HOLD_MS
            repeated = (
                known is not None
                and known.quiesce is QuiesceState.CLOSED
                and known.generation == row.generation
            )
            if repeated and known is not None:
                made.witnesses, made.acknowledged = known.witnesses, known.acknowledged
            else:
                active = self.gateways.at_quiesce_barrier()
                made.witnesses = frozenset(gateway.incarnation for gateway in active)
        made.prefix_max_timestamp = row.prefix_max_timestamp
        made.prefix_max_timestamp_offset = row.prefix_max_timestamp_offset
        made.tiering_complete, made.accepted_gap_from = row.ready, row.accepted_gap_from
        topic.partitions[row.partition] = made

    def partition(self, log: TopicIdPartition) -> Partition:
        return self.topics.known_partition(log)

    def suffix(self, log: TopicIdPartition) -> Suffix:
        found = self.partition(log).suffix
        assert found is not None
        return found

    def move_prefix(self, log_start: int, log: TopicIdPartition) -> None:
        """Kafka's log start, as its retention leaves it."""
        self.suffix(log).prefix_start = self.partition(log).log_start = log_start
