"""What gateways, the worker and the CLI ask of the control plane, the only authority on B0.

Two planes keep these promises: :class:`tideline.control_plane.postgres.PostgresControlPlane`, and
:class:`tideline.control_plane.memory.MemoryControlPlane` for tests and simulations. tests/contract
runs one suite against both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from tideline.control_plane import row_readers
from tideline.control_plane.calls import (
    BEAT,
    OBSERVED,
    READS,
    TOLD,
    attributes,
    call,
    columns,
    documents,
    value,
)
from tideline.control_plane.model import (
    AbortedTopic,
    BarrierEntry,
    BatchToCommit,
    BoundaryToPersist,
    ClusterAttestation,
    CommitDurability,
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
    TrackedChanges,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
    UnheardGateway,
    UntoldCommit,
    WatchFinding,
)
from tideline.control_plane.table_model import VerifyVerdict
from tideline.control_plane.told_model import Told
from tideline.domain.ack_gate import Standing
from tideline.domain.connections import ConnectionRoom
from tideline.domain.estimate import StepDuration
from tideline.domain.history import ServerIdentity
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import MigrationState, Phase, PhaseStatus
from tideline.domain.places import MigrationPlace, PlaceHolder
from tideline.domain.producer_tail import ProducerSeed
from tideline.domain.quiescence import LeaseReading
from tideline.domain.watched import Finding

PROCESSES = "about processes that are gone with the old Postgres, or register anew"
OPERATORS = "an operator's word, said again to a rebuilt Postgres"
PROGRESS = "progress of a migration: it is observed anew"
BIRTH = "a name without an id holds no record; Kafka tells whether the topic is there"
NEW_HISTORY = "a rebuilt Postgres begins a history of its own"
"""Why a rebuild does without what these calls change."""
LOGS = columns("topic_id", "partition")

CONTROL_CHANNEL = "tideline_control"
"""``topic:<name>`` or ``log:<topic_id>:<partition>``: read it again."""
ACKS_CHANNEL = "tideline_acks"
"""``tracking:<name>`` or ``quiesce:<topic_id>:<partition>:<generation>``."""
REQUESTS_CHANNEL = "tideline_requests"
"""Name of a topic whose migration was requested."""
REPORTS_CHANNEL = "tideline_reports"
"""Nothing more: a gateway asks for a birth, or reports a deletion."""
COMMITS_CHANNEL = "tideline_commits"
"""Nothing more: a log that was quiet has had a commit."""


class ControlPlane(Protocol):
    """Every operation of the control plane, each of them one transaction.

    Each raises ``ControlPlaneUnavailable`` when Postgres cannot be reached in time, and a typed
    refusal of :mod:`tideline.control_plane.errors` when a rule forbids it. All are idempotent, so
    an operation whose outcome is unknown may be repeated. Each says which SQL function it calls and
    whether the catalog tells it (:func:`tideline.control_plane.calls.call`).
    """

    # Gateways: incarnations, leases and fences.

    @call(PROCESSES, lane="lease", watched=attributes("incarnation", "renewals"))
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
        """Register this process. An older incarnation of the id is over for ever.

        Over one that is active this needs ``watched``: its counter as the caller has seen it stand
        still for its lease and a margin. Raises ``GatewayIdHeld`` without it, or when the counter
        has moved since. ``rack``, ``stand_ins`` and ``serving`` are what other gateways learn of
        it (:class:`~tideline.control_plane.model.GatewayRegistration`).

        Load the tracked topics only after this has returned, and serve only after that: whoever
        counts gateways at a barrier then either sees this one or has been seen by it.
        Raises ``GatewayRetired`` for a retired id, ``GatewayFenced`` for an ended incarnation.
        """

    @call(PROCESSES, retry=False, lane="lease")
    async def renew_lease(self, gateway_id: int, incarnation: UUID) -> int:
        """Count one renewal and return the counter. Not retried: the caller times its validity
        from before the call. Raises ``GatewayFenced``.
        """

    @call(PROCESSES, retry=False, lane="lease")
    async def renew_and_list(self, gateway_id: int, incarnation: UUID) -> list[GatewayRegistration]:
        """As :meth:`renew_lease`, and what :meth:`list_gateways` answers behind it."""

    @call(PROCESSES, lane="lease")
    async def note_serving(self, gateway_id: int, incarnation: UUID, serving: bool) -> None:
        """Tell other gateways whether this one accepts connections. Raises ``GatewayFenced``."""

    @call(READS)
    async def list_gateways(self) -> list[GatewayRegistration]:
        """Every gateway ever registered, by id, retired ones included."""

    @call(PROCESSES, lane="lease")
    async def release_gateway(self, gateway_id: int, incarnation: UUID) -> None:
        """The process stops and has nothing left to tell: the incarnation is over, and the next
        one may register at once. No error if it is over already.
        """

    @call(PROCESSES)
    async def fence_gateway(
        self, gateway_id: int, incarnation: UUID, renewals: int, reason: str
    ) -> bool:
        """Fence the incarnation, whose counter the caller has seen stand still at ``renewals``.

        False when it was renewed since, a newer one has registered, or it is released or retired:
        look again.
        """

    @call(PROCESSES)
    async def retire_gateway(self, gateway_id: int, attested_by: str) -> None:
        """Remove the id from every barrier: ``attested_by`` made sure that it is cut off.

        Raises ``UnknownGateway``.
        """

    @call(PROCESSES)
    async def account_incarnations(
        self, gateway_id: int, incarnations: Sequence[UUID], how: str
    ) -> None:
        """Nothing acts under these any more, for certain: the caller is the same process under
        another incarnation, stops, or holds the lock of their state directory. Those that have
        not ended, or are accounted for, stay as they are.
        """

    @call(PROCESSES)
    async def attest_incarnations_gone(
        self, gateway_id: int, incarnations: Sequence[UUID], attested_by: str
    ) -> None:
        """An operator's word for :meth:`account_incarnations`. Raises ``InvalidInput`` when nobody
        attests, ``UnknownGateway`` for an incarnation of the id that has not ended.
        """

    @call(READS)
    async def unaccounted_incarnations(self) -> list[GatewayRegistration]:
        """Replaced incarnations that may still run, with status ``unaccounted`` and, as
        ``registered_at``, the time of their end. Not those of retired ids.
        """

    # Which history of commits this is (schedule 16; :mod:`tideline.domain.history`).

    @call(READS, "server_identity", seen=BEAT)
    async def identity(self, seen: ServerIdentity | None = None) -> ServerIdentity:
        """What the server says of itself; ``knows``: whether it has the beat of ``seen``."""

    @call(NEW_HISTORY)
    async def beat_history(self) -> int:
        """Write one more beat; its number."""

    @call("the owner object says it")
    async def bind_cluster(self, cluster_id: str) -> None:
        """The first cluster that is named is the installation's for good.

        Raises ``WrongCluster`` for another one, ``InvalidInput`` for an empty id.
        """

    @call(NEW_HISTORY)
    async def halt_history(self, history_id: UUID, why: str) -> None:
        """Somebody misses a commit that was acknowledged in this history: nobody may go on in it.
        The first word stays. Nothing where an operator has begun another one."""

    @call(NEW_HISTORY)
    async def begin_history(self, begun_by: str, reason: str) -> UUID:
        """An operator goes on with what is here, under the new id that is returned. Generations
        and tiering tokens go on far behind all that were ever given: who holds one is stale.

        Raises ``InvalidInput`` without a name and a reason.
        """

    @call(READS)
    async def unheard_gateways(self) -> list[UnheardGateway]:
        """Those that were active before a promotion and have not renewed after it; none once it is
        known that the timeline lacks nothing. Until then commits, B0s, registrations, and what
        clients are shown of suffixes raise ``TimelineUnsettled``, beats are not written and nobody
        is fenced."""

    @call(PROCESSES, stored=columns("key", "incarnation", "sequence"))
    async def settle_for_absent(
        self, timeline: int, gone: Sequence[UUID], stored: Sequence[StoredObject]
    ) -> str | None:
        """The bucket was looked into for the incarnations ``gone``: ``stored`` are its objects that
        nobody has told to be given up. Why the history was halted, if one of them may have been
        acknowledged and is not committed here; ``None``: nothing is missing of these
        incarnations."""

    @call(READS)
    async def unknown_keys(self, keys: Sequence[str]) -> list[str]:
        """Those of these keys of the diskless bucket that nothing here has heard of."""

    # Attestations: nobody but gateways reaches the brokers of a cluster as a client.

    @call(OPERATORS)
    async def attest_cluster(self, cluster_id: str, attested_by: str, reason: str) -> None:
        """Record who made sure, and how. One that is in force stays as it is.

        Raises ``InvalidInput`` when one of the three is empty.
        """

    @call(OPERATORS)
    async def withdraw_attestation(self, cluster_id: str, withdrawn_by: str, reason: str) -> None:
        """No migration begins from now on; those that have begun go on.

        Raises ``ClusterNotAttested``, ``InvalidInput``.
        """

    @call(READS, "cluster_attestations_of")
    async def attestations(self, cluster_id: str | None = None) -> list[ClusterAttestation]:
        """Of one cluster or of all, withdrawn ones too, newest first."""

    # Tracked topics, and the barrier before any of them starts to migrate.

    @call(READS)
    async def tracked_topics(self) -> list[TrackedTopic]:
        """Every tracked topic, whole, in one snapshot. A deleted topic, or one that gateways let
        go of after an abort, is not among them.
        """

    @call(READS, read=row_readers.tracked_changes, many=True, seen=BEAT)
    async def tracked_changes(
        self, since: str, seen: ServerIdentity | None = None
    ) -> TrackedChanges:
        """Topics that have changed since the reading that answered ``since``, or their partitions
        where nothing else has: by what gateways route and answer by, not by offsets that move with
        commits, retention and tiering. What was being written at that reading and was committed
        later is among them, and some may come twice. With what :meth:`identity` answers."""

    @call(READS)
    async def tracked_changes_begin(self) -> str:
        """The ``since`` of everything that changes from now on: ask before
        :meth:`tracked_topics`."""

    @call(READS, "tracked_topics", read=row_readers.tracked_topic)
    async def tracked_topic(self, name: str) -> TrackedTopic | None:
        """The live tracked topic of that name."""

    @call(READS, read=row_readers.partition_view)
    async def tracked_partition(self, topic_id: UUID, partition: int) -> TrackedPartition | None:
        """One partition of a live tracked topic."""

    @call(TOLD)
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
        """Track ``name`` and answer the round; repeats succeed. Topics that are to migrate get
        ``MIGRATING`` partitions; topics born diskless with a known id get B0 = 0 at epoch 0.

        After an abort this begins a new round with fresh generations and no acknowledgements.
        ``run`` names the migration's run: it belongs to one round, and to none once it is over.
        Raises ``RoundOver``, ``TopicIdentityConflict`` while another id or kind is live under the
        name, ``TopicDeleted`` for a deleted id.
        """

    @call(TOLD)
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
        """Track a topic that is to migrate, as :meth:`begin_tracking`; what a worker may do.

        Raises ``ClusterNotAttested`` when a round would begin and nobody attests that
        ``cluster_id`` is closed to clients; a round that has begun may be repeated.
        """

    @call(TOLD)
    async def complete_creation(self, name: str, topic_id: UUID, partitions: int) -> None:
        """Kafka has given a topic born diskless its id: a new round, in which every gateway has to
        acknowledge it by its id before it is activated. Raises ``TopicIdentityConflict``."""

    @call(PROGRESS)
    async def end_tracking_run(self, run: str) -> None:
        """The migration's run begins no round any more, not even by an attempt that sleeps now."""

    @call(PROCESSES)
    async def acknowledge_tracking(
        self, gateway_id: int, incarnation: UUID, name: str, round: int | None = None
    ) -> None:
        """This incarnation tracks ``name`` durably, in ``round`` (``None``: the present one).
        Raises ``GatewayFenced``, ``UnknownTopic``, ``RoundOver``.
        """

    @call(READS)
    async def tracking_barrier(self, name: str) -> list[BarrierEntry]:
        """Every gateway that is not retired. One that is fenced or stopped counts: when it wakes
        it would pass a topic that it does not know through untracked, until it learns of that. So
        does each of :meth:`unaccounted_incarnations`, which no acknowledgement speaks for.
        """

    @call(PROGRESS)
    async def activate_topic(self, name: str, round: int | None = None) -> None:
        """TRACKING → ACTIVE. Raises ``TrackingIncomplete`` naming the gateways that are missing,
        ``NotMigrating`` after an abort, ``RoundOver`` when it is not in ``round``.
        """

    @call(TOLD)
    async def add_partitions(self, name: str, topic_id: UUID, first: int, total: int) -> None:
        """Partitions from ``first`` up to ``total`` (exclusive), whose logs in Kafka the caller has
        seen empty, are born diskless at B0 = 0; those that are known stay as they are.

        Raises ``PartitionsMigrating`` while one of the topic has no B0 (schedule 22),
        ``UnknownLog`` when one below ``first`` is not known either: nobody has looked at it, and
        ``TopicIdentityConflict`` when the name is another topic's.
        """

    @call("refused while a partition has B0: Kafka has every record of the topic")
    async def stop_tracking(self, name: str, round: int | None = None) -> None:
        """Gateways let go of the topic after an abort, or of a creation that failed.

        Raises ``AbortRefused`` while a partition migrates or has B0, ``RoundOver`` when it is not
        in ``round``. Generations are kept.
        """

    @call(TOLD)
    async def delete_topic(
        self, topic_id: UUID, by: str = "gateway", why: str = "Kafka deleted it"
    ) -> None:
        """Kafka deleted the topic: its id is refused for ever, its name is free. Who says so and
        why is kept from the first call. An untracked id is no error."""

    @call(READS)
    async def live_topics(self) -> list[LiveTopic]:
        """Every topic that is not deleted, by name, also one let go of after an abort."""

    @call(READS)
    async def deleted_topics(self, within_ms: int, limit: int) -> list[Tombstone]:
        """The tombstones of the last ``within_ms``, newest first, at most ``limit``."""

    # What gateways say of Kafka, until the worker has asked the brokers.

    @call(BIRTH)
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
        """A topic is to be born diskless; repeats are one, until :meth:`withdraw_birth`. Answers
        why the worker has refused it, once; ``None``: it has not. Raises ``InvalidInput``."""

    @call(BIRTH)
    async def withdraw_birth(self, name: str) -> None:
        """The caller waits for it no more."""

    @call(READS)
    async def open_births(self) -> list[OpenBirth]:
        """Those that a gateway waits for, and those that were begun and nobody waits for."""

    @call(BIRTH)
    async def begin_birth(self, name: str) -> None:
        """Track the name as :meth:`begin_tracking` does, as the first gateway has asked for it.
        Raises ``UnknownTopic`` when none does."""

    @call(BIRTH)
    async def refuse_birth(self, name: str, why: str) -> None:
        """Each gateway that waits for it is told why."""

    @call("the worker counts it, once it has asked Kafka")
    async def report_deletion(self, topic_id: UUID) -> bool:
        """Kafka may have deleted it. Whether no live topic has the id (any more)."""

    @call(READS)
    async def open_deletions(self) -> list[ReportedDeletion]:
        """Reports that are not settled, of topics that are not deleted."""

    @call("a rebuild asks Kafka for every topic")
    async def settle_deletion(self, topic_id: UUID) -> None:
        """There is nothing to look for any more."""

    @call(BIRTH)
    async def release_birth(self, topic_key: int, by: str, why: str) -> bool:
        """A creation that did not end lets go of its name. False when it has an id by now."""

    # Generations, quiesce, B0 and its abort. Each raises ``UnknownLog`` for a partition without a
    # row and ``TopicDeleted`` for one of a deleted topic.

    @call("a rebuilt Postgres goes on far behind every generation that is told")
    async def next_generation(self, log: TopicIdPartition) -> int:
        """Take the next generation; everything older is stale, an older quiesce is void.

        Raises ``NotMigrating`` after an abort.
        """

    @call(PROGRESS)
    async def close_generation(self, log: TopicIdPartition, generation: int, hold_ms: int) -> None:
        """Quiesce: gateways park produces, for ``hold_ms`` (1 to 600000) at most.

        A generation closes once: after a void or reopened quiesce take the next one. Raises
        ``StaleGeneration``, ``TrackingIncomplete``, ``BoundaryAlreadySet``, ``QuiesceNotClosed``,
        ``NotMigrating``, ``InvalidInput``.
        """

    @call(PROGRESS)
    async def acknowledge_quiesce(
        self,
        gateway_id: int,
        incarnation: UUID,
        log: TopicIdPartition,
        generation: int,
        highest_acknowledged_offset: int,
        read_ceiling: int,
    ) -> None:
        """Nothing is in flight any more. ``highest_acknowledged_offset`` (inclusive, -1: none) is
        what this gateway relayed as acknowledged; ``read_ceiling`` (exclusive) is the high
        watermark that it clips reads to.

        Raises ``GatewayFenced``, ``StaleGeneration``, ``QuiesceNotClosed``.
        """

    @call(READS, read=row_readers.standings, retry=False, lane="confirm", logs=LOGS)
    async def confirm_partitions(
        self, gateway_id: int, incarnation: UUID, logs: Sequence[TopicIdPartition]
    ) -> dict[TopicIdPartition, Standing]:
        """How the incarnation and each of ``logs`` stand, in one snapshot taken during this call.
        A partition without a row, or of a deleted topic, is not in the answer. Not retried: the
        caller has asked anew by then.
        """

    @call(READS)
    async def quiesce_barrier(self, log: TopicIdPartition, generation: int) -> list[BarrierEntry]:
        """Every gateway that is active: neither fenced nor released nor retired."""

    @call(PROGRESS)
    async def reopen_generation(self, log: TopicIdPartition, generation: int) -> bool:
        """End the quiesce before its deadline. True when the partition takes classic appends
        again; false when B0 is set or another generation took over.
        """

    @call(PROGRESS)
    async def void_expired_quiesce(self, log: TopicIdPartition) -> bool:
        """Whether a gateway may un-park to the classic log: no generation is closed and B0 is
        unset. Ends a quiesce whose deadline has passed on the database's clock.
        """

    @call(TOLD, boundary=row_readers.boundary_given)
    async def initialize_diskless_migration(self, boundary: BoundaryToPersist) -> None:
        """Seed producer state and set B0 in one transaction: the point of no return (seed 000).

        The same boundary with the same seeds succeeds again, at its epoch or a higher one, and
        changes nothing. Raises ``StaleGeneration``, ``StaleLeaderEpoch``, ``QuiesceNotClosed``,
        ``BoundaryBelowAcknowledged``, ``BoundaryAlreadySet``, ``SeedNotBelowBoundary``,
        ``SeedMismatch``, ``NotMigrating``, ``InvalidInput``.
        """

    @call(TOLD)
    async def set_diskless_log_start_offset(
        self, log: TopicIdPartition, boundary: int, leader_epoch: int
    ) -> None:
        """Seed 000: -1 resets B0 (an empty suffix only); a value is set while unset, under a
        closed and acknowledged generation and with the seeds of :meth:`seed_producer_state`.

        Raises as :meth:`initialize_diskless_migration`, and ``ResetRefused``.
        """

    @call(READS)
    async def get_diskless_log_start_offset(self, log: TopicIdPartition) -> int:
        """B0, or -1."""

    @call("seeds count with B0, and are put together with it", seeds=row_readers.seeds_given)
    async def seed_producer_state(
        self, log: TopicIdPartition, seeds: Iterable[ProducerSeed]
    ) -> None:
        """Seed without B0; overwritable while B0 is unset, then ``SeedMismatch``."""

    @call(TOLD)
    async def reset_boundary(
        self, log: TopicIdPartition, generation: int, leader_epoch: int
    ) -> None:
        """Unset B0 and migrate anew; a boundary that is unset is no error. ``leader_epoch``: of the
        leader whose log was seen to begin past B0; no B0 is set at an older one any more.

        Raises ``StaleGeneration``, ``StaleLeaderEpoch``; ``ResetRefused`` once the suffix holds
        data (schedule 7), and after a forced completion.
        """

    @call(TOLD)
    async def abort_migration(self, topic_id: UUID) -> None:
        """Back to tiered only, if no partition of the topic has B0 (schedule 20); repeats
        succeed. Raises ``AbortRefused`` naming those that have, ``UnknownTopic``.
        """

    # Requests, phases with their evidence, readiness, and config overrides.

    @call(OPERATORS)
    async def request_migration(
        self, topic: str, topic_id: UUID, requested_by: str, options: Mapping[str, Any]
    ) -> None:
        """Ask the worker for a migration. A second request joins the first."""

    @call(READS)
    async def pending_requests(self) -> list[MigrationRequest]:
        """Requests that have to be started now, oldest first: received, or to be tried again."""

    @call(READS)
    async def started_requests(self) -> list[MigrationRequest]:
        """Those whose migrations run, as far as has been told, oldest first."""

    @call(READS)
    async def list_requests(self, topic: str | None = None) -> list[MigrationRequest]:
        """The newest request of each topic, whatever became of it."""

    @call(PROGRESS)
    async def settle_request(
        self,
        topic_id: UUID,
        requested_at: datetime,
        state: RequestState,
        reason: str = "",
        retry_after_ms: int = 0,
    ) -> bool:
        """What became of the request of that moment. False, changing nothing, when another one
        took its place or it has ended (done, refused, called off).
        """

    # What operators decide. Each raises ``InvalidInput`` without a name and a reason.

    @call(OPERATORS)
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
        """Keep that options of a running migration were changed, or that it was paused, resumed or
        aborted (``action``). Its workflow has done it. ``partition``: ``None`` is the topic."""

    @call(TOLD)
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
        """Give up ``[first, end)``, which ends at B0 and which nobody holds: the caller asked every
        replica and remote storage under this generation and leader epoch.

        The same again changes nothing, a longer range replaces a shorter one. Raises
        ``BoundaryUnset``, ``StaleGeneration``, ``StaleLeaderEpoch``, ``InvalidInput``,
        ``GapAcceptedAlready``.
        """

    @call(OPERATORS, read=value(list))
    async def force_completion(self, topic_id: UUID, decided_by: str, reason: str) -> list[int]:
        """Let the topic be frozen and sealed although the prefixes of the partitions that are
        returned are not complete; nothing is recorded when there is none. Until a migration begins
        anew no B0 of the topic is reset.

        Raises ``UnknownTopic``, ``TopicDeleted``; ``CompletionRefused`` while a partition has no
        B0.
        """

    @call(OPERATORS)
    async def call_off_request(self, topic_id: UUID, decided_by: str, reason: str) -> None:
        """A request that was not started yet is not tried again. Raises ``NothingToCallOff``."""

    @call(READS)
    async def list_operator_actions(self, topic: str | None = None) -> list[OperatorAction]:
        """Everything that was decided so, oldest first."""

    @call(PROGRESS)
    async def record_plan_outcome(
        self,
        plan: str,
        topics: Collection[str],
        outcome: PlannedOutcome,
        reason: str = "",
        run: str = "",
    ) -> None:
        """What became of these topics of a planned wave, in place of what was told before."""

    @call(READS, "plan_outcomes_of")
    async def plan_outcomes(self, plan: str) -> list[PlannedTopic]:
        """What became of the plan's topics, by name; those that it never started are left out."""

    @call(READS)
    async def aborted_topics(self, topics: Collection[str]) -> list[AbortedTopic]:
        """Of these, by name, those whose last migration was aborted, by whomever."""

    @call(READS)
    async def rejected_topics(self, topics: Collection[str]) -> list[RejectedTopic]:
        """Of these, by name, those of which the last that was told, in any plan, is a rejection."""

    @call(PROGRESS)
    async def record_phase(
        self,
        log: TopicIdPartition,
        generation: int,
        phase: Phase,
        status: PhaseStatus,
        evidence: Mapping[str, Any],
        waiting_reason: str | None = None,
    ) -> None:
        """Keep what a phase observed, in place of what an earlier attempt did.

        ``generation`` 0 is "before any quiesce", for ``VALIDATE`` and ``DRAIN_TRANSACTIONS`` only.
        Raises ``StaleGeneration``, ``UnknownLog``.
        """

    @call(READS)
    async def phase_began(self, log: TopicIdPartition, phase: Phase) -> datetime | None:
        """When the phase's present attempt began; ``None``: it never did, or nothing lives under
        ``log``."""

    @call(READS)
    async def migration_status(self, topic: str | None = None) -> list[PartitionMigrationStatus]:
        """Every partition ever tracked whose topic is not deleted, aborted ones included."""

    @call(READS)
    async def migration_summary(self) -> list[TopicMigrationSummary]:
        """:meth:`migration_status` of all topics, added up by topic, without evidence."""

    @call(READS)
    async def topic_states(self, state: MigrationState | None = None) -> list[TopicState]:
        """Topics in ``state``, or all, by name. What is read grows with the topics that have a
        partition in it."""

    @call(READS, read=row_readers.migration_changes, many=True)
    async def migration_changes(self, since: str | None) -> MigrationChanges:
        """What has changed of :meth:`migration_summary` since the reading that answered ``since``
        as its ``upto``, or everything: for ``None``, and where it is not known any more what has
        changed. What was being written at that reading and was committed later is among it, and
        some may come twice."""

    @call(READS, read=row_readers.status_changes, many=True)
    async def migration_status_changes(self, since: str | None) -> MigrationStatusChanges:
        """As :meth:`migration_changes`, of :meth:`migration_status` without evidence."""

    @call(READS, "told_of_topics", read=row_readers.told, many=True)
    async def told(self, topics: Collection[str] | None = None) -> dict[str, Told]:
        """What is told of these topics, or of all, beside where they stand; by name, of those of
        which there is something. Changes of it, too, are among :meth:`migration_status_changes`,
        but for the time at which a finding was seen last."""

    @call(OBSERVED)
    async def set_tiering_complete(
        self, log: TopicIdPartition, generation: int, complete: bool, reason: str
    ) -> None:
        """Set or clear ``tieringComplete`` (seed 000, I3). Raises ``StaleGeneration``,
        ``BoundaryUnset``.
        """

    @call(OBSERVED, looks=documents)
    async def record_readiness(self, topic_id: UUID, looks: Sequence[ReadinessLook]) -> list[int]:
        """Of many partitions of a topic, as :meth:`record_phase` of READINESS and, of those that
        are complete, :meth:`set_tiering_complete` would. Returns the partitions of which it was
        kept: not those of another generation, without B0, or that are not live."""

    @call(TOLD)
    async def override_config(
        self,
        topic_id: UUID,
        key: str,
        override_value: str | None,
        user_value: str | None,
        round: int | None = None,
    ) -> None:
        """Keep ``key`` at ``override_value``. ``user_value`` is kept from the first call.
        ``round``: in which both were observed; ``None`` is the present one, whichever it is.
        Raises ``RoundOver``."""

    @call(TOLD)
    async def update_user_config(self, topic_id: UUID, key: str, user_value: str | None) -> bool:
        """The user changed a config that is overridden. False: it is not, nothing changed, and the
        change belongs into Kafka."""

    @call(TOLD)
    async def update_topic_limits(
        self,
        topic_id: UUID,
        *,
        timestamp_type: str | None = None,
        max_message_bytes: int | None = None,
        timestamp_before_max_ms: int | None = None,
        timestamp_after_max_ms: int | None = None,
    ) -> None:
        """What the suffix enforces from now on; ``None`` leaves a limit as it is.

        Raises ``UnknownTopic``.
        """

    @call(TOLD)
    async def follow_default_limit(self, topic_id: UUID, key: str, seen: str, default: str) -> bool:
        """What topics have that do not set ``key``, one of ``LIMITS``, is ``default`` in Kafka now:
        the suffix enforces it if it still enforces ``seen`` and the user has not set the key since.
        Answers whether it does. Values as DescribeConfigs has them."""

    @call(TOLD)
    async def release_config(
        self, topic_id: UUID, key: str, user_value: str | None, round: int | None = None
    ) -> bool:
        """End the override of ``key``, once Kafka has ``user_value``. False while the user's value
        is another one by now: Kafka must get that first. ``round``: in which Kafka was seen to have
        it; ``None`` is the present one, whichever it is. Raises ``RoundOver``."""

    @call(READS, read=row_readers.overrides_by_key)
    async def config_overrides_of(self, topic_id: UUID) -> dict[str, ConfigOverride]:
        """The topic's config overrides, by key."""

    @call(PROGRESS, asking=attributes("topic_id", "topic", "run"))
    async def take_migration_place(
        self, asking: PlaceHolder, places: int, doubt_ms: int
    ) -> MigrationPlace:
        """Ask for one of ``places`` of topics that migrate at once, or whether there is one by now.

        A topic is one in the order of its first question; a later run takes over what an earlier
        one has. Who has a place and was not heard of for ``doubt_ms`` is named in one answer.
        """

    @call(READS)
    async def phase_durations(self, partitions: int) -> list[StepDuration]:
        """How long the newest ``partitions`` that have crossed took, by step: the median and the
        90th percentile of each phase that is done and of each
        :class:`~tideline.domain.estimate.Span`. Of a topic's tiering only where all of its
        partitions among them are ready."""

    @call(READS, "migration_limits_of")
    async def migration_limits(self) -> MigrationLimits | None:
        """What operators allow now; ``None``: they have never said."""

    @call(PROGRESS)
    async def set_migration_limits(
        self, topics: int | None, partitions: int | None, set_by: str, reason: str
    ) -> None:
        """From now on, in place of what held before. A smaller limit takes nothing away."""

    @call(READS)
    async def migration_share(self, topic_id: UUID) -> int | None:
        """How many of the topic's partitions may be between validation and B0
        (:func:`tideline.domain.places.share_of`); ``None``: there is no limit, or the topic has no
        place."""

    @call(PROGRESS)
    async def leave_migration_place(self, topic_id: UUID, run: str) -> bool:
        """Give it back, or do not wait any more. False: ``run`` has none and waits for none."""

    @call(OBSERVED, findings=documents)
    async def record_findings(self, topic_id: UUID, findings: Sequence[Finding]) -> None:
        """Everything that one look at the topic found: what is not among it has ended. A topic
        that is not live is no error."""

    @call(READS, "watch_findings_of")
    async def findings(self, topic: str | None = None) -> list[WatchFinding]:
        """Of one live topic or of all, those that have ended too."""

    @call(READS, "verify_verdicts_of")
    async def verify_verdicts(self, topic: str | None = None) -> list[VerifyVerdict]:
        """What the last verification of each live topic found, or of one."""

    # The data path of the suffix (seed 000).

    @call("an object that was never committed tells nothing", lane="commits")
    async def register_object_keys(
        self, gateway_id: int, incarnation: UUID, keys: Sequence[str]
    ) -> None:
        """Announce random keys before their objects are uploaded; repeats succeed.

        Raises ``GatewayFenced``; ``ObjectKeyRejected`` for a key that was used.
        """

    @call("WAL objects tell it themselves, by their footers")
    async def commit_file(
        self,
        gateway_id: int,
        incarnation: UUID,
        object_key: str,
        size: int,
        batches: Sequence[BatchToCommit],
        stream: StreamPlace | None = None,
    ) -> list[CommittedBatch]:
        """Assign offsets to the batches of one uploaded object of ``size`` bytes, in their order.
        Without batches the object only carries what ``stream`` tells.

        One outcome per batch; a refused batch does not hold back the others. Idempotent by
        ``object_key``: after :class:`ControlPlaneUnavailable` call again with the same input, also
        while the first call still runs. Raises ``ObjectKeyRejected``, ``GatewayFenced``.
        """

    @call(READS)
    async def untold_commits(
        self, gateway_id: int, incarnation: UUID, limit: int
    ) -> list[UntoldCommit]:
        """What ended incarnations of the gateway committed and no object tells, by incarnation and
        in the order of their commits; and of other gateways what is older than
        :data:`~tideline.control_plane.model.ANYBODY_TELLS_AFTER_MS`. Raises ``GatewayFenced``."""

    @call(READS)
    async def find_batches(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        """Coordinates from each ``fetch_offset`` (inclusive) on, one answer per request.

        At least one batch if any is available, even one larger than ``max_bytes``; at most 500,
        and only one of each log once 2,000 were found in all.
        For an offset in a merged segment: the segment, whatever ``max_bytes``.
        ``log_start`` is the earliest readable offset of the whole log, prefix included.
        """

    @call(READS, read=row_readers.suffix_offset, lane="reads")
    async def list_offsets(
        self, log: TopicIdPartition, kind: ListOffsetsKind, timestamp: int | None = None
    ) -> SuffixOffset:
        """Suffix only, never below B0. ``timestamp`` (ms) for ``ListOffsetsKind.TIMESTAMP``.

        For a timestamp and for the maximum, one of ``segments`` or ``batch`` holds the record;
        ``offset`` and ``timestamp`` are then the first readable offset and the largest timestamp of
        the first of them. Without any there is no such record. ``error`` as in
        :class:`FoundBatches`.
        """

    @call(READS)
    async def high_watermarks(
        self,
        logs: Sequence[TopicIdPartition],
        known: Mapping[TopicIdPartition, int] | None = None,
    ) -> dict[TopicIdPartition, int]:
        """Next offset of each suffix; a partition without one is left out, and so is one whose next
        offset is not above what is ``known`` of it."""

    @call(READS)
    async def describe_producers(
        self, logs: Sequence[TopicIdPartition], limit: int
    ) -> dict[TopicIdPartition, list[LogProducer]]:
        """The producers of each suffix that are not forgotten, by their ids; of all together at
        most ``limit``, those that wrote last. A log without B0, or without a producer, is left out.
        """

    @call(TOLD)
    async def delete_records(self, log: TopicIdPartition, before_offset: int) -> int:
        """Advance the suffix's start to ``before_offset`` (exclusive; -1: the high watermark) and
        return it. An offset at or below it changes nothing. B0 never moves.

        Raises ``OffsetOutOfRange``, ``BoundaryUnset``, ``UnknownLog``, ``TopicDeleted``.
        """

    @call(TOLD)
    async def advance_prefix_start(self, log: TopicIdPartition, log_start: int) -> None:
        """Kafka's log start of the prefix moved to ``log_start``. At B0 the prefix is gone and
        the partition becomes ``DISKLESS_ONLY``. Never moves back.
        """

    @call(READS)
    async def tell_of_commits(self) -> None:
        """Notify who listens to :data:`COMMITS_CHANNEL`, in a transaction of its own: notifying
        transactions end one after the other, and this one writes nothing. Tried once; what is lost
        is found by a poll. Raises ``ControlPlaneUnavailable``.
        """

    @call(READS)
    async def check_synchronous_commit(self) -> CommitDurability:
        """What preflight asks: B0 and acknowledgements must outlive a crash (schedule 16)."""

    @call(READS)
    async def connection_room(self) -> ConnectionRoom:
        """How many connections the server has, and the role that asks may have."""

    @call(READS)
    def listen(
        self, channels: Sequence[str], on_listening: Callable[[], None] | None = None
    ) -> AsyncIterator[tuple[str, str]]:
        """(channel, payload) of every notification, on a dedicated connection.

        ``on_listening`` is called once nothing can be missed any more: read the state after it.
        Raises ``ControlPlaneUnavailable`` when the connection breaks; then listen and read anew.
        """
