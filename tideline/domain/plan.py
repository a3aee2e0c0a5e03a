"""Names, inputs and results of the workflows and their activities.

Plain dataclasses of plain values, so that they cross Temporal as readable JSON and a person can
type the input of a migration by hand: ``{"topic": "orders"}``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from tideline.domain.ids import TopicIdPartition, topic_id_to_base64
from tideline.domain.migration import UNDEFINED_OFFSET

TASK_QUEUE = "tideline"
"""Default queue of the workflows, and of the activities of the write pause: these must never queue
behind a wait."""

TOPIC_WORKFLOW = "TopicMigration"
PARTITION_WORKFLOW = "PartitionMigration"


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
    JOIN_TOPIC_MIGRATION = "join_topic_migration"
    """``JoinRequest`` -> ``TopicOutcome``: start or join the canonical workflow, await it."""
    VALIDATE_TOPIC = "validate_topic"
    """``TopicStep`` -> nothing. Fails as PreflightRefused with every reason and remedy."""
    BEGIN_TRACKING = "begin_tracking"
    """``TopicStep`` -> nothing."""
    AWAIT_TRACKING = "await_tracking"
    """``TopicStep`` -> nothing, when every gateway tracks the topic and it is ACTIVE. Fails as
    Waiting, naming the gateway."""
    RECONCILE_CONFIGS = "reconcile_configs"
    """``ConfigStep`` -> nothing. Fails as StaleStage when Postgres is past the stage."""
    PROVE_COVERAGE_FOR_ROLL = "prove_coverage_for_roll"
    """``TopicStep`` -> nothing, when all that counts as tiered is there. Fails as Waiting."""
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


class Durability(StrEnum):
    """What must be true of the prefix before B0 is persisted (docs/phases.md, phase 4)."""

    FSYNCED = "fsynced"
    """Each replica flushed each append: ``flush.messages=1`` was armed before the quiesce."""
    REPLICATED = "replicated"
    """Every in-sync replica has it, perhaps only in page cache."""
    TIERED = "tiered"
    """The whole prefix is in remote storage first. The longest pause."""


class OpenTransactions(StrEnum):
    """What to do with a transaction that is still open at the drain deadline."""

    WAIT = "wait"
    """Go on waiting, with the reason shown."""
    ABORT = "abort"
    """Abort it, which fences the application that runs it."""


class ConfigStage(StrEnum):
    """Which topic configs the reconciler holds, by the stage of the topic's migration."""

    TRACKED = "tracked"
    ARMED = "armed"
    CROSSED = "crossed"
    ROLLING = "rolling"
    FROZEN = "frozen"
    RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """Choices of an operator. Times in ms."""

    durability: Durability = Durability.FSYNCED
    open_transactions: OpenTransactions = OpenTransactions.WAIT
    drain_deadline_ms: int = 60_000
    quiesce_hold_ms: int = 10_000
    """A quiesce is void after this: gateways un-park and the attempt starts anew."""
    parallel_partitions: int = 4
    """How many partitions of the topic are between validate and B0 at once."""
    segment_wait_ms: int = 30_000
    """``inkless.migration.segment.wait.ms``: then the wait for tiering shows its reason."""
    attested_closed_to_bypass: bool = True
    """The operator attests that clients reach the brokers only through gateways."""


@dataclass(frozen=True, slots=True)
class TopicMigrationInput:
    """What starts a ``TopicMigration``."""

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

    @property
    def workflow_id(self) -> str:
        """Where every trigger of this topic's migration meets."""
        return f"tideline/topic/{self.topic}/{topic_id_to_base64(UUID(self.topic_id))}"

    def partition_workflow_id(self, partition: int) -> str:
        """The workflow id of one partition."""
        return (
            f"tideline/partition/{self.topic}/{topic_id_to_base64(UUID(self.topic_id))}/{partition}"
        )


@dataclass(frozen=True, slots=True)
class PartitionRef:
    """A partition pinned to its topic id."""

    topic: str
    topic_id: str
    partition: int

    @property
    def log(self) -> TopicIdPartition:
        """The durable key."""
        return TopicIdPartition(UUID(self.topic_id), self.partition)


@dataclass(frozen=True, slots=True)
class PhaseInput:
    """Input of every phase activity."""

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
    """Result of a ``PartitionMigration``."""

    partition: int
    outcome: str
    """``ready``, ``aborted``, or ``gone`` when the topic was deleted."""
    boundary: int
    leader_epoch: int
    reason: str = ""


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
class TopicStep:
    """Input of the activities that concern the whole topic."""

    ref: TopicRef
    options: MigrationOptions


@dataclass(frozen=True, slots=True)
class ConfigStep:
    """Input of ``reconcile_configs``."""

    ref: TopicRef
    options: MigrationOptions
    stage: ConfigStage


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Input of ``join_topic_migration``."""

    ref: TopicRef
    given: TopicMigrationInput


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
    """``aborted`` or ``deleted``, when it is not tracked any more."""

    @property
    def crossed(self) -> bool:
        """B0 is persisted: the migration only goes forward."""
        return self.boundary != UNDEFINED_OFFSET
