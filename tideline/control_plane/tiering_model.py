"""What the periodic jobs exchange with the control plane: split, merge, retention, coverage, gc.

Every shape is frozen and picklable, so that a Spark driver can hand it to its executors. Offsets
are inclusive at both ends, times are ms, sizes bytes. Key ranges are half open: ``[lo, hi)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from tideline.domain.ids import TopicIdPartition
from tideline.domain.prefix import prefix_end
from tideline.domain.producer_state import StoredProducerState
from tideline.domain.tiering import age

SEGMENT_SUFFIXES = (
    ".log",
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
    ".leader-epoch-checkpoint",
)
"""The objects of one merged segment. ``.log`` is uploaded last and deleted first: its presence
marks a whole set."""


class MergedSegmentState(StrEnum):
    """Kafka's ``RemoteLogSegmentState``, as far as merged segments go through it."""

    COPY_SEGMENT_STARTED = "COPY_SEGMENT_STARTED"
    COPY_SEGMENT_FINISHED = "COPY_SEGMENT_FINISHED"
    DELETE_SEGMENT_STARTED = "DELETE_SEGMENT_STARTED"


class TieringScope(StrEnum):
    """What a failure of the tiering pipeline belongs to."""

    SPLIT = "split"
    """A WAL file whose runs do not fit what is committed; the key is its ``file_id``."""
    MERGE = "merge"
    """A partition, of which a batch is not as committed; the key is its ``log_id``."""


class Bucket(StrEnum):
    """Which of the two buckets of the settings holds an object."""

    DISKLESS = "diskless"
    TIERED = "tiered"


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition, with what of its topic the jobs need."""

    log_id: int
    topic: str
    topic_id: UUID
    partition: int
    state: str
    """``TIERED_ONLY``, ``MIGRATING``, ``HYBRID`` or ``DISKLESS_ONLY``."""
    kind: str
    """``migrated`` or ``born_diskless``."""
    generation: int
    boundary: int
    """B0, -1 while unset."""
    boundary_epoch: int
    accepted_gap_from: int
    """First offset of a log gap below B0 whose loss is accepted, -1 if there is none."""
    high_watermark: int
    """Next offset of the suffix, -1 while it has none."""
    log_start: int
    """Earliest readable offset of the whole log, -1 while unknown."""
    suffix_start: int
    """First offset that retention has left in the suffix, never below B0; -1 without a suffix."""
    tiered_start: int
    """First readable offset in tiered storage (below B0: of Kafka's prefix; from B0 on: of the
    merged segments), -1 if there is none."""
    tiered_high_offset: int
    """Last offset in tiered storage, -1 if none is known."""
    merge_frontier: int
    """F, the first offset that is not merged; B0 while nothing is. -1 without a suffix."""
    tiering_complete: bool
    tiering_reason: str | None
    tiering_paused: bool
    tiering_requested_at: int | None
    """ms; batches committed until then are tiered whatever their age."""
    user_configs: dict[str, str | None]
    """User values of the topic configs that Tideline holds; ``None``: not set by the user."""
    deleted: bool

    @property
    def log(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def prefix_end(self) -> int:
        """Where the prefix ends, exclusive: at B0, or where an accepted log gap begins. -1 without
        a B0."""
        return prefix_end(self.accepted_gap_from, self.boundary)


@dataclass(frozen=True, slots=True)
class BatchRow:
    """Coordinates of one batch of the WAL region."""

    log_id: int
    base_offset: int
    last_offset: int
    byte_size: int
    max_timestamp: int
    file_id: int
    split_id: int | None
    """``None``: DISKLESS; set: SPLIT (002 §4.7.8). The row of a TIERED batch is gone."""


@dataclass(frozen=True, slots=True)
class ClaimedBatch:
    """A batch of a claimed WAL file."""

    topic: str
    topic_id: UUID
    partition: int
    log_id: int
    base_offset: int
    last_offset: int
    byte_offset: int
    byte_size: int
    log_append_time: bool
    append_time: int
    max_timestamp: int
    boundary_epoch: int

    @property
    def log(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class ClaimedFile:
    """A WAL file that this worker alone splits, until the claim expires and another takes it."""

    file_id: int
    object_key: str
    token: int
    batches: tuple[ClaimedBatch, ...]
    """In the order of (``log_id``, ``base_offset``)."""

    @property
    def oldest_ms(self) -> int:
        """The age (ms) for which the file was chosen; those of a claim do not decrease."""
        return min(age(batch.max_timestamp, batch.append_time) for batch in self.batches)


@dataclass(frozen=True, slots=True)
class SplitRun:
    """A contiguous run of offsets of one partition in one WAL file (002 §10.4)."""

    file_id: int
    log_id: int
    base_offset: int
    last_offset: int
    byte_size: int
    batch_count: int
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class FinishedSplit:
    """What of a WAL file is recorded as split."""

    file_id: int
    runs: int
    batches: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MergeCandidate:
    """A partition with split runs that follow the merge frontier without a gap."""

    topic: str
    topic_id: UUID
    partition: int
    log_id: int
    base_offset: int
    """First offset that the next segment would hold."""
    last_offset: int
    """Last offset of the contiguous runs."""
    bytes: int
    """Bytes of them that are not merged yet."""
    batches: int
    files: int
    oldest_split_at: int
    """ms; when the first of them was made."""
    oldest_max_timestamp: int
    """ms; largest record timestamp in the first of them."""
    requested: bool
    """An operator asked for this topic to be tiered now."""
    segments_in_progress: tuple[UUID, ...]
    """Segments that a worker has begun and not finished."""

    @property
    def log(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


class PlannedBatch(NamedTuple):
    """A batch of a segment: where it lies, and what was committed of it."""

    object_key: str
    """Of its WAL object."""
    byte_offset: int
    byte_size: int
    base_offset: int
    last_offset: int
    append_time: int | None
    """ms, to be written into it; ``None``: its topic keeps the producer's time."""
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class PlannedBatches:
    """The batches of a segment in offset order, as columns: there may be 100,000."""

    object_keys: tuple[str, ...]
    batch_objects: tuple[int, ...]
    """Into ``object_keys``."""
    base_offsets: tuple[int, ...]
    last_offsets: tuple[int, ...]
    byte_offsets: tuple[int, ...]
    byte_sizes: tuple[int, ...]
    append_times: tuple[int | None, ...]
    max_timestamps: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.base_offsets)

    def __iter__(self) -> Iterator[PlannedBatch]:
        columns = zip(
            self.batch_objects, self.byte_offsets, self.byte_sizes, self.base_offsets,
            self.last_offsets, self.append_times, self.max_timestamps, strict=True,
        )  # fmt: skip
        return (PlannedBatch(self.object_keys[number], *rest) for number, *rest in columns)


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What one merged segment is made of, under a token: exactly ``batches``."""

    topic: str
    topic_id: UUID
    partition: int
    log_id: int
    token: int
    segment_id: UUID
    object_key_stem: str
    """Key in the tiered bucket, prefix included; the objects add :data:`SEGMENT_SUFFIXES`."""
    base_offset: int
    last_offset: int
    byte_size: int
    batch_count: int
    boundary_epoch: int
    """Leader epoch of every batch from B0 on."""
    producers: tuple[StoredProducerState, ...]
    """Producer state at the merge frontier, by producer id: at the previous segment's end, or the
    seeds at B0; without producers that have expired since. Of several segments that are planned at
    once, that of the first."""
    batches: PlannedBatches

    @property
    def log(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A merged segment whose objects are all uploaded, for ``finish_merge``."""

    segment_id: UUID
    base_offset: int
    """That of the plan."""
    last_offset: int
    """That of the plan, or the end of an earlier batch of it."""
    size_bytes: int
    """Of the ``.log`` object."""
    max_timestamp: int
    record_count: int
    batch_count: int
    offset_index_bytes: int
    time_index_bytes: int
    snapshot_bytes: int
    epoch_checkpoint_bytes: int
    producers: tuple[StoredProducerState, ...] = ()
    """Producer state after ``last_offset``: the basis of the next segment."""


@dataclass(frozen=True, slots=True)
class MergedSegmentRow:
    """One merged segment. Before ``COPY_SEGMENT_FINISHED`` the figures are those of the plan."""

    log_id: int
    topic: str
    topic_id: UUID
    partition: int
    segment_id: UUID
    state: MergedSegmentState
    object_key_stem: str
    base_offset: int
    last_offset: int
    size_bytes: int
    max_timestamp: int
    """ms; -1 before the segment is finished."""
    leader_epoch: int
    record_count: int
    batch_count: int
    offset_index_bytes: int
    time_index_bytes: int
    created_at: int
    finished_at: int | None

    @property
    def log(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class OldestUnsplit:
    """The oldest batch of a log that may be split and is not, by its largest timestamp."""

    topic: str
    topic_id: UUID
    max_timestamp: int
    """ms, the producer's or its append time."""
    append_time: int
    """ms, when it was committed."""


@dataclass(frozen=True, slots=True)
class SplitWork:
    """Whether split would find something to do."""

    claimed: int
    """WAL files that somebody splits now. While there are any, nothing else is told."""
    partitions: int
    """That have something which may be split."""
    file_id: int | None
    """The WAL file of the oldest batch of it."""
    max_timestamp: int | None
    """Its age, in ms: its largest timestamp, or when it was committed if that is earlier."""


@dataclass(frozen=True, slots=True)
class TieringStatusRow:
    """002 §4.8.2 ``TieringStatus``, per partition."""

    topic: str
    topic_id: UUID
    partition: int
    log_id: int
    state: str
    boundary: int
    tiered_high_offset: int
    diskless_start_offset: int
    """First offset that is read from WAL objects."""
    high_watermark: int
    pending_batches: int
    """Batches that wait to be split."""
    pending_bytes: int
    """Bytes that are not merged: the lag of tiering."""
    pending_split_batches: int
    """Batches that are split and wait to be merged."""
    pending_split_files: int
    eligible_bytes: int
    """Bytes that wait to be split and may be: older than the cutoff, or requested."""
    merged_segments: int
    merged_bytes: int
    paused: bool
    requested_at: int | None
    failures: int
    """Failed attempts in a row."""
    parked: bool
    parked_reason: str | None
    """The newest error of what is parked, or of what fails and is tried again."""

    @property
    def log(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class NewVerdict:
    """What a coverage run says of one partition, and what it had read of it before."""

    log_id: int
    topic_id: UUID
    partition: int
    generation: int
    boundary: int
    """The B0 that it looked at."""
    complete: bool
    reason: str
    detail: Mapping[str, Any]
    observed_at: int
    """ms; when the run began to look."""
    seen_complete: bool
    """``tieringComplete`` as it was then."""
    objects_seen_at: int
    """ms; when the objects were listed, in this run or in an earlier one."""
    objects_digest: str | None = None
    """Hex; of the segments of which every object was there. ``None``: of one something is wrong."""


@dataclass(frozen=True, slots=True)
class CoverageLook:
    """When a run found every object of a log's segments, and a digest of what these were."""

    log_id: int
    boundary: int
    objects_seen_at: int
    """ms."""
    objects_digest: bytes


@dataclass(frozen=True, slots=True)
class RecordedVerdict:
    """What became of a :class:`NewVerdict`."""

    log_id: int
    written: bool
    """False: a newer run, or readiness, has written since, or it was refused; nothing changed."""
    refused: str | None = None
    """SQLSTATE and message: the generation or B0 is another one now (``TL003``), B0 was reset
    (``TL022``), the topic deleted (``TL002``), the partition is unknown (``TL001``)."""


@dataclass(frozen=True, slots=True)
class CoverageStatusRow:
    """The last coverage verdict of a partition that has a prefix or had one."""

    topic: str
    topic_id: UUID
    partition: int
    log_id: int
    state: str
    generation: int
    boundary: int
    tiering_complete: bool
    complete: bool | None
    """``None``: no run has looked at this B0 yet."""
    reason: str | None
    detail: dict[str, Any] = field(default_factory=dict)
    run_id: str | None = None
    observed_at: int | None = None
    since: int | None = None
    """ms; when the present verdict began."""
    objects_seen_at: int | None = None
    """ms; when the objects were listed."""

    @property
    def log(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class SuffixUnit:
    """A merged segment (region 1), or all WAL batches of a log (region 2; timestamp −1)."""

    log_id: int
    region: int
    start_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int
    """ms; when the segment was finished where none of its records has one."""


@dataclass(frozen=True, slots=True)
class WalCut:
    """How many WAL batches retention removes of one log, and up to where (exclusive)."""

    log_id: int
    before_offset: int
    by_time: int
    by_size: int
    removed_bytes: int


@dataclass(frozen=True, slots=True)
class CutRequest:
    """From ``from_offset`` (inclusive) on. Batches whose largest timestamp is at or before
    ``cutoff_ms`` are too old (-1: none is); ``excess_bytes`` are too many."""

    log_id: int
    from_offset: int
    cutoff_ms: int
    excess_bytes: int
