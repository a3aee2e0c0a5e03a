"""Our own connections to brokers: pipelined, bounded in time, and honest about failure."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from tests.unit.kafka.fake_broker import FakeBroker, api_versions, nothing_but_versions
from tideline.gateway.messages import no_throttle
from tideline.kafka import client, decoding
from tideline.kafka.client import KafkaCluster, KafkaConnection
from tideline.kafka.errors import KafkaError, KafkaUnavailable, UnsupportedVersion
from tideline.kafka.protocol import RequestHeader, encode_response


def request(topic: str = "t") -> MetadataRequest:
    return MetadataRequest(
        topics=(MetadataRequestTopic(topic_id=None, name=TopicName(topic)),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def metadata(brokers: dict[int, tuple[str, int]], leader: int = 1) -> MetadataResponse:
    return MetadataResponse(
        throttle_time=no_throttle(),
        brokers=tuple(
            MetadataResponseBroker(node_id=BrokerId(n), host=h, port=i32(p), rack=None)
            for n, (h, p) in brokers.items()
        ),
        cluster_id="c",
        controller_id=BrokerId(1),
        topics=(
            MetadataResponseTopic(
                error_code=ErrorCode.none,
                name=TopicName("t"),
                topic_id=None,
                is_internal=False,
                partitions=(
                    MetadataResponsePartition(
                        error_code=ErrorCode.none,
                        partition_index=i32(0),
                        leader_id=BrokerId(leader),
                        offline_replicas=(),
                    ),
                ),
            ),
        ),
    )


async def test_requests_are_pipelined_and_each_gets_its_own_answer() -> None:
    release = asyncio.Event()

    async def answer(header: RequestHeader, frame: bytes) -> bytes:
        if header.api_key == 18:
            return api_versions(header)
        await release.wait()
        return encode_response(metadata({header.correlation_id: ("h", 1)}), header.correlation_id)

    async with FakeBroker(answer) as broker:
        connection = await KafkaConnection.open(*broker.address)
        sent = [asyncio.create_task(connection.send(request())) for _ in range(20)]
        await broker.until_received(2)
        release.set()
        answers: list[Any] = await asyncio.gather(*sent)
        assert [a.brokers[0].node_id for a in answers] == list(range(2, 22))
        connection.close()


async def test_a_lost_connection_fails_everything_that_is_pending() -> None:
    async with FakeBroker(nothing_but_versions) as broker:
        connection = await KafkaConnection.open(*broker.address)
        sent = [asyncio.create_task(connection.send(request())) for _ in range(3)]
        await broker.until_received(4)
        broker.hang_up()
        for failure in await asyncio.gather(*sent, return_exceptions=True):
            assert isinstance(failure, KafkaUnavailable)
        assert connection.is_closed
        with pytest.raises(KafkaUnavailable):
            await connection.send(request())


async def test_a_broker_that_does_not_answer_is_given_up() -> None:
    async with FakeBroker(nothing_but_versions) as broker:
        connection = await KafkaConnection.open(*broker.address)
        with pytest.raises(KafkaUnavailable, match="no answer within 50 ms"):
            await connection.send(request(), timeout_ms=50)
        assert connection.is_closed


async def test_nobody_listening_is_said_with_the_address() -> None:
    with pytest.raises(KafkaUnavailable, match=r"127\.0\.0\.1:1"):
        await KafkaConnection.open("127.0.0.1", 1, timeout_ms=500)


async def test_a_version_that_the_broker_does_not_know_is_not_sent() -> None:
    async with FakeBroker(nothing_but_versions) as broker:
        connection = await KafkaConnection.open(*broker.address)
        connection.versions = {3: range(12)}
        with pytest.raises(UnsupportedVersion, match="version 12"):
            await connection.send(request())
        assert connection.versions[3][-1] == 11
        connection.close()


async def test_an_answer_to_another_request_ends_the_connection() -> None:
    async def answer(header: RequestHeader, frame: bytes) -> bytes:
        if header.api_key == 18:
            return api_versions(header)
        return encode_response(metadata({1: ("h", 1)}), header.correlation_id + 1)

    async with FakeBroker(answer) as broker:
        connection = await KafkaConnection.open(*broker.address)
        with pytest.raises(KafkaUnavailable, match="something else"):
            await connection.send(request())


async def test_a_cluster_finds_brokers_and_leaders_and_dials_again() -> None:
    async with FakeBroker(nothing_but_versions) as broker:

        async def answer(header: RequestHeader, frame: bytes) -> bytes:
            if header.api_key == 18:
                return api_versions(header)
            found = metadata({1: broker.address, 2: ("127.0.0.1", 1)})
            return encode_response(found, header.correlation_id)

        broker._answer = answer
        async with KafkaCluster([("127.0.0.1", 1), broker.address], timeout_ms=60_000) as cluster:
            first = await cluster.node(1)
            assert await cluster.node(1) is first
            assert await cluster.leader("t", 0) is first
            assert sorted(await cluster.nodes()) == [1, 2]
            with pytest.raises(KafkaUnavailable, match="broker 9 is not in the cluster"):
                await cluster.node(9)
            with pytest.raises(KafkaUnavailable):
                await cluster.node(2)
            with pytest.raises(KafkaError):
                await cluster.leader("t", 5)
            broker.hang_up()
            await first.closed
            again = await cluster.node(1)
            assert again is not first
            assert not again.is_closed


async def test_a_broker_that_comes_back_with_other_versions_is_asked_in_those() -> None:
    """It was upgraded, then taken back to the release before."""
    api, newest = client.DESCRIBE_CLUSTER, client.OF_FENCED_BROKERS
    highest: dict[int, int] = {}

    async def answer(header: RequestHeader, frame: bytes) -> bytes:
        if header.api_key == 18:
            return api_versions(header, highest=highest)
        return encode_response(metadata({1: broker.address}), header.correlation_id)

    async with FakeBroker(answer) as broker, KafkaCluster([broker.address]) as cluster:
        for known in (newest - 1, newest, newest - 1):
            highest[api] = known
            connection = await cluster.node(1)
            assert connection.supports(api, newest) is (known == newest)
            await broker.stop()
            await connection.closed
            await broker.start_again()


async def test_a_broker_that_comes_back_at_another_address_is_dialled_there() -> None:
    async def answer(header: RequestHeader, frame: bytes) -> bytes:
        if header.api_key == 18:
            return api_versions(header)
        found = metadata({1: steady.address, 2: second.address})
        return encode_response(found, header.correlation_id)

    async with (
        FakeBroker(answer) as steady,
        FakeBroker(answer) as before,
        FakeBroker(answer) as after,
        KafkaCluster([steady.address]) as cluster,
    ):
        second = before
        connection = await cluster.node(2)
        assert connection.address == before.address
        await before.stop()
        await connection.closed
        second = after
        assert (await cluster.node(2)).address == after.address


async def test_a_leader_is_asked_for_anew_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders: list[int] = []
    now = 100.0

    async def find(self: KafkaCluster, topic: str, partition: int) -> int:
        leaders.append(len(leaders) + 1)
        return leaders[-1]

    monkeypatch.setattr(KafkaCluster, "_find_leader", find)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    cluster = KafkaCluster([("127.0.0.1", 1)])
    assert await cluster.leader_id("t", 0) == 1
    now = 100.9
    assert await cluster.leader_id("t", 0) == 1
    now = 101.0
    assert await cluster.leader_id("t", 0) == 2


async def test_what_is_asked_apart_holds_nothing_else_up_and_takes_nothing_else_along() -> None:
    async with FakeBroker(nothing_but_versions) as broker:

        async def answer(header: RequestHeader, frame: bytes) -> bytes | None:
            if header.api_key == 18:
                return api_versions(header)
            if header.client_id == "t" and b"slow" in frame:
                return None
            return encode_response(metadata({1: broker.address}), header.correlation_id)

        broker._answer = answer
        async with KafkaCluster([broker.address], client_id="t", timeout_ms=60_000) as cluster:
            apart = await cluster.node(1, apart=True)
            asked = asyncio.create_task(apart.send(request("slow"), timeout_ms=2_000))
            beside = await cluster.node(1)
            assert beside is not apart
            assert await cluster.any() is not apart
            assert await cluster.node(1, apart=True) is apart
            await beside.send(request())
            with pytest.raises(KafkaUnavailable, match="no answer within 2000 ms"):
                await asked
            assert apart.is_closed
            assert not beside.is_closed


async def test_a_question_that_was_never_sent_takes_no_other_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "MAX_IN_FLIGHT", 1)
    async with FakeBroker(nothing_but_versions) as broker:
        connection = await KafkaConnection.open(*broker.address)
        first = asyncio.create_task(connection.send(request(), timeout_ms=60_000))
        await broker.until_received(2)
        with pytest.raises(KafkaUnavailable, match="no answer within 50 ms"):
            await connection.send(request(), timeout_ms=50)
        assert not connection.is_closed
        connection.close()
        await asyncio.gather(first, return_exceptions=True)


async def test_a_large_answer_is_decoded_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The metadata of 20,000 partitions held a gateway up for hundreds of milliseconds."""
    threads: list[bool] = []
    decode = decoding.decode_response

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return decode(*arguments)

    monkeypatch.setattr(decoding, "decode_response", noted)
    brokers = {n: ("x" * 1000, n) for n in range(1, 101)}

    async def answer(header: RequestHeader, frame: bytes) -> bytes:
        if header.api_key == 18:
            return api_versions(header)
        some = brokers if len(threads) > 1 else {1: ("h", 1)}
        return encode_response(metadata(some), header.correlation_id)

    async with FakeBroker(answer) as broker:
        connection = await KafkaConnection.open(*broker.address)
        for expected in (1, 100):
            found = await connection.send(request())
            assert isinstance(found, MetadataResponse)
            assert len(found.brokers) == expected
        connection.close()
    assert threads == [True, True, False]


async def test_brokers_of_another_cluster_are_believed_nothing() -> None:
    """Of the topics that are known here they have none: their word would be that all are gone."""
    clusters = ["c", "another", "another", "c"]

    async def answer(header: RequestHeader, frame: bytes) -> bytes:
        if header.api_key == 18:
            return api_versions(header)
        told = replace(metadata({1: broker.address}), cluster_id=clusters.pop(0))
        return encode_response(told, header.correlation_id)

    async with FakeBroker(answer) as broker, KafkaCluster([broker.address]) as cluster:
        assert await cluster.nodes()
        for _ in range(2):
            with pytest.raises(KafkaUnavailable, match=r"cluster 'another' answer.* cluster 'c'"):
                await cluster.nodes()
        assert await cluster.nodes()
