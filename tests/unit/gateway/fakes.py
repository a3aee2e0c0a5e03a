"""A control plane, an object store and a clock in memory, for the gateway's tracked topics."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import crc32c

from tideline.control_plane.errors import (
    ControlPlaneUnavailable,
    GatewayFenced,
    OffsetOutOfRange,
)
from tideline.control_plane.model import (
    BatchCoordinates,
    BatchToCommit,
    CommitError,
    CommittedBatch,
    FindBatchesRequest,
    FoundBatches,
    ListOffsetsKind,
    SegmentCoordinates,
    SuffixOffset,
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import MigrationState
from tideline.object_store import ObjectMissing, ObjectStoreUnavailable

TOPIC = "orders"
TOPIC_ID = UUID(int=0xABC)
LOG = TopicIdPartition(TOPIC_ID, 0)


class FakeClock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def tracked_row(
    partition: int = 0,
    *,
    topic_id: UUID = TOPIC_ID,
    generation: int = 1,
    quiesced: bool = False,
    boundary: int = -1,
    boundary_epoch: int = -1,
    **values: Any,
) -> TrackedPartition:
    """One row of ``logs``."""
    state = MigrationState.MIGRATING if boundary < 0 else MigrationState.HYBRID
    return TrackedPartition(
        topic_id=topic_id,
        partition=partition,
        state=state,
        generation=generation,
        quiesced=quiesced,
        boundary=boundary,
        boundary_epoch=boundary_epoch,
        **{"high_watermark": boundary, "suffix_start": boundary, **values},
    )


def tracked_topic(
    *rows: TrackedPartition,
    name: str = TOPIC,
    topic_id: UUID | None = TOPIC_ID,
    status: TopicStatus = TopicStatus.ACTIVE,
    timestamp_type: str = "CreateTime",
    max_message_bytes: int = 1_048_588,
) -> TrackedTopic:
    """A tracked topic with these rows (by default one pending partition)."""
    kept = rows or (tracked_row(topic_id=topic_id or TOPIC_ID),)
    return TrackedTopic(
        name=name,
        topic_id=topic_id,
        kind=TrackingKind.MIGRATED,
        status=status,
        timestamp_type=timestamp_type,
        max_message_bytes=max_message_bytes,
        partitions={row.partition: row for row in kept},
    )


def record_batch(
    records: int = 1,
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    attributes: int = 0,
    max_timestamp: int = 1_000,
    payload: bytes = b"payload",
    last_offset_delta: int | None = None,
    magic: int = 2,
) -> bytes:
    """A batch whose header is right; its records are not looked into."""
    delta = records - 1 if last_offset_delta is None else last_offset_delta
    body = struct.pack(
        ">hiqqqhii", attributes, delta, 1_000, max_timestamp, producer_id, epoch, sequence, records
    )
    body += payload
    head = struct.pack(">qiibI", 0, 9 + len(body), -1, magic, crc32c.crc32c(body))
    return head + body


@dataclass
class FakeObjectStore:
    """Objects by key. ``fail`` is asked before each call and may raise."""

    objects: dict[str, bytes] = field(default_factory=dict)
    tiered: dict[str, bytes] = field(default_factory=dict)
    """Of the bucket of the segments."""
    gets: list[tuple[str, int, int]] = field(default_factory=list)
    puts: list[str] = field(default_factory=list)
    down: bool = False
    holds: dict[int, asyncio.Event] = field(default_factory=dict)
    """The n-th put (from 0) waits for its event."""

    async def put(self, key: str, body: bytes) -> None:
        number = len(self.puts)
        self.puts.append(key)
        if (hold := self.holds.get(number)) is not None:
            await hold.wait()
        await asyncio.sleep(0)
        if self.down:
            raise ObjectStoreUnavailable(f"put {key}: the store is down")
        self.objects[key] = body

    async def get(self, key: str, start: int, size: int, *, tiered: bool = False) -> bytes:
        self.gets.append((key, start, size))
        await asyncio.sleep(0)
        if self.down:
            raise ObjectStoreUnavailable(f"get {key}: the store is down")
        objects = self.tiered if tiered else self.objects
        if key not in objects:
            raise ObjectMissing(key)
        return objects[key][start : start + size]


@dataclass
class Suffix:
    """One partition's suffix."""

    boundary: int
    batches: list[BatchCoordinates] = field(default_factory=list)
    log_start: int = -1
    segments: list[SegmentCoordinates] = field(default_factory=list)
    """Merged: all of them below the first of ``batches``."""

    @property
    def start(self) -> int:
        return max(self.boundary, self.log_start)

    @property
    def high_watermark(self) -> int:
        last = (self.batches or self.segments or [None])[-1]
        return self.boundary if last is None else last.last_offset + 1

    def search(self, timestamp: int) -> SuffixOffset:
        """What ``list_offsets`` answers: candidates with a record at or after ``timestamp``."""
        segments = [s for s in self.segments if s.last_offset >= self.start]
        batches = [b for b in self.batches if b.last_offset >= self.start]
        young = [b for b in batches if b.max_timestamp >= timestamp]
        return SuffixOffset(
            "NONE",
            batch=young[0] if young else None,
            segments=tuple(s for s in segments if s.max_timestamp >= timestamp)[:8],
            suffix_start=self.start,
        )

    def maxima(self) -> SuffixOffset:
        """What ``list_offsets`` answers for the largest timestamp."""
        batches = [b for b in self.batches if b.last_offset >= self.start]
        return SuffixOffset(
            "NONE",
            batch=max(batches, key=lambda b: b.max_timestamp, default=None),
            segments=tuple(s for s in self.segments if s.last_offset >= self.start),
            suffix_start=self.start,
        )


class FakeControlPlane:
    """The functions that a gateway calls, without SQL."""

    def __init__(self) -> None:
        self.topics: dict[str, TrackedTopic] = {}
        self.suffixes: dict[TopicIdPartition, Suffix] = {}
        self.prefix_starts: dict[TopicIdPartition, int] = {}
        self.after_find: Callable[[], object] | None = None
        """Called once, when coordinates were found and before anybody reads there."""
        self.active: UUID | None = None
        self.fenced: set[UUID] = set()
        self.renewals = 0
        self.down = False
        self.postgres: tuple[str, int] = ("7001", 1)
        self.tracking_acks: list[tuple[UUID, str]] = []
        self.quiesce_acks: list[dict[str, Any]] = []
        self.registered_keys: set[str] = set()
        self.commits: list[tuple[str, list[BatchToCommit]]] = []
        self.outcomes: dict[str, list[CommittedBatch]] = {}
        self.refusals: dict[int, CommitError] = {}
        """By base sequence: what the commit says of such a batch."""
        self.lose_answers = 0
        """So many commits are done and then look as if Postgres had not answered."""
        self.voided: set[TopicIdPartition] = set()
        self.notices: asyncio.Queue[str] = asyncio.Queue()
        self.append_time = 5_000
        self.duplicates: dict[tuple[int, int], CommittedBatch] = {}

    def _answer(self) -> None:
        if self.down:
            raise ControlPlaneUnavailable("Postgres is down")

    def _check(self, incarnation: UUID) -> None:
        self._answer()
        if incarnation in self.fenced or incarnation != self.active:
            raise GatewayFenced(f"incarnation {incarnation} is fenced")

    def put_row(self, row: TrackedPartition, name: str = TOPIC) -> None:
        """Change one row as a worker would."""
        topic = self.topics[name]
        self.topics[name] = replace(topic, partitions={**topic.partitions, row.partition: row})
        self.notices.put_nowait(f"log:{row.topic_id}:{row.partition}")

    async def register_gateway(
        self,
        gateway_id: int,
        broker_id: int,
        incarnation: UUID,
        address: str,
        version: str,
        lease_ms: int,
    ) -> None:
        self._answer()
        if self.active is not None and self.active != incarnation:
            self.fenced.add(self.active)
        self.active = incarnation

    async def renew_lease(self, gateway_id: int, incarnation: UUID) -> int:
        self._check(incarnation)
        self.renewals += 1
        return self.renewals

    async def identity(self) -> tuple[str, int]:
        self._answer()
        return self.postgres

    async def tracked_topics(self) -> list[TrackedTopic]:
        self._answer()
        return list(self.topics.values())

    async def tracked_topic(self, name: str) -> TrackedTopic | None:
        self._answer()
        return self.topics.get(name)

    async def tracked_partition(self, topic_id: UUID, partition: int) -> TrackedPartition | None:
        self._answer()
        for topic in self.topics.values():
            if topic.topic_id == topic_id:
                return topic.partitions.get(partition)
        return None

    async def acknowledge_tracking(self, gateway_id: int, incarnation: UUID, name: str) -> None:
        self._check(incarnation)
        self.tracking_acks.append((incarnation, name))

    async def acknowledge_quiesce(
        self,
        gateway_id: int,
        incarnation: UUID,
        log: TopicIdPartition,
        generation: int,
        highest_acknowledged_offset: int,
        read_ceiling: int,
    ) -> None:
        self._check(incarnation)
        self.quiesce_acks.append(
            {
                "log": log,
                "generation": generation,
                "highest": highest_acknowledged_offset,
                "ceiling": read_ceiling,
                "incarnation": incarnation,
            }
        )

    async def void_expired_quiesce(self, log: TopicIdPartition) -> bool:
        self._answer()
        return log in self.voided

    async def register_object_keys(
        self, gateway_id: int, incarnation: UUID, keys: Sequence[str]
    ) -> None:
        self._check(incarnation)
        self.registered_keys.update(keys)

    async def commit_file(
        self,
        gateway_id: int,
        incarnation: UUID,
        object_key: str,
        size: int,
        batches: Sequence[BatchToCommit],
    ) -> list[CommittedBatch]:
        await asyncio.sleep(0)
        self._check(incarnation)
        assert object_key in self.registered_keys
        if object_key not in self.outcomes:
            self.commits.append((object_key, list(batches)))
            self.outcomes[object_key] = [self._append(object_key, batch) for batch in batches]
        if self.lose_answers > 0:
            self.lose_answers -= 1
            raise ControlPlaneUnavailable("the connection broke during the commit")
        return self.outcomes[object_key]

    def _append(self, key: str, batch: BatchToCommit) -> CommittedBatch:
        if (refusal := self.refusals.get(batch.base_sequence)) is not None:
            return CommittedBatch(refusal)
        if (known := self.duplicates.get((batch.producer_id, batch.base_sequence))) is not None:
            return replace(known, error=CommitError.DUPLICATE)
        suffix = self.suffixes.setdefault(batch.log, Suffix(0))
        base = suffix.high_watermark
        suffix.batches.append(
            BatchCoordinates(
                object_key=key,
                byte_offset=batch.byte_offset,
                byte_size=batch.byte_size,
                base_offset=base,
                last_offset=base + batch.record_count - 1,
                timestamp_type=batch.timestamp_type,
                append_time=self.append_time,
                max_timestamp=batch.max_timestamp,
            )
        )
        outcome = CommittedBatch(
            CommitError.NONE, base, self.append_time, suffix.boundary, suffix.high_watermark
        )
        if batch.producer_id >= 0:
            self.duplicates[batch.producer_id, batch.base_sequence] = outcome
        return outcome

    async def find_batches(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        self._answer()
        found = [self._find(request) for request in requests]
        after, self.after_find = self.after_find, None
        if after is not None:
            after()
        return found

    def _find(self, request: FindBatchesRequest) -> FoundBatches:
        suffix = self.suffixes.get(request.log)
        if suffix is None:
            return FoundBatches("UNKNOWN_LOG", -1, -1)
        start, end = suffix.start, suffix.high_watermark
        prefix_start = self.prefix_starts.get(request.log, 0)
        log_start = prefix_start if prefix_start < suffix.boundary else start
        if request.fetch_offset < suffix.boundary:
            return FoundBatches("BELOW_BOUNDARY", log_start, end)
        if not start <= request.fetch_offset <= end:
            return FoundBatches("OFFSET_OUT_OF_RANGE", log_start, end)
        for segment in suffix.segments:
            if segment.base_offset <= request.fetch_offset <= segment.last_offset:
                return FoundBatches("NONE", log_start, end, segment=segment)
        found: list[BatchCoordinates] = []
        size = 0
        for batch in suffix.batches:
            if batch.last_offset < request.fetch_offset:
                continue
            if found and size + batch.byte_size > request.max_bytes:
                break
            found.append(batch)
            size += batch.byte_size
        return FoundBatches("NONE", log_start, end, tuple(found))

    async def high_watermarks(
        self, logs: Sequence[TopicIdPartition]
    ) -> dict[TopicIdPartition, int]:
        self._answer()
        return {log: self.suffixes[log].high_watermark for log in logs if log in self.suffixes}

    async def list_offsets(
        self, log: TopicIdPartition, kind: ListOffsetsKind, timestamp: int | None = None
    ) -> SuffixOffset:
        self._answer()
        suffix = self.suffixes[log]
        match kind:
            case ListOffsetsKind.EARLIEST:
                return SuffixOffset("NONE", suffix.start)
            case ListOffsetsKind.LATEST:
                return SuffixOffset("NONE", suffix.high_watermark)
            case ListOffsetsKind.MAX_TIMESTAMP:
                return suffix.maxima()
        assert timestamp is not None
        return suffix.search(timestamp)

    async def delete_records(self, log: TopicIdPartition, before_offset: int) -> int:
        self._answer()
        suffix = self.suffixes[log]
        wanted = suffix.high_watermark if before_offset < 0 else before_offset
        if wanted > suffix.high_watermark:
            raise OffsetOutOfRange(f"{wanted} is past {suffix.high_watermark}")
        suffix.log_start = max(suffix.boundary, suffix.log_start, wanted)
        return suffix.log_start

    async def advance_prefix_start(self, log: TopicIdPartition, log_start: int) -> None:
        self._answer()
        self.prefix_starts[log] = max(log_start, self.prefix_starts.get(log, -1))

    async def listen(
        self, channels: Sequence[str], on_listening: Callable[[], None] | None = None
    ) -> AsyncIterator[tuple[str, str]]:
        self._answer()
        if on_listening is not None:
            on_listening()
        while True:
            yield channels[0], await self.notices.get()


def new_incarnation() -> UUID:
    return uuid4()


async def until(condition: Callable[[], object], what: str = "it", timeout_s: float = 5.0) -> None:
    """Let the loop run until ``condition`` holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is awaited tells nobody
            await asyncio.sleep(0.001)
