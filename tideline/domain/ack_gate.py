"""When what Kafka answered finally may be told to the producer of a tracked partition.

What always holds: an offset that was acknowledged is below B0 or in the suffix, and no error that
ends a producer's retries was made by a log that B0 has left behind. An append that Kafka did after
B0 was read from its log end is never acknowledged, whatever any clock said meanwhile (schedules 1,
6, 14, 24 to 26; architecture "Fencing 5").

Why it holds while B0 is unset. B0 of a partition is a log end that was read after a generation
was closed and every gateway that was active then had acknowledged the closing or was over, which
no incarnation comes back from. Postgres is asked after Kafka's answer, in one snapshot:

- The generation is not closed. Then the log end that will be B0 is read after this snapshot, and
  so after the append.
- It is closed, and this incarnation is a witness of the closing, is active, and has not
  acknowledged it. Then no barrier of this generation has been passed, since it would have had to
  wait for this incarnation: the log end is read later, too. This is what lets a produce be told at
  once that was in flight when the pause began.
- It is closed, and this incarnation registered after the closing, or has acknowledged it. Then the
  barrier may be behind us, the log end may be read, and nothing is told until B0 is known, or that
  there will be none.

The lease is asked as well. A Postgres that was cut off from its standbys still answers reads, and
calls an incarnation active that its successor has fenced; renewals end there at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.request_handling import KafkaErrorCode, PartitionRoute, RouteKind

UNKNOWN_OFFSET = -1
"""Kafka acknowledged without naming an offset (a duplicate older than the last five)."""

RETRIED_BY_PRODUCERS: frozenset[int] = frozenset(
    {2, 3, 5, 6, 7, 8, 13, 19, 20, 56, 72, 74, 75, 89, 97, 100, 103}
)
"""Codes of Kafka's ``RetriableException`` that a produce is answered: they tell nothing that lasts,
and the batch comes again."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How an incarnation and a partition stand in Postgres, in one snapshot."""

    generation: int
    boundary: int
    """B0, inclusive; -1 while it is unset."""
    active: bool
    """The incarnation is registered and neither fenced nor replaced nor released."""
    closed: bool
    """The generation is closed."""
    awaited: bool
    """The incarnation could act when the generation was closed, and has not acknowledged that."""

    @property
    def confirms(self) -> bool:
        """Whether every B0 that may yet be set lies past all that Kafka had answered before."""
        unset = self.boundary == UNDEFINED_OFFSET
        return self.active and unset and (not self.closed or self.awaited)


@dataclass(frozen=True, slots=True)
class AckTicket:
    """What held when the produce was forwarded."""

    incarnation: UUID
    closed_generation: int
    """The newest generation whose closing this gateway had acknowledged."""


class AckVerdict(StrEnum):
    RELAY = "relay"
    ASK = "ask"
    """Ask Postgres how the partition stands now, and judge again."""
    WAIT = "wait"
    """Until B0 or the abort is known, the same incarnation holds a valid lease again, or Postgres
    says something else."""
    WITHHOLD = "withhold"
    """Kafka answered it at or past B0: the producer must send it again, to the suffix."""


def is_final(code: int) -> bool:
    """Whether a producer that is answered ``code`` does not send the batch again."""
    return code not in RETRIED_BY_PRODUCERS


def judge(
    ticket: AckTicket,
    route: PartitionRoute,
    *,
    incarnation: UUID,
    closed_generation: int,
    lease_valid: bool,
    last_offset: int,
    standing: Standing | None = None,
) -> AckVerdict:
    """Judge one final answer of Kafka when it is there.

    ``last_offset``: the last offset (inclusive) that it acknowledges, or ``UNKNOWN_OFFSET``.
    ``closed_generation``: the newest generation whose closing this gateway has acknowledged by
    now. A closing that it only knows of does not count: B0 waits for its acknowledgement,
    which waits for this very answer and carries its offset.
    ``standing``: what Postgres said after Kafka's answer, ``None`` if it was not asked.
    """
    if route.kind is RouteKind.CLASSIC:
        return AckVerdict.RELAY
    if route.kind in (RouteKind.DELETED, RouteKind.UNKNOWN):
        return AckVerdict.WITHHOLD
    boundary = route.boundary
    if boundary == UNDEFINED_OFFSET and standing is not None:
        boundary = standing.boundary
    if boundary != UNDEFINED_OFFSET:
        below = UNDEFINED_OFFSET < last_offset < boundary
        return AckVerdict.RELAY if below else AckVerdict.WITHHOLD
    holds = incarnation == ticket.incarnation and closed_generation == ticket.closed_generation
    if not (holds and lease_valid):
        return AckVerdict.WAIT
    if standing is None:
        return AckVerdict.ASK
    return AckVerdict.RELAY if standing.confirms else AckVerdict.WAIT


def refused_by_seal(code: int, size: int, *, sealed: bool, limit: int) -> bool:
    """Whether Kafka refused a batch of ``size`` bytes only since its topic was sealed, not for the
    topic's own ``max.message.bytes`` (``limit``). A partition without B0, whose B0 was reset, takes
    appends again as soon as the seal has gone: the batch comes again (seed 000, "Error
    semantics")."""
    return sealed and code == KafkaErrorCode.MESSAGE_TOO_LARGE and size <= limit


def told_as(code: int) -> int:
    """What Kafka's error on a tracked partition becomes: a topic that is not known to a broker is
    one that the broker does not know *yet*, since it is tracked (seed 000 "Error semantics")."""
    unknown = (
        KafkaErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        KafkaErrorCode.UNKNOWN_TOPIC_ID,
    )
    return int(KafkaErrorCode.NOT_LEADER_OR_FOLLOWER) if code in unknown else code
