"""What is added to a Postgres never changes what it has, and gives no offset to two batches."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_batch import LogBatch
from tideline.domain.producer_state import ProducerEntry, RememberedBatch
from tideline.domain.rebuild import RebuiltLog
from tideline.domain.rebuild_plan import KnownBatch, KnownLog, LogPlan, Verdict, plan_log
from tideline.domain.wal_footer import FooterBatch
from tideline.domain.wal_placing import Hole

LOG = TopicIdPartition(UUID(int=2), 0)
EMPTY = KnownLog(LOG, "orders", boundary=10, suffix_start=10, frontier=10, high_watermark=10)


def row(
    base: int, count: int = 1, *, timestamp: int = 0, key: str = "", producer: int = -1
) -> LogBatch:
    sequences = (base, base + count - 1) if producer >= 0 else (-1, -1)
    batch = FooterBatch(LOG.topic_id, 0, 0, 10, count, producer, 0, *sequences, timestamp, False)
    return LogBatch(base, key or f"wal/{base}", 1_000 + base, batch, UUID(int=1))


def known(base: int, count: int = 1, *, running: int = 0, key: str = "") -> KnownBatch:
    return KnownBatch(base, base + count - 1, key or f"wal/{base}", 0, 10, running)


def planned(
    rows: list[LogBatch], log: KnownLog | None = EMPTY, reserved: int = -1, **options: bool
) -> LogPlan:
    return plan_log(LOG, RebuiltLog(tuple(rows), {}, 0, (), reserved), log, **options)


def test_what_postgres_lacks_is_added_and_what_it_has_is_not() -> None:
    log = replace(EMPTY, high_watermark=12, batches=[known(10), known(11)])
    found = planned([row(11), row(12), row(13, 5)], log)
    assert [r.base_offset for r in found.add] == [12, 13]
    assert (found.high_watermark, found.holes, found.verdict) == (18, (), Verdict.BEHIND)


def test_a_log_that_has_everything_has_nothing_to_write() -> None:
    log = replace(EMPTY, high_watermark=12, batches=[known(10), known(11)])
    found = planned([row(10), row(11)], log)
    assert (found.verdict, found.has_changes) == (Verdict.WHOLE, False)


def test_where_postgres_has_something_else_nothing_is_added_and_no_offset_is_given_again() -> None:
    log = replace(EMPTY, high_watermark=12, batches=[known(10), known(11, key="wal/other")])
    found = planned([row(10), row(11), row(12)], log, reserved=13)
    assert found.add == ()
    assert found.verdict is Verdict.CONTRADICTED
    assert "wal/other" in found.contradictions[0]
    assert found.high_watermark == 13
    assert planned([row(11), row(12)], log, give_up_open=True).high_watermark == 13


def test_a_hole_stays_a_hole_and_is_told() -> None:
    found = planned([row(10), row(14)])
    assert [r.base_offset for r in found.add] == [10, 14]
    assert (found.holes, found.high_watermark) == ((Hole(11, 13),), 15)
    assert found.verdict is Verdict.HOLES


def test_rows_that_a_defect_took_from_postgres_are_put_back_into_their_hole() -> None:
    log = replace(
        EMPTY, high_watermark=13, max_timestamp=9,
        batches=[known(10, running=5), known(12, running=9)],
    )  # fmt: skip
    found = planned([row(10), row(11, timestamp=3), row(12)], log)
    assert [(r.base_offset, r.running_max_timestamp) for r in found.add] == [(11, 5)]
    assert (found.holes, found.high_watermark) == ((), 13)
    assert found.producers == {}, "what was appended since is newer"


def test_offsets_that_may_have_been_given_are_left_free_unless_somebody_gives_them_up() -> None:
    found = planned([row(10)], reserved=14)
    assert (found.high_watermark, found.holes) == (14, (Hole(11, 13),))
    assert found.verdict is Verdict.OPEN
    given_up = planned([row(10)], reserved=14, give_up_open=True)
    assert (given_up.high_watermark, given_up.verdict) == (11, Verdict.BEHIND)


def test_what_retention_or_a_segment_has_is_not_added() -> None:
    log = replace(EMPTY, suffix_start=13, frontier=12, high_watermark=13)
    found = planned([row(10, 2), row(12, 2), row(14)], log)
    assert [r.base_offset for r in found.add] == [12, 14], "the one that the start lies in stays"
    assert found.holes == ()


def test_the_largest_timestamp_goes_on_from_what_postgres_had() -> None:
    log = replace(EMPTY, high_watermark=11, max_timestamp=70)
    found = planned([row(11, timestamp=50), row(12, timestamp=90)], log)
    assert [r.running_max_timestamp for r in found.add] == [70, 90]
    assert found.max_timestamp == 90


def test_producers_go_on_from_what_postgres_had() -> None:
    entry = ProducerEntry(0, (RememberedBatch(10, 10, 10, 5),), 5)
    idle = ProducerEntry(3, (RememberedBatch(0, 0, 1, 1),), 1)
    log = replace(EMPTY, high_watermark=11, producers={7: entry, 8: idle}, batches=[known(10)])
    found = planned([row(10, producer=7), row(11, producer=7)], log)
    assert list(found.producers) == [7]
    assert [b.base_offset for b in found.producers[7].batches] == [10, 11]


@pytest.mark.parametrize("log", [None, replace(EMPTY, boundary=-1)])
def test_a_log_whose_b0_nobody_knows_is_not_written(log: KnownLog | None) -> None:
    found = planned([row(10)], log)
    assert (found.add, found.verdict) == ((), Verdict.UNKNOWN_TOPIC)
    assert not found.has_changes
    assert planned([], log).verdict is Verdict.WHOLE, "a migration that has not crossed yet"
