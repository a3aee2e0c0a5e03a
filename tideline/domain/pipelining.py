"""What may not be accepted after a batch of the same producer was refused.

What always holds: a batch that was sent behind a refused one is not accepted before it
(schedule 10). The control plane sees to it for producers whose state it knows; a producer
without state may start at any sequence, so for those the gateway has to remember.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

MAX_SEQUENCE = 2**31 - 1
"""0 follows it (``DefaultRecordBatch.incrementSequence``)."""
SEQUENCES = MAX_SEQUENCE + 1
"""Sequence numbers count modulo this."""

REMEMBERED = 10_000
FORGOTTEN_AFTER_S = 10.0
"""What was pipelined behind a refused batch was sent before its refusal could be read, so it
arrives soon after it is told. A producer that sent the refused batch elsewhere is not held up for
longer."""

K = TypeVar("K", bound=Hashable)


def sequence_after(sequence: int) -> int:
    """The sequence that follows, with the wrap from 2147483647 to 0."""
    return (sequence + 1) % SEQUENCES


def sequence_before(sequence: int) -> int:
    """The sequence that ``sequence`` follows."""
    return (sequence - 1) % SEQUENCES


def is_after(sequence: int, other: int) -> bool:
    """Whether ``sequence`` comes after ``other`` within half of the cycle."""
    return 0 < (sequence - other) % SEQUENCES < SEQUENCES // 2


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """Who sent a batch, and where in its sequence it stands. ``producer_id`` -1: not idempotent."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class RefusedSequences(Generic[K]):
    """The lowest refused sequence per key (a partition on a connection) and
    producer, for a bounded while."""

    def __init__(self, clock: Callable[[], float], answered_within_s: float = 0.0) -> None:
        """``answered_within_s``: how long a refusal may wait to be told, behind other partitions of
        its request and other requests of its connection."""
        self._clock = clock
        self._forgotten_after_s = answered_within_s + FORGOTTEN_AFTER_S
        self._refused: OrderedDict[tuple[K, int], tuple[int, int, float]] = OrderedDict()
        self.watch: Callable[[K, ProducerBatch], None] = lambda key, batch: None
        """Called with each batch that is refused and was behind none that is: whatever waits behind
        it is to be refused at once, since the batch itself may come again and wait behind that."""

    def refuse(self, key: K, batch: ProducerBatch) -> None:
        """Note that ``batch`` was refused and will come again."""
        if batch.producer_id < 0:
            return
        place, now = (key, batch.producer_id), self._clock()
        if (known := self._refused.get(place)) is not None:
            epoch, sequence, since = known
            same = epoch == batch.producer_epoch and now - since <= self._forgotten_after_s
            if same and is_after(batch.base_sequence, sequence):
                return  # one that is behind a refused one makes nobody wait for longer
        self._refused[place] = (batch.producer_epoch, batch.base_sequence, now)
        self._refused.move_to_end(place)
        while len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)
        self.watch(key, batch)

    def may_pass(self, key: K, batch: ProducerBatch) -> bool:
        """Whether no earlier batch of this producer is still missing. Passing the refused batch
        itself (or a newer epoch) forgets the refusal."""
        place = (key, batch.producer_id)
        known = self._refused.get(place)
        if known is None:
            return True
        epoch, sequence, since = known
        expired = self._clock() - since > self._forgotten_after_s
        if batch.producer_epoch != epoch or batch.base_sequence == sequence or expired:
            del self._refused[place]
            return True
        return not is_after(batch.base_sequence, sequence)
