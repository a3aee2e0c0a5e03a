"""What is under way into object storage: accepted batches, and the objects that hold them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from tideline.control_plane.model import BatchToCommit, CommittedBatch
from tideline.domain.ids import TopicIdPartition
from tideline.domain.pipelining import ProducerBatch
from tideline.domain.request_handling import Failure
from tideline.errors import TidelineError
from tideline.gateway.produce.commit_stream import Ending, LeftOver


class AppendFailed(TidelineError):
    """A batch was not appended, and will not be. The producer may send it again."""

    def __init__(self, failure: Failure, reason: str) -> None:
        super().__init__(reason)
        self.failure = failure


class AppendDropped(TidelineError):
    """The incarnation that accepted the batch is fenced: nothing may be answered for it."""


@dataclass(slots=True, eq=False)
class Append:
    """One accepted batch."""

    log: TopicIdPartition
    source: object
    batch: bytes
    producer: ProducerBatch
    last_sequence: int
    record_count: int
    max_timestamp: int
    timestamp_type: str
    outcome: asyncio.Future[CommittedBatch]
    accepted: float = 0.0

    @property
    def order(self) -> Hashable:
        """Batches with the same order must not overtake each other."""
        idempotent = self.producer.producer_id >= 0
        return self.log, self.producer.producer_id if idempotent else self.source

    @property
    def wanted(self) -> bool:
        """Whether nothing was answered yet; who has gone away may have it appended all the same.
        Otherwise its bytes are gone."""
        return not self.outcome.done() or self.outcome.cancelled()


@dataclass(slots=True, eq=False)
class WalObject:
    """One object under way: ``appends`` in the order of the body."""

    appends: list[Append]
    sequence: int
    key: str = ""
    body: bytes = b""
    """With its footer."""
    upload: asyncio.Task[None] | None = None
    given_up_at: float = math.inf
    """The loop's time after which nothing of it is put any more."""
    placed: list[BatchToCommit] = field(default_factory=list)
    """All batches of the body."""
    live: list[int] = field(default_factory=list)
    """Places of those that go to the commit; ``appends`` are these alone from then on."""
    again: bool = False
    """An earlier attempt may have been stored, under another key."""
    sent: bool = False
    """To Postgres: it may be committed."""
    sent_at: float = math.inf
    """When it was, in the loop's seconds."""
    ending: Ending = field(default_factory=Ending)

    @property
    def size(self) -> int:
        return len(self.body)

    def end_with(self, ending: Ending) -> None:
        """In the place of its ending, with as many bytes."""
        records = memoryview(self.body)[: -len(self.ending.footer)]
        self.body, self.ending = b"".join([records, ending.footer]), ending

    def left_over(self) -> LeftOver:
        return LeftOver(self.sequence, self.key, len(self.placed), self.live, self.sent)


def placed(append: Append, position: int) -> BatchToCommit:
    """``append`` as a part of an object, from byte ``position`` on."""
    return BatchToCommit(
        log=append.log,
        byte_offset=position,
        byte_size=len(append.batch),
        record_count=append.record_count,
        max_timestamp=append.max_timestamp,
        timestamp_type=append.timestamp_type,
        producer_id=append.producer.producer_id,
        producer_epoch=append.producer.producer_epoch,
        base_sequence=append.producer.base_sequence,
        last_sequence=append.last_sequence,
    )
