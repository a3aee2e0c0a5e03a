"""The simulation's transport does what the product's does to the same bytes of a client and the
same broker, to the byte; and the product's does the same encrypted."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.asyncio_transport import AsyncioTransport
from tests.unit.gateway.fakes import record_batch
from tests.unit.gateway.gateway_under_test import Client, gateway
from tests.unit.gateway.test_native_transport import Shown
from tests.unit.gateway.test_transport import frame
from tests.unit.gateway.tracked_bench import fetch, produce
from tests.unit.kafka.fake_broker import FakeBroker, api_versions
from tideline.domain.security import ClientAuth
from tideline.gateway.context import ApiKey, ClientConnection, RequestContext, Rule, Rules, always
from tideline.gateway.messages import messages
from tideline.gateway.transport.native import NativeTransport
from tideline.gateway.transport.serving import MakesTransport
from tideline.kafka.named_topics import named_topics
from tideline.kafka.protocol import (
    RequestHeader,
    encode_request,
    encode_response,
    parse_header,
    produce_acks,
)
from tideline.kafka.tls import TlsFiles
from tideline.stack.certificates import Authority

TOPICS = ("a", "b", "c")
LAST = 999_999
"""Correlation id of the request by which it is seen that all before it were dealt with."""


@dataclass
class Script:
    """What a client sends, in pieces, and when the tracked topics become others: between two
    pieces, once everything before was answered (else who is faster decides what is right)."""

    tracked: list[tuple[str, ...]]
    pieces: list[list[bytes]]
    """Of each stretch between two changes."""
    corrupt: bool
    """The last stretch ends with something that is no request."""


@dataclass
class Seen:
    """By those outside."""

    by_client: list[bytes] = field(default_factory=list)
    by_broker: list[bytes] = field(default_factory=list)
    handled: list[bytes] = field(default_factory=list)


def any_frame(rng: random.Random, correlation: int) -> bytes:
    """A request of one of many kinds."""
    client_id = rng.choice(["c", None, "diskless_az=z", "x" * 300])
    names = [(rng.choice(TOPICS), n, record_batch(1)) for n in range(rng.randrange(1, 3))]
    kinds: list[Any] = [
        produce(*names, acks=rng.choice([-1, 1]), version=9),
        produce(*names, acks=0, version=9),
        fetch(*((name, 0, 5) for name, _, _ in names)),
        fetch(session=(rng.randrange(2), rng.choice([0, 1]))),
        _metadata(rng),
        None,
    ]
    message = rng.choice(kinds)
    if message is None:
        size = rng.choice([0, 3, 2_000, 20_000, 70_000, 400_000])
        key, version = rng.choice([(12, 0), (11, 3), (18, 0), (18, 99), (8, 2)])
        most = {18: 0, 11: 900}.get(key, size)  # of a longer one it is found that it is nonsense
        return frame(correlation, key, version, rng.randbytes(min(size, most)))
    return encode_request(message, correlation, client_id)


def _metadata(rng: random.Random) -> Any:
    api = messages(ApiKey.METADATA, 12)
    topic = api.request_part("MetadataRequestTopic", topic_id=None, name=rng.choice(TOPICS))
    values = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    return api.request(topics=(topic,), **values)


def script(rng: random.Random) -> Script:
    stretches, tracked = [], []
    correlation = 0
    last = rng.randrange(1, 4)
    corrupt = rng.random() < 0.4
    for number in range(last):
        tracked.append(tuple(rng.sample(TOPICS, rng.randrange(3))))
        raw = b""
        for _ in range(rng.randrange(1, 25)):
            one = any_frame(rng, correlation)
            raw += len(one).to_bytes(4, "big") + one
            correlation += 1
        ending = frame(LAST)
        if corrupt and number == last - 1:
            ending = rng.choice([b"\0\3\0\x63" + bytes(8), b"x", b"\0\xfa\0\0\0\0\0\1\0\1c"])
        raw += len(ending).to_bytes(4, "big") + ending
        cuts = sorted(rng.randrange(len(raw)) for _ in range(rng.randrange(8)))
        stretches.append(
            [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b]
        )
    return Script(tracked, stretches, corrupt)


async def answered(header: RequestHeader, sent: bytes) -> bytes | None:
    """A broker that answers by what it was sent alone."""
    if header.api_key == ApiKey.API_VERSIONS:
        return api_versions(header)
    rng = random.Random(sent)
    if header.api_key == ApiKey.METADATA:
        api = messages(ApiKey.METADATA, 12)
        broker = api.response_part(
            "MetadataResponseBroker", node_id=1, host="a-broker", port=9, rack=None
        )
        message = api.response(
            throttle_time=timedelta(0), brokers=(broker,), cluster_id=None, controller_id=1,
            topics=(),
        )  # fmt: skip
        return encode_response(message, header.correlation_id)
    if header.api_key == ApiKey.PRODUCE:
        return None if produce_acks(sent, header) == 0 else _head(header) + rng.randbytes(20)
    return _head(header) + rng.randbytes(rng.choice([0, 10, 5_000, 100_000]))


def _head(header: RequestHeader) -> bytes:
    return header.correlation_id.to_bytes(4, "big")


def rules_of(topics: Shown, seen: Seen) -> Rules:
    """What names something tracked is looked into: answered at once, or after the broker."""

    def passes(header: RequestHeader, request: bytes, connection: ClientConnection) -> bool:
        named = named_topics(request, header)
        if named is None or (named.session_id, named.session_epoch) != (0, -1):
            return False
        return not any(key in topics.names() for key in named.keys)

    async def handler(ctx: RequestContext) -> bytes | None:
        seen.handled.append(ctx.frame)
        if ctx.header.api_key == ApiKey.PRODUCE and produce_acks(ctx.frame, ctx.header) == 0:
            ctx.connection.forward_unanswered(ctx.frame)
            return None
        if ctx.header.correlation_id % 3 == 0:
            return _head(ctx.header) + b"handled"
        answer = await ctx.forward()
        if ctx.header.correlation_id % 3 == 1:
            await asyncio.sleep(0)
        return answer

    by_topics = Rule(handler, always, passes, by_topics=always)
    return {ApiKey.PRODUCE: by_topics, ApiKey.FETCH: by_topics, 11: Rule(handler, always)}


@dataclass(frozen=True)
class Encryption:
    """Of both sides: settings of a gateway, and what its broker and its clients use."""

    settings: dict[str, str] = field(default_factory=dict)
    broker: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None

    @classmethod
    def by(cls, authority: Authority) -> Encryption:
        pair = authority.issue("gateway")
        settings = {
            "gateway_security_protocol": "SSL",
            "gateway_ssl_certificate_file": str(pair.certificate),
            "gateway_ssl_key_file": str(pair.key),
            "kafka_security_protocol": "SSL",
            "kafka_ssl_ca_file": str(authority.certificate),
        }
        own = TlsFiles(None, pair.certificate, pair.key).server_context(ClientAuth.NONE)
        return cls(settings, own, TlsFiles(authority.certificate).client_context())


PLAIN = Encryption()


async def played(
    script: Script, transport: MakesTransport = NativeTransport, tls: Encryption = PLAIN
) -> Seen:
    seen, topics = Seen(), Shown()
    rules = rules_of(topics, seen)
    async with (
        FakeBroker(answered, tls.broker) as broker,
        gateway(
            broker, rules, passing=topics, makes_transport=transport, **tls.settings
        ) as under_test,
    ):
        probes = len(broker.frames)
        client = await under_test.connect(tls.client)
        for names, pieces in zip(script.tracked, script.pieces, strict=True):
            topics.are(*names)
            reading = asyncio.ensure_future(_read(client, seen.by_client))
            with contextlib.suppress(ConnectionError, RuntimeError):  # nonsense has ended it
                for piece in pieces:
                    client.writer.write(piece)
                    await client.writer.drain()
                    await asyncio.sleep(0)
            await reading
        client.close()
        await under_test.connections.drain()
        seen.by_broker = [
            sent
            for sent in broker.frames[probes:]
            if parse_header(sent).client_id != "tideline-gateway-probe"
        ]
    return seen


async def _read(client: Client, answers: list[bytes]) -> None:
    """Until everything is answered, or the connection ends."""
    while True:
        try:
            answers.append(await client.receive())
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            return
        if answers[-1][:4] == LAST.to_bytes(4, "big"):
            return


@pytest.mark.parametrize("seed", range(8))
async def test_the_same_bytes_cut_anywhere_come_to_the_same(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        made = script(rng)
        came_to_the_same(made, await played(made, AsyncioTransport), await played(made))


@pytest.mark.parametrize("seed", range(8))
async def test_they_come_to_the_same_encrypted_on_both_sides(seed: int, tmp_path: Path) -> None:
    tls = Encryption.by(Authority.load_or_create(tmp_path))
    made = script(random.Random(seed))
    plain, encrypted = await played(made), await played(made, tls=tls)
    for seen in (plain, encrypted):  # the last one's barrier, if its client had not left before
        seen.by_broker = [
            sent for sent in seen.by_broker if parse_header(sent).client_id != "tideline-gateway"
        ]
    came_to_the_same(made, plain, encrypted)


def came_to_the_same(made: Script, first: Seen, second: Seen) -> None:
    pairs = [(first.by_client, second.by_client), (first.by_broker, second.by_broker)]
    for one, other in pairs:
        # What is on its way when nonsense comes is cut off by either, whoever it is for.
        most = min(len(one), len(other)) if made.corrupt else max(len(one), len(other))
        assert one[:most] == other[:most]
    assert first.handled == second.handled
