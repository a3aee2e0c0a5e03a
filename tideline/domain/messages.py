"""What crosses Temporal: names, inputs and results of workflows and activities, how a running
migration is steered and what it reports.

Plain dataclasses of plain values, so that they cross Temporal as readable JSON and a person can
type the input of a migration by hand: ``{"topic": "orders"}``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from tideline.domain.ids import TopicIdPartition, topic_id_to_base64
from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.options import MigrationOptions

TASK_QUEUE = "tideline"
"""Default queue of the workflows, and of the activities of the write pause: these must never queue
behind a wait."""

TOPIC_WORKFLOW = "TopicMigration"
PARTITION_WORKFLOW = "PartitionMigration"

PAUSED_REASON = "paused by an operator"
"""Why a topic's workflow waits that nobody need look after."""


MOST_OF_ID = 255
"""Characters of a workflow id: the width of Temporal's columns in Postgres and MySQL."""


def workflow_id(kind: str, topic: str, topic_id: UUID, *rest: int) -> str:
    """Of a workflow about a topic. The topic's id tells it from others, so as much of the name as
    fits is enough for the eye: Kafka's names have up to 249 characters (``Topic.validate``)."""
    begin, end = f"tideline/{kind}/", "/".join([topic_id_to_base64(topic_id), *map(str, rest)])
    return f"{begin}{topic[: MOST_OF_ID - len(begin) - 1 - len(end)]}/{end}"


def waits_queue(task_queue: str) -> str:
    """The queue of activities that may take long: preflight, barriers, drains, coverage. The same
    worker process serves it, with slots of its own."""
    return f"{task_queue}-waits"


class TopicActivity(StrEnum):
    """Activities beside the seven phases. A phase's activity is named as its ``Phase``, takes a
    :class:`PhaseInput`, and returns a :class:`QuiesceResult` (quiesce), a
    :class:`BoundaryObservation` (roll_and_flush) or nothing.
    """

    RESOLVE_TOPIC = "resolve_topic"
    """``TopicMigrationInput`` -> ``TopicRef``. Fails as UnknownTopic."""
    FOLLOW_TOPIC_MIGRATION = "follow_topic_migration"
    """``JoinRequest`` -> ``Followed``: start or join the canonical workflow, look at it once."""
    VALIDATE_TOPIC = "validate_topic"
    """``TopicStep`` -> nothing. Fails as PreflightRefused with every reason and remedy; as Waiting
    when not everything could be observed."""
    TAKE_PLACE = "take_place"
    """``PlaceRequest`` -> nothing, when the topic has one of the places of topics that migrate at
    once. Fails as Waiting, with how many come before it."""
    LEAVE_PLACE = "leave_place"
    """``PlaceRequest`` -> nothing: give the place back, or do not wait for one any more."""
    PARTITION_SHARE = "partition_share"
    """``PlaceRequest`` -> ``PartitionShare``: what operators allow now."""
    BEGIN_TRACKING = "begin_tracking"
    """``TopicStep`` -> nothing."""
    AWAIT_TRACKING = "await_tracking"
    """``TopicStep`` -> nothing, when every gateway tracks the topic and it is ACTIVE. Fails as
    Waiting, naming the gateway."""
    TELL_OF_GROWTH = "tell_of_growth"
    """``TopicStep`` -> ``GrowthFound``: what came past the gateways while the topic migrated."""
    RECONCILE_CONFIGS = "reconcile_configs"
    """``ConfigStep`` -> nothing. Fails as StaleStage when Postgres is past the stage."""
    PROVE_COVERAGE_FOR_ROLL = "prove_coverage_for_roll"
    """``TopicStep`` -> nothing, when all that counts as tiered is there. Fails as Waiting."""
    AWAIT_READINESS = "await_readiness"
    """``ReadinessRequest`` -> ``ReadinessFound``: what of a topic's partitions is ready by now."""
    ABORT_MIGRATION = "abort_migration"
    """``TopicStep`` -> ``AbortDecision``: one SQL update that wins only while no B0 is set."""
    STOP_TRACKING = "stop_tracking"
    """``TopicStep`` -> nothing. After an abort, when the configs are restored."""
    OBSERVE_PARTITION = "observe_partition"
    """``PartitionRef`` -> ``PartitionSituation``, from Postgres."""
    REOPEN_PARTITION = "reopen_partition"
    """``PhaseInput`` -> ``PartitionSituation`` after it: let producers go on. Reopens the newest
    generation, whichever ``PhaseInput`` names (a quiesce that failed does not know its own), if
    it is closed and B0 is unset; otherwise changes nothing."""

    RECORD_CONFIGURATION = "record_configuration"
    """``ConfigurationRecord`` -> nothing: who changed options of a running migration, or paused,
    resumed or aborted it, and why."""
    FORCE_COMPLETION = "force_completion"
    """``CompletionRequest`` -> ``CompletionOutcome``. Fails as Refused while a partition has no
    B0."""
    ACCEPT_GAP = "accept_gap"
    """``GapStep`` -> ``GapOutcome``. Fails as Refused, naming replicas and segments, when
    somebody holds a part of the range or does not answer."""


class ConfigStage(StrEnum):
    """Which topic configs the reconciler holds, by the stage of the topic's migration."""

    TRACKED = "tracked"
    ARMED = "armed"
    CROSSED = "crossed"
    ROLLING = "rolling"
    FROZEN = "frozen"
    RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class TopicMigrationInput:
    topic: str
    options: MigrationOptions = field(default_factory=MigrationOptions)
    requested_by: str = "temporal"


@dataclass(frozen=True, slots=True)
class TopicRef:
    """A topic pinned to its id."""

    topic: str
    topic_id: str
    """UUID in hexadecimal form."""
    partitions: int
    cluster_id: str = ""
    """Of the Kafka cluster, in what crosses Temporal: a worker of another one refuses it."""

    @property
    def id(self) -> UUID:
        return UUID(self.topic_id)

    @property
    def workflow_id(self) -> str:
        """Where every trigger of this topic's migration meets."""
        return workflow_id("topic", self.topic, self.id)

    def partition_workflow_id(self, partition: int) -> str:
        return workflow_id("partition", self.topic, self.id, partition)

    def partition(self, number: int) -> PartitionRef:
        """What its activities are given."""
        return PartitionRef(self.topic, self.topic_id, number, self.cluster_id)


@dataclass(frozen=True, slots=True)
class PartitionRef:
    """A partition pinned to its topic id."""

    topic: str
    topic_id: str
    partition: int
    cluster_id: str = ""
    """As in a :class:`TopicRef`."""

    @property
    def log(self) -> TopicIdPartition:
        return TopicIdPartition(UUID(self.topic_id), self.partition)


@dataclass(frozen=True, slots=True)
class PhaseInput:
    ref: PartitionRef
    options: MigrationOptions
    generation: int = 0
    """The generation that the quiesce closed; 0 before it."""
    boundary: int = UNDEFINED_OFFSET
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class QuiesceResult:
    """The generation is closed and every gateway that may speak has said so."""

    generation: int
    highest_acknowledged_offset: int
    fenced_gateways: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BoundaryObservation:
    """LSO = HW = the LEO of every in-sync replica: B0, seen at one leader epoch."""

    boundary: int
    leader_id: int
    leader_epoch: int
    log_start_offset: int
    replicas: dict[str, int] = field(default_factory=dict)
    """LEO by node id."""


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    partition: int
    outcome: str
    """``crossed``: what is left, the topic's workflow does; ``ready``, ``aborted``, ``forced``, or
    ``gone`` when the topic was deleted."""
    boundary: int
    leader_epoch: int
    reason: str = ""
    round: int = 1
    """As in a :class:`PartitionReport`."""


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """Result of a ``TopicMigration``."""

    topic: str
    topic_id: str
    outcome: str
    """``hybrid`` or ``aborted``. A refused migration fails, with the reason as its message."""
    boundaries: dict[str, int] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GrowthFound:
    """Partitions of a topic that came past the gateways, beside those that were taken in."""

    reason: str = ""
    """Which, and what their logs hold; empty: there is none."""


@dataclass(frozen=True, slots=True)
class TopicStep:
    ref: TopicRef
    options: MigrationOptions


@dataclass(frozen=True, slots=True)
class PlaceRequest:
    """For one of the places of topics that migrate at once."""

    ref: TopicRef
    run: str
    """The first run of the workflow that asks."""


@dataclass(frozen=True, slots=True)
class PartitionShare:
    """How many partitions of a topic may be between validation and B0; ``None``: as its options
    say."""

    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class ConfigStep:
    ref: TopicRef
    options: MigrationOptions
    stage: ConfigStage


@dataclass(frozen=True, slots=True)
class ReadinessRequest:
    """About the partitions of a topic that have rolled or will: which may serve their prefix?"""

    ref: TopicRef
    options: MigrationOptions
    partitions: list[int]


@dataclass(frozen=True, slots=True)
class ReadinessFound:
    """Of the partitions that were asked for; those in neither list are to be asked for again."""

    ready: list[int] = field(default_factory=list)
    """So Postgres says by now."""
    own_look: list[int] = field(default_factory=list)
    """More than a wait for remote storage: the partition's own workflow must look and decide."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why not yet, by partition: of the first few."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    ref: TopicRef
    given: TopicMigrationInput
    joined: bool = False
    """It was started or joined before: look only."""


@dataclass(frozen=True, slots=True)
class Followed:
    """How the canonical workflow has ended; nothing while it runs."""

    outcome: TopicOutcome | None = None


@dataclass(frozen=True, slots=True)
class AbortDecision:
    """What the one SQL update decided."""

    won: bool
    reason: str = ""
    """Why not: names the partitions that have their B0."""
    tracked: bool = True
    """False: the topic was not tracked, so that there is nothing to restore. Counts as won."""


@dataclass(frozen=True, slots=True)
class PartitionSituation:
    """Where Postgres says that a partition stands."""

    tracked: bool
    """False: no row, an aborted migration, or a deleted topic; ``why`` tells which."""
    generation: int = 0
    quiesced: bool = False
    boundary: int = UNDEFINED_OFFSET
    leader_epoch: int = -1
    ready: bool = False
    why: str = ""
    """When it is not tracked any more: ``aborted``, ``deleted``, or ``untracked``: Postgres knows
    nothing of the topic."""

    @property
    def crossed(self) -> bool:
        """B0 is persisted: the migration only goes forward."""
        return self.boundary != UNDEFINED_OFFSET


# How a running migration is steered and seen. Times are ISO 8601 in UTC, by the workflow's clock.


class SearchAttribute(StrEnum):
    PHASE = "TidelinePhase"
    TOPIC = "TidelineTopic"
    BOUNDARY = "TidelineBoundary"
    WAITS = "TidelineWaits"
    """A :class:`tideline.domain.waits.Waits`."""


SEARCH_ATTRIBUTES = {
    SearchAttribute.PHASE.value: "Keyword",
    SearchAttribute.TOPIC.value: "Keyword",
    SearchAttribute.BOUNDARY.value: "Int",
    SearchAttribute.WAITS.value: "Keyword",
}
"""Name to Temporal's type. The worker registers those that a namespace does not have."""
WAITING_MEMO = "waiting_reason"
"""Field of the workflows' memo: why it waits, in prose. Not there while it does not."""


class Update(StrEnum):
    """Updates of both workflows; those after the second of a topic's only."""

    PAUSE = "pause"
    RESUME = "resume"
    ABORT = "abort"
    CONFIGURE = "configure"
    """:class:`tideline.domain.operator_choices.ConfigureRequest`: other options from now on."""
    COMPLETE = "complete"
    """``Decider``: freeze and seal although prefixes are not complete."""
    ACCEPT_GAP = "accept_gap"
    """``GapRequest``: give up a log gap that nobody can fill."""


class Query(StrEnum):
    """Queries of both workflows."""

    STATUS = "status"


class Signal(StrEnum):
    """Between a topic's workflow and those of its partitions; both address the other by its
    workflow id, so either may be started anew in between."""

    REPORT = "report"
    """Partition to topic: a :class:`PartitionReport`."""
    STEER = "steer"
    """Topic to partition: a :class:`Steering`."""


class WaitsFor(StrEnum):
    """What a partition needs from its topic's workflow before it goes on."""

    NOTHING = ""
    PERMIT = "permit"
    """Drained; the write pause may begin when the topic's workflow says so."""
    READY = "ready"
    """Crossed; the topic's workflow looks for all of its partitions whether they are ready."""
    TRACKING = "tracking"
    """Postgres does not say any more that every gateway tracks the topic. The partition goes on
    trying while its topic's workflow has it tracked again."""


DONE = "done"
"""Stands for a phase when the migration of the partition has ended well."""
ABORTED = "aborted"
GONE = "gone"
"""The topic was deleted, or the name belongs to another topic now."""
FORCED = "forced"
"""Ended behind B0 because an operator forced the topic's completion; the prefix is not complete."""
ENDINGS = (DONE, ABORTED, GONE, FORCED)
CROSSED = "crossed"
"""How a partition's workflow ends behind which only readiness is left."""
TO_DO = "to do"
"""The partition waits for a free place (``parallel_partitions``)."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """Where a partition stands. Sending it twice changes nothing."""

    partition: int
    phase: str
    """A ``Phase``, or one of :data:`ENDINGS`."""
    since: str
    boundary: int = UNDEFINED_OFFSET
    leader_epoch: int = -1
    waits_for: WaitsFor = WaitsFor.NOTHING
    waiting_reason: str = ""
    round: int = 1
    """Grows when B0 was reset and the partition migrates anew."""
    rests: bool = False
    """Crossed and cleaned, and its workflow has ended: the topic's goes on with it."""
    unsure: bool = False
    """Its workflow was started, and Postgres has not told it yet whether the partition has B0."""
    waits: str = ""
    """A :class:`tideline.domain.waits.Waits`: the kind of the reason."""

    @property
    def crossed(self) -> bool:
        """B0 is persisted."""
        return self.boundary != UNDEFINED_OFFSET

    @property
    def ended(self) -> bool:
        """The partition's workflow is over."""
        return self.phase in ENDINGS


MOST_REPORTS = 1_000
"""That cross Temporal as objects; more go as columns (:mod:`tideline.domain.report_columns`)."""


@dataclass(frozen=True, slots=True)
class PartitionColumns:
    """The reports of partitions 0, 1, 2 … by column: Temporal takes messages of 2 MB at most."""

    phases: list[str]
    """Those that occur; ``phase`` has their places in it."""
    phase: list[int]
    since: list[str]
    boundary: list[int]
    leader_epoch: list[int]
    waits_for: list[int]
    """Places in ``WaitsFor``."""
    round: list[int]
    reasons: dict[str, str]
    """By partition, as many as there is room for."""
    waits: dict[str, str] = field(default_factory=dict)
    """The kinds of these."""
    rests: list[int] = field(default_factory=list)
    """The partitions that do."""


@dataclass(frozen=True, slots=True)
class Steering:
    """What the topic's workflow wants of a partition now; the newest one counts."""

    permit: int = 0
    """The write pause may begin in rounds up to this one."""
    paused: bool = False
    aborted: bool = False
    report_again: bool = False
    completed: bool = False
    """An operator forced the completion: whoever has crossed ends, complete or not."""
    options: MigrationOptions | None = None
    """Those that an operator changed meanwhile; ``None``: those of the start."""
    ready: int = 0
    """The prefix is in remote storage, in rounds up to this one."""
    own_look: bool = False
    """The topic's look found what only the partition's workflow can deal with."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    topic: str
    partition: int
    phase: str
    since: str
    waiting_reason: str
    boundary: int
    leader_epoch: int
    generation: int
    write_pauses: int
    """How often producers were parked: more than 1 means that a quiesce started anew."""
    paused: bool
    next_step: str
    durations_ms: dict[str, float] = field(default_factory=dict)
    """How long the last run of each phase took."""


@dataclass(frozen=True, slots=True)
class TopicMigrationStatus:
    topic: str
    topic_id: str
    stage: str
    since: str
    waiting_reason: str
    paused: bool
    next_step: str
    partitions: list[PartitionReport] = field(default_factory=list)
    """Of a topic of at most :data:`MOST_REPORTS`; of a larger one ``columns`` has them."""
    options: MigrationOptions | None = None
    completion_forced_by: str = ""
    columns: PartitionColumns | None = None


@dataclass(frozen=True, slots=True)
class PauseOutcome:
    paused: bool
    explanation: str


class Unsettled(StrEnum):
    """What a partition's workflow must hear from Postgres before it does anything else."""

    WHETHER_BEGUN = "whether-begun"
    """Whether the partition has crossed already; nothing was done yet."""
    WHERE_IT_STANDS = "where-it-stands"
    """Somebody else may have moved it."""
    PRODUCERS_PARKED = "producers-parked"
    """A write pause has failed: reopened before it is asked about."""


@dataclass(slots=True)
class PartitionState:
    """Everything that a partition's workflow must remember when it continues as new."""

    phase: str = ""
    """The phase to run next; empty: not begun."""
    since: str = ""
    generation: int = 0
    boundary: int = UNDEFINED_OFFSET
    leader_epoch: int = -1
    write_pauses: int = 0
    round: int = 1
    paused: bool = False
    steering: Steering = field(default_factory=Steering)
    durations_ms: dict[str, float] = field(default_factory=dict)
    unsettled: str = ""
    """An :class:`Unsettled`, until Postgres has answered, perhaps another run."""
    tiering_since: str = ""
    """When it was first looked whether remote storage covers the prefix; ISO 8601 in UTC."""
    untracked: bool = False
    """The phase that was tried last has found that Postgres does not have the topic tracked."""
    tells: bool = False
    """Who started it is over, and will not get its outcome: whoever has asked since is told."""


@dataclass(frozen=True, slots=True)
class PartitionMigrationInput:
    ref: PartitionRef
    options: MigrationOptions
    topic_workflow_id: str
    state: PartitionState = field(default_factory=PartitionState)
