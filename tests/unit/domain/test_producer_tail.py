"""Seeds come from batches below B0 and end where the broker says each producer ended."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.pipelining import MAX_SEQUENCE
from tideline.domain.producer_tail import LastSequence, ProducerSeed, ProducerTail, TailBatch


def batch(offset: int, sequence: int, *, producer: int = 1, records: int = 10) -> TailBatch:
    return TailBatch(offset, offset + records - 1, producer, 0, sequence, 1_000 + offset)


def last(sequence: int, producer: int = 1, epoch: int = 0) -> LastSequence:
    return LastSequence(producer, epoch, sequence, 5_000)


def tail(*batches: TailBatch, up_to: int) -> ProducerTail:
    found = ProducerTail(0, 0)
    found.append(batches, up_to)
    return found


def test_the_last_five_batches_of_a_producer_are_its_seeds() -> None:
    seven = [batch(i * 10, i * 10) for i in range(7)]
    seeds = tail(*seven, up_to=70).seeds([last(69)], 70)
    assert [s.base_sequence for s in seeds] == [20, 30, 40, 50, 60]
    assert seeds[-1].last_offset == 69
    assert seeds[-1].timestamp == 1_060


def test_a_batch_at_or_past_the_boundary_never_becomes_a_seed() -> None:
    """Its retry would be answered "duplicate" while the record exists nowhere."""
    seeds = tail(batch(0, 0), batch(10, 10), up_to=20).seeds([last(9)], 10)
    assert [s.last_sequence for s in seeds] == [9]


def test_a_producer_that_expired_gets_no_seed() -> None:
    assert tail(batch(0, 0), up_to=10).seeds([], 10) == ()


def unlocated_and_located(seeds: tuple[ProducerSeed, ...]) -> tuple[list[int], list[int]]:
    """Last sequences of those without offsets, base sequences of the others."""
    return (
        [s.last_sequence for s in seeds if s.is_unlocated],
        [s.base_sequence for s in seeds if not s.is_unlocated],
    )


def test_of_batches_that_were_not_found_the_last_sequence_is_known_and_no_offset() -> None:
    """An offset that was made up would be told to its client (a retry of one record matches)."""
    (seed,) = ProducerTail(500, 500).seeds([last(41)], 600)
    assert (seed.last_sequence, seed.base_offset, seed.last_offset) == (41, -1, -1)


def test_a_scan_that_missed_the_newest_batch_is_not_believed() -> None:
    """The broker says that sequence 29 was appended: batches up to 19 are not the last ones."""
    found = ProducerTail(100, 100)
    found.append([batch(100, 0), batch(110, 10)], 130)
    assert unlocated_and_located(found.seeds([last(29)], 130)) == ([29], [])


def test_a_scan_with_a_hole_believes_what_is_behind_it() -> None:
    found = ProducerTail(100, 100)
    found.append([batch(100, 0), batch(120, 20), batch(130, 30)], 140)
    assert unlocated_and_located(found.seeds([last(39)], 140)) == ([19], [20, 30])


def test_fewer_than_five_batches_may_have_others_before_them() -> None:
    found = ProducerTail(100, 100)
    found.append([batch(100, 50), batch(110, 60)], 120)
    assert unlocated_and_located(found.seeds([last(69)], 120)) == ([49], [50, 60])


def test_all_batches_are_known_where_the_whole_log_was_read_or_an_older_epoch_was_seen() -> None:
    whole = tail(batch(0, 50), batch(10, 60), up_to=20)
    assert unlocated_and_located(whole.seeds([last(69)], 20)) == ([], [50, 60])
    older = ProducerTail(100, 100)
    older.append([batch(100, 50), replace(batch(110, 0), producer_epoch=1)], 120)
    assert unlocated_and_located(older.seeds([last(9, epoch=1)], 120)) == ([], [0])


def test_sequence_0_may_follow_the_largest_one() -> None:
    """A batch of before the wrap is a duplicate, too."""
    found = ProducerTail(100, 100)
    found.append([batch(100, 0)], 110)
    assert unlocated_and_located(found.seeds([last(9)], 110)) == ([MAX_SEQUENCE], [0])


def test_batches_of_an_older_epoch_are_left_out() -> None:
    newer = replace(batch(10, 0), producer_epoch=1)
    seeds = tail(batch(0, 0), newer, up_to=20).seeds([last(9, epoch=1)], 20)
    assert [s.base_offset for s in seeds] == [10]


def test_markers_and_plain_batches_are_no_seeds() -> None:
    marker = TailBatch(10, 10, 1, 0, -1, 0, is_control=True)
    plain = TailBatch(11, 20, -1, -1, -1, 0)
    seeds = tail(batch(0, 0), marker, plain, up_to=21).seeds([last(9)], 21)
    assert len(seeds) == 1


def test_a_sequence_wraps_to_zero() -> None:
    assert batch(0, MAX_SEQUENCE, records=2).last_sequence == 0


def test_going_back_ends_at_a_producers_first_batch() -> None:
    assert tail(batch(0, 0), up_to=10).satisfied([last(9)])
    assert not tail(batch(0, 100), up_to=10).satisfied([last(109)])


@given(
    producers=st.lists(st.integers(1, 3), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), min_size=2, max_size=5),
)
def test_however_the_scan_is_cut_the_seeds_are_those_of_one_scan(
    producers: list[int], cuts: list[int]
) -> None:
    sequences: dict[int, int] = {}
    log = []
    for offset, producer in enumerate(producers):
        log.append(batch(offset, sequences.get(producer, 0), producer=producer, records=1))
        sequences[producer] = sequences.get(producer, 0) + 1
    active = [last(n - 1, producer=p) for p, n in sequences.items()]
    end = len(log)
    marks = sorted({min(c, end) for c in cuts})
    start = marks[len(marks) // 2]
    pieces = ProducerTail(start, start)
    for mark in [m for m in marks if m > start] + [end]:
        pieces.append(log[pieces.scanned_to : mark], mark)
    for mark in [m for m in reversed(marks) if m < start] + [0]:
        pieces.prepend(log[mark : pieces.scanned_from], mark)
    whole = ProducerTail(0, 0)
    whole.append(log, end)
    assert pieces.seeds(active, end) == whole.seeds(active, end)
    assert pieces.satisfied(active)
