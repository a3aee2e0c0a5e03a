"""Telling outcomes (decision 0022) while gateways are fenced, stopped, and without their store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.waiting import lasts_async, within
from tests.unit.gateway.fakes import LOG, until
from tests.unit.gateway.wal_bench import Bench, goes_on
from tideline.control_plane.errors import ControlPlaneUnavailable, GatewayFenced
from tideline.domain.rebuild import rebuild
from tideline.domain.wal_footer import decode_tail
from tideline.gateway.produce import teller
from tideline.gateway.produce.appends import AppendFailed
from tideline.object_store import ObjectStoreUnavailable


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(teller, "TELL_APART_S", 0.0)
    made = Bench(patience_s=0.0)
    yield made
    await made.writer.close(0.0)


def carried_keys(bench: Bench) -> set[str]:
    """Whose outcomes are in an object that stays for that."""
    return {key for key, file in bench.plane.files.by_key.items() if file.carried_by is not None}


async def test_what_a_dropped_commit_ends_with_says_nothing_of_the_next_stream(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancellation that arrives together with an answer may be swallowed (cpython gh-86296)."""
    commit, waits, answered = bench.plane.commit_file, asyncio.Event(), asyncio.Event()

    async def swallows(*_: Any, **__: Any) -> Any:
        waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await answered.wait()
            raise GatewayFenced("fenced in this test") from None

    monkeypatch.setattr(bench.plane, "commit_file", swallows)
    dropped = bench.append(0)
    await waits.wait()
    monkeypatch.setattr(bench.plane, "commit_file", commit)
    goes_on(bench)
    assert isinstance((await asyncio.gather(dropped, return_exceptions=True))[0], Exception)
    await bench.append(0)
    answered.set()
    await bench.append(1)
    await bench.append(2)
    mine = [f for f in bench.footers().values() if f.incarnation == bench.lease.incarnation]
    assert [commit.sequence for footer in mine for commit in footer.earlier] == [0, 1]


async def test_nothing_is_put_after_the_writer_was_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "TELL_AFTER_S", 0.01)
    await bench.append(0)
    bench.store.down = True
    await bench.writer.close(0.0)
    puts = len(bench.store.puts)
    bench.lease.gained()
    await lasts_async("nothing is put", lambda: len(bench.store.puts) == puts, 0.05)


async def test_a_pause_begins_with_the_last_object(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever writes twice in 0.75 s would pay for a third object."""
    monkeypatch.setattr(teller, "TELL_AFTER_S", 60.0)
    await bench.append(0)
    await until(lambda: bench.writer._teller._timer)
    first = bench.writer._teller._timer
    await bench.append(1)
    await until(lambda: bench.writer._teller._timer not in (None, first))
    assert first is not None
    assert first.cancelled()


async def test_what_is_committed_while_others_are_told_is_told_after_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "TELL_AFTER_S", 0.0)
    monkeypatch.setattr(teller, "CARRIED_AT_ONCE", 1)
    bench.store.holds[1] = asyncio.Event()
    await bench.append(0)
    await until(lambda: len(bench.store.puts) == 2)
    await bench.append(1)
    await until(lambda: not bench.writer._pipeline)
    bench.store.holds[1].set()
    await until(lambda: not bench.writer._stream.untold)
    assert {f.carried_by is None for f in bench.plane.files.by_key.values() if f.stream} == {False}


async def test_an_outage_of_the_store_leaves_nothing_to_tell_but_its_end(bench: Bench) -> None:
    """What was given up is said to be by what is told behind it: naming all of it, for hours,
    would fill the memory and then every object."""
    await bench.append(0)
    bench.store.down = True
    for number in range(1, 30):
        with pytest.raises(AppendFailed):
            await bench.append(number)
    bench.store.down = False
    await bench.append(40, producer=8)
    *_, last, stated = bench.footers().values()
    assert [commit.sequence for commit in last.earlier] == [0, 29]
    assert [commit.sequence for commit in stated.earlier] == [0, 29]


async def test_what_was_not_told_is_told_although_postgres_was_away_when_it_was_asked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.append(0)
    monkeypatch.setattr(teller, "TELL_AFTER_S", 0.0)
    (key,) = bench.store.objects
    ask, asked = bench.plane.untold_commits, []

    async def away_at_first(*args: Any) -> Any:
        asked.append(args)
        if len(asked) == 1:
            raise ControlPlaneUnavailable("away in this test")
        return await ask(*args)

    monkeypatch.setattr(bench.plane, "untold_commits", away_at_first)
    goes_on(bench)
    await until(lambda: key in carried_keys(bench))


async def test_what_was_not_told_is_told_although_the_store_was_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.append(0)
    monkeypatch.setattr(teller, "TELL_AFTER_S", 0.0)
    (key,) = bench.store.objects
    bench.store.down = True
    puts = len(bench.store.puts)
    goes_on(bench)
    await until(lambda: len(bench.store.puts) > puts)
    bench.store.down = False
    await until(lambda: key in carried_keys(bench))


async def test_more_than_is_asked_for_at_once_is_told_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tideline.gateway.produce.commit_stream.INHERITED_AT_ONCE", 2)
    for number in range(5):
        await bench.append(number)
    keys = list(bench.store.objects)
    monkeypatch.setattr(teller, "TELL_AFTER_S", 0.0)
    goes_on(bench)
    await until(lambda: set(keys) <= carried_keys(bench))
    await until(lambda: not bench.writer._pipeline)


async def test_a_fence_while_it_is_asked_for_makes_it_asked_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.append(0)
    monkeypatch.setattr(teller, "TELL_AFTER_S", 0.0)
    (key,) = bench.store.objects
    ask, asked, hold = bench.plane.untold_commits, [], asyncio.Event()

    async def slow_at_first(*args: Any) -> Any:
        asked.append(args)
        if len(asked) == 1:
            await hold.wait()
            raise GatewayFenced("fenced in this test")
        return await ask(*args)

    monkeypatch.setattr(bench.plane, "untold_commits", slow_at_first)
    goes_on(bench)
    await until(lambda: asked)
    goes_on(bench)
    hold.set()
    await until(lambda: key in carried_keys(bench))


async def test_a_commit_that_ends_after_its_incarnation_was_asked_for_is_told_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a gateway is active is asked before the locks of the logs are waited for."""
    await bench.append(0)
    monkeypatch.setattr(teller, "TELL_AFTER_S", 0.0)
    (key,) = bench.store.objects
    late = bench.plane.files.by_key.pop(key)
    goes_on(bench)
    await until(lambda: bench.writer._teller._task is None or bench.writer._teller._task.done())
    bench.plane.files.by_key[key] = late
    await bench.append(0, producer=8)
    await until(lambda: key in carried_keys(bench))


async def test_an_attempt_that_outlives_who_told_of_it_is_not_appended_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch is in the log under another key, or was; the orphan stays for days."""
    monkeypatch.setattr(teller, "TELL_AFTER_S", 0.0)
    bench.writer._upload_patience_s = 5.0
    put, answers = bench.store.put, ["lost"]

    async def loses_an_answer(key: str, body: bytes) -> None:
        await put(key, body)
        if answers:
            raise ObjectStoreUnavailable(f"answer {answers.pop()}")

    monkeypatch.setattr(bench.store, "put", loses_an_answer)
    await bench.append()
    attempt, _, stated, *_ = bench.store.objects
    await until(lambda: not bench.writer._stream.untold)
    goes_on(bench)
    await bench.plane.delete_records(LOG, 101)
    bench.plane.prune_batches()
    for key in bench.plane.claim_dead_files(0):
        del bench.store.objects[key]
    assert [key for key in bench.store.objects if key != attempt] == [stated]
    assert attempt in rebuild(bench.streams(), {LOG: 101}).never_committed
    del bench.store.objects[stated]  # After days, and so may the attempt.
    bench.plane.append_time += 3_600_000
    await bench.append()
    await bench.writer.close(5.0)
    found = rebuild(bench.streams(), {LOG: 101})
    assert [(b.base_offset, b.inferred) for b in found.logs[LOG].batches] == [(101, False)]
    assert [(o.wal_object.key, o.placed_at) for o in found.open_objects] == [(attempt, None)]


async def test_a_produce_does_not_wait_for_an_object_that_only_tells(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "TELL_AFTER_S", 0.0)
    await bench.append(0)
    bench.store.holds[1] = asyncio.Event()
    await until(lambda: len(bench.store.puts) == 2)
    assert (await within("the commit", bench.append(1))).base_offset == 101
    bench.store.holds[1].set()
    await until(lambda: len(bench.store.objects) >= 3)
    for body in bench.store.objects.values():
        decode_tail(body, len(body))
