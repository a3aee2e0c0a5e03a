"""When an acknowledgement of Kafka may be relayed to the producer of a tracked partition.

What always holds: an offset that was acknowledged is below B0 or in the suffix. An append that
Kafka did after B0 was read from its log end is never acknowledged (schedules 1, 6, 14;
architecture "Fencing 5").
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.request_handling import PartitionRoute, RouteKind

UNKNOWN_OFFSET = -1
"""Kafka acknowledged without naming an offset (a duplicate older than the last five)."""


@dataclass(frozen=True, slots=True)
class AckTicket:
    """What held when the produce was forwarded."""

    incarnation: UUID
    closed_generation: int
    """The newest generation whose closing this gateway had acknowledged."""


class AckVerdict(StrEnum):
    RELAY = "relay"
    WAIT = "wait"
    """Until B0 or the abort is known, or the same incarnation holds a valid lease again."""
    WITHHOLD = "withhold"
    """Kafka appended it at or past B0: the producer must send it again, to the suffix."""


def judge(
    ticket: AckTicket,
    route: PartitionRoute,
    *,
    incarnation: UUID,
    closed_generation: int,
    lease_valid: bool,
    last_offset: int,
) -> AckVerdict:
    """Judge one acknowledgement when Kafka's answer is there.

    ``last_offset``: the last offset (inclusive) that it acknowledges, or ``UNKNOWN_OFFSET``.
    ``closed_generation``: the newest generation whose closing this gateway has acknowledged by
    now. A closing that it only knows of does not count: B0 waits for its acknowledgement,
    which waits for this very answer and carries its offset.
    """
    match route.kind:
        case RouteKind.CLASSIC:
            return AckVerdict.RELAY
        case RouteKind.SUFFIX:
            below = UNDEFINED_OFFSET < last_offset < route.boundary
            return AckVerdict.RELAY if below else AckVerdict.WITHHOLD
        case RouteKind.DELETED | RouteKind.UNKNOWN:
            return AckVerdict.WITHHOLD
    holds = incarnation == ticket.incarnation and closed_generation == ticket.closed_generation
    return AckVerdict.RELAY if holds and lease_valid else AckVerdict.WAIT
