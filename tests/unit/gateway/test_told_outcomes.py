"""WAL objects tell what they hold and what became of it, so that the bucket knows what Postgres
knows (decision 0022)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.waiting import within
from tests.unit.gateway.fakes import LOG, until
from tests.unit.gateway.wal_bench import (
    HISTORY,
    OTHER,
    Bench,
    tells_when_asked,
    two_of_which_the_first_fails,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.rebuild import Rebuilt, rebuild
from tideline.domain.wal_footer import WITHDRAWN, Footer, decode_tail
from tideline.gateway.produce import commit_stream, teller
from tideline.gateway.produce.appends import AppendFailed

STEPS = ["append"] * 6 + ["again", "lose", "down", "fence", "wait"]


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    tells_when_asked(monkeypatch)
    made = Bench()
    yield made
    await made.writer.close(0.0)


def told(footers: Iterable[Footer]) -> dict[int, list[tuple[str, int]]]:
    """Outcomes and offsets by sequence."""
    return {
        commit.sequence: [(str(outcome.error), outcome.base_offset) for outcome in commit.outcomes]
        for footer in footers
        for commit in footer.earlier
    }


def folded(bench: Bench) -> Rebuilt:
    return rebuild(bench.streams(), {LOG: 100, OTHER: 0})


def in_the_plane(bench: Bench, log: TopicIdPartition) -> list[tuple[int, str, int]]:
    return [
        (batch.base_offset, batch.object_key, batch.append_time)
        for batch in bench.plane.suffix(log).batches
    ]


def everything_is_carried(bench: Bench) -> bool:
    """The commit of a carrier says so, a moment after its object is in the bucket."""
    return all(
        file.carried_by is not None for file in bench.plane.files.by_key.values() if file.stream
    )


async def test_an_object_ends_with_what_it_holds(bench: Bench) -> None:
    await asyncio.gather(bench.append(0, records=3), bench.append(0, log=OTHER, producer=8))
    ((key, footer),) = bench.footers().items()
    assert (footer.history_id, footer.gateway_id) == (HISTORY, bench.lease.gateway_id)
    assert (footer.incarnation, footer.sequence) == (bench.lease.incarnation, 0)
    assert footer.earlier == ()
    ((committed_as, placed),) = bench.plane.commits
    assert committed_as == key
    assert [(b.topic_id, b.partition, b.byte_offset, b.record_count) for b in footer.batches] == [
        (b.log.topic_id, b.log.partition, b.byte_offset, b.record_count) for b in placed
    ]
    assert bench.plane.files.by_key[key].size == len(bench.store.objects[key])


async def test_the_next_object_tells_what_became_of_the_one_before(bench: Bench) -> None:
    await bench.append(0, records=3)
    await bench.append(3)
    await bench.append(4)
    first, second, third = bench.footers().values()
    assert (told([first]), told([second])) == ({}, {0: [("NONE", 100)]})
    assert told([third]) == {1: [("NONE", 103)]}, "what a committed object tells is not told again"
    keys = list(bench.store.objects)
    assert bench.plane.files.by_key[keys[0]].carried_by is None, "it goes with its own batches"
    await bench.writer.close(5.0)
    *_, (carrier, last) = bench.footers().items()
    assert list(told([last])) == [0, 1, 2]
    assert {bench.plane.files.by_key[key].carried_by for key in keys} == {carrier}


async def test_who_begins_its_upload_before_a_commit_does_not_tell_of_it(bench: Bench) -> None:
    bench.store.holds = {0: asyncio.Event(), 1: asyncio.Event()}
    outcomes = [bench.append(0, payload=950), bench.append(1, payload=950)]
    await until(lambda: len(bench.store.puts) == 2)
    for hold in bench.store.holds.values():
        hold.set()
    await asyncio.gather(*outcomes)
    await bench.append(2)
    assert [list(told([footer])) for footer in bench.footers().values()] == [[], [], [0, 1]]


async def test_before_a_pause_the_last_outcomes_get_an_object_of_their_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "TELL_AFTER_S", 0.0)
    await bench.append(0)
    await until(lambda: len(bench.store.objects) == 2)
    key, carrier = list(bench.footers().items())[1]
    assert (carrier.batches, told([carrier])) == ((), {0: [("NONE", 100)]})
    await until(lambda: bench.plane.files.by_key[key].status == "committed")
    await until(lambda: not bench.writer._pipeline)
    await asyncio.sleep(0)
    assert len(bench.store.puts) == 2, "nobody tells of an object that only tells"


async def test_a_pause_while_the_store_is_away_tells_when_it_is_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "TELL_AFTER_S", 0.0)
    bench.writer._upload_patience_s = 0.01
    outcome = bench.append(0)
    await outcome
    bench.store.down = True
    await until(lambda: len(bench.store.puts) > 2)
    bench.store.down = False
    await until(lambda: len(bench.store.objects) > 1)  # on a slow machine also a statement
    assert told(bench.footers().values()) == {0: [("NONE", 100)]}


async def test_who_stops_tells_first(bench: Bench) -> None:
    await bench.append(0)
    await bench.writer.close(5.0)
    assert told(bench.footers().values()) == {0: [("NONE", 100)]}


async def test_who_stops_while_something_older_is_being_told_tells_the_newest_too(
    bench: Bench,
) -> None:
    await bench.append(0)
    ended = bench.lease.incarnation
    bench.plane.fence(ended)
    bench.lease.end_incarnation("fenced in this test")
    bench.plane.activate(bench.lease.incarnation)
    bench.store.holds[len(bench.store.puts) + 1] = slow = asyncio.Event()
    bench.lease.gained()
    await until(lambda: len(bench.store.puts) == 3, "what is inherited to be put")
    await bench.append(1)
    closing = asyncio.ensure_future(bench.writer.close(5.0))
    await asyncio.sleep(0)
    slow.set()
    await closing
    told_of = {footer.incarnation for footer in bench.footers().values() if footer.earlier}
    assert told_of == {ended, bench.lease.incarnation}


async def test_what_was_given_up_is_told_as_withdrawn(bench: Bench) -> None:
    """Schedule 10: what is behind a failed batch is in its object already, and is not committed."""
    bench.writer._upload_patience_s = 0.2
    behind, other = await two_of_which_the_first_fails(bench)
    with pytest.raises(AppendFailed):
        await within("what is given up", behind)
    assert (await other).base_offset == 100
    await bench.writer.close(5.0)
    said = told(bench.footers().values())
    assert said[0] == [(WITHDRAWN, -1)]
    assert sorted(said[1]) == [("NONE", 100), (WITHDRAWN, -1)]
    assert folded(bench).logs[LOG].high_watermark == 101


async def test_what_a_fenced_incarnation_did_not_tell_the_next_one_does(bench: Bench) -> None:
    await bench.append(0)
    ended = bench.lease.incarnation
    bench.plane.fence(ended)
    bench.lease.end_incarnation("fenced in this test")
    bench.plane.activate(bench.lease.incarnation)
    bench.lease.gained()
    await until(lambda: len(bench.store.objects) == 3)
    (_, statement, carrier) = bench.footers().values()
    for one in (statement, carrier):
        assert (one.incarnation, one.batches) == (ended, ())
        assert told([one]) == {0: [("NONE", 100)]}
    await until(lambda: everything_is_carried(bench))
    await bench.append(1)
    *_, fresh = bench.footers().values()
    assert (fresh.incarnation, fresh.earlier) == (bench.lease.incarnation, ())


async def test_what_is_inherited_is_told_when_the_store_is_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "TELL_AFTER_S", 0.0)
    bench.store.holds[1] = asyncio.Event()
    bench.writer._upload_patience_s = 0.01
    await bench.append(0)
    ended = bench.lease.incarnation
    await until(lambda: len(bench.store.puts) == 2)
    bench.plane.fence(ended)
    bench.lease.end_incarnation("fenced in this test")
    bench.plane.activate(bench.lease.incarnation)
    bench.store.down = True
    bench.lease.gained()
    await until(lambda: len(bench.store.puts) > 4, "several tries")
    bench.store.down = False
    await until(lambda: everything_is_carried(bench))
    (_, *rest) = bench.footers().values()  # the statement may have been tried again as well
    assert {(one.incarnation, *told([one])) for one in rest} == {(ended, 0)}


async def test_a_large_footer_is_made_beside_the_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_stream, "ENCODED_AT_ONCE", 2)
    await asyncio.gather(*(bench.append(n) for n in range(5)))
    ((_, footer),) = bench.footers().items()
    assert len(footer.batches) == 5


@settings(max_examples=60, deadline=None)
@given(data=st.data())
async def test_the_bucket_tells_what_the_control_plane_knows(data: st.DataObject) -> None:
    """Whatever is lost, refused, given up and fenced on the way."""
    bench = Bench(buffer_max_bytes=1 << 20, patience_s=0.0)
    try:
        await anything_happens(bench, data)
    finally:  # also where hypothesis gives a run up
        bench.store.down = False
        await bench.writer.close(5.0)
    found = folded(bench)
    assert not found.contradictions
    assert not [
        o for o in found.open_objects if o.wal_object.incarnation == bench.lease.incarnation
    ]
    for log in (LOG, OTHER):
        known = in_the_plane(bench, log)
        here = [
            (batch.base_offset, batch.object_key, batch.append_time)
            for batch in found.logs[log].batches
            if not batch.inferred
        ]
        assert here == known
    for key, body in bench.store.objects.items():
        assert decode_tail(body, len(body)).gateway_id == bench.lease.gateway_id, key


async def anything_happens(bench: Bench, data: st.DataObject) -> None:
    sequences: dict[tuple[TopicIdPartition, int], int] = {}
    outcomes = []
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(
            st.sampled_from(["append"] * 6 + ["again", "lose", "down", "fence", "wait"])
        ):
            case "append" | "again" as what:
                log = data.draw(st.sampled_from([LOG, OTHER]))
                producer = data.draw(st.integers(7, 8))
                number = sequences.get((log, producer), 0)
                number -= what == "again" and number > 0
                sequences[log, producer] = number + 1
                payload = data.draw(st.sampled_from([50, 950]))
                outcomes.append(bench.append(number, log=log, producer=producer, payload=payload))
            case "lose":
                bench.plane.lose_answers = 1
            case "down":
                bench.store.down = not bench.store.down
            case "fence":
                bench.plane.fence(bench.lease.incarnation)
                bench.lease.end_incarnation("fenced in this test")
                bench.plane.activate(bench.lease.incarnation)
                bench.lease.gained()
            case "wait":
                await asyncio.gather(*outcomes, asyncio.sleep(0), return_exceptions=True)
    bench.store.down = False
    await asyncio.gather(*outcomes, return_exceptions=True)
