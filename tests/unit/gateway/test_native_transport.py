"""What the library has of its own: a copy of what passing goes by, and the moments in which that
changes. What is seen of the transport from outside is in ``test_transport.py``."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.support.waiting import bounded, lasts_async, within
from tests.unit.gateway.fakes import TOPIC, TOPIC_ID, record_batch, tracked_row, until
from tests.unit.gateway.gateway_under_test import Client, Gateway, gateway
from tests.unit.gateway.test_transport import HEARTBEAT, counted, echo, frame
from tests.unit.gateway.tracked_bench import TrackedBench, fetch, leased, produce
from tests.unit.kafka.fake_broker import FakeBroker
from tests.unit.kafka.messages import random_message
from tests.unit.kafka.test_named_topics import VERSIONS, untagged
from tideline.domain.quotas import QuotaEntity, QuotaKind
from tideline.gateway.context import (
    ApiKey,
    FollowedSessions,
    RequestContext,
    Rule,
    Rules,
    always,
)
from tideline.gateway.fetch.handler import FetchHandler, FetchSessions
from tideline.gateway.listeners import Listeners
from tideline.gateway.passing import PassesByTopics, WhatPasses
from tideline.gateway.produce.handler import ProduceHandler, ProduceOrder
from tideline.gateway.transport import native
from tideline.gateway.transport.addresses import NodeAddresses, ResponseRewriter
from tideline.gateway.transport.dialling import AT_ONCE, Dialling
from tideline.gateway.transport.native import NativeConnection, treated
from tideline.kafka.protocol import RequestHeader, encode_request, parse_header, request_class
from tideline.kafka.wire import LIBRARY, LibraryMissing, Treatment, library


@dataclass
class Shown:
    """What a test says is tracked."""

    topics: set[str] = field(default_factory=set)
    changed: Listeners[[]] = field(default_factory=Listeners)

    def names(self) -> set[str]:
        return self.topics

    def ids(self) -> set[UUID]:
        return set()

    def are(self, *names: str) -> None:
        self.topics = set(names)
        self.changed()


def request_of(name: str, correlation: int, acks: int = -1) -> bytes:
    message = produce((name, 0, record_batch(1)), acks=acks, version=9)
    return encode_request(message, correlation, "c")


async def passed(header: RequestHeader, sent: bytes) -> bytes | None:
    if header.api_key == ApiKey.API_VERSIONS:
        return await echo(header, sent)
    return header.correlation_id.to_bytes(4, "big") + b"passed"


def looking(into: list[bytes]) -> Rules:
    """Produces that name what is tracked are looked into, and answered."""

    async def handler(ctx: RequestContext) -> bytes:
        into.append(ctx.frame)
        return ctx.header.correlation_id.to_bytes(4, "big")

    return {ApiKey.PRODUCE: Rule(handler, always, by_topics=always)}


async def shown(under_test: Gateway) -> Client:
    """A client that is no stranger any more: what it sends next may pass."""
    client = await under_test.connect()
    await client.send(frame(0))
    await client.receive()
    return client


async def test_what_passes_is_not_seen_by_python_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = await shown(under_test)
        before = counted("requests", path="passed", api="Heartbeat")
        seen: list[object] = []
        monkeypatch.setattr(NativeConnection, "_take", lambda *taken: seen.append(taken))
        await client.send(*(frame(n) for n in range(1, 30)))
        for n in range(1, 30):
            assert (await client.receive())[:4] == n.to_bytes(4, "big")
        assert seen == []
        await until(lambda: counted("requests", path="passed", api="Heartbeat") == before + 29)
        client.close()


async def test_a_topic_that_joins_is_pythons_from_that_step_on() -> None:
    into: list[bytes] = []
    topics = Shown({"tracked"})
    async with (
        FakeBroker(passed) as broker,
        gateway(broker, looking(into), passing=topics) as under_test,
    ):
        client = await shown(under_test)
        await client.send(request_of("classic", 1))
        assert (await client.receive()).endswith(b"passed")
        await client.send(request_of("tracked", 2))
        assert await client.receive() == b"\0\0\0\2"
        topics.are("classic")
        await client.send(request_of("classic", 3), request_of("tracked", 4))
        assert await client.receive() == b"\0\0\0\3"
        assert (await client.receive()).endswith(b"passed")
        client.close()
    assert into == [request_of("tracked", 2), request_of("classic", 3)]


async def test_without_word_of_what_is_tracked_every_rule_is_asked() -> None:
    into: list[bytes] = []
    async with FakeBroker(passed) as broker, gateway(broker, looking(into)) as under_test:
        client = await shown(under_test)
        await client.send(request_of("classic", 1))
        assert await client.receive() == b"\0\0\0\1"
        client.close()
    assert into == [request_of("classic", 1)]


async def test_no_frame_of_a_topic_comes_to_the_broker_behind_the_barrier_of_its_joining() -> None:
    """Clients write to it all the time, with and without acknowledgements."""
    arrived: list[tuple[str, int]] = []

    async def noting(header: RequestHeader, sent: bytes) -> bytes | None:
        arrived.append((header.client_id or "", header.api_key))
        if header.api_key != ApiKey.PRODUCE:
            return await echo(header, sent)
        return None if header.correlation_id % 2 else await passed(header, sent)

    into: list[bytes] = []
    topics = Shown()
    over = False

    async def writing(client: Client) -> None:
        number = 0
        while not over:
            await client.send(request_of("t", number, acks=-1), request_of("t", number + 1, acks=0))
            await client.receive()
            number += 2

    async with (
        FakeBroker(noting) as broker,
        gateway(broker, looking(into), passing=topics) as under_test,
    ):
        clients = [await shown(under_test) for _ in range(4)]
        at_work = [asyncio.ensure_future(writing(client)) for client in clients]
        for _ in range(5):
            topics.are("another")
            before = len(arrived)
            await until(lambda before=before: len(arrived) > before + 20)
            topics.are("t")
            await under_test.connections.drain()
            behind, seen = len(arrived), len(into)
            await until(lambda seen=seen: len(into) > seen + 20)
            assert not [key for _, key in arrived[behind:] if key == ApiKey.PRODUCE]
        over = True
        topics.are("another")
        await within("the last answers", asyncio.gather(*at_work))
        for client in clients:
            client.close()


async def test_a_produce_behind_one_that_python_has_is_pythons_too() -> None:
    release = asyncio.Event()
    began: list[int] = []

    async def handler(ctx: RequestContext) -> bytes:
        began.append(ctx.header.correlation_id)
        await release.wait()
        return ctx.header.correlation_id.to_bytes(4, "big")

    rules: Rules = {ApiKey.PRODUCE: Rule(handler, always, by_topics=always)}
    for first_of_all in (False, True):
        began.clear()
        release.clear()
        async with (
            FakeBroker(passed) as broker,
            gateway(broker, rules, passing=Shown({"tracked"})) as under_test,
        ):
            client = await (under_test.connect() if first_of_all else shown(under_test))
            await client.send(request_of("tracked", 1), request_of("classic", 2))
            await until(lambda: began == [1, 2])
            release.set()
            assert await client.receive() == b"\0\0\0\1"
            assert await client.receive() == b"\0\0\0\2"
            await client.send(request_of("classic", 3))
            assert (await client.receive()).endswith(b"passed")
            client.close()


@pytest.mark.parametrize("error", [OSError("the peer has left"), RuntimeError("a defect")])
@pytest.mark.parametrize("step", ["_connected", "keep_alive", "encrypt_to_brokers"])
async def test_a_connection_to_the_broker_that_cannot_be_opened_for_whatever_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    """The library would wait for it, and the client for its answer, without end."""

    def fails(*_: object) -> None:
        raise error

    owner = "NativeTransport." if step == "encrypt_to_brokers" else ""
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = await under_test.connect()
        await until(lambda: len(under_test.connections) == 1)
        monkeypatch.setattr(f"tideline.gateway.transport.native.{owner}{step}", fails)
        await client.send(frame(1))
        await client.disconnected()


async def test_of_clients_that_come_at_once_no_more_are_joined_to_the_broker_than_it_may_accept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel drops those beyond, and tries again a second later."""
    goes_on, opening, most = asyncio.Event(), 0, 0
    connected = native._connected

    async def slowly(host: str, port: int) -> socket.socket:
        nonlocal opening, most
        opening += 1
        most = max(most, opening)
        await goes_on.wait()
        try:
            return await connected(host, port)
        finally:
            opening -= 1

    monkeypatch.setattr(native, "_connected", slowly)
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        clients = [await under_test.connect() for _ in range(AT_ONCE + 20)]
        for number, client in enumerate(clients):
            await client.send(frame(number))
        await until(lambda: opening == AT_ONCE)
        goes_on.set()
        for client in clients:
            assert await client.receive()
            client.close()
    assert most == AT_ONCE


async def test_what_waits_for_the_broker_is_bounded_and_then_served_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests without an answer, which nothing else holds back."""
    goes_on = asyncio.Event()
    connected = native._connected

    async def slowly(host: str, port: int) -> socket.socket:
        await goes_on.wait()
        return await connected(host, port)

    monkeypatch.setattr(native, "_connected", slowly)
    monkeypatch.setattr(native, "CONNECT_TIMEOUT_S", 600.0)

    async def takes(header: RequestHeader, request: bytes) -> bytes | None:
        return None if header.api_key == ApiKey.PRODUCE else await echo(header, request)

    batch = record_batch(1, payload=bytes(100_000))
    message = produce(("classic", 0, batch), acks=0, version=9)
    async with FakeBroker(takes) as broker, gateway(broker) as under_test:
        client = await under_test.connect()
        sent = [encode_request(message, number, "c") for number in range(1, 301)]
        sending = asyncio.ensure_future(client.send(*sent))
        unsent = client.writer.transport.get_write_buffer_size
        await until(lambda: unsent() > 0)
        await lasts_async("the client is not read", lambda: unsent() > 5_000_000, 0.5)
        goes_on.set()
        await within("the rest", sending)
        await until(lambda: broker.frames[-1] == sent[-1])
        assert [each for each in broker.frames if each in sent] == sent
        client.close()


async def test_an_answer_that_cannot_be_dealt_with_ends_its_client_whatever_went_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody else would tell the client, which waits for this very answer."""

    def fails(*_: object) -> bytes:
        raise RuntimeError("a defect")

    monkeypatch.setattr(ResponseRewriter, "__call__", fails)
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = await under_test.connect()
        await client.send(frame(1, ApiKey.METADATA, 1))
        await client.disconnected()


async def test_a_broker_that_is_not_reached_keeps_no_place_of_another_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialling = Dialling()
    monkeypatch.setattr("tideline.gateway.transport.dialling.ACCEPTED_S", 0.0)
    for _ in range(AT_ONCE + 1):
        with pytest.raises(OSError, match="away"):
            async with bounded("a place"), dialling.turn(("broker", 1)):
                raise OSError("away")
    for _ in range(AT_ONCE + 1):
        async with bounded("a place"), dialling.turn(("broker", 1)):
            pass


async def test_a_barrier_is_not_reached_by_a_connection_that_the_library_does_not_know() -> None:
    """Its end is told next, and nothing of it counts as served before."""
    async with FakeBroker(echo) as broker, gateway(broker) as under_test:
        client = await shown(under_test)
        (connection,) = under_test.connections
        assert isinstance(connection, NativeConnection)
        known, connection.number = connection.number, 2**40
        barrier = asyncio.ensure_future(connection.drain_barrier())
        await asyncio.sleep(0)
        assert not barrier.done()
        connection.number = known
        client.close()
        await within("the barrier", barrier)


# -- the copy of what passing goes by


@asynccontextmanager
async def copied(directory: Path) -> AsyncIterator[tuple[TrackedBench, NativeConnection]]:
    """Real handlers, and a connection of theirs in the library."""
    async with leased(directory) as bench:
        passing = WhatPasses(bench.parts.tracking, bench.parts.quotas)
        async with (
            FakeBroker(echo) as broker,
            gateway(broker, bench.rules, passing=passing) as under_test,
        ):
            client = await shown(under_test)
            (connection,) = under_test.connections
            assert isinstance(connection, NativeConnection)
            yield bench, connection
            client.close()


POOL = (TOPIC, "classic", "other", "gone")
IDS = {TOPIC: TOPIC_ID, "classic": UUID(int=0xC1), "other": UUID(int=5), "gone": UUID(int=0xDEAD)}
KEYS = (*POOL, *IDS.values(), None)


def any_request(rng: random.Random) -> Any:
    """Of the APIs that are walked, often a Fetch that goes on with a session."""
    if rng.random() < 0.5:
        wanted = [(name, 0, 0) for name in rng.sample(POOL, rng.randrange(3))]
        return fetch(*wanted, session=(rng.randrange(4), rng.choice([-1, 0, 1, 2])))
    if rng.random() < 0.4:
        return produce((rng.choice(POOL), 0, record_batch(1)), acks=rng.choice([-1, 0, 1]))
    schema: Any = request_class(*rng.choice(VERSIONS))
    return untagged(random_message(schema, rng))


def something_changes(rng: random.Random, bench: TrackedBench, sessions: FetchSessions) -> None:
    """One step of those that change what passes."""
    tracking, quotas = bench.parts.tracking, bench.parts.quotas
    number = rng.randrange(1, 4)
    classic = {key for key in KEYS if tracking.is_classic(key)}
    keys = {key for key in classic if rng.random() < 0.4}
    steps: list[Callable[[], object]] = [
        lambda: bench.show(tracked_row(generation=1)),
        lambda: tracking.replace_all([]),
        lambda: tracking.replace_named([TOPIC], []),
        lambda: tracking.bury([IDS["gone"]]),
        lambda: tracking.replace_named(
            [TOPIC], [row.tracked() for row in bench.plane.topics.rows if row.name == TOPIC]
        ),
        lambda: sessions.opened(number, keys, tracking.version),
        lambda: sessions.opened(number, {rng.choice(KEYS)}, 0),  # before a topic joined
        lambda: sessions.may_continue(number, keys, tracking),
        lambda: sessions.ended(number),
    ]
    kind = rng.choice([QuotaKind.FETCH, QuotaKind.PRODUCE, QuotaKind.REQUEST])

    def quota() -> None:
        found = {} if quotas.has(kind) else {QuotaEntity("u", None): 1.0}
        quotas.quotas = {**quotas.quotas, kind: found}
        quotas.changed()

    rng.choice([*steps, quota])()


@pytest.mark.parametrize("seed", range(6))
async def test_what_passes_in_the_library_passes_by_the_rules_after_whatever_has_changed(
    tmp_path: Path, seed: int
) -> None:
    """At every moment. What the library gives to Python may pass there all the same, if it adds
    topics to a session, or is of an API whose answers Python looks into."""
    rng = random.Random(seed)
    told = {True: 0, False: 0}
    async with copied(tmp_path) as (bench, connection):
        sessions = connection.state(FetchSessions)
        assert isinstance(sessions, FollowedSessions)
        for _ in range(400):
            something_changes(rng, bench, sessions)
            for _ in range(3):
                request = any_request(rng)
                raw = encode_request(request, 5, "a client")
                key = int(request.__api_key__)
                rule = bench.rules[key]
                native = connection._wire.passes(connection.number, raw)
                known = sessions.is_classic(getattr(request, "session_id", 0), bench.parts.tracking)
                python = not rule.is_due() or rule.passes(parse_header(raw), raw, connection)
                told[native] += 1
                if native:
                    assert python, request
                elif python and key == ApiKey.FETCH:
                    assert known, request
                    assert request.topics, request
    assert min(told.values()) > 50


class Spied:
    """Notes what is asked of something, and gives what ``knows`` says."""

    def __init__(self, name: str, asked: set[str], knows: Any) -> None:
        self._spied = name, asked, knows

    def __getattr__(self, attribute: str) -> Any:
        name, asked, knows = self._spied
        asked.add(f"{name}.{attribute}")
        return getattr(knows, attribute)


REASONS = {
    "tracking.is_classic",  # Passing.names, Passing.ids
    "tracking.version",  # of a session's topics: asked only whether to look at them anew
    "quotas.has",  # Rule.by_topics
    "connection.FetchSessions",  # FollowedSessions
    "connection.ProduceOrder",  # any Produce behind one that Python has is Python's
}
"""All that the rules which say ``by_topics`` go by, and how the library has it."""


def test_a_rule_that_passes_by_topics_goes_by_nothing_that_the_library_does_not_know() -> None:
    """Who lets a handler look at something else has to tell the library of it, too: in
    :class:`~tideline.gateway.context.Passing`, or by ``by_topics``, which is asked again whenever
    that changes. Then it belongs to :data:`REASONS`."""
    asked: set[str] = set()
    tracking = SimpleNamespace(
        is_classic=lambda key: True, version=1, has_topics=lambda: True, lease=None
    )
    quotas = SimpleNamespace(has=lambda kind: False)
    parts = {"tracking": tracking, "quotas": quotas}
    states: dict[type[Any], Any] = {}

    class Connection:
        def state(self, kind: type[Any]) -> Any:
            asked.add(f"connection.{kind.__name__}")
            return states.setdefault(kind, kind())

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"passes looks at the connection's {name}")

    def spied(kind: type[Any]) -> Any:
        made = object.__new__(kind)
        for each in fields(kind):
            knows = parts.get(each.name, SimpleNamespace())
            object.__setattr__(made, each.name, Spied(each.name, asked, knows))
        return made

    rng = random.Random(1)
    by_topics = PassesByTopics(Spied("tracking", asked, tracking))  # type: ignore[arg-type]
    asked_of = {
        ApiKey.PRODUCE: spied(ProduceHandler).passes,
        ApiKey.FETCH: spied(FetchHandler).passes,
        ApiKey.LIST_OFFSETS: by_topics,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: by_topics,
    }
    connection: Any = Connection()
    states[FetchSessions] = FetchSessions()
    states[FetchSessions].opened(1, {"classic"}, 0)
    assert set(asked_of) == {0, 1, 2, 23}
    for key, passes in asked_of.items():
        requests = [untagged(random_message(request_class(key, 4), rng)) for _ in range(30)]
        if key == ApiKey.FETCH:
            requests += [fetch(("classic", 0, 0), session=(1, n)) for n in range(3)]
        for request in requests:
            raw = encode_request(request, 1, "c")
            passes(parse_header(raw), raw, connection)
    assert asked <= REASONS, asked - REASONS
    assert "quotas.has" in asked
    assert f"connection.{ProduceOrder.__name__}" in asked


async def test_only_rules_that_were_looked_at_above_say_by_topics(tmp_path: Path) -> None:
    async with leased(tmp_path) as bench:
        saying = {key for key, rule in bench.rules.items() if rule.by_topics is not None}
    assert saying == {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
    }


async def test_an_api_with_a_rule_that_says_nothing_is_pythons_also_while_it_is_not_due(
    tmp_path: Path,
) -> None:
    async with leased(tmp_path) as bench:
        rewriter = ResponseRewriter(NodeAddresses({}), bench.rules)
        found = treated(bench.rules, rewriter)
        assert not bench.rules[ApiKey.DELETE_TOPICS].is_due()
        assert found[ApiKey.DELETE_TOPICS].treatment is Treatment.PYTHON
        assert found[ApiKey.PRODUCE].treatment is Treatment.PASS
        assert found[HEARTBEAT].treatment is Treatment.PASS
        bench.show(tracked_row(generation=1))
        assert treated(bench.rules, rewriter)[ApiKey.PRODUCE].treatment is Treatment.PASS_BY_TOPICS
        for key in (*rewriter.rewritten - {0, 1}, 17, 36):
            assert found[key].treatment is Treatment.PYTHON
            assert found[key].looks or key in (17, 36)


def test_a_library_that_is_not_there_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LIBRARY.exists()
    monkeypatch.setattr("tideline.kafka.wire.LIBRARY", tmp_path / "none.so")
    library.cache_clear()
    with pytest.raises(LibraryMissing, match=r"none\.so.*make setup.*wheel"):
        library()
