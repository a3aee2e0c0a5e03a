"""What goes in and out of the control plane. Offsets are inclusive unless a name says ``next``.

Shapes only: the transactions are in ``infra/postgres``. What the periodic jobs exchange with it is
in :mod:`tideline.control_plane.tiering_model`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from tideline.domain.history import ServerIdentity
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import PHASES, UNDEFINED_OFFSET, MigrationState, Phase, PhaseStatus
from tideline.domain.prefix import prefix_end
from tideline.domain.producer_tail import ProducerSeed
from tideline.domain.topic_configs import (
    DEFAULT_AFTER_MAX_MS,
    DEFAULT_BEFORE_MAX_MS,
    TopicLimits,
)
from tideline.domain.watched import FindingKind

KEYS_KEPT_AHEAD_MS = 60_000
"""A gateway registers object keys ahead and uses one at most this much later: the collector's grace
for keys that were registered and not committed is longer."""
ANYBODY_TELLS_AFTER_MS = 60_000
"""What a gateway committed and nobody has told of for so long is told by another one."""


class TrackingKind(StrEnum):
    """Why a topic is tracked."""

    MIGRATED = "migrated"
    BORN_DISKLESS = "born_diskless"


class TopicStatus(StrEnum):
    """The life of a tracked topic."""

    TRACKING = "tracking"
    """Gateways are being told; not every one has acknowledged."""
    ACTIVE = "active"
    """Every gateway tracks it."""
    ABORTED = "aborted"
    """The migration was aborted before any B0; gateways let go of it."""
    DELETED = "deleted"
    """Deleted in Kafka. Commits are rejected for ever."""


@dataclass(frozen=True, slots=True)
class TrackedPartition:
    """One row of ``logs``, as a gateway needs it."""

    topic_id: UUID
    partition: int
    state: MigrationState
    generation: int
    """Fencing token of the migration; grows with every attempt."""
    quiesced: bool
    """The generation is closed: park produces."""
    boundary: int = UNDEFINED_OFFSET
    """B0 (``diskless_log_start_offset`` when it was set)."""
    boundary_epoch: int = -1
    high_watermark: int = UNDEFINED_OFFSET
    """Next offset of the suffix; equals B0 while it is empty. -1 while B0 is unset."""
    suffix_start: int = UNDEFINED_OFFSET
    """Earliest offset of the suffix that retention has left; never below B0."""
    prefix_max_timestamp: int = -1
    """ms; largest record timestamp below B0 and the offset of its first record, or -1."""
    prefix_max_timestamp_offset: int = -1
    ready: bool = False
    accepted_gap_from: int = UNDEFINED_OFFSET
    """First offset of a log gap up to B0 whose loss an operator accepted; -1: none."""
    prefix_gone: bool = False
    """Kafka has nothing below B0 any more, or never had."""

    @property
    def partly_in_kafka(self) -> bool:
        """Records below B0 are Kafka's to keep and to tier, or all while B0 is unset. ``state``
        does not tell: it is HYBRID, too, where merged segments are all that is tiered."""
        return self.boundary != 0 and not self.prefix_gone

    @property
    def prefix_end(self) -> int:
        """Where what Kafka must hold of the prefix ends (exclusive): B0, or an accepted gap."""
        return prefix_end(self.accepted_gap_from, self.boundary)


@dataclass(frozen=True, slots=True)
class ConfigOverride:
    """A topic config that Tideline holds: what Kafka has, and what the user sees."""

    key: str
    override_value: str | None
    """What the reconciler keeps in Kafka; ``None``: the key is removed."""
    user_value: str | None
    """The user's own dynamic value, restored on abort; ``None``: it was not set."""


@dataclass(frozen=True, slots=True)
class TrackedTopic:
    """A topic that no gateway passes through any more."""

    name: str
    topic_id: UUID | None
    """``None`` only while a topic born diskless is being created in Kafka."""
    kind: TrackingKind
    status: TopicStatus
    timestamp_type: str
    """``CreateTime`` or ``LogAppendTime``."""
    max_message_bytes: int
    partitions: Mapping[int, TrackedPartition] = field(default_factory=dict)
    overrides: dict[str, ConfigOverride] = field(default_factory=dict)
    completion_forced_by: str | None = None
    """Who had it frozen and sealed although a prefix is not complete."""
    timestamp_before_max_ms: int = DEFAULT_BEFORE_MAX_MS
    """How far a record's timestamp may lie before the gateway's clock, and after it, ms."""
    timestamp_after_max_ms: int = DEFAULT_AFTER_MAX_MS

    round: int = 1
    """Ends with an abort: what was drained or acknowledged in one round counts in no other."""

    @property
    def migration_unfinished(self) -> bool:
        """A workflow has to go on with it: to track it, to move it, or to undo an abort."""
        if self.kind is not TrackingKind.MIGRATED:
            return False
        if self.status in (TopicStatus.TRACKING, TopicStatus.ABORTED):
            return True
        forced = self.completion_forced_by is not None
        return self.status is TopicStatus.ACTIVE and any(
            row.state is MigrationState.MIGRATING
            or (row.state is MigrationState.HYBRID and not row.ready and not forced)
            for row in self.partitions.values()
        )

    @property
    def limits(self) -> TopicLimits:
        """What the suffix enforces on batches; whoever validates one reads it here."""
        return TopicLimits(
            timestamp_type=self.timestamp_type,
            max_message_bytes=self.max_message_bytes,
            timestamp_before_max_ms=self.timestamp_before_max_ms,
            timestamp_after_max_ms=self.timestamp_after_max_ms,
        )


@dataclass(frozen=True, slots=True)
class TrackedChanges:
    """What has changed of what is tracked since a former reading."""

    upto: str | None
    """From where the next reading goes on; ``None``: it is not known what has changed since, read
    everything."""
    identity: ServerIdentity
    """Of the server that has answered this, asked about the beat that was seen."""
    names: frozenset[str] = frozenset()
    """Whatever was known under these names is not true any more."""
    topics: tuple[TrackedTopic, ...] = ()
    """What is tracked under them now."""
    rows: Mapping[TopicIdPartition, TrackedPartition | None] = field(default_factory=dict)
    """Of other topics, all that has changed of them; ``None``: a row that this version cannot read,
    which nobody serves."""


@dataclass(frozen=True, slots=True)
class ClusterAttestation:
    """An operator's word that clients reach the cluster's brokers only through gateways."""

    cluster_id: str
    attested_by: str
    reason: str
    attested_at: datetime
    withdrawn_by: str | None = None
    withdrawn_reason: str | None = None
    withdrawn_at: datetime | None = None

    @property
    def in_force(self) -> bool:
        return self.withdrawn_at is None

    def __str__(self) -> str:
        when = f"{self.attested_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        return f"attested by {self.attested_by} at {when}: {self.reason}"


def in_force(attestations: Iterable[ClusterAttestation]) -> str:
    """Who attests, when and why, in words; empty when nobody does."""
    return next((str(one) for one in attestations if one.in_force), "")


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A name and the topic that it stands for, tracked or let go of after an abort."""

    topic_key: int
    """Of the row: names come again, and a birth has no id yet."""
    name: str
    topic_id: UUID | None
    kind: TrackingKind
    status: TopicStatus
    tracked: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class OpenBirth:
    """A topic that is to be born diskless, and what is tracked under its name so far."""

    name: str
    wanted: bool
    """A gateway waits for it. Of one that nobody waits for the next six are not known."""
    partitions: int | None
    timestamp_type: str
    max_message_bytes: int
    timestamp_before_max_ms: int | None
    timestamp_after_max_ms: int | None
    given_max_message_bytes: str | None
    """As the client gave it; ``None``: it gave none."""
    topic_key: int | None
    """Of what is tracked under the name; ``None``: nothing is, nor are the next three."""
    topic_id: UUID | None
    kind: TrackingKind | None
    status: TopicStatus | None


@dataclass(frozen=True, slots=True)
class ReportedDeletion:
    """A tracked topic that Kafka may have deleted."""

    topic_id: UUID
    name: str
    reported_by: str
    """The login role of the gateway."""
    reported_at: datetime


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A deleted topic, or a creation that did not end (then without an id)."""

    topic_id: UUID | None
    name: str
    deleted_at: datetime
    deleted_by: str
    deleted_why: str


@dataclass(frozen=True, slots=True)
class WatchFinding:
    """Something in Kafka that disagreed with Postgres, or does."""

    topic: str
    topic_id: UUID
    kind: FindingKind
    subject: str
    detail: dict[str, Any]
    first_seen_at: datetime
    last_seen_at: datetime
    ended_at: datetime | None = None

    def __str__(self) -> str:
        until = "" if self.ended_at is None else f", until {self.ended_at:%Y-%m-%d %H:%M}"
        since = f"since {self.first_seen_at:%Y-%m-%d %H:%M}{until}"
        found = self.detail
        match self.kind:
            case FindingKind.CONFIG if "in_kafka" not in found:
                return (
                    f"{self.topic}: {found.get('why')}; {found.get('wanted')} is enforced until "
                    f"they agree, or it is set on the topic through a gateway ({since})"
                )
            case FindingKind.CONFIG:
                return (
                    f"{self.topic}: {self.subject}={found.get('in_kafka')} was set past the "
                    f"gateways, {found.get('why')} ({since})"
                )
            case FindingKind.TAIL:
                kept = f"{found.get('objects', 1)} exports up to offset {found.get('exported_to')}"
                where = f"{kept}, the newest at {found['object']}" if "object" in found else "none"
                why = f", not exported: {found['not_exported']}" if "not_exported" in found else ""
                return (
                    f"{self.topic}-{self.subject}: {found.get('offsets')} offsets past B0 in the "
                    f"log of replica {', '.join(found.get('log_ends', {}))}, kept: {where}{why}: "
                    f"somebody writes past the gateways ({since})"
                )
            case FindingKind.GROWN:
                return f"{self.topic}-{self.subject}: {self._grown()} ({since})"
            case FindingKind.ACL:
                return (
                    f"{self.topic}: {found.get('count')} ACLs name a host ({found.get('names')}) "
                    "and match no client, since brokers see the gateways' hosts: let them name "
                    f"users alone ({since})"
                )
            case FindingKind.SHARE_GROUP:
                return (
                    f"{self.topic}: {found.get('count')} share groups subscribe to it "
                    f"({found.get('names')}) and are refused by gateways: end them, or let them "
                    f"read another topic ({since})"
                )
        if (gap := found.get("gap")) is not None:
            said = gap.get("said") or "what remote segments hold is not known"
            return (
                f"{self.topic}-{self.subject}: log gap, no replica that answers reaches "
                f"{gap['first']} to {gap['end'] - 1}; {said}: bring back a replica, then "
                f"`tideline gap keep`, `tideline gap accept` ({since})"
            )
        return (
            f"{self.topic}-{self.subject}: the log of replica "
            f"{', '.join(found.get('log_ends', {}))} ends {found.get('offsets')} offsets short "
            f"of B0 ({since})"
        )

    def _grown(self) -> str:
        found, came = self.detail, "it came past the gateways and nobody serves it"
        if found.get("offsets"):
            return (
                f"{came}: its log holds {found['offsets']} offsets on replica "
                f"{', '.join(found.get('log_ends', {}))}: `tideline migrate {self.topic}` takes it "
                "across; one of a topic that was created diskless does not migrate"
            )
        if silent := found.get("not_known_of"):
            return f"{came}: replica {', '.join(map(str, silent))} does not say that it is empty"
        if "behind" in found:
            return f"{came}: it is empty, and waits for partition {found['behind']}"
        return f"{came}: it is empty, and is taken in when every other partition has its B0"


UNACCOUNTED = "unaccounted"


@dataclass(frozen=True, slots=True)
class GatewayRegistration:
    """One row of ``gateways``."""

    gateway_id: int
    broker_id: int
    incarnation: UUID
    status: str
    """``active``, ``fenced``, ``released`` (stopped cleanly) or ``retired``; ``unaccounted``: an
    older incarnation of the id that was replaced and may still run."""
    renewals: int
    """Renewal counter of the lease: a waiter times how long it stays unchanged, by its clock."""
    lease_ms: int
    address: str
    version: str
    registered_at: datetime
    rack: str | None = None
    """Its zone, if it was given one: otherwise that of its broker."""
    stand_ins: str | None = None
    """``node=host:port``, comma separated: where clients reach the brokers of other gateways
    through it while those are away; read by :func:`tideline.domain.stand_in.stand_ins_of`."""
    serving: bool = True
    """Whether it accepts connections, as it said itself."""

    def __str__(self) -> str:
        return f"{self.gateway_id} at {self.address}"


@dataclass(frozen=True, slots=True)
class UnheardGateway:
    """One that was active before a promotion of Postgres and has not renewed after it."""

    timeline: int
    """The promoted one."""
    gateway_id: int
    incarnation: UUID
    address: str
    lease_ms: int
    keys: tuple[str, ...]
    """Of WAL objects, that it has registered and not committed, as far as this Postgres knows."""
    beat_ms: int
    """When the newest beat was written: what is missing was committed after it."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A WAL object of the bucket that holds batches, and its place in the stream of commits."""

    key: str
    incarnation: UUID
    sequence: int


def unaccounted_reason(gateway: GatewayRegistration) -> str:
    """Why an incarnation with status ``unaccounted`` holds topics back, and what to do."""
    return (
        f"incarnation {gateway.incarnation} of gateway {gateway} was replaced and may still run "
        f"(ended {gateway.registered_at:%Y-%m-%d %H:%M} UTC): "
        "start the gateway over its state directory, or make sure that the process is gone and say "
        f"so with `tideline gateway account {gateway.gateway_id} {gateway.incarnation} --gone`"
    )


@dataclass(frozen=True, slots=True)
class BarrierEntry:
    """Where one registered gateway stands at a barrier (tracking or quiesce)."""

    gateway: GatewayRegistration
    acknowledged: bool
    highest_acknowledged_offset: int = UNDEFINED_OFFSET
    """Quiesce only: the last offset (inclusive) this gateway has relayed as acknowledged."""


@dataclass(frozen=True, slots=True)
class BatchToCommit:
    """One record batch inside a WAL object, in the order of the object."""

    log: TopicIdPartition
    byte_offset: int
    byte_size: int
    record_count: int
    max_timestamp: int
    """ms, from the batch header."""
    timestamp_type: str
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    last_sequence: int = -1


class CommitError(StrEnum):
    """Why a batch was not appended."""

    NONE = "NONE"
    DUPLICATE = "DUPLICATE"
    """Not an error to the client: answered with the original offset."""
    DUPLICATE_SEQUENCE_NUMBER = "DUPLICATE_SEQUENCE_NUMBER"
    """A duplicate of which the original offset is not known."""
    OUT_OF_ORDER_SEQUENCE = "OUT_OF_ORDER_SEQUENCE"
    INVALID_PRODUCER_EPOCH = "INVALID_PRODUCER_EPOCH"
    UNKNOWN_LOG = "UNKNOWN_LOG"
    """No row for the partition: fails closed as NOT_LEADER_OR_FOLLOWER."""
    BOUNDARY_UNSET = "BOUNDARY_UNSET"
    TOPIC_DELETED = "TOPIC_DELETED"


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The outcome of one :class:`BatchToCommit`."""

    error: CommitError
    base_offset: int = UNDEFINED_OFFSET
    append_time: int = -1
    """ms; the commit's time, the record timestamp of LogAppendTime topics."""
    log_start: int = UNDEFINED_OFFSET
    high_watermark: int = UNDEFINED_OFFSET


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where a WAL object stands in the commit stream of its incarnation (decision 0022)."""

    sequence: int
    withdrawn: tuple[int, ...] = ()
    """Places, from 0, of its batches that are not committed with it."""
    tells: tuple[str, ...] = ()
    """Keys of earlier objects whose outcomes it carries; one with batches carries none."""


@dataclass(frozen=True, slots=True)
class UntoldCommit:
    """A committed WAL object whose outcomes no other object carries."""

    incarnation: UUID
    sequence: int
    object_key: str
    withdrawn: tuple[int, ...]
    errors: tuple[CommitError, ...]
    """Like the other two: one element for each batch that was committed with it."""
    base_offsets: tuple[int, ...]
    append_times: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FindBatchesRequest:
    log: TopicIdPartition
    fetch_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class BatchCoordinates:
    """Where one committed batch lies."""

    object_key: str
    byte_offset: int
    byte_size: int
    base_offset: int
    last_offset: int
    timestamp_type: str
    append_time: int
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class SegmentCoordinates:
    """Where one merged segment lies, in the tiered bucket. It may begin below the suffix's start:
    those offsets are no longer readable."""

    segment_id: UUID
    object_key_stem: str
    """Prefix included; ``.log``, ``.index``, ``.timeindex`` … follow it. Objects never change."""
    base_offset: int
    last_offset: int
    size_bytes: int
    """Of the ``.log`` object."""
    max_timestamp: int
    """ms; the largest of all its records."""
    offset_index_bytes: int
    time_index_bytes: int


SUFFIX_HOLE = "SUFFIX_HOLE"
"""``FoundBatches.error``: the offset is in the suffix, but in no segment and in no batch."""


@dataclass(frozen=True, slots=True)
class FoundBatches:
    """Answer of ``find_batches`` for one log. ``error`` is one of ``NONE``, ``UNKNOWN_LOG``,
    ``BOUNDARY_UNSET``, ``BELOW_BOUNDARY``, ``OFFSET_OUT_OF_RANGE``, ``TOPIC_DELETED``,
    :data:`SUFFIX_HOLE`."""

    error: str
    log_start: int
    high_watermark: int
    batches: tuple[BatchCoordinates, ...] = ()
    segment: SegmentCoordinates | None = None
    """The merged segment that holds the fetch offset; then there are no ``batches``."""


class ListOffsetsKind(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"
    MAX_TIMESTAMP = "max_timestamp"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class SuffixOffset:
    """Suffix-only answer (seed 000: never an offset below B0). For a timestamp, ``batch`` is the
    first batch that holds a record at or after it; the reader finds the record inside.

    ``segments`` come before it. For a timestamp: in offset order, the first with such a record at
    or past the suffix's start has the answer, else ``batch``. For the maximum: of the largest
    record at or past the suffix's start in each of ``segments`` and ``batch`` the one with the
    largest timestamp is the answer, the smallest offset among equals.
    """

    error: str
    offset: int = UNDEFINED_OFFSET
    timestamp: int = -1
    batch: BatchCoordinates | None = None
    segments: tuple[SegmentCoordinates, ...] = ()
    suffix_start: int = UNDEFINED_OFFSET
    """First readable offset of the suffix; records below it do not count."""


@dataclass(frozen=True, slots=True)
class BoundaryToPersist:
    """Input of ``initialize_diskless_migration``."""

    log: TopicIdPartition
    boundary: int
    leader_epoch: int
    generation: int
    seeds: tuple[ProducerSeed, ...]
    prefix_log_start: int
    prefix_max_timestamp: int = -1
    prefix_max_timestamp_offset: int = -1


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """One row of ``migration_phases``: what was observed, when, on which replica."""

    phase: Phase
    status: PhaseStatus
    generation: int
    started_at: datetime
    ended_at: datetime | None
    waiting_reason: str | None
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PartitionMigrationStatus:
    """What ``tideline status`` shows of a partition."""

    topic: str
    log: TopicIdPartition
    state: MigrationState
    generation: int
    quiesced: bool
    boundary: int
    boundary_epoch: int
    high_watermark: int
    tiering_complete: bool
    phases: tuple[PhaseRecord, ...]


@dataclass(frozen=True, slots=True)
class MigrationLimits:
    """What operators allow of all migrations together."""

    topics: int | None
    """That migrate at once; ``None``: as the worker's setting says."""
    partitions: int | None
    """Between validation and B0; ``None``: what each topic's options say."""
    set_by: str
    reason: str
    set_at: datetime


@dataclass(frozen=True, slots=True)
class ReadinessLook:
    """Whether one partition's prefix is in remote storage, as somebody has seen it."""

    partition: int
    generation: int
    """The partition's when it was looked at."""
    complete: bool
    reason: str
    """Why not yet; or by what it is complete."""
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicMigrationSummary:
    """What gauges show of a topic."""

    topic: str
    state: MigrationState
    """The least advanced of its partitions."""
    partitions: int
    phases_done: int
    """Over all partitions; all of them where a partition was born diskless."""
    waiting: Mapping[str, int]
    """Partitions that wait, by phase. Those of an aborted migration do not."""
    since_s: Mapping[str, float]
    """When the oldest attempt at a phase that runs or waits began, by phase; Unix time."""
    boundaries: Mapping[str, int]
    """B0 by partition, of those that have it."""


@dataclass(frozen=True, slots=True)
class TopicState:
    topic: str
    state: MigrationState
    """That of its least advanced partition."""
    partitions: int


@dataclass(frozen=True, slots=True)
class MigrationChanges:
    """What has changed of migrations since a former reading, added up by topic."""

    upto: str | None
    """From where the next reading goes on; ``None``: it reads everything (a standby)."""
    whole: bool
    """This is everything there is: it is not known what has changed."""
    names: frozenset[str] = frozenset()
    """Whatever was known under these names is not true any more."""
    topics: tuple[TopicMigrationSummary, ...] = ()
    """What there is under them now."""


@dataclass(frozen=True, slots=True)
class MovedHighWatermark:
    """Of a partition of which nothing else has changed."""

    topic: str
    partition: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class MigrationStatusChanges:
    """As :class:`MigrationChanges`, by partition."""

    upto: str | None
    whole: bool
    names: frozenset[str] = frozenset()
    partitions: tuple[PartitionMigrationStatus, ...] = ()
    """Without evidence."""
    moved: tuple[MovedHighWatermark, ...] = ()


def summarize(statuses: Iterable[PartitionMigrationStatus]) -> list[TopicMigrationSummary]:
    """What ``migration_summary`` answers, in the order of the topics."""
    topics: dict[str, list[PartitionMigrationStatus]] = {}
    for status in statuses:
        topics.setdefault(status.topic, []).append(status)
    advance = tuple(MigrationState)
    return [
        TopicMigrationSummary(
            topic=topic,
            state=min((one.state for one in of_topic), key=advance.index),
            partitions=len(of_topic),
            phases_done=sum(map(_phases_done, of_topic)),
            waiting=dict(Counter(str(r.phase) for r in _open(of_topic, PhaseStatus.WAITING))),
            since_s={
                str(r.phase): r.started_at.timestamp()
                for r in sorted(
                    _open(of_topic, PhaseStatus.WAITING, PhaseStatus.RUNNING),
                    key=lambda record: record.started_at,
                    reverse=True,
                )
            },
            boundaries={
                str(one.log.partition): one.boundary for one in of_topic if one.boundary >= 0
            },
        )
        for topic, of_topic in sorted(topics.items())
    ]


def _phases_done(one: PartitionMigrationStatus) -> int:
    """A partition that was born diskless has its B0 without any phase: nothing is left to do. What
    an aborted migration had done counts for none: another one begins anew."""
    if one.state is MigrationState.TIERED_ONLY:
        return 0
    if not one.phases and one.boundary >= 0:
        return len(PHASES)
    return sum(record.status is PhaseStatus.DONE for record in one.phases)


def _open(
    partitions: Iterable[PartitionMigrationStatus], *wanted: PhaseStatus
) -> Iterator[PhaseRecord]:
    """Phases in one of these states, of partitions whose migration was not aborted."""
    for one in partitions:
        if one.state is not MigrationState.TIERED_ONLY:
            yield from (record for record in one.phases if record.status in wanted)


class RequestState(StrEnum):
    """What became of a request to migrate. The last three are final."""

    RECEIVED = "received"
    RETRYING = "retrying"
    """It could not be started yet; the next try has a time."""
    STARTED = "started"
    DONE = "done"
    REFUSED = "refused"
    CALLED_OFF = "called_off"


@dataclass(frozen=True, slots=True)
class MigrationRequest:
    """A config change that asks for a migration, and what became of it."""

    topic: str
    topic_id: UUID
    requested_by: str
    options: dict[str, Any]
    requested_at: datetime
    state: RequestState = RequestState.RECEIVED
    reason: str = ""
    """Why it was refused or called off, or why the last try failed."""
    tries: int = 0
    """How many failed."""
    next_try_at: datetime | None = None
    changed_at: datetime | None = None

    def summary(self) -> str:
        """In one line, for an operator."""
        line = f"{self._stands()}, asked for by {self.requested_by or '?'}{self._tried()}"
        return f"{line}: {self.reason}" if self.reason else line

    def told(self) -> str:
        """In one line, for a client: neither who else has asked nor what was seen of the cluster,
        which the client itself may not be allowed to list."""
        said = f"{self._stands()}{self._tried()}"
        return f"{said}; `tideline request list {self.topic}` says by whom and why"

    def _stands(self) -> str:
        return self.state.value.replace("_", " ")

    def _tried(self) -> str:
        if self.next_try_at is None:
            return ""
        return f", tried {self.tries} times, again at {self.next_try_at:%Y-%m-%d %H:%M:%S}"


class PlannedOutcome(StrEnum):
    """What became of a topic of a planned wave."""

    STARTED = "started"
    """Nobody has told its end."""
    DONE = "done"
    ABORTED = "aborted"
    REFUSED = "refused"
    """By a check; nothing was started."""
    FAILED = "failed"
    REJECTED = "rejected"
    """A person did not let its batch begin."""
    ALLOWED = "allowed"
    """A person did; nothing of it was started yet."""
    LEFT_BEHIND = "left_behind"
    """It took longer than the wave waits; its migration goes on."""


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """A topic of a planned wave."""

    topic: str
    outcome: PlannedOutcome
    reason: str
    run: str
    """Of the wave, that told it."""
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class RejectedTopic:
    """A topic of which the last that was told, in any plan, is that a person rejected it."""

    topic: str
    plan: str
    reason: str
    run: str
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class AbortedTopic:
    """A topic whose last migration was aborted."""

    topic: str
    topic_id: UUID
    aborted_at: datetime


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """A decision of an operator, as it is kept."""

    topic: str
    topic_id: UUID
    partition: int | None
    """``None``: the whole topic."""
    action: str
    """configure, accept_gap, force_completion, call_off_request, pause, resume or abort."""
    decided_by: str
    reason: str
    details: dict[str, Any]
    decided_at: datetime

    def summary(self) -> str:
        """In one line, for an operator."""
        where = "" if self.partition is None else f" of partition {self.partition}"
        return (
            f"{self.action.replace('_', ' ')}{where} {self.details} by {self.decided_by} at "
            f"{self.decided_at:%Y-%m-%d %H:%M:%S}: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class Standby:
    """A server that streams everything from this one, as ``pg_stat_replication`` has it."""

    name: str
    sync_state: str | None
    """``sync``, ``quorum``, ``potential`` or ``async``; ``None``: ``tideline_owner`` may not see
    it."""


SEE_STANDBYS = "grant pg_read_all_stats to tideline_owner"


@dataclass(frozen=True, slots=True)
class CommitDurability:
    """Whether a commit that Postgres acknowledged survives a crash and a failover. Truthy if so."""

    durable: bool
    explanation: str
    settings: dict[str, str]
    standbys: tuple[Standby, ...] = ()
    """Those that are attached, whether commits wait for them or not."""

    @property
    def synchronous_commit(self) -> str:
        """As the preflight judges it: ``off``, too, where it is on and commits do not outlive a
        crash all the same."""
        return self.settings["synchronous_commit"] if self.durable else "off"

    @property
    def not_waited_for(self) -> list[str]:
        """Attached standbys, by name, that a commit may be acknowledged without: promoted, one of
        them may lack it. With ``ANY n`` no candidate is waited for when there are more than n."""
        names = self.settings.get("synchronous_standby_names", "")
        quorum = re.match(r"\s*ANY\s+(\d+)", names, re.IGNORECASE)
        candidates = sum(standby.sync_state == "quorum" for standby in self.standbys)
        waited = {"sync"}
        if quorum is not None and candidates <= int(quorum[1]):
            waited.add("quorum")
        return [
            s.name if s.sync_state else f"{s.name} (nobody may see: {SEE_STANDBYS})"
            for s in self.standbys
            if not names or s.sync_state not in waited
        ]

    @property
    def waits_for_standby(self) -> bool:
        """Whether commits wait for standbys, and for every one that is attached: whichever of them
        is promoted lacks nothing."""
        names = self.settings.get("synchronous_standby_names")
        return bool(names) and not self.not_waited_for

    def __bool__(self) -> bool:
        return self.durable


@dataclass(frozen=True, slots=True)
class LogProducer:
    """A producer of a suffix by its newest batch, as DescribeProducers shows it. A suffix has no
    transactions."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    """ms, when that batch was committed; the batch's own for one that has written nothing since
    B0."""
