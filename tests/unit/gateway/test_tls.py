"""TLS at the gateway: towards clients, towards the broker, and while certificates are replaced."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import ssl
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from tests.support.waiting import bounded
from tests.unit.gateway.fakes import until
from tests.unit.gateway.gateway_under_test import Client, Gateway, gateway, gateway_settings
from tests.unit.gateway.test_admission import connect_from, reached
from tests.unit.gateway.test_transport import echo, frame, produce
from tests.unit.kafka.fake_broker import FakeBroker, nothing_but_versions
from tests.unit.kafka.sasl_broker import SaslBroker
from tideline.domain.admission import BURST_S, Bound
from tideline.domain.security import ClientAuth
from tideline.errors import UsageError
from tideline.gateway.transport import acceptor, handshakes
from tideline.gateway.transport.serving import ServedConnection
from tideline.kafka.tls import TlsFiles
from tideline.settings import GatewaySettings, load
from tideline.stack.certificates import Authority, Pair

T = TypeVar("T")
pytestmark = pytest.mark.usefixtures("no_probe_meanwhile")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.load_or_create(tmp_path / "ca")


def shown(pair: Pair, protocol: str = "SSL") -> dict[str, str]:
    return {
        "gateway_security_protocol": protocol,
        "gateway_ssl_certificate_file": str(pair.certificate),
        "gateway_ssl_key_file": str(pair.key),
    }


def serial(client: Client) -> str:
    certificate = client.writer.get_extra_info("ssl_object").getpeercert()
    return str(certificate["serialNumber"])


def reloads(outcome: str) -> float:
    name, labels = "inkless_gateway_certificate_reloads_total", {"outcome": outcome}
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def shakes_hands_from(host: str, under_test: Gateway, tls: ssl.SSLContext) -> Client | None:
    """All of 127/8 is this machine. ``None``: it was closed before the end of its handshake."""
    made = socket.socket()
    made.setblocking(False)
    made.bind((host, 0))
    try:
        await asyncio.get_running_loop().sock_connect(made, under_test.server.address)
        return Client(
            *await asyncio.open_connection(sock=made, ssl=tls, server_hostname="127.0.0.1")
        )
    except OSError:
        made.close()
        return None


async def let_in_from(host: str, under_test: Gateway, tls: ssl.SSLContext) -> Client:
    """Who has shaken hands, and was served."""
    client = await shakes_hands_from(host, under_test, tls)
    assert client is not None
    await asks(client)
    return client


async def asks(client: Client, body: bytes = b"") -> None:
    request = frame(7, body=body)
    await client.send(request)
    assert await client.receive() == b"\0\0\0\x07" + request


async def test_frames_of_any_size_pass_through_tls_on_both_sides(authority: Authority) -> None:
    pair = authority.issue("gateway")
    tls = TlsFiles(None, pair.certificate, pair.key).server_context(ClientAuth.NONE)
    trusting = TlsFiles(authority.certificate).client_context()
    broker_side = {
        "kafka_security_protocol": "SSL",
        "kafka_ssl_ca_file": str(authority.certificate),
    }
    async with (
        FakeBroker(echo, tls) as broker,
        gateway(broker, **shown(pair), **broker_side) as under_test,
    ):
        client = await under_test.connect(trusting)
        sent = [
            frame(n, body=os.urandom(size)) for n, size in enumerate([0, 5_000, 70_000, 3_000_000])
        ]
        await client.send(*sent)
        for n, request in enumerate(sent):
            assert await client.receive() == n.to_bytes(4, "big") + request
        client.close()


async def test_requests_without_an_answer_are_delivered_when_the_client_leaves_at_once(
    authority: Authority,
) -> None:
    trusting = TlsFiles(authority.certificate).client_context()
    async with (
        FakeBroker(echo) as broker,
        gateway(broker, **shown(authority.issue("gateway"))) as under_test,
    ):
        seen = len(broker.received)
        for n in range(1, 6):
            client = await under_test.connect(trusting)
            await client.send(*(produce(n, 0) for n in range(50)))
            client.close()
            await broker.until_received(seen + n * 50)


async def test_a_broker_whose_certificate_nobody_trusts_looks_dead(
    authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue("broker")
    tls = TlsFiles(None, pair.certificate, pair.key).server_context(ClientAuth.NONE)
    other = Authority.load_or_create(tmp_path / "other")
    broker_side = {"kafka_security_protocol": "SSL", "kafka_ssl_ca_file": str(other.certificate)}
    with capture_logs() as logs:
        async with FakeBroker(echo, tls) as broker, gateway(broker, **broker_side) as under_test:
            assert not under_test.server.listening
    assert any("certificate verify failed" in str(line.get("reason")) for line in logs)


async def test_a_client_without_the_certificate_that_is_required_is_not_served(
    authority: Authority,
) -> None:
    settings = {
        **shown(authority.issue("gateway"), "SASL_SSL"),
        "gateway_ssl_client_auth": "required",
        "gateway_ssl_ca_file": str(authority.certificate),
        "kafka_security_protocol": "SASL_PLAINTEXT",
        "kafka_sasl_mechanism": "PLAIN",
        "kafka_sasl_username": "gateway",
        "kafka_sasl_password": "secret",
    }
    own = authority.issue("client")
    versions = frame(1, 18)
    told = SaslBroker(nothing_but_versions, users={"gateway": "secret"})
    async with FakeBroker(told) as broker, gateway(broker, **settings) as under_test:
        mine = TlsFiles(authority.certificate, own.certificate, own.key).client_context()
        client = await under_test.connect(mine)
        await client.send(versions)
        assert await client.receive()
        client.close()
        asked = len(broker.received)
        # With TLS 1.3 the client hears of it when it reads.
        nobody = await under_test.connect(TlsFiles(authority.certificate).client_context())
        await nobody.send(versions)
        await nobody.disconnected()
        assert len(broker.received) == asked


def _replaced(under_test: Gateway, change: Callable[[], object], outcome: str) -> None:
    before = reloads(outcome)
    change()
    certificate = under_test.server._certificate
    assert certificate is not None
    certificate.look()
    assert reloads(outcome) == before + 1


async def test_a_certificate_is_replaced_while_clients_are_connected(
    authority: Authority,
) -> None:
    pair = authority.issue("gateway")
    trusting = TlsFiles(authority.certificate).client_context()
    async with FakeBroker(echo) as broker, gateway(broker, **shown(pair)) as under_test:
        before = await under_test.connect(trusting)
        await asks(before)
        _replaced(under_test, lambda: authority.issue("gateway", anew=True), "taken")
        after = await under_test.connect(trusting)
        assert serial(after) != serial(before)
        await asks(before)
        await asks(after)
        assert under_test.server.listening
        before.close()
        after.close()


async def test_a_broken_new_pair_is_refused_and_the_old_one_stays(authority: Authority) -> None:
    pair, other = authority.issue("gateway"), authority.issue("other")
    trusting = TlsFiles(authority.certificate).client_context()
    async with FakeBroker(echo) as broker, gateway(broker, **shown(pair)) as under_test:
        before = await under_test.connect(trusting)
        with capture_logs() as logs:
            _replaced(under_test, lambda: pair.key.write_bytes(other.key.read_bytes()), "refused")
        assert any("refused" in line["event"] and "PEM" in line["reason"] for line in logs)
        after = await under_test.connect(trusting)
        assert serial(after) == serial(before)
        await asks(after)
        _replaced(under_test, lambda: authority.issue("gateway", anew=True), "taken")
        before.close()
        after.close()


@pytest.mark.usefixtures("probes")
async def test_a_gateway_that_refuses_connections_meanwhile_shows_the_new_one_later(
    authority: Authority,
) -> None:
    pair = authority.issue("gateway")
    trusting = TlsFiles(authority.certificate).client_context()
    async with FakeBroker(echo) as broker, gateway(broker, **shown(pair)) as under_test:
        first = await under_test.connect(trusting)
        old = serial(first)
        await broker.stop()
        await until(lambda: not under_test.server.listening)
        _replaced(under_test, lambda: authority.issue("gateway", anew=True), "taken")
        assert not under_test.server.listening
        await broker.start_again()
        await until(lambda: under_test.server.listening)
        again = await under_test.connect(trusting)
        assert serial(again) != old
        again.close()


def shaking(under_test: Gateway) -> int:
    return len(under_test.server._handshakes)


async def test_handshakes_of_one_address_are_bounded_in_number_and_time(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        **shown(authority.issue("gateway")),
        "gateway_max_connections_per_address": "3",
    }
    trusting = TlsFiles(authority.certificate).client_context()
    async with FakeBroker(echo) as broker, gateway(broker, **settings) as under_test:
        before = reached(Bound.ADDRESS)
        with monkeypatch.context() as patience:
            # No time enough for a whole handshake, which nobody makes meanwhile.
            patience.setattr(handshakes, "HANDSHAKE_S", 1.0)
            gone = [await connect_from(under_test, "127.0.0.2") for _ in range(3)]
            for each in gone:
                await each.disconnected()
            await until(lambda: shaking(under_test) == 0)
        monkeypatch.setattr(handshakes, "HANDSHAKE_S", 600.0)
        silent = [await connect_from(under_test, "127.0.0.2") for _ in range(3)]
        await until(lambda: shaking(under_test) == 3)
        assert await shakes_hands_from("127.0.0.2", under_test, trusting) is None
        assert reached(Bound.ADDRESS) == before + 1
        client = await let_in_from("127.0.0.3", under_test, trusting)
        assert shaking(under_test) == 3
        for each in silent:
            each.close()
        await until(lambda: shaking(under_test) == 0)
        later = await let_in_from("127.0.0.2", under_test, trusting)
        for one in (client, later):
            one.close()


async def test_when_all_places_are_taken_the_address_that_has_most_gives_its_oldest_away(
    authority: Authority,
) -> None:
    settings = {**shown(authority.issue("gateway")), "gateway_max_connections": "3"}
    trusting = TlsFiles(authority.certificate).client_context()
    async with FakeBroker(echo) as broker, gateway(broker, **settings) as under_test:
        before = reached("handshakes")
        other = await connect_from(under_test, "127.0.0.3")
        await until(lambda: shaking(under_test) == 1)
        silent = [await connect_from(under_test, "127.0.0.2") for _ in range(2)]
        await until(lambda: shaking(under_test) == 3)
        client = await let_in_from("127.0.0.4", under_test, trusting)
        await silent[0].disconnected()
        assert reached("handshakes") == before + 1
        assert shaking(under_test) == 2
        for one in (other, silent[1], client):
            one.close()
        await until(lambda: shaking(under_test) == 0)


async def test_a_handshake_that_fails_leaves_its_place_at_once(authority: Authority) -> None:
    settings = {
        **shown(authority.issue("gateway")),
        "gateway_max_connections_per_address": "1",
    }
    trusting = TlsFiles(authority.certificate).client_context()
    async with FakeBroker(echo) as broker, gateway(broker, **settings) as under_test:
        nonsense = await under_test.connect()
        await nonsense.send(frame(1, 18))
        await nonsense.disconnected()
        await until(lambda: shaking(under_test) == 0)
        leaving = await under_test.connect()
        await until(lambda: shaking(under_test) == 1)
        leaving.close()
        await until(lambda: shaking(under_test) == 0)
        client = await under_test.connect(trusting)
        await asks(client)
        client.close()


async def test_who_begins_handshakes_too_often_has_none_of_those_beyond_the_rate(
    authority: Authority,
) -> None:
    """A handshake costs more than what it would be refused afterwards for."""
    settings = {
        **shown(authority.issue("gateway")),
        "gateway_connection_rate_per_address": "1",
    }
    trusting = TlsFiles(authority.certificate).client_context()
    async with FakeBroker(echo) as broker, gateway(broker, **settings) as under_test:
        before = reached(Bound.RATE)
        made = await asyncio.gather(
            *(shakes_hands_from("127.0.0.2", under_test, trusting) for _ in range(20))
        )
        let_in = [client for client in made if client is not None]
        assert len(let_in) >= BURST_S
        assert len(let_in) + reached(Bound.RATE) - before == 20
        for client in let_in:
            client.close()
        await until(lambda: shaking(under_test) == 0)


@pytest.mark.parametrize("encrypted", [True, False])
async def test_a_process_without_descriptors_accepts_again_when_it_has_some(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    monkeypatch.setattr(acceptor, "ACCEPT_AGAIN_S", 0.1)
    trusting = TlsFiles(authority.certificate).client_context() if encrypted else None
    settings = shown(authority.issue("gateway")) if encrypted else {}
    async with FakeBroker(echo) as broker, gateway(broker, **settings) as under_test:
        (server,) = under_test.server._listener._servers
        assert isinstance(server, acceptor.Acceptor)
        refusing = Refusing(server.sockets[0])
        asyncio.get_running_loop().remove_reader(server.sockets[0].fileno())
        server.sockets = (refusing,)  # type: ignore[assignment]
        server._resume()
        with capture_logs() as logs:
            client = await under_test.connect(trusting)
            await asks(client)
        assert [line["event"] for line in logs if "limit on open files" in line["event"]]
        client.close()


class Refusing:
    """A listening socket that has once no descriptor for who comes."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._refused = False

    def accept(self) -> object:
        if not self._refused:
            self._refused = True
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._listening.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._listening, name)


async def test_clear_text_at_a_tls_listener_reaches_nobody(authority: Authority) -> None:
    async with (
        FakeBroker(nothing_but_versions) as broker,
        gateway(broker, **shown(authority.issue("gateway"))) as under_test,
    ):
        asked = len(broker.received)
        client = await under_test.connect()
        await client.send(frame(1, 18))
        await client.disconnected()
        assert len(broker.received) == asked


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_tls_1_1_is_refused(authority: Authority) -> None:
    old = TlsFiles(authority.certificate).client_context()
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    pair = authority.issue("gateway")
    async with FakeBroker(echo) as broker, gateway(broker, **shown(pair)) as under_test:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with bounded("the refusal"):
                await under_test.connect(old)


def test_a_listener_whose_identity_would_be_the_certificate_is_refused_at_start(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = gateway_settings("127.0.0.1:1").model_dump(exclude_unset=True)
    asked = {
        **shown(authority.issue("gateway")),
        "gateway_ssl_client_auth": "required",
        "gateway_ssl_ca_file": str(authority.certificate),
    }
    with pytest.raises(ValueError, match="delegation token"):
        GatewaySettings(**{**values, **asked})
    monkeypatch.setenv("TIDELINE_CONFIG", os.devnull)
    for name, value in asked.items():
        monkeypatch.setenv(f"TIDELINE_{name.upper()}", value)
    for name in ("id", "broker_id"):
        monkeypatch.setenv(f"TIDELINE_GATEWAY_{name.upper()}", "1")
    for name in ("listen", "advertised", "broker"):
        monkeypatch.setenv(f"TIDELINE_GATEWAY_{name.upper()}", "127.0.0.1:1")
    monkeypatch.setenv("TIDELINE_GATEWAY_PEERS", "1=127.0.0.1:1")
    monkeypatch.setenv("TIDELINE_GATEWAY_STATE_DIR", "state")
    monkeypatch.setenv("TIDELINE_POSTGRES_DSN", "host=127.0.0.1")
    with pytest.raises(UsageError, match=r"settings: TIDELINE_GATEWAY_SSL_CLIENT_AUTH=required"):
        load(GatewaySettings)


async def test_who_ends_its_handshake_after_the_gateway_has_stopped_is_not_served(
    authority: Authority,
) -> None:
    """Its lease may be released by then, and no barrier waits for what it would forward."""
    trusting = TlsFiles(authority.certificate).client_context()
    async with (
        FakeBroker(echo) as broker,
        gateway(broker, **shown(authority.issue("gateway"))) as under_test,
    ):
        late = socket.create_connection(under_test.server.address)
        late.setblocking(False)
        await until(lambda: shaking(under_test) == 1)
        await under_test.server.stop(0.2)
        asked = len(broker.received)
        try:
            client = Client(
                *await asyncio.open_connection(sock=late, ssl=trusting, server_hostname="127.0.0.1")
            )
        except ConnectionError:  # its socket was closed with the others
            late.close()
        else:
            await client.send(frame(7))
            await client.disconnected()
            client.close()
        assert len(broker.received) == asked
        assert not len(under_test.connections)


async def test_a_connection_that_has_ended_is_forgotten_by_its_listener(
    authority: Authority,
) -> None:
    """Each has buffers and what is known of its client: thousands were kept."""
    trusting = TlsFiles(authority.certificate).client_context()
    async with (
        FakeBroker(echo) as broker,
        gateway(broker, **shown(authority.issue("gateway"))) as under_test,
    ):
        client = await under_test.connect(trusting)
        await asks(client)
        (served,) = under_test.connections
        gone = weakref.ref(served)
        del served
        client.close()
        await until(lambda: not len(under_test.connections))
        later = await under_test.connect(trusting)
        await asks(later)

        def is_collected() -> bool:
            gc.collect()
            return gone() is None

        await until(is_collected)
        later.close()


async def test_who_connects_too_often_is_not_served_what_came_with_its_handshake(
    authority: Authority,
) -> None:
    """Else it would have shown itself, and stay, unread for ever."""
    trusting = TlsFiles(authority.certificate).client_context()
    settings = {
        **shown(authority.issue("gateway")),
        "gateway_connection_rate_per_address": "1",
    }
    async with FakeBroker(echo) as broker, gateway(broker, **settings) as under_test:
        outcomes = await asyncio.gather(
            *(_asks_with_the_handshake(under_test, trusting, n) for n in range(100, 120))
        )
        assert len({n for n in outcomes if n}) >= BURST_S
        assert None in outcomes
        heard = {header.correlation_id for header in broker.received} & set(range(100, 120))
        assert heard == {n for n in outcomes if n}
        await until(lambda: not len(under_test.connections))


async def _until_read(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    incoming: ssl.MemoryBIO,
    outgoing: ssl.MemoryBIO,
    step: Callable[[], T],
) -> T:
    """``step`` of a TLS client, with as much of the peer as it wants to read."""
    while True:
        try:
            return step()
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            async with bounded("what the gateway says next"):
                incoming.write(data := await reader.read(65_536))
            if not data:
                raise ConnectionResetError from None


async def _asks_with_the_handshake(
    under_test: Gateway, trusting: ssl.SSLContext, correlation: int
) -> int | None:
    """A client whose request is in one segment with the end of its handshake: the id that it is
    answered, or ``None``."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    reader, writer = await asyncio.open_connection(*under_test.server.address)
    request = frame(correlation)

    step = partial(_until_read, reader, writer, incoming, outgoing)
    try:
        await step(tls.do_handshake)
        tls.write(len(request).to_bytes(4, "big") + request)
        answer = await step(lambda: tls.read(65_536))
        return int.from_bytes(answer[4:8], "big") if answer else None
    except (ConnectionError, ssl.SSLError):
        return None
    finally:
        writer.close()


async def test_a_client_that_is_handed_over_in_the_middle_of_sending_is_taken_leave_of(
    authority: Authority,
) -> None:
    """What it has sent is taken and not served: refusing it would cut off answers on their way."""
    trusting = TlsFiles(authority.certificate).client_context()
    async with (
        FakeBroker(echo) as broker,
        gateway(broker, **shown(authority.issue("gateway"))) as under_test,
    ):
        ssl_side = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting.wrap_bio(*ssl_side, server_hostname="127.0.0.1")
        reader, writer = await asyncio.open_connection(*under_test.server.address)
        step = partial(_until_read, reader, writer, *ssl_side)
        request = frame(7)
        await step(tls.do_handshake)
        tls.write(len(request).to_bytes(4, "big") + request)
        assert await step(lambda: tls.read(65_536))
        (served,) = list(under_test.connections)
        assert isinstance(served, ServedConnection)
        served.drain()
        for _ in range(3):
            tls.write(len(request).to_bytes(4, "big") + request)
            writer.write(ssl_side[1].read())
            await writer.drain()
        assert writer.transport.get_write_buffer_size() == 0
        served.hand_over("it moves")
        assert await step(lambda: tls.read(65_536)) == b""  # close_notify: TCP's end alone raises
        tls.write(len(request).to_bytes(4, "big") + request)
        writer.write(ssl_side[1].read())
        await writer.drain()
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        asked = [h for h in broker.received if h.correlation_id == 7]
        assert len(asked) == 1
