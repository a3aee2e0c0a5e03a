"""What kind of partition a request meets, where in its log, and how failures are answered.

What always holds: offsets below B0 belong to Kafka's log, offsets from B0 on to the suffix, and
a partition about which too little is known is served by neither (seed 000 "Fetch routing",
architecture "Fencing" 3: fail closed). What each kind answers to each request is the table in
:mod:`tideline.domain.answers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.prefix import prefix_end


class RouteKind(StrEnum):
    """What a gateway knows of a partition when a request for it arrives."""

    CLASSIC = "classic"
    """Not tracked: passed through."""
    PENDING = "pending"
    """Tracked, B0 unset, appends go on in Kafka's log behind the ack gate."""
    QUIESCING = "quiescing"
    """Tracked, B0 unset, the generation is closed: produces are parked."""
    SUFFIX = "suffix"
    """B0 is set: records below it are Kafka's, from it on the suffix's."""
    DELETED = "deleted"
    """The topic was deleted; its id never comes back."""
    UNKNOWN = "unknown"
    """The topic is tracked but this partition has no row: fails closed."""


@dataclass(frozen=True, slots=True)
class PartitionRoute:
    """One partition as a gateway sees it. Immutable: a change makes another route."""

    kind: RouteKind
    generation: int = 0
    boundary: int = UNDEFINED_OFFSET
    """B0: first offset of the suffix, inclusive."""
    boundary_epoch: int = -1
    accepted_gap_from: int = UNDEFINED_OFFSET
    """First offset of a log gap up to B0 whose loss an operator accepted; -1: none."""
    prefix_gone: bool = False
    """Kafka has nothing below B0 any more: for ever, since nothing is appended there."""
    ready: bool = False
    """``tieringComplete``: remote storage holds all of the prefix."""

    @property
    def has_prefix(self) -> bool:
        """Whether Kafka may still have to be asked for something below B0."""
        return self.boundary > 0 and not self.prefix_gone

    @property
    def prefix_end(self) -> int:
        """Where the prefix ends, exclusive: at B0, or where an accepted log gap begins. -1 without
        a B0."""
        return prefix_end(self.accepted_gap_from, self.boundary)

    @property
    def in_kafka(self) -> bool:
        """Every offset is still Kafka's, and what becomes visible is fenced."""
        return self.kind in (RouteKind.PENDING, RouteKind.QUIESCING)


CLASSIC = PartitionRoute(RouteKind.CLASSIC)
UNKNOWN = PartitionRoute(RouteKind.UNKNOWN)
DELETED = PartitionRoute(RouteKind.DELETED)


def route_tracked(
    *,
    generation: int,
    quiesced: bool,
    boundary: int,
    boundary_epoch: int,
    accepted_gap_from: int = UNDEFINED_OFFSET,
    prefix_gone: bool = False,
    ready: bool = False,
) -> PartitionRoute:
    """The route of a tracked partition that has a row. A boundary outweighs a closed generation:
    B0 is the point of no return."""
    if boundary != UNDEFINED_OFFSET:
        return PartitionRoute(
            RouteKind.SUFFIX,
            generation,
            boundary,
            boundary_epoch,
            accepted_gap_from,
            prefix_gone,
            ready,
        )
    return PartitionRoute(RouteKind.QUIESCING if quiesced else RouteKind.PENDING, generation)


class FetchRegion(StrEnum):
    """Where in the log an offset lies."""

    UNDIVIDED = "undivided"
    """There is no B0, or nothing is known of one."""
    PREFIX = "prefix"
    """Kafka's log; nothing from B0 on may be returned of it."""
    GAP = "gap"
    """Below B0, in a log gap that an operator gave up: the position does not exist any more."""
    SUFFIX = "suffix"


def position_of(route: PartitionRoute, offset: int) -> int:
    """The offset that a fetch at ``offset`` reads from. Whoever has read all that is left before an
    accepted gap goes on behind it, as behind offsets that compaction took: told that it is out of
    range it would begin anew and come here again, for ever. Without a gap every offset is its own
    position, a negative one too: of that Kafka says that it is out of range."""
    return route.boundary if offset == route.prefix_end else offset


def region_of(route: PartitionRoute, offset: int) -> FetchRegion:
    """The one region of ``offset`` (inclusive)."""
    if route.kind is not RouteKind.SUFFIX:
        return FetchRegion.UNDIVIDED
    if offset >= route.boundary:
        return FetchRegion.SUFFIX
    return FetchRegion.PREFIX if offset < route.prefix_end else FetchRegion.GAP


class KafkaErrorCode(IntEnum):
    """The codes of Kafka's protocol that the rules name (``org.apache.kafka…protocol.Errors``)."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    INVALID_REQUIRED_ACKS = 21
    TOPIC_AUTHORIZATION_FAILED = 29
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    KAFKA_STORAGE_ERROR = 56
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
    UNKNOWN_TOPIC_ID = 100
    FETCH_SESSION_TOPIC_ID_ERROR = 106


class Failure(StrEnum):
    """Why the suffix could not do what was asked."""

    TRANSIENT = "transient"
    """Postgres or S3 did not answer in time; trying again helps."""
    HARD = "hard"
    """Trying again does not help until an operator acts (refused, corrupt, reconciled away)."""


FAILURE_ERRORS: Mapping[Failure, KafkaErrorCode] = {
    Failure.TRANSIENT: KafkaErrorCode.REQUEST_TIMED_OUT,
    Failure.HARD: KafkaErrorCode.KAFKA_STORAGE_ERROR,
}
"""Seed 000: "If B0 lookup fails due to a transient control-plane error, REQUEST_TIMED_OUT; hard
control-plane failures map to KAFKA_STORAGE_ERROR"."""

FETCH_FAILURE = KafkaErrorCode.KAFKA_STORAGE_ERROR
"""A consumer's answer to either failure. It refreshes its metadata and asks again; the Java
consumer dies of a REQUEST_TIMED_OUT in a Fetch (``FetchCollector.handleInitializeErrors``)."""

COMMIT_ERRORS: Mapping[str, KafkaErrorCode] = {
    "NONE": KafkaErrorCode.NONE,
    "DUPLICATE": KafkaErrorCode.NONE,
    "DUPLICATE_SEQUENCE_NUMBER": KafkaErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    "OUT_OF_ORDER_SEQUENCE": KafkaErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    "INVALID_PRODUCER_EPOCH": KafkaErrorCode.INVALID_PRODUCER_EPOCH,
    "UNKNOWN_LOG": KafkaErrorCode.NOT_LEADER_OR_FOLLOWER,
    "BOUNDARY_UNSET": KafkaErrorCode.NOT_LEADER_OR_FOLLOWER,
    "TOPIC_DELETED": KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
"""How an outcome of ``commit_file`` is answered to a producer. A duplicate is a success with the
original offset (Kafka: ``UnifiedLog.analyzeAndValidateProducerState``), and one whose offset is
not known is told so."""

FIND_ERRORS: Mapping[str, KafkaErrorCode] = {
    "NONE": KafkaErrorCode.NONE,
    "UNKNOWN_LOG": KafkaErrorCode.NOT_LEADER_OR_FOLLOWER,
    "BOUNDARY_UNSET": KafkaErrorCode.NOT_LEADER_OR_FOLLOWER,
    "BELOW_BOUNDARY": KafkaErrorCode.NOT_LEADER_OR_FOLLOWER,
    "OFFSET_OUT_OF_RANGE": KafkaErrorCode.OFFSET_OUT_OF_RANGE,
    "TOPIC_DELETED": KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    "SUFFIX_HOLE": KafkaErrorCode.KAFKA_STORAGE_ERROR,
}
"""How an outcome of ``find_batches`` or ``list_offsets`` is answered to a consumer."""
