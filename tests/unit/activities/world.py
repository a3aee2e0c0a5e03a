"""Fakes of what activities touch. Each does what its real part does, on plain values."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from tests.placed_plane import PlacedPlane
from tideline.control_plane.memory.topics import Topic
from tideline.control_plane.model import (
    BarrierEntry,
    BoundaryToPersist,
    ConfigOverride,
    GatewayRegistration,
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.broker_defaults import BrokerDefaults
from tideline.domain.coverage import OWN_KINDS, SegmentObjects
from tideline.domain.ids import TopicIdPartition
from tideline.domain.messages import PartitionRef, PhaseInput, TopicRef
from tideline.domain.migration import MigrationState, Phase, PhaseStatus
from tideline.domain.options import MigrationOptions
from tideline.domain.producer_tail import ProducerTail
from tideline.domain.remote_log import EpochStart, RemoteSegment, SegmentState
from tideline.domain.topic_configs import ConfigChange
from tideline.domain.transactions import CoordinatorTransaction
from tideline.domain.watched import HostAcl
from tideline.kafka.admin import Deletion, NotDeleted
from tideline.kafka.batches import iter_fetched
from tideline.kafka.errors import KafkaError, KafkaUnavailable, TopicReplaced
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
from tideline.object_store.inventory import KeptSegments

TOPIC_ID = UUID(int=1)
LOG = TopicIdPartition(TOPIC_ID, 0)
REF = PartitionRef("orders", TOPIC_ID.hex, 0)
TOPIC = TopicRef("orders", TOPIC_ID.hex, 1)


def record_batch(offset: int, records: int) -> bytes:
    """As a broker serves it; nothing of its records is looked at."""
    body = struct.pack(">ibIhiqqqhii", 5, 2, 0, 0, records - 1, 0, 0, -1, -1, -1, records)
    return struct.pack(">qi", offset, len(body)) + body


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


class WorkerPlane(PlacedPlane):
    """The control plane in memory with one topic in it, seen and steered as tests of activities
    need it: gateways that acknowledge by themselves, and refusals when a test asks."""

    def __init__(self) -> None:
        super().__init__(lambda: 1_000)
        self.acknowledging: dict[int, int] = {}
        """Gateways that acknowledge a quiesce at once: what each has relayed."""
        self.phases: list[tuple[Phase, PhaseStatus, Mapping[str, Any], str | None]] = []
        self.persisted: list[BoundaryToPersist] = []
        self.tiering: tuple[bool, str] | None = None
        self.refuse: Exception | None = None
        self.refuse_abort: Exception | None = None
        self.attested.attest("the cluster", "the tests", "there is no broker at all")
        row = TrackedPartition(TOPIC_ID, 0, MigrationState.MIGRATING, 0, False)
        self.put(
            TrackedTopic(
                "orders", TOPIC_ID, TrackingKind.MIGRATED, TopicStatus.ACTIVE, "CreateTime", 1_000,
                {0: row},
            )
        )  # fmt: skip

    @property
    def topic(self) -> Topic:
        return self.topics.rows[0]

    @property
    def row(self) -> TrackedPartition:
        return self.partition(LOG).tracked()

    @row.setter
    def row(self, row: TrackedPartition) -> None:
        self.put_row(row, "orders")

    @property
    def status(self) -> TopicStatus:
        return self.topic.status

    @status.setter
    def status(self, status: TopicStatus) -> None:
        self.topic.status = status

    @property
    def overrides(self) -> dict[str, ConfigOverride]:
        return self.topic.overrides

    @property
    def fenced(self) -> list[int]:
        return [n for n, known in self.gateways.registered.items() if known.status == "fenced"]

    def register(self, *gateways: GatewayRegistration) -> None:
        for known in gateways:
            self.gateways.register(known)

    def at_barrier(self, *entries: BarrierEntry) -> None:
        """Gateways, and whether they acknowledge a quiesce."""
        for entry in entries:
            self.register(entry.gateway)
            if entry.acknowledged:
                highest = entry.highest_acknowledged_offset
                self.acknowledging[entry.gateway.gateway_id] = highest

    def tracked_by(self, *entries: BarrierEntry) -> None:
        """Gateways, and whether they have acknowledged the topic."""
        for entry in entries:
            self.register(entry.gateway)
            if entry.acknowledged:
                self.topic.acknowledged[entry.gateway.gateway_id] = entry.gateway.incarnation

    async def close_generation(self, log: TopicIdPartition, generation: int, hold_ms: int) -> None:
        await super().close_generation(log, generation, hold_ms)
        for number, highest in self.acknowledging.items():
            incarnation = self.gateways.registered[number].incarnation
            await self.acknowledge_quiesce(
                number, incarnation, log, generation, highest, highest + 1
            )

    async def record_phase(
        self,
        log: TopicIdPartition,
        generation: int,
        phase: Phase,
        status: PhaseStatus,
        evidence: Mapping[str, Any],
        waiting_reason: str | None = None,
    ) -> None:
        await super().record_phase(log, generation, phase, status, evidence, waiting_reason)
        self.phases.append((phase, status, evidence, waiting_reason))

    async def initialize_diskless_migration(self, boundary: BoundaryToPersist) -> None:
        if self.refuse is not None:
            raise self.refuse
        await super().initialize_diskless_migration(boundary)
        self.persisted.append(boundary)

    async def set_tiering_complete(
        self, log: TopicIdPartition, generation: int, complete: bool, reason: str
    ) -> None:
        await super().set_tiering_complete(log, generation, complete, reason)
        self.tiering = (complete, reason)

    async def abort_migration(self, topic_id: UUID) -> None:
        if self.refuse_abort is not None:
            raise self.refuse_abort
        await super().abort_migration(topic_id)


@dataclass
class FakeTails:
    """A tail without producers, unless a test puts one in."""

    tail: ProducerTail | None = None
    epoch: int | None = None
    """Leader epoch of the last look back."""

    async def look_back(self, topic: str, log: Any, layout: Any, active: Any, **spots: int) -> Any:
        self.epoch = layout.leader_epoch
        return self.tail or ProducerTail(spots["end"], spots["end"])

    async def catch_up(self, topic: str, log: Any, layout: Any, end: int) -> Any:
        return (self.tail or ProducerTail(end, end)) if layout.leader_epoch == self.epoch else None

    def forget(self, log: TopicIdPartition) -> None:
        self.tail = self.epoch = None


@dataclass
class FakeKafka:
    """One partition on three replicas, all of them settled at offset 100."""

    layout: PartitionLayout = field(
        default_factory=lambda: PartitionLayout(0, 1, 5, (1, 2, 3), (1, 2, 3))
    )
    topic_id: UUID = TOPIC_ID
    partitions: int = 1
    """All of them led by the same broker."""
    more_ends: dict[int, dict[int, int]] = field(default_factory=dict)
    """Log ends of further partitions that somebody has added, by number; broker 1 leads them."""
    log_start: int = 0
    ends: dict[int, int] = field(default_factory=lambda: {1: 100, 2: 100, 3: 100})
    local_starts: dict[int, int] = field(default_factory=lambda: {1: 100, 2: 100, 3: 100})
    watermarks: dict[int, int] = field(default_factory=lambda: {1: 100, 2: 100, 3: 100})
    last_stable: int = 100
    highest_tiered: int = 99
    max_timestamp: OffsetAnswer = field(default_factory=lambda: OffsetAnswer(7, 1_700, 5))
    silent: set[int] = field(default_factory=set)
    moving: set[int] = field(default_factory=set)
    """Partitions that somebody reassigns."""
    active: list[ActiveProducer] = field(default_factory=list)
    transactions: list[CoordinatorTransaction] = field(default_factory=list)
    own_configs: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, str] = field(default_factory=dict)
    """Configs that brokers show of the topic where it sets none."""
    tails: FakeTails = field(default_factory=FakeTails)
    done: list[str] = field(default_factory=list)
    fetched: list[tuple[int, int, int]] = field(default_factory=list)
    """Broker, offset and bytes of each Fetch."""
    asked: list[str] = field(default_factory=list)
    """Requests about many topics at once."""
    tail_bytes: bytes = b""
    most_batches: int | None = None
    """In the answer to one Fetch."""
    ignore_writes: bool = False
    lagging: list[dict[str, ConfigEntry]] = field(default_factory=list)
    """What one broker says first, while it follows the controller."""
    views: list[dict[str, ConfigEntry]] | None = None
    """What each broker says, where they differ and stay so."""
    before_end: Any = None
    default_limits: dict[int, dict[str, str | None]] = field(
        default_factory=lambda: {
            node: {
                "max.message.bytes": "1000",
                "message.timestamp.type": "CreateTime",
                "message.timestamp.before.max.ms": str(2**63 - 1),
                "message.timestamp.after.max.ms": "3600000",
            }
            for node in (1, 2, 3)
        }
    )
    """Limits of batches of a topic that sets none, by broker."""
    acls_of_hosts: list[HostAcl] = field(default_factory=list)
    share_groups_on: dict[str, tuple[str, ...]] = field(default_factory=dict)
    access_unknown: bool = False
    """Whether brokers say neither."""
    broker_configs: dict[str, str] = field(
        default_factory=lambda: {
            "remote.log.storage.system.enable": "true",
            "log.local.retention.ms": "-2",
            "log.local.retention.bytes": "-2",
        }
    )

    async def cluster_id(self) -> str:
        return "the cluster"

    async def host_acls(self) -> tuple[HostAcl, ...]:
        if self.access_unknown:
            raise KafkaUnavailable("nobody says which ACLs there are")
        return tuple(self.acls_of_hosts)

    async def share_groups(self) -> dict[str, tuple[str, ...]]:
        if self.access_unknown:
            raise KafkaUnavailable("nobody says which groups there are")
        return self.share_groups_on

    async def nodes(self) -> dict[int, str]:
        return dict.fromkeys(self.layout.replicas, "127.0.0.1")

    async def broker_config(self, node: int, key: str) -> str | None:
        return self.broker_configs.get(key)

    async def topic(
        self, name: str, node: int | None = None, *, topic_id: UUID | None = None
    ) -> TopicLayout | None:
        if topic_id is not None and (name != "orders" or topic_id != self.topic_id):
            raise TopicReplaced(f"topic {name!r} has topic id {self.topic_id}, not {topic_id}")
        if name != "orders":
            return None
        numbers = (*range(self.partitions), *self.more_ends)
        return TopicLayout(name, self.topic_id, False, dict.fromkeys(numbers, self.layout))

    async def partition_count(self, topic_id: UUID) -> int:
        return self.partitions + len(self.more_ends)

    async def partition(
        self, topic: str, partition: int, node: int | None = None, *, topic_id: UUID | None = None
    ) -> Any:
        if topic_id is not None and topic_id != self.topic_id:
            raise TopicReplaced(f"topic {topic!r} has topic id {self.topic_id}, not {topic_id}")
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
                value = self.more_ends.get(partition, self.ends)[node]
            case OffsetSpec.LATEST:
                value = self.last_stable if read_committed else self.watermarks[node]
            case _:
                return OffsetAnswer(3, spec, 5)
        return OffsetAnswer(value, -1, self.layout.leader_epoch)

    async def offsets(
        self, topic: str, partitions: Any, spec: int, *, node: int, replica_id: int = DEBUG_CONSUMER
    ) -> dict[int, OffsetAnswer]:
        self.asked.append(f"{OffsetSpec(spec).name} of broker {node}")
        return {
            n: await self.offset(topic, n, spec, node=node, replica_id=replica_id)
            for n in partitions
        }

    async def topics(self, names: Any) -> dict[str, TopicLayout | None]:
        self.asked.append("topics")
        return {name: await self.topic(name) for name in names}

    async def offsets_of(
        self,
        wanted: Any,
        spec: int,
        *,
        node: int,
        leader_epochs: Any = None,
        replica_id: int = DEBUG_CONSUMER,
    ) -> dict[tuple[str, int], OffsetAnswer]:
        self.asked.append(f"offsets of broker {node}")
        return {
            (topic, n): await self.offset(topic, n, spec, node=node, replica_id=replica_id)
            for topic, partitions in wanted.items()
            for n in partitions
        }

    async def configs_of(self, topics: Any, keys: Any) -> dict[str, list[dict[str, ConfigEntry]]]:
        self.asked.append("configs")
        return {topic: await self.configs_by_broker(topic) for topic in topics}

    async def topic_defaults(self, keys: Any) -> BrokerDefaults:
        self.asked.append("defaults")
        return BrokerDefaults({node: dict(found) for node, found in self.default_limits.items()})

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

    async def transactional_ids(self, producers: frozenset[int]) -> tuple[str, ...]:
        known = ((t.transactional_id, t.producer_id) for t in self.transactions)
        return tuple(name for name, producer_id in known if producer_id in producers)

    async def reassigning(self, topic: str, partitions: Any) -> frozenset[int]:
        return frozenset(partitions) & self.moving

    async def configs(self, topic: str) -> dict[str, ConfigEntry]:
        inherited = {key: ConfigEntry(value, False) for key, value in self.defaults.items()}
        own = {key: ConfigEntry(value, True) for key, value in self.own_configs.items()}
        return {"remote.storage.enable": ConfigEntry("true", True), **inherited, **own}

    async def configs_by_broker(self, topic: str) -> list[dict[str, ConfigEntry]]:
        if self.views is not None:
            return self.views
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

    async def delete(self, wanted: Collection[Deletion]) -> dict[Any, int | NotDeleted]:
        for deletion in wanted:
            self.done.append(f"delete before {deletion.before_offset}")
            self.log_start = deletion.before_offset
        return {deletion.name: deletion.before_offset for deletion in wanted}

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
        data = b""
        if offset >= 100 and self.watermarks[node] > 100:
            # From the batch that holds the offset on, as brokers do.
            past = (b.end for b in iter_fetched(self.tail_bytes) if b.last_offset < offset)
            data = self.tail_bytes[max(past, default=0) if offset > 100 else 0 :]
            if self.most_batches is not None:
                held = list(iter_fetched(data))[: self.most_batches]
                data = data[: held[-1].end] if held else b""
        self.fetched.append((node, offset, len(data)))
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
    refreshed: int = 0
    listed: list[int] = field(default_factory=list)
    """Partitions whose objects were listed."""
    once: dict[int, int] = field(default_factory=dict)
    """By leader epoch what was ever in remote storage."""
    exported: dict[str, bytes] = field(default_factory=dict)
    copied: dict[UUID, SegmentObjects] = field(default_factory=dict)

    async def segments(self, log: TopicIdPartition) -> tuple[RemoteSegment, ...]:
        return tuple(self.found)

    async def refresh(self, topic_id: UUID) -> None:
        self.refreshed += 1

    def known(self, log: TopicIdPartition) -> tuple[RemoteSegment, ...]:
        return tuple(segment for segment in self.found if segment.log == log)

    async def finished_once(self, log: TopicIdPartition) -> Mapping[int, int]:
        return self.once

    async def topic_segments(self, topic_id: UUID) -> tuple[RemoteSegment, ...]:
        return tuple(self.found)

    async def objects(self, topic: str, log: TopicIdPartition) -> dict[UUID, SegmentObjects]:
        self.listed.append(log.partition)
        return self.listing

    async def copies(self, topic: str, log: TopicIdPartition) -> dict[UUID, SegmentObjects]:
        return self.copied

    async def keys(self, topic: str, log: TopicIdPartition) -> list[str]:
        return [
            f"{segment_id}.{kind}"
            for segment_id, found in self.listing.items()
            for kind in ("log", *found.kinds)
        ]

    async def delete(self, keys: Collection[str]) -> None:
        self.listing = {
            segment_id: found
            for segment_id, found in self.listing.items()
            if f"{segment_id}.log" not in keys
        }

    async def keep(
        self, topic: str, log: TopicIdPartition, segments: Collection[UUID]
    ) -> KeptSegments:
        fresh = {s: self.listing[s] for s in segments if s not in self.copied}
        self.copied |= fresh
        return KeptSegments("s3://diskless/copies/", len(segments), 6, 10, 6 * len(fresh))

    async def export(self, key: str, data: bytes) -> str:
        self.exported[key] = data
        return f"s3://diskless/{key}"

    def forget(self, topic_id: UUID) -> None:
        self.found = []


@dataclass
class World:
    services: WorkerServices
    plane: WorkerPlane
    kafka: FakeKafka
    store: FakeStore
    topic_id: UUID

    def given(self, **changes: Any) -> PhaseInput:
        """Input of a phase; with a generation, and no B0 yet, that one is closed."""
        generation = changes.get("generation", 0)
        if generation > self.plane.row.generation:
            is_closed = self.plane.row.boundary < 0
            self.plane.row = replace(self.plane.row, generation=generation, quiesced=is_closed)
        options = MigrationOptions(**({"quiesce_hold_ms": 800} | changes.pop("options", {})))
        return PhaseInput(REF, options, **changes)

    async def recorded(self, phase: Phase) -> tuple[PhaseStatus, dict[str, Any], str | None]:
        """What stands in Postgres about the phase by now."""
        await self.services.evidence.flush()
        return next((s, e, r) for p, s, e, r in reversed(self.plane.phases) if p is phase)
