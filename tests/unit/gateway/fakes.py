"""A control plane, an object store and a clock in memory, for the gateway's tracked topics."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import crc32c

from tests.placed_plane import PlacedPlane
from tests.support.waiting import SOON_S, eventually
from tideline.control_plane import ControlPlane
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.memory.suffix import Suffix
from tideline.control_plane.model import (
    BatchToCommit,
    CommitError,
    CommittedBatch,
    ConfigOverride,
    FindBatchesRequest,
    FoundBatches,
    GatewayRegistration,
    StreamPlace,
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.history import WrongHistory
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import MigrationState
from tideline.object_store import (
    ObjectMissing,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    ObjectTruncated,
)

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
    overrides: Mapping[str, ConfigOverride] | None = None,
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
        overrides=dict(overrides or {}),
    )


def varint(value: int) -> bytes:
    """Zigzag, as records have their numbers."""
    left = (value << 1) ^ (value >> 63)
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*found, left))


def record(timestamp_delta: int, offset_delta: int, value: bytes) -> bytes:
    """One record without a key and without headers."""
    rest = b"\0" + varint(timestamp_delta) + varint(offset_delta) + varint(-1)
    rest += varint(len(value)) + value + varint(0)
    return varint(len(rest)) + rest


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
    """A batch of ``records`` without keys; the first has ``payload``, the last ``max_timestamp``
    (ms), the others 1,000."""
    delta = records - 1 if last_offset_delta is None else last_offset_delta
    body = struct.pack(
        ">hiqqqhii", attributes, delta, 1_000, max_timestamp, producer_id, epoch, sequence, records
    )
    for n in range(records):
        later = max_timestamp - 1_000 if n == records - 1 else 0
        body += record(later, n, payload if n == 0 else b"")
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
    refused: set[str] = field(default_factory=set)
    """Keys that nobody may read."""
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
        if key in self.refused:
            raise ObjectStoreRefused(f"get {key}: access denied")
        body = objects[key][start : start + size]
        if len(body) != size and not tiered:  # of segments: so that their reader is tried with it
            raise ObjectTruncated(f"get {key}: {len(body)} bytes came, not {size}")
        return body


class GatewayPlane(PlacedPlane):
    """The control plane in memory, with the worker's hand in it, and faults when a test asks."""

    def __init__(self) -> None:
        self.append_time = 5_000
        super().__init__(lambda: self.append_time)
        self.server = ("7001", 1)
        self.down = False
        """Every call finds Postgres away."""
        self.refused = ""
        """Why every connection is refused, as the pool of a gateway does with another Postgres."""
        self.lose_answers = 0
        """So many commits are done and then look as if Postgres had not answered."""
        self.refusals: dict[int, CommitError] = {}
        """By base sequence: what the commit says of such a batch."""
        self.after_find: Callable[[], object] | None = None
        """Called once, when coordinates were found and before anybody reads there."""
        self.commits: list[tuple[str, list[BatchToCommit]]] = []
        self.quiesce_acks: list[dict[str, Any]] = []
        self.tracking_acks: list[tuple[UUID, str]] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in _CALLS and super().__getattribute__("down"):
            raise ControlPlaneUnavailable("Postgres is down")
        if name in _CALLS and (why := super().__getattribute__("refused")):
            raise WrongHistory(why)
        return found

    def put_row(self, row: TrackedPartition, name: str = TOPIC) -> None:
        super().put_row(row, name)

    def suffix(self, log: TopicIdPartition = LOG) -> Suffix:
        return super().suffix(log)

    def move_prefix(self, log_start: int, log: TopicIdPartition = LOG) -> None:
        super().move_prefix(log_start, log)

    # What an operator does

    def activate(self, incarnation: UUID, gateway_id: int = 1) -> None:
        """The gateway has registered."""
        self.gateways.register(
            GatewayRegistration(
                gateway_id, 1, incarnation, "active", 0, 3_000, "here:1", "0", datetime.now(UTC)
            )
        )

    def fence(self, incarnation: UUID) -> None:
        """The gateway's lease has lapsed."""
        for known in list(self.gateways.registered.values()):
            self.gateways.fence(known.gateway_id, incarnation, known.renewals, "lapsed")

    @property
    def registered_keys(self) -> set[str]:
        return set(self.files.by_key)

    # What a test sees of the calls, and the faults in them

    async def acknowledge_tracking(
        self, gateway_id: int, incarnation: UUID, name: str, round: int | None = None
    ) -> None:
        await super().acknowledge_tracking(gateway_id, incarnation, name, round)
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
        await super().acknowledge_quiesce(
            gateway_id, incarnation, log, generation, highest_acknowledged_offset, read_ceiling
        )
        self.quiesce_acks.append(
            {
                "log": log,
                "generation": generation,
                "highest": highest_acknowledged_offset,
                "ceiling": read_ceiling,
                "incarnation": incarnation,
            }
        )

    async def commit_file(
        self,
        gateway_id: int,
        incarnation: UUID,
        object_key: str,
        size: int,
        batches: Sequence[BatchToCommit],
        stream: StreamPlace | None = None,
    ) -> list[CommittedBatch]:
        await asyncio.sleep(0)
        taken = [batch for batch in batches if batch.base_sequence not in self.refusals]
        appended = iter(
            await super().commit_file(gateway_id, incarnation, object_key, size, taken, stream)
        )
        if batches and object_key not in [key for key, _ in self.commits]:
            self.commits.append((object_key, list(batches)))
        if self.lose_answers > 0:
            self.lose_answers -= 1
            raise ControlPlaneUnavailable("the connection broke during the commit")
        return [
            CommittedBatch(self.refusals[batch.base_sequence])
            if batch.base_sequence in self.refusals
            else next(appended)
            for batch in batches
        ]

    async def find_batches(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        found = await super().find_batches(requests)
        after, self.after_find = self.after_find, None
        if after is not None:
            after()
        return found


_CALLS = {name for name in vars(ControlPlane) if not name.startswith("_")}


def new_incarnation() -> UUID:
    return uuid4()


class HeldSleep:
    """Takes the place of ``asyncio.sleep``: each ends when :attr:`goes_on` is released."""

    def __init__(self) -> None:
        self.waited: list[float] = []
        """In seconds."""
        self.goes_on = asyncio.Semaphore(0)

    async def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)
        await self.goes_on.acquire()


async def until(
    condition: Callable[[], object], what: str = "it", timeout_s: float = SOON_S
) -> None:
    """Let the loop run until ``condition`` holds."""
    await eventually(what, condition, timeout_s)
