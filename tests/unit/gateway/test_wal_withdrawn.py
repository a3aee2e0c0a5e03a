"""Batches that are withdrawn while their object waits or is being made take nothing with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.waiting import within
from tests.unit.gateway.fakes import LOG, until
from tests.unit.gateway.wal_bench import OTHER, Bench
from tideline.gateway.produce import commit_stream
from tideline.gateway.produce.appends import AppendFailed


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(buffer_max_bytes=1 << 20, patience_s=0.5)
    yield made
    await made.writer.close(0.0)


async def is_refused(outcome: asyncio.Future[Any]) -> None:
    with pytest.raises(AppendFailed):
        await within("the refusal", outcome)


async def test_who_waits_for_a_slot_beside_a_withdrawn_batch_is_committed(bench: Bench) -> None:
    """An object behind the failed one has not begun its upload: the bytes of its withdrawn batch
    are given back already."""
    bench.store.down = True
    bench.store.holds = {place: asyncio.Event() for place in range(4)}
    doomed = bench.append(0, payload=950)
    between = [bench.append(n, producer=9, payload=950) for n in range(4)]
    alone = bench.append(1, payload=950)
    behind = bench.append(2, payload=600)
    beside = bench.append(0, log=OTHER, producer=8, payload=300)
    await until(lambda: len(bench.store.puts) == 4)
    bench.store.holds[0].set()
    for outcome in (doomed, alone, behind):
        await is_refused(outcome)
    bench.store.down = False
    for hold in bench.store.holds.values():
        hold.set()
    assert [(await outcome).base_offset for outcome in between] == [100, 101, 102, 103]
    assert (await beside).base_offset == 0
    ((_, placed),) = [found for found in bench.plane.commits if found[1][0].log == OTHER]
    key, _ = bench.plane.commits[-1]
    assert len(bench.store.objects[key]) >= placed[0].byte_offset + placed[0].byte_size
    assert len(bench.footers()[key].batches) == 1, "what was withdrawn before is not put"


async def test_a_batch_withdrawn_while_the_footer_is_made_does_not_move_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large footer is made beside the loop: what fails meanwhile is in the body all the same."""
    made, go_on = asyncio.Event(), asyncio.Event()

    async def beside_the_loop(build: Any) -> bytes:
        made.set()
        await go_on.wait()
        return bytes(build())

    monkeypatch.setattr(commit_stream, "ENCODED_AT_ONCE", 1)
    monkeypatch.setattr(commit_stream.asyncio, "to_thread", beside_the_loop)
    bench.store.down = True
    bench.store.holds[0] = asyncio.Event()
    doomed = bench.append(0, payload=950)
    behind = bench.append(1, payload=600)
    beside = bench.append(0, log=OTHER, producer=8, payload=300)
    await made.wait()
    bench.store.holds[0].set()
    for outcome in (doomed, behind):
        await is_refused(outcome)
    bench.store.down = False
    go_on.set()
    assert (await within("the commit", beside)).base_offset == 0
    ((key, (placed,)),) = bench.plane.commits
    body = bench.store.objects[key][placed.byte_offset :][: placed.byte_size]
    assert b"x" * 300 in body
    assert [batch.partition for batch in bench.footers()[key].batches] == [
        LOG.partition,
        OTHER.partition,
    ]
