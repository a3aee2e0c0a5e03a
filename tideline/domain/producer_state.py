"""Idempotent producer state: what is kept per producer, and how a batch is judged.

Kafka's ``ProducerAppendInfo`` and ``ProducerStateEntry``: the last five batches per producer. A
batch whose sequences match one of them exactly is a duplicate and is answered with the original
offset; any other must follow the last one.

What always holds: a batch that was appended is never taken a second time, and never answered with
an offset that is not its own, also where its offset is not known any more (below B0, or before a
rebuild): such a one is answered DUPLICATE_SEQUENCE_NUMBER, which the Java client
(``Sender.completeBatch``), librdkafka, franz-go and sarama take as stored, without an offset. To
OUT_OF_ORDER_SEQUENCE_NUMBER the Java client sends the same records again in its next epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tideline.domain.pipelining import is_after, sequence_after, sequence_before
from tideline.domain.producer_tail import BATCHES_KEPT, ProducerSeed

NO_SEQUENCE = -1
"""Last sequence of a producer that has only written a control marker in its epoch."""


@dataclass(frozen=True, slots=True)
class RememberedBatch:
    """One of the last batches of a producer."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    append_time: int
    """ms; what a duplicate is answered with under LogAppendTime."""


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """A producer's state in one log: its epoch, and its last batches in it, oldest first."""

    epoch: int
    batches: tuple[RememberedBatch, ...]
    updated_at: int = -1
    """ms."""
    unlocated_sequence: int = NO_SEQUENCE
    """Up to this sequence batches of the epoch were appended whose offsets are not known. -1:
    there are none but those that Kafka would have forgotten, too."""

    @property
    def last_sequence(self) -> int:
        """The sequence that the next batch must follow."""
        return self.batches[-1].last_sequence if self.batches else self.unlocated_sequence

    @property
    def last_append_time(self) -> int:
        """ms; of what is known at all."""
        return max([self.updated_at, *(batch.append_time for batch in self.batches)])


@dataclass(frozen=True, slots=True)
class KnownProducers:
    """What is known of the producers of a log at one offset, by id."""

    entries: Mapping[int, ProducerEntry] = field(default_factory=dict)
    are_all: bool = False
    """Who is not among them has no state there. Else it may have: what it wrote before may have
    been deleted, and its last batch may come again all the same."""


NOBODY_KNOWS = KnownProducers()


@dataclass(frozen=True, slots=True)
class StoredProducerState:
    """A producer's newest batch below a segment's end, as the segment's ``.snapshot`` has it, and
    Postgres for the next segment (Kafka: ``ProducerStateEntry``). A suffix has no transactions."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    """Last offset less base offset of that batch."""
    timestamp: int
    """ms, its largest."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a batch is judged, and for a duplicate the batch that it repeats."""

    error: Literal[
        "NONE",
        "DUPLICATE",
        "DUPLICATE_SEQUENCE_NUMBER",
        "OUT_OF_ORDER_SEQUENCE",
        "INVALID_PRODUCER_EPOCH",
    ]
    """DUPLICATE: the offset of the batch is known. DUPLICATE_SEQUENCE_NUMBER: it is not."""
    original: RememberedBatch | None = None


def follows(epoch: int, base_sequence: int, before_epoch: int, before_sequence: int) -> bool:
    """Whether a batch may come behind one of ``before_epoch`` that ended with ``before_sequence``:
    with the next sequence, or in a higher epoch with 0."""
    if epoch == before_epoch:
        return base_sequence == sequence_after(before_sequence)
    return epoch > before_epoch and base_sequence == 0


def judge(
    entry: ProducerEntry | None, epoch: int, base_sequence: int, last_sequence: int
) -> Verdict:
    """How Kafka judges a batch of an idempotent producer.

    A producer without state may begin anywhere (schedule 21: it came back after its state had
    expired); a higher epoch begins at 0; a lower one is a zombie.
    """
    if entry is None:
        return Verdict("NONE")
    if epoch < entry.epoch:
        return Verdict("INVALID_PRODUCER_EPOCH")
    for kept in entry.batches if epoch == entry.epoch else ():
        if (kept.base_sequence, kept.last_sequence) == (base_sequence, last_sequence):
            return Verdict("DUPLICATE", kept)
    unlocated = entry.unlocated_sequence
    if epoch == entry.epoch and unlocated != NO_SEQUENCE and not is_after(last_sequence, unlocated):
        return Verdict("DUPLICATE_SEQUENCE_NUMBER")
    taken = follows(epoch, base_sequence, entry.epoch, entry.last_sequence)
    return Verdict("NONE" if taken else "OUT_OF_ORDER_SEQUENCE")


def remember(
    entry: ProducerEntry | None, epoch: int, batch: RememberedBatch, now_ms: int
) -> ProducerEntry:
    """The state after ``batch`` was appended in ``epoch``; a new epoch forgets the old one. With
    five known batches Kafka has forgotten what came before, too."""
    if entry is None or entry.epoch != epoch:
        return ProducerEntry(epoch, (batch,), now_ms)
    kept = (*entry.batches, batch)[-BATCHES_KEPT:]
    unlocated = NO_SEQUENCE if len(kept) == BATCHES_KEPT else entry.unlocated_sequence
    return ProducerEntry(epoch, kept, now_ms, unlocated)


def known_from(epoch: int, base_sequence: int) -> ProducerEntry:
    """State of a producer of which nothing is known before the batch that begins with
    ``base_sequence``, but that it may have appended something in this epoch."""
    return ProducerEntry(epoch, (), unlocated_sequence=sequence_before(base_sequence))


def in_order(seeds: Iterable[ProducerSeed]) -> tuple[ProducerSeed, ...]:
    """Seeds by producer, epoch and offset: equal seeds have one order."""
    return tuple(sorted(seeds, key=lambda s: (s.producer_id, s.producer_epoch, s.base_offset)))


def entries_from_seeds(seeds: Iterable[ProducerSeed], now_ms: int) -> dict[int, ProducerEntry]:
    """Producer state at B0, by producer id: the last batches of each producer's highest epoch."""
    entries: dict[int, ProducerEntry] = {}
    for seed in in_order(seeds):
        if seed.is_unlocated:
            entries[seed.producer_id] = ProducerEntry(
                seed.producer_epoch, (), now_ms, seed.last_sequence
            )
            continue
        batch = RememberedBatch(
            seed.base_sequence, seed.last_sequence, seed.base_offset, seed.timestamp
        )
        known = entries.get(seed.producer_id)
        entries[seed.producer_id] = remember(known, seed.producer_epoch, batch, now_ms)
    return entries
