"""The parts that serve tracked topics, put together; one set per gateway process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import structlog

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import BatchToCommit, CommitError, CommittedBatch
from tideline.domain.ids import TopicIdPartition
from tideline.domain.request_handling import (
    FAILURE_ERRORS,
    Behaviour,
    Failure,
    Request,
    handling,
)
from tideline.domain.routing import RouteKind
from tideline.gateway.context import ConnectionRegistry
from tideline.gateway.fetch.long_poll import HighWatermarks
from tideline.gateway.fetch.object_reader import ObjectCache
from tideline.gateway.fetch.suffix_reader import SuffixReader
from tideline.gateway.paired_broker import PairedBroker
from tideline.gateway.produce.parking import Gate, ParkingLot, Refusal
from tideline.gateway.produce.wal import Append, ObjectKeys, WalWriter
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.quiesce import Fences, QuiesceKeeper
from tideline.gateway.tracking.snapshot import SnapshotFile
from tideline.gateway.tracking.sync import TrackingSync
from tideline.gateway.tracking.view import Tracking
from tideline.kafka.client import KafkaCluster
from tideline.object_store import ObjectStore
from tideline.settings import GatewaySettings

log = structlog.get_logger()
DRAIN_PATIENCE_S = 60.0
"""Longer than a Kafka client's request timeout: what is still unanswered then has no client."""
UPLOAD_SHARE = 0.7
"""Part of a produce's patience that its upload may use; the rest is for commit and answer."""


@dataclass(slots=True)
class TrackedParts:
    """Everything a handler needs for tracked topics."""

    tracking: Tracking
    lease: Lease
    fences: Fences
    parking: ParkingLot
    writer: WalWriter
    reader: SuffixReader
    watermarks: HighWatermarks
    paired_broker: PairedBroker
    sync: TrackingSync
    quiesce: QuiesceKeeper
    control_plane: ControlPlane
    patience_s: float
    """How long a produce may wait for its outcome in the suffix or behind the ack gate."""

    async def start(self) -> None:
        """Returns when tracked topics are known (see :meth:`TrackingSync.start`)."""
        await self.sync.start()

    async def close(self, patience_s: float = 5.0) -> None:
        """Commit what is under way within ``patience_s`` and end the background work."""
        await self.quiesce.close()
        await self.writer.close(patience_s)
        await self.watermarks.close()
        await self.sync.close()


class _Assembly:
    """Ties the parts' events to each other."""

    def __init__(
        self,
        settings: GatewaySettings,
        control_plane: ControlPlane,
        store: ObjectStore,
        cluster: KafkaCluster,
        connections: ConnectionRegistry,
    ) -> None:
        gateway_id = settings.gateway_id
        self.connections = connections
        host, port = settings.gateway_advertised
        self.lease = Lease(
            control_plane,
            gateway_id=gateway_id,
            broker_id=settings.gateway_broker_id,
            address=f"{host}:{port}",
            version=version("tideline"),
            duration_ms=settings.gateway_lease_ms,
        )
        self.tracking = Tracking(self.lease.valid)
        self.fences = Fences(self.tracking, self.lease)
        self.paired = PairedBroker(lambda: cluster.node(settings.gateway_broker_id))
        self.cache = ObjectCache(settings.cache_max_bytes)
        self.reader = SuffixReader(
            store, control_plane, self.cache, hybrid_read_enabled=settings.hybrid_read_enabled
        )
        self.watermarks = HighWatermarks(control_plane, poll_s=settings.suffix_poll_ms / 1000)
        keys = ObjectKeys(
            control_plane,
            gateway_id=gateway_id,
            incarnation=lambda: self.lease.incarnation,
            clock=time.monotonic,
        )
        patience_s = settings.produce_timeout_ms / 1000
        self.writer = WalWriter(
            store,
            control_plane,
            keys,
            gateway_id=gateway_id,
            incarnation=lambda: self.lease.incarnation,
            max_bytes=settings.wal_max_bytes,
            max_delay_s=settings.wal_max_delay_ms / 1000,
            buffer_max_bytes=settings.wal_buffer_max_bytes,
            parallel_uploads=settings.wal_parallel_uploads,
            upload_patience_s=patience_s * UPLOAD_SHARE,
        )
        self.parking = ParkingLot(
            self.gate,
            max_bytes=settings.gateway_park_max_bytes,
            max_wait_s=settings.gateway_park_max_ms / 1000,
            clock=time.monotonic,
        )
        self.sync = TrackingSync(
            control_plane,
            self.tracking,
            self.lease,
            SnapshotFile(settings.gateway_state_dir, gateway_id),
            drain=self.drain,
        )
        self.quiesce = QuiesceKeeper(
            control_plane,
            self.tracking,
            self.lease,
            self.fences,
            high_watermark=self.paired.high_watermark,
            reload=self.sync.reload_partition,
        )
        self.tracking.subscribe(self.routes_changed)
        self.lease.on_gain(self.lease_gained)
        self.lease.on_fenced = self.fenced
        self.writer.on_room = self.parking.drain_all
        self.writer.on_failed = self.append_failed
        self.writer.on_committed = self.committed
        self.parts = TrackedParts(
            tracking=self.tracking,
            lease=self.lease,
            fences=self.fences,
            parking=self.parking,
            writer=self.writer,
            reader=self.reader,
            watermarks=self.watermarks,
            paired_broker=self.paired,
            sync=self.sync,
            quiesce=self.quiesce,
            control_plane=control_plane,
            patience_s=patience_s,
        )

    def gate(self, at: TopicIdPartition) -> Gate | Refusal:
        """What the partition's produces may do now."""
        route = self.tracking.partition(at.topic_id, at.partition)
        answer = handling(route.kind, Request.PRODUCE)
        if self.tracking.stopped is not None and route.kind is not RouteKind.CLASSIC:
            return Refusal(FAILURE_ERRORS[Failure.HARD])
        match answer.behaviour:
            case Behaviour.PASS:
                return Gate.KAFKA
            case Behaviour.GATE:
                return Gate.KAFKA if self.tracking.lease_valid() else Gate.CLOSED
            case Behaviour.SUFFIX:
                # SQL refuses the commits of an incarnation that it does not know.
                open_ = self.lease.registered and self.writer.has_room
                return Gate.SUFFIX if open_ else Gate.CLOSED
            case Behaviour.REFUSE:
                return Refusal(answer.error)
            case _:
                return Gate.CLOSED

    def routes_changed(self, logs: frozenset[TopicIdPartition]) -> None:
        self.watermarks.wake(logs)
        for at in logs:
            route = self.tracking.partition(at.topic_id, at.partition)
            if route.kind is not RouteKind.SUFFIX:
                self.watermarks.forget([at])
            self.parking.drain(at)

    def lease_gained(self) -> None:
        self.quiesce.start_over()
        self.parking.drain_all()

    async def fenced(self) -> None:
        """Pending answers for tracked topics are dropped with their connections."""
        self.writer.drop_all()
        self.fences.pulse()

    def append_failed(self, append: Append) -> None:
        self.parking.refused(append.log, append.source, append.producer)

    def committed(
        self, key: str, body: bytes, batches: Sequence[tuple[BatchToCommit, CommittedBatch]]
    ) -> None:
        self.cache.put(key, 0, body)
        for placed, outcome in batches:
            if outcome.error is CommitError.NONE:
                self.watermarks.heard(placed.log, outcome.high_watermark)

    async def drain(self) -> None:
        """Everything that was sent to Kafka before now is done; who cannot say so is closed."""
        barriers = {
            asyncio.ensure_future(connection.drain_barrier()): connection
            for connection in self.connections
        }
        if not barriers:
            return
        _, late = await asyncio.wait(barriers, timeout=DRAIN_PATIENCE_S)
        for barrier in late:
            barrier.cancel()
            barriers[barrier].close("its requests did not end before a topic had to be tracked")


def build(
    settings: GatewaySettings,
    control_plane: ControlPlane,
    store: ObjectStore,
    cluster: KafkaCluster,
    connections: ConnectionRegistry,
) -> TrackedParts:
    """Put the parts together. Nothing runs before :meth:`TrackedParts.start`."""
    return _Assembly(settings, control_plane, store, cluster, connections).parts
