"""The door of a gateway, over real sockets: strangers are bounded in number, bytes and time, and
take nothing from those who have shown themselves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from tests.unit.gateway.fakes import until
from tests.unit.gateway.gateway_under_test import Client, Gateway, gateway
from tests.unit.gateway.test_transport import echo, frame, produce
from tests.unit.kafka.fake_broker import FakeBroker
from tideline.domain.admission import BURST_S, Bound
from tideline.gateway.transport.admission import CLOSINGS_TOLD, Telling, address_of


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(echo) as broker:
        yield broker


async def connect_from(under_test: Gateway, host: str) -> Client:
    """All of 127/8 is this machine."""
    made = socket.socket()
    made.setblocking(False)
    made.bind((host, 0))
    await asyncio.get_running_loop().sock_connect(made, under_test.server.address)
    return Client(*await asyncio.open_connection(sock=made))


def reached(bound: str) -> float:
    return REGISTRY.get_sample_value("inkless_gateway_bound_reached_total", {"bound": bound}) or 0


async def answers(client: Client, correlation: int = 1) -> None:
    await client.send(frame(correlation))
    assert int.from_bytes((await client.receive())[:4], "big") == correlation


async def test_one_address_is_refused_beyond_its_bound_and_others_are_not(
    broker: FakeBroker,
) -> None:
    async with gateway(broker, gateway_max_connections_per_address="2") as under_test:
        before = reached(Bound.ADDRESS)
        clients = [await connect_from(under_test, "127.0.0.2") for _ in range(2)]
        for client in clients:
            await answers(client)
        third = await connect_from(under_test, "127.0.0.2")
        await third.disconnected()
        assert reached(Bound.ADDRESS) == before + 1
        other = await connect_from(under_test, "127.0.0.3")
        await answers(other)
        for client in (*clients, other):
            await answers(client, 2)
            client.close()


async def test_strangers_give_way_and_those_who_have_shown_themselves_stay(
    broker: FakeBroker,
) -> None:
    async with gateway(broker, gateway_max_young_connections="2") as under_test:
        known = await under_test.connect()
        await answers(known)
        strangers = [await connect_from(under_test, "127.0.0.2") for _ in range(3)]
        await strangers[0].disconnected()
        client = await under_test.connect()
        await strangers[1].disconnected()
        await answers(client)
        await answers(known, 2)
        await answers(strangers[2])
        for one in (known, client, strangers[2]):
            one.close()


async def test_a_connection_without_a_complete_request_is_closed_in_time_and_others_stay(
    broker: FakeBroker,
) -> None:
    async with gateway(broker, gateway_first_request_ms="50000") as under_test:
        known = await under_test.connect()
        await answers(known)
        assert under_test.server._door._first_request_s == 50.0
        under_test.server._door._first_request_s = 1.0
        begun = asyncio.get_running_loop().time()
        with capture_logs() as logs:
            silent, half = await under_test.connect(), await under_test.connect()
            half.writer.write(frame(1)[:7])
            await silent.disconnected()
            await half.disconnected()
        assert asyncio.get_running_loop().time() - begun >= 0.9
        told = [line for line in logs if line["event"] == "connection.bound_reached"]
        assert [line["bound"] for line in told] == ["first_request"], "one line for both"
        await answers(known, 2)
        known.close()


async def test_a_slow_client_shows_itself_with_its_last_byte(broker: FakeBroker) -> None:
    async with gateway(broker, gateway_max_young_connections="1") as under_test:
        client = await under_test.connect()
        request = frame(5)
        whole = len(request).to_bytes(4, "big") + request
        for byte in whole:
            client.writer.write(bytes([byte]))
            await client.writer.drain()
        assert (await client.receive())[:4] == (5).to_bytes(4, "big")
        stranger = await under_test.connect()
        await answers(client, 6)
        stranger.close()
        client.close()


async def test_a_long_first_request_is_refused_before_it_comes(broker: FakeBroker) -> None:
    async with gateway(broker, gateway_first_frame_max_bytes="20000") as under_test:
        before = reached(Bound.FIRST_FRAME)
        stranger = await under_test.connect()
        stranger.writer.write((20_001).to_bytes(4, "big") + frame(1))
        await stranger.disconnected()
        assert reached(Bound.FIRST_FRAME) == before + 1
        client = await under_test.connect()
        await client.send(frame(1, body=bytes(19_000)), frame(2, body=bytes(300_000)))
        for _ in range(2):
            await client.receive()
        client.close()


async def test_the_refusal_waits_for_the_first_bytes_of_the_request(broker: FakeBroker) -> None:
    async with gateway(broker, gateway_first_frame_max_bytes="20000") as under_test:
        stranger = await under_test.connect()
        whole = (20_001).to_bytes(4, "big") + frame(1)
        for at in range(7):
            stranger.writer.write(whole[at : at + 1])
            await stranger.writer.drain()
        stranger.writer.write(whole[7:8])
        await stranger.disconnected()


async def test_a_client_may_begin_with_a_long_produce(broker: FakeBroker) -> None:
    """Sarama for brokers of before 2.4 does, for one."""
    async with gateway(broker, gateway_first_frame_max_bytes="20000") as under_test:
        client = await under_test.connect()
        await client.send(produce(1, 0) + bytes(200_000), frame(2))
        assert (await client.receive())[:4] == (2).to_bytes(4, "big")
        client.close()


async def test_who_connects_too_often_waits_unread_and_is_closed(broker: FakeBroker) -> None:
    """Of so many at once that a slow machine, too, has some beyond the rate."""
    async with gateway(broker, gateway_connection_rate_per_address="1") as under_test:
        other = await under_test.connect()
        clients = {n: await connect_from(under_test, "127.0.0.2") for n in range(100, 150)}
        answered = {n for n, client in clients.items() if await is_answered(client, n)}
        throttled = clients.keys() - answered
        assert throttled
        assert len(answered) >= BURST_S
        assert not throttled & {header.correlation_id for header in broker.received}
        await answers(other)
        for client in (other, *clients.values()):
            client.close()


async def is_answered(client: Client, correlation: int) -> bool:
    """Or closed without an answer."""
    try:
        await answers(client, correlation)
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return True


async def test_a_length_that_a_stranger_declares_takes_little_memory_before_its_bytes_come(
    broker: FakeBroker,
) -> None:
    async with gateway(broker) as under_test:
        clients = [await under_test.connect() for _ in range(20)]
        for client in clients:
            client.writer.write((90_000_000).to_bytes(4, "big") + produce(1, 1) + bytes(20_000))
            await client.writer.drain()
        await until(lambda: held() >= 20 * 20_000)
        assert held() <= 20 * 65_536
        for client in clients:
            client.close()


def held() -> float:
    return REGISTRY.get_sample_value("inkless_gateway_held_bytes", {"kind": "requests"}) or 0


async def test_nonsense_by_the_hundred_writes_few_lines(broker: FakeBroker) -> None:
    async with gateway(broker) as under_test:
        telling = under_test.server._door._closings
        telling._every_s = 600.0  # however long a hundred take
        with capture_logs() as logs:
            for _ in range(2 * CLOSINGS_TOLD):
                client = await under_test.connect()
                client.writer.write(b"\xff" * 8)
                await client.disconnected()
            await until(lambda: telling._told + telling._left_out == 2 * CLOSINGS_TOLD)
        told = [line for line in logs if line["event"] == "connection closed"]
        assert len(told) == CLOSINGS_TOLD


async def test_a_line_says_how_many_were_left_out_before_it() -> None:
    telling = Telling(most=1, every_s=600.0)
    assert telling.due() == {}
    assert [telling.due(), telling.due()] == [None, None]
    telling._since -= 600.0
    assert telling.due() == {"more_since_the_last_line": 2}


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("?", "?"),
    ],
)
def test_what_counts_as_one_address(host: str, address: str) -> None:
    assert address_of(host) == address
