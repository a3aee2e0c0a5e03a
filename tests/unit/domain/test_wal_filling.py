"""An empty batch says so by its size, takes offsets, and is given up for good."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_batch import LogBatch
from tideline.domain.rebuild import Rebuilt, RebuiltLog
from tideline.domain.rebuild_filling import filling_of, holes_to_fill
from tideline.domain.rebuild_plan import KnownBatch, KnownLog, LogPlan, Verdict, plan_log
from tideline.domain.wal_filling import (
    EMPTY_BATCH_BYTES,
    MOST_OFFSETS,
    Filled,
    FillingObject,
    is_filling,
    without_given_up,
)
from tideline.domain.wal_footer import FooterBatch, decode_tail, encode
from tideline.domain.wal_placing import Hole
from tideline.kafka.batches import HEADER_BYTES, empty_batch, parse_at, patch, verify_crc

LOG = TopicIdPartition(UUID(int=2), 0)
KNOWN = KnownLog(LOG, "orders", boundary=10, suffix_start=10, frontier=10, high_watermark=10)
HISTORY = UUID(int=9)


def row(base: int, count: int = 1, key: str = "") -> LogBatch:
    batch = FooterBatch(LOG.topic_id, 0, 0, 100, count, -1, -1, -1, -1, 1_000, False)
    return LogBatch(base, key or f"wal/{base}", 5_000 + base, batch, UUID(int=1))


def filling(*filled: tuple[int, int]) -> FillingObject:
    return FillingObject(LOG, HISTORY, 7_000, tuple(Filled(*f, 5_000) for f in filled), ())


def planned(*rows: LogBatch, reserved: int = -1, known: KnownLog = KNOWN) -> LogPlan:
    return plan_log(LOG, RebuiltLog(rows, {}, 0, (), reserved), known)


def test_an_empty_batch_is_a_header_that_other_readers_take_for_a_batch_without_records() -> None:
    raw = bytearray(empty_batch(MOST_OFFSETS))
    patch(raw, 2**40, 7)
    header = parse_at(raw, 0)
    assert len(raw) == HEADER_BYTES == EMPTY_BATCH_BYTES
    assert (header.base_offset, header.last_offset) == (2**40, 2**40 + MOST_OFFSETS - 1)
    assert (header.record_count, header.max_timestamp, header.producer_id) == (0, -1, -1)
    assert header.is_empty
    assert verify_crc(raw, header)
    assert list(DefaultRecordBatch(bytes(raw))) == []
    assert not header.is_control
    assert not header.is_transactional


def test_holes_are_filled_exactly_also_those_longer_than_one_batch_can_be() -> None:
    behind = 20 + MOST_OFFSETS + 7
    plan = planned(row(10, 2), row(behind, 3), reserved=behind + 3 + 5)
    assert plan.holes == (Hole(12, behind - 1), Hole(behind + 3, behind + 7))
    found = filling_of(plan, Rebuilt(0, 0, newest_ms=9_000), HISTORY)
    assert found is not None
    assert [(f.base_offset, f.offsets) for f in found.filled] == [
        (12, MOST_OFFSETS),
        (12 + MOST_OFFSETS, behind - 12 - MOST_OFFSETS),
        (behind + 3, 5),
    ]
    assert [f.append_time for f in found.filled] == [5_010, 5_010, 9_000], "of the one before"


def test_times_of_commits_stay_in_order_and_are_not_later_than_the_bucket() -> None:
    first = filling_of(planned(row(14)), Rebuilt(0, 0, newest_ms=9_000), None)
    assert first is not None
    assert [f.append_time for f in first.filled] == [5_014], "of the one behind, where none is"
    assert (first.written_at_ms, first.history_id) == (9_000, UUID(int=0))
    known = replace(
        KNOWN, high_watermark=15, batches=[KnownBatch(10, 11, "wal/k", 0, 100, 1_000, 8_000)]
    )
    later = filling_of(planned(known=known), Rebuilt(0, 0, newest_ms=6_000), None)
    assert later is not None
    assert [f.append_time for f in later.filled] == [6_000]
    unread = filling_of(planned(known=known), Rebuilt(0, 0), None)
    assert unread is not None
    assert unread.written_at_ms == 8_000


def test_the_object_tells_its_own_outcome_and_the_same_holes_make_the_same_object() -> None:
    made = replace(filling((12, 3), (20, 2)), given_up=("wal/a", "wal/b"))
    assert made.key("x/") == replace(made).key("x/")
    assert made.key("x/") != replace(made, given_up=("wal/a",)).key("x/")
    key = made.key("x/")
    footer = made.footer(key)
    body = empty_batch(3) + empty_batch(2)
    assert decode_tail(body + encode(footer), len(body + encode(footer))) == footer
    own, *named = footer.earlier
    assert own.object_key == key
    assert [told.base_offset for told in own.outcomes] == [12, 20]
    assert [commit.object_key for commit in named] == ["wal/a", "wal/b"]
    assert [(r.base_offset, r.last_offset) for r in made.rows(key)] == [(12, 14), (20, 21)]
    assert made.told(key, 500).wal_object.count == 2


def test_nothing_is_filled_of_a_log_of_which_nobody_knows_what_is_lost() -> None:
    nothing = Rebuilt(0, 0)
    holes = planned(row(12))
    assert holes_to_fill(holes, nothing) == (Hole(10, 11),)
    assert holes_to_fill(holes, Rebuilt(0, 0, doubtful=frozenset({LOG}))) == ()
    assert holes_to_fill(planned(row(10)), nothing) == ()
    contradicted = replace(holes, contradictions=("two histories",))
    assert contradicted.verdict is Verdict.CONTRADICTED
    assert holes_to_fill(contradicted, nothing) == ()
    assert filling_of(contradicted, nothing, HISTORY) is None


def test_what_turns_up_where_offsets_were_given_up_is_not_taken() -> None:
    over = filling((12, 4)).rows("wal/filled")
    before, inside, across, behind = row(10, 2), row(13), row(15, 3), row(16, 2)
    assert without_given_up([before, inside, *over, across, behind]) == [before, *over, behind]
    twice = filling((14, 9)).rows("wal/other")
    assert without_given_up([*over, *twice]) == over, "one filling for one offset"
    assert without_given_up([before, inside]) == [before, inside]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9), st.booleans()), max_size=12))
def test_what_is_left_never_shares_an_offset_with_a_filling(
    batches: list[tuple[int, int, bool]],
) -> None:
    rows = [
        filling((base, count)).rows(f"wal/{n}")[0] if empty else row(base, count, f"wal/{n}")
        for n, (base, count, empty) in enumerate(batches)
    ]
    left = list(without_given_up(rows))
    filled = [r for r in left if is_filling(r.footer.byte_size)]
    taken = [o for r in filled for o in range(r.base_offset, r.last_offset + 1)]
    assert len(taken) == len(set(taken))
    for one in left:
        offsets = set(range(one.base_offset, one.last_offset + 1))
        assert one in filled or not offsets & set(taken)
    for one in set(rows) - set(left):
        assert set(range(one.base_offset, one.last_offset + 1)) & set(taken), "else it stays"


def test_a_filling_and_a_batch_for_one_offset_are_no_contradiction_and_postgres_keeps_its_own() -> (
    None
):
    (given_up,) = filling((12, 4)).rows("wal/filled")
    real = replace(
        KNOWN, high_watermark=16, batches=[KnownBatch(10, 11, "wal/10", 0, 100, 1_000),
        KnownBatch(12, 15, "wal/12", 0, 100, 1_000)],
    )  # fmt: skip
    plan = planned(row(10, 2), given_up, known=real)
    assert (plan.add, plan.verdict) == ((), Verdict.WHOLE)
    filled = replace(
        real, batches=[real.batches[0], KnownBatch(12, 15, "wal/filled", 0, EMPTY_BATCH_BYTES, 0)]
    )
    plan = planned(row(10, 2), row(12, 4), known=filled)
    assert (plan.add, plan.verdict) == ((), Verdict.WHOLE)
