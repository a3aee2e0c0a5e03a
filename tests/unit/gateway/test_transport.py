"""The gateway's transport: order, bounds, and the behaviour of a broker that is alive or dead."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest
from kio.static.protocol import RequestPayload
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from tests.simulation.asyncio_transport import AsyncioTransport
from tests.support import waiting
from tests.support.waiting import lasts_async, set_within, within
from tests.unit.gateway.fakes import until
from tests.unit.gateway.gateway_under_test import gateway
from tests.unit.kafka.fake_broker import UNHEARD_OF, FakeBroker, api_versions
from tideline.gateway import context
from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules, always
from tideline.gateway.messages import messages
from tideline.gateway.transport import server
from tideline.gateway.transport.native import NativeTransport
from tideline.gateway.transport.server import GatewayServer
from tideline.gateway.transport.serving import MakesTransport
from tideline.kafka.decoding import AT_ONCE_ELEMENTS
from tideline.kafka.protocol import (
    RequestHeader,
    decodable_versions,
    decode_response,
    encode_request,
    encode_response,
    parse_header,
)
from tideline.kafka.wire_guard import MAX_REQUEST_PARTITIONS

pytestmark = pytest.mark.usefixtures("no_probe_meanwhile")
HEARTBEAT, SOME_HANDLED = 12, 13


@pytest.fixture(params=[NativeTransport, AsyncioTransport])
def either(request: pytest.FixtureRequest) -> MakesTransport:
    """The product's, and the one that has its rules once more for the simulation."""
    transport: MakesTransport = request.param
    return transport


def counted(name: str, **labels: str) -> float:
    """Of this process, since it began."""
    return REGISTRY.get_sample_value(f"inkless_gateway_{name}_total", labels) or 0.0


def frame(correlation: int, api_key: int = HEARTBEAT, version: int = 0, body: bytes = b"") -> bytes:
    return (
        api_key.to_bytes(2, "big", signed=True)
        + version.to_bytes(2, "big")
        + correlation.to_bytes(4, "big")
        + b"\x00\x01c"
        + body
    )


def produce(correlation: int, acks: int, version: int = 9) -> bytes:
    """Produce without data; version 9 is flexible."""
    head = frame(correlation, 0, version)
    body = b"\x00" + acks.to_bytes(2, "big", signed=True) + bytes(4) + b"\x01\x00"
    if version < 9:
        return head + b"\xff\xff" + acks.to_bytes(2, "big", signed=True) + bytes(8)
    return head + b"\x00" + body


async def echo(header: RequestHeader, request: bytes) -> bytes | None:
    """The correlation id and the request; nothing for a Produce with acks=0."""
    if header.api_key == 18:
        return api_versions(header)
    if header.api_key == 0:
        return None
    return header.correlation_id.to_bytes(4, "big") + request


async def test_frames_of_any_size_pass_with_identical_bytes_and_in_order() -> None:
    sizes = [0, 1, 5_000, 16_380, 16_384, 70_000, 3_000_000, 7]
    sent = [frame(n, body=os.urandom(size)) for n, size in enumerate(sizes)]
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = await under_test.connect()
        await client.send(*sent)
        for n, request in enumerate(sent):
            assert await client.receive() == n.to_bytes(4, "big") + request
        assert broker.frames[-len(sent) :] == sent
        client.close()


async def test_answers_leave_in_the_order_of_the_requests() -> None:
    release = asyncio.Event()

    async def slow(ctx: RequestContext) -> bytes:
        await release.wait()
        return ctx.header.correlation_id.to_bytes(4, "big") + b"handled"

    rules = {SOME_HANDLED: Rule(slow, always)}
    async with FakeBroker(echo) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        await client.send(frame(1, SOME_HANDLED), frame(2), frame(3))
        await broker.until_received(2)
        release.set()
        assert await client.receive() == b"\x00\x00\x00\x01handled"
        assert parse_header((await client.receive())[4:]).correlation_id == 2
        assert parse_header((await client.receive())[4:]).correlation_id == 3
        client.close()


async def test_a_handler_runs_up_to_its_first_wait_before_the_next_request_is_passed_on() -> None:
    async def twice(ctx: RequestContext) -> bytes:
        first, second = ctx.forward(frame(10)), ctx.forward(frame(11))
        await first
        await second
        return ctx.header.correlation_id.to_bytes(4, "big")

    rules = {SOME_HANDLED: Rule(twice, always)}
    async with FakeBroker(echo) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        await client.send(frame(1), frame(2, SOME_HANDLED), frame(3), frame(4, SOME_HANDLED))
        for _ in range(4):
            await client.receive()
        passed = [h.correlation_id for h in broker.received if h.api_key == HEARTBEAT]
        assert passed == [1, 10, 11, 3, 10, 11]
        client.close()


def offsets_of(correlation: int, partitions: int) -> bytes:
    """ListOffsets of version 5, of so many partitions."""
    one = bytes(4) + b"\xff" * 4 + b"\xff" * 8
    topic = b"\x00\x01t" + partitions.to_bytes(4, "big") + one * partitions
    body = b"\xff" * 4 + b"\x00" + (1).to_bytes(4, "big") + topic
    return frame(correlation, ApiKey.LIST_OFFSETS, 5, body)


async def test_a_long_request_is_decoded_in_its_turn_while_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that names 50,000 partitions took the event loop 80 ms, and whoever sends one sends
    many."""
    begun, gone_on = threading.Event(), threading.Event()
    whole = context.decode_request

    def decoding(request: bytes, header: RequestHeader, *most: int) -> RequestPayload:
        if not most:
            begun.set()
            set_within("something else to run while the request is decoded", gone_on)
        return whole(request, header, *most)

    async def looking(ctx: RequestContext) -> bytes:
        assert ctx.request()
        return await ctx.forward()

    monkeypatch.setattr(context, "decode_request", decoding)
    rules = {ApiKey.LIST_OFFSETS: Rule(looking, always)}
    async with FakeBroker(echo) as broker, gateway(broker, rules) as under_test:
        client, other = await under_test.connect(), await under_test.connect()
        seen = len(broker.frames)
        sent = [offsets_of(1, AT_ONCE_ELEMENTS), offsets_of(2, 1), frame(3), produce(4, 0)]
        await client.send(*sent)
        await until(begun.is_set)
        await other.send(frame(9))
        assert await other.receive()
        assert len(broker.frames) == seen + 1, "what came behind it waits"
        gone_on.set()
        for correlation in (1, 2, 3):
            assert (await client.receive())[:4] == correlation.to_bytes(4, "big")
        await broker.until_received(seen + 5)
        assert broker.frames[seen + 1 :] == sent
        client.close()
        other.close()


async def test_a_client_that_leaves_while_its_request_is_decoded_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, gone_on = threading.Event(), threading.Event()
    whole = context.decode_request

    def decoding(request: bytes, header: RequestHeader, *most: int) -> RequestPayload:
        if not most:
            begun.set()
            set_within("the client to be gone", gone_on)
        return whole(request, header, *most)

    async def never(ctx: RequestContext) -> bytes:
        raise AssertionError("nobody waits for this answer")

    monkeypatch.setattr(context, "decode_request", decoding)
    rules = {ApiKey.LIST_OFFSETS: Rule(never, always)}
    async with FakeBroker(echo) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        await client.send(offsets_of(1, AT_ONCE_ELEMENTS), frame(2))
        await until(begun.is_set)
        client.close()
        await until(lambda: not len(under_test.connections))
        gone_on.set()
        await until(lambda: not any(t.get_name() == "long-request" for t in asyncio.all_tasks()))
        await until(lambda: under_test.room.held("requests") == 0)
        assert frame(2) not in broker.frames


async def test_a_long_request_that_names_too_much_ends_its_connection_alone() -> None:
    async def never(ctx: RequestContext) -> bytes:
        raise AssertionError("it is not served")

    rules = {ApiKey.LIST_OFFSETS: Rule(never, always)}
    async with FakeBroker(echo) as broker, gateway(broker, rules) as under_test:
        client, other = await under_test.connect(), await under_test.connect()
        await client.send(offsets_of(1, MAX_REQUEST_PARTITIONS))
        await client.disconnected()
        await other.send(frame(2))
        assert await other.receive()
        other.close()


async def test_a_produce_without_acks_holds_nobody_up() -> None:
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = await under_test.connect()
        await client.send(produce(1, 0), produce(2, 0, version=7), frame(3))
        assert parse_header((await client.receive())[4:]).correlation_id == 3
        client.close()


async def test_requests_without_an_answer_are_delivered_when_the_client_leaves_at_once(
    either: MakesTransport,
) -> None:
    async with FakeBroker(echo) as broker, gateway(broker, makes_transport=either) as under_test:
        seen = len(broker.received)
        client = await under_test.connect()
        await client.send(*(produce(n, 0) for n in range(50)))
        client.close()
        await broker.until_received(seen + 50)


async def test_requests_without_an_answer_are_delivered_before_nonsense_behind_them(
    either: MakesTransport,
) -> None:
    """All of it comes with one read, so that they wait to be written together."""
    async with FakeBroker(echo) as broker, gateway(broker, makes_transport=either) as under_test:
        client = await under_test.connect()
        await client.send(frame(1))
        await client.receive()
        sent = b"".join(
            len(one).to_bytes(4, "big") + one for one in (produce(n, 0) for n in range(2, 7))
        )
        client.writer.write(sent + bytes(4))
        await client.disconnected()
        await until(lambda: [h.correlation_id for h in broker.received][-5:] == [2, 3, 4, 5, 6])


async def test_a_broker_that_ends_with_an_answer_owed_takes_the_client_with_it(
    either: MakesTransport,
) -> None:
    async def silent(header: RequestHeader, request: bytes) -> bytes | None:
        if header.api_key == HEARTBEAT:
            await asyncio.Event().wait()
        return await echo(header, request)

    async with FakeBroker(silent) as broker, gateway(broker, makes_transport=either) as under_test:
        client = await under_test.connect()
        await client.send(frame(1))
        await broker.until_received(2)
        broker.hang_up()
        await client.disconnected()


async def test_a_broker_that_ends_an_idle_connection_leaves_the_clients_alone(
    either: MakesTransport,
) -> None:
    """Kafka does so after ten minutes, and when it restarts. A producer of the suffix alone would
    repeat what it has in flight."""
    async with FakeBroker(echo) as broker, gateway(broker, makes_transport=either) as under_test:
        client = await under_test.connect()
        for correlation in range(3):
            await client.send(frame(correlation))
            assert parse_header((await client.receive())[4:]).correlation_id == correlation
            before = counted("upstream_dropped")
            broker.hang_up()
            await until(lambda before=before: counted("upstream_dropped") > before)
        client.close()


async def test_a_broker_that_ends_after_requests_without_an_answer_takes_the_client_with_it(
    either: MakesTransport,
) -> None:
    """So it says that they failed: their producer asks for the leader anew. An answer to a later
    request proves that they were served."""
    async with FakeBroker(echo) as broker, gateway(broker, makes_transport=either) as under_test:
        served, failed = await under_test.connect(), await under_test.connect()
        await served.send(produce(1, 0), frame(2))
        await served.receive()
        await failed.send(frame(1), produce(2, 0))
        await failed.receive()
        await broker.until_received(5)
        broker.hang_up()
        await failed.disconnected()
        await served.send(frame(3))
        assert await served.receive()
        served.close()


async def test_a_client_that_has_logged_in_at_the_broker_ends_with_that_connection() -> None:
    """Another one would not know who it is."""
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = await under_test.connect()
        await client.send(frame(1, 17))
        await client.receive()
        broker.hang_up()
        await client.disconnected()


@pytest.mark.usefixtures("probes")
async def test_while_the_broker_is_away_connections_are_refused_and_kept_ones_stay() -> None:
    """Accepting and closing costs a client its retries; a refusal sends it to another broker."""
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = await under_test.connect()
        await client.send(frame(1))
        await client.receive()
        address = under_test.server.address
        await broker.stop()
        await until(lambda: not under_test.server.listening)
        with pytest.raises(ConnectionRefusedError):
            await under_test.connect()
        assert len(under_test.connections) == 1
        await broker.start_again()
        await until(lambda: under_test.server.listening)
        assert under_test.server.address == address
        newcomer = await under_test.connect()
        for one in (client, newcomer):
            await one.send(frame(2))
            assert await one.receive()
            one.close()


@pytest.mark.usefixtures("probes")
async def test_a_gateway_that_starts_before_its_broker_refuses_until_it_is_there() -> None:
    async with FakeBroker(echo) as broker:
        await broker.stop()
        async with gateway(broker) as under_test:
            with pytest.raises(ConnectionRefusedError):
                await under_test.connect()
            await broker.start_again()
            await until(lambda: under_test.server.listening)
            client = await under_test.connect()
            await client.send(frame(1))
            assert await client.receive()
            client.close()


async def test_one_slow_answer_to_a_probe_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[str | None] = [None, "no answer in time", None]

    async def problem(*_: object) -> str | None:
        return problems.pop(0) if problems else None

    monkeypatch.setattr(GatewayServer, "_broker_problem", problem)
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        under_test.server._probe_due.set()
        await until(lambda: not problems)
        assert under_test.server.listening


async def test_nothing_is_started_for_a_client_that_takes_no_answers() -> None:
    """64 pipelined fetches were all answered into its buffer: gigabytes per connection."""
    begun = 0

    async def large(ctx: RequestContext) -> bytes:
        nonlocal begun
        begun += 1
        return ctx.header.correlation_id.to_bytes(4, "big") + bytes(8_000_000)

    rules = {SOME_HANDLED: Rule(large, always)}
    async with FakeBroker(echo) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        before = counted("bound_reached", bound="unread_answers")
        await client.send(*(frame(n, SOME_HANDLED) for n in range(40)))
        await until(lambda: counted("bound_reached", bound="unread_answers") > before)
        assert begun < 5
        await until(lambda: under_test.room.held("answers") > 1_000_000)
        for n in range(40):
            assert (await client.receive())[:4] == n.to_bytes(4, "big")
        await until(lambda: under_test.room.held("answers") == 0)
        client.close()


async def test_a_closed_connection_does_not_wait_for_ever_for_a_client_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "CLOSE_GRACE_S", 0.05)

    async def large(ctx: RequestContext) -> bytes:
        return ctx.header.correlation_id.to_bytes(4, "big") + bytes(30_000_000)

    rules = {SOME_HANDLED: Rule(large, always)}
    async with FakeBroker(echo) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        before = counted("bound_reached", bound="unread_answers")
        await client.send(frame(1, SOME_HANDLED))
        await until(lambda: counted("bound_reached", bound="unread_answers") > before)
        (connection,) = under_test.connections
        connection.close("a frame that is not one")
        await until(lambda: under_test.room.held("answers") == 0)
        client.close()


async def test_a_frame_beyond_the_bound_disconnects_the_client() -> None:
    async with (
        FakeBroker(echo) as broker,
        gateway(broker, gateway_max_frame_bytes="1048576") as under_test,
    ):
        for prefix in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"):
            client = await under_test.connect()
            client.writer.write(prefix + b"x")
            await client.disconnected()


async def test_an_answer_may_be_longer_than_a_request() -> None:
    """Passed, and asked for by a handler."""

    async def asking(ctx: RequestContext) -> bytes:
        return await ctx.connection.forward(frame(2), HEARTBEAT, 0)

    async def long(header: RequestHeader, request: bytes) -> bytes | None:
        if header.api_key == HEARTBEAT:
            return header.correlation_id.to_bytes(4, "big") + bytes(3 << 20)
        return await echo(header, request)

    rules = {SOME_HANDLED: Rule(asking, always)}
    async with (
        FakeBroker(long) as broker,
        gateway(broker, rules, gateway_max_frame_bytes="1048576") as under_test,
    ):
        client = await under_test.connect()
        for request in (frame(1), frame(2, SOME_HANDLED)):
            await client.send(request)
            assert len(await client.receive()) == 4 + (3 << 20)
        client.close()


async def test_an_answer_beyond_its_own_bound_ends_its_client_alone_and_is_told() -> None:
    async def long(header: RequestHeader, request: bytes) -> bytes | None:
        if header.api_key == HEARTBEAT:
            return header.correlation_id.to_bytes(4, "big") + bytes(2 << 20)
        return await echo(header, request)

    before = counted("bound_reached", bound="answer")
    async with (
        FakeBroker(long) as broker,
        gateway(broker, gateway_max_answer_bytes="1048576") as under_test,
    ):
        client, other = await under_test.connect(), await under_test.connect()
        with capture_logs() as logs:
            await client.send(frame(1))
            await client.disconnected()
            # The library may close the connection before Python has told why.
            await until(lambda: counted("bound_reached", bound="answer") > before)
            await until(lambda: any(e["event"] == "upstream.answer_refused" for e in logs))
        (told,) = (entry for entry in logs if entry["event"] == "upstream.answer_refused")
        assert "2097156 bytes" in told["reason"]
        assert "TIDELINE_GATEWAY_MAX_ANSWER_BYTES" in told["reason"]
        assert counted("bound_reached", bound="answer") == before + 1
        await other.send(frame(2, SOME_HANDLED))
        assert await other.receive()
        other.close()


@pytest.mark.parametrize("version", decodable_versions(ApiKey.FETCH))
@pytest.mark.parametrize("handled", [False, True])
async def test_a_fetch_asks_for_no_more_than_an_answer_may_have(
    version: int, handled: bool
) -> None:
    """Else it would be disconnected for ever: its consumer asks for the same again."""
    api = messages(ApiKey.FETCH, version)

    def fetch(max_bytes: int) -> bytes:
        request = api.request(
            max_wait=timedelta(milliseconds=7),
            min_bytes=5,
            max_bytes=max_bytes,
            isolation_level=1,
            session_id=3,
            session_epoch=4,
            topics=(),
            forgotten_topics_data=(),
            rack_id="",
            replica_id=-1,
        )
        return encode_request(request, 7, "a client")

    async def passing(ctx: RequestContext) -> bytes:
        return await ctx.forward()

    async def answering(header: RequestHeader, request: bytes) -> bytes | None:
        if header.api_key == ApiKey.FETCH:
            nothing = api.response(
                throttle_time=timedelta(0), error_code=ErrorCode.none, session_id=0, responses=()
            )
            return encode_response(nothing, header.correlation_id)
        return await echo(header, request)

    rules = {ApiKey.FETCH: Rule(passing, always)} if handled else {}
    async with (
        FakeBroker(answering) as broker,
        gateway(broker, rules, gateway_max_answer_bytes="4194304") as under_test,
    ):
        client = await under_test.connect()
        for asked in (1 << 31) - 1, 3 << 20, 1:
            await client.send(fetch(asked))
            await client.receive()
            assert broker.frames[-1] == fetch(min(asked, 3 << 20))
        client.close()


async def test_nonsense_disconnects_its_client_and_nobody_else() -> None:
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        good = await under_test.connect()
        for nonsense in (b"x", b"\x00\x03\x00\x0c" + bytes(4) + b"\x7f\xff", frame(1, 3, 99)):
            client = await under_test.connect()
            await client.send(nonsense)
            await client.disconnected()
        await good.send(frame(5))
        assert await good.receive()
        good.close()


async def test_a_failing_handler_disconnects_its_client() -> None:
    async def broken(ctx: RequestContext) -> bytes:
        raise RuntimeError("a bug")

    rules = {SOME_HANDLED: Rule(broken, always)}
    async with FakeBroker(echo) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        await client.send(frame(1, SOME_HANDLED))
        await client.disconnected()
        await until(lambda: len(under_test.connections) == 0)


async def test_requests_beyond_the_bound_in_flight_are_not_read() -> None:
    release = asyncio.Event()

    async def held(header: RequestHeader, request: bytes) -> bytes | None:
        if header.api_key == HEARTBEAT:
            await release.wait()
        return await echo(header, request)

    async with (
        FakeBroker(held) as broker,
        gateway(broker, gateway_max_inflight_per_connection="4") as under_test,
    ):
        client = await under_test.connect()
        await client.send(frame(0))
        await broker.until_received(1)
        before = counted("bound_reached", bound="in_flight")
        sent = [frame(n, body=bytes(10_000)) for n in range(1, 200)]
        sending = asyncio.ensure_future(client.send(*sent))
        await until(lambda: counted("bound_reached", bound="in_flight") > before)
        assert under_test.room.held("requests") < 500_000, "of two millions"
        release.set()
        for m in range(200):
            assert (await client.receive())[:4] == m.to_bytes(4, "big")
        await sending
        client.close()


async def test_requests_beyond_the_bound_in_flight_are_not_begun(either: MakesTransport) -> None:
    begun: list[int] = []
    release = asyncio.Event()

    async def held(ctx: RequestContext) -> bytes:
        begun.append(ctx.header.correlation_id)
        await release.wait()
        return ctx.header.correlation_id.to_bytes(4, "big")

    rules, bound = {SOME_HANDLED: Rule(held, always)}, 4
    settings = {"gateway_max_inflight_per_connection": str(bound)}
    async with (
        FakeBroker(echo) as broker,
        gateway(broker, rules, makes_transport=either, **settings) as under_test,
    ):
        client = await under_test.connect()
        sent = [frame(n, SOME_HANDLED, body=bytes(100_000)) for n in range(30)]
        sending = asyncio.ensure_future(client.send(*sent))
        await until(lambda: len(begun) >= bound)
        await lasts_async("no more are begun", lambda: len(begun) == bound, 0.1)
        release.set()
        for n in range(30):
            assert (await client.receive())[:4] == n.to_bytes(4, "big")
        await sending
        client.close()


async def test_connections_beyond_the_bound_are_closed() -> None:
    async with (
        FakeBroker(echo) as broker,
        gateway(broker, gateway_max_connections="2") as under_test,
    ):
        clients = [await under_test.connect() for _ in range(2)]
        for client in clients:
            await client.send(frame(1))
            await client.receive()
        third = await under_test.connect()
        await third.disconnected()
        clients[0].close()
        await clients[1].send(frame(2))
        await clients[1].receive()
        clients[1].close()


async def test_the_drain_barrier_waits_for_everything_that_was_sent_before(
    either: MakesTransport,
) -> None:
    release = asyncio.Event()

    async def held(header: RequestHeader, request: bytes) -> bytes | None:
        if header.api_key == HEARTBEAT:
            await release.wait()
        return await echo(header, request)

    async with FakeBroker(held) as broker, gateway(broker, makes_transport=either) as under_test:
        client = await under_test.connect()
        await client.send(frame(1), produce(2, 0))
        await broker.until_received(2)
        (connection,) = under_test.connections
        barrier = asyncio.ensure_future(connection.drain_barrier())
        await asyncio.sleep(0)
        assert not barrier.done()
        release.set()
        await within("the barrier", barrier)
        order = [h.api_key for h in broker.received if h.client_id != "tideline-gateway-probe"]
        assert order == [HEARTBEAT, 0, 18]
        assert await client.receive(), "the barrier's own answer goes to nobody"
        broken = connection.drain_barrier()
        broker.hang_up()
        await within("the barrier", broken)
        await client.send(frame(3))
        assert await client.receive(), "what the gateway asks for itself is owed to no client"
        client.close()


async def test_a_stopping_gateway_answers_what_has_arrived(
    either: MakesTransport,
) -> None:
    release = asyncio.Event()

    async def held(header: RequestHeader, request: bytes) -> bytes | None:
        if header.api_key == HEARTBEAT:
            await release.wait()
        return await echo(header, request)

    async with FakeBroker(held) as broker, gateway(broker, makes_transport=either) as under_test:
        client = await under_test.connect()
        await client.send(frame(1))
        await broker.until_received(2)
        stopping = asyncio.create_task(under_test.server.stop(5))
        await asyncio.sleep(0)
        release.set()
        assert await client.receive()
        await client.disconnected()
        await stopping


async def test_what_a_client_sends_while_the_gateway_stops_costs_it_no_answer() -> None:
    """A socket that is closed with something unread cuts off what its peer has not read yet: an
    idempotent producer would send again, any other would append twice."""
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = await under_test.connect()
        client.pause()
        await client.send(frame(1))
        await broker.until_received(2)
        await until(lambda: all(c.is_idle for c in under_test.server.connections_to(1)))
        stopping = asyncio.create_task(under_test.server.stop(5))
        await until(lambda: len(under_test.connections) == 0)
        await client.send(frame(2, body=bytes(100_000)))
        client.resume()
        assert parse_header((await client.receive())[4:]).correlation_id == 1
        await client.disconnected()
        client.close()
        await stopping
        assert [h.correlation_id for h in broker.received if h.api_key == HEARTBEAT] == [1]


async def test_a_produce_without_an_answer_is_served_before_its_connection_is_handed_over() -> None:
    served = asyncio.Event()

    async def slow(header: RequestHeader, request: bytes) -> bytes | None:
        if header.api_key == 0:
            await served.wait()
        return await echo(header, request)

    async with FakeBroker(slow) as broker, gateway(broker) as under_test:
        client = await under_test.connect()
        await client.send(produce(1, acks=0))
        await broker.until_received(2)
        stopping = asyncio.create_task(under_test.server.stop(5))
        await broker.until_received(2)
        await lasts_async("it is served first", lambda: len(under_test.connections) == 1, 0.05)
        served.set()
        await client.disconnected()
        await stopping
        client.close()


async def test_a_client_that_has_cut_off_its_connection_ends_no_gateway_that_hands_it_over() -> (
    None
):
    """The kernel knows before asyncio does: a gateway ended here, and its lease had to lapse."""
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = socket.create_connection(under_test.server.address)
        await until(lambda: under_test.connections)
        (served,) = under_test.server.connections_to(1)
        ports = under_test.server.address[1], client.getsockname()[1]
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        until_cut_off(*ports)
        served.hand_over("it moves")
        assert served.has_ended
        await within("the connection to be gone", served.gone)


def until_cut_off(here: int, there: int) -> None:
    """By what the kernel says of the accepted socket. Not a turn of the event loop, which would
    hear of it."""
    connection = f"0100007F:{here:04X} 0100007F:{there:04X} 01"
    known = Path("/proc/self/net/tcp")
    waiting.until("the reset", lambda: connection not in known.read_text(), waiting.SOON_S)


async def test_a_version_of_api_versions_that_is_too_new_is_told_those_of_this_api_alone() -> None:
    """As Kafka does (KIP-511), and asked again. A client that is told all others goes by them, and
    knows no features (franz-go)."""
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = await under_test.connect()
        await client.send(frame(9, 18, 7, body=b"\x00\x02x\x02y\x00"))
        answer: Any = decode_response(await client.receive(), 18, 0)
        assert answer.error_code is ErrorCode.unsupported_version
        ((key, low, high),) = [(a.api_key, a.min_version, a.max_version) for a in answer.api_keys]
        assert (key, low, high) == (18, 0, 4)
        client.close()


@pytest.mark.parametrize(("api_key", "version"), [(93, 0), (HEARTBEAT, 5), (-1, 0)])
async def test_what_is_not_offered_is_refused_as_a_broker_refuses_it(
    api_key: int, version: int
) -> None:
    """An API of a newer Kafka, and a newer version of one that passes: the broker, which may know
    them and answer with addresses of brokers, never sees the request."""
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = await under_test.connect()
        await client.send(frame(1))
        assert await client.receive()
        seen = len(broker.frames)
        await client.send(frame(2, api_key, version))
        await client.disconnected()
        assert len(broker.frames) == seen


async def test_every_api_in_a_version_above_the_highest_and_every_other_key_is_refused() -> None:
    """Whoever asks past what he was told is disconnected, as by a broker
    (``RequestContext.parseRequest``); neither a handler nor the broker sees it. Of ApiVersions,
    which a client asks first, UNSUPPORTED_VERSION is the answer."""

    async def sees_none(_: RequestContext) -> bytes:
        raise AssertionError("a handler was asked")

    rules: Rules = {
        int(key): Rule(sees_none, always) for key in ApiKey if key != ApiKey.API_VERSIONS
    }
    async with FakeBroker(echo) as broker, gateway(broker, rules) as under_test:
        offered = under_test.server._rewriter.offered
        too_new = [(key, versions.stop) for key, versions in offered.items()]
        unknown = [(key, 0) for key in (*range(128), 32_767, -1) if key not in offered]
        assert len(too_new) > 60
        for api_key, version in too_new + unknown:
            client = await under_test.connect()
            seen = len(broker.frames)
            await client.send(frame(7, api_key, version))
            if api_key == ApiKey.API_VERSIONS:
                answer: Any = decode_response(await client.receive(), 18, 0)
                assert answer.error_code is ErrorCode.unsupported_version
                client.close()
                continue
            await client.disconnected()
            assert len(broker.frames) == seen, (api_key, version)


async def test_apis_of_a_newer_kafka_are_not_advertised() -> None:
    """This broker offers two versions more of everything, and an API that nobody has heard of."""
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = await under_test.connect()
        await client.send(frame(9, 18, 0))
        answer: Any = decode_response(await client.receive(), 18, 0)
        offered = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        assert UNHEARD_OF not in offered
        assert offered[HEARTBEAT] == (0, 4)
        assert offered[22] == (0, 5), "version 6 of InitProducerId is not stable"
        client.close()


async def test_a_header_with_tagged_fields_does_not_hide_the_acks() -> None:
    request = frame(1, 0, 9) + b"\x01\x63\x01z" + b"\x00\x00\x00" + bytes(4) + b"\x01\x00"
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = await under_test.connect()
        await client.send(request, frame(2))
        assert (await client.receive())[:4] == b"\x00\x00\x00\x02"
        assert request in broker.frames
        client.close()


async def test_a_message_forwarded_by_a_handler_comes_back_decoded() -> None:
    async def ask(ctx: RequestContext) -> bytes:
        answer = await ctx.connection.forward(
            encode_request(MetadataRequest(topics=(), **_NOTHING), 77), 12, 0
        )
        return ctx.header.correlation_id.to_bytes(4, "big") + answer[:4]

    rules = {SOME_HANDLED: Rule(ask, always)}
    async with FakeBroker(echo) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        await client.send(frame(1, SOME_HANDLED))
        assert await client.receive() == b"\x00\x00\x00\x01\x00\x00\x00\x4d"
        client.close()


_NOTHING = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}


async def test_a_request_that_cannot_be_begun_ends_its_client_whatever_went_wrong() -> None:
    """Also where it is begun later than it came, behind another one."""
    begun: list[int] = []

    async def handler(context: RequestContext) -> bytes | None:
        begun.append(context.header.correlation_id)
        return context.frame[4:8]

    def passes(header: RequestHeader, request: bytes, connection: Any) -> bool:
        if header.correlation_id == 2:
            raise RuntimeError("a defect")
        return False

    rules = {SOME_HANDLED: Rule(handler, always, passes)}
    async with FakeBroker(echo) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        await client.send(*(frame(n, SOME_HANDLED) for n in (1, 2, 3)))
        assert (await client.receive())[3] == 1
        await client.disconnected()
        assert begun == [1]
