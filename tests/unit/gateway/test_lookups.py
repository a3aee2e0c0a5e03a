"""Look-ups that come at once are grouped; each is answered by what was there after it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.unit.gateway.fakes import LOG, until
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.model import FindBatchesRequest, FoundBatches
from tideline.gateway.fetch.lookups import AT_ONCE, TOGETHER, Lookups


class SlowPlane:
    """Answers the high watermark as of the call's beginning, when it is let."""

    def __init__(self) -> None:
        self.high_watermark = 0
        self.calls: list[Sequence[FindBatchesRequest]] = []
        self.goes_on = asyncio.Event()
        self.fails = False

    async def find_batches(self, requests: Sequence[FindBatchesRequest]) -> list[FoundBatches]:
        self.calls.append(requests)
        seen = self.high_watermark
        await self.goes_on.wait()
        if self.fails:
            raise ControlPlaneUnavailable("Postgres is away")
        return [FoundBatches("NONE", 0, seen + one.fetch_offset) for one in requests]


def at(offset: int) -> FindBatchesRequest:
    return FindBatchesRequest(LOG, offset, 1_000)


async def busy(plane: SlowPlane) -> tuple[Lookups, list[asyncio.Task[list[FoundBatches]]]]:
    """Every connection is taken by somebody's look-up."""
    lookups = Lookups(plane)
    takers = [asyncio.create_task(lookups.find([at(-1)])) for _ in range(AT_ONCE)]
    await until(lambda: len(plane.calls) == AT_ONCE)
    return lookups, takers


async def test_a_thousand_consumers_that_a_commit_wakes_ask_once() -> None:
    plane = SlowPlane()
    lookups, takers = await busy(plane)
    plane.high_watermark = 100
    woken = [asyncio.create_task(lookups.find([at(0)])) for _ in range(1_000)]
    await asyncio.sleep(0)
    plane.goes_on.set()
    found = await asyncio.gather(*woken)
    assert plane.calls[AT_ONCE:] == [[at(0)]]
    assert {rows.high_watermark for (rows,) in found} == {100}, "no older call answered them"
    await asyncio.gather(*takers)


async def test_different_look_ups_share_calls_of_a_bounded_size_and_get_their_own_answers() -> None:
    plane = SlowPlane()
    lookups, takers = await busy(plane)
    asked = [asyncio.create_task(lookups.find([at(n), at(n + 1)])) for n in range(TOGETHER)]
    await asyncio.sleep(0)
    plane.goes_on.set()
    found = await asyncio.gather(*asked)
    assert [len(call) for call in plane.calls[AT_ONCE:]] == [TOGETHER, 1]
    assert [[rows.high_watermark for rows in some] for some in found] == [
        [n, n + 1] for n in range(TOGETHER)
    ]
    await asyncio.gather(*takers)


async def test_who_gives_up_takes_nothing_from_the_others() -> None:
    plane = SlowPlane()
    lookups, takers = await busy(plane)
    impatient, patient = (asyncio.create_task(lookups.find([at(7)])) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    plane.goes_on.set()
    ((rows,),) = [await patient]
    assert rows.high_watermark == 7
    assert impatient.cancelled()
    await asyncio.gather(*takers)


async def test_a_failure_is_told_to_all_who_asked_and_is_not_remembered() -> None:
    plane = SlowPlane()
    lookups, takers = await busy(plane)
    asked = [asyncio.create_task(lookups.find([at(7)])) for _ in range(3)]
    await asyncio.sleep(0)
    plane.fails = True
    plane.goes_on.set()
    for task in (*takers, *asked):
        with pytest.raises(ControlPlaneUnavailable):
            await task
    plane.fails = False
    assert [rows.high_watermark for rows in await lookups.find([at(7)])] == [7]


async def test_an_idle_gateway_asks_at_once_each_by_itself() -> None:
    plane = SlowPlane()
    plane.goes_on.set()
    lookups = Lookups(plane)
    for n in range(3):
        await lookups.find([at(n)])
    assert plane.calls == [[at(0)], [at(1)], [at(2)]]
