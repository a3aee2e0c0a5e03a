"""What docs/gateway.md asks of a transport, of the native one: run by a thread, and by the loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from tests.unit.gateway.fakes import record_batch, until
from tests.unit.gateway.gateway_under_test import Client, gateway_settings
from tests.unit.gateway.test_transport import HEARTBEAT, SOME_HANDLED, echo, frame, produce
from tests.unit.gateway.tracked_bench import produce as produce_of
from tests.unit.kafka.fake_broker import FakeBroker
from tideline.gateway.context import ApiKey, ConnectionRegistry, RequestContext, Rule, Rules, always
from tideline.gateway.transport.acceptor import Acceptor
from tideline.gateway.transport.addresses import NodeAddresses, ResponseRewriter
from tideline.gateway.transport.native import NativeTransport
from tideline.gateway.transport.upstream import Broker
from tideline.kafka.protocol import RequestHeader, encode_request, parse_header
from tideline.kafka.wire import Wire

pytestmark = pytest.mark.parametrize("threaded", [True, False], ids=["thread", "inline"])


class Native:
    def __init__(self, transport: NativeTransport, port: int) -> None:
        self.transport, self.port = transport, port

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))


@asynccontextmanager
async def native(
    broker: FakeBroker, rules: Rules, threaded: bool, names: tuple[str, ...] = (), **changes: str
) -> AsyncIterator[Native]:
    host, port = broker.address
    settings = gateway_settings(f"{host}:{port}", **changes)
    rewriter = ResponseRewriter(NodeAddresses(settings.gateway_peers), rules)
    engine = Wire(
        settings.gateway_max_frame_bytes,
        settings.gateway_max_answer_bytes,
        settings.gateway_max_inflight_per_connection,
    )
    transport = NativeTransport(
        engine, rules, rewriter, ConnectionRegistry(), Broker(1, broker.address), threaded=threaded
    )
    transport.show(names, [UUID(int=7)])
    transport.start()
    listening = socket.create_server(("127.0.0.1", 0))
    acceptor = Acceptor(listening, 16, transport.adopt)
    try:
        yield Native(transport, listening.getsockname()[1])
    finally:
        acceptor.close()
        transport.close()


async def test_frames_of_any_size_pass_with_identical_bytes_and_in_order(threaded: bool) -> None:
    sizes = [0, 1, 5_000, 16_380, 16_384, 70_000, 3_000_000, 7]
    sent = [frame(n, body=os.urandom(size)) for n, size in enumerate(sizes)]
    async with FakeBroker(echo) as broker, native(broker, {}, threaded) as under_test:
        client = await under_test.connect()
        await client.send(*sent)
        for n, request in enumerate(sent):
            assert await client.receive() == n.to_bytes(4, "big") + request
        assert broker.frames[-len(sent) :] == sent
        assert under_test.transport.wire.passed() == {HEARTBEAT: len(sent)}
        client.close()


async def test_answers_leave_in_the_order_of_the_requests(threaded: bool) -> None:
    release = asyncio.Event()

    async def slow(ctx: RequestContext) -> bytes:
        await release.wait()
        return ctx.header.correlation_id.to_bytes(4, "big") + b"handled"

    rules = {SOME_HANDLED: Rule(slow, always)}
    async with FakeBroker(echo) as broker, native(broker, rules, threaded) as under_test:
        client = await under_test.connect()
        await client.send(frame(1, SOME_HANDLED), frame(2), frame(3))
        await broker.until_received(2)
        release.set()
        assert await client.receive() == b"\x00\x00\x00\x01handled"
        assert parse_header((await client.receive())[4:]).correlation_id == 2
        assert parse_header((await client.receive())[4:]).correlation_id == 3
        client.close()


async def test_a_handler_runs_up_to_its_first_wait_before_the_next_request_is_passed_on(
    threaded: bool,
) -> None:
    async def twice(ctx: RequestContext) -> bytes:
        first, second = ctx.forward(frame(10)), ctx.forward(frame(11))
        await first
        await second
        return ctx.header.correlation_id.to_bytes(4, "big")

    rules = {SOME_HANDLED: Rule(twice, always)}
    async with FakeBroker(echo) as broker, native(broker, rules, threaded) as under_test:
        client = await under_test.connect()
        await client.send(frame(1), frame(2, SOME_HANDLED), frame(3), frame(4, SOME_HANDLED))
        for _ in range(4):
            await client.receive()
        passed = [h.correlation_id for h in broker.received if h.api_key == HEARTBEAT]
        assert passed == [1, 10, 11, 3, 10, 11]
        client.close()


async def test_an_exception_of_a_handler_ends_the_connection(threaded: bool) -> None:
    async def broken(ctx: RequestContext) -> bytes:
        raise ValueError("a defect")

    rules = {SOME_HANDLED: Rule(broken, always)}
    async with FakeBroker(echo) as broker, native(broker, rules, threaded) as under_test:
        client = await under_test.connect()
        await client.send(frame(1))
        assert await client.receive()
        await client.send(frame(2, SOME_HANDLED))
        await client.disconnected()
        await until(lambda: not len(under_test.transport.connections))


async def test_a_barrier_is_reached_once_what_needs_no_answer_is_served(threaded: bool) -> None:
    served = asyncio.Event()

    async def slow(header: RequestHeader, request: bytes) -> bytes | None:
        if header.api_key == ApiKey.PRODUCE:
            await served.wait()
        return await echo(header, request)

    async with FakeBroker(slow) as broker, native(broker, {}, threaded) as under_test:
        client = await under_test.connect()
        await client.send(frame(1))
        await client.receive()
        await client.send(produce(2, acks=0))
        await broker.until_received(2)
        (connection,) = under_test.transport.connections
        barrier = asyncio.ensure_future(connection.drain_barrier())
        await asyncio.sleep(0)
        assert not barrier.done()
        served.set()
        await asyncio.wait_for(barrier, 5)
        client.close()


async def test_a_topic_that_joins_is_pythons_from_that_call_on(threaded: bool) -> None:
    looked_into: list[bytes] = []

    async def looking(ctx: RequestContext) -> bytes:
        looked_into.append(ctx.frame)
        return ctx.header.correlation_id.to_bytes(4, "big")

    def request(name: str, correlation: int) -> bytes:
        return encode_request(produce_of((name, 0, record_batch(1)), version=9), correlation, "c")

    rules: Rules = {ApiKey.PRODUCE: Rule(looking, always)}

    async def serve(header: RequestHeader, sent: bytes) -> bytes | None:
        return header.correlation_id.to_bytes(4, "big") + b"passed"

    async with (
        FakeBroker(serve) as broker,
        native(broker, rules, threaded, ("tracked",)) as under_test,
    ):
        client = await under_test.connect()
        await client.send(request("classic", 1))
        assert (await client.receive()).endswith(b"passed")
        await client.send(request("tracked", 2))
        assert await client.receive() == b"\0\0\0\2"
        under_test.transport.show(["classic"], [])
        await client.send(request("classic", 3), request("tracked", 4))
        assert await client.receive() == b"\0\0\0\3"
        assert (await client.receive()).endswith(b"passed")
        client.close()
    assert looked_into == [request("tracked", 2), request("classic", 3)]


async def test_a_produce_behind_one_that_python_has_is_pythons_too(threaded: bool) -> None:
    release = asyncio.Event()
    began: list[int] = []

    async def looking(ctx: RequestContext) -> bytes:
        began.append(ctx.header.correlation_id)
        await release.wait()
        return ctx.header.correlation_id.to_bytes(4, "big")

    def request(name: str, correlation: int) -> bytes:
        return encode_request(produce_of((name, 0, record_batch(1)), version=9), correlation, "c")

    async def serve(header: RequestHeader, sent: bytes) -> bytes | None:
        return header.correlation_id.to_bytes(4, "big") + b"passed"

    rules: Rules = {ApiKey.PRODUCE: Rule(looking, always)}
    async with (
        FakeBroker(serve) as broker,
        native(broker, rules, threaded, ("tracked",)) as under_test,
    ):
        client = await under_test.connect()
        await client.send(request("tracked", 1), request("classic", 2))
        await until(lambda: began == [1, 2])
        release.set()
        assert await client.receive() == b"\0\0\0\1"
        assert await client.receive() == b"\0\0\0\2"
        await client.send(request("classic", 3))
        assert (await client.receive()).endswith(b"passed")
        client.close()


async def test_a_client_that_takes_no_answers_is_not_read(threaded: bool) -> None:
    async def large(header: RequestHeader, request: bytes) -> bytes | None:
        return header.correlation_id.to_bytes(4, "big") + bytes(1_000_000)

    async with FakeBroker(large) as broker, native(broker, {}, threaded) as under_test:
        client = await under_test.connect()
        client.pause()
        for n in range(40):
            await client.send(frame(n))
        await broker.until_received(1)
        seen = await settled(lambda: len(broker.frames))
        assert seen < 41
        client.resume()
        for n in range(40):
            assert (await client.receive())[:4] == n.to_bytes(4, "big")
        client.close()


async def settled(look: Callable[[], Any]) -> Any:
    """What is seen once it has stayed the same for a while."""
    before, same = look(), 0
    while same < 10:
        await asyncio.sleep(0.02)
        now = look()
        before, same = now, same + 1 if now == before else 0
    return before


@pytest.mark.parametrize("size", [-1, 0, 2**31 - 1])
async def test_a_length_that_no_request_has_ends_the_connection(threaded: bool, size: int) -> None:
    async with FakeBroker(echo) as broker, native(broker, {}, threaded) as under_test:
        client = await under_test.connect()
        client.writer.write(size.to_bytes(4, "big", signed=True) + b"something")
        await client.disconnected()


async def test_an_answer_that_is_not_due_ends_the_connection(threaded: bool) -> None:
    async def wrong(header: RequestHeader, request: bytes) -> bytes | None:
        return b"\1\2\3\4" + request

    async with FakeBroker(wrong) as broker, native(broker, {}, threaded) as under_test:
        client = await under_test.connect()
        await client.send(frame(1))
        await client.disconnected()


async def test_no_more_requests_are_under_way_than_may_be(threaded: bool) -> None:
    release = asyncio.Event()

    async def slow(header: RequestHeader, request: bytes) -> bytes | None:
        await release.wait()
        return await echo(header, request)

    async with (
        FakeBroker(slow) as broker,
        native(broker, {}, threaded, gateway_max_inflight_per_connection="4") as under_test,
    ):
        client = await under_test.connect()
        sent = [frame(n, body=bytes(n)) for n in range(50)]
        await client.send(*sent)
        release.set()
        for request in sent:
            assert (await client.receive())[4:] == request
        client.close()
