"""What may not overtake a refused batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.pipelining import (
    FORGOTTEN_AFTER_S,
    REMEMBERED,
    SEQUENCES,
    ProducerBatch,
    RefusedSequences,
    is_after,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def batch(sequence: int, epoch: int = 0, producer: int = 9) -> ProducerBatch:
    return ProducerBatch(producer, epoch, sequence)


def test_what_was_sent_behind_a_refused_batch_is_refused_until_it_comes_again() -> None:
    """Schedule 10."""
    refused: RefusedSequences[str] = RefusedSequences(Clock())
    refused.refuse("p", batch(10))
    assert not refused.may_pass("p", batch(15))
    assert refused.may_pass("p", batch(10))
    assert refused.may_pass("p", batch(15))


def test_the_lowest_of_several_refused_sequences_is_remembered() -> None:
    refused: RefusedSequences[str] = RefusedSequences(Clock())
    refused.refuse("p", batch(10))
    refused.refuse("p", batch(15))
    assert not refused.may_pass("p", batch(15))
    refused.refuse("p", batch(5))
    assert not refused.may_pass("p", batch(10))


def test_another_epoch_partition_or_producer_is_not_held_back() -> None:
    refused: RefusedSequences[str] = RefusedSequences(Clock())
    refused.refuse("p", batch(10))
    assert refused.may_pass("q", batch(15))
    assert refused.may_pass("p", batch(15, producer=8))
    assert refused.may_pass("p", batch(0, epoch=1))
    assert refused.may_pass("p", ProducerBatch(-1, -1, -1))


def test_a_producer_that_sent_it_elsewhere_is_not_held_back_for_long() -> None:
    clock = Clock()
    refused: RefusedSequences[str] = RefusedSequences(clock)
    refused.refuse("p", batch(10))
    clock.now = FORGOTTEN_AFTER_S + 1
    assert refused.may_pass("p", batch(15))


def test_a_refusal_counts_for_as_long_as_it_may_wait_to_be_told() -> None:
    """Until then the client sends what is behind it, and it does not come again."""
    clock = Clock()
    refused: RefusedSequences[str] = RefusedSequences(clock, answered_within_s=25)
    refused.refuse("p", batch(10))
    clock.now = 25 + FORGOTTEN_AFTER_S - 1
    assert not refused.may_pass("p", batch(15))
    clock.now += 2
    assert refused.may_pass("p", batch(15))


def test_what_is_refused_behind_it_makes_nobody_wait_for_longer() -> None:
    """Else a producer that sent it elsewhere would wait for as long as it tries."""
    clock = Clock()
    refused: RefusedSequences[str] = RefusedSequences(clock)
    refused.refuse("p", batch(10))
    while clock.now <= FORGOTTEN_AFTER_S:
        assert not refused.may_pass("p", batch(15))
        refused.refuse("p", batch(15))
        clock.now += 1
    assert refused.may_pass("p", batch(15))


def test_who_watches_is_told_of_what_is_refused_behind_nothing_else() -> None:
    clock, told = Clock(), list[int]()
    refused: RefusedSequences[str] = RefusedSequences(clock)
    refused.watch = lambda key, of: told.append(of.base_sequence)
    for sequence in (10, 15, 5, 7):
        refused.refuse("p", batch(sequence))
    clock.now = FORGOTTEN_AFTER_S + 1
    refused.refuse("p", batch(8))
    assert told == [10, 5, 8]


def test_only_so_many_producers_are_remembered() -> None:
    refused: RefusedSequences[str] = RefusedSequences(Clock())
    for producer in range(REMEMBERED + 1):
        refused.refuse("p", batch(10, producer=producer))
    assert refused.may_pass("p", batch(15, producer=0))
    assert not refused.may_pass("p", batch(15, producer=1))


@given(st.integers(0, SEQUENCES - 1), st.integers(1, SEQUENCES // 2 - 1))
def test_sequences_are_compared_across_the_wrap(sequence: int, step: int) -> None:
    """0 follows 2147483647."""
    later = (sequence + step) % SEQUENCES
    assert is_after(later, sequence)
    assert not is_after(sequence, later)
    assert not is_after(sequence, sequence)
