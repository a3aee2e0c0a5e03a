"""Who exceeds a quota of Kafka's with what it sends to, or reads of, the suffix is throttled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.describe_client_quotas.v1.response import (
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import f64

from tests.asked import Places, request
from tests.support.waiting import bounded
from tests.unit.gateway.fakes import TOPIC, HeldSleep, record_batch, tracked_row, until
from tests.unit.gateway.gateway_under_test import gateway
from tests.unit.gateway.tracked_bench import (
    FakeConnection,
    KafkaLog,
    TrackedBench,
    acknowledging,
    fetch,
    fetched,
    leased,
    outcomes,
    produce,
    serving,
)
from tests.unit.kafka.fake_broker import FakeBroker, nothing_but_versions
from tideline.domain.answers import Asked
from tideline.domain.quotas import Default, QuotaEntity, QuotaKind, QuotaWindow
from tideline.domain.sasl import Identity, Mechanism
from tideline.gateway import quotas as quotas_module
from tideline.gateway.context import ApiKey, RequestContext, Rule
from tideline.gateway.messages import no_throttle
from tideline.gateway.quotas import ClientQuotas, quotas_of
from tideline.gateway.transport import server
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.protocol import encode_request

ME = (TOPIC, 0)
SUFFIX = tracked_row(generation=2, boundary=100, boundary_epoch=7)
BATCH = record_batch(1, payload=b"x" * 10_000)
EVERYBODY = QuotaEntity(None, Default.NAME)
OF_ALICE = QuotaEntity("alice", None)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        made.client.broker[ApiKey.PRODUCE] = acknowledging(40)
        made.show(SUFFIX)
        yield made


def limit(bench: TrackedBench, kind: QuotaKind, bound: float, entity: QuotaEntity) -> None:
    bench.parts.quotas.quotas = {kind: {entity: bound}}


async def test_a_producer_above_its_quota_is_told_so_and_not_read_for_as_long(
    bench: TrackedBench,
) -> None:
    limit(bench, QuotaKind.PRODUCE, 1_500, EVERYBODY)
    first = await bench.ask(produce((TOPIC, 0, BATCH)))
    assert first.throttle_time == timedelta(0)
    second = await bench.ask(produce((TOPIC, 0, BATCH)))
    assert outcomes(second) == {ME: ("none", 101)}, "it was taken all the same (KIP-219)"
    (muted_s,) = bench.client.muted_s
    assert 1.5 < muted_s < 3.5, "what is left of it when the second is answered"
    assert second.throttle_time == pytest.approx(timedelta(seconds=muted_s), abs=timedelta(0, 0.01))


async def test_a_consumer_above_its_quota_is_told_so_and_not_read_for_as_long(
    bench: TrackedBench,
) -> None:
    for _ in range(3):
        await bench.ask(produce((TOPIC, 0, BATCH)))
    limit(bench, QuotaKind.FETCH, 1_500, EVERYBODY)
    first = await bench.ask(fetch((TOPIC, 0, 100)))
    assert fetched(first)[ME].offsets == [100], "no more than the window lets through at once"
    assert first.throttle_time == timedelta(0)
    second = await bench.ask(fetch((TOPIC, 0, 101)))
    assert fetched(second)[ME].offsets == [101]
    assert second.throttle_time > timedelta(seconds=1.5)
    assert len(bench.client.muted_s) == 1


async def test_a_consumer_is_charged_what_it_is_sent_of_all_that_was_found(
    bench: TrackedBench,
) -> None:
    bench.show(SUFFIX, tracked_row(1, boundary=100, boundary_epoch=7))
    for partition in (0, 1):
        await bench.ask(produce((TOPIC, partition, BATCH)))
    limit(bench, QuotaKind.FETCH, 1_500, EVERYBODY)
    answer = await bench.ask(fetch((TOPIC, 0, 100), (TOPIC, 1, 100)))
    assert [row.offsets for row in fetched(answer).values()] == [[100], []]
    assert answer.throttle_time == timedelta(0)


async def test_kafka_is_asked_for_no_more_than_the_quota_lets_through_at_once(
    bench: TrackedBench,
) -> None:
    """As a broker takes no more for one answer: what the suffix may have of it is known."""
    bench.client.broker[ApiKey.FETCH] = serving({ME: KafkaLog(b"", 100)})
    limit(bench, QuotaKind.FETCH, 1_500, EVERYBODY)
    await bench.ask(fetch((TOPIC, 0, 90)))
    most = int(1_500 * bench.parts.quotas.window.most_s)
    assert [int(asked.max_bytes) for asked in bench.client.forwarded] == [most]


async def test_bytes_of_classic_topics_count_and_the_broker_throttles_for_them(
    bench: TrackedBench,
) -> None:
    limit(bench, QuotaKind.PRODUCE, 1_500, EVERYBODY)
    for _ in range(2):
        await bench.ask(produce(("classic", 0, BATCH)))
    assert not bench.client.muted_s
    assert (await bench.ask(produce((TOPIC, 0, BATCH)))).throttle_time > timedelta(0)


async def test_a_quota_is_shared_by_the_connections_of_its_user_and_by_no_other(
    bench: TrackedBench,
) -> None:
    limit(bench, QuotaKind.PRODUCE, 1_500, OF_ALICE)
    alice = Identity(Mechanism.PLAIN, "alice")
    alices, others = [FakeConnection(identity=alice) for _ in range(2)], FakeConnection()
    for client in (*alices, others, others):
        await bench.ask(produce((TOPIC, 0, BATCH)), client)
    assert [len(client.muted_s) for client in (*alices, others)] == [0, 1, 0]


async def test_of_a_user_whose_name_kafka_alone_knows_quotas_of_client_ids_hold(
    bench: TrackedBench,
) -> None:
    by_token = FakeConnection(identity=Identity(Mechanism.OAUTHBEARER))
    limit(bench, QuotaKind.PRODUCE, 500, QuotaEntity(Default.NAME, None))
    await bench.ask(produce((TOPIC, 0, BATCH)), by_token)
    assert not by_token.muted_s
    limit(bench, QuotaKind.PRODUCE, 500, QuotaEntity(None, Default.NAME))
    await bench.ask(produce((TOPIC, 0, BATCH)), by_token)
    assert by_token.muted_s


async def test_a_producer_without_answers_is_not_read_either(bench: TrackedBench) -> None:
    limit(bench, QuotaKind.PRODUCE, 500, EVERYBODY)
    await bench.ask(produce((TOPIC, 0, BATCH), acks=0))
    assert bench.client.muted_s


def entry(values: dict[str, float], **entity: str | None) -> EntryData:
    return EntryData(
        entity=tuple(
            EntityData(entity_type=kind.replace("_", "-"), entity_name=name)
            for kind, name in entity.items()
        ),
        values=tuple(ValueData(key=key, value=f64(value)) for key, value in values.items()),
    )


def test_kafkas_answer_becomes_quotas_by_kind_and_entity() -> None:
    found = quotas_of(
        (
            entry({"producer_byte_rate": 1.0, "request_percentage": 5.0}, user="alice"),
            entry({"consumer_byte_rate": 2.0}, user=None, client_id="c"),
            entry({"connection_creation_rate": 3.0}, ip=None),
        )
    )
    assert found == {
        QuotaKind.PRODUCE: {OF_ALICE: 1.0},
        QuotaKind.FETCH: {QuotaEntity(Default.NAME, "c"): 2.0},
        QuotaKind.REQUEST: {OF_ALICE: 5.0},
    }


class Cluster:
    """What a broker says when it is asked for quotas, and for its window."""

    def __init__(self) -> None:
        self.down = False
        self.rate = 7.0
        self.number = "3"

    async def node(self, node: int) -> Cluster:
        return self

    async def send(self, message: Any, timeout_ms: int = 0) -> Any:
        if self.down:
            raise KafkaUnavailable("gone")
        if isinstance(message, DescribeClientQuotasRequest):
            return DescribeClientQuotasResponse(
                throttle_time=no_throttle(),
                error_code=ErrorCode.none,
                error_message=None,
                entries=(entry({"producer_byte_rate": self.rate}, client_id=None),),
            )
        configs = {"quota.window.num": self.number, "quota.window.size.seconds": "2"}
        rows = tuple(SimpleNamespace(name=n, value=v) for n, v in configs.items())
        result = SimpleNamespace(error_code=ErrorCode.none, configs=rows)
        return SimpleNamespace(results=(result,))


async def test_quotas_and_their_window_are_the_brokers_and_stay_while_it_is_away() -> None:
    cluster: Any = Cluster()
    quotas = ClientQuotas(cluster, 1)
    await quotas.look()
    assert quotas.quotas[QuotaKind.PRODUCE] == {EVERYBODY: 7.0}
    assert quotas.window == QuotaWindow(3, 2.0)
    cluster.down = True
    await quotas.look()
    assert quotas.quotas[QuotaKind.PRODUCE] == {EVERYBODY: 7.0}


async def test_a_quota_that_changes_is_known_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleep = HeldSleep()
    waited, goes_on = sleep.waited, sleep.goes_on
    cluster: Any = Cluster()
    quotas = ClientQuotas(cluster, 1)
    monkeypatch.setattr(quotas_module, "asyncio", SimpleNamespace(sleep=sleep))
    following = asyncio.create_task(quotas._follow())
    await until(lambda: waited == [10.0])
    cluster.rate = 3.0
    assert quotas.quotas[QuotaKind.PRODUCE] == {EVERYBODY: 7.0}
    goes_on.release()
    await until(lambda: waited == [10.0, 10.0])
    assert quotas.quotas[QuotaKind.PRODUCE] == {EVERYBODY: 3.0}
    following.cancel()


async def test_a_muted_client_is_answered_what_it_has_asked_and_begins_nothing_new() -> None:
    """As Kafka mutes a channel: what is throttled is what comes next."""
    began: list[float] = []

    async def handler(context: RequestContext) -> bytes | None:
        began.append(asyncio.get_running_loop().time())
        if len(began) == 1:
            context.connection.mute(0.3)
            context.connection.mute(0.1)  # a shorter one changes nothing
        return context.frame[4:8] + b"done"

    rules = {int(ApiKey.LIST_OFFSETS): Rule(handler, lambda: True)}
    asked = request(Asked.LATEST, TOPIC, 0, Places(0, 0, 0, 0, 0), b"")
    async with FakeBroker(nothing_but_versions) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        await client.send(encode_request(asked, 1, "c"), encode_request(asked, 2, "c"))
        assert (await client.receive())[4:] == b"done"
        assert (await client.receive())[4:] == b"done"
        assert began[1] - began[0] >= 0.29
        client.close()


async def test_what_a_muted_client_has_sent_is_not_held_for_longer_than_a_client_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody reads it, so that nobody sees it go; its requests would hold the room of all, and be
    begun long after it has sent them anew elsewhere."""
    monkeypatch.setattr(server, "SWEEP_S", 0.05)
    monkeypatch.setattr(server, "HELD_MUTED_S", 0.3)
    began: list[int] = []

    async def handler(context: RequestContext) -> bytes | None:
        began.append(context.header.correlation_id)
        context.connection.mute(3_600)
        return context.frame[4:8] + b"done"

    rules = {int(ApiKey.LIST_OFFSETS): Rule(handler, lambda: True)}
    asked = request(Asked.LATEST, TOPIC, 0, Places(0, 0, 0, 0, 0), b"")
    async with FakeBroker(nothing_but_versions) as broker, gateway(broker, rules) as under_test:
        patient, pipelining, half = [await under_test.connect() for _ in range(3)]
        await patient.send(encode_request(asked, 1, "c"))
        await pipelining.send(encode_request(asked, 2, "c"), encode_request(asked, 3, "c"))
        first = encode_request(asked, 4, "c")
        half.writer.write(len(first).to_bytes(4, "big") + first + (1_000_000).to_bytes(4, "big"))
        half.writer.write(bytes(20_000))
        for client in (patient, pipelining, half):
            assert (await client.receive())[4:] == b"done"
        await pipelining.disconnected()
        await half.disconnected()
        assert sorted(began) == [1, 2, 4]
        await until(lambda: len(under_test.connections) == 1)
        patient.close()


async def test_a_muted_client_is_answered_when_its_gateway_stops() -> None:
    """What it has sent is not waited for in vain: a stop would take its whole patience for it."""
    began: list[int] = []

    async def handler(context: RequestContext) -> bytes | None:
        began.append(context.header.correlation_id)
        context.connection.mute(3_600)
        return context.frame[4:8] + b"done"

    rules = {int(ApiKey.LIST_OFFSETS): Rule(handler, lambda: True)}
    asked = request(Asked.LATEST, TOPIC, 0, Places(0, 0, 0, 0, 0), b"")
    async with FakeBroker(nothing_but_versions) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        await client.send(*(encode_request(asked, n, "c") for n in (1, 2, 3)))
        assert (await client.receive())[4:] == b"done"
        async with bounded("the end of the stop"):
            stopping = asyncio.ensure_future(under_test.server.stop(60))
            assert [(await client.receive())[3] for _ in range(2)] == [2, 3]
            client.close()
            await stopping
        assert began == [1, 2, 3]
