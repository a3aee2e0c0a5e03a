"""How far a consumer may see a tracked partition in Kafka's log.

What always holds: no consumer sees an offset of Kafka's log at or past B0, not even when this
gateway does not know B0 yet, so that no committed offset skips what the suffix will hold there
(schedules 2, 3, 4; architecture "Fencing 6"; seed 000 "Fetch Response Boundary").
"""

from __future__ import annotations

from dataclasses import dataclass

from tideline.domain.request_handling import KafkaErrorCode, PartitionRoute, RouteKind

NO_CEILING = 2**63 - 1
UNKNOWN_CEILING = -1
"""Nothing was seen while it would have counted: nothing may be returned."""


@dataclass(slots=True)
class ReadCeiling:
    """The highest high watermark of one partition seen while it could not be past B0.

    That is: with a valid lease and before this gateway acknowledged a quiesce, since B0 is read
    from the log end only after both are over.
    """

    highest_seen: int = UNKNOWN_CEILING
    """Exclusive: offsets below it may be returned."""
    frozen: bool = False

    def observe(self, high_watermark: int, *, lease_valid: bool) -> None:
        """Note a high watermark that Kafka answered just now."""
        if lease_valid and not self.frozen:
            self.highest_seen = max(self.highest_seen, high_watermark)

    def freeze(self) -> int:
        """From the quiesce acknowledgement on nothing higher is returned. Returns the ceiling."""
        self.frozen = True
        return self.highest_seen

    def thaw(self) -> None:
        """The quiesce is void, aborted, or B0 is known."""
        self.frozen = False

    def limit(self, route: PartitionRoute, *, lease_valid: bool) -> int:
        """The first offset (exclusive bound) that must not be returned from Kafka's log;
        ``UNKNOWN_CEILING``: answer NOT_LEADER_OR_FOLLOWER."""
        match route.kind:
            case RouteKind.CLASSIC:
                return NO_CEILING
            case RouteKind.SUFFIX:
                return route.boundary
            case RouteKind.PENDING | RouteKind.QUIESCING:
                return NO_CEILING if lease_valid and not self.frozen else self.highest_seen
        return UNKNOWN_CEILING


def may_say_out_of_range(
    route: PartitionRoute, *, lease_valid: bool, fetch_offset: int, log_start: int | None
) -> bool:
    """Whether Kafka's OFFSET_OUT_OF_RANGE is relayed; else NOT_LEADER_OR_FOLLOWER (schedule 3).

    ``log_start``: Kafka's log start offset (inclusive), ``None`` if it is not known.
    """
    if route.kind is RouteKind.CLASSIC:
        return True
    if not lease_valid:
        return False
    if route.kind is RouteKind.PENDING:
        return True
    return log_start is not None and fetch_offset < log_start


def prefix_answer(
    *, fetch_offset: int, boundary: int, broker_high_watermark: int, empty: bool
) -> KafkaErrorCode:
    """What an answer of Kafka below B0 becomes. Empty while the broker's high watermark has not
    reached B0 means a stale replica, which could answer so for ever (schedule 4)."""
    if empty and fetch_offset < boundary and broker_high_watermark < boundary:
        return KafkaErrorCode.NOT_LEADER_OR_FOLLOWER
    return KafkaErrorCode.NONE
