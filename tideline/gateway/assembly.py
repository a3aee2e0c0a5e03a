"""The gateway put together: every part is given, by its constructor, parts that stand before it.

Transport knows the routing table only; handlers know the parts that they name; parts that have
news keep :class:`~tideline.gateway.listeners.Listeners` to which later parts add themselves.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from uuid import UUID

from tideline.control_plane import ControlPlane
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.domain.history import HistoryWatch
from tideline.domain.stand_in import as_registered
from tideline.gateway.admin.configs import ConfigsHandler
from tideline.gateway.admin.create_topics import CreateTopicsHandler
from tideline.gateway.admin.delete_records import DeleteRecordsHandler
from tideline.gateway.admin.eligibility import Eligibility
from tideline.gateway.admin.held_configs import HeldConfigs
from tideline.gateway.admin.metadata import MetadataHandler
from tideline.gateway.admin.placing import ReplicaPlacing
from tideline.gateway.admin.producers import ProducersHandler
from tideline.gateway.admin.share_groups import ShareGroupsHandler
from tideline.gateway.admin.tellings import Tellings
from tideline.gateway.admin.topics import TopicsHandler
from tideline.gateway.admin.txn_markers import TxnMarkersHandler
from tideline.gateway.context import ConnectionRegistry, Rules
from tideline.gateway.fetch.from_suffix import HighWatermarks
from tideline.gateway.fetch.handler import FetchHandler
from tideline.gateway.fetch.object_reader import ObjectCache
from tideline.gateway.fetch.suffix_reader import SuffixReader
from tideline.gateway.leaders import LeaderNaming
from tideline.gateway.metrics import note_settings
from tideline.gateway.offsets.leader_epoch import LeaderEpochHandler
from tideline.gateway.offsets.list_offsets import ListOffsetsHandler
from tideline.gateway.paired_broker import PairedBroker
from tideline.gateway.prefix_leader import PrefixLeaders
from tideline.gateway.produce.commit_stream import CommitStream
from tideline.gateway.produce.examination import Examiner
from tideline.gateway.produce.handler import ProduceHandler
from tideline.gateway.produce.object_keys import ObjectKeys
from tideline.gateway.produce.parking import ParkingLot, ProduceAdmission
from tideline.gateway.produce.wal import RefusedProduces, WalWriter
from tideline.gateway.quotas import ClientQuotas
from tideline.gateway.request_time import metered
from tideline.gateway.rights import TopicRights
from tideline.gateway.room import Room
from tideline.gateway.tracking.confirm import Confirmations
from tideline.gateway.tracking.identity import IdentityWatch
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.peers import Peers
from tideline.gateway.tracking.postgres_watch import PostgresWatch
from tideline.gateway.tracking.quiesce import Fences, QuiesceKeeper
from tideline.gateway.tracking.seen import SeenFile
from tideline.gateway.tracking.snapshot import SnapshotFile
from tideline.gateway.tracking.state_directory import StateDirectory
from tideline.gateway.tracking.sync import TrackingSync
from tideline.gateway.tracking.view import TrackingView
from tideline.gateway.transactions import OpenTransactions, TransactionsHandler
from tideline.gateway.unpacking import Unpacking
from tideline.kafka.client import KafkaCluster
from tideline.kafka.topic_identity import TopicIdentity
from tideline.object_store.async_store import ObjectStore
from tideline.settings import GatewaySettings

UPLOAD_SHARE = 0.7
"""Part of a produce's patience that its upload may use; the rest is for commit and answer."""
WAL_PATIENCE_S = 5.0
"""How long a stop waits for commits that are under way."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What serves tracked topics; one set per process, shared by its handlers."""

    room: Room
    lease: Lease
    tracking: TrackingView
    confirmations: Confirmations
    fences: Fences
    sync: TrackingSync
    paired_broker: PairedBroker
    quiesce: QuiesceKeeper
    watermarks: HighWatermarks
    reader: SuffixReader
    refused: RefusedProduces
    writer: WalWriter
    parking: ParkingLot
    tellings: Tellings
    identity: IdentityWatch
    unpacking: Unpacking
    examiner: Examiner
    leaders: LeaderNaming
    rights: TopicRights
    quotas: ClientQuotas

    async def start(self) -> None:
        """Returns when tracked topics are known (see :meth:`TrackingSync.start`)."""
        await self.sync.start()
        self.identity.start()
        self.leaders.start()
        self.quotas.start()

    async def close(self, patience_s: float = WAL_PATIENCE_S, *, served_out: bool = True) -> None:
        """Commit what is under way within ``patience_s``, and release the lease at once; until that
        barriers are answered. Then end the background work. Unless ``served_out``, that every
        connection has ended, and where a commit may go on, something may be appended still: then
        the lease lapses by itself."""
        async with AsyncExitStack() as ending:
            for part in (
                self.confirmations,
                self.quotas,
                self.leaders,
                self.identity,
                self.tellings,
                self.watermarks,
                self.sync,
                self.quiesce,
            ):
                ending.push_async_callback(part.close)
            self.unpacking.close()
            await self.writer.close(patience_s)
            if served_out:
                await self.lease.release()


def build_parts(
    settings: GatewaySettings,
    control_plane: ControlPlane,
    store: ObjectStore,
    cluster: KafkaCluster,
    connections: ConnectionRegistry,
    room: Room | None = None,
    directory: StateDirectory | None = None,
    history: HistoryWatch | None = None,
    establish: Callable[[], Awaitable[None]] | None = None,
) -> Parts:
    """Nothing runs before :meth:`Parts.start`. ``room`` is the process's, which its server shares;
    without one the settings' bound holds for these parts alone. ``history`` and ``establish``: see
    :class:`~tideline.gateway.tracking.postgres_watch.PostgresWatch`."""
    note_settings(settings)
    room = room or Room(settings.gateway_memory_max_bytes)
    history = history or HistoryWatch()
    lease = _lease(settings, control_plane, directory)
    tracking = TrackingView(lease.valid)
    confirmations = Confirmations(control_plane, lease)
    fences = Fences(tracking, lease, confirmations)
    sync = TrackingSync(
        control_plane,
        tracking,
        lease,
        SnapshotFile(settings.gateway_state_dir, settings.gateway_id),
        drain=connections.drain,
        postgres=PostgresWatch(
            control_plane,
            tracking,
            lease,
            history=history,
            file=SeenFile(settings.gateway_state_dir),
            establish=establish,
        ),
    )
    paired_broker = PairedBroker(cluster, settings.gateway_broker_id, lambda: connections.brokers)
    quiesce = QuiesceKeeper(
        control_plane,
        tracking,
        lease,
        fences,
        high_watermark=paired_broker.high_watermark,
        reload=sync.reload_partition,
        drained=sync.until_drained,
    )
    watermarks = HighWatermarks(
        control_plane,
        tracking,
        poll_s=settings.suffix_poll_ms / 1000,
        quiet_s=settings.suffix_quiet_poll_ms / 1000,
    )
    sync.heard.add(watermarks.hear)
    cache = ObjectCache(settings.cache_max_bytes, room)
    unpacking = Unpacking()
    reader = SuffixReader(
        store,
        control_plane,
        cache,
        unpacking,
        hybrid_read_enabled=settings.hybrid_read_enabled,
    )
    # An answer waits for every partition of its request, and for the answers before it.
    refused = RefusedProduces(time.monotonic, settings.produce_timeout_ms / 1000)
    writer = WalWriter(
        store,
        control_plane,
        ObjectKeys(control_plane, lease, prefix=settings.diskless_prefix),
        lease,
        cache,
        watermarks,
        refused,
        CommitStream(lease, partial(_history_id, history)),
        max_bytes=settings.wal_max_bytes,
        max_delay_s=settings.wal_max_delay_ms / 1000,
        buffer_max_bytes=settings.wal_buffer_max_bytes,
        parallel_uploads=settings.wal_parallel_uploads,
        upload_patience_s=settings.produce_timeout_ms / 1000 * UPLOAD_SHARE,
        room=room,
    )
    parking = ParkingLot(
        ProduceAdmission(tracking, lease, writer),
        refused,
        max_bytes=settings.gateway_park_max_bytes,
        max_wait_s=settings.gateway_park_max_ms / 1000,
        clock=time.monotonic,
        room=room,
    )
    return Parts(
        room=room,
        lease=lease,
        tracking=tracking,
        confirmations=confirmations,
        fences=fences,
        sync=sync,
        paired_broker=paired_broker,
        quiesce=quiesce,
        watermarks=watermarks,
        reader=reader,
        refused=refused,
        writer=writer,
        parking=parking,
        tellings=Tellings(),
        identity=IdentityWatch(tracking, TopicIdentity(cluster)),
        unpacking=unpacking,
        examiner=Examiner(unpacking),
        leaders=_leaders(settings, control_plane, tracking, cluster, lease),
        rights=TopicRights(settings.gateway_rights_ms / 1000),
        quotas=ClientQuotas(cluster, settings.gateway_broker_id),
    )


def _history_id(history: HistoryWatch) -> UUID:
    if history.seen is None:
        raise ControlPlaneUnavailable("no Postgres was seen yet, so no history can be named")
    return history.seen.history_id


def _leaders(
    settings: GatewaySettings,
    control_plane: ControlPlane,
    tracking: TrackingView,
    cluster: KafkaCluster,
    lease: Lease,
) -> LeaderNaming:
    peers = Peers(
        control_plane,
        tracking,
        node=settings.gateway_broker_id,
        rack=settings.gateway_rack,
        addressed=settings.gateway_peers,
        poll_s=settings.gateway_lease_ms / 3000,
        always=bool(settings.gateway_stand_in),
        serving=lambda: lease.serving,
        renews=lease.valid,
    )
    lease.told.add(peers.told)
    lease.missed.add(peers.untold)
    return LeaderNaming(
        tracking,
        peers,
        cluster,
        node=settings.gateway_broker_id,
        enabled=settings.diskless_transformer_enabled,
    )


def _lease(
    settings: GatewaySettings, control_plane: ControlPlane, directory: StateDirectory | None
) -> Lease:
    host, port = settings.gateway_advertised
    return Lease(
        control_plane,
        gateway_id=settings.gateway_id,
        broker_id=settings.gateway_broker_id,
        address=f"{host}:{port}",
        version=version("tideline"),
        duration_ms=settings.gateway_lease_ms,
        rack=settings.gateway_rack,
        directory=directory,
        stand_ins=as_registered(settings.stands_in_at),
    )


def placing_of(settings: GatewaySettings, cluster: KafkaCluster) -> ReplicaPlacing | None:
    """Who places the replicas of diskless topics, beside gateways; ``None``: Kafka does."""
    if not settings.diskless_managed_rf_enabled:
        return None
    return ReplicaPlacing(cluster, frozenset(settings.gateway_peers))


def build_rules(
    parts: Parts,
    control_plane: ControlPlane,
    cluster: KafkaCluster,
    transactions: OpenTransactions,
    *,
    patience_s: float,
    placing: ReplicaPlacing | None = None,
    trigger: bool = True,
) -> Rules:
    """Every API that the gateway looks into, and its handler. ``patience_s``: how long a produce
    may wait for its outcome. ``placing``: who places the replicas of diskless topics; ``None``:
    Kafka does. ``trigger``: whether clients may ask for migrations."""
    tracking, tellings, rights = parts.tracking, parts.tellings, parts.rights
    leaders = PrefixLeaders(cluster)
    produce = ProduceHandler(
        tracking,
        parts.fences,
        parts.parking,
        parts.refused,
        parts.writer,
        transactions,
        parts.examiner,
        parts.leaders,
        patience_s,
        parts.rights,
        parts.quotas,
    )
    fetch = FetchHandler(
        tracking,
        parts.fences,
        parts.reader,
        parts.watermarks,
        parts.paired_broker,
        parts.leaders,
        parts.room,
        parts.rights,
        parts.quotas,
    )
    rules = {
        **produce.rules(),
        **fetch.rules(),
        **ListOffsetsHandler(
            tracking, parts.fences, parts.reader, control_plane, leaders, rights
        ).rules(),
        **LeaderEpochHandler(tracking, parts.fences, control_plane, leaders, rights).rules(),
        **TransactionsHandler(tracking).rules(),
        **MetadataHandler(tracking, parts.leaders).rules(),
        **CreateTopicsHandler(tracking, control_plane, cluster, tellings, placing).rules(),
        **TopicsHandler(tracking, control_plane, cluster, tellings, placing, rights).rules(),
        **ConfigsHandler(
            tracking,
            control_plane,
            HeldConfigs(control_plane, cluster, tellings),
            Eligibility(cluster, control_plane),
            trigger,
        ).rules(),
        **DeleteRecordsHandler(tracking, parts.fences, control_plane, leaders, rights).rules(),
        **ShareGroupsHandler(tracking, rights).rules(),
        **ProducersHandler(tracking, parts.fences, control_plane).rules(),
        **TxnMarkersHandler(tracking).rules(),
    }
    return metered(rules, parts.quotas)
