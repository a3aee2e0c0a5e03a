"""A retry of any of a producer's last five batches is known to be one after B0, however little of
the log was found: it is answered with its own offset or with none, and never taken as new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.pipelining import MAX_SEQUENCE, SEQUENCES, sequence_after
from tideline.domain.producer_state import (
    ProducerEntry,
    RememberedBatch,
    entries_from_seeds,
    judge,
    remember,
)
from tideline.domain.producer_tail import BATCHES_KEPT, LastSequence, ProducerTail, TailBatch


@dataclass(frozen=True)
class Sent:
    """What a producer does next: ``records`` more, in its next epoch if it ``bumps`` it."""

    producer: int
    records: int
    bumps: bool


SENT = st.builds(Sent, st.integers(1, 3), st.integers(1, 4), st.sampled_from([False] * 5 + [True]))


def appended(sent: Sequence[Sent], first: dict[int, int]) -> list[TailBatch]:
    """The log that Kafka has of it. A producer begins in its first epoch with ``first``."""
    log: list[TailBatch] = []
    at: dict[int, tuple[int, int]] = {}
    offset = 0
    for one in sent:
        epoch, sequence = at.get(one.producer, (0, first[one.producer]))
        if one.bumps and one.producer in at:
            epoch, sequence = epoch + 1, 0
        log.append(
            TailBatch(
                offset, offset + one.records - 1, one.producer, epoch, sequence, 1_000 + offset
            )
        )
        at[one.producer] = epoch, (sequence + one.records) % SEQUENCES
        offset += one.records
    return log


def active(log: Sequence[TailBatch]) -> dict[int, LastSequence]:
    """As DescribeProducers tells it."""
    return {
        b.producer_id: LastSequence(b.producer_id, b.producer_epoch, b.last_sequence, 5_000)
        for b in log
    }


def last_five(log: Sequence[TailBatch], producer: LastSequence) -> list[TailBatch]:
    mine = [
        b
        for b in log
        if (b.producer_id, b.producer_epoch) == (producer.producer_id, producer.producer_epoch)
    ]
    return mine[-BATCHES_KEPT:]


def assert_known(entry: ProducerEntry, batch: TailBatch) -> None:
    verdict = judge(entry, batch.producer_epoch, batch.base_sequence, batch.last_sequence)
    if verdict.error == "DUPLICATE":
        assert verdict.original is not None
        assert verdict.original.base_offset == batch.base_offset
    else:
        assert verdict.error == "DUPLICATE_SEQUENCE_NUMBER"


@given(
    sent=st.lists(SENT, min_size=1, max_size=30),
    first=st.fixed_dictionaries(
        {n: st.sampled_from([0, 7, MAX_SEQUENCE - 6, MAX_SEQUENCE]) for n in (1, 2, 3)}
    ),
    scanned=st.tuples(st.integers(0, 120), st.integers(0, 120)),
    missed=st.sets(st.integers(0, 29), max_size=2),
    more=st.integers(0, 7),
)
def test_however_little_was_found_a_retry_is_known(
    sent: list[Sent],
    first: dict[int, int],
    scanned: tuple[int, int],
    missed: set[int],
    more: int,
) -> None:
    log = appended(sent, first)
    boundary = log[-1].last_offset + 1
    start, middle = sorted(min(offset, boundary) for offset in scanned)
    found = [b for number, b in enumerate(log) if number not in missed]
    tail = ProducerTail(middle, middle)
    tail.append(found, boundary)
    # A hole is not taken for the beginning of the log.
    tail.prepend(found, start if not missed else max(start, 1))
    entries = entries_from_seeds(tail.seeds(active(log).values(), boundary), -1)
    for number, producer in active(log).items():
        entry, mine = entries[number], last_five(log, producer)
        for batch in mine:
            assert_known(entry, batch)
        bumped = judge(entry, producer.producer_epoch + 1, 0, 0)
        assert bumped.error == "NONE"
        sequence = sequence_after(producer.last_sequence)
        for offset in range(boundary, boundary + more):
            assert judge(entry, producer.producer_epoch, sequence, sequence).error == "NONE"
            entry = remember(
                entry,
                producer.producer_epoch,
                RememberedBatch(sequence, sequence, offset, 1),
                1,
            )
            sequence = sequence_after(sequence)
        for batch in mine[more:] if len(mine) == BATCHES_KEPT else mine[: BATCHES_KEPT - more]:
            if len(mine) + more <= BATCHES_KEPT or batch in mine[more:]:
                assert_known(entry, batch)


@given(sent=st.lists(SENT, min_size=1, max_size=30))
def test_where_the_whole_log_was_read_the_answers_are_those_of_kafka(sent: list[Sent]) -> None:
    """What lies before the last five, or between them, is out of order there, too."""
    log = appended(sent, {1: 0, 2: 0, 3: 0})
    boundary = log[-1].last_offset + 1
    tail = ProducerTail(0, 0)
    tail.append(log, boundary)
    entries = entries_from_seeds(tail.seeds(active(log).values(), boundary), -1)
    for number, producer in active(log).items():
        entry = entries[number]
        known = last_five(log, producer)
        for batch in log:
            if (batch.producer_id, batch.producer_epoch) != (number, producer.producer_epoch):
                continue
            verdict = judge(entry, batch.producer_epoch, batch.base_sequence, batch.last_sequence)
            assert verdict.error == ("DUPLICATE" if batch in known else "OUT_OF_ORDER_SEQUENCE")
