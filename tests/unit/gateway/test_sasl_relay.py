"""SASL through the gateway: the broker decides, and nothing else gets through before it has."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from structlog.testing import capture_logs

from tests.support.waiting import bounded
from tests.unit.gateway.fakes import until
from tests.unit.gateway.gateway_under_test import Client, Gateway, gateway
from tests.unit.gateway.test_transport import SOME_HANDLED, echo, frame, produce
from tests.unit.kafka.fake_broker import FakeBroker
from tests.unit.kafka.sasl_broker import SaslBroker
from tideline.domain.sasl import ANONYMOUS, Identity, Mechanism
from tideline.domain.security import OwnMechanism, SecurityProtocol
from tideline.gateway.context import RequestContext, Rule, always
from tideline.gateway.transport import serving
from tideline.kafka.client import KafkaConnection
from tideline.kafka.errors import KafkaError
from tideline.kafka.protocol import RequestHeader, decode_response, encode_request
from tideline.kafka.security import KafkaSecurity

SETTINGS = {
    "gateway_security_protocol": "SASL_PLAINTEXT",
    "kafka_security_protocol": "SASL_PLAINTEXT",
    "kafka_sasl_mechanism": "PLAIN",
    "kafka_sasl_username": "gateway",
    "kafka_sasl_password": "own",
}
USERS = {"alice": "secret", "gateway": "own"}
HEARTBEAT = 12
LONG_MS, SHORT_MS = 600_000, 100
"""Of logins: of one that a slow machine, too, uses in time, and of one whose end is waited for."""


def sasl_broker(lifetime_ms: int = 0) -> SaslBroker:
    return SaslBroker(echo, users=USERS, lifetime_ms=lifetime_ms)


def handshake(correlation: int, mechanism: str = "PLAIN") -> bytes:
    return encode_request(SaslHandshakeRequest(mechanism=mechanism), correlation, "c")


def token(correlation: int, user: str = "alice", password: str = "secret") -> bytes:
    said = f"\0{user}\0{password}".encode()
    return encode_request(SaslAuthenticateRequest(auth_bytes=said), correlation, "c")


async def logs_in(client: Client, password: str = "secret") -> Any:
    await client.send(handshake(1))
    await client.receive()
    await client.send(token(2, password=password))
    return decode_response(await client.receive(), 36, 1)


async def asks(client: Client, correlation: int = 7) -> None:
    await client.send(frame(correlation))
    assert await client.receive() == correlation.to_bytes(4, "big") + frame(correlation)


def seen_of_clients(broker: FakeBroker) -> list[int]:
    """APIs that the broker was asked, but for the gateway's own look at it."""
    return [h.api_key for h in broker.received if h.client_id != "tideline-gateway-probe"]


@pytest.mark.parametrize("mechanism", list(OwnMechanism))
async def test_a_client_logs_in_at_the_broker_and_is_served(mechanism: OwnMechanism) -> None:
    protocol = SecurityProtocol.SASL_PLAINTEXT
    security = KafkaSecurity(protocol, mechanism, "alice", "secret")
    told = sasl_broker()
    async with FakeBroker(told) as broker, gateway(broker, **SETTINGS) as under_test:
        client = await KafkaConnection.open(*under_test.server.address, security=security)
        assert "alice" in told.logins
        (open_,) = under_test.connections
        assert open_.identity == Identity(Mechanism(mechanism), "alice")
        client.close()


async def test_a_wrong_password_is_answered_by_kafkas_own_error() -> None:
    protocol = SecurityProtocol.SASL_PLAINTEXT
    security = KafkaSecurity(protocol, OwnMechanism.SCRAM_SHA_512, "alice", "wrong")
    with capture_logs() as logs:
        async with FakeBroker(sasl_broker()) as broker, gateway(broker, **SETTINGS) as under_test:
            with pytest.raises(KafkaError) as failed:
                await KafkaConnection.open(*under_test.server.address, security=security)
            assert failed.value.code is ErrorCode.sasl_authentication_failed
            assert "Invalid username or password" in str(failed.value)
    assert "wrong" not in str(logs)


@pytest.mark.parametrize("renewed", [False, True])
async def test_a_client_hears_why_a_broker_has_refused_it_although_that_has_left_meanwhile(
    renewed: bool,
) -> None:
    """Kafka ends the connection 100 ms after its answer, which the loop has not taken yet when it
    is busy for longer. A client that hears no error tries again, with the same password."""
    told = sasl_broker(lifetime_ms=60_000)

    async def refuses_and_leaves(header: RequestHeader, request: bytes) -> bytes | None:
        writer = broker.asking
        answer = await told(header, request)
        if writer is None or answer is None or b"Invalid" not in answer:
            return answer
        writer.write(len(answer).to_bytes(4, "big") + answer)
        with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as own:
            own.shutdown(socket.SHUT_WR)
        threading.Event().wait(0.1)  # the loop is busy
        return None

    async with FakeBroker(refuses_and_leaves) as broker, gateway(broker, **SETTINGS) as under_test:
        client = await under_test.connect()
        if renewed:
            assert (await logs_in(client)).error_code is ErrorCode.none
        answer = await logs_in(client, "wrong")
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        await client.disconnected()


@pytest.mark.parametrize(
    "early",
    [frame(1), frame(1, SOME_HANDLED), produce(1, 0), token(1), frame(1, 18), frame(1, 3, 12)],
    ids=["passed", "handled", "unanswered", "token", "versions", "metadata"],
)
async def test_nothing_but_versions_and_sasl_gets_through_before_a_login(early: bytes) -> None:
    handled = asyncio.Event()

    async def handler(ctx: RequestContext) -> bytes:
        handled.set()
        return ctx.header.correlation_id.to_bytes(4, "big")

    rules = {SOME_HANDLED: Rule(handler, always)}
    told = sasl_broker()
    async with FakeBroker(told) as broker, gateway(broker, rules, **SETTINGS) as under_test:
        client = await under_test.connect()
        await client.send(early)
        if early == frame(1, 18):
            await client.receive()
            await logs_in(client)
            assert seen_of_clients(broker) == [18, 17, 36]
            client.close()
            return
        await client.disconnected()
        assert seen_of_clients(broker) == []
        assert not handled.is_set()


async def test_what_comes_behind_a_login_waits_for_its_outcome() -> None:
    """The broker serves a connection one by one: so does the gateway until it knows."""
    for password, served in (("secret", True), ("wrong", False)):
        async with FakeBroker(sasl_broker()) as broker, gateway(broker, **SETTINGS) as under_test:
            client = await under_test.connect()
            await client.send(handshake(1), token(2, password=password), frame(3))
            await client.receive()
            await client.receive()
            if served:
                assert (await client.receive())[:4] == b"\0\0\0\x03"
                client.close()
            else:
                await client.disconnected()
                assert seen_of_clients(broker) == [17, 36]


async def test_a_handler_sees_who_the_client_is() -> None:
    seen: list[Identity] = []

    async def handler(ctx: RequestContext) -> bytes:
        seen.append(ctx.connection.identity)
        return ctx.header.correlation_id.to_bytes(4, "big")

    rules = {SOME_HANDLED: Rule(handler, always)}
    async with FakeBroker(sasl_broker()) as broker:
        async with gateway(broker, rules, **SETTINGS) as under_test:
            client = await under_test.connect()
            await logs_in(client)
            await client.send(frame(3, SOME_HANDLED))
            await client.receive()
            client.close()
        async with gateway(broker, rules) as under_test:
            client = await under_test.connect()
            await client.send(frame(3, SOME_HANDLED))
            await client.receive()
            client.close()
    assert seen == [Identity(Mechanism.PLAIN, "alice"), ANONYMOUS]


@pytest.mark.parametrize(
    ("asked", "version", "code", "why"),
    [
        (frame(1, 17, 0, b"\0\x05PLAIN"), 0, "unsupported_version", "SaslHandshake v1"),
        (handshake(1, "GSSAPI"), 1, "unsupported_sasl_mechanism", "GSSAPI"),
        (handshake(1, "no such"), 1, "unsupported_sasl_mechanism", "no such"),
        (handshake(1, "PLAIN"), 1, "unsupported_sasl_mechanism", ""),
    ],
    ids=["raw tokens", "not relayed", "unknown", "not enabled"],
)
async def test_a_refused_mechanism_is_answered_with_those_that_the_broker_has_enabled(
    asked: bytes, version: int, code: str, why: str
) -> None:
    """And that are relayed: a client that chooses by them gets through. What the broker would take
    and a gateway cannot follow does not reach it."""
    told = SaslBroker(echo, users=USERS, mechanisms=("GSSAPI", "SCRAM-SHA-512", "OAUTHBEARER"))
    settings = SETTINGS | {"kafka_sasl_mechanism": "SCRAM-SHA-512"}
    with capture_logs() as logs:
        async with FakeBroker(told) as broker, gateway(broker, **settings) as under_test:
            client = await under_test.connect()
            await client.send(asked)
            answer: Any = decode_response(await client.receive(), 17, version)
            assert answer.error_code is ErrorCode[code]
            assert answer.mechanisms == ("SCRAM-SHA-512", "OAUTHBEARER")
            if why:
                await client.disconnected()
                assert not any(b"GSSAPI" in each for each in broker.frames)
            assert seen_of_clients(broker) == [17]
            client.close()
    assert any(why in str(x) for x in logs)


async def test_an_answer_that_takes_a_mechanism_names_what_is_relayed_too() -> None:
    told = SaslBroker(echo, users=USERS, mechanisms=("GSSAPI", "PLAIN"))
    async with FakeBroker(told) as broker, gateway(broker, **SETTINGS) as under_test:
        client = await under_test.connect()
        await client.send(handshake(1))
        answer: Any = decode_response(await client.receive(), 17, 1)
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.none, ("PLAIN",))
        client.close()


async def test_a_client_of_saslauthenticate_v0_gets_its_answer_in_v0() -> None:
    told = sasl_broker()
    async with FakeBroker(told) as broker, gateway(broker, **SETTINGS) as under_test:
        client = await under_test.connect()
        said = token(2)
        for lifetime_ms in (LONG_MS, SHORT_MS):
            told.lifetime_ms = lifetime_ms
            await client.send(handshake(1))
            await client.receive()
            await client.send(said[:2] + b"\0\0" + said[4:])
            answer: Any = decode_response(await client.receive(), 36, 0)
            assert answer.error_code is ErrorCode.none
            if lifetime_ms == LONG_MS:
                await asks(client)
        await _lapsed(under_test)
        await client.send(frame(8))
        await client.disconnected()
        assert HEARTBEAT in seen_of_clients(broker)
        assert seen_of_clients(broker).count(HEARTBEAT) == 1


async def _lapsed(under_test: Gateway) -> None:
    (open_,) = under_test.connections
    login: Any = open_._login  # type: ignore[attr-defined]
    loop = asyncio.get_running_loop()
    await until(lambda: login._state.expires_at <= loop.time())
    await asyncio.sleep(0.01)  # a timer behind the transport's own, which is due now


async def test_a_login_is_renewed_on_the_connection_and_lapses_otherwise() -> None:
    told = sasl_broker(SHORT_MS)
    async with FakeBroker(told) as broker, gateway(broker, **SETTINGS) as under_test:
        client = await under_test.connect()
        await logs_in(client)
        await _lapsed(under_test)
        told.lifetime_ms = LONG_MS
        await logs_in(client)
        await asks(client)
        told.lifetime_ms = SHORT_MS
        await logs_in(client)
        await _lapsed(under_test)
        await client.send(frame(9))
        await client.disconnected()


async def test_what_handlers_and_barriers_send_waits_while_a_login_is_renewed() -> None:
    """Kafka ends a connection on which anything else comes between handshake and token."""
    go_on = asyncio.Event()

    async def late(ctx: RequestContext) -> bytes | None:
        await go_on.wait()
        return await ctx.forward(frame(ctx.header.correlation_id))

    rules = {SOME_HANDLED: Rule(late, always)}
    told = sasl_broker(lifetime_ms=60_000)
    async with FakeBroker(told) as broker, gateway(broker, rules, **SETTINGS) as under_test:
        client = await under_test.connect()
        await logs_in(client)
        await client.send(frame(3, SOME_HANDLED), handshake(4))
        await broker.until_received(len(broker.received))
        await until(lambda: seen_of_clients(broker).count(17) == 2)
        go_on.set()
        (open_,) = under_test.connections
        login: Any = open_._login  # type: ignore[attr-defined]
        await until(lambda: len(login.held) == 1)
        drained = asyncio.ensure_future(under_test.connections.drain())
        await until(lambda: len(login.held) == 2)
        assert not drained.done()
        assert seen_of_clients(broker) == [17, 36, 17]
        await client.send(token(5))
        assert [(await client.receive())[3] for _ in range(3)] == [3, 4, 5]
        await drained
        assert sorted(seen_of_clients(broker)[4:]) == sorted([HEARTBEAT, 18])
        client.close()


async def test_before_a_login_there_is_nothing_to_drain() -> None:
    """An ApiVersions request in the middle of an exchange would break it."""
    async with FakeBroker(sasl_broker()) as broker, gateway(broker, **SETTINGS) as under_test:
        client = await under_test.connect()
        await client.send(handshake(1))
        await client.receive()
        await under_test.connections.drain()
        await client.send(token(2))
        await client.receive()
        await asks(client)
        assert seen_of_clients(broker) == [17, 36, HEARTBEAT]
        client.close()


async def test_who_renews_as_somebody_else_is_disconnected() -> None:
    told = sasl_broker()
    async with FakeBroker(told) as broker, gateway(broker, **SETTINGS) as under_test:
        client = await under_test.connect()
        await logs_in(client)
        await client.send(handshake(3))
        await client.receive()
        await client.send(token(4, "gateway", "own"))
        await client.receive()
        await client.disconnected()


async def test_a_version_of_apiversions_that_is_too_new_leaves_the_exchange_as_it_was() -> None:
    """The broker allows one ApiVersions request before a login: it must not be used up."""
    async with FakeBroker(sasl_broker()) as broker, gateway(broker, **SETTINGS) as under_test:
        client = await under_test.connect()
        await client.send(frame(1, 18, 99))
        answer: Any = decode_response(await client.receive(), 18, 0)
        assert answer.error_code is ErrorCode.unsupported_version
        (asked,) = [h for h in broker.received if h.client_id == "c"]
        assert asked.api_version == 2**15 - 1
        await logs_in(client)
        await asks(client)
        client.close()


async def test_a_login_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LOGIN_S", 0.05)
    async with FakeBroker(sasl_broker()) as broker, gateway(broker, **SETTINGS) as under_test:
        client = await under_test.connect()
        await client.disconnected()


async def test_before_a_login_frames_are_small() -> None:
    async with FakeBroker(sasl_broker()) as broker, gateway(broker, **SETTINGS) as under_test:
        client = await under_test.connect()
        client.writer.write((600_000).to_bytes(4, "big"))
        await client.disconnected()
        client = await under_test.connect()
        await logs_in(client)
        large = frame(3, body=bytes(600_000))
        await client.send(large)
        assert len(await client.receive()) == 4 + len(large)
        client.close()


async def test_a_broker_that_ends_an_authenticated_connection_ends_the_clients() -> None:
    async with FakeBroker(sasl_broker()) as broker, gateway(broker, **SETTINGS) as under_test:
        client = await under_test.connect()
        await logs_in(client)
        broker.hang_up()
        await client.disconnected()


async def test_a_renewal_that_is_half_done_holds_up_neither_a_drain_nor_a_stop() -> None:
    """The broker's answer to the handshake shows that all before it is served, and its client is
    not read any more."""
    told = sasl_broker(lifetime_ms=60_000)
    async with FakeBroker(told) as broker, gateway(broker, **SETTINGS) as under_test:
        client = await under_test.connect()
        await logs_in(client)
        await asks(client)
        await client.send(handshake(4))
        await client.receive()
        async with bounded("the drain and the stop"):
            await under_test.connections.drain()
            client.close()
            await under_test.server.stop(60)
        assert seen_of_clients(broker) == [17, 36, HEARTBEAT, 17]
