"""What a client may not do with a tracked topic it is not served, whoever would answer it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest

from tests.asked import Places, request, told
from tests.raw import message
from tests.support.waiting import lasts_async, within
from tests.unit.gateway.fakes import (
    TOPIC,
    TOPIC_ID,
    record_batch,
    tracked_row,
    tracked_topic,
    until,
)
from tests.unit.gateway.gateway_under_test import gateway
from tests.unit.gateway.tracked_bench import (
    FakeConnection,
    KafkaLog,
    TrackedBench,
    acknowledging,
    allowing,
    fetch,
    fetched,
    leased,
    outcomes,
    produce,
    serving,
)
from tests.unit.kafka.fake_broker import FakeBroker, api_versions
from tideline.domain.answers import Asked
from tideline.domain.authorization import ALL_OPERATIONS, DENIED_FOR_S, NEEDED, Operation
from tideline.gateway import rights
from tideline.gateway.context import ApiKey, RequestContext, Rule
from tideline.gateway.messages import topic_key
from tideline.gateway.rights import ConnectionRights
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.protocol import RequestHeader, encode_request

ME = (TOPIC, 0)
SUFFIX = tracked_row(generation=2, boundary=100, boundary_epoch=7)
EMPTY = replace(SUFFIX, prefix_gone=True)
"""Nothing of it is Kafka's any more."""
BATCH = record_batch(2)
PLACES = Places(prefix=5, suffix=100, end=102, old_epoch=3, new_epoch=7)
OF_THE_SUFFIX = [
    Asked.PRODUCE,
    Asked.FETCH_SUFFIX,
    Asked.EARLIEST,
    Asked.LATEST,
    Asked.MAX_TIMESTAMP,
    Asked.BY_TIME,
    Asked.TIERED,
    Asked.EPOCH_PREFIX,
    Asked.EPOCH_SUFFIX,
    Asked.DELETE_SUFFIX,
]
OTHER_ID = UUID(int=0xDEF)
QUESTION = MetadataRequest(
    topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=True
)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TrackedBench]:
    async with leased(tmp_path) as made:
        made.client.broker[ApiKey.PRODUCE] = acknowledging(40)
        yield made


def without(operation: Operation) -> int:
    return ALL_OPERATIONS & ~(1 << operation)


def known(client: FakeConnection, topic: str = TOPIC) -> Any:
    return client.states[ConnectionRights].known.get(topic)


def age(client: FakeConnection, seconds: float, topic: str = TOPIC) -> None:
    """What the broker said was asked for so much earlier."""
    state: ConnectionRights = client.states[ConnectionRights]
    asked_at = state.known[topic].asked_at - seconds
    state.known[topic] = replace(state.known[topic], asked_at=asked_at)


@pytest.mark.parametrize("asked", OF_THE_SUFFIX)
async def test_who_lacks_the_right_is_answered_as_by_kafka(
    bench: TrackedBench, asked: Asked
) -> None:
    bench.show(EMPTY)
    message = request(asked, TOPIC, 0, PLACES, BATCH)
    bench.client.rights = allowing(without(NEEDED[int(message.__api_key__)]))
    answer = told(asked, await bench.ask(message))
    assert (answer.error, answer.offset) == ("TOPIC_AUTHORIZATION_FAILED", -1)
    assert not bench.plane.commits
    bench.client.rights = allowing()
    age(bench.client, DENIED_FOR_S)
    assert told(asked, await bench.ask(message)).error != "TOPIC_AUTHORIZATION_FAILED"


async def test_who_may_not_describe_a_topic_hears_nothing_else_of_it(bench: TrackedBench) -> None:
    """In no state of it: a hint that it is there, or migrates, would be one too many."""
    nobody = allowing(code=ErrorCode.topic_authorization_failed)
    for row in (tracked_row(), tracked_row(quiesced=True), SUFFIX, EMPTY):
        bench.show(row)
        for asked in OF_THE_SUFFIX:
            client = FakeConnection(rights=nobody)
            message = request(asked, TOPIC, 0, PLACES, BATCH)
            response = await bench.ask(message, client)
            assert told(asked, response).error == "TOPIC_AUTHORIZATION_FAILED"
            assert not client.forwarded


async def test_one_partition_without_the_right_leaves_the_others_of_its_request_alone(
    bench: TrackedBench,
) -> None:
    bench.plane.put(tracked_topic(replace(SUFFIX, topic_id=OTHER_ID), name="x", topic_id=OTHER_ID))
    bench.show(SUFFIX)

    def only_mine(message: Any) -> Any:
        answer = allowing()(message)
        topics = tuple(
            t if t.name == TOPIC else replace(t, topic_authorized_operations=0)
            for t in answer.topics
        )
        return replace(answer, topics=topics)

    bench.client.rights = only_mine
    response = await bench.ask(produce((TOPIC, 0, BATCH), ("x", 0, BATCH), ("classic", 0, BATCH)))
    assert outcomes(response) == {
        ME: ("none", 100),
        ("x", 0): ("topic_authorization_failed", -1),
        ("classic", 0): ("none", 40),
    }
    bench.client.broker[ApiKey.FETCH] = serving({})
    found = fetched(await bench.ask(fetch((TOPIC, 0, 100), ("x", 0, 100))))
    assert (found[ME].error, found[ME].offsets) == ("none", [100])
    assert (found["x", 0].error, found["x", 0].high_watermark) == ("topic_authorization_failed", -1)


async def test_the_broker_is_asked_once_for_all_topics_while_its_answer_holds(
    bench: TrackedBench,
) -> None:
    bench.plane.put(tracked_topic(replace(SUFFIX, topic_id=OTHER_ID), name="x", topic_id=OTHER_ID))
    bench.show(SUFFIX)
    for _ in range(3):
        await bench.ask(produce((TOPIC, 0, BATCH), ("x", 0, BATCH)))
    await bench.ask(fetch((TOPIC, 0, 100)))
    (question,) = bench.client.asked
    assert isinstance(question, MetadataRequest)
    assert [t.name for t in question.topics] in ([TOPIC, "x"], ["x", TOPIC])
    assert question.include_topic_authorized_operations
    assert not question.allow_auto_topic_creation
    other = FakeConnection()
    await bench.ask(produce((TOPIC, 0, BATCH)), other)
    assert len(other.asked) == 1, "what one client may do says nothing of another"


async def test_a_topic_that_is_named_by_its_id_is_refused_alike(bench: TrackedBench) -> None:
    """Kafka has an error of its own only for an id that no topic has."""
    bench.show(SUFFIX)
    bench.client.rights = allowing(0)
    rows = [{"partition": 0, "fetch_offset": 100, "partition_max_bytes": 1000}]
    answer = await bench.ask(
        message(
            "Fetch",
            17,
            max_wait=timedelta(0),
            min_bytes=1,
            max_bytes=1000,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[{"topic_id": TOPIC_ID, "partitions": rows}],
            forgotten_topics_data=[],
            rack_id="",
        )
    )
    ((row,),) = (topic.partitions for topic in answer.responses)
    assert row.error_code is ErrorCode.topic_authorization_failed
    assert row.high_watermark == row.last_stable_offset == row.log_start_offset == -1


async def test_classic_topics_cost_no_question(bench: TrackedBench) -> None:
    bench.show(SUFFIX)
    await bench.ask(produce(("classic", 0, BATCH)))
    assert not bench.client.asked


async def test_steady_traffic_does_not_wait_while_the_rights_are_asked_for_anew(
    bench: TrackedBench,
) -> None:
    """Kafka may hold the question for as long as a fetch of the same connection waits there."""
    bench.show(SUFFIX)
    await bench.ask(produce((TOPIC, 0, BATCH)))
    release = asyncio.Event()

    async def held(message: Any) -> Any:
        await release.wait()
        return allowing(without(Operation.WRITE))(message)

    bench.client.rights = held
    age(bench.client, 3.5)
    for offset in (102, 104, 106):
        answer = outcomes(await bench.ask(produce((TOPIC, 0, BATCH))))
        assert answer == {ME: ("none", offset)}
    assert len(bench.client.asked) == 2, "one question at a time"
    release.set()
    await until(lambda: known(bench.client).operations == without(Operation.WRITE))
    answer = outcomes(await bench.ask(produce((TOPIC, 0, BATCH))))
    assert answer == {ME: ("topic_authorization_failed", -1)}


async def test_a_right_that_has_run_out_is_waited_for_in_order(bench: TrackedBench) -> None:
    """What comes behind a produce that waits for its rights does not overtake it."""
    bench.show(SUFFIX)
    release = asyncio.Event()

    async def held(message: Any) -> Any:
        await release.wait()
        return allowing()(message)

    bench.client.rights = held
    asking = []
    for sequence in range(5):
        batch = record_batch(1, producer_id=1, epoch=0, sequence=sequence)
        asking.append(asyncio.create_task(bench.ask(produce((TOPIC, 0, batch)))))
        await asyncio.sleep(0)
    await lasts_async(
        "the rights are waited for", lambda: not any(task.done() for task in asking), 0.02
    )
    release.set()
    answers = [outcomes(response)[ME] for response in await asyncio.gather(*asking)]
    assert answers == [("none", 100 + n) for n in range(5)]
    assert len(bench.client.asked) == 1


async def test_a_topic_that_is_not_used_is_not_asked_for_for_ever(bench: TrackedBench) -> None:
    bench.plane.put(tracked_topic(replace(SUFFIX, topic_id=OTHER_ID), name="x", topic_id=OTHER_ID))
    bench.show(SUFFIX)
    await bench.ask(produce((TOPIC, 0, BATCH), ("x", 0, BATCH)))
    for _ in range(2):
        age(bench.client, 3.5)
        await bench.ask(produce((TOPIC, 0, BATCH)))
        await until(lambda: not bench.client.states[ConnectionRights].asking)
        if known(bench.client, "x") is not None:
            age(bench.client, 3.5, "x")
    assert [t.name for t in bench.client.asked[-1].topics] == [TOPIC]
    assert known(bench.client, "x") is None


async def test_while_the_broker_cannot_be_asked_nobody_is_served_and_all_try_again(
    bench: TrackedBench,
) -> None:
    bench.show(EMPTY)
    bench.client.rights = lambda _: KafkaUnavailable("gone")
    for asked in OF_THE_SUFFIX:
        message = request(asked, TOPIC, 0, PLACES, BATCH)
        assert told(asked, await bench.ask(message)).error == "NOT_LEADER_OR_FOLLOWER"
    assert not bench.plane.commits
    assert not bench.client.closed
    bench.client.rights = allowing()
    assert outcomes(await bench.ask(produce((TOPIC, 0, BATCH)))) == {ME: ("none", 100)}


async def test_a_broker_that_does_not_answer_is_waited_for_within_a_bound(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights, "PATIENCE_S", 0.05)
    bench.show(SUFFIX)
    release = asyncio.Event()

    async def held(message: Any) -> Any:
        await release.wait()
        return allowing()(message)

    bench.client.rights = held
    refused, behind = (record_batch(1, producer_id=1, epoch=0, sequence=n) for n in range(2))
    answer = outcomes(await bench.ask(produce((TOPIC, 0, refused))))
    assert answer == {ME: ("not_leader_or_follower", -1)}
    release.set()
    await until(lambda: known(bench.client))
    answer = outcomes(await bench.ask(produce((TOPIC, 0, behind))))
    assert answer[ME][0] != "none", "what was sent behind it waits until it has come again"
    assert outcomes(await bench.ask(produce((TOPIC, 0, refused)))) == {ME: ("none", 100)}


async def test_a_producer_without_an_answer_loses_its_connection(bench: TrackedBench) -> None:
    """As at a broker (``KafkaApis.handleProduceRequest``)."""
    bench.show(SUFFIX)
    bench.client.rights = allowing(without(Operation.WRITE))
    assert await bench.ask(produce((TOPIC, 0, BATCH), acks=0)) is None
    await until(lambda: bench.client.closed)
    assert not bench.plane.commits


async def test_a_topic_that_is_tracked_while_a_fetch_waits_is_judged_then(
    bench: TrackedBench,
) -> None:
    bench.plane.put(tracked_topic(replace(SUFFIX, topic_id=OTHER_ID), name="x", topic_id=OTHER_ID))
    bench.show()
    bench.plane.topics.rows.clear()
    bench.plane.put(tracked_topic(replace(SUFFIX, topic_id=OTHER_ID), name="x", topic_id=OTHER_ID))
    bench.parts.tracking.replace_all([t.tracked() for t in bench.plane.topics.rows])
    bench.client.broker[ApiKey.FETCH] = serving({ME: KafkaLog(high_watermark=100)})

    def not_mine(message: Any) -> Any:
        answer = allowing()(message)
        return replace(
            answer,
            topics=tuple(
                replace(t, topic_authorized_operations=0) if t.name == TOPIC else t
                for t in answer.topics
            ),
        )

    bench.client.rights = not_mine
    waiting = asyncio.create_task(
        bench.ask(fetch((TOPIC, 0, 100), ("x", 0, 100), max_wait_ms=3_000))
    )
    await until(lambda: bench.client.forwarded)
    bench.show(SUFFIX)
    found = fetched(await waiting)
    assert (found[ME].error, found[ME].offsets) == ("topic_authorization_failed", [])


async def test_what_is_remembered_of_a_client_is_bounded(
    bench: TrackedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights, "TOPICS_REMEMBERED", 1)
    bench.plane.put(tracked_topic(replace(SUFFIX, topic_id=OTHER_ID), name="x", topic_id=OTHER_ID))
    bench.show(SUFFIX)
    for _ in range(2):
        answer = outcomes(await bench.ask(produce((TOPIC, 0, BATCH), ("x", 0, BATCH))))
        assert {code for code, _ in answer.values()} == {"none"}
    assert len(bench.client.states[ConnectionRights].known) == 1


async def test_a_question_of_the_gateways_own_leaves_the_client_its_connection() -> None:
    """When the broker ends before it has answered. Its client is owed nothing, and hears by an
    error that it has to ask again."""
    heard = asyncio.Event()

    async def broker_answers(header: RequestHeader, frame: bytes) -> bytes | None:
        if header.api_key == ApiKey.METADATA:
            heard.set()
            return None
        return api_versions(header)

    async def handler(context: RequestContext) -> bytes | None:
        try:
            await context.ask(QUESTION)
        except KafkaUnavailable:
            return encode_request(QUESTION, context.header.correlation_id, "told")
        raise AssertionError("nobody has answered")

    rules = {int(ApiKey.LIST_OFFSETS): Rule(handler, lambda: True)}
    async with FakeBroker(broker_answers) as broker, gateway(broker, rules) as under_test:
        client = await under_test.connect()
        message = request(Asked.LATEST, TOPIC, 0, PLACES, b"")
        for _ in range(2):
            heard.clear()
            await client.send(encode_request(message, 5, "someone"))
            await within("the question at the broker", heard.wait())
            broker.hang_up()
            assert b"told" in await client.receive()
        client.close()


@pytest.mark.parametrize(
    "asked", [Asked.LATEST, Asked.EPOCH_SUFFIX, Asked.DELETE_SUFFIX], ids=lambda asked: asked.name
)
async def test_a_topic_that_crosses_while_the_rights_of_another_are_asked_is_not_kafkas(
    bench: TrackedBench, asked: Asked
) -> None:
    """Nothing of the request is forwarded yet, so the drain does not wait for it (schedule 9)."""
    bench.show(replace(EMPTY, topic_id=OTHER_ID), name="x", topic_id=OTHER_ID)
    names: list[set[str]] = []

    async def crosses(message: Any) -> Any:
        names.append({topic.name for topic in message.topics})
        if len(names) == 1:
            bench.show(EMPTY)
        return allowing()(message)

    bench.client.rights = crosses
    one = request(asked, "x", 0, PLACES, b"")
    (topic,) = one.topics
    kind = {"topic": TOPIC} if hasattr(topic, "topic") else {"name": TOPIC}
    answer = await bench.ask(replace(one, topics=(topic, replace(topic, **kind))))
    assert names == [{"x"}, {TOPIC}]
    assert all(t != TOPIC for m in bench.client.forwarded for t in map(topic_key, m.topics))
    codes = {topic_key(t): t.partitions[0].error_code for t in answer.topics}
    assert codes == {"x": ErrorCode.none, TOPIC: ErrorCode.none}
