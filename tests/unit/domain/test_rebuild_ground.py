"""What Postgres has of a log goes forward to what the catalog says, and to nothing unsure."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from tests.unit.domain.test_rebuild_plan import EMPTY, LOG, known, row
from tideline.domain.catalog import Boundary, MergedSegment
from tideline.domain.catalog_fold import LogFacts
from tideline.domain.log_batch import LogBatch
from tideline.domain.producer_state import StoredProducerState
from tideline.domain.producer_tail import ProducerSeed
from tideline.domain.rebuild_ground import Ground, ground_of
from tideline.domain.rebuild_plan import KnownLog

SEED = ProducerSeed(7, 0, 0, 9, 0, 9, 1_000)
B0 = Boundary(LOG.topic_id, 0, 3, 5, 10, (SEED,), 2, 900, 4)


def facts(**values: object) -> LogFacts:
    told: dict[str, object] = {
        "boundary": B0, "generation": 3, "suffix_start": 10, "announced_start": 10,
        "prefix_start": 2, "accepted_gap_from": -1, "segments": (), "undecided": (),
    }  # fmt: skip
    return LogFacts(**{**told, **values})  # type: ignore[arg-type]


def segment(base: int, last: int) -> MergedSegment:
    return MergedSegment(
        LOG.topic_id, 0, uuid4(), base, last, 100, 5_000, last - base + 1, 1, 8, 12
    )


def laid(
    told: LogFacts | None,
    here: KnownLog | None = None,
    *rows: LogBatch,
    producers: tuple[StoredProducerState, ...] = (),
) -> Ground:
    found = ground_of(LOG, "orders", told, here, rows, lambda _: producers)
    assert found is not None
    return found


def test_from_nothing_a_log_begins_at_b0_with_its_seeds() -> None:
    found = laid(facts())
    assert found.boundary == B0
    assert (found.known.boundary, found.known.first, found.known.high_watermark) == (10, 10, 10)
    assert [b.base_offset for b in found.known.producers[7].batches] == [0]


def test_nobody_knows_of_a_log_that_neither_has() -> None:
    assert ground_of(LOG, "orders", None, None) is None


def test_without_a_catalog_postgres_stands_as_it_is() -> None:
    assert laid(None, EMPTY).known == EMPTY


def test_segments_that_postgres_does_not_know_take_the_place_of_their_batches() -> None:
    producer = StoredProducerState(7, 1, 4, 14, 2, 777)
    here = replace(EMPTY, high_watermark=13, batches=[known(10, 3)])
    told = facts(segments=(segment(10, 12), segment(13, 14)))
    found = laid(told, here, producers=(producer,))
    assert (found.known.frontier, found.known.high_watermark) == (15, 15)
    assert found.known.batches == []
    assert found.known.max_timestamp == 5_000
    entry = found.known.producers[7]
    assert (entry.epoch, entry.batches[0].base_sequence, entry.batches[0].base_offset) == (1, 2, 12)


def test_what_a_producer_wrote_before_its_newest_batch_of_a_segment_is_known_by_its_sequence() -> (
    None
):
    """Of one whose batches below B0 were not found not even the newest one has an offset."""
    producers = StoredProducerState(7, 1, 4, 14, 2, 777), StoredProducerState(8, 0, 41, -1, 0, 5)
    found = laid(facts(segments=(segment(10, 14),)), producers=producers)
    newest, unlocated = found.known.producers[7], found.known.producers[8]
    assert (newest.unlocated_sequence, newest.last_sequence) == (1, 4)
    assert (unlocated.unlocated_sequence, unlocated.batches) == (41, ())
    assert found.known.stored_producers != found.known.producers


def test_of_a_segment_in_the_middle_of_what_postgres_knows_its_producers_stay() -> None:
    here = replace(EMPTY, high_watermark=15, batches=[known(10, 3), known(13, 2)], producers={})
    producer = StoredProducerState(7, 1, 4, 12, 0, 1)
    found = laid(facts(segments=(segment(10, 12),)), here, producers=(producer,))
    assert found.producers == (producer,)
    assert (found.known.frontier, found.known.high_watermark) == (13, 15)
    assert found.known.producers == {}
    assert [b.base_offset for b in found.known.batches] == [13]


def test_a_segment_with_a_gap_before_it_is_a_contradiction_unless_retention_made_the_gap() -> None:
    told = facts(segments=(segment(12, 14),))
    assert "and 10 comes next" in laid(told).contradictions[0]
    assert laid(told).known.frontier == 10
    retained = laid(replace(told, suffix_start=12, announced_start=12))
    assert (retained.contradictions, retained.known.frontier) == ((), 15)


def test_another_b0_in_postgres_is_a_contradiction() -> None:
    found = laid(facts(boundary=replace(B0, boundary=11)), EMPTY)
    assert found.contradictions == ("B0 is 10 in Postgres, and 11 in the catalog",)


def test_an_announced_b0_counts_when_batches_were_committed_at_it() -> None:
    told = facts(boundary=None, suffix_start=-1, announced_start=-1, undecided=(B0,))
    assert laid(told, None, row(10)).boundary == B0
    for undecided in (laid(told), laid(told, None, row(11))):
        assert undecided.known.boundary == -1
        assert len(undecided.undecided) == 1


def test_an_announced_segment_counts_when_its_batches_are_gone() -> None:
    told = facts(undecided=(segment(10, 12),))
    assert laid(told, None, row(10, 3)).segments == ()
    assert laid(told, None, row(13)).known.frontier == 13


def test_an_announced_removal_counts_when_its_batches_are_gone() -> None:
    told = facts(announced_start=12)
    assert laid(told, None, row(10), row(11), row(12)).known.suffix_start == 10
    assert laid(told, None, row(11), row(12)).known.suffix_start == 12


def test_starts_of_postgres_do_not_move_back() -> None:
    here = replace(EMPTY, suffix_start=15, high_watermark=20)
    assert laid(facts(), here).known.suffix_start == 15


def test_a_log_that_is_migrating_has_no_b0_yet() -> None:
    found = laid(facts(boundary=None, suffix_start=-1, announced_start=-1))
    assert (found.known.boundary, found.generation) == (-1, 3)
