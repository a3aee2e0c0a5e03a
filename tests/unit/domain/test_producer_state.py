"""How a batch of an idempotent producer is judged (Kafka: ProducerAppendInfo)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain import producer_state
from tideline.domain.pipelining import MAX_SEQUENCE, SEQUENCES, sequence_after
from tideline.domain.producer_state import (
    NO_SEQUENCE,
    ProducerEntry,
    RememberedBatch,
    entries_from_seeds,
    judge,
)
from tideline.domain.producer_tail import BATCHES_KEPT, ProducerSeed


def remember(state: ProducerEntry | None, epoch: int, kept: RememberedBatch) -> ProducerEntry:
    return producer_state.remember(state, epoch, kept, now_ms=-1)


def entry(*sequences: tuple[int, int], epoch: int = 3) -> ProducerEntry:
    return ProducerEntry(
        epoch,
        tuple(
            RememberedBatch(base, last, 100 + n, 1_000 + n)
            for n, (base, last) in enumerate(sequences)
        ),
    )


@pytest.mark.parametrize("base", [0, 1, 500, MAX_SEQUENCE])
def test_a_producer_without_state_may_begin_anywhere(base: int) -> None:
    assert judge(None, 7, base, base).error == "NONE"


def test_the_next_sequence_is_appended_and_a_gap_is_not() -> None:
    assert judge(entry((0, 4)), 3, 5, 9).error == "NONE"
    assert judge(entry((0, 4)), 3, 6, 9).error == "OUT_OF_ORDER_SEQUENCE"


def test_any_remembered_batch_sent_again_is_a_duplicate_with_its_offset() -> None:
    state = entry((0, 4), (5, 9), (10, 14))
    for batch in state.batches:
        judged = judge(state, 3, batch.base_sequence, batch.last_sequence)
        assert judged.error == "DUPLICATE"
        assert judged.original == batch


def test_a_batch_that_only_overlaps_is_out_of_order() -> None:
    assert judge(entry((0, 4), (5, 9)), 3, 0, 9).error == "OUT_OF_ORDER_SEQUENCE"


def test_a_lower_epoch_is_a_zombie_even_with_known_sequences() -> None:
    assert judge(entry((0, 4)), 2, 0, 4).error == "INVALID_PRODUCER_EPOCH"


def test_a_higher_epoch_begins_at_0() -> None:
    assert judge(entry((0, 4)), 4, 0, 4).error == "NONE"
    assert judge(entry((0, 4)), 4, 5, 9).error == "OUT_OF_ORDER_SEQUENCE"


def test_sequences_wrap_from_the_largest_to_0() -> None:
    assert sequence_after(MAX_SEQUENCE) == 0
    assert judge(entry((MAX_SEQUENCE, MAX_SEQUENCE)), 3, 0, 0).error == "NONE"
    assert judge(entry((MAX_SEQUENCE - 1, 1)), 3, 2, 2).error == "NONE"


def test_after_a_control_marker_alone_the_epoch_begins_at_0() -> None:
    marker = entry((NO_SEQUENCE, NO_SEQUENCE))
    assert judge(marker, 3, 0, 0).error == "NONE"
    assert judge(marker, 3, 1, 1).error == "OUT_OF_ORDER_SEQUENCE"


def test_a_new_epoch_forgets_the_batches_of_the_old_one() -> None:
    state = remember(entry((0, 4), (5, 9)), 4, RememberedBatch(0, 2, 200, 2_000))
    assert state == ProducerEntry(4, (RememberedBatch(0, 2, 200, 2_000),))


def test_seeds_keep_the_last_batches_of_the_highest_epoch() -> None:
    old = [ProducerSeed(1, 0, 40 + n, 40 + n, n, n, 10) for n in range(3)]
    new = [ProducerSeed(1, 1, n, n, 10 + n, 10 + n, 20) for n in range(7)]
    state = entries_from_seeds([*reversed(new), *old], now_ms=0)[1]
    assert state.epoch == 1
    assert [batch.base_sequence for batch in state.batches] == [2, 3, 4, 5, 6]


@given(
    first=st.integers(0, MAX_SEQUENCE),
    counts=st.lists(st.integers(1, 1_000), min_size=1, max_size=12),
)
def test_a_well_behaved_producer_is_never_refused_and_its_retries_never_append(
    first: int, counts: list[int]
) -> None:
    state: ProducerEntry | None = None
    base = first
    for offset, count in enumerate(counts):
        last = (base + count - 1) % SEQUENCES
        assert judge(state, 0, base, last).error == "NONE"
        state = remember(state, 0, RememberedBatch(base, last, offset, 0))
        assert judge(state, 0, base, last).error == "DUPLICATE"
        assert len(state.batches) <= BATCHES_KEPT
        base = sequence_after(last)
