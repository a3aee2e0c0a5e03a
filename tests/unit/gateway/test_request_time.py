"""Who exceeds Kafka's quota of request time with what a gateway does for him is throttled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.asked import Places, request
from tests.unit.gateway.fakes import TOPIC, record_batch, tracked_row
from tests.unit.gateway.tracked_bench import (
    FakeConnection,
    TrackedBench,
    acknowledging,
    fetch,
    fetched,
    leased,
    outcomes,
    produce,
)
from tideline.domain.answers import Asked
from tideline.domain.quotas import Default, QuotaEntity, QuotaKind, QuotaWindow
from tideline.domain.sasl import Identity, Mechanism
from tideline.gateway import context as contexts
from tideline.gateway.context import ApiKey, RequestContext, Rule
from tideline.gateway.fetch import tracked_fetch
from tideline.gateway.messages import messages
from tideline.gateway.produce import examination
from tideline.gateway.request_time import Steps, metered
from tideline.kafka.protocol import decode_response, encode_request, parse_header

ME = (TOPIC, 0)
SUFFIX = tracked_row(generation=2, boundary=100, boundary_epoch=7)
BATCH = record_batch(1, payload=b"x" * 1_000)
EVERYBODY = QuotaEntity(None, Default.NAME)
OF_ALICE = QuotaEntity("alice", None)
NEARLY_NOTHING = 1e-9
"""Percent: whatever is done exceeds it."""
A_SECOND = timedelta(seconds=1)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        made.client.broker[ApiKey.PRODUCE] = acknowledging(40)
        made.show(SUFFIX)
        yield made


def limit(bench: TrackedBench, percent: float, entity: QuotaEntity = EVERYBODY) -> None:
    bench.parts.quotas.quotas = {QuotaKind.REQUEST: {entity: percent}}


async def test_every_kind_of_answer_says_so_and_the_client_is_not_read_for_as_long(
    bench: TrackedBench,
) -> None:
    limit(bench, NEARLY_NOTHING)
    produced = await bench.ask(produce((TOPIC, 0, BATCH)))
    assert outcomes(produced) == {ME: ("none", 100)}, "it was taken all the same (KIP-219)"
    read = await bench.ask(fetch((TOPIC, 0, 100)))
    assert fetched(read)[ME].offsets == [100]
    looked = await bench.ask(request(Asked.LATEST, TOPIC, 0, Places(100, 100, 100, 100, 0), b""))
    told = [each.throttle_time for each in (produced, read, looked)]
    assert told == [A_SECOND] * 3, "one sample of the window at most, as in Kafka"
    assert bench.client.muted_s == [1.0] * 3


async def test_who_stays_within_the_quota_is_never_throttled(bench: TrackedBench) -> None:
    limit(bench, 100)
    for _ in range(20):
        assert (await bench.ask(produce((TOPIC, 0, BATCH)))).throttle_time == timedelta(0)
    assert not bench.client.muted_s


async def test_a_producer_without_answers_is_not_read_either(bench: TrackedBench) -> None:
    limit(bench, NEARLY_NOTHING)
    assert await bench.ask(produce((TOPIC, 0, BATCH), acks=0)) is None
    assert bench.client.muted_s


async def test_it_is_shared_by_the_connections_of_a_user_and_by_nobody_else(
    bench: TrackedBench,
) -> None:
    limit(bench, NEARLY_NOTHING, OF_ALICE)
    alice, other = FakeConnection(identity=Identity(Mechanism.PLAIN, "alice")), FakeConnection()
    for client in (other, alice):
        await bench.ask(produce((TOPIC, 0, BATCH)), client)
    assert (len(alice.muted_s), len(other.muted_s)) == (1, 0)


async def test_a_longer_time_that_the_broker_tells_stays(bench: TrackedBench) -> None:
    limit(bench, NEARLY_NOTHING)

    def slow(asked: Any) -> Any:
        answer: Any = acknowledging(40)(asked)
        api = messages(ApiKey.PRODUCE, int(asked.__version__))
        return api.response(responses=answer.responses, throttle_time=timedelta(seconds=7))

    bench.client.broker[ApiKey.PRODUCE] = slow
    told = await bench.ask(produce(("classic", 0, BATCH)))
    assert told.throttle_time == timedelta(seconds=7)


async def test_requests_that_pass_are_the_brokers_to_count(bench: TrackedBench) -> None:
    limit(bench, NEARLY_NOTHING)
    frame = encode_request(produce(("classic", 0, BATCH)), 5, "a client")
    assert bench.rules[ApiKey.PRODUCE].passes(parse_header(frame), frame, bench.client)


async def test_an_answer_without_a_place_for_it_stays_as_it_is() -> None:
    """ListOffsets 1; its client is not read all the same."""
    api = messages(ApiKey.LIST_OFFSETS, 1)
    client, answer = FakeConnection(), api.response(topics=())
    quotas: Any = TimeQuotas()

    async def handler(context: RequestContext) -> bytes | None:
        return context.respond(answer)

    rules = metered({int(ApiKey.LIST_OFFSETS): Rule(handler, lambda: True)}, quotas)
    frame = encode_request(api.request(replica_id=-1, topics=()), 5, "a client")
    told = await rules[ApiKey.LIST_OFFSETS].handler(
        RequestContext(parse_header(frame), frame, client)
    )
    assert told is not None
    assert decode_response(told, ApiKey.LIST_OFFSETS, 1) == answer
    assert client.muted_s == [1.0]


class TimeQuotas:
    """Whatever is recorded exceeds it."""

    def __init__(self) -> None:
        self.recorded: list[float] = []

    def has(self, kind: QuotaKind) -> bool:
        return kind is QuotaKind.REQUEST

    def record(self, kind: QuotaKind, context: RequestContext, used: float) -> float:
        self.recorded.append(used)
        return 1.0

    def throttle(self, kind: QuotaKind, context: RequestContext, seconds: float) -> None:
        context.connection.mute(seconds)


def a_request(handler: Any) -> tuple[Any, RequestContext, TimeQuotas]:
    quotas: Any = TimeQuotas()
    rules = metered({int(ApiKey.PRODUCE): Rule(handler, lambda: True)}, quotas)
    frame = encode_request(produce((TOPIC, 0, BATCH)), 5, "a client")
    context = RequestContext(parse_header(frame), frame, FakeConnection())
    return rules[ApiKey.PRODUCE].handler, context, quotas


def busy(seconds: float) -> None:
    """Has the thread for so long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_what_counts_is_the_cpu_of_its_own_steps_and_no_waiting() -> None:
    async def handler(context: RequestContext) -> bytes | None:
        busy(0.02)
        other = asyncio.get_running_loop().run_in_executor(None, threading.Event().wait, 0.2)
        await asyncio.sleep(0)
        busy(0.03)
        await other
        return None

    metering, context, quotas = a_request(handler)

    async def others() -> None:
        for _ in range(5):
            busy(0.02)
            await asyncio.sleep(0)

    await asyncio.gather(metering(context), others())
    (percent,) = quotas.recorded
    assert 5.0 <= percent < 9.0, "0.05 s of 100 %"


async def test_decoding_beside_the_loop_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = contexts.decode_request

    def slow(*arguments: Any) -> Any:
        busy(0.03)
        return decode(*arguments)

    monkeypatch.setattr(contexts, "decode_request", slow)

    async def handler(context: RequestContext) -> bytes | None:
        return None

    metering, context, quotas = a_request(handler)
    await context.decode()
    await metering(context)
    assert quotas.recorded[0] >= 3.0


async def test_a_long_answer_that_is_made_beside_the_loop_counts_too(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_structure = tracked_fetch.as_structure

    def slow(*arguments: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        busy(0.03)
        return as_structure(*arguments)

    monkeypatch.setattr(tracked_fetch, "as_structure", slow)
    monkeypatch.setattr(tracked_fetch, "AT_ONCE_PARTITIONS", 0)
    quotas: Any = TimeQuotas()
    frame = encode_request(fetch((TOPIC, 0, 100)), 5, "a client")
    context = RequestContext(parse_header(frame), frame, FakeConnection())
    rules = metered({int(ApiKey.FETCH): bench.rules[ApiKey.FETCH]}, quotas)
    assert await rules[ApiKey.FETCH].handler(context) is not None
    assert quotas.recorded[0] >= 3.0


async def test_a_large_batch_that_is_read_beside_the_loop_counts_too(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated = examination.validated

    def slow(*arguments: Any, **named: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        busy(0.03)
        return validated(*arguments, **named)

    monkeypatch.setattr(examination, "validated", slow)
    quotas: Any = TimeQuotas()
    large = produce((TOPIC, 0, record_batch(examination.AT_ONCE_RECORDS + 1)))
    frame = encode_request(large, 5, "a client")
    context = RequestContext(parse_header(frame), frame, FakeConnection())
    rules = metered({int(ApiKey.PRODUCE): bench.rules[ApiKey.PRODUCE]}, quotas)
    assert await rules[ApiKey.PRODUCE].handler(context) is not None
    assert quotas.recorded[0] >= 3.0


async def test_a_look_into_batches_before_the_handler_begins_counts_too(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transport asks first whether the request is long, and that looks."""
    looked_produce = contexts.looked_produce

    def slow(*arguments: Any) -> Any:
        busy(0.03)
        return looked_produce(*arguments)

    monkeypatch.setattr(contexts, "looked_produce", slow)
    quotas: Any = TimeQuotas()
    frame = encode_request(produce((TOPIC, 0, BATCH)), 5, "a client")
    context = RequestContext(parse_header(frame), frame, FakeConnection())
    assert not context.is_long()
    rules = metered({int(ApiKey.PRODUCE): bench.rules[ApiKey.PRODUCE]}, quotas)
    assert await rules[ApiKey.PRODUCE].handler(context) is not None
    assert quotas.recorded[0] >= 3.0


async def test_the_time_of_one_whose_client_has_left_counts() -> None:
    begun = asyncio.Event()

    async def handler(context: RequestContext) -> bytes | None:
        busy(0.02)
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            busy(0.01)
        return None

    metering, context, quotas = a_request(handler)
    task = asyncio.ensure_future(metering(context))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert quotas.recorded[0] >= 3.0


async def test_what_a_handler_raises_is_raised() -> None:
    async def fails() -> bytes | None:
        await asyncio.sleep(0)
        raise ValueError("so")

    with pytest.raises(ValueError, match="so"):
        await Steps(fails())


def test_nobody_is_throttled_for_longer_than_a_sample_for_time() -> None:
    window = QuotaWindow(samples=11, sample_s=2.0)
    assert window.longest_throttle_s(QuotaKind.REQUEST) == 2.0
    assert window.longest_throttle_s(QuotaKind.PRODUCE) == float("inf")
