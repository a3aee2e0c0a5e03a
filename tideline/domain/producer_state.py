"""Idempotent producer state: what is kept per producer, and how a batch is judged.

Kafka's ``ProducerAppendInfo`` and ``ProducerStateEntry``: the last five batches per producer. A
batch whose sequences match one of them exactly is a duplicate and is answered with the original
offset; any other must follow the last one. ``commit_file`` repeats this rule in SQL
(``judge_batch``); tests/contract keeps the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tideline.domain.pipelining import MAX_SEQUENCE, SEQUENCES

BATCHES_KEPT = 5
"""``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``."""

NO_SEQUENCE = -1
"""Last sequence of a producer that has only written a control marker in its epoch."""


@dataclass(frozen=True, slots=True)
class ProducerSeed:
    """One batch of one producer, below B0, in offset order (oldest first)."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int
    """ms, the batch's max timestamp."""


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

    @property
    def last_sequence(self) -> int:
        """The sequence that the next batch must follow."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class Verdict(StrEnum):
    """What becomes of a batch. The names are those of ``CommitError``."""

    APPEND = "NONE"
    DUPLICATE = "DUPLICATE"
    OUT_OF_ORDER_SEQUENCE = "OUT_OF_ORDER_SEQUENCE"
    INVALID_PRODUCER_EPOCH = "INVALID_PRODUCER_EPOCH"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and for a duplicate the batch that it repeats."""

    verdict: Verdict
    original: RememberedBatch | None = None


def sequence_after(sequence: int) -> int:
    """The sequence that follows, with the wrap from 2147483647 to 0."""
    return 0 if sequence == MAX_SEQUENCE else sequence + 1


def last_sequence_of(base_sequence: int, record_count: int) -> int:
    """Last sequence of a batch; wraps inside the batch too."""
    return (base_sequence + record_count - 1) % SEQUENCES


def judge(
    entry: ProducerEntry | None, epoch: int, base_sequence: int, last_sequence: int
) -> Judgement:
    """How Kafka judges a batch of an idempotent producer.

    A producer without state may begin anywhere (schedule 21: it came back after its state had
    expired); a higher epoch begins at 0; a lower one is a zombie.
    """
    if entry is None:
        return Judgement(Verdict.APPEND)
    if epoch < entry.epoch:
        return Judgement(Verdict.INVALID_PRODUCER_EPOCH)
    if epoch > entry.epoch:
        follows = base_sequence == 0
    else:
        for batch in entry.batches:
            if (batch.base_sequence, batch.last_sequence) == (base_sequence, last_sequence):
                return Judgement(Verdict.DUPLICATE, batch)
        follows = base_sequence == sequence_after(entry.last_sequence)
    return Judgement(Verdict.APPEND if follows else Verdict.OUT_OF_ORDER_SEQUENCE)


def remember(entry: ProducerEntry | None, epoch: int, batch: RememberedBatch) -> ProducerEntry:
    """The state after ``batch`` was appended in ``epoch``; a new epoch forgets the old one."""
    kept = entry.batches if entry is not None and entry.epoch == epoch else ()
    return ProducerEntry(epoch, (*kept, batch)[-BATCHES_KEPT:])


def entries_from_seeds(seeds: Iterable[ProducerSeed]) -> dict[int, ProducerEntry]:
    """Producer state at B0, by producer id: the last batches of each producer's highest epoch."""
    entries: dict[int, ProducerEntry] = {}
    for seed in sorted(seeds, key=lambda s: (s.producer_id, s.producer_epoch, s.base_offset)):
        entries[seed.producer_id] = remember(
            entries.get(seed.producer_id),
            seed.producer_epoch,
            RememberedBatch(
                seed.base_sequence, seed.last_sequence, seed.base_offset, seed.timestamp
            ),
        )
    return entries
