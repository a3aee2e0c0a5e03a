"""The control plane in memory: the same promises as Postgres', for tests and simulations.

Every method is one step of an event loop, so that it is a transaction: it refuses before it
changes anything. Time is what the clock that is passed in says, and nothing is random.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import UUID

from tideline.control_plane.errors import (
    InvalidInput,
    RoundOver,
    TimelineUnsettled,
    TopicDeleted,
    TrackingIncomplete,
    UnknownLog,
    UnknownTopic,
)
from tideline.control_plane.memory.attestations import Attestations
from tideline.control_plane.memory.durations import phase_durations
from tideline.control_plane.memory.files import FileStatus, WalFiles, assert_batches
from tideline.control_plane.memory.findings import Findings
from tideline.control_plane.memory.gateways import Gateways
from tideline.control_plane.memory.history import History
from tideline.control_plane.memory.operators import Operators
from tideline.control_plane.memory.partition import Partition
from tideline.control_plane.memory.places import Places
from tideline.control_plane.memory.progress import Progress, number_since
from tideline.control_plane.memory.reports import GATEWAY, MAX_PARTITIONS, MOST_ASKED, Reports
from tideline.control_plane.memory.suffix import FIND_LIMIT_IN_ALL
from tideline.control_plane.memory.topics import Topics
from tideline.control_plane.memory.verdicts import Verdicts
from tideline.control_plane.model import (
    AbortedTopic,
    BarrierEntry,
    BatchToCommit,
    BoundaryToPersist,
    ClusterAttestation,
    CommitDurability,
    CommitError,
    CommittedBatch,
    ConfigOverride,
    FindBatchesRequest,
    FoundBatches,
    GatewayRegistration,
    ListOffsetsKind,
    LiveTopic,
    LogProducer,
    MigrationChanges,
    MigrationLimits,
    MigrationRequest,
    MigrationStatusChanges,
    OpenBirth,
    OperatorAction,
    PartitionMigrationStatus,
    PhaseRecord,
    PlannedOutcome,
    PlannedTopic,
    ReadinessLook,
    RejectedTopic,
    ReportedDeletion,
    RequestState,
    StoredObject,
    StreamPlace,
    SuffixOffset,
    Tombstone,
    TopicMigrationSummary,
    TopicState,
    TopicStatus,
    TrackedChanges,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
    UnheardGateway,
    UntoldCommit,
    WatchFinding,
    summarize,
)
from tideline.control_plane.plane import (
    ACKS_CHANNEL,
    COMMITS_CHANNEL,
    CONTROL_CHANNEL,
    REPORTS_CHANNEL,
    REQUESTS_CHANNEL,
    ControlPlane,
)
from tideline.control_plane.table_model import VerifyVerdict
from tideline.control_plane.told_model import Told, told_by_topic
from tideline.domain.ack_gate import Standing
from tideline.domain.config_changes import limits_of, shown_limits
from tideline.domain.connections import ConnectionRoom
from tideline.domain.estimate import StepDuration
from tideline.domain.history import ServerIdentity
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import MigrationState, Phase, PhaseStatus
from tideline.domain.places import MigrationPlace, PlaceHolder
from tideline.domain.producer_tail import ProducerSeed
from tideline.domain.quiescence import LeaseReading
from tideline.domain.watched import Finding

STEP_ROWS = 1_000
HOUR_MS = 3_600_000
_Shown: TypeAlias = list[tuple[UUID | None, Tombstone | None, TrackedTopic | None]]
"""Of one name: the ids that it had, and what is tracked under each."""
BEFORE_ANY_QUIESCE = (Phase.VALIDATE, Phase.DRAIN_TRANSACTIONS)
"""Phases that generation 0 may record."""
ENDED = (PhaseStatus.DONE, PhaseStatus.FAILED)


class MemoryControlPlane(ControlPlane):
    """``now_ms`` is the database's clock. The parts are public: a test may look at them, and a
    simulation may set what no call of this interface sets, such as merged segments."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.server = ("memory", 1)
        """System identifier and timeline (schedule 16)."""
        self.history = History()
        self.gateways = Gateways()
        self.attested = Attestations(self._now)
        self.watched = Findings(self._now)
        self.verdicts = Verdicts()
        self.places = Places(now_ms)
        self.topics = Topics()
        self.reports = Reports(self._now)
        self.files = WalFiles()
        self.operators = Operators()
        self.expiry_ran_at: int | None = None
        self.expiry_not_before = 0
        """When producers were expired last, and from when on they may be again, in ms."""
        self._changes: dict[str, tuple[int, _Shown]] = {}
        """By name: when it was seen to have changed, in the order of changes, and to what."""
        self._changed_rows: dict[TopicIdPartition, int] = {}
        """When a partition was seen to have changed, where nothing else of its topic had."""
        self._noted = self._forgotten_before = 0
        self._progress = Progress()
        self._listeners: list[tuple[Sequence[str], asyncio.Queue[tuple[str, str]]]] = []

    # Gateways

    async def register_gateway(
        self,
        gateway_id: int,
        broker_id: int,
        incarnation: UUID,
        address: str,
        version: str,
        lease_ms: int,
        watched: LeaseReading | None = None,
        rack: str | None = None,
        stand_ins: str | None = None,
        serving: bool = True,
    ) -> None:
        self._settle()
        self._assert_settled()
        self.gateways.register(
            GatewayRegistration(
                gateway_id=gateway_id,
                broker_id=broker_id,
                incarnation=incarnation,
                status="active",
                renewals=0,
                lease_ms=lease_ms,
                address=address,
                version=version,
                registered_at=self._now(),
                rack=rack,
                stand_ins=stand_ins,
                serving=serving,
            ),
            watched,
        )
        self.gateways.timelines[gateway_id] = self.server[1]

    async def renew_lease(self, gateway_id: int, incarnation: UUID) -> int:
        renewals = self.gateways.renew(gateway_id, incarnation, self.server[1])
        self._settle()
        return renewals

    async def renew_and_list(self, gateway_id: int, incarnation: UUID) -> list[GatewayRegistration]:
        await self.renew_lease(gateway_id, incarnation)
        return await self.list_gateways()

    async def note_serving(self, gateway_id: int, incarnation: UUID, serving: bool) -> None:
        self.gateways.note_serving(gateway_id, incarnation, serving)

    async def list_gateways(self) -> list[GatewayRegistration]:
        return [gateway for _, gateway in sorted(self.gateways.registered.items())]

    async def release_gateway(self, gateway_id: int, incarnation: UUID) -> None:
        self.gateways.release(gateway_id, incarnation)

    async def fence_gateway(
        self, gateway_id: int, incarnation: UUID, renewals: int, reason: str
    ) -> bool:
        settled = self._is_settled() or self.history.halted is not None
        return settled and self.gateways.fence(gateway_id, incarnation, renewals, reason)

    async def retire_gateway(self, gateway_id: int, attested_by: str) -> None:
        if attested_by:
            self._assert_settled()
        self.gateways.retire(gateway_id, attested_by)

    async def account_incarnations(
        self, gateway_id: int, incarnations: Sequence[UUID], how: str
    ) -> None:
        self.gateways.account(gateway_id, incarnations, how)

    async def attest_incarnations_gone(
        self, gateway_id: int, incarnations: Sequence[UUID], attested_by: str
    ) -> None:
        self.gateways.attest_gone(gateway_id, incarnations, attested_by)

    async def unaccounted_incarnations(self) -> list[GatewayRegistration]:
        return self.gateways.unaccounted()

    async def identity(self, seen: ServerIdentity | None = None) -> ServerIdentity:
        return self.history.identity(self.server, seen)

    async def beat_history(self) -> int:
        return self.history.beat() if self._is_settled() else max(self.history.beats)

    async def bind_cluster(self, cluster_id: str) -> None:
        self.history.bind(cluster_id)

    async def halt_history(self, history_id: UUID, why: str) -> None:
        if history_id == self.history.history_id:
            self.history.halted = self.history.halted or why

    async def begin_history(self, begun_by: str, reason: str) -> UUID:
        history_id = self.history.begin(begun_by, reason, self.server[1])
        for topic in self.topics.rows:
            for partition in topic.partitions.values():
                partition.outrun()
        return history_id

    async def unheard_gateways(self) -> list[UnheardGateway]:
        if self._is_settled():
            return []
        return [
            UnheardGateway(
                self.server[1],
                g.gateway_id,
                g.incarnation,
                g.address,
                g.lease_ms,
                self.files.registered_by(g.incarnation),
                0,
            )
            for g in self.gateways.unheard(self.server[1])
        ]

    async def settle_for_absent(
        self, timeline: int, gone: Sequence[UUID], stored: Sequence[StoredObject]
    ) -> str | None:
        if self._is_settled() or timeline != self.server[1]:
            return None
        unheard = {g.incarnation for g in self.gateways.unheard(timeline)}
        known = {g.incarnation for g in self.gateways.registered.values()}
        over = (known | self.gateways.ended.keys()) - unheard
        missing = sorted(self.files.missing([one for one in stored if one.incarnation not in over]))
        if missing:
            why = (
                f"timeline {timeline} has not got the commit of {len(missing)} objects that are in "
                f"the bucket and may have been acknowledged: {missing[0]}"
            )
            await self.halt_history(self.history.history_id, why)
            return why
        self.gateways.heard(gone, timeline)
        self._settle()
        return None

    def _is_settled(self) -> bool:
        return self.history.timeline == self.server[1]

    def _assert_settled(self) -> None:
        if not self._is_settled():
            raise TimelineUnsettled(
                f"timeline {self.server[1]} was promoted, and it is not known yet that it lacks "
                "nothing"
            )

    def _settle(self) -> None:
        """Commits are taken when everybody who was active before has renewed."""
        if self.history.halted is None and not self.gateways.unheard(self.server[1]):
            self.history.timeline = self.server[1]

    async def unknown_keys(self, keys: Sequence[str]) -> list[str]:
        return [key for key in keys if key not in self.files.by_key]

    # Attestations

    async def attest_cluster(self, cluster_id: str, attested_by: str, reason: str) -> None:
        self.attested.attest(cluster_id, attested_by, reason)

    async def withdraw_attestation(self, cluster_id: str, withdrawn_by: str, reason: str) -> None:
        self.attested.withdraw(cluster_id, withdrawn_by, reason)

    async def attestations(self, cluster_id: str | None = None) -> list[ClusterAttestation]:
        return self.attested.of(cluster_id)

    # Tracking

    async def tracked_topics(self) -> list[TrackedTopic]:
        tracked = [topic.tracked() for topic in self.topics.rows if topic.is_tracked]
        return sorted(tracked, key=lambda topic: topic.name)

    async def tracked_changes(
        self, since: str, seen: ServerIdentity | None = None
    ) -> TrackedChanges:
        self._note_changes()
        identity = self.history.identity(self.server, seen)
        here = self._history_name
        number = number_since(since, here, self._forgotten_before, self._noted)
        if number is None:
            return TrackedChanges(None, identity)
        names = {name for name, (at, _) in self._changes.items() if at > number}
        rows = [row for row in self.topics.rows if row.is_tracked and row.name in names]
        topics = [row.tracked() for row in rows]
        told = {row.topic_id for row in rows}
        moved = {
            log: row
            for log, at in self._changed_rows.items()
            if at > number and log.topic_id not in told
            if (row := self._tracked_partition(log)) is not None
        }
        upto = f"{here}:{self._noted}"
        return TrackedChanges(upto, identity, frozenset(names), tuple(topics), moved)

    async def tracked_changes_begin(self) -> str:
        self._note_changes()
        return f"{self._history_name}:{self._noted}"

    @property
    def _history_name(self) -> str:
        system, timeline = self.server
        return f"{system}/{timeline}/{self.history.history_id}"

    def _note_changes(self) -> None:
        """Compare with what was noted before: SQL has triggers for this."""
        now: dict[str, _Shown] = defaultdict(list)
        for row in self.topics.rows:  # deleted ones, too
            shown = _as_routed(row.tracked()) if row.is_tracked else None
            now[row.name].append((row.topic_id, row.tombstone, shown))
        for name in now.keys() | self._changes.keys():
            rows = now.get(name, [])
            at, before = self._changes.get(name, (0, []))
            if before == rows:
                continue
            self._noted += 1
            moved = _moved_alone(before, rows)
            if moved is None:
                at = self._noted
            else:
                self._changed_rows.update(dict.fromkeys(moved, self._noted))
            self._changes[name] = (at, rows)

    async def tracked_topic(self, name: str) -> TrackedTopic | None:
        topic = self.topics.live(name)
        return topic.tracked() if topic is not None and topic.is_tracked else None

    async def tracked_partition(self, topic_id: UUID, partition: int) -> TrackedPartition | None:
        return self._tracked_partition(TopicIdPartition(topic_id, partition))

    def _tracked_partition(self, log: TopicIdPartition) -> TrackedPartition | None:
        topic = self.topics.by_id(log.topic_id)
        if topic is None or not topic.is_tracked or log.partition not in topic.partitions:
            return None
        return topic.partitions[log.partition].tracked()

    async def begin_tracking(
        self,
        name: str,
        topic_id: UUID | None,
        kind: TrackingKind,
        partitions: int,
        timestamp_type: str,
        max_message_bytes: int,
        run: str | None = None,
    ) -> int:
        round_ = self.topics.begin(
            name, topic_id, kind, partitions, timestamp_type, max_message_bytes, run
        )
        topic = self.topics.live_or_refuse(name)
        topic.created_at = topic.created_at or self._now()
        self._notify_topic(name)
        return round_

    async def end_tracking_run(self, run: str) -> None:
        self.topics.ended_runs.add(run)

    async def begin_migration(
        self,
        name: str,
        topic_id: UUID,
        partitions: int,
        timestamp_type: str,
        max_message_bytes: int,
        cluster_id: str,
        run: str | None = None,
    ) -> None:
        live = self.topics.live(name)
        begun = (TopicStatus.TRACKING, TopicStatus.ACTIVE)
        if live is None or live.topic_id != topic_id or live.status not in begun:
            self.attested.demand(cluster_id)
        await self.begin_tracking(
            name,
            topic_id,
            TrackingKind.MIGRATED,
            partitions,
            timestamp_type,
            max_message_bytes,
            run,
        )

    async def complete_creation(self, name: str, topic_id: UUID, partitions: int) -> None:
        self.topics.complete_creation(name, topic_id, partitions)
        self._notify_topic(name)

    async def acknowledge_tracking(
        self, gateway_id: int, incarnation: UUID, name: str, round: int | None = None
    ) -> None:
        self.gateways.assert_active(gateway_id, incarnation)
        topic = self.topics.live_or_refuse(name)
        if not topic.is_tracked:
            raise UnknownTopic(f"topic {name} is not tracked")
        topic.assert_round(round)
        topic.acknowledged[gateway_id] = incarnation
        self._notify(ACKS_CHANNEL, f"tracking:{name}")

    async def tracking_barrier(self, name: str) -> list[BarrierEntry]:
        topic = self.topics.live(name)
        return [
            BarrierEntry(gateway, topic is not None and topic.is_acknowledged_by(gateway))
            for gateway in self.gateways.at_tracking_barrier()
        ]

    async def activate_topic(self, name: str, round: int | None = None) -> None:
        topic = self.topics.live_or_refuse(name)
        topic.assert_round(round)
        was = topic.status
        topic.activate(self.gateways.at_tracking_barrier())
        if topic.status is not was:
            self._notify_topic(name)

    async def add_partitions(self, name: str, topic_id: UUID, first: int, total: int) -> None:
        if not 1 <= total <= MAX_PARTITIONS:
            raise InvalidInput(f"no topic has {total} partitions")
        self.topics.live_or_refuse(name).add_diskless_partitions(topic_id, first, total)
        self._notify_topic(name)

    async def stop_tracking(self, name: str, round: int | None = None) -> None:
        topic = self.topics.live(name)
        if topic is not None:
            topic.assert_round(round)
            self.topics.stop(topic, self._now())
            self._notify_topic(name)

    async def delete_topic(
        self, topic_id: UUID, by: str = "gateway", why: str = "Kafka deleted it"
    ) -> None:
        topic = self.topics.by_id(topic_id)
        if topic is not None and topic.status is not TopicStatus.DELETED:
            topic.delete(self._now(), by, why)
            self._notify_topic(topic.name)

    async def live_topics(self) -> list[LiveTopic]:
        return self.topics.all_live()

    async def deleted_topics(self, within_ms: int, limit: int) -> list[Tombstone]:
        return self.topics.tombstones(self._now(), within_ms, limit)

    async def ask_birth(
        self,
        name: str,
        partitions: int,
        timestamp_type: str,
        max_message_bytes: int,
        timestamp_before_max_ms: int | None,
        timestamp_after_max_ms: int | None,
        given_max_message_bytes: str | None,
    ) -> str | None:
        limits = (timestamp_type, max_message_bytes, timestamp_before_max_ms)
        before = self.reports.births.get(name)
        refused = self.reports.ask(
            name, partitions, *limits, timestamp_after_max_ms, given_max_message_bytes
        )
        if self.reports.births.get(name) not in (None, before):
            self._notify(REPORTS_CHANNEL, "")
        return refused

    async def withdraw_birth(self, name: str) -> None:
        self.reports.births.pop(name, None)

    async def open_births(self) -> list[OpenBirth]:
        return self.reports.open_births(self.topics.all_live(), self.topics.live)

    async def begin_birth(self, name: str) -> None:
        asked = self.reports.asked(name)
        await self.begin_tracking(
            name,
            None,
            TrackingKind.BORN_DISKLESS,
            asked.partitions,
            asked.timestamp_type,
            asked.max_message_bytes,
        )

    async def refuse_birth(self, name: str, why: str) -> None:
        self.reports.refuse(name, why)

    async def report_deletion(self, topic_id: UUID) -> bool:
        topic = self.topics.by_id(topic_id)
        if topic is None or topic.status is TopicStatus.DELETED:
            return True
        if topic_id not in self.reports.deletions:
            self.reports.deletions[topic_id] = self._now()
            self._notify(REPORTS_CHANNEL, "")
        return False

    async def open_deletions(self) -> list[ReportedDeletion]:
        return [
            ReportedDeletion(topic_id, topic.name, GATEWAY, at)
            for topic_id, at in self.reports.deletions.items()
            if (topic := self.topics.known_id(topic_id)).status is not TopicStatus.DELETED
        ][:MOST_ASKED]

    async def settle_deletion(self, topic_id: UUID) -> None:
        self.reports.deletions.pop(topic_id, None)

    async def release_birth(self, topic_key: int, by: str, why: str) -> bool:
        topic = self.topics.birth(topic_key)
        if topic is None:
            return False
        topic.delete(self._now(), by, why)
        self._notify_topic(topic.name)
        return True

    # Quiesce and B0

    async def next_generation(self, log: TopicIdPartition) -> int:
        generation = self.topics.live_partition(log).next_generation()
        self._notify_log(log)
        return generation

    async def close_generation(self, log: TopicIdPartition, generation: int, hold_ms: int) -> None:
        partition = self.topics.live_partition(log)
        partition.assert_closable(generation, hold_ms)
        if self.topics.known_id(log.topic_id).status is not TopicStatus.ACTIVE:
            raise TrackingIncomplete(f"topic {partition.topic} is not tracked by every gateway yet")
        partition.close(generation, hold_ms, self.now_ms(), self.gateways.at_quiesce_barrier())
        self._notify_log(log)

    async def acknowledge_quiesce(
        self,
        gateway_id: int,
        incarnation: UUID,
        log: TopicIdPartition,
        generation: int,
        highest_acknowledged_offset: int,
        read_ceiling: int,
    ) -> None:
        self.gateways.assert_active(gateway_id, incarnation)
        partition = self.topics.known_partition(log)
        partition.acknowledge(generation, gateway_id, incarnation, highest_acknowledged_offset)
        self._notify(ACKS_CHANNEL, f"quiesce:{log.topic_id}:{log.partition}:{generation}")

    async def confirm_partitions(
        self, gateway_id: int, incarnation: UUID, logs: Sequence[TopicIdPartition]
    ) -> dict[TopicIdPartition, Standing]:
        self._assert_settled()
        active = self.gateways.is_active(gateway_id, incarnation)
        known = {log: self.topics.partition(log) for log in logs}
        return {
            log: partition.standing(gateway_id, incarnation, active=active)
            for log, partition in known.items()
            if partition is not None and not partition.deleted
        }

    async def quiesce_barrier(self, log: TopicIdPartition, generation: int) -> list[BarrierEntry]:
        partition = self.topics.partition(log)
        return [
            _barrier_entry(gateway, partition, generation)
            for gateway in self.gateways.at_quiesce_barrier()
        ]

    async def reopen_generation(self, log: TopicIdPartition, generation: int) -> bool:
        opened = self.topics.live_partition(log).reopen(generation)
        self._notify_log(log)
        return opened

    async def void_expired_quiesce(self, log: TopicIdPartition) -> bool:
        opened = self.topics.live_partition(log).void_expired(self.now_ms())
        self._notify_log(log)
        return opened

    async def initialize_diskless_migration(self, boundary: BoundaryToPersist) -> None:
        partition = self.topics.live_partition(boundary.log)
        if partition.suffix is None:
            self._assert_settled()
        changed = partition.persist(
            boundary.boundary,
            boundary.leader_epoch,
            boundary.generation,
            boundary.seeds,
            boundary.prefix_log_start,
            self.gateways.at_quiesce_barrier(),
            self.now_ms(),
        )
        if changed:
            partition.prefix_max_timestamp = boundary.prefix_max_timestamp
            partition.prefix_max_timestamp_offset = boundary.prefix_max_timestamp_offset
            self._notify_log(boundary.log)

    async def set_diskless_log_start_offset(
        self, log: TopicIdPartition, boundary: int, leader_epoch: int
    ) -> None:
        gateways = self.gateways.at_quiesce_barrier()
        partition = self.topics.live_partition(log)
        if partition.suffix is None and boundary >= 0:
            self._assert_settled()
        forced_by = self.topics.known_id(log.topic_id).completion_forced_by
        if partition.persist_directly(
            boundary, leader_epoch, gateways, self.now_ms(), forced_by=forced_by
        ):
            self._notify_log(log)

    async def get_diskless_log_start_offset(self, log: TopicIdPartition) -> int:
        return self.topics.known_partition(log).boundary

    async def seed_producer_state(
        self, log: TopicIdPartition, seeds: Iterable[ProducerSeed]
    ) -> None:
        self.topics.live_partition(log).seed(tuple(seeds), self.now_ms())

    async def reset_boundary(
        self, log: TopicIdPartition, generation: int, leader_epoch: int
    ) -> None:
        partition = self.topics.live_partition(log)
        forced_by = self.topics.known_id(log.topic_id).completion_forced_by
        if partition.reset(generation, leader_epoch, forced_by=forced_by):
            self._notify_log(log)

    async def abort_migration(self, topic_id: UUID) -> None:
        topic = self.topics.known_id(topic_id)
        if topic.status is TopicStatus.DELETED:
            raise TopicDeleted(f"topic {topic.name} (id {topic_id}) was deleted")
        if topic.status is not TopicStatus.ABORTED:
            self.topics.abort(topic, self._now())
            self._notify_topic(topic.name)

    # Requests, phases, readiness, config overrides

    async def request_migration(
        self, topic: str, topic_id: UUID, requested_by: str, options: Mapping[str, Any]
    ) -> None:
        self.operators.request(topic, topic_id, requested_by, dict(options), self._now())
        self._notify(REQUESTS_CHANNEL, topic)

    async def pending_requests(self) -> list[MigrationRequest]:
        return self.operators.pending(self._now())

    async def started_requests(self) -> list[MigrationRequest]:
        return [r for r in await self.list_requests() if r.state is RequestState.STARTED]

    async def list_requests(self, topic: str | None = None) -> list[MigrationRequest]:
        found = [r for r in self.operators.requests.values() if topic in (None, r.topic)]
        return sorted(found, key=lambda request: request.requested_at)

    async def settle_request(
        self,
        topic_id: UUID,
        requested_at: datetime,
        state: RequestState,
        reason: str = "",
        retry_after_ms: int = 0,
    ) -> bool:
        settle = self.operators.settle
        return settle(topic_id, requested_at, state, reason, retry_after_ms, self._now())

    # What operators decide

    async def record_configuration(
        self,
        topic: str,
        topic_id: UUID,
        decided_by: str,
        reason: str,
        details: Mapping[str, Any],
        action: str = "configure",
        partition: int | None = None,
    ) -> None:
        record = self.operators.record
        record(topic, topic_id, partition, action, decided_by, reason, details, self._now())

    async def accept_gap(
        self,
        log: TopicIdPartition,
        generation: int,
        leader_epoch: int,
        first: int,
        end: int,
        decided_by: str,
        reason: str,
        details: Mapping[str, Any],
    ) -> None:
        partition = self.topics.live_partition(log)
        partition.assert_gap(generation, leader_epoch, first, end)
        if partition.accepted_gap_from == first:
            return
        kept = {
            **details,
            "from": first,
            "to": end,
            "generation": generation,
            "leader_epoch": leader_epoch,
        }
        self.operators.record(
            partition.topic,
            log.topic_id,
            log.partition,
            "accept_gap",
            decided_by,
            reason,
            kept,
            self._now(),
        )
        partition.accepted_gap_from, partition.accepted_gap_epoch = first, leader_epoch
        self._notify_log(log)

    async def force_completion(self, topic_id: UUID, decided_by: str, reason: str) -> list[int]:
        topic = self.topics.known_id(topic_id)
        if topic.status is TopicStatus.DELETED:
            raise TopicDeleted(f"topic {topic.name} (id {topic_id}) was deleted")
        incomplete = topic.incomplete_or_refuse()
        if topic.completion_forced_by is None and incomplete:
            details = {"incomplete": incomplete}
            record, name = self.operators.record, topic.name
            record(
                name, topic_id, None, "force_completion", decided_by, reason, details, self._now()
            )
            topic.completion_forced_by = decided_by
            self._notify_topic(name)
        return incomplete

    async def call_off_request(self, topic_id: UUID, decided_by: str, reason: str) -> None:
        self.operators.call_off(topic_id, decided_by, reason, self._now())

    async def list_operator_actions(self, topic: str | None = None) -> list[OperatorAction]:
        return [action for action in self.operators.actions if topic in (None, action.topic)]

    async def record_plan_outcome(
        self,
        plan: str,
        topics: Collection[str],
        outcome: PlannedOutcome,
        reason: str = "",
        run: str = "",
    ) -> None:
        for name in topics:
            found = PlannedTopic(name, outcome, reason, run, self._now())
            self.operators.plans.setdefault(plan, {})[name] = found

    async def plan_outcomes(self, plan: str) -> list[PlannedTopic]:
        found = self.operators.plans.get(plan, {}).values()
        return sorted(found, key=lambda planned: planned.topic)

    async def rejected_topics(self, topics: Collection[str]) -> list[RejectedTopic]:
        newest: dict[str, tuple[str, PlannedTopic]] = {}
        for plan, told in self.operators.plans.items():
            for name in told.keys() & set(topics):
                if name not in newest or newest[name][1].changed_at <= told[name].changed_at:
                    newest[name] = plan, told[name]
        return [
            RejectedTopic(name, plan, one.reason, one.run, one.changed_at)
            for name, (plan, one) in sorted(newest.items())
            if one.outcome is PlannedOutcome.REJECTED
        ]

    async def aborted_topics(self, topics: Collection[str]) -> list[AbortedTopic]:
        return self.topics.aborted(topics)

    async def record_phase(
        self,
        log: TopicIdPartition,
        generation: int,
        phase: Phase,
        status: PhaseStatus,
        evidence: Mapping[str, Any],
        waiting_reason: str | None = None,
    ) -> None:
        partition = self.topics.known_partition(log)
        if generation != 0 or phase not in BEFORE_ANY_QUIESCE:
            partition.assert_generation(generation)
        now, known = self._now(), partition.phases.get(phase)
        ended_at = now if status in ENDED else None
        # An attempt begins when its first record follows an ended one or another generation.
        goes_on = (
            known is not None
            and known.generation == generation
            and (known.ended_at is None or ended_at is not None)
        )
        partition.phases[phase] = PhaseRecord(
            phase=phase,
            status=status,
            generation=generation,
            started_at=known.started_at if known is not None and goes_on else now,
            ended_at=ended_at,
            waiting_reason=waiting_reason,
            evidence=dict(evidence),
        )

    async def phase_began(self, log: TopicIdPartition, phase: Phase) -> datetime | None:
        try:
            known = self.topics.live_partition(log).phases.get(phase)
        except (UnknownLog, TopicDeleted):
            return None
        return None if known is None else known.started_at

    async def phase_durations(self, partitions: int) -> list[StepDuration]:
        return phase_durations(self.topics.partitions(), partitions)

    async def migration_status(self, topic: str | None = None) -> list[PartitionMigrationStatus]:
        found = [
            partition.status()
            for partition in self.topics.partitions()
            if not partition.deleted and topic in (None, partition.topic)
        ]
        return sorted(found, key=lambda status: (status.topic, status.log.partition))

    async def migration_summary(self) -> list[TopicMigrationSummary]:
        return summarize(await self.migration_status())

    async def topic_states(self, state: MigrationState | None = None) -> list[TopicState]:
        return [
            TopicState(one.topic, one.state, one.partitions)
            for one in await self.migration_summary()
            if state in (None, one.state)
        ]

    async def migration_changes(self, since: str | None) -> MigrationChanges:
        return self._progress.changes(
            self._history_name, await self.migration_status(), await self._all_told(), since
        )

    async def migration_status_changes(self, since: str | None) -> MigrationStatusChanges:
        return self._progress.status_changes(
            self._history_name, await self.migration_status(), await self._all_told(), since
        )

    async def told(self, topics: Collection[str] | None = None) -> dict[str, Told]:
        told = await self._all_told()
        return {name: of for name, of in told.items() if topics is None or name in topics}

    async def _all_told(self) -> dict[str, Told]:
        return told_by_topic(
            await self.list_requests(),
            await self.list_operator_actions(),
            await self.verify_verdicts(),
            await self.findings(),
        )

    async def set_tiering_complete(
        self, log: TopicIdPartition, generation: int, complete: bool, reason: str
    ) -> None:
        self.topics.live_partition(log).set_tiering_complete(generation, complete)
        self._notify_log(log)

    async def record_readiness(self, topic_id: UUID, looks: Sequence[ReadinessLook]) -> list[int]:
        kept: list[int] = []
        for look in looks:
            log = TopicIdPartition(topic_id, look.partition)
            status = PhaseStatus.DONE if look.complete else PhaseStatus.WAITING
            reason = None if look.complete else look.reason
            about = (log, look.generation, Phase.READINESS, status, look.evidence, reason)
            try:
                known = self.topics.live_partition(log)
            except (UnknownLog, TopicDeleted):
                continue
            if known.generation != look.generation or known.boundary < 0:
                continue
            if known.tiering_complete and not look.complete:
                continue
            await self.record_phase(*about)
            if look.complete:
                await self.set_tiering_complete(log, look.generation, True, look.reason)
            kept.append(look.partition)
        return kept

    async def override_config(
        self,
        topic_id: UUID,
        key: str,
        override_value: str | None,
        user_value: str | None,
        round: int | None = None,
    ) -> None:
        topic = self.topics.known_id(topic_id)
        topic.assert_round(round)
        if round is not None and topic.status is TopicStatus.ABORTED:
            raise RoundOver(f"round {round} of topic {topic.name} is over: it was aborted")
        known = topic.overrides.get(key)
        kept = known.user_value if known else user_value
        topic.overrides[key] = ConfigOverride(key, override_value, kept)
        self._notify_topic(topic.name)

    async def update_user_config(self, topic_id: UUID, key: str, user_value: str | None) -> bool:
        topic = self.topics.by_id(topic_id)
        if topic is None or key not in topic.overrides:
            return False
        topic.overrides[key] = replace(topic.overrides[key], user_value=user_value)
        self._notify_topic(topic.name)
        return True

    async def update_topic_limits(
        self,
        topic_id: UUID,
        *,
        timestamp_type: str | None = None,
        max_message_bytes: int | None = None,
        timestamp_before_max_ms: int | None = None,
        timestamp_after_max_ms: int | None = None,
    ) -> None:
        topic = self.topics.known_id(topic_id)
        if topic.status is TopicStatus.DELETED:
            raise UnknownTopic(f"topic id {topic_id} is not tracked")
        topic.limit(
            timestamp_type=timestamp_type,
            max_message_bytes=max_message_bytes,
            timestamp_before_max_ms=timestamp_before_max_ms,
            timestamp_after_max_ms=timestamp_after_max_ms,
        )
        self._notify_topic(topic.name)

    async def follow_default_limit(self, topic_id: UUID, key: str, seen: str, default: str) -> bool:
        topic = self.topics.by_id(topic_id)
        if topic is None or topic.status is TopicStatus.DELETED:
            return False
        held = topic.overrides.get(key)
        if held is not None and held.user_value is not None:
            return False
        if shown_limits(topic.tracked().limits).get(key) != seen:
            return False
        limits: Mapping[str, Any] = limits_of({key: default}, [key])
        await self.update_topic_limits(topic_id, **limits)
        return True

    async def release_config(
        self, topic_id: UUID, key: str, user_value: str | None, round: int | None = None
    ) -> bool:
        topic = self.topics.by_id(topic_id)
        if topic is not None:
            topic.assert_round(round)
        if topic is None or key not in topic.overrides:
            return True
        if topic.overrides[key].user_value != user_value:
            return False
        del topic.overrides[key]
        self._notify_topic(topic.name)
        return True

    async def config_overrides_of(self, topic_id: UUID) -> dict[str, ConfigOverride]:
        topic = self.topics.by_id(topic_id)
        return dict(sorted(topic.overrides.items())) if topic else {}

    async def take_migration_place(
        self, asking: PlaceHolder, places: int, doubt_ms: int
    ) -> MigrationPlace:
        return self.places.take(asking, places, doubt_ms)

    async def migration_limits(self) -> MigrationLimits | None:
        return self.places.limits

    async def set_migration_limits(
        self, topics: int | None, partitions: int | None, set_by: str, reason: str
    ) -> None:
        self.places.limits = MigrationLimits(topics, partitions, set_by, reason, self._now())

    async def migration_share(self, topic_id: UUID) -> int | None:
        migrating = {
            partition.log.topic_id
            for partition in self.topics.partitions()
            if partition.state is MigrationState.MIGRATING and not partition.deleted
        }
        return self.places.share(topic_id, migrating.__contains__)

    async def leave_migration_place(self, topic_id: UUID, run: str) -> bool:
        return self.places.leave(topic_id, run)

    async def record_findings(self, topic_id: UUID, findings: Sequence[Finding]) -> None:
        topic = self.topics.by_id(topic_id)
        if topic is not None and topic.status is not TopicStatus.DELETED:
            self.watched.record(topic.name, topic_id, findings)

    async def findings(self, topic: str | None = None) -> list[WatchFinding]:
        return self.watched.of(self._live(topic))

    async def verify_verdicts(self, topic: str | None = None) -> list[VerifyVerdict]:
        return self.verdicts.of(self._live(topic))

    def _live(self, topic: str | None) -> dict[UUID, str]:
        return {
            row.topic_id: row.name
            for row in self.topics.rows
            if row.topic_id is not None
            and row.status is not TopicStatus.DELETED
            and topic in (None, row.name)
        }

    # The data path

    async def register_object_keys(
        self, gateway_id: int, incarnation: UUID, keys: Sequence[str]
    ) -> None:
        self.gateways.assert_active(gateway_id, incarnation)
        self.files.register(gateway_id, incarnation, keys, self.now_ms())

    async def commit_file(
        self,
        gateway_id: int,
        incarnation: UUID,
        object_key: str,
        size: int,
        batches: Sequence[BatchToCommit],
        stream: StreamPlace | None = None,
    ) -> list[CommittedBatch]:
        file = self.files.claim(gateway_id, object_key, size, len(batches))
        if file.status is not FileStatus.COMMITTED:
            self.gateways.assert_active(gateway_id, incarnation)
            assert_batches(batches)
            self._assert_settled()
            now = self.now_ms()
            file.outcomes = [self._append(batch, object_key, now) for batch in batches]
            file.status, file.size, file.committed_ms = FileStatus.COMMITTED, size, now
            self.files.place(object_key, stream if batches else None)
            self.files.carry(object_key, stream.tells if stream and not batches else (), now)
        return list(file.outcomes)

    async def untold_commits(
        self, gateway_id: int, incarnation: UUID, limit: int
    ) -> list[UntoldCommit]:
        self.gateways.assert_active(gateway_id, incarnation)
        return self.files.untold(gateway_id, incarnation, limit, self.now_ms())

    def _append(self, batch: BatchToCommit, object_key: str, now_ms: int) -> CommittedBatch:
        partition = self.topics.partition(batch.log)
        error = "UNKNOWN_LOG" if partition is None else partition.read_error()
        if partition is None or error != "NONE":
            return CommittedBatch(CommitError(error))
        return partition.commit(batch, object_key, now_ms)

    async def find_batches(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        self._assert_settled()
        answers: list[FoundBatches] = []
        left = FIND_LIMIT_IN_ALL
        for request in requests:
            partition = self.topics.partition(request.log)
            answers.append(
                FoundBatches("UNKNOWN_LOG", -1, -1)
                if partition is None
                else partition.find(request, left)
            )
            left -= len(answers[-1].batches)
        return answers

    async def list_offsets(
        self, log: TopicIdPartition, kind: ListOffsetsKind, timestamp: int | None = None
    ) -> SuffixOffset:
        self._assert_settled()
        partition = self.topics.partition(log)
        if partition is None:
            return SuffixOffset("UNKNOWN_LOG")
        return partition.list_offsets(kind, -1 if timestamp is None else timestamp)

    async def high_watermarks(
        self,
        logs: Sequence[TopicIdPartition],
        known: Mapping[TopicIdPartition, int] | None = None,
    ) -> dict[TopicIdPartition, int]:
        self._assert_settled()
        found = {log: self.topics.partition(log) for log in logs}
        return {
            log: partition.high_watermark
            for log, partition in found.items()
            if partition is not None
            and partition.read_error() == "NONE"
            and partition.high_watermark > (known or {}).get(log, -1)
        }

    async def describe_producers(
        self, logs: Sequence[TopicIdPartition], limit: int
    ) -> dict[TopicIdPartition, list[LogProducer]]:
        found = [
            (log, number, entry)
            for log, partition in ((log, self.topics.partition(log)) for log in logs)
            if partition is not None and partition.read_error() == "NONE"
            for number, entry in partition.producers.items()
        ]
        newest = sorted(found, key=lambda f: (-f[2].updated_at, f[1]))[:limit]
        told: dict[TopicIdPartition, list[LogProducer]] = {}
        for log, number, entry in sorted(newest, key=lambda f: f[1]):
            at = entry.batches[-1].append_time if entry.batches else -1
            told.setdefault(log, []).append(
                LogProducer(number, entry.epoch, entry.last_sequence, at)
            )
        return told

    async def delete_records(self, log: TopicIdPartition, before_offset: int) -> int:
        start = self.topics.live_partition(log).delete_records(before_offset)
        self._notify_log(log)
        return start

    async def advance_prefix_start(self, log: TopicIdPartition, log_start: int) -> None:
        self.topics.live_partition(log).advance_prefix(log_start)
        self._notify_log(log)

    # The server

    async def connection_room(self) -> ConnectionRoom:
        """Nobody connects: as of a server that has room."""
        return ConnectionRoom(max_connections=1_000, reserved=0, role="nobody")

    async def check_synchronous_commit(self) -> CommitDurability:
        return CommitDurability(
            True, "commits are kept as long as this process", {"synchronous_commit": "on"}
        )

    async def tell_of_commits(self) -> None:
        self._notify(COMMITS_CHANNEL, "")

    async def listen(
        self, channels: Sequence[str], on_listening: Callable[[], None] | None = None
    ) -> AsyncIterator[tuple[str, str]]:
        queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        listener = (tuple(channels), queue)
        self._listeners.append(listener)
        try:
            if on_listening is not None:
                on_listening()
            while True:
                yield await queue.get()
        finally:
            self._listeners.remove(listener)

    # Upkeep: what the jobs do, as tideline.control_plane.jobs names it

    def forget_tracking_changes(self, kept_ms: int) -> int:
        """Without times of its own: all of them, whatever ``kept_ms``."""
        self._note_changes()
        self._forgotten_before = self._noted + 1
        self._noted += 1
        self._progress.forget()
        return 0

    def expire_producers(self, idle_ms: int, limit: int = STEP_ROWS) -> int:
        now = self.now_ms()
        idle_ms = max(idle_ms, 4 * HOUR_MS)
        last, self.expiry_ran_at = self.expiry_ran_at, now
        if last is None or now - last > idle_ms // 2:
            # The clock may have been set forward: a retry of a minute ago looks like yesterday's.
            self.expiry_not_before = now + idle_ms
        if now < self.expiry_not_before:
            return 0
        before, expired = now - idle_ms, 0
        for partition in self.topics.partitions():
            idle = [n for n, entry in partition.producers.items() if entry.updated_at <= before]
            for producer_id in idle[: limit - expired]:
                del partition.producers[producer_id]
                expired += 1
        return expired

    def prune_batches(self, limit: int = STEP_ROWS) -> int:
        pruned = 0
        for partition in self.topics.partitions():
            if partition.deleted:
                partition.producers.clear()
            if partition.suffix is not None:
                pruned += partition.suffix.prune(deleted=partition.deleted, limit=limit - pruned)
        return pruned

    def forget_uncommitted_keys(self, grace_ms: int, limit: int = STEP_ROWS) -> int:
        return self.files.forget_uncommitted(grace_ms, limit, self.now_ms())

    def claim_dead_files(self, grace_ms: int, limit: int = STEP_ROWS) -> list[str]:
        suffixes = (partition.suffix for partition in self.topics.partitions())
        live = {batch.object_key for suffix in suffixes if suffix for batch in suffix.batches}
        return self.files.collect(live, grace_ms, limit, self.now_ms())

    def forget_dead_files(self, keys: Sequence[str]) -> int:
        return self.files.forget(keys)

    # Notifications

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def _notify(self, channel: str, payload: str) -> None:
        for channels, queue in self._listeners:
            if channel in channels:
                queue.put_nowait((channel, payload))

    def _notify_topic(self, name: str) -> None:
        self._notify(CONTROL_CHANNEL, f"topic:{name}")

    def _notify_log(self, log: TopicIdPartition) -> None:
        self._notify(CONTROL_CHANNEL, f"log:{log.topic_id}:{log.partition}")


def _barrier_entry(
    gateway: GatewayRegistration, partition: Partition | None, generation: int
) -> BarrierEntry:
    highest = None if partition is None else partition.acknowledged_by(gateway, generation)
    return BarrierEntry(gateway, highest is not None, -1 if highest is None else highest)


def _moved_alone(before: _Shown, now: _Shown) -> set[TopicIdPartition] | None:
    """Partitions that are other or new; ``None``: more than that is other, or one is gone."""
    if len(before) != len(now):
        return None
    moved: set[TopicIdPartition] = set()
    for (was_id, was_dead, was), (topic_id, dead, topic) in zip(before, now, strict=True):
        if (was_id, was_dead) != (topic_id, dead):
            return None
        if was == topic:
            continue
        if was is None or topic is None or topic_id is None:
            return None
        gone = was.partitions.keys() - topic.partitions.keys()
        if gone or replace(was, partitions={}) != replace(topic, partitions={}):
            return None
        moved |= {
            TopicIdPartition(topic_id, number)
            for number, row in topic.partitions.items()
            if was.partitions.get(number) != row
        }
    return moved


def _as_routed(topic: TrackedTopic) -> TrackedTopic:
    """Without the offsets that move with commits, retention and tiering."""
    rows = {
        number: replace(row, high_watermark=-1, suffix_start=-1)
        for number, row in topic.partitions.items()
    }
    return replace(topic, partitions=rows)
