"""What a gateway answers to each request about a partition, as one table.

Its key is what is asked (an API, and of which region of the log), the partition's state, the
gateway's lease, and the role of the broker beside the gateway. The handlers look their behaviour up
here and hold no rule of their own; docs/requests.md is made from it, and every case of it is asked
of a gateway in raw frames (``tests/unit/gateway/test_answers.py`` over a made broker,
``tests/integration/test_answers.py`` beside real ones).

The table is seed 000's "Request handling during migration transition", "ListOffsets semantics" and
their error tables, for a gateway in the place of the broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from types import MappingProxyType

from tideline.domain.ack_gate import told_as
from tideline.domain.offset_search import SpecialTimestamp
from tideline.domain.request_handling import (
    FAILURE_ERRORS,
    Failure,
    FetchRegion,
    KafkaErrorCode,
    PartitionRoute,
    RouteKind,
    region_of,
)


class Request(StrEnum):
    """The APIs whose answer depends on a partition's state."""

    PRODUCE = "Produce"
    FETCH = "Fetch"
    LIST_OFFSETS = "ListOffsets"
    LEADER_EPOCH = "OffsetForLeaderEpoch"
    DELETE_RECORDS = "DeleteRecords"


class Asked(StrEnum):
    """What a request asks of a partition: the API, and where in the log. While B0 is unset, or
    nothing is known, all that one API may ask has the same answer."""

    PRODUCE = "produce"
    FETCH_PREFIX = "below B0"
    FETCH_GAP = "inside an accepted log gap"
    FETCH_SUFFIX = "from B0 on"
    EARLIEST = "earliest, earliest local"
    LATEST = "latest"
    MAX_TIMESTAMP = "max timestamp"
    BY_TIME = "a time"
    TIERED = "latest tiered, earliest pending upload"
    EPOCH_PREFIX = "an epoch older than B0's"
    EPOCH_SUFFIX = "B0's epoch or a newer one"
    DELETE_PREFIX = "up to B0"
    DELETE_SUFFIX = "past B0, or all"

    @property
    def request(self) -> Request:
        return _REQUESTS[self]


_REQUESTS: Mapping[Asked, Request] = {
    Asked.PRODUCE: Request.PRODUCE,
    Asked.FETCH_PREFIX: Request.FETCH,
    Asked.FETCH_GAP: Request.FETCH,
    Asked.FETCH_SUFFIX: Request.FETCH,
    Asked.EARLIEST: Request.LIST_OFFSETS,
    Asked.LATEST: Request.LIST_OFFSETS,
    Asked.MAX_TIMESTAMP: Request.LIST_OFFSETS,
    Asked.BY_TIME: Request.LIST_OFFSETS,
    Asked.TIERED: Request.LIST_OFFSETS,
    Asked.EPOCH_PREFIX: Request.LEADER_EPOCH,
    Asked.EPOCH_SUFFIX: Request.LEADER_EPOCH,
    Asked.DELETE_PREFIX: Request.DELETE_RECORDS,
    Asked.DELETE_SUFFIX: Request.DELETE_RECORDS,
}

DELETE_ALL = -1
"""``DeleteRecordsRequest.HIGH_WATERMARK``: up to the high watermark."""

_FETCHES: Mapping[FetchRegion, Asked] = {
    FetchRegion.UNDIVIDED: Asked.FETCH_PREFIX,
    FetchRegion.PREFIX: Asked.FETCH_PREFIX,
    FetchRegion.GAP: Asked.FETCH_GAP,
    FetchRegion.SUFFIX: Asked.FETCH_SUFFIX,
}
_LISTINGS: Mapping[int, Asked] = {
    SpecialTimestamp.LATEST: Asked.LATEST,
    SpecialTimestamp.EARLIEST: Asked.EARLIEST,
    SpecialTimestamp.EARLIEST_LOCAL: Asked.EARLIEST,
    SpecialTimestamp.MAX_TIMESTAMP: Asked.MAX_TIMESTAMP,
    SpecialTimestamp.LATEST_TIERED: Asked.TIERED,
    SpecialTimestamp.EARLIEST_PENDING_UPLOAD: Asked.TIERED,
}


def asked_by_fetch(route: PartitionRoute, offset: int) -> Asked:
    """``offset``: first wanted, inclusive."""
    return _FETCHES[region_of(route, offset)]


def asked_by_listing(timestamp: int) -> Asked:
    """``timestamp``: ms, or a special value of ``ListOffsetsRequest``."""
    return _LISTINGS.get(timestamp, Asked.BY_TIME)


def asked_by_epoch(route: PartitionRoute, leader_epoch: int) -> Asked:
    """``leader_epoch``: the one whose end is asked for."""
    return Asked.EPOCH_SUFFIX if leader_epoch >= route.boundary_epoch else Asked.EPOCH_PREFIX


def asked_by_deletion(route: PartitionRoute, offset: int) -> Asked:
    """``offset``: first to be kept, or :data:`DELETE_ALL`."""
    beyond = offset == DELETE_ALL or offset > route.boundary or route.boundary == 0
    return Asked.DELETE_SUFFIX if beyond else Asked.DELETE_PREFIX


class State(StrEnum):
    """A partition's state, as far as an answer depends on it."""

    CLASSIC = "classic"
    PENDING = "pending"
    QUIESCING = "quiescing"
    NOT_READY = "prefix not ready"
    """B0 is set. Kafka may have to be asked below it, and remote storage lacks some of that."""
    READY = "prefix ready"
    """B0 is set; ``tieringComplete``: remote storage has all of the prefix."""
    NO_PREFIX = "no prefix"
    """B0 is set. Born diskless, or Kafka has nothing below B0 any more."""
    DELETED = "deleted"
    UNKNOWN = "unknown"


SERVED_ANYWHERE = frozenset({State.READY, State.NO_PREFIX})
"""Seed 000's gates: B0 is known, and what lies below it is wholly in tiered storage, or nothing
does. Until then Kafka's leader is needed."""

_UNDIVIDED: Mapping[RouteKind, State] = {
    RouteKind.CLASSIC: State.CLASSIC,
    RouteKind.PENDING: State.PENDING,
    RouteKind.QUIESCING: State.QUIESCING,
    RouteKind.DELETED: State.DELETED,
    RouteKind.UNKNOWN: State.UNKNOWN,
}


def state_of(route: PartitionRoute) -> State:
    """The column of the table for ``route``."""
    if route.kind is not RouteKind.SUFFIX:
        return _UNDIVIDED[route.kind]
    if not route.has_prefix:
        return State.NO_PREFIX
    return State.READY if route.ready else State.NOT_READY


class LeaseState(StrEnum):
    """How the gateway stands with Postgres."""

    HELD = "held"
    LAPSED = "lapsed"
    """No valid lease: fenced, not registered yet, or Postgres was away for as long as it lasts."""
    STOPPED = "stopped"
    """Postgres is another one than was pinned: what it says of offsets may be older than what
    clients were told (schedule 16)."""


class Role(StrEnum):
    """What the broker beside the gateway is to the partition."""

    LEADER = "leader"
    FOLLOWER = "follower"
    """A replica that does not lead."""
    NO_REPLICA = "no replica"
    UNAWARE = "unaware"
    """Its metadata does not have the topic, or the partition, yet."""


_L, _F, _R, _U = Role.LEADER, Role.FOLLOWER, Role.NO_REPLICA, Role.UNAWARE
_ANSWERS, _NOT_MINE, _NOT_KNOWN = (
    KafkaErrorCode.NONE,
    KafkaErrorCode.NOT_LEADER_OR_FOLLOWER,
    KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
KAFKA_SAYS: Mapping[Request, Mapping[Role, KafkaErrorCode]] = {
    request: {_L: _ANSWERS, _F: by_follower, _R: _NOT_MINE, _U: _NOT_KNOWN}
    for request, by_follower in {
        Request.PRODUCE: _NOT_MINE,
        Request.FETCH: _ANSWERS,
        Request.LIST_OFFSETS: _NOT_MINE,
        Request.LEADER_EPOCH: _NOT_MINE,
        Request.DELETE_RECORDS: _NOT_MINE,
    }.items()
}
"""What a stock broker answers by its role (``ReplicaManager.getPartitionOrError``). A follower
serves a Fetch of version 11 and newer (KIP-392). A request that names the topic by its id hears
UNKNOWN_TOPIC_ID where one by name hears UNKNOWN_TOPIC_OR_PARTITION."""


class Behaviour(StrEnum):
    """What a gateway does with one partition of a request."""

    PASS = "pass"
    """Kafka answers; its answer is relayed as it is."""
    GATE = "gate"
    """Kafka answers; what it says is told if it is confirmed to lie below every B0 that may yet be
    set (the ack gate, the read ceiling), else ``Handling.error``."""
    PARK = "park"
    """Waits in arrival order for the next state, within bounds of bytes and time; past them
    ``Handling.error``."""
    PREFIX = "prefix"
    """Kafka answers for what lies below B0, and nothing from B0 on is told."""
    BOTH = "both"
    """Kafka answers below B0 and the suffix from B0 on; the answer is that of the whole log."""
    SUFFIX = "suffix"
    """The suffix answers alone: Postgres and the object store."""
    REFUSE = "refuse"
    """Answered with ``Handling.error`` at once."""


ASK_KAFKA = frozenset({Behaviour.PASS, Behaviour.GATE, Behaviour.PREFIX, Behaviour.BOTH})


@dataclass(frozen=True, slots=True)
class Handling:
    behaviour: Behaviour
    error: KafkaErrorCode = KafkaErrorCode.NONE
    """See :class:`Behaviour`."""
    then_leader: bool = False
    """What the paired broker refuses because of its role is asked of Kafka's leader: clients may
    have been led here all the same (:data:`SERVED_ANYWHERE`)."""

    @property
    def asks_kafka(self) -> bool:
        return self.behaviour in ASK_KAFKA

    def is_for_the_leader(self, code: int) -> bool:
        """Whether ``code`` of the paired broker is of its role alone, and the leader is asked."""
        return self.then_leader and told_as(code) == KafkaErrorCode.NOT_LEADER_OR_FOLLOWER


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of the table, by the lease."""

    held: Handling
    lapsed: Handling
    stopped: Handling

    def under(self, lease: LeaseState) -> Handling:
        match lease:
            case LeaseState.HELD:
                return self.held
            case LeaseState.LAPSED:
                return self.lapsed
            case LeaseState.STOPPED:
                return self.stopped


SEND_AGAIN = KafkaErrorCode.REQUEST_TIMED_OUT
"""To a producer whose batch was not taken, or whose acknowledgement is withheld."""
READ_AGAIN = KafkaErrorCode.NOT_LEADER_OR_FOLLOWER
"""To a client of which nothing may be told now that could be untrue of the whole log."""
OVER_ANOTHER = FAILURE_ERRORS[Failure.HARD]
"""To whoever asks for what only the Postgres that was pinned can say (:class:`LeaseState`)."""
_STORAGE = Handling(Behaviour.REFUSE, OVER_ANOTHER)
_PARKED = Handling(Behaviour.PARK, SEND_AGAIN)
_CONFIRMED = Handling(Behaviour.GATE, READ_AGAIN)
_LATER = Handling(Behaviour.REFUSE, KafkaErrorCode.REQUEST_TIMED_OUT)


def _always(handling: Handling) -> Cell:
    return Cell(handling, handling, handling)


def _pinned(handling: Handling) -> Cell:
    """It takes the Postgres that was pinned, not a lease."""
    return Cell(handling, handling, _STORAGE)


def _refused(code: KafkaErrorCode) -> Cell:
    return _always(Handling(Behaviour.REFUSE, code))


_pass = _always(Handling(Behaviour.PASS))
_append = Cell(Handling(Behaviour.GATE, SEND_AGAIN), _PARKED, _STORAGE)
_park = _pinned(_PARKED)
_seen = _always(_CONFIRMED)
"""What was confirmed before is shown without a lease, too; nothing new is confirmed."""
_said = _pinned(_CONFIRMED)
_delete = Cell(_CONFIRMED, _LATER, _STORAGE)
_later = _pinned(_LATER)
_read = _always(Handling(Behaviour.PREFIX))
_kafka = _pinned(Handling(Behaviour.PREFIX))
_anyk = _pinned(Handling(Behaviour.PREFIX, then_leader=True))
_both = _pinned(Handling(Behaviour.BOTH))
_anyb = _pinned(Handling(Behaviour.BOTH, then_leader=True))
_suffix = _pinned(Handling(Behaviour.SUFFIX))
_ended = Cell(_suffix.held, Handling(Behaviour.REFUSE, READ_AGAIN), _STORAGE)
"""An end sends consumers back that stand past it: without a lease Postgres may be one that was left
behind by a promotion."""
_lost = _refused(KafkaErrorCode.OFFSET_OUT_OF_RANGE)
"""The position does not exist any more, whoever is asked."""
_gone = _refused(KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""UNKNOWN_TOPIC_ID where the request names the topic by its id."""
_other = _refused(KafkaErrorCode.NOT_LEADER_OR_FOLLOWER)
"""Schedule 22: too little is known, so nobody serves it here."""


def _table(*rows: tuple[Asked, tuple[Cell, ...]]) -> Mapping[Asked, Mapping[State, Cell]]:
    return MappingProxyType(
        {asked: MappingProxyType(dict(zip(State, row, strict=True))) for asked, row in rows}
    )


_A = Asked
# fmt: off
ANSWERS = _table(
    #                    classic pending  quiescing not ready ready   no prefix deleted unknown
    (_A.PRODUCE,       (_pass, _append, _park,  _suffix, _suffix, _suffix, _gone, _other)),
    (_A.FETCH_PREFIX,  (_pass, _seen,   _seen,  _read,   _read,   _lost,   _gone, _other)),
    (_A.FETCH_GAP,     (_pass, _seen,   _seen,  _lost,   _lost,   _lost,   _gone, _other)),
    (_A.FETCH_SUFFIX,  (_pass, _seen,   _seen,  _suffix, _suffix, _suffix, _gone, _other)),
    (_A.EARLIEST,      (_pass, _said,   _said,  _both,   _anyb,   _suffix, _gone, _other)),
    (_A.LATEST,        (_pass, _said,   _said,  _suffix, _suffix, _suffix, _gone, _other)),
    (_A.MAX_TIMESTAMP, (_pass, _said,   _said,  _suffix, _suffix, _suffix, _gone, _other)),
    (_A.BY_TIME,       (_pass, _said,   _said,  _both,   _anyb,   _suffix, _gone, _other)),
    (_A.TIERED,        (_pass, _said,   _said,  _kafka,  _anyk,   _suffix, _gone, _other)),
    (_A.EPOCH_PREFIX,  (_pass, _said,   _said,  _kafka,  _anyk,   _suffix, _gone, _other)),
    (_A.EPOCH_SUFFIX,  (_pass, _said,   _said,  _ended,  _ended,  _ended,  _gone, _other)),
    (_A.DELETE_PREFIX, (_pass, _delete, _later, _kafka,  _anyk,   _suffix, _gone, _other)),
    (_A.DELETE_SUFFIX, (_pass, _delete, _later, _both,   _anyb,   _suffix, _gone, _other)),
)
# fmt: on


def handling(asked: Asked, route: PartitionRoute, lease: LeaseState) -> Handling:
    """What to do with one partition of a request."""
    return ANSWERS[asked][state_of(route)].under(lease)


def is_past_the_end(end: int, known: int, lease: LeaseState) -> bool:
    """Whether a consumer that stands past ``end``, the high watermark that Postgres told now, may
    be told so, which resets it. A server that was left behind by a promotion knows of less than was
    told before: ``known``, the highest one here (-1: none), or, without a lease, elsewhere."""
    return lease is LeaseState.HELD and known <= end


@dataclass(frozen=True, slots=True)
class Case:
    """One key of the whole table."""

    asked: Asked
    state: State
    lease: LeaseState
    role: Role

    @property
    def handling(self) -> Handling:
        """What a gateway does, which does not know the role beforehand."""
        return ANSWERS[self.asked][self.state].under(self.lease)

    @property
    def asks_leader(self) -> bool:
        """Whether Kafka's leader is asked behind the paired broker."""
        handling = self.handling
        code = KAFKA_SAYS[self.asked.request][self.role]
        return handling.asks_kafka and handling.is_for_the_leader(code)

    @property
    def is_relayed_refusal(self) -> bool:
        """Whether a client hears what Kafka refuses, as it is."""
        answer = self.answer
        return answer.behaviour is Behaviour.PASS and answer.error is not KafkaErrorCode.NONE

    @property
    def answer(self) -> Handling:
        """What a client hears in the end: ``REFUSE`` with a code, or who answers it."""
        handling = self.handling
        code = KAFKA_SAYS[self.asked.request][self.role]
        if not handling.asks_kafka or code is KafkaErrorCode.NONE or self.asks_leader:
            return handling
        if self.state is State.CLASSIC:
            return replace(handling, error=code)
        return Handling(Behaviour.REFUSE, KafkaErrorCode(told_as(code)))


def cases() -> Iterator[Case]:
    """Every key, once."""
    return (Case(*key) for key in product(Asked, State, LeaseState, Role))
