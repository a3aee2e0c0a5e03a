"""Batches on their way into object storage: order, unknown outcomes, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.waiting import within
from tests.unit.gateway.fakes import (
    LOG,
    FakeClock,
    GatewayPlane,
    until,
)
from tests.unit.gateway.wal_bench import OTHER, Bench, a_lease, goes_on, tells_when_asked
from tideline.control_plane.model import CommitError
from tideline.domain.request_handling import Failure
from tideline.gateway.produce.appends import AppendDropped, AppendFailed
from tideline.gateway.produce.object_keys import KEY_POOL_SIZE, ObjectKeys
from tideline.kafka.batches import parse_at


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    tells_when_asked(monkeypatch)
    made = Bench()
    yield made
    await made.writer.close(0.0)


async def test_a_batch_goes_at_once_when_nothing_is_under_way(bench: Bench) -> None:
    committed = await within("the commit", bench.append(0, records=3))
    assert (committed.error, committed.base_offset) == (CommitError.NONE, 100)
    assert len(bench.store.objects) == 1
    assert bench.writer.unfinished_bytes == 0


async def test_batches_of_one_turn_share_an_object_sorted_by_partition(bench: Bench) -> None:
    outcomes = [bench.append(0), bench.append(0, log=OTHER, producer=8), bench.append(1)]
    offsets = [outcome.base_offset for outcome in await asyncio.gather(*outcomes)]
    assert offsets == [100, 0, 101]
    ((_, placed),) = bench.plane.commits
    assert [batch.log for batch in placed] == [LOG, LOG, OTHER]
    (body,) = bench.store.objects.values()
    for batch in placed:
        header = parse_at(body, batch.byte_offset)
        assert (header.size, header.base_sequence) == (batch.byte_size, batch.base_sequence)


async def test_what_is_in_a_hurry_is_put_beside_what_is_under_way_and_committed_behind_it(
    bench: Bench,
) -> None:
    bench.writer._max_delay_s = 30.0
    bench.writer.hurry()  # nothing is there
    bench.store.holds[0] = asyncio.Event()
    first = bench.append(0)
    await until(lambda: bench.store.puts)
    second, third = bench.append(1), bench.append(2)
    bench.writer.hurry()
    await until(lambda: len(bench.store.objects) == 1, "it to be put")
    assert not bench.plane.commits
    bench.store.holds[0].set()
    outcomes = await asyncio.gather(first, second, third)
    assert [outcome.base_offset for outcome in outcomes] == [100, 101, 102]
    assert len(bench.plane.commits) == 2


async def test_an_object_is_closed_at_its_bound_and_uploads_run_side_by_side(
    bench: Bench,
) -> None:
    bench.store.holds[0] = asyncio.Event()
    first = bench.append(0)
    await until(lambda: bench.store.puts)
    rest = [bench.append(n, payload=600) for n in range(1, 5)]
    await until(lambda: len(bench.store.puts) == 3, "the full objects to be put meanwhile")
    assert not bench.plane.commits
    bench.store.holds[0].set()
    outcomes = await asyncio.gather(first, *rest)
    assert [outcome.base_offset for outcome in outcomes] == [100, 101, 102, 103, 104]


async def test_uploads_that_overtake_each_other_are_committed_in_order(bench: Bench) -> None:
    """Schedule 10."""
    bench.store.holds = {0: asyncio.Event(), 1: asyncio.Event()}
    first = bench.append(0, payload=950)
    second = bench.append(1, payload=950)
    await until(lambda: len(bench.store.puts) == 2)
    bench.store.holds[1].set()
    await until(lambda: len(bench.store.objects) == 1)
    assert not bench.plane.commits
    bench.store.holds[0].set()
    outcomes = await asyncio.gather(first, second)
    assert [outcome.base_offset for outcome in outcomes] == [100, 101]


async def test_a_commit_of_unknown_outcome_finds_its_own_success(bench: Bench) -> None:
    bench.plane.lose_answers = 2
    committed = await within("the commit", bench.append(0))
    assert (committed.error, committed.base_offset) == (CommitError.NONE, 100)
    assert len(bench.plane.commits) == 1
    assert bench.plane.suffix(LOG).high_watermark == 101


async def test_an_outage_of_the_store_is_waited_out(bench: Bench) -> None:
    bench.store.down = True
    outcome = bench.append(0)
    await until(lambda: len(bench.store.puts) >= 2)
    bench.store.down = False
    assert (await within("the commit", outcome)).base_offset == 100


async def test_a_put_that_was_given_up_and_ends_later_does_no_harm(bench: Bench) -> None:
    """A server may keep the part that it got, over what a later attempt put under the same key."""
    bench.store.down = True
    outcome = bench.append(0)
    await until(lambda: len(bench.store.puts) >= 2)
    bench.store.down = False
    assert (await within("the commit", outcome)).base_offset == 100
    *given_up, last, stated = bench.store.puts
    assert last not in given_up
    assert list(bench.store.objects) == [last, stated]
    assert {*given_up, last} <= bench.plane.registered_keys


async def test_a_failed_upload_takes_everything_behind_it_along() -> None:
    """Schedule 10: of the same producer and partition, and nobody else's."""
    bench = Bench(patience_s=0.05, max_delay_s=30.0)
    bench.store.down = True
    bench.store.holds[0] = asyncio.Event()
    doomed = bench.append(0, payload=950)
    await until(lambda: bench.store.puts)
    behind = bench.append(1, payload=950)
    buffered = bench.append(2)
    other_producer = bench.append(0, producer=8)
    other_partition = bench.append(5, log=OTHER)
    # Whatever was put after the first one gets through.
    bench.store.down = False
    await until(lambda: len(bench.store.objects) == 1)
    bench.store.down = True
    bench.store.holds[0].set()
    for outcome in (doomed, behind, buffered):
        with pytest.raises(AppendFailed) as raised:
            await within("the commit", outcome)
        assert raised.value.failure is Failure.TRANSIENT
    bench.store.down = False
    bench.writer.hurry()
    assert (await within("the commit", other_producer)).base_offset == 100
    assert (await within("the commit", other_partition)).base_offset == 0
    assert bench.refused.noted == [((LOG, "client"), n) for n in (0, 1, 2)]
    assert bench.writer.unfinished_bytes == 0
    await bench.writer.close(0.0)


async def test_a_full_buffer_admits_no_more_until_there_is_room(bench: Bench) -> None:
    room = asyncio.Event()
    bench.writer.made_room.add(room.set)
    bench.store.holds[0] = asyncio.Event()
    outcomes = [bench.append(n, payload=950) for n in range(4)]
    assert not bench.writer.has_room
    bench.store.holds[0].set()
    await within("room", room.wait())
    await asyncio.gather(*outcomes)
    assert bench.writer.has_room


async def test_a_refused_batch_does_not_hold_back_its_neighbours(bench: Bench) -> None:
    bench.plane.refusals[9] = CommitError.OUT_OF_ORDER_SEQUENCE
    refused, fine = bench.append(9), bench.append(0, producer=8)
    assert (await refused).error is CommitError.OUT_OF_ORDER_SEQUENCE
    assert (await fine).base_offset == 100


async def test_a_fenced_incarnation_answers_nothing(bench: Bench) -> None:
    """Schedule 1."""
    bench.plane.fence(bench.lease.incarnation)
    with pytest.raises(AppendDropped):
        await within("the commit", bench.append(0))
    bench.store.holds[len(bench.store.puts)] = asyncio.Event()
    pending = bench.append(1)
    await asyncio.sleep(0)
    bench.writer.drop_all()
    with pytest.raises(AppendDropped):
        await pending
    assert bench.writer.unfinished_bytes == 0


async def test_what_is_under_way_is_dropped_with_its_incarnation(bench: Bench) -> None:
    """Schedule 1: the process lives on as another incarnation, which could commit it."""
    bench.store.holds[0] = asyncio.Event()
    pending = bench.append(0)
    await until(lambda: bench.store.puts)
    goes_on(bench)
    bench.store.holds[0].set()
    with pytest.raises(AppendDropped):
        await within("what becomes of it", pending)


async def test_a_commit_that_outlives_its_cancellation_takes_nothing_that_came_after(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancellation is lost when Postgres answers at that moment (``tideline.background``)."""
    commit, asked, answers = bench.plane.commit_file, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **named: Any) -> Any:
        asked.set()
        with suppress(asyncio.CancelledError):
            await answers.wait()
        return await commit(*args, **named)

    monkeypatch.setattr(bench.plane, "commit_file", slow)
    before = bench.append(0)
    await asked.wait()
    bench.writer.drop_all()
    answers.set()
    after = bench.append(1)
    with pytest.raises(AppendDropped):
        await before
    assert (await within("the commit", after)).base_offset == 101
    assert len(bench.plane.commits) == 2
    assert bench.writer.unfinished_bytes == 0


async def test_keys_are_registered_before_they_are_used_and_not_kept_too_long() -> None:
    """Schedule 17: the collector gives a registered key without an object a grace."""
    plane, clock = GatewayPlane(), FakeClock()
    lease = a_lease(plane)
    plane.activate(lease.incarnation)
    keys = ObjectKeys(plane, lease, clock=clock)
    assert keys.take() is None
    await keys.refill()
    taken = [keys.take() for _ in range(KEY_POOL_SIZE // 2 + 1)]
    assert set(taken) <= plane.registered_keys
    assert keys.low
    clock.now += 61
    assert keys.take() is None


async def test_no_key_of_an_ended_incarnation_is_put_under(bench: Bench) -> None:
    """An object belongs to the commit stream of whoever registered its key: the outcomes of another
    one would be told in its place."""
    await bench.keys.refill()
    assert bench.keys.take() is not None
    goes_on(bench)
    assert bench.keys.take() is None
    await bench.keys.refill()
    assert registered_by(bench, bench.keys.take()) == bench.lease.incarnation


async def test_keys_whose_registration_is_heard_of_after_the_incarnation_has_ended_are_given_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may come in while the next incarnation registers its own."""
    register, ended = bench.plane.register_object_keys, bench.lease.incarnation
    late = {ended: asyncio.Event(), None: asyncio.Event()}

    async def slowly(gateway_id: int, incarnation: UUID, keys: Sequence[str]) -> None:
        await register(gateway_id, incarnation, keys)
        await late[ended if incarnation == ended else None].wait()

    monkeypatch.setattr(bench.plane, "register_object_keys", slowly)
    theirs = asyncio.create_task(bench.keys.refill())
    await until(lambda: bench.plane.registered_keys)
    goes_on(bench)
    assert bench.keys.take() is None
    ours = asyncio.create_task(bench.keys.refill())
    await until(lambda: len(bench.plane.registered_keys) == 2 * KEY_POOL_SIZE)
    for heard, call in ((late[ended], theirs), (late[None], ours)):
        heard.set()
        await within("the registration", call)
    assert registered_by(bench, bench.keys.take()) == bench.lease.incarnation


def registered_by(bench: Bench, key: str | None) -> UUID:
    assert key is not None
    return bench.plane.files.by_key[key].incarnation


@settings(max_examples=30, deadline=None)
@given(
    order=st.permutations(range(6)),
    producers=st.lists(st.integers(1, 3), min_size=6, max_size=6),
)
async def test_offsets_follow_the_order_of_acceptance_however_uploads_end(
    order: list[int], producers: list[int]
) -> None:
    """Schedule 10, for every order in which six parallel uploads may end."""
    bench = Bench(buffer_max_bytes=100_000)
    bench.writer._upload_slots = asyncio.Semaphore(6)
    bench.store.holds = {n: asyncio.Event() for n in range(6)}
    outcomes = [
        bench.append(producers[:n].count(producer), producer=producer, payload=950)
        for n, producer in enumerate(producers)
    ]
    await until(lambda: len(bench.store.puts) == 6)
    for number in order:
        bench.store.holds[number].set()
        await asyncio.sleep(0)
    committed = await asyncio.gather(*outcomes)
    assert [outcome.base_offset for outcome in committed] == [100, 101, 102, 103, 104, 105]
    await bench.writer.close(0.0)
