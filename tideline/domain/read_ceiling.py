"""How far a consumer may see a tracked partition in Kafka's log.

What always holds: no consumer sees an offset of Kafka's log at or past B0, not even when this
gateway does not know B0 yet, so that no committed offset skips what the suffix will hold there
(schedules 2, 3, 4, 28; architecture "Fencing 6"; seed 000 "Fetch Response Boundary").
"""

from __future__ import annotations

from dataclasses import dataclass

from tideline.domain.request_handling import KafkaErrorCode, PartitionRoute, RouteKind

NO_CEILING = 2**63 - 1
UNKNOWN_CEILING = -1
"""Nothing was seen while it would have counted: nothing may be returned."""
UNKNOWN_EPOCH = -1


@dataclass(slots=True)
class ReadCeiling:
    """The end of what a consumer of one partition was shown while it could not be past B0.

    It is raised by what consumers' own requests observed, and only after Postgres confirmed, asked
    after Kafka's answer, that every B0 that may yet be set lies past it
    (:class:`tideline.domain.ack_gate.Standing`). The leader epoch of the observation goes with it:
    an unclean election may leave the new leader with a shorter log, B0 may be set at its end, and
    what is appended there later carries a newer epoch than the ceiling.
    """

    highest_seen: int = UNKNOWN_CEILING
    """Exclusive: offsets below it may be returned, in batches of its leader epoch or older."""
    leader_epoch: int = UNKNOWN_EPOCH
    frozen: bool = False

    def asks(self, end: int, leader_epoch: int) -> bool:
        """Whether ``end`` (exclusive), observed at ``leader_epoch``, may be shown only once it is
        confirmed."""
        return end > self.highest_seen or leader_epoch > self.leader_epoch

    def confirmed(self, end: int, leader_epoch: int) -> None:
        """Every B0 that may yet be set lies at ``end`` or past it."""
        if self.frozen:
            return
        if leader_epoch > self.leader_epoch:
            # The new leader's log counts, even where it is shorter.
            self.highest_seen, self.leader_epoch = end, leader_epoch
        elif leader_epoch in (UNKNOWN_EPOCH, self.leader_epoch):
            self.highest_seen = max(self.highest_seen, end)

    def freeze(self) -> int:
        """From the quiesce acknowledgement on nothing higher is returned. Returns the ceiling."""
        self.frozen = True
        return self.highest_seen

    def thaw(self) -> None:
        """The quiesce is void, aborted, or B0 is known."""
        self.frozen = False

    def limit(self, route: PartitionRoute) -> int:
        """The first offset (exclusive bound) that must not be returned from Kafka's log;
        ``UNKNOWN_CEILING``: answer NOT_LEADER_OR_FOLLOWER."""
        match route.kind:
            case RouteKind.CLASSIC:
                return NO_CEILING
            case RouteKind.SUFFIX:
                return route.boundary
            case RouteKind.PENDING | RouteKind.QUIESCING:
                return self.highest_seen
        return UNKNOWN_CEILING


def may_say_out_of_range(
    route: PartitionRoute,
    *,
    lease_valid: bool,
    confirmed: bool,
    fetch_offset: int,
    log_start: int | None,
) -> bool:
    """Whether Kafka's OFFSET_OUT_OF_RANGE is relayed; else NOT_LEADER_OR_FOLLOWER (schedule 3).

    ``confirmed``: Postgres said, after Kafka's answer, that B0 is unset and will lie past it.
    ``log_start``: Kafka's log start offset (inclusive), ``None`` if it is not known.
    """
    if route.kind is RouteKind.CLASSIC:
        return True
    if not lease_valid:
        return False
    if route.in_kafka:
        return confirmed
    return log_start is not None and fetch_offset < log_start


def prefix_answer(
    *, fetch_offset: int, boundary: int, broker_high_watermark: int, empty: bool
) -> KafkaErrorCode:
    """What an answer of Kafka below B0 becomes. Empty while the broker's high watermark has not
    reached B0 means a stale replica, which could answer so for ever (schedule 4)."""
    if empty and fetch_offset < boundary and broker_high_watermark < boundary:
        return KafkaErrorCode.NOT_LEADER_OR_FOLLOWER
    return KafkaErrorCode.NONE
