"""Producer seeds from the batches at a log's tail.

What always holds: a seed comes only from a batch whose last offset is below B0. A later append's
sequence in the seeds would answer a client's retry with "duplicate" while the record exists
nowhere (schedules.md, 5). The newest seed of a producer has the last sequence that the broker
itself reports. Of what was not found (retention has taken it, it lies further back than is read)
the last sequence is a seed without an offset: a retry of it is known to be one, and is never
answered with an offset that was made up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tideline.domain.pipelining import SEQUENCES, sequence_before

BATCHES_KEPT = 5
"""Per producer (``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``)."""


NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class ProducerSeed:
    """One batch of one producer, below B0, in offset order (oldest first). Or, with both offsets
    -1: up to ``last_sequence`` its producer appended batches whose offsets are not known."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int
    """ms, the batch's max timestamp."""

    @property
    def is_unlocated(self) -> bool:
        return self.base_offset == NO_OFFSET


NO_PRODUCER = -1


@dataclass(frozen=True, slots=True)
class TailBatch:
    """What the seeds need of a batch header. Offsets inclusive, timestamp in ms."""

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_timestamp: int
    is_control: bool = False
    size_bytes: int = 0

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.last_offset - self.base_offset) % SEQUENCES


@dataclass(frozen=True, slots=True)
class LastSequence:
    """A producer as the broker reports it (DescribeProducers)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int


@dataclass(slots=True)
class ProducerTail:
    """The newest batches of each producer in ``[scanned_from, scanned_to)``, one contiguous range.

    Grows at either end. Memory is bounded: five batches for each producer.
    """

    scanned_from: int
    scanned_to: int
    batches: dict[int, list[TailBatch]] = field(default_factory=dict)
    bytes_back: int = 0
    """How much was read on the way back."""
    located: dict[int, list[TailBatch]] = field(default_factory=dict)
    """By producer: of one whose batches all lie before the range, its newest that were found there
    by their time. None: they were looked for in vain."""

    def begin_anew(self, at: int) -> None:
        """Forget what was found: something before ``at`` can be read no more."""
        self.batches.clear()
        self.located.clear()
        self.scanned_from = self.scanned_to = at
        self.bytes_back = 0

    def append(self, found: Iterable[TailBatch], up_to: int) -> None:
        """Take in the batches of ``[scanned_to, up_to)``, in offset order."""
        for batch in found:
            if _counts(batch) and self.scanned_to <= batch.base_offset < up_to:
                kept = self.batches.setdefault(batch.producer_id, [])
                kept.append(batch)
                del kept[:-BATCHES_KEPT]
        self.scanned_to = max(self.scanned_to, up_to)

    def prepend(self, found: Iterable[TailBatch], down_to: int) -> None:
        """Take in the batches of ``[down_to, scanned_from)``, in offset order."""
        older: dict[int, list[TailBatch]] = {}
        for batch in found:
            if _counts(batch) and down_to <= batch.base_offset < self.scanned_from:
                older.setdefault(batch.producer_id, []).append(batch)
        for producer_id, batches in older.items():
            kept = batches + self.batches.get(producer_id, [])
            self.batches[producer_id] = kept[-BATCHES_KEPT:]
        self.scanned_from = min(self.scanned_from, down_to)

    def satisfied(self, active: Iterable[LastSequence]) -> bool:
        """Whether going further back would add nothing: five batches of each active producer, or
        its first one (sequence 0 of its epoch)."""
        return all(
            len(mine) >= BATCHES_KEPT or (bool(mine) and mine[0].base_sequence == 0)
            for producer in active
            if producer.last_sequence >= 0
            for mine in [self._of(producer)]
        )

    def unlocated(self, active: Iterable[LastSequence]) -> list[LastSequence]:
        """Producers of which nothing was found, nor looked for elsewhere."""
        return [
            producer
            for producer in active
            if producer.last_sequence >= 0
            and not self._of(producer)
            and producer.producer_id not in self.located
        ]

    def _of(self, producer: LastSequence) -> list[TailBatch]:
        number = producer.producer_id
        before = [b for b in self.located.get(number, ()) if b.last_offset < self.scanned_from]
        return [
            b
            for b in (before + self.batches.get(number, []))[-BATCHES_KEPT:]
            if b.producer_epoch == producer.producer_epoch
        ]

    def seeds(self, active: Iterable[LastSequence], boundary: int) -> tuple[ProducerSeed, ...]:
        """Up to five batches of each active producer, below ``boundary``, in offset order; before
        them, where it may have appended more in its epoch, a seed without offsets."""
        result: list[ProducerSeed] = []
        for producer in active:
            if producer.last_sequence < 0:
                continue
            mine = [b for b in self._of(producer) if b.last_offset < boundary]
            if not mine or mine[-1].last_sequence != producer.last_sequence:
                # The newest batch was not found: those before it may have holes between them, too.
                result.append(_unlocated(producer, producer.last_sequence))
                continue
            mine = _unbroken(mine)
            if not self._are_all(producer, mine):
                result.append(_unlocated(producer, sequence_before(mine[0].base_sequence)))
            result += [
                ProducerSeed(
                    producer_id=b.producer_id,
                    producer_epoch=b.producer_epoch,
                    base_sequence=b.base_sequence,
                    last_sequence=b.last_sequence,
                    base_offset=b.base_offset,
                    last_offset=b.last_offset,
                    timestamp=b.max_timestamp,
                )
                for b in mine
            ]
        return tuple(sorted(result, key=lambda s: (s.producer_id, s.last_offset)))

    def _are_all(self, producer: LastSequence, mine: list[TailBatch]) -> bool:
        """Whether a producer has not appended anything before ``mine`` in its epoch that Kafka
        remembers. Sequence 0 alone does not show it: it also follows the largest one."""
        if len(mine) >= BATCHES_KEPT or self.scanned_from == 0:
            return True
        seen = self.located.get(producer.producer_id) or self.batches[producer.producer_id]
        return mine[0].base_sequence == 0 and seen[0].producer_epoch != producer.producer_epoch


def _unbroken(mine: list[TailBatch]) -> list[TailBatch]:
    """The newest of ``mine`` that follow each other."""
    first = len(mine) - 1
    while first > 0 and mine[first - 1].last_sequence == sequence_before(mine[first].base_sequence):
        first -= 1
    return mine[first:]


def _unlocated(producer: LastSequence, up_to: int) -> ProducerSeed:
    return ProducerSeed(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=up_to,
        last_sequence=up_to,
        base_offset=NO_OFFSET,
        last_offset=NO_OFFSET,
        timestamp=producer.last_timestamp,
    )


def _counts(batch: TailBatch) -> bool:
    return batch.producer_id != NO_PRODUCER and not batch.is_control and batch.base_sequence >= 0
