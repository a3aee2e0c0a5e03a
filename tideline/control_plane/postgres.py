"""The control plane in Postgres, called from an event loop: gateways, the worker, the CLI.

Each method is one call of the SQL function of its name (infra/postgres); what it promises stands in
:class:`tideline.control_plane.plane.ControlPlane`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any
from uuid import UUID

import structlog
from psycopg.types.json import Jsonb

from tideline.control_plane.calls import (
    ADVANCE_PREFIX_START,
    DELETE_RECORDS,
    SERVER_IDENTITY,
    Function,
    Row,
    array_literal,
    columns,
    document,
    first,
    literals,
    mapper,
    nothing,
    only,
    rows,
    value,
    values,
)
from tideline.control_plane.model import (
    AbortedTopic,
    BarrierEntry,
    BatchCoordinates,
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
    MovedHighWatermark,
    OpenBirth,
    OperatorAction,
    PartitionMigrationStatus,
    PlannedOutcome,
    PlannedTopic,
    ReadinessLook,
    RejectedTopic,
    ReportedDeletion,
    RequestState,
    SegmentCoordinates,
    Standby,
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
)
from tideline.control_plane.plane import ControlPlane
from tideline.control_plane.pool import Lanes, Pool
from tideline.control_plane.table_model import VerifyVerdict
from tideline.control_plane.told_model import Told, told_by_topic
from tideline.domain.ack_gate import Standing
from tideline.domain.connections import ConnectionRoom
from tideline.domain.estimate import StepDuration
from tideline.domain.history import ServerIdentity
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import MigrationState, Phase, PhaseStatus
from tideline.domain.places import MigrationPlace, PlaceHolder
from tideline.domain.producer_tail import ProducerSeed
from tideline.domain.quiescence import LeaseReading
from tideline.domain.topic_configs import CREATE_TIME, LOG_APPEND_TIME
from tideline.domain.watched import Finding

log = structlog.get_logger()


def _text_or_none(scalar: Any) -> str | None:
    return None if scalar is None else str(scalar)


ASK_BIRTH = Function("ask_birth", value(_text_or_none))


class PostgresControlPlane(ControlPlane):
    def __init__(self, pool: Pool | Lanes) -> None:
        self._pool = pool
        self._call = pool.call

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
        await self._call(
            Function("register_gateway", nothing),
            gateway_id,
            broker_id,
            incarnation,
            address,
            version,
            lease_ms,
            watched.incarnation if watched else None,
            watched.renewals if watched else None,
            rack,
            stand_ins,
            serving,
        )

    async def renew_lease(self, gateway_id: int, incarnation: UUID) -> int:
        function = Function("renew_lease", value(int))
        return await self._call(function, gateway_id, incarnation, retry=False)

    async def renew_and_list(self, gateway_id: int, incarnation: UUID) -> list[GatewayRegistration]:
        function = Function("renew_and_list", rows(GatewayRegistration))
        return await self._call(function, gateway_id, incarnation, retry=False)

    async def note_serving(self, gateway_id: int, incarnation: UUID, serving: bool) -> None:
        await self._call(Function("note_serving", nothing), gateway_id, incarnation, serving)

    async def list_gateways(self) -> list[GatewayRegistration]:
        return await self._call(Function("list_gateways", rows(GatewayRegistration)))

    async def release_gateway(self, gateway_id: int, incarnation: UUID) -> None:
        await self._call(Function("release_gateway", nothing), gateway_id, incarnation)

    async def fence_gateway(
        self, gateway_id: int, incarnation: UUID, renewals: int, reason: str
    ) -> bool:
        function = Function("fence_gateway", value(bool))
        return await self._call(function, gateway_id, incarnation, renewals, reason)

    async def retire_gateway(self, gateway_id: int, attested_by: str) -> None:
        await self._call(Function("retire_gateway", nothing), gateway_id, attested_by)

    async def account_incarnations(
        self, gateway_id: int, incarnations: Sequence[UUID], how: str
    ) -> None:
        function = Function("account_incarnations", nothing)
        await self._call(function, gateway_id, list(incarnations), how)

    async def attest_incarnations_gone(
        self, gateway_id: int, incarnations: Sequence[UUID], attested_by: str
    ) -> None:
        function = Function("attest_incarnations_gone", nothing)
        await self._call(function, gateway_id, list(incarnations), attested_by)

    async def unaccounted_incarnations(self) -> list[GatewayRegistration]:
        return await self._call(Function("unaccounted_incarnations", rows(GatewayRegistration)))

    async def identity(self, seen: ServerIdentity | None = None) -> ServerIdentity:
        return await self._call(SERVER_IDENTITY, *_beat(seen))

    async def beat_history(self) -> int:
        return await self._call(Function("beat_history", value(int)))

    async def bind_cluster(self, cluster_id: str) -> None:
        await self._call(Function("bind_cluster", nothing), cluster_id)

    async def halt_history(self, history_id: UUID, why: str) -> None:
        await self._call(Function("halt_history", nothing), history_id, why)

    async def begin_history(self, begun_by: str, reason: str) -> UUID:
        return await self._call(Function("begin_history", value(_uuid)), begun_by, reason)

    async def unheard_gateways(self) -> list[UnheardGateway]:
        return await self._call(Function("unheard_gateways", rows(UnheardGateway)))

    async def settle_for_absent(
        self, timeline: int, gone: Sequence[UUID], stored: Sequence[StoredObject]
    ) -> str | None:
        function = Function("settle_for_absent", value(_text))
        found = columns(stored, "key", "incarnation", "sequence")
        return await self._call(function, timeline, list(gone), *found)

    async def unknown_keys(self, keys: Sequence[str]) -> list[str]:
        return await self._call(Function("unknown_keys", values(str)), list(keys))

    # Attestations

    async def attest_cluster(self, cluster_id: str, attested_by: str, reason: str) -> None:
        await self._call(Function("attest_cluster", nothing), cluster_id, attested_by, reason)

    async def withdraw_attestation(self, cluster_id: str, withdrawn_by: str, reason: str) -> None:
        function = Function("withdraw_attestation", nothing)
        await self._call(function, cluster_id, withdrawn_by, reason)

    async def attestations(self, cluster_id: str | None = None) -> list[ClusterAttestation]:
        function = Function("cluster_attestations_of", rows(ClusterAttestation))
        return await self._call(function, cluster_id)

    # Tracking

    async def tracked_topics(self) -> list[TrackedTopic]:
        return await self._call(Function("tracked_topics", _topics, many=True), None)

    async def tracked_changes(
        self, since: str, seen: ServerIdentity | None = None
    ) -> TrackedChanges:
        function = Function("tracked_changes", _changes, many=True)
        return await self._call(function, since, *_beat(seen))

    async def tracked_changes_begin(self) -> str:
        return await self._call(Function("tracked_changes_begin", value(str)))

    async def tracked_topic(self, name: str) -> TrackedTopic | None:
        found = await self._call(Function("tracked_topics", _topics), name)
        return found[0] if found else None

    async def tracked_partition(self, topic_id: UUID, partition: int) -> TrackedPartition | None:
        function = Function("tracked_partition", partition_view)
        return await self._call(function, topic_id, partition)

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
        function = Function("begin_tracking", value(int))
        return await self._call(
            function, name, topic_id, kind, partitions, timestamp_type, max_message_bytes, run
        )

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
        function = Function("begin_migration", nothing)
        await self._call(
            function, name, topic_id, partitions, timestamp_type, max_message_bytes, cluster_id, run
        )

    async def end_tracking_run(self, run: str) -> None:
        await self._call(Function("end_tracking_run", nothing), run)

    async def complete_creation(self, name: str, topic_id: UUID, partitions: int) -> None:
        await self._call(Function("complete_creation", nothing), name, topic_id, partitions)

    async def acknowledge_tracking(
        self, gateway_id: int, incarnation: UUID, name: str, round: int | None = None
    ) -> None:
        function = Function("acknowledge_tracking", nothing)
        await self._call(function, gateway_id, incarnation, name, round)

    async def tracking_barrier(self, name: str) -> list[BarrierEntry]:
        return await self._call(Function("tracking_barrier", rows(BarrierEntry)), name)

    async def activate_topic(self, name: str, round: int | None = None) -> None:
        await self._call(Function("activate_topic", nothing), name, round)

    async def add_partitions(self, name: str, topic_id: UUID, first: int, total: int) -> None:
        await self._call(Function("add_partitions", nothing), name, topic_id, first, total)

    async def stop_tracking(self, name: str, round: int | None = None) -> None:
        await self._call(Function("stop_tracking", nothing), name, round)

    async def delete_topic(
        self, topic_id: UUID, by: str = "gateway", why: str = "Kafka deleted it"
    ) -> None:
        await self._call(Function("delete_topic", nothing), topic_id, by, why)

    async def live_topics(self) -> list[LiveTopic]:
        return await self._call(Function("live_topics", rows(LiveTopic)))

    async def deleted_topics(self, within_ms: int, limit: int) -> list[Tombstone]:
        return await self._call(Function("deleted_topics", rows(Tombstone)), within_ms, limit)

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
        more = (timestamp_after_max_ms, given_max_message_bytes)
        return await self._call(ASK_BIRTH, name, partitions, *limits, *more)

    async def withdraw_birth(self, name: str) -> None:
        await self._call(Function("withdraw_birth", nothing), name)

    async def open_births(self) -> list[OpenBirth]:
        return await self._call(Function("open_births", rows(OpenBirth)))

    async def begin_birth(self, name: str) -> None:
        await self._call(Function("begin_birth", nothing), name)

    async def refuse_birth(self, name: str, why: str) -> None:
        await self._call(Function("refuse_birth", nothing), name, why)

    async def report_deletion(self, topic_id: UUID) -> bool:
        return await self._call(Function("report_deletion", value(bool)), topic_id)

    async def open_deletions(self) -> list[ReportedDeletion]:
        return await self._call(Function("open_deletions", rows(ReportedDeletion)))

    async def settle_deletion(self, topic_id: UUID) -> None:
        await self._call(Function("settle_deletion", nothing), topic_id)

    async def release_birth(self, topic_key: int, by: str, why: str) -> bool:
        return await self._call(Function("release_birth", value(bool)), topic_key, by, why)

    # Quiesce and B0

    async def next_generation(self, log: TopicIdPartition) -> int:
        return await self._call(Function("next_generation", value(int)), log)

    async def close_generation(self, log: TopicIdPartition, generation: int, hold_ms: int) -> None:
        await self._call(Function("close_generation", nothing), log, generation, hold_ms)

    async def acknowledge_quiesce(
        self,
        gateway_id: int,
        incarnation: UUID,
        log: TopicIdPartition,
        generation: int,
        highest_acknowledged_offset: int,
        read_ceiling: int,
    ) -> None:
        await self._call(
            Function("acknowledge_quiesce", nothing),
            gateway_id,
            incarnation,
            log,
            generation,
            highest_acknowledged_offset,
            read_ceiling,
        )

    async def confirm_partitions(
        self, gateway_id: int, incarnation: UUID, logs: Sequence[TopicIdPartition]
    ) -> dict[TopicIdPartition, Standing]:
        return await self._call(
            Function("confirm_partitions", _standings),
            gateway_id,
            incarnation,
            *columns(logs, "topic_id", "partition"),
            retry=False,
        )

    async def quiesce_barrier(self, log: TopicIdPartition, generation: int) -> list[BarrierEntry]:
        return await self._call(Function("quiesce_barrier", rows(BarrierEntry)), log, generation)

    async def reopen_generation(self, log: TopicIdPartition, generation: int) -> bool:
        return await self._call(Function("reopen_generation", value(bool)), log, generation)

    async def void_expired_quiesce(self, log: TopicIdPartition) -> bool:
        return await self._call(Function("void_expired_quiesce", value(bool)), log)

    async def initialize_diskless_migration(self, boundary: BoundaryToPersist) -> None:
        await self._call(
            Function("initialize_diskless_migration", nothing),
            boundary.log,
            boundary.boundary,
            boundary.leader_epoch,
            boundary.generation,
            _seeds(boundary.seeds),
            boundary.prefix_log_start,
            boundary.prefix_max_timestamp,
            boundary.prefix_max_timestamp_offset,
        )

    async def set_diskless_log_start_offset(
        self, log: TopicIdPartition, boundary: int, leader_epoch: int
    ) -> None:
        function = Function("set_diskless_log_start_offset", nothing)
        await self._call(function, log, boundary, leader_epoch)

    async def get_diskless_log_start_offset(self, log: TopicIdPartition) -> int:
        return await self._call(Function("get_diskless_log_start_offset", value(int)), log)

    async def seed_producer_state(
        self, log: TopicIdPartition, seeds: Iterable[ProducerSeed]
    ) -> None:
        await self._call(Function("seed_producer_state", nothing), log, _seeds(seeds))

    async def reset_boundary(
        self, log: TopicIdPartition, generation: int, leader_epoch: int
    ) -> None:
        await self._call(Function("reset_boundary", nothing), log, generation, leader_epoch)

    async def abort_migration(self, topic_id: UUID) -> None:
        await self._call(Function("abort_migration", nothing), topic_id)

    # Requests, phases, readiness, config overrides

    async def request_migration(
        self, topic: str, topic_id: UUID, requested_by: str, options: Mapping[str, Any]
    ) -> None:
        function = Function("request_migration", nothing)
        await self._call(function, topic, topic_id, requested_by, options)

    async def pending_requests(self) -> list[MigrationRequest]:
        return await self._call(Function("pending_requests", rows(MigrationRequest)))

    async def started_requests(self) -> list[MigrationRequest]:
        return await self._call(Function("started_requests", rows(MigrationRequest)))

    async def list_requests(self, topic: str | None = None) -> list[MigrationRequest]:
        return await self._call(Function("list_requests", rows(MigrationRequest)), topic)

    async def settle_request(
        self,
        topic_id: UUID,
        requested_at: datetime,
        state: RequestState,
        reason: str = "",
        retry_after_ms: int = 0,
    ) -> bool:
        function = Function("settle_request", value(bool))
        return await self._call(function, topic_id, requested_at, state, reason, retry_after_ms)

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
        function = Function("record_configuration", nothing)
        await self._call(function, topic, topic_id, decided_by, reason, details, action, partition)

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
        function = Function("accept_gap", nothing)
        about = (generation, leader_epoch, first, end, decided_by, reason, details)
        await self._call(function, log, *about)

    async def force_completion(self, topic_id: UUID, decided_by: str, reason: str) -> list[int]:
        function = Function("force_completion", value(list))
        return await self._call(function, topic_id, decided_by, reason)

    async def call_off_request(self, topic_id: UUID, decided_by: str, reason: str) -> None:
        await self._call(Function("call_off_request", nothing), topic_id, decided_by, reason)

    async def list_operator_actions(self, topic: str | None = None) -> list[OperatorAction]:
        return await self._call(Function("list_operator_actions", rows(OperatorAction)), topic)

    async def record_plan_outcome(
        self,
        plan: str,
        topics: Collection[str],
        outcome: PlannedOutcome,
        reason: str = "",
        run: str = "",
    ) -> None:
        function = Function("record_plan_outcome", nothing)
        await self._call(function, plan, list(topics), outcome, reason, run)

    async def plan_outcomes(self, plan: str) -> list[PlannedTopic]:
        return await self._call(Function("plan_outcomes_of", rows(PlannedTopic)), plan)

    async def aborted_topics(self, topics: Collection[str]) -> list[AbortedTopic]:
        return await self._call(Function("aborted_topics", rows(AbortedTopic)), list(topics))

    async def rejected_topics(self, topics: Collection[str]) -> list[RejectedTopic]:
        return await self._call(Function("rejected_topics", rows(RejectedTopic)), list(topics))

    async def record_phase(
        self,
        log: TopicIdPartition,
        generation: int,
        phase: Phase,
        status: PhaseStatus,
        evidence: Mapping[str, Any],
        waiting_reason: str | None = None,
    ) -> None:
        function = Function("record_phase", nothing)
        await self._call(function, log, generation, phase, status, evidence, waiting_reason)

    async def phase_began(self, log: TopicIdPartition, phase: Phase) -> datetime | None:
        return await self._call(Function("phase_began", value(_moment)), log, phase)

    async def migration_status(self, topic: str | None = None) -> list[PartitionMigrationStatus]:
        return await self._call(Function("migration_status", rows(PartitionMigrationStatus)), topic)

    async def migration_summary(self) -> list[TopicMigrationSummary]:
        return await self._call(Function("migration_summary", rows(TopicMigrationSummary)))

    async def topic_states(self, state: MigrationState | None = None) -> list[TopicState]:
        return await self._call(Function("topic_states", rows(TopicState)), state)

    async def migration_changes(self, since: str | None) -> MigrationChanges:
        function = Function("migration_changes", _migration_changes, many=True)
        return await self._call(function, since)

    async def migration_status_changes(self, since: str | None) -> MigrationStatusChanges:
        function = Function("migration_status_changes", _status_changes, many=True)
        return await self._call(function, since)

    async def told(self, topics: Collection[str] | None = None) -> dict[str, Told]:
        names = None if topics is None else list(topics)
        return await self._call(Function("told_of_topics", _told, many=True), names)

    async def set_tiering_complete(
        self, log: TopicIdPartition, generation: int, complete: bool, reason: str
    ) -> None:
        function = Function("set_tiering_complete", nothing)
        await self._call(function, log, generation, complete, reason)

    async def record_readiness(self, topic_id: UUID, looks: Sequence[ReadinessLook]) -> list[int]:
        function = Function("record_readiness", values(int))
        return await self._call(function, topic_id, document(looks))

    async def override_config(
        self,
        topic_id: UUID,
        key: str,
        override_value: str | None,
        user_value: str | None,
        round: int | None = None,
    ) -> None:
        function = Function("override_config", nothing)
        await self._call(function, topic_id, key, override_value, user_value, round)

    async def update_user_config(self, topic_id: UUID, key: str, user_value: str | None) -> bool:
        function = Function("update_user_config", value(bool))
        return await self._call(function, topic_id, key, user_value)

    async def update_topic_limits(
        self,
        topic_id: UUID,
        *,
        timestamp_type: str | None = None,
        max_message_bytes: int | None = None,
        timestamp_before_max_ms: int | None = None,
        timestamp_after_max_ms: int | None = None,
    ) -> None:
        function = Function("update_topic_limits", nothing)
        await self._call(
            function,
            topic_id,
            timestamp_type,
            max_message_bytes,
            timestamp_before_max_ms,
            timestamp_after_max_ms,
        )

    async def follow_default_limit(self, topic_id: UUID, key: str, seen: str, default: str) -> bool:
        function = Function("follow_default_limit", value(bool))
        return await self._call(function, topic_id, key, seen, default)

    async def release_config(
        self, topic_id: UUID, key: str, user_value: str | None, round: int | None = None
    ) -> bool:
        function = Function("release_config", value(bool))
        return await self._call(function, topic_id, key, user_value, round)

    async def config_overrides_of(self, topic_id: UUID) -> dict[str, ConfigOverride]:
        found = await self._call(Function("config_overrides_of", rows(ConfigOverride)), topic_id)
        return {override.key: override for override in found}

    async def take_migration_place(
        self, asking: PlaceHolder, places: int, doubt_ms: int
    ) -> MigrationPlace:
        function = Function("take_migration_place", only(MigrationPlace))
        return await self._call(
            function, asking.topic_id, asking.topic, asking.run, places, doubt_ms
        )

    async def phase_durations(self, partitions: int) -> list[StepDuration]:
        return await self._call(Function("phase_durations", rows(StepDuration)), partitions)

    async def migration_limits(self) -> MigrationLimits | None:
        return await self._call(Function("migration_limits_of", first(MigrationLimits)))

    async def set_migration_limits(
        self, topics: int | None, partitions: int | None, set_by: str, reason: str
    ) -> None:
        function = Function("set_migration_limits", nothing)
        await self._call(function, topics, partitions, set_by, reason)

    async def migration_share(self, topic_id: UUID) -> int | None:
        return await self._call(Function("migration_share", value(_number)), topic_id)

    async def leave_migration_place(self, topic_id: UUID, run: str) -> bool:
        return await self._call(Function("leave_migration_place", value(bool)), topic_id, run)

    async def record_findings(self, topic_id: UUID, findings: Sequence[Finding]) -> None:
        function = Function("record_findings", nothing)
        await self._call(function, topic_id, document(findings))

    async def findings(self, topic: str | None = None) -> list[WatchFinding]:
        return await self._call(Function("watch_findings_of", rows(WatchFinding)), topic)

    async def verify_verdicts(self, topic: str | None = None) -> list[VerifyVerdict]:
        return await self._call(Function("verify_verdicts_of", rows(VerifyVerdict)), topic)

    # The data path

    async def register_object_keys(
        self, gateway_id: int, incarnation: UUID, keys: Sequence[str]
    ) -> None:
        function = Function("register_object_keys", nothing)
        await self._call(function, gateway_id, incarnation, list(keys))

    async def commit_file(
        self,
        gateway_id: int,
        incarnation: UUID,
        object_key: str,
        size: int,
        batches: Sequence[BatchToCommit],
        stream: StreamPlace | None = None,
    ) -> list[CommittedBatch]:
        partitions = literals(batches, "log.topic_id", "log.partition")
        shapes = literals(batches, "byte_offset", "byte_size", "record_count", "max_timestamp")
        by_append = array_literal(batch.timestamp_type == LOG_APPEND_TIME for batch in batches)
        producers = literals(
            batches, "producer_id", "producer_epoch", "base_sequence", "last_sequence"
        )
        committed = await self._call(
            Function("commit_file", _committed),
            gateway_id,
            incarnation,
            object_key,
            size,
            *partitions,
            *shapes,
            by_append,
            *producers,
            None if stream is None else stream.sequence,
            None if stream is None or not stream.withdrawn else list(stream.withdrawn),
            [] if stream is None else list(stream.tells),
        )
        self._pool.acknowledged(object_key)
        return committed

    async def untold_commits(
        self, gateway_id: int, incarnation: UUID, limit: int
    ) -> list[UntoldCommit]:
        function = Function("untold_commits", rows(UntoldCommit))
        return await self._call(function, gateway_id, incarnation, limit)

    async def find_batches(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        if not requests:
            return []
        function = Function("find_batches", found_batches)
        names = ("log.topic_id", "log.partition", "fetch_offset", "max_bytes")
        return await self._call(function, *literals(requests, *names))

    async def list_offsets(
        self, log: TopicIdPartition, kind: ListOffsetsKind, timestamp: int | None = None
    ) -> SuffixOffset:
        return await self._call(Function("list_offsets", _suffix_offset), log, kind, timestamp)

    async def high_watermarks(
        self,
        logs: Sequence[TopicIdPartition],
        known: Mapping[TopicIdPartition, int] | None = None,
    ) -> dict[TopicIdPartition, int]:
        if not logs:
            return {}
        function = Function("high_watermarks", _high_watermarks)
        below = array_literal((known or {}).get(log, -1) for log in logs)
        return await self._call(function, *literals(logs, "topic_id", "partition"), below)

    async def describe_producers(
        self, logs: Sequence[TopicIdPartition], limit: int
    ) -> dict[TopicIdPartition, list[LogProducer]]:
        if not logs:
            return {}
        function = Function("describe_producers", _log_producers)
        return await self._call(function, *columns(logs, "topic_id", "partition"), limit)

    async def delete_records(self, log: TopicIdPartition, before_offset: int) -> int:
        return await self._call(DELETE_RECORDS, log, before_offset)

    async def advance_prefix_start(self, log: TopicIdPartition, log_start: int) -> None:
        await self._call(ADVANCE_PREFIX_START, log, log_start)

    # The server

    async def connection_room(self) -> ConnectionRoom:
        (found,) = await self._pool.fetch(
            b"SELECT current_setting('max_connections')::int AS max_connections,"
            b" current_setting('superuser_reserved_connections')::int"
            b" + coalesce(current_setting('reserved_connections', true), '0')::int AS reserved,"
            b" rolname AS role, rolconnlimit AS role_limit"
            b" FROM pg_roles WHERE rolname = session_user"
        )
        return mapper(ConnectionRoom)(found)

    async def check_synchronous_commit(self) -> CommitDurability:
        found = await self._pool.fetch(
            b"SELECT name, setting FROM pg_settings WHERE name IN "
            b"('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names')"
        )
        settings = {row["name"]: row["setting"] for row in found}
        standbys = await self._call(Function("attached_standbys", rows(Standby)))
        return _durability(settings, tuple(standbys))

    async def tell_of_commits(self) -> None:
        await self._pool.fetch(b"SELECT pg_notify('tideline_commits', '')", retry=False)

    def listen(
        self, channels: Sequence[str], on_listening: Callable[[], None] | None = None
    ) -> AsyncIterator[tuple[str, str]]:
        return self._pool.listen(channels, on_listening)


def _seeds(seeds: Iterable[ProducerSeed]) -> Jsonb:
    """In one order, so that equal seeds have one spelling."""
    ordered = sorted(seeds, key=lambda s: (s.producer_id, s.producer_epoch, s.base_offset))
    return document(ordered)


def _beat(seen: ServerIdentity | None) -> tuple[int | None, UUID | None]:
    return (seen.beat, seen.token) if seen else (None, None)


def _uuid(found: object) -> UUID:
    return found if isinstance(found, UUID) else UUID(str(found))


def _text(found: object) -> str | None:
    return None if found is None else str(found)


def _number(found: object) -> int | None:
    return found if isinstance(found, int) else None


def _moment(found: object) -> datetime | None:
    return found if isinstance(found, datetime) else None


def _topics(found: Sequence[Row]) -> list[TrackedTopic]:
    return list(map(_topic, found))


def _topic(row: Row) -> TrackedTopic:
    """Partitions and overrides are jsonb arrays; a topic has them by number and by key.

    What a newer version has written and this one cannot read is not guessed, and costs no other
    topic its reading: the partition has no row here, or the topic no partitions, so that nobody
    serves it (architecture "Fencing 3").
    """
    overrides = {view["key"]: mapper(ConfigOverride)(view) for view in row["overrides"]}
    views = {view["partition"]: _partition(view) for view in row["partitions"]}
    partitions = {number: view for number, view in views.items() if view is not None}
    whole = {**row, "partitions": partitions, "overrides": overrides}
    try:
        return mapper(TrackedTopic)(whole)
    except ValueError as error:
        _log_unknown(row["name"], error)
        known = {"kind": TrackingKind.MIGRATED, "status": TopicStatus.ACTIVE, "partitions": {}}
        return mapper(TrackedTopic)({**whole, **known})


def _partition(view: Row) -> TrackedPartition | None:
    try:
        return mapper(TrackedPartition)(view)
    except ValueError as error:
        _log_unknown(f"{view['topic_id']}-{view['partition']}", error)
        return None


def _log_unknown(what: str, error: ValueError) -> None:
    log.error(
        "tracked.unknown_to_this_version",
        of=what,
        error=str(error),
        remedy="upgrade this process to the version of those that write it; until then it serves "
        "nothing of this",
    )


def _changes(found: Sequence[Row]) -> TrackedChanges:
    """The first row says how far it goes; the others are what :func:`_topics` reads, a name
    under which nothing is tracked, or partitions of a topic that is as it was otherwise."""
    reading, *changes = found
    whole = [row for row in changes if not row["by_partition"]]
    return TrackedChanges(
        upto=reading["upto"],
        identity=mapper(ServerIdentity)(reading["identity"]),
        names=frozenset(row["changed"] for row in whole),
        topics=tuple(_topics([row for row in whole if row["name"] is not None])),
        rows={
            TopicIdPartition(row["topic_id"], view["partition"]): _partition(view)
            for row in changes
            if row["by_partition"]
            for view in row["partitions"]
        },
    )


def _migration_changes(found: Sequence[Row]) -> MigrationChanges:
    reading, *changes = found
    summaries = rows(TopicMigrationSummary)([row for row in changes if row["topic"] is not None])
    return MigrationChanges(reading["upto"], reading["whole"], _names(changes), tuple(summaries))


def _status_changes(found: Sequence[Row]) -> MigrationStatusChanges:
    reading, *changes = found
    read = [row for row in changes if row["phases"] is not None]
    moved = [row for row in changes if row["topic"] is not None and row["phases"] is None]
    return MigrationStatusChanges(
        reading["upto"],
        reading["whole"],
        _names(changes),
        tuple(rows(PartitionMigrationStatus)(read)),
        tuple(rows(MovedHighWatermark)(moved)),
    )


def _told(found: Sequence[Row]) -> dict[str, Told]:
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        by_kind[row["kind"]].append(row["told"])
    return told_by_topic(
        rows(MigrationRequest)(by_kind["request"]),
        rows(OperatorAction)(by_kind["action"]),
        rows(VerifyVerdict)(by_kind["verdict"]),
        rows(WatchFinding)(by_kind["finding"]),
    )


def _names(changes: Iterable[Row]) -> frozenset[str]:
    return frozenset(row["changed"] for row in changes if row["changed"] is not None)


def partition_view(found: Sequence[Row]) -> TrackedPartition | None:
    view = found[0]["tracked_partition"] if found else None
    return mapper(TrackedPartition)(view) if view else None


def _committed(found: Sequence[Row]) -> list[CommittedBatch]:
    """As :func:`~tideline.control_plane.calls.rows` has them; each object has hundreds."""
    return [
        CommittedBatch(
            CommitError(row["error"]),
            row["base_offset"],
            row["append_time"],
            row["log_start"],
            row["high_watermark"],
        )
        for row in found
    ]


def _coordinates(row: Row) -> BatchCoordinates | None:
    if row["object_key"] is None:
        return None
    return BatchCoordinates(
        object_key=row["object_key"],
        byte_offset=row["byte_offset"],
        byte_size=row["byte_size"],
        base_offset=row["base_offset"],
        last_offset=row["last_offset"],
        timestamp_type=LOG_APPEND_TIME if row["log_append_time"] else CREATE_TIME,
        append_time=row["append_time"],
        max_timestamp=row["max_timestamp"],
    )


def found_batches(found: Sequence[Row]) -> list[FoundBatches]:
    """Rows come in the order of the requests, one per batch and one without any for none."""
    return [_found(list(answer)) for _, answer in groupby(found, key=lambda row: row["request"])]


def _found(answer: Sequence[Row]) -> FoundBatches:
    segment = answer[0]["segment"]
    return FoundBatches(
        error=answer[0]["error"],
        log_start=answer[0]["log_start"],
        high_watermark=answer[0]["high_watermark"],
        batches=tuple(filter(None, map(_coordinates, answer))),
        segment=None if segment is None else mapper(SegmentCoordinates)(segment),
    )


def _suffix_offset(found: Sequence[Row]) -> SuffixOffset:
    (row,) = found
    return SuffixOffset(
        error=row["error"],
        offset=row["found_offset"],
        timestamp=row["found_timestamp"],
        batch=_coordinates(row),
        segments=tuple(map(mapper(SegmentCoordinates), row["segments"])),
        suffix_start=row["suffix_start"],
    )


def _standings(found: Sequence[Row]) -> dict[TopicIdPartition, Standing]:
    standing = mapper(Standing)
    return {TopicIdPartition(row["topic_id"], row["partition"]): standing(row) for row in found}


def _high_watermarks(found: Sequence[Row]) -> dict[TopicIdPartition, int]:
    return {mapper(TopicIdPartition)(row): row["high_watermark"] for row in found}


def _log_producers(found: Sequence[Row]) -> dict[TopicIdPartition, list[LogProducer]]:
    told: dict[TopicIdPartition, list[LogProducer]] = {}
    for row in found:
        told.setdefault(mapper(TopicIdPartition)(row), []).append(mapper(LogProducer)(row))
    return told


def _durability(settings: dict[str, str], standbys: tuple[Standby, ...]) -> CommitDurability:
    """Preflight asks: B0 and acknowledgements must outlive a crash (schedule 16)."""
    if settings["fsync"] != "on" or settings["full_page_writes"] != "on":
        risk = "fsync or full_page_writes is off: a crash of the host loses commits"
    elif (waits := settings["synchronous_commit"]) in ("off", "local"):
        risk = f"synchronous_commit is {waits}: a crash or failover loses commits"
    elif names := settings["synchronous_standby_names"]:
        return CommitDurability(True, f"commits wait for {names}", settings, standbys)
    else:
        found = "commits wait for the disk; without synchronous_standby_names do not fail over"
        return CommitDurability(True, f"{found} to a standby", settings, standbys)
    return CommitDurability(False, f"{risk}. Turn it on in postgresql.conf.", settings, standbys)
