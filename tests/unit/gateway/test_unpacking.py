"""Nobody's batches and searches wait for more than one of anybody else's: counted, not timed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import cramjam
import pytest

from tests.unit.gateway.fakes import TOPIC, tracked_row, varint
from tests.unit.gateway.tracked_bench import (
    FakeConnection,
    TrackedBench,
    leased,
    outcomes,
    produce,
)
from tests.unit.kafka.test_fair_thread import ByHand
from tests.unit.kafka.test_produced import CODECS, NOW, built, raw
from tideline.background import cancel_and_wait, spawn
from tideline.gateway.context import ApiKey
from tideline.gateway.fetch import record_search
from tideline.gateway.fetch.object_reader import PARALLEL_GETS
from tideline.gateway.fetch.record_search import BatchSearch, RecordSearch, Searcher
from tideline.gateway.messages import messages
from tideline.gateway.produce.examination import AT_ONCE_RECORDS, Examiner
from tideline.gateway.unpacking import ORDINARY_BYTES, Unpacking
from tideline.kafka.fair_thread import FairThread
from tideline.kafka.produced import MAX_RECORDS
from tideline.kafka.record_search import FoundRecord

OTHERS = 8


@lru_cache(maxsize=1)
def most_expensive() -> bytes:
    """A million records without key and value, in 743 KB or less."""
    body = bytearray()
    for number in range(MAX_RECORDS):
        offset = varint(number)
        body += bytes((2 * (5 + len(offset)), 0, 0)) + offset + b"\1\1\0"
    return raw(bytes(cramjam.zstd.compress(bytes(body))), MAX_RECORDS, attributes=CODECS["zstd"])


def ordinary() -> bytes:
    """More than is read at once."""
    return built([(NOW, None, b"v", [])] * (AT_ONCE_RECORDS + 1), CODECS["gzip"])


class Lanes:
    """Both threads, run by hand."""

    def __init__(self) -> None:
        self.ordinary, self.large = ByHand(), ByHand()
        self.unpacking = Unpacking(
            FairThread("ordinary", self.ordinary), FairThread("large", self.large)
        )


@pytest.fixture
def lanes() -> Lanes:
    return Lanes()


@pytest.fixture
async def bench(tmp_path: Path, lanes: Lanes) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        made.show(*(tracked_row(n, boundary=0, boundary_epoch=1) for n in range(6)))
        object.__setattr__(made.parts, "examiner", Examiner(lanes.unpacking))
        made.use(made.parts)
        yield made


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_ordinary_batch_waits_for_no_expensive_one_of_any_other_client(
    bench: TrackedBench, lanes: Lanes
) -> None:
    large = [
        spawn(bench.ask(produce((TOPIC, 0, most_expensive())), FakeConnection()), "large")
        for _ in range(OTHERS)
    ]
    await turns()
    for more in range(3):
        asked = spawn(bench.ask(produce((TOPIC, 1, ordinary())), FakeConnection()), "ordinary")
        await turns()
        tries = lanes.ordinary.left
        assert tries == (1 if more else OTHERS + 1), "each other one is tried once, up to 1 MiB"
        lanes.ordinary.run(tries)
        assert outcomes(await asked)[TOPIC, 1][0] == "none"
        await turns()
        assert lanes.large.left == OTHERS, "none of them was read"
    lanes.large.run(OTHERS)
    answers = await asyncio.gather(*large)
    assert {outcomes(answer)[TOPIC, 0][0] for answer in answers} == {"none"}


async def test_of_large_batches_each_client_has_one_by_turns(
    bench: TrackedBench, lanes: Lanes
) -> None:
    """Of one that has many in a request, and of another's only one."""
    large = built([(NOW, None, bytes(ORDINARY_BYTES), [])], CODECS["zstd"])
    many = spawn(
        bench.ask(produce(*((TOPIC, n, large) for n in (0, 2, 3, 4, 5))), FakeConnection()), "many"
    )
    await turns()
    lanes.ordinary.run()
    await turns()
    one = spawn(bench.ask(produce((TOPIC, 1, large)), FakeConnection()), "one")
    await turns()
    lanes.ordinary.run()
    await turns()
    lanes.large.run(2)
    assert outcomes(await one)[TOPIC, 1][0] == "none"
    assert not many.done()
    for _ in range(4):
        await turns()
        lanes.ordinary.run()
        await turns()
        lanes.large.run()
    await many


# -- searches


def searcher(client: str) -> Searcher:
    return Searcher(client, 1 << 26, lambda work: work)


def search_at(timestamp: int) -> BatchSearch:
    return BatchSearch("wal/a", False, 0, 100, 100, timestamp)


async def found_in(
    search: RecordSearch, client: str, timestamp: int, batch: bytes, reads: list[str]
) -> FoundRecord | None:
    async def read() -> memoryview:
        reads.append(client)
        return memoryview(batch)

    return await search.find(searcher(client), search_at(timestamp), read)


async def test_one_connections_searches_do_not_delay_anothers(lanes: Lanes) -> None:
    batch, reads = built([(NOW + n, None, b"v", []) for n in range(9)]), []
    search = RecordSearch(lanes.unpacking)
    many = [spawn(found_in(search, "a", NOW + n, batch, reads), "a") for n in range(6)]
    await turns()
    other = spawn(found_in(search, "b", NOW + 7, batch, reads), "b")
    await turns()
    lanes.ordinary.run(2)
    assert await other == FoundRecord(107, NOW + 7)
    await turns()
    assert [one.done() for one in many] == [True] + [False] * 5
    lanes.ordinary.run(5)
    assert [await one for one in many] == [FoundRecord(100 + n, NOW + n) for n in range(6)]


async def test_what_was_found_in_a_batch_is_remembered_within_a_bound(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_search, "MOST_KEPT", 2)
    batch, reads = built([(NOW + n, None, b"v", []) for n in range(9)]), []
    search = RecordSearch(lanes.unpacking)

    async def at(number: int, client: str = "a") -> FoundRecord | None:
        task = spawn(found_in(search, client, NOW + number, batch, reads), client)
        await turns()
        if lanes.ordinary.left:
            lanes.ordinary.run()
        return await task

    for client in "aba":
        assert await at(1, client) == FoundRecord(101, NOW + 1)
        assert await at(99, client) is None
    assert reads == ["a", "a"], "also that there is none"
    await at(2)
    assert len(search._found) == 2
    await at(99)
    await at(1)
    assert reads == ["a"] * 4, "the one that was asked last is kept"


async def test_what_another_has_found_meanwhile_is_not_looked_for_again(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(
        record_search, "find_record", lambda *_, **asked: looks.append(asked["base_offset"])
    )
    search = RecordSearch(lanes.unpacking)
    same = [spawn(found_in(search, client, NOW, b"", []), client) for client in "aaabbb"]
    await turns()
    assert lanes.ordinary.left == 6
    lanes.ordinary.run()
    await turns()
    lanes.ordinary.run(5)
    assert {await one for one in same} == {None}
    assert looks == [100]


async def test_a_search_that_nobody_waits_for_any_more_is_not_made(lanes: Lanes) -> None:
    batch, reads = built([(NOW, None, b"v", [])]), []
    task = spawn(found_in(RecordSearch(lanes.unpacking), "a", NOW, batch, reads), "a")
    await turns()
    await cancel_and_wait(task)
    assert not lanes.unpacking._ordinary._waiting


async def test_one_request_holds_a_few_batches_at_a_time_however_many_it_searches_in(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.show(*(tracked_row(n, boundary=0, boundary_epoch=1) for n in range(40)))
    at_once, most, let_go = 0, 0, asyncio.Event()

    async def search(self: Any, at: Any, timestamp: int, _: Searcher) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await let_go.wait()
        at_once -= 1
        raise record_search.UndecodableBatch("in this test")

    monkeypatch.setattr(type(bench.parts.reader), "first_at_or_after", search)
    api = messages(ApiKey.LIST_OFFSETS, 10)
    rows = tuple(
        api.request_part("ListOffsetsPartition", partition_index=n, timestamp=NOW)
        for n in range(40)
    )
    message = api.request(
        replica_id=-1,
        isolation_level=0,
        timeout=timedelta(seconds=5),
        topics=(api.request_part("ListOffsetsTopic", name=TOPIC, partitions=rows),),
    )
    answer = spawn(bench.ask(message), "searches")
    await turns()
    assert most == at_once == PARALLEL_GETS
    let_go.set()
    assert len((await answer).topics[0].partitions) == 40
    assert most == PARALLEL_GETS
