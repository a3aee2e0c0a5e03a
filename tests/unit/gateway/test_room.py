"""One budget of bytes for a process: what gives way, what waits, and that all of it goes on."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import pytest

from tests.support.waiting import lasts_async
from tests.unit.gateway.fakes import until
from tests.unit.gateway.gateway_under_test import Client, Gateway, gateway
from tests.unit.gateway.test_transport import HEARTBEAT, echo, frame
from tests.unit.kafka.fake_broker import FakeBroker
from tideline.gateway.context import ApiKey
from tideline.gateway.fetch.object_reader import ObjectCache
from tideline.gateway.room import Room
from tideline.kafka.protocol import RequestHeader


def test_once_full_it_is_full_until_an_eighth_is_free() -> None:
    room, heard = Room(800), 0

    def changed() -> None:
        nonlocal heard
        heard += 1

    room.changed.add(changed)
    room.take("requests", 801)
    assert (room.full, room.left, heard) == (True, 0, 1)
    room.give("requests", 100)
    assert (room.full, heard) == (True, 1)
    room.give("requests", 1)
    assert (room.full, heard) == (False, 2)


def test_the_cache_gives_way_before_anybody_waits() -> None:
    room = Room(1_000)
    cache = ObjectCache(900, room)
    for number in range(9):
        cache.put(f"wal/{number}", 0, bytes(100))
    room.take("requests", 400)
    assert not room.full
    assert cache.size == 600
    assert cache.get("wal/0", 0, 10) is None
    assert cache.get("wal/8", 0, 10) is not None
    room.take("requests", 800)
    assert room.full
    assert cache.size == 0
    cache.put("wal/9", 0, bytes(100))
    assert cache.size == 0


def test_an_answer_is_as_large_as_there_is_room() -> None:
    room = Room(1_000)
    with room.answer(700) as first, room.answer(700) as second, room.answer(700) as third:
        assert (first, second, third) == (700, 300, 0)
    assert room.left == 1_000


def held_until(release: asyncio.Event) -> Callable[[RequestHeader, bytes], Awaitable[bytes | None]]:
    """A broker that answers heartbeats then, and everything else at once."""

    async def held(header: RequestHeader, request: bytes) -> bytes | None:
        if header.api_key == HEARTBEAT:
            await release.wait()
        return await echo(header, request)

    return held


async def crowd(
    under_test: Gateway, clients: int, requests: int, tls: ssl.SSLContext | None = None
) -> tuple[list[Client], list[asyncio.Future[None]]]:
    """Clients that send so many requests of a megabyte each, and what ends when all is sent. No
    room is left when this returns."""
    made = [await under_test.connect(tls) for _ in range(clients)]
    for client in made:  # strangers' requests are not so long
        await client.send(frame(9, ApiKey.API_VERSIONS))
        await client.receive()
    sending = [
        asyncio.ensure_future(
            client.send(*(frame(n, body=bytes(1_000_000)) for n in range(requests)))
        )
        for client in made
    ]
    await until(lambda: under_test.room.full)
    return made, sending


async def test_a_process_without_room_reads_nobody_and_then_answers_everybody() -> None:
    release = asyncio.Event()
    async with FakeBroker(held_until(release)) as broker, gateway(broker) as under_test:
        room = under_test.room
        room._max = 5_000_000
        room.changed()
        clients, sending = await crowd(under_test, 8, 4)
        most = 5_000_000 + 2 * 1_048_576
        await lasts_async("nobody is read", lambda: room.held("requests") < most, 0.1)
        release.set()
        for client in clients:
            for n in range(4):
                assert (await client.receive())[:4] == n.to_bytes(4, "big")
        await asyncio.gather(*sending)
        await until(lambda: not room.full)
        for client in clients:
            client.close()
        await until(lambda: len(under_test.connections) == 0)
        await until(lambda: room.left == 5_000_000)


@pytest.mark.parametrize("part", [b"", b"x" * 20_000])
async def test_a_client_that_ends_within_a_frame_gives_its_room_back(part: bytes) -> None:
    async with (
        FakeBroker(echo) as broker,
        gateway(broker, gateway_first_frame_max_bytes="30000000") as under_test,
    ):
        room = under_test.room
        before = room.left
        client = await under_test.connect()
        client.writer.write((30_000_000).to_bytes(4, "big") + part)
        await until(lambda: len(under_test.connections) == 1)
        if part:
            await until(lambda: room.held("requests") > 0)
        client.close()
        await until(lambda: len(under_test.connections) == 0)
        await until(lambda: room.left == before)


async def test_a_connection_that_is_refused_gives_back_the_room_of_what_came_behind() -> None:
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        room = under_test.room
        before = room.left
        too_new = b"\0\x03" + b"\0\x63" + b"\0\0\0\x01" + b"\xff\xff" + bytes(8)
        large = (30_000_000).to_bytes(4, "big") + b"x" * 1000
        client = await under_test.connect()
        client.writer.write(len(too_new).to_bytes(4, "big") + too_new + large)
        await client.disconnected()
        await until(lambda: len(under_test.connections) == 0)
        await until(lambda: room.left == before)
