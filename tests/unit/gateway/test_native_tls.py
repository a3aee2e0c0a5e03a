"""TLS of the native transport, seen by Python's own TLS on both sides of it."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from structlog.testing import capture_logs

from tests.support.waiting import bounded, lasts_async
from tests.unit.gateway.fakes import until
from tests.unit.gateway.gateway_under_test import Client, Gateway, gateway
from tests.unit.gateway.test_room import crowd, held_until
from tests.unit.gateway.test_transport import HEARTBEAT, echo, frame
from tests.unit.kafka.fake_broker import FakeBroker
from tideline.domain.security import ClientAuth, SecurityProtocol
from tideline.gateway.transport import handshakes
from tideline.gateway.transport import native as by_library
from tideline.gateway.transport.native import NativeTransport
from tideline.gateway.transport.server import GatewayServer
from tideline.kafka import wire
from tideline.kafka.protocol import RequestHeader
from tideline.kafka.security import KafkaSecurity
from tideline.kafka.tls import TlsFiles
from tideline.kafka.wire import Encrypted, LibraryMissing
from tideline.kafka.wire_tls import rules_of
from tideline.stack import certificates
from tideline.stack.certificates import Authority, Pair

T = TypeVar("T")


class Listens(Protocol):
    @property
    def address(self) -> tuple[str, int]: ...


class At:
    def __init__(self, server: asyncio.Server) -> None:
        self.address: tuple[str, int] = server.sockets[0].getsockname()[:2]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.load_or_create(tmp_path / "ca")


class Native(Gateway):
    def __init__(self, under_test: Gateway, transport: NativeTransport) -> None:
        super().__init__(under_test.server, under_test.connections, under_test.room)
        self.transport = transport

    @property
    def port(self) -> int:
        return self.server.address[1]

    def encrypt(self, clients: TlsFiles, auth: ClientAuth = ClientAuth.NONE) -> None:
        self.transport.encrypt_clients(clients.server_context(auth), clients)


@asynccontextmanager
async def native(
    broker: Listens,
    *,
    clients: TlsFiles | None = None,
    brokers: TlsFiles | None = None,
    name: str = "127.0.0.1",
) -> AsyncIterator[Native]:
    """A gateway; the broker answers its own questions whatever it thinks of that."""
    settings: dict[str, str] = {}
    if clients is not None:
        settings["gateway_security_protocol"] = "SSL"
        settings["gateway_ssl_certificate_file"] = str(clients.certificate)
        settings["gateway_ssl_key_file"] = str(clients.key)
    if brokers is not None:
        settings["kafka_security_protocol"] = "SSL"
        settings["kafka_ssl_ca_file"] = str(brokers.ca)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GatewayServer, "_broker_problem", answers)
        async with gateway((name, broker.address[1]), **settings) as under_test:
            transport = under_test.server._transport
            assert isinstance(transport, NativeTransport)
            if brokers is not None:
                transport._security = KafkaSecurity(SecurityProtocol.SSL, files=brokers)
                transport.encrypt_to_brokers()
            yield Native(under_test, transport)


def passed(under_test: Native) -> int:
    return under_test.transport.wire.counters()[0][HEARTBEAT]


async def answers(*_: object) -> None:
    """The probe of the broker, which has its own connection."""


@asynccontextmanager
async def in_pieces(broker: FakeBroker, most: int, host: str = "127.0.0.1") -> AsyncIterator[At]:
    """What stands before a broker, and passes bytes on in pieces of at most so many."""

    async def passes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(random.randint(1, most)):
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to = await asyncio.open_connection(*broker.address)
        with suppress(ConnectionError):
            await asyncio.gather(passes(reader, to[1]), passes(to[0], writer))

    async with await asyncio.start_server(serve, host, 0) as server:
        yield At(server)


@asynccontextmanager
async def silent_server() -> AsyncIterator[At]:
    """Accepts connections, and says nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield At(server)


class Bytewise:
    """A TLS client that says what of its bytes is sent when."""

    def __init__(self, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> None:
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self.outgoing, server_hostname="127.0.0.1", session=session
        )

    async def connect(self, port: int, most: int | None = None) -> None:
        """Shake hands, in pieces of at most so many bytes."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        self.most = most
        await self.step(self.tls.do_handshake)

    async def ship(self) -> None:
        left = self.outgoing.read()
        while left:
            piece = random.randint(1, self.most) if self.most else len(left)
            self.writer.write(left[:piece])
            left = left[piece:]
            await self.writer.drain()
            await asyncio.sleep(0)  # or the loop would send them as one

    async def step(self, step: Callable[[], T]) -> T:
        """A step of TLS, with as much of the peer as it wants."""
        while True:
            try:
                made = step()
            except ssl.SSLWantReadError:
                await self.ship()
                async with bounded("what the gateway says next"):
                    data = await self.reader.read(random.randint(1, self.most or 65_536))
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            else:
                await self.ship()
                return made

    async def asks(self, request: bytes) -> None:
        """Send it, and see its echo."""
        data = len(request).to_bytes(4, "big") + request
        while data:
            data = data[self.tls.write(data) :]
            await self.ship()
        answer = b""
        while len(answer) < len(request) + 8:
            answer += await self.step(lambda: self.tls.read(65_536))
        assert answer[8:] == request


def files_of(pair: Pair, authority: Path | None = None) -> TlsFiles:
    return TlsFiles(authority, pair.certificate, pair.key)


async def asks(client: Client, request: bytes) -> None:
    await client.send(request)
    assert await client.receive() == request[4:8] + request


async def refused(under_test: Native, tls: ssl.SSLContext | None) -> None:
    """A client that has no answer, whichever way it hears of that."""
    try:
        client = await under_test.connect(tls)
        await client.send(frame(1))
        await client.disconnected()
        client.close()
    except (OSError, asyncio.IncompleteReadError):
        pass


async def test_frames_of_any_size_pass_through_tls_as_they_pass_without(
    authority: Authority,
) -> None:
    own, trusting = files_of(authority.issue("gateway")), TlsFiles(authority.certificate)
    sizes = [0, 1, 5_000, 16_380, 16_384, 70_000, 3_000_000, 7]
    sent = [frame(n, body=os.urandom(size)) for n, size in enumerate(sizes)]
    seen: list[tuple[list[bytes], list[bytes]]] = []
    for tls in (True, False):
        broker_tls = own.server_context(ClientAuth.NONE) if tls else None
        async with (
            FakeBroker(echo, broker_tls) as broker,
            native(
                broker, clients=own if tls else None, brokers=trusting if tls else None
            ) as under_test,
        ):
            client = await under_test.connect(trusting.client_context() if tls else None)
            await client.send(*sent)
            answers = [await client.receive() for _ in sent]
            seen.append((answers, list(broker.frames)))
            # All but the first, by which it shows itself.
            assert passed(under_test) == len(sent) - 1
            client.close()
    assert seen[0] == seen[1]
    assert seen[0][0] == [n.to_bytes(4, "big") + request for n, request in enumerate(sent)]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_bytes_may_come_in_any_pieces(authority: Authority, version: ssl.TLSVersion) -> None:
    own, trusting = files_of(authority.issue("gateway")), TlsFiles(authority.certificate)
    context = trusting.client_context()
    context.minimum_version = context.maximum_version = version
    async with FakeBroker(echo) as broker, native(broker, clients=own) as under_test:
        for most in (1, 7, 300, 20_000):
            client = Bytewise(context)
            await client.connect(under_test.port, most)
            for size in (0, 1, 40 * most):
                await client.asks(frame(size, body=os.urandom(size)))
            client.writer.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_broker_of_either_version_is_spoken_to_in_any_pieces(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    own, trusting = files_of(authority.issue("broker")), TlsFiles(authority.certificate)
    context = own.server_context(ClientAuth.NONE)
    context.minimum_version = context.maximum_version = version
    async with (
        FakeBroker(echo, context) as broker,
        in_pieces(broker, 50) as cut,
        native(cut, brokers=trusting) as under_test,
    ):
        client = await under_test.connect(None)
        for size in (0, 1, 3_000):
            await asks(client, frame(size, body=os.urandom(size)))
        client.close()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_tls_1_1_and_clear_text_are_refused(authority: Authority) -> None:
    own, trusting = files_of(authority.issue("gateway")), TlsFiles(authority.certificate)
    old = trusting.client_context()
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    async with FakeBroker(echo) as broker, native(broker, clients=own) as under_test:
        for tls in (old, None):
            await refused(under_test, tls)
        assert not broker.frames
        client = await under_test.connect(trusting.client_context())
        await asks(client, frame(2))
        client.close()


@pytest.mark.parametrize("auth", [ClientAuth.REQUIRED, ClientAuth.REQUESTED])
async def test_a_clients_certificate_is_looked_at(
    authority: Authority, tmp_path: Path, auth: ClientAuth
) -> None:
    other = Authority.load_or_create(tmp_path / "other")
    own = files_of(authority.issue("gateway"), authority.certificate)
    good = files_of(authority.issue("client"), authority.certificate)
    strange = files_of(other.issue("client"), authority.certificate)
    nobody = TlsFiles(authority.certificate)
    async with FakeBroker(echo) as broker, native(broker, clients=own) as under_test:
        under_test.encrypt(own, auth)
        client = await under_test.connect(good.client_context())
        await asks(client, frame(1))
        client.close()
        asked = len(broker.frames)
        await refused(under_test, strange.client_context())
        if auth is ClientAuth.REQUIRED:
            await refused(under_test, nobody.client_context())
        assert len(broker.frames) == asked
        if auth is ClientAuth.REQUESTED:
            client = await under_test.connect(nobody.client_context())
            await asks(client, frame(1))
            client.close()


def expired(authority: Authority) -> Pair:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "VALID", -timedelta(minutes=1))
        return authority.issue("expired")


async def test_a_broker_that_is_not_who_it_should_be_is_not_spoken_to(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority.load_or_create(tmp_path / "other")
    good, trusting = files_of(authority.issue("broker")), TlsFiles(authority.certificate)
    elsewhere = files_of(authority.issue("elsewhere", "somebody.else"))
    cases = [
        (good, TlsFiles(other.certificate), "127.0.0.1", "certificate verify failed: "),
        (elsewhere, trusting, "localhost", "it is not for 'localhost'"),
        (good, trusting, "127.0.0.2", "it is not for '127.0.0.2'"),
        (files_of(expired(authority)), trusting, "127.0.0.1", "certificate has expired"),
    ]
    for shown, trusted, name, reason in cases:
        async with (
            FakeBroker(echo, shown.server_context(ClientAuth.NONE)) as broker,
            in_pieces(broker, 65_536, "127.0.0.2" if name == "127.0.0.2" else "127.0.0.1") as at,
            native(at, brokers=trusted, name=name) as under_test,
        ):
            with capture_logs() as logs:
                await refused(under_test, None)
                await until(lambda: len(under_test.connections) == 0)
            assert not broker.frames
            assert any(reason in str(line.get("reason")) for line in logs), logs
    async with (
        FakeBroker(echo, good.server_context(ClientAuth.NONE)) as broker,
        native(broker, brokers=trusting, name="localhost") as under_test,
    ):
        client = await under_test.connect(None)
        await asks(client, frame(1))
        client.close()


async def test_a_broker_that_wants_a_certificate_is_shown_ours(authority: Authority) -> None:
    shown = files_of(authority.issue("broker"), authority.certificate)
    context = shown.server_context(ClientAuth.REQUIRED)
    mine = files_of(authority.issue("gateway"), authority.certificate)
    async with FakeBroker(echo, context) as broker, native(broker, brokers=mine) as under_test:
        client = await under_test.connect(None)
        await asks(client, frame(1))
        client.close()
    nothing = TlsFiles(authority.certificate)
    async with FakeBroker(echo, context) as broker, native(broker, brokers=nothing) as under_test:
        await refused(under_test, None)
        assert not broker.frames


def serial(client: Client) -> str:
    return str(client.writer.get_extra_info("ssl_object").getpeercert()["serialNumber"])


async def test_a_certificate_is_replaced_while_clients_are_connected(
    authority: Authority,
) -> None:
    pair, other = authority.issue("gateway"), authority.issue("other")
    own, context = files_of(pair), TlsFiles(authority.certificate).client_context()
    async with FakeBroker(echo) as broker, native(broker, clients=own) as under_test:
        before = await under_test.connect(context)
        await asks(before, frame(1))
        rules = rules_of(own.server_context(ClientAuth.NONE), own)
        authority.issue("gateway", anew=True)
        under_test.encrypt(own)
        after = await under_test.connect(context)
        assert serial(after) != serial(before)
        pair.key.write_bytes(other.key.read_bytes())
        with pytest.raises(OSError, match="its key: key values mismatch"):
            under_test.transport.wire.encrypt(Encrypted.WITH_CLIENTS, rules)
        later = await under_test.connect(context)
        assert serial(later) == serial(after)
        for client in (before, after, later):
            await asks(client, frame(2))
            client.close()


async def test_who_does_not_end_its_handshake_is_disconnected(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.5)
    own, trusting = files_of(authority.issue("gateway")), TlsFiles(authority.certificate)
    async with (
        FakeBroker(echo) as broker,
        native(broker, clients=own) as under_test,
    ):
        silent = await under_test.connect(None)
        half = await under_test.connect(None)
        slow = Bytewise(trusting.client_context())
        with pytest.raises(ssl.SSLWantReadError):
            slow.tls.do_handshake()
        half.writer.write(slow.outgoing.read()[:-1])
        for client in (silent, half):
            await client.disconnected()
        await until(lambda: not len(under_test.connections))


async def test_a_broker_that_does_not_end_its_handshake_is_given_up(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_library, "CONNECT_TIMEOUT_S", 0.5)
    async with (
        silent_server() as broker,
        native(broker, brokers=TlsFiles(authority.certificate)) as under_test,
    ):
        await refused(under_test, None)


async def test_nothing_of_a_client_is_served_before_it_is_let_in(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, trusting = files_of(authority.issue("gateway")), TlsFiles(authority.certificate)
    async with FakeBroker(echo) as broker, native(broker, clients=own) as under_test:
        library, waiting = under_test.transport.wire, list[int]()
        with monkeypatch.context() as held:
            held.setattr(library, "begun", waiting.append)
            client = await under_test.connect(trusting.client_context())
            await client.send(frame(1), frame(2))
            await until(lambda: waiting)
            await lasts_async("nothing is served", lambda: not broker.frames, 0.2)
        library.begun(*waiting)
        for n in (1, 2):
            assert (await client.receive())[:4] == n.to_bytes(4, "big")
        client.close()


@asynccontextmanager
async def answered(authority: Authority) -> AsyncIterator[tuple[Native, Bytewise]]:
    """A gateway, and a client of it that has been answered once."""
    own, trusting = files_of(authority.issue("gateway")), TlsFiles(authority.certificate)
    async with FakeBroker(echo) as broker, native(broker, clients=own) as under_test:
        client = Bytewise(trusting.client_context())
        await client.connect(under_test.port)
        await client.asks(frame(1))
        yield under_test, client
        client.writer.close()


async def test_a_client_is_taken_leave_of(authority: Authority) -> None:
    """It could not tell an end of TCP from an attack."""
    async with answered(authority) as (under_test, client):
        (served,) = under_test.connections
        served.close("a test")
        assert await client.step(lambda: client.tls.read(1)) == b""


async def test_a_client_that_takes_leave_is_gone(authority: Authority) -> None:
    async with answered(authority) as (under_test, client):
        await client.step(client.tls.unwrap)  # done once its peer has taken leave, too
        await until(lambda: not len(under_test.connections))


@pytest.mark.parametrize(
    "record",
    [
        b"\x17\x03\x03\x00\x20" + bytes(32),  # not by this key
        b"\x17\x03\x03\xff\xff" + bytes(65_535),  # longer than any
        b"\x16\x03\x03\x00\x04\x00\x00\x00\x00",  # HelloRequest, in clear text
        b"\x80\x2e\x01\x00\x02" + bytes(50),
        frame(1, 18),
    ],
)
async def test_what_is_no_record_ends_the_connection(authority: Authority, record: bytes) -> None:
    own, trusting = files_of(authority.issue("gateway")), TlsFiles(authority.certificate)
    async with FakeBroker(echo) as broker, native(broker, clients=own) as under_test:
        client = Bytewise(trusting.client_context())
        await client.connect(under_test.port)
        await client.asks(frame(1))
        client.writer.write(record)
        await until(lambda: not len(under_test.connections))
        client.writer.close()
        other = await under_test.connect(trusting.client_context())
        await asks(other, frame(2))
        other.close()
        assert len(broker.frames) == 2


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_is_resumed(authority: Authority, version: ssl.TLSVersion) -> None:
    own, trusting = files_of(authority.issue("gateway")), TlsFiles(authority.certificate)
    context = trusting.client_context()
    context.minimum_version = context.maximum_version = version
    async with FakeBroker(echo) as broker, native(broker, clients=own) as under_test:
        first = Bytewise(context)
        await first.connect(under_test.port)
        await first.asks(frame(1))
        second = Bytewise(context, first.tls.session)
        await second.connect(under_test.port)
        await second.asks(frame(2))
        assert second.tls.session_reused
        for client in (first, second):
            client.writer.close()


async def test_a_client_that_takes_no_answers_is_not_read(authority: Authority) -> None:
    own, trusting = files_of(authority.issue("gateway")), TlsFiles(authority.certificate)

    async def large(header: RequestHeader, request: bytes) -> bytes | None:
        return header.correlation_id.to_bytes(4, "big") + bytes(1_000_000)

    async with FakeBroker(large) as broker, native(broker, clients=own) as under_test:
        client = await under_test.connect(trusting.client_context())
        client.pause()
        for n in range(40):
            await client.send(frame(n))
        await broker.until_received(1)
        await lasts_async("it is not read", lambda: len(broker.frames) < 40, 0.2)
        client.resume()
        for n in range(40):
            answer = await client.receive()
            assert answer == n.to_bytes(4, "big") + bytes(1_000_000)
        client.close()


async def test_without_room_frames_that_are_half_read_are_finished_in_turn(
    authority: Authority,
) -> None:
    own, trusting = files_of(authority.issue("gateway")), TlsFiles(authority.certificate)
    release = asyncio.Event()
    context = trusting.client_context()
    async with (
        FakeBroker(held_until(release), own.server_context(ClientAuth.NONE)) as broker,
        native(broker, clients=own, brokers=trusting) as under_test,
    ):
        room = under_test.room
        room._max = 3_000_000
        room.changed()
        clients, sending = await crowd(under_test, 6, 2, context)
        late = await under_test.connect(context)  # hands are shaken all the same
        release.set()
        for client in clients:
            for n in range(2):
                assert (await client.receive())[:4] == n.to_bytes(4, "big")
        await asyncio.gather(*sending)
        for client in (*clients, late):
            client.close()
        await until(lambda: not len(under_test.connections))
        await until(lambda: room.left == 3_000_000)


async def test_two_hundred_clients_are_served(authority: Authority) -> None:
    own, trusting = files_of(authority.issue("gateway")), TlsFiles(authority.certificate)
    context = trusting.client_context()
    async with (
        FakeBroker(echo, own.server_context(ClientAuth.NONE)) as broker,
        native(broker, clients=own, brokers=trusting) as under_test,
    ):
        clients: list[Client] = []
        for _ in range(10):  # at once they would take the test's own loop too long
            made = await asyncio.gather(*(under_test.connect(context) for _ in range(20)))
            await asyncio.gather(*(asks(one, frame(1, body=os.urandom(1_000))) for one in made))
            clients += made
        assert len(under_test.connections) == 200
        for number, client in enumerate(clients):
            await asks(client, frame(number))
            client.close()
        await until(lambda: not len(under_test.connections))


async def test_without_an_openssl_that_can_be_used_no_gateway_starts(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would cost what nobody expects, if Python took over in silence."""
    monkeypatch.setattr(wire, "linked_to_openssl", lambda: None)
    own = files_of(authority.issue("gateway"))
    async with FakeBroker(echo) as broker:
        refused = f"ssl is built into Python, {sys.executable} with OpenSSL.*linked to OpenSSL's"
        with pytest.raises(LibraryMissing, match=refused):
            async with native(broker, clients=own):
                pass
        async with native(broker) as under_test:
            client = await under_test.connect(None)
            await asks(client, frame(1))
            client.close()


@pytest.mark.parametrize("auth", list(ClientAuth))
def test_the_rules_are_those_of_pythons_contexts(authority: Authority, auth: ClientAuth) -> None:
    files = files_of(authority.issue("gateway"), authority.certificate)
    for context in (files.server_context(auth), files.client_context()):
        rules = rules_of(context, files)
        assert bool(rules.is_server) is (context.protocol is ssl.PROTOCOL_TLS_SERVER)
        assert rules.verify == context.verify_mode
        assert rules.options == context.options | ssl.OP_NO_RENEGOTIATION
        assert rules.lowest == ssl.TLSVersion.TLSv1_2
        names = [str(cipher["name"]).encode() for cipher in context.get_ciphers()]
        assert rules.suites.split(b":") + rules.ciphers.split(b":")[1:] == names
        trusts = context.verify_mode is not ssl.CERT_NONE
        assert (rules.authorities is not None) is trusts
