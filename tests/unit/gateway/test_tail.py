"""The last objects of a stream have one place each, whenever Postgres is lost (decision 0022)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.waiting import bounded, within
from tests.unit.gateway.fakes import LOG, until
from tests.unit.gateway.wal_bench import OTHER, Bench, goes_on, two_of_which_the_first_fails
from tideline.control_plane.errors import (
    ControlPlaneFailure,
    ControlPlaneUnavailable,
    ObjectKeyRejected,
)
from tideline.control_plane.model import CommitError
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_state import KnownProducers
from tideline.domain.rebuild import Rebuilt, rebuild
from tideline.domain.wal_footer import UNANSWERED, WANTED, WITHDRAWN, decode_tail
from tideline.domain.wal_producers import SURELY_KEPT_MS
from tideline.errors import TidelineError
from tideline.gateway.produce import teller, wal
from tideline.gateway.produce.appends import AppendDropped, AppendFailed
from tideline.object_store import ObjectStoreUnavailable

STARTS = {LOG: 100, OTHER: 0}
NOBODY_YET = dict.fromkeys(STARTS, KnownProducers(are_all=True))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(patience_s=0.05)
    yield made
    await made.writer.close(0.0)


def then_fails(commit: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Whether it was committed nobody knows."""

    async def failing(*args: Any, **named: Any) -> Any:
        await commit(*args, **named)
        raise ValueError("the answer is not what this version reads")

    return failing


def entries(bench: Bench) -> list[tuple[int, list[str]]]:
    """What is told, object by object."""
    return [
        (commit.sequence, sorted(str(outcome.error) for outcome in commit.outcomes))
        for footer in bench.footers().values()
        for commit in footer.earlier
    ]


def folded(bench: Bench) -> Rebuilt:
    return rebuild(bench.streams(), STARTS, NOBODY_YET)


def offsets(found: Rebuilt, log: TopicIdPartition = LOG) -> list[tuple[int, str]]:
    return [(batch.base_offset, batch.object_key) for batch in found.logs[log].batches]


def known(bench: Bench, log: TopicIdPartition = LOG) -> list[tuple[int, str]]:
    return [(batch.base_offset, batch.object_key) for batch in bench.plane.suffix(log).batches]


async def test_what_was_given_up_and_left_out_is_told_before_a_commit_goes_past_it(
    bench: Bench,
) -> None:
    commit, said = bench.plane.commit_file, []

    async def noted(*args: Any, **named: Any) -> Any:
        said.append(entries(bench))
        return await commit(*args, **named)

    bench.plane.commit_file = noted  # type: ignore[method-assign]
    behind, other = await two_of_which_the_first_fails(bench)
    with pytest.raises(AppendFailed):
        await behind
    assert (await other).base_offset == 100
    assert said == [[(0, [WITHDRAWN]), (1, [WANTED, WITHDRAWN])]]
    assert offsets(folded(bench)) == known(bench), "although its outcome is not told"


async def test_what_is_told_of_a_failed_upload_tells_of_the_commits_before_it_too(
    bench: Bench,
) -> None:
    """Who is told of nowhere, before something that is told, counts as never committed."""
    for number in range(3):
        bench.store.holds[number] = asyncio.Event()
    first, doomed, last = (
        bench.append(producer=-1, payload=950, source=source) for source in ("a", "b", "c")
    )
    await until(lambda: len(bench.store.puts) == 3)
    bench.store.holds[0].set()
    await first
    bench.store.holds[2].set()
    await until(lambda: len(bench.store.objects) == 2)
    assert entries(bench) == [], "all were on their way before the first commit"
    bench.store.down = True
    bench.store.holds[1].set()
    with pytest.raises(AppendFailed):
        await within("what is given up", doomed)
    bench.store.down = False
    await last
    assert entries(bench) == [(0, ["NONE"]), (1, [WITHDRAWN])]
    assert offsets(folded(bench)) == known(bench)


async def test_what_was_refused_is_told_before_a_commit_goes_past_it(bench: Bench) -> None:
    """What the producer's state was may be told nowhere any more."""
    await bench.append(0)
    await bench.writer.close(5.0)
    await bench.plane.delete_records(LOG, 101)
    bench.plane.prune_batches()
    for key in bench.plane.claim_dead_files(0):
        del bench.store.objects[key]
    later = Bench(bench, gateway_id=2, patience_s=0.05)
    at = len(bench.store.puts)
    bench.store.holds |= {at: asyncio.Event(), at + 1: asyncio.Event()}
    again = later.append(0, payload=950)
    behind = later.append(producer=-1, payload=950)
    await until(lambda: len(bench.store.puts) == at + 2)
    bench.store.holds[at + 1].set()
    await until(lambda: len(bench.store.objects) == 1)
    bench.store.holds[at].set()
    assert (await again).error is CommitError.DUPLICATE
    assert (await behind).base_offset == 101
    assert (0, ["DUPLICATE"]) in entries(bench)
    assert offsets(rebuild(bench.streams(), {LOG: 101})) == known(bench)
    await later.writer.close(0.0)


@pytest.mark.parametrize("sorts_first", [True, False])
@pytest.mark.parametrize("clock_goes_back", [True, False])
async def test_of_attempts_that_are_all_stored_the_last_one_is_what_was_committed(
    sorts_first: bool, clock_goes_back: bool
) -> None:
    """The store did what it was asked for, and its answer did not come; the object has the same
    batches under another key then."""
    bench = Bench()
    await bench.keys.refill()
    bench.keys._pool = deque(sorted(bench.keys._pool, reverse=sorts_first))
    put, unheard = bench.store.put, 2

    async def stored(key: str, body: bytes) -> None:
        nonlocal unheard
        await put(key, body)
        unheard -= 1
        bench.plane.append_time -= 1_000 * clock_goes_back
        if unheard >= 0:
            raise ObjectStoreUnavailable("no answer in this test")

    bench.store.put = stored  # type: ignore[method-assign]
    await bench.append(producer=-1, records=2)
    assert len(bench.store.objects) == 4
    first, second, last, _ = bench.store.objects
    assert known(bench) == [(100, last)]
    assert entries(bench) == [(0, [WANTED])], "its outcome is not told yet"
    found = folded(bench)
    assert offsets(found) == known(bench)
    assert found.never_committed == [first, second]
    assert bench.plane.files.by_key[last].size == len(bench.store.objects[last])
    await bench.writer.close(5.0)


async def test_without_the_store_nothing_is_committed_past_what_was_given_up(bench: Bench) -> None:
    """What cannot be told yet fails, and its producers send it again."""
    down = asyncio.ensure_future(two_of_which_the_first_fails(bench))
    put, calls = bench.store.put, []

    async def two_only(key: str, body: bytes) -> None:
        calls.append(key)
        if len(bench.store.objects) == 1:
            raise ObjectStoreUnavailable("two only")
        await put(key, body)

    bench.store.put = two_only  # type: ignore[method-assign]
    behind, other = await down
    for outcome in (behind, other):
        with pytest.raises(AppendFailed):
            await outcome
    assert bench.plane.commits == []


async def test_behind_a_commit_of_which_nobody_knows_outcomes_are_told_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = bench.plane.commit_file
    await bench.append(0)
    monkeypatch.setattr(bench.plane, "commit_file", then_fails(commit))
    with pytest.raises(AppendFailed):
        await bench.append(1)
    monkeypatch.setattr(bench.plane, "commit_file", commit)
    await bench.append(2)
    assert (1, [UNANSWERED]) in entries(bench)
    assert (await within("the commit", bench.append(3))).base_offset == 103  # type: ignore[attr-defined]
    await bench.writer.close(5.0)
    assert {number for number, said in entries(bench) if said == ["NONE"]} == {0, 2, 3}
    found = folded(bench)
    assert [o.wal_object.unanswered for o in found.open_objects] == [True]
    assert offsets(found) == known(bench), "it fills what the others leave"


async def test_an_object_behind_a_commit_of_which_nobody_knows_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not only what was given up behind it: then it would count as never committed."""
    commit = bench.plane.commit_file
    await bench.append(producer=-1)
    monkeypatch.setattr(bench.plane, "commit_file", then_fails(commit))
    bench.store.holds |= {1: asyncio.Event(), 2: asyncio.Event(), 3: asyncio.Event()}
    unknown, doomed = (
        bench.append(producer=-1, payload=950, source=source) for source in ("a", "b")
    )
    await until(lambda: len(bench.store.puts) == 3)
    bench.store.holds[1].set()
    with pytest.raises(AppendFailed):
        await unknown
    bench.store.down = True
    bench.store.holds[2].set()
    bench.store.holds[3].set()
    with pytest.raises(AppendFailed):
        await within("what is given up", doomed)
    bench.store.down = False
    monkeypatch.setattr(bench.plane, "commit_file", commit)
    behind = bench.append(producer=-1, payload=950, source="c")
    await until(lambda: len(bench.store.objects) >= 3)
    assert entries(bench)[-2:] == [(1, [UNANSWERED]), (2, [WITHDRAWN])]
    assert folded(bench).never_committed == []
    await behind


@pytest.mark.parametrize("refusal", [ControlPlaneFailure("?"), ObjectKeyRejected("gone")])
async def test_nothing_is_misplaced_when_a_collection_comes_between_an_upload_and_its_commit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, refusal: TidelineError
) -> None:
    """The carrier that told of the first object, given up or of which nobody knows, is dead: it
    tells of nothing that is read."""
    monkeypatch.setattr(teller, "TELL_AFTER_S", 0.0)
    commit = bench.plane.commit_file

    async def refused(*_: Any, **__: Any) -> Any:
        raise refusal

    monkeypatch.setattr(bench.plane, "commit_file", refused)
    with pytest.raises(AppendFailed):
        await bench.append(producer=-1)
    monkeypatch.setattr(bench.plane, "commit_file", commit)
    await until(lambda: [f for f in bench.plane.files.by_key.values() if f.size])
    at = len(bench.store.puts)
    bench.store.holds[at] = asyncio.Event()
    behind = bench.append(producer=-1)
    await until(lambda: len(bench.store.puts) > at)
    dead = bench.plane.claim_dead_files(0)
    assert len([bench.store.objects.pop(key) for key in dead]) == 1
    bench.store.holds[at].set()
    assert (await behind).base_offset == 100  # type: ignore[attr-defined]
    assert {*offsets(folded(bench))} <= {*known(bench)}


async def test_what_a_forgotten_producer_sent_again_does_not_give_its_place_to_another_object(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two objects nobody knows whether they were committed; the one that was begins with a batch
    that is taken once more, long after."""
    other, third = (Bench(bench, gateway_id=number, patience_s=0.05) for number in (2, 3))
    commit = bench.plane.commit_file

    async def never(*_: Any, **__: Any) -> Any:
        raise ControlPlaneFailure("before it was committed")

    monkeypatch.setattr(bench.plane, "commit_file", then_fails(commit))
    unheard = [bench.append(0), bench.append(producer=-1)]
    for outcome in unheard:
        with pytest.raises(AppendFailed):
            await outcome
    monkeypatch.setattr(bench.plane, "commit_file", never)
    with pytest.raises(AppendFailed):
        await other.append(producer=-1, records=2)
    monkeypatch.setattr(bench.plane, "commit_file", commit)
    await third.append(producer=-1)
    bench.plane.append_time += SURELY_KEPT_MS + 1
    bench.plane.suffix(LOG).producers.clear()
    assert (await third.append(0)).base_offset == 103  # type: ignore[attr-defined]
    await third.append(producer=-1)
    assert len(known(bench)) == 5
    assert {*offsets(folded(bench))} <= {*known(bench)}
    await other.writer.close(0.0)
    await third.writer.close(0.0)


async def test_what_a_statement_tells_makes_nothing_before_it_look_given_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays for days. What was committed before is told by the footer of an object that is dead,
    and by no carrier, because its gateway was killed."""
    monkeypatch.setattr(teller, "TELL_AFTER_S", 1000.0)
    await bench.append(producer=-1)
    bench.store.down = True
    with pytest.raises(AppendFailed):
        await bench.append(producer=-1)
    bench.store.down = False
    await bench.append(producer=-1, log=OTHER)
    bench.plane.partition(OTHER).delete_records(bench.plane.suffix(OTHER).high_watermark)
    bench.plane.prune_batches()
    dead = bench.plane.claim_dead_files(0)
    assert len([bench.store.objects.pop(key) for key in dead]) == 1
    assert folded(bench).never_committed == []
    assert offsets(folded(bench)) == known(bench)


async def test_what_must_be_told_before_a_commit_is_not_waited_for_longer_than_its_producers_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its producers wait little longer; afterwards they would hear nothing definite, and it would
    be committed all the same."""
    monkeypatch.setattr(wal, "STATED_WITHIN_S", 0.1)
    bench = Bench(patience_s=0.1)
    bench.store.down = True
    with pytest.raises(AppendFailed):
        await bench.append(producer=-1)
    bench.store.down = False
    told = asyncio.Event()

    async def state(*_: Any) -> None:
        told.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(bench.writer._teller, "state", state)
    behind = bench.append(producer=-1)
    async with bounded("the append to fail"):
        with pytest.raises(AppendFailed):
            await behind
    assert told.is_set()
    assert known(bench) == []
    await bench.writer.close(0.0)


async def test_what_was_acknowledged_is_in_the_bucket_although_postgres_went_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key that Postgres knows, and with a commit under way that never ends."""
    monkeypatch.setattr(teller, "TELL_WITHIN_S", 0.02)
    bench.store.holds[1] = asyncio.Event()
    first, second = bench.append(0, payload=950), bench.append(1, payload=950)
    await first
    bench.plane.down = True
    bench.keys._pool.clear()
    bench.store.holds[1].set()
    await until(lambda: (0, ["NONE"]) in entries(bench))
    assert not second.done()
    assert offsets(folded(bench))[:1] == known(bench)


async def test_who_stops_without_postgres_says_what_it_leaves(bench: Bench) -> None:
    """One object was sent, and may be committed; the one behind it was not."""
    await bench.append(0)
    commit = bench.plane.commit_file

    async def unheard(*args: Any, **named: Any) -> Any:
        await commit(*args, **named)
        raise ControlPlaneUnavailable("away in this test")

    bench.plane.commit_file = unheard  # type: ignore[method-assign]
    sent, waiting = bench.append(1, payload=950), bench.append(2, payload=950)
    await until(lambda: len(known(bench)) == 2 and len(bench.store.objects) == 3)
    await bench.writer.close(0.05)
    for outcome in (sent, waiting):
        assert isinstance(outcome.exception(), AppendFailed)
    assert entries(bench)[-2:] == [(1, [UNANSWERED]), (2, [WITHDRAWN])]
    assert offsets(folded(bench)) == known(bench)


async def test_what_a_stream_left_is_not_committed_after_it_said_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancellation that arrives together with an answer may be swallowed (cpython gh-86296)."""
    put, waits, answered = bench.store.put, asyncio.Event(), asyncio.Event()

    async def swallows(key: str, body: bytes) -> None:
        if not decode_tail(body, len(body)).batches and not waits.is_set():
            waits.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await answered.wait()
        await put(key, body)

    monkeypatch.setattr(bench.store, "put", swallows)
    bench.store.holds[0] = asyncio.Event()
    doomed = bench.append(producer=-1, payload=950)
    behind = bench.append(producer=-1, payload=950, source="b")
    await until(lambda: len(bench.store.objects) == 1)
    bench.store.down = True
    bench.store.holds[0].set()
    with pytest.raises(AppendFailed):
        await doomed
    bench.store.down = False
    await within("the put to be given up", waits.wait())
    goes_on(bench)
    with pytest.raises(AppendDropped):
        await behind
    answered.set()
    await bench.append(producer=-1)
    assert (1, [WITHDRAWN]) in entries(bench)
    assert len(known(bench)) == 1


async def test_what_is_acknowledged_after_an_outage_of_the_store_is_told_within_a_second_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it has been tried in vain."""
    monkeypatch.setattr(teller, "TELL_WITHIN_S", 0.02)
    monkeypatch.setattr(teller, "TELL_AFTER_S", 1000.0)
    bench.writer._upload_patience_s = 0.0
    bench.store.down = True
    with pytest.raises(AppendFailed):
        await bench.append(0)
    puts = len(bench.store.puts)
    await until(lambda: len(bench.store.puts) > puts)  # the first statement, in vain
    bench.store.down = False
    await bench.append(0)
    bench.plane.down = True
    await until(lambda: any(said == ["NONE"] for _, said in entries(bench)))
    assert offsets(folded(bench)) == known(bench)


async def test_a_statement_that_fails_unexpectedly_is_not_the_last_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "TELL_WITHIN_S", 0.02)
    monkeypatch.setattr(teller, "TELL_AFTER_S", 1000.0)
    put = bench.store.put

    async def breaks(key: str, body: bytes) -> None:
        if not decode_tail(body, len(body)).batches:
            bench.store.put = put  # type: ignore[method-assign]
            raise ValueError("nobody expects this")
        await put(key, body)

    bench.store.put = breaks  # type: ignore[method-assign]
    await bench.append(0)
    await until(lambda: bench.store.put == put)
    await bench.append(1)
    await until(lambda: (1, ["NONE"]) in entries(bench))


async def test_a_quiet_stream_states_nothing_that_its_objects_tell(bench: Bench) -> None:
    for number in range(5):
        await bench.append(number)
    await bench.writer.close(5.0)
    assert bench.plane.files.by_key.keys() >= bench.store.objects.keys(), "all were committed"


@settings(max_examples=100, deadline=None)
@given(data=st.data())
async def test_a_bucket_of_any_moment_tells_where_everything_lies(data: st.DataObject) -> None:
    """One stream, killed together with Postgres: what was committed lies where it was, told or
    inferred; behind it there is at most what was on its way."""
    bench = Bench(buffer_max_bytes=1 << 20, patience_s=0.0)
    try:
        await anything_happens(bench, data)
    finally:  # also where hypothesis gives a run up
        bench.store.down = False
        await bench.writer.close(1.0)


async def anything_happens(bench: Bench, data: st.DataObject) -> None:
    sequences: dict[tuple[TopicIdPartition, int], int] = {}
    outcomes: list[asyncio.Future[object]] = []
    for _ in range(data.draw(st.integers(1, 15))):
        match data.draw(st.sampled_from(["append"] * 6 + ["again", "lose", "down", "up", "turn"])):
            case "append" | "again" as what:
                log = data.draw(st.sampled_from([LOG, OTHER]))
                producer = data.draw(st.sampled_from([-1, 7, 8]))
                number = sequences.get((log, producer), 0)
                number -= what == "again" and number > 0
                sequences[log, producer] = number + 1
                payload = data.draw(st.sampled_from([50, 950]))
                outcomes.append(
                    bench.append(
                        number if producer >= 0 else -1, log=log, producer=producer, payload=payload
                    )
                )
                outcomes[-1].add_done_callback(lambda done: done.cancelled() or done.exception())
            case "lose":
                bench.plane.lose_answers = 1
            case "down" | "up" as what:
                bench.store.down = what == "down"
            case "turn":
                for _ in range(data.draw(st.integers(1, 12))):
                    await asyncio.sleep(0)
        found = folded(bench)
        assert not found.contradictions
        stuck = {o.log for o in found.open_objects if "sequences do not follow" in o.why}
        for log in {LOG, OTHER} - stuck:
            here, there = offsets(found, log) if log in found.logs else [], known(bench, log)
            assert here[: len(there)] == there
