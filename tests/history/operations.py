"""What clients did and were told: the only thing that the history checker reads.

Times are seconds on one clock, real or virtual. An operation that was never answered has
`answered=None`. Values identify records: whoever writes a history gives each record that is sent a
value of its own (a retry of the same record has the same value). Offsets are Kafka's.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

Value = Hashable


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """`topic` is what tells two topics of one name apart: the topic id, or the name where no
    topic was created again."""

    topic: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


class Outcome(Enum):
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    """An error that says for certain that nothing of it is in the log, not even by an earlier
    attempt (a bad batch, an unknown topic at the first attempt)."""
    UNKNOWN = "unknown"
    """No answer, a time-out, or an error after which the record may be there."""


@dataclass(frozen=True, slots=True)
class Produce:
    """Records that one producer sent to one partition as one batch, its retries included.

    `attempts` is how many requests carried it: a producer without idempotence may find a record
    that often. `number` is the batch's place among those that `producer` sent to `partition`; it
    counts when `idempotent`. An idempotent producer that starts anew has another name.

    `fatal` is the error by which the producer was over, where this batch was told one. `connection`
    is the number of the connection that carried its only attempt; `timestamp`, in ms, is that of
    all its records. Both are None where nobody wrote them down.
    """

    partition: Partition
    producer: str
    via: str
    invoked: float
    answered: float | None
    values: tuple[Value, ...]
    outcome: Outcome
    number: int
    base_offset: int | None = None
    acks: int = -1
    idempotent: bool = True
    attempts: int = 1
    transaction: str | None = None
    fatal: str | None = None
    connection: int | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Fetch:
    """One answered or unanswered fetch. `records` are (offset, value) as a consumer would get them:
    from `offset` on, without control records. `next_offset` is where it goes on; by default behind
    the last record.

    The fetches of one `reader` are one reading from front to back; a reader that seeks has a new
    name. `error` is None where the answer was without one. `connection` is the number of the one
    that carried it, if anybody wrote it down.
    """

    partition: Partition
    reader: str
    via: str
    invoked: float
    answered: float | None
    offset: int
    records: tuple[tuple[int, Value], ...] = ()
    next_offset: int | None = None
    high_watermark: int | None = None
    log_start: int | None = None
    error: str | None = None
    read_committed: bool = False
    last_stable: int | None = None
    connection: int | None = None

    @property
    def position_after(self) -> int:
        if self.next_offset is not None:
            return self.next_offset
        return self.records[-1][0] + 1 if self.records else self.offset


class Which(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    BY_TIME = "by time"


@dataclass(frozen=True, slots=True)
class ListOffsets:
    """`timestamp`, in ms, is what was asked for by time: the first offset whose record has it or a
    later one. `offset` is None where there is none. `connection` as a fetch has it."""

    partition: Partition
    via: str
    invoked: float
    answered: float | None
    which: Which
    offset: int | None = None
    error: str | None = None
    timestamp: int | None = None
    connection: int | None = None


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """OffsetForLeaderEpoch by a consumer at `position`; `end_offset` below it sends it back."""

    partition: Partition
    via: str
    invoked: float
    answered: float | None
    position: int
    end_offset: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """A group's commit of a position."""

    partition: Partition
    group: str
    via: str
    invoked: float
    answered: float | None
    offset: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """What a group was told that it had committed; None where there was nothing."""

    partition: Partition
    group: str
    via: str
    invoked: float
    answered: float | None
    offset: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """`committed` is None where the producer does not know."""

    transaction: str
    answered: float
    committed: bool | None


@dataclass(frozen=True, slots=True)
class Deleted:
    """From `at` on, records below `before` may be gone: DeleteRecords or retention asked for it.
    `before` is inclusive of nothing at it; a deleted topic has `before=sys.maxsize`."""

    partition: Partition
    before: int
    at: float


@dataclass(frozen=True, slots=True)
class Truncated:
    """What lay at `offset` and behind it was lost at `at`, by Kafka itself (an unclean leader
    election of a classic topic), or as an operator accepted: nobody promises those records, and
    their offsets may be given again."""

    partition: Partition
    offset: int
    at: float


@dataclass(frozen=True, slots=True)
class Away:
    """The client called `client` reached nobody from `since` to `until`: what it waited for
    meanwhile is nobody's fault. `client` is a producer's or a reader's name up to its first `.` or
    `@`."""

    client: str
    since: float
    until: float


Request = Produce | Fetch | ListOffsets | EpochEnd | Commit | Committed
Operation = Request | TransactionEnd | Deleted | Truncated | Away
