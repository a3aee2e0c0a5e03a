"""A topic id is gone only by two whole looks at every broker; half an answer says nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.kafka.fake_cluster import FakeKafka, fake_kafka
from tideline.kafka import topic_identity
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.topic_identity import Presence, TopicIdentity


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_identity, "CAUGHT_UP_S", 0.1)
    monkeypatch.setattr(topic_identity, "BETWEEN_LOOKS_S", 0.0)


@pytest.fixture
async def kafka() -> AsyncIterator[FakeKafka]:
    async with fake_kafka() as found:
        yield found


async def test_an_id_that_no_broker_knows_is_gone_by_two_looks(kafka: FakeKafka) -> None:
    kafka.controller.create("orders")
    dead = kafka.controller.delete("orders")
    kafka.controller.create("orders")
    async with kafka.client() as cluster:
        found = await TopicIdentity(cluster).find(dead)
    assert found.presence is Presence.GONE
    assert [look.brokers for look in found.looks] == [(1, 2, 3), (1, 2, 3)]
    assert str(dead) in found.why


async def test_an_id_is_present_while_one_broker_knows_it(kafka: FakeKafka) -> None:
    """The others have started a moment ago and serve what they knew before."""
    topic_id = kafka.controller.create("orders")
    for node in kafka.nodes[:2]:
        node.frozen_at, node.claims_to_follow = 1, True
    async with kafka.client() as cluster:
        assert (await TopicIdentity(cluster).find(topic_id)).presence is Presence.PRESENT


async def test_a_broker_that_lags_is_not_believed(kafka: FakeKafka) -> None:
    topic_id = kafka.controller.create("orders")
    kafka.nodes[2].frozen_at = 1
    async with kafka.client() as cluster:
        found = await TopicIdentity(cluster).find(topic_id)
    assert found.presence is Presence.UNKNOWN
    assert "broker 3 has not fetched the metadata up to offset 2" in found.why


async def test_nothing_is_known_while_a_broker_does_not_answer(kafka: FakeKafka) -> None:
    kafka.controller.create("orders")
    dead = kafka.controller.delete("orders")
    kafka.nodes[1].silent = True
    async with kafka.client(timeout_ms=200) as cluster:
        found = await TopicIdentity(cluster, timeout_ms=200).find(dead)
    assert found.presence is Presence.UNKNOWN


async def test_partitions_are_counted_by_whoever_knows_most_and_not_by_one_that_lags(
    kafka: FakeKafka,
) -> None:
    topic_id = kafka.controller.create("orders")
    kafka.controller.grow("orders", 4)
    kafka.nodes[0].frozen_at, kafka.nodes[0].claims_to_follow = 2, True
    async with kafka.client() as cluster:
        assert await TopicIdentity(cluster).partitions(topic_id) == 4
        kafka.nodes[1].frozen_at = 2
        with pytest.raises(KafkaUnavailable, match="broker 2 has not fetched the metadata"):
            await TopicIdentity(cluster).partitions(topic_id)


async def test_a_refusal_to_say_is_no_answer(kafka: FakeKafka) -> None:
    dead = kafka.controller.create("orders")

    def refusing(request: Any) -> Any:
        answer = kafka.nodes[1]._MetadataRequest(request)
        return replace(
            answer,
            topics=tuple(
                replace(t, error_code=ErrorCode.topic_authorization_failed) for t in answer.topics
            ),
        )

    kafka.nodes[1].answers["MetadataRequest"] = refusing
    async with kafka.client() as cluster:
        identity = TopicIdentity(cluster)
        assert (await identity.find(dead)).presence is Presence.UNKNOWN
        assert await identity.ids_of(["orders", "other"]) == {"orders": dead, "other": None}


async def test_a_look_without_a_quorum_is_none(kafka: FakeKafka) -> None:
    def leaderless(request: Any) -> Any:
        answer = kafka.nodes[1]._DescribeQuorumRequest(request)
        (topic,) = answer.topics
        (log,) = topic.partitions
        return replace(
            answer,
            topics=(replace(topic, partitions=(replace(log, high_watermark=-1),)),),
        )

    for node in kafka.nodes:
        node.answers["DescribeQuorumRequest"] = leaderless
    async with kafka.client() as cluster:
        with pytest.raises(KafkaUnavailable, match="no leader"):
            await TopicIdentity(cluster).look([])
