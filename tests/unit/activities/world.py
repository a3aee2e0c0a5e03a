"""Fakes of what activities touch. Each does what its real part does, on plain values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from tideline.control_plane.errors import AbortRefused
from tideline.control_plane.model import (
    BarrierEntry,
    BoundaryToPersist,
    ConfigOverride,
    GatewayRegistration,
    PartitionMigrationStatus,
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.coverage import OWN_KINDS, SegmentObjects
from tideline.domain.ids import TopicIdPartition
from tideline.domain.messages import PartitionRef, PhaseInput, TopicRef
from tideline.domain.migration import MigrationState, Phase, PhaseStatus
from tideline.domain.options import MigrationOptions
from tideline.domain.producer_tail import ProducerTail
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState
from tideline.domain.topic_configs import ConfigChange
from tideline.domain.transactions import CoordinatorTransaction
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.log_reader import FetchedPiece
from tideline.kafka.observer import (
    CONSUMER,
    DEBUG_CONSUMER,
    LeaderMoved,
    LogEnd,
    OffsetAnswer,
    OffsetSpec,
    PartitionLayout,
    TopicLayout,
)
from tideline.kafka.topic_observer import ActiveProducer, ConfigEntry
from tideline.migration.connections import WorkerServices

TOPIC_ID = UUID(int=1)
LOG = TopicIdPartition(TOPIC_ID, 0)
REF = PartitionRef("orders", TOPIC_ID.hex, 0)
TOPIC = TopicRef("orders", TOPIC_ID.hex, 1)


def gateway(number: int, renewals: int = 1, status: str = "active") -> GatewayRegistration:
    return GatewayRegistration(
        gateway_id=number,
        broker_id=number,
        incarnation=UUID(int=100 + number),
        status=status,
        renewals=renewals,
        lease_ms=20,
        address=f"127.0.0.1:{19190 + number}",
        version="0.1.0",
        registered_at=datetime.now(UTC),
    )


@dataclass
class FakePlane:
    """Postgres as far as activities use it."""

    row: TrackedPartition = field(
        default_factory=lambda: TrackedPartition(TOPIC_ID, 0, MigrationState.MIGRATING, 0, False)
    )
    status: TopicStatus = TopicStatus.ACTIVE
    overrides: dict[str, ConfigOverride] = field(default_factory=dict)
    barrier: list[BarrierEntry] = field(default_factory=list)
    tracking: list[BarrierEntry] = field(default_factory=list)
    gateways: list[GatewayRegistration] = field(default_factory=list)
    fenced: list[int] = field(default_factory=list)
    phases: list[tuple[Phase, PhaseStatus, dict[str, Any], str | None]] = field(
        default_factory=list
    )
    persisted: list[BoundaryToPersist] = field(default_factory=list)
    reset: bool = False
    tiering: tuple[bool, str] | None = None
    refuse: Exception | None = None
    refuse_abort: Exception | None = None

    async def tracked_partition(self, topic_id: UUID, partition: int) -> TrackedPartition:
        return self.row

    async def tracked_topic(self, name: str) -> TrackedTopic:
        return TrackedTopic(
            name=name,
            topic_id=TOPIC_ID,
            kind=TrackingKind.MIGRATED,
            status=self.status,
            timestamp_type="CreateTime",
            max_message_bytes=1_000,
            partitions={0: self.row},
            overrides=dict(self.overrides),
        )

    async def next_generation(self, log: TopicIdPartition) -> int:
        self.row = replace(self.row, generation=self.row.generation + 1)
        return self.row.generation

    async def close_generation(self, log: TopicIdPartition, generation: int, hold: int) -> None:
        self.row = replace(self.row, quiesced=True)

    async def reopen_generation(self, log: TopicIdPartition, generation: int) -> bool:
        self.row = replace(self.row, quiesced=False)
        return True

    async def quiesce_barrier(self, log: TopicIdPartition, generation: int) -> list[BarrierEntry]:
        return [e for e in self.barrier if e.gateway.gateway_id not in self.fenced]

    async def tracking_barrier(self, name: str) -> list[BarrierEntry]:
        return self.tracking

    async def activate_topic(self, name: str) -> None:
        self.status = TopicStatus.ACTIVE

    async def fence_gateway(self, number: int, incarnation: UUID, reason: str) -> bool:
        self.fenced.append(number)
        return True

    async def list_gateways(self) -> list[GatewayRegistration]:
        return self.gateways

    async def record_phase(
        self,
        log: TopicIdPartition,
        generation: int,
        phase: Phase,
        status: PhaseStatus,
        evidence: dict[str, Any],
        reason: str | None = None,
    ) -> None:
        self.phases.append((phase, status, evidence, reason))

    async def migration_status(self, topic: str) -> list[PartitionMigrationStatus]:
        return []

    async def initialize_diskless_migration(self, request: BoundaryToPersist) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.persisted.append(request)
        self.row = replace(self.row, boundary=request.boundary, boundary_epoch=request.leader_epoch)

    async def reset_boundary(self, log: TopicIdPartition, generation: int) -> None:
        self.reset = True

    async def advance_prefix_start(self, log: TopicIdPartition, log_start: int) -> None:
        if self.row.state is MigrationState.HYBRID and log_start >= self.row.boundary:
            self.row = replace(self.row, state=MigrationState.DISKLESS_ONLY)

    async def set_tiering_complete(
        self, log: TopicIdPartition, generation: int, complete: bool, reason: str
    ) -> None:
        self.tiering = (complete, reason)

    async def abort_migration(self, topic_id: UUID) -> None:
        if self.refuse_abort is not None:
            raise self.refuse_abort
        if self.row.boundary >= 0:
            raise AbortRefused("partition 0 has its boundary")
        self.status = TopicStatus.ABORTED

    async def override_config(
        self, topic_id: UUID, key: str, imposed: str | None, user: str | None
    ) -> None:
        known = self.overrides.get(key)
        self.overrides[key] = ConfigOverride(key, imposed, known.user_value if known else user)

    async def release_config(self, topic_id: UUID, key: str) -> None:
        del self.overrides[key]


@dataclass
class FakeTails:
    """A tail without producers, unless a test puts one in."""

    tail: ProducerTail | None = None

    async def scan(self, topic: str, log: Any, layout: Any, active: Any, **spots: int) -> Any:
        return self.tail or ProducerTail(spots["end"], spots["end"])

    def forget(self, log: TopicIdPartition) -> None:
        self.tail = None


@dataclass
class FakeKafka:
    """One partition on three replicas, all of them settled at offset 100."""

    layout: PartitionLayout = field(
        default_factory=lambda: PartitionLayout(0, 1, 5, (1, 2, 3), (1, 2, 3))
    )
    log_start: int = 0
    ends: dict[int, int] = field(default_factory=lambda: {1: 100, 2: 100, 3: 100})
    local_starts: dict[int, int] = field(default_factory=lambda: {1: 100, 2: 100, 3: 100})
    watermarks: dict[int, int] = field(default_factory=lambda: {1: 100, 2: 100, 3: 100})
    last_stable: int = 100
    highest_tiered: int = 99
    max_timestamp: OffsetAnswer = field(default_factory=lambda: OffsetAnswer(7, 1_700, 5))
    silent: set[int] = field(default_factory=set)
    active: list[ActiveProducer] = field(default_factory=list)
    transactions: list[CoordinatorTransaction] = field(default_factory=list)
    own_configs: dict[str, str] = field(default_factory=dict)
    tails: FakeTails = field(default_factory=FakeTails)
    done: list[str] = field(default_factory=list)
    tail_bytes: bytes = b""
    ignore_writes: bool = False
    lagging: list[dict[str, ConfigEntry]] = field(default_factory=list)
    """What one broker says first, while it follows the controller."""
    before_end: Any = None

    async def topic(self, name: str, node: int | None = None) -> TopicLayout | None:
        if name != "orders":
            return None
        return TopicLayout(name, TOPIC_ID, False, {0: self.layout})

    async def partition(self, topic: str, partition: int, node: int | None = None) -> Any:
        return self.layout

    async def offset(
        self,
        topic: str,
        partition: int,
        spec: int,
        *,
        node: int,
        leader_epoch: int = -1,
        replica_id: int = CONSUMER,
        read_committed: bool = False,
    ) -> OffsetAnswer:
        if node in self.silent:
            raise KafkaUnavailable(f"broker {node} is away")
        if leader_epoch not in (-1, self.layout.leader_epoch):
            raise LeaderMoved(ErrorCode.fenced_leader_epoch, "offset")
        match spec:
            case OffsetSpec.EARLIEST:
                value = self.log_start
            case OffsetSpec.EARLIEST_LOCAL:
                value = self.local_starts[node]
            case OffsetSpec.MAX_TIMESTAMP:
                return self.max_timestamp
            case OffsetSpec.LATEST_TIERED:
                value = self.highest_tiered
            case OffsetSpec.LATEST if replica_id == DEBUG_CONSUMER:
                value = self.ends[node]
            case OffsetSpec.LATEST:
                value = self.last_stable if read_committed else self.watermarks[node]
            case _:
                return OffsetAnswer(3, spec, 5)
        return OffsetAnswer(value, -1, self.layout.leader_epoch)

    async def log_end(self, topic: str, layout: PartitionLayout) -> LogEnd:
        if self.before_end is not None:
            self.before_end(self)
        if layout.leader_epoch != self.layout.leader_epoch:
            raise LeaderMoved(ErrorCode.fenced_leader_epoch, "log end")
        if layout.leader in self.silent:
            raise KafkaUnavailable(f"broker {layout.leader} is away")
        ends = {n: self.ends[n] for n in layout.in_sync if n not in self.silent}
        problems = {n: "away" for n in layout.in_sync if n in self.silent}
        return LogEnd(layout, self.last_stable, self.watermarks[layout.leader], ends, problems)

    async def on_replicas(
        self, topic: str, layout: PartitionLayout, spec: OffsetSpec
    ) -> dict[int, int | str]:
        return {
            n: "away"
            if n in self.silent
            else (await self.offset(topic, 0, spec, node=n, replica_id=DEBUG_CONSUMER)).offset
            for n in layout.replicas
        }

    async def lineage(self, topic: str, layout: PartitionLayout, start: int) -> Any:
        return (EpochStart(5, 0),)

    async def producers(self, topic: str, partition: int, node: int) -> list[ActiveProducer]:
        return list(self.active)

    async def open_transactions(self) -> list[CoordinatorTransaction]:
        return list(self.transactions)

    async def reassigning(self, topic: str, partitions: Any) -> frozenset[int]:
        return frozenset()

    async def configs(self, topic: str) -> dict[str, ConfigEntry]:
        own = {key: ConfigEntry(value, True) for key, value in self.own_configs.items()}
        return {"remote.storage.enable": ConfigEntry("true", True), **own}

    async def configs_by_broker(self, topic: str) -> list[dict[str, ConfigEntry]]:
        view = await self.configs(topic)
        return [self.lagging.pop(0) if self.lagging else view, view]

    async def alter_configs(self, topic: str, changes: tuple[ConfigChange, ...]) -> None:
        self.done.append("alter " + ", ".join(f"{c.key}={c.value}" for c in changes))
        if self.ignore_writes:
            return
        for change in changes:
            if change.value is None:
                self.own_configs.pop(change.key, None)
            else:
                self.own_configs[change.key] = change.value

    async def fence_transaction(self, transactional_id: str) -> bool:
        self.done.append(f"fence {transactional_id}")
        self.transactions = [t for t in self.transactions if t.transactional_id != transactional_id]
        self.active = []
        return True

    async def write_abort_marker(self, partition: Any, leader: int, hanging: Any) -> None:
        self.done.append(f"marker {hanging.producer_id}")
        self.active = []

    async def reorder_replicas(self, partition: Any, replicas: list[int]) -> None:
        self.layout = replace(self.layout, replicas=tuple(replicas))

    async def elect_preferred(self, partition: Any) -> None:
        leader = self.layout.replicas[0]
        self.done.append(f"elect {leader}")
        self.layout = replace(self.layout, leader=leader, leader_epoch=self.layout.leader_epoch + 1)
        end = self.ends[leader]
        self.ends = dict.fromkeys(self.ends, end)
        self.watermarks = dict.fromkeys(self.watermarks, end)

    async def fetch(
        self, topic: str, partition: int, offset: int, *, node: int, **bounds: int
    ) -> FetchedPiece:
        if offset > self.watermarks[node]:
            raise KafkaError(ErrorCode.offset_not_available, "fetch")
        data = self.tail_bytes if offset == 100 and self.watermarks[node] > 100 else b""
        return FetchedPiece(data, self.watermarks[node], self.log_start)


@dataclass
class FakeStore:
    """Remote log metadata and the bucket: one segment that covers [0, 100)."""

    found: list[RemoteSegment] = field(
        default_factory=lambda: [
            RemoteSegment(
                log=LOG,
                topic="orders",
                segment_id=UUID(int=9),
                start_offset=0,
                end_offset=99,
                size_bytes=10,
                leader_epochs=(EpochStart(5, 0),),
                state=SegmentState.COPY_SEGMENT_FINISHED,
                max_timestamp=1_500,
                txn_index_empty=True,
            )
        ]
    )
    listing: dict[UUID, SegmentObjects] = field(
        default_factory=lambda: {UUID(int=9): SegmentObjects(10, OWN_KINDS)}
    )
    exported: dict[str, bytes] = field(default_factory=dict)

    async def segments(self, log: TopicIdPartition) -> tuple[RemoteSegment, ...]:
        return tuple(self.found)

    async def objects(self, topic: str, log: TopicIdPartition) -> dict[UUID, SegmentObjects]:
        return self.listing

    async def export(self, key: str, data: bytes) -> str:
        self.exported[key] = data
        return f"s3://diskless/{key}"

    def forget(self, topic_id: UUID) -> None:
        self.found = []


@dataclass
class World:
    services: WorkerServices
    plane: FakePlane
    kafka: FakeKafka
    store: FakeStore
    topic_id: UUID

    def given(self, **changes: Any) -> PhaseInput:
        options = MigrationOptions(quiesce_hold_ms=800, **changes.pop("options", {}))
        return PhaseInput(REF, options, **changes)

    async def recorded(self, phase: Phase) -> tuple[PhaseStatus, dict[str, Any], str | None]:
        """What stands in Postgres about the phase by now."""
        await self.services.evidence.flush()
        return next((s, e, r) for p, s, e, r in reversed(self.plane.phases) if p is phase)
