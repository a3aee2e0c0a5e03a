"""What observations of a partition look like. Offsets that end something are exclusive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from tideline.domain.quiescence import settled_at


class Spot(IntEnum):
    """The special timestamps of ListOffsets."""

    LATEST = -1
    """High watermark; last stable offset with read_committed; log end as debug consumer."""
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    """Highest offset in remote storage (inclusive). Never a proof of coverage."""


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """Who has a partition, as one broker's metadata says."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """A topic and where its partitions are."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: Mapping[int, PartitionLayout]


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """One answer of ListOffsets. ``timestamp`` in ms."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of the log at one leader epoch, on every in-sync replica. Ends are exclusive."""

    layout: PartitionLayout
    last_stable_offset: int
    high_watermark: int
    log_ends: Mapping[int, int]
    """LEO by node id."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """Replicas that did not answer at this epoch, and why."""

    @property
    def settled(self) -> bool:
        """LSO = HW = the LEO of every in-sync replica, all of which answered."""
        at = settled_at(
            self.last_stable_offset, self.high_watermark, self.layout.in_sync, self.log_ends
        )
        return at is not None and not self.problems

    def describe(self) -> str:
        """For a waiting reason."""
        ends = ", ".join(f"{node}: {end}" for node, end in sorted(self.log_ends.items()))
        text = f"LSO {self.last_stable_offset}, HW {self.high_watermark}, log ends {{{ends}}}"
        if self.problems:
            text += "; " + "; ".join(f"broker {n}: {why}" for n, why in self.problems.items())
        return text
