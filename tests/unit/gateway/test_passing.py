"""What passes while topics are tracked is what its handler would have forwarded as it came."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.gateway.fakes import TOPIC, TOPIC_ID, record_batch, tracked_row, until
from tests.unit.gateway.gateway_under_test import gateway
from tests.unit.gateway.tracked_bench import (
    FakeConnection,
    KafkaLog,
    TrackedBench,
    fetch,
    leased,
    produce,
    serving,
)
from tests.unit.kafka.fake_broker import FakeBroker, api_versions
from tests.unit.kafka.messages import random_message
from tests.unit.kafka.test_named_topics import ARRAYS, VERSIONS, keys_of, untagged
from tideline.control_plane.model import TrackedPartition
from tideline.domain.request_handling import RouteKind
from tideline.gateway.context import ApiKey, RequestContext
from tideline.gateway.fetch.handler import FetchSessions
from tideline.gateway.messages import messages
from tideline.gateway.passing import WhatPasses
from tideline.gateway.produce.handler import ProduceOrder
from tideline.kafka.protocol import (
    RequestHeader,
    decode_request,
    encode_request,
    parse_header,
    request_class,
)

CLASSIC_ID = UUID(int=0xC1A551C)
PENDING = tracked_row(generation=1)
SUFFIX = tracked_row(generation=2, boundary=100, boundary_epoch=7)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        yield made


def passes(bench: TrackedBench, request: Any, client: FakeConnection | None = None) -> bool:
    frame = encode_request(request, 5, "a client")
    rule = bench.rules[int(request.__api_key__)]
    return rule.passes(parse_header(frame), frame, client or bench.client)


def of_topics(request: Any, keys: list[tuple[str, UUID]]) -> Any:
    """The request with these topics, its rows and all else being its own."""
    array = ARRAYS[int(request.__api_key__)]
    topics = []
    for number, (name, topic_id) in enumerate(keys):
        topic = getattr(request, array)[number]
        here = {field.name for field in fields(topic)}
        named = {"name": name, "topic": name, "topic_id": topic_id}
        topics.append(replace(topic, **{n: value for n, value in named.items() if n in here}))
    return replace(request, **{array: tuple(topics)})


@pytest.mark.parametrize(("key", "version"), VERSIONS)
async def test_a_request_passes_if_it_names_classic_topics_alone(
    bench: TrackedBench, key: int, version: int
) -> None:
    """Random requests over every mixture of tracked, deleted and classic topics."""
    bench.show(PENDING)
    dead = UUID(int=0xDEAD)
    bench.parts.tracking.bury([dead])
    pool = [(TOPIC, TOPIC_ID), ("gone", dead), ("classic", CLASSIC_ID), ("other", UUID(int=5))]
    schema: Any = request_class(key, version)
    rng = random.Random(version)
    seen = set()
    for _ in range(60):
        request = untagged(random_message(schema, rng))
        if not getattr(request, ARRAYS[key]):
            continue
        if key == ApiKey.FETCH and hasattr(request, "session_id"):
            request = replace(request, session_id=0, session_epoch=-1)
        size = len(getattr(request, ARRAYS[key]))
        request = of_topics(request, [rng.choice(pool) for _ in range(size)])
        tracking = bench.parts.tracking
        classic = all(map(tracking.is_classic, keys_of(request, key)))
        assert passes(bench, request) is classic, request
        seen.add(classic)
    assert seen == {True, False}


@pytest.mark.parametrize("version", [9, 13])
async def test_what_passes_of_produces_is_what_the_handler_forwards_as_it_came(
    bench: TrackedBench, version: int
) -> None:
    bench.show(SUFFIX)
    api = messages(ApiKey.PRODUCE, version)
    pool = [(TOPIC, TOPIC_ID), ("classic", CLASSIC_ID), ("other", UUID(int=5))]
    rng = random.Random(1)
    for _ in range(40):
        named = [rng.choice(pool) for _ in range(rng.randrange(4))]
        acks = rng.choice([-1, 0, 1])
        rows = (api.request_part("PartitionProduceData", index=0, records=record_batch(1)),)
        request = produce(acks=acks, version=version)
        topics = tuple(
            api.request_part("TopicProduceData", name=name, topic_id=id_, partition_data=rows)
            for name, id_ in named
        )
        request = replace(request, topic_data=topics)
        client = FakeConnection()
        frame = encode_request(request, 5, "a client")
        context = RequestContext(parse_header(frame), frame, client)
        expected = passes(bench, request, client)
        task = asyncio.ensure_future(bench.rules[ApiKey.PRODUCE].handler(context))
        await asyncio.sleep(0)
        assert (client.frames == [frame]) is expected
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_topic_that_joins_does_not_pass_from_that_moment_on(bench: TrackedBench) -> None:
    bench.show(tracked_row(topic_id=UUID(int=9)), name="another", topic_id=UUID(int=9))
    request = produce((TOPIC, 0, record_batch(1)))
    assert passes(bench, request)
    bench.show(PENDING)
    assert not passes(bench, request)


async def test_a_topic_without_an_id_yet_does_not_pass(bench: TrackedBench) -> None:
    bench.show(name="unborn", topic_id=None)
    assert not passes(bench, produce(("unborn", 0, record_batch(1))))
    assert not passes(bench, fetch(("unborn", 0, 5)))


async def test_a_produce_behind_one_that_waits_for_its_turn_does_not_pass(
    bench: TrackedBench,
) -> None:
    """The one before may have records for the same classic partition."""
    bench.show(PENDING)
    request = produce(("classic", 0, record_batch(1)))
    assert passes(bench, request)
    order = bench.client.state(ProduceOrder)
    await order.turn.acquire()
    both = produce((TOPIC, 0, record_batch(1)), ("classic", 0, record_batch(1)))
    waiting = asyncio.ensure_future(bench.ask(both))
    await until(lambda: order.waiting)
    assert not passes(bench, request)
    order.turn.release()
    assert not order.turn.locked(), "its next holder has not been told yet"
    assert not passes(bench, request)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert passes(bench, request)


@pytest.mark.parametrize(
    ("session", "passing"),
    [((0, -1), True), ((0, 0), False), ((7, -1), False), ((7, 0), False), ((7, 1), False),
     ((0, 1), False), ((0, -2), False)],
)  # fmt: skip
async def test_a_fetch_that_has_to_do_with_a_session_that_nobody_knows_is_looked_into(
    bench: TrackedBench, session: tuple[int, int], passing: bool
) -> None:
    bench.show(SUFFIX)
    assert passes(bench, fetch(("classic", 0, 5), session=session)) is passing


async def test_a_session_of_kafkas_goes_on_until_one_of_its_topics_is_tracked(
    bench: TrackedBench,
) -> None:
    bench.show(tracked_row(topic_id=UUID(int=9)), name="another", topic_id=UUID(int=9))
    log = KafkaLog(record_batch(1), 1)
    bench.client.broker[ApiKey.FETCH] = serving({("classic", 0): log, (TOPIC, 0): log}, 77)
    await bench.ask(fetch(("classic", 0, 0), session=(0, 0)))
    assert passes(bench, fetch(session=(77, 1)))
    assert passes(bench, fetch((TOPIC, 0, 0), session=(77, 2))), "a topic that it adds is its own"
    bench.show(PENDING)
    assert not passes(bench, fetch(session=(77, 3)))
    assert 77 in bench.client.state(FetchSessions), "its end is the handler's to make"
    told = await bench.ask(fetch(session=(77, 3)))
    assert told.error_code is ErrorCode.fetch_session_id_not_found


async def test_a_session_of_the_gateways_does_not_pass(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    opened = await bench.ask(fetch((TOPIC, 0, 100), session=(0, 0)))
    assert opened.session_id
    assert not passes(bench, fetch(session=(opened.session_id, 1)))
    assert not passes(bench, fetch(("classic", 0, 0), session=(opened.session_id, 1)))


async def test_metadata_passes_only_while_no_name_is_hidden(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    api = messages(ApiKey.METADATA, 12)
    topic = api.request_part("MetadataRequestTopic", topic_id=None, name="classic")
    values = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    request = api.request(topics=(topic,), **values)
    assert passes(bench, request)
    for everything in ((), None):
        assert not passes(bench, api.request(topics=everything, **values))
    bench.parts.tracking.displace({TOPIC_ID})
    assert not passes(bench, request)


@pytest.mark.parametrize("row", [PENDING, SUFFIX])
async def test_through_sockets_a_classic_request_passes_and_a_tracked_one_does_not(
    bench: TrackedBench, row: TrackedPartition
) -> None:
    bench.show(row)
    route = bench.parts.tracking.partition(TOPIC_ID, 0).kind
    assert route in (RouteKind.PENDING, RouteKind.SUFFIX)
    looked_into: list[bytes] = []
    rule = bench.rules[ApiKey.PRODUCE]

    async def looking(context: RequestContext) -> bytes | None:
        looked_into.append(context.frame)
        return context.respond(api.response(responses=()))

    async def answer(header: RequestHeader, frame: bytes) -> bytes | None:
        if header.api_key == ApiKey.API_VERSIONS:
            return api_versions(header)
        assert [t.name for t in decode_request(frame).topic_data] == ["classic"]  # type: ignore[attr-defined]
        return header.correlation_id.to_bytes(4, "big") + b"\0" + b"passed"

    api = messages(ApiKey.PRODUCE, 9)
    classic = encode_request(produce(("classic", 0, record_batch(1))), 1, "c")
    tracked = encode_request(produce((TOPIC, 0, record_batch(1))), 2, "c")
    rules = {ApiKey.PRODUCE: replace(rule, handler=looking)}
    passing = WhatPasses(bench.parts.tracking, bench.parts.quotas)
    async with FakeBroker(answer) as broker, gateway(broker, rules, passing=passing) as under_test:
        client = await under_test.connect()
        await client.send(classic)
        assert (await client.receive()).endswith(b"passed")
        await client.send(tracked, classic)
        await client.receive()
        assert (await client.receive()).endswith(b"passed")
        client.close()
    assert looked_into == [tracked]
