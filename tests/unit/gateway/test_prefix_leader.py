"""What only Kafka's leader answers below B0, asked at a gateway beside a broker that follows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.gateway.fakes import TOPIC, tracked_row
from tests.unit.gateway.test_tracked_offsets import Lineage, ends_of
from tests.unit.gateway.tracked_bench import KafkaLog, Script, TrackedBench, fetch, serving
from tideline.control_plane.model import TrackedPartition
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.observer import OffsetAnswer

NOT_READY = tracked_row(generation=2, boundary=100, boundary_epoch=7)
HYBRID = replace(NOT_READY, ready=True)
NO_PREFIX = replace(HYBRID, prefix_gone=True)
LIST_OFFSETS, LEADER_EPOCH, DELETE = (
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DELETE_RECORDS,
)
VERSIONS = {LIST_OFFSETS: 10, LEADER_EPOCH: 4, DELETE: 2}
NAMES = {
    LIST_OFFSETS: ("ListOffsetsTopicResponse", "ListOffsetsPartitionResponse"),
    LEADER_EPOCH: ("OffsetForLeaderTopicResult", "EpochEndOffset"),
    DELETE: ("DeleteRecordsTopicResult", "DeleteRecordsPartitionResult"),
}
NOT_LEADER = ErrorCode.not_leader_or_follower


def answering(api_key: ApiKey, code: ErrorCode, offset: int = -1) -> Script:
    """A broker that says this of the partition, and has all of the prefix."""
    return lambda message: _answer(
        api_key, code, 100 if _is_about_b0(message) and code is ErrorCode.none else offset
    )


def _is_about_b0(message: Any) -> bool:
    """Whether the end of B0's leader epoch is asked for."""
    return getattr(message.topics[0].partitions[0], "leader_epoch", -1) == NOT_READY.boundary_epoch


def _answer(api_key: ApiKey, code: ErrorCode, offset: int) -> Any:
    api = messages(api_key, VERSIONS[api_key])
    topic, row = NAMES[api_key]
    found = api.response_part(
        row,
        partition_index=0,
        partition=0,
        error_code=code,
        offset=offset,
        end_offset=offset,
        low_watermark=offset,
        timestamp=-1,
        leader_epoch=5 if code is ErrorCode.none else -1,
    )
    return api.response(
        throttle_time=timedelta(0),
        topics=(api.response_part(topic, name=TOPIC, topic=TOPIC, partitions=(found,)),),
    )


def asking(api_key: ApiKey, timestamp: int = -2, replica_id: int = -1) -> Any:
    """A question about the prefix."""
    api = messages(api_key, VERSIONS[api_key])
    request_topic, request_row = {
        LIST_OFFSETS: ("ListOffsetsTopic", "ListOffsetsPartition"),
        LEADER_EPOCH: ("OffsetForLeaderTopic", "OffsetForLeaderPartition"),
        DELETE: ("DeleteRecordsTopic", "DeleteRecordsPartition"),
    }[api_key]
    row = api.request_part(
        request_row, partition_index=0, partition=0, timestamp=timestamp, leader_epoch=5, offset=40
    )
    return api.request(
        replica_id=replica_id,
        isolation_level=0,
        timeout=timedelta(seconds=5),
        topics=(api.request_part(request_topic, name=TOPIC, topic=TOPIC, partitions=(row,)),),
    )


class Leader:
    """The broker that leads, on the gateway's own connection."""

    def __init__(self, bench: TrackedBench) -> None:
        self.answer: Script | Exception = KafkaUnavailable("no broker in this test")
        self.asked: list[Any] = []
        self.apart: list[bool] = []
        self.bench = bench
        bench.cluster.leader_id = self._leader_id
        bench.cluster.node = self._node

    async def _leader_id(self, topic: str, partition: int) -> int:
        assert (topic, partition) == (TOPIC, 0)
        return 2

    async def _node(self, node: int, *, apart: bool = False) -> Leader:
        assert node in (1, 2), "this gateway's broker, or the leader"
        self.apart.append(apart)
        return self

    async def send(self, message: Any, *, timeout_ms: int) -> Any:
        self.asked.append(message)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(message)

    async def told(self, api_key: ApiKey, code: ErrorCode, timestamp: int = -2) -> tuple[str, int]:
        """(error, offset) for a client whose gateway's broker answers ``code``."""
        self.bench.client.broker[api_key] = answering(api_key, code, 17)
        response = await self.bench.ask(asking(api_key, timestamp))
        row = response.topics[0].partitions[0]
        for name in ("end_offset", "low_watermark", "offset"):
            if hasattr(row, name):
                return row.error_code.name, int(getattr(row, name))
        raise AssertionError(row)


@pytest.fixture
async def leader(tmp_path: Path) -> AsyncIterator[Leader]:
    bench = TrackedBench(tmp_path)
    await bench.lease()
    bench.show(HYBRID)
    yield Leader(bench)
    await bench.close()


APIS = pytest.mark.parametrize("api_key", [LIST_OFFSETS, LEADER_EPOCH, DELETE])


@pytest.mark.parametrize(
    ("api_key", "timestamp", "apart"),
    [
        (LIST_OFFSETS, 1_000, True),
        (LIST_OFFSETS, -2, False),
        (LEADER_EPOCH, -2, False),
        (DELETE, -2, False),
    ],
)
async def test_nothing_waits_behind_a_search_that_a_leader_does_not_answer(
    leader: Leader, api_key: ApiKey, timestamp: int, apart: bool
) -> None:
    leader.answer = answering(api_key, ErrorCode.none, 17)
    await leader.told(api_key, NOT_LEADER, timestamp)
    assert set(leader.apart) == {apart}


@APIS
async def test_what_a_follower_refuses_is_asked_of_the_leader(
    leader: Leader, api_key: ApiKey
) -> None:
    leader.answer = answering(api_key, ErrorCode.none, 40)
    assert await leader.told(api_key, NOT_LEADER) == ("none", 40)
    forwarded = leader.bench.client.forwarded
    assert [asked.topics for asked in leader.asked] == [asked.topics for asked in forwarded]


async def test_each_row_of_a_partition_that_is_named_twice_is_asked_of_the_leader(
    leader: Leader,
) -> None:
    leads = Lineage(100, e5=0, e6=60, e7=80)

    def follows(request: Any) -> Any:
        said = leads(request)
        topics = []
        for topic in said.topics:
            rows = tuple(replace(row, error_code=NOT_LEADER) for row in topic.partitions)
            topics.append(replace(topic, partitions=rows))
        return replace(said, topics=tuple(topics))

    leader.answer, leader.bench.client.broker[LEADER_EPOCH] = leads, follows
    assert await ends_of(leader.bench, [5, 6]) == [[("none", 5, 60), ("none", 6, 80)]]


@APIS
async def test_a_paired_broker_that_leads_is_asked_alone(leader: Leader, api_key: ApiKey) -> None:
    assert await leader.told(api_key, ErrorCode.none) == ("none", 17)
    assert not leader.asked


@APIS
async def test_what_a_client_may_not_do_it_may_not_do_through_this_gateway(
    leader: Leader, api_key: ApiKey
) -> None:
    """The paired broker checks rights before it looks at who leads."""
    leader.answer = answering(api_key, ErrorCode.none, 40)
    code = ErrorCode.topic_authorization_failed
    assert (await leader.told(api_key, code))[0] == code.name
    assert not leader.asked


@APIS
@pytest.mark.parametrize(
    "answer", [None, NOT_LEADER, ErrorCode.topic_authorization_failed], ids=str
)
async def test_without_a_leaders_word_the_client_asks_again(
    leader: Leader, api_key: ApiKey, answer: ErrorCode | None
) -> None:
    """Also where this gateway may not ask: that is no news of the client's rights."""
    if answer is not None:
        leader.answer = answering(api_key, answer)
    assert (await leader.told(api_key, NOT_LEADER))[0] == NOT_LEADER.name
    assert len(leader.asked) == 1


def leading(found: int) -> Script:
    """A leader with the whole prefix, whose search by time finds the record at ``found``."""
    return lambda message: answering(ApiKey(int(message.__api_key__)), ErrorCode.none, found)(
        message
    )


@pytest.mark.parametrize(
    ("row", "at_leader", "told"),
    [
        (HYBRID, -1, ("none", -1)),
        (HYBRID, 95, ("not_leader_or_follower", -1)),
        (NOT_READY, -1, ("not_leader_or_follower", -1)),
    ],
    ids=["the leader does not either", "the leader does", "before readiness"],
)
async def test_that_a_debugging_consumers_follower_finds_nothing_ends_no_search_by_time(
    leader: Leader, row: TrackedPartition, at_leader: int, told: tuple[str, int]
) -> None:
    """Any replica answers replica id -2, one that is behind, too; that the leader has the whole
    prefix says nothing of it."""
    leader.bench.show(row)
    leader.answer = leading(at_leader)

    def follows(message: Any) -> Any:
        serves = int(message.replica_id) == -2
        return _answer(LIST_OFFSETS, ErrorCode.none if serves else NOT_LEADER, -1)

    broker = leader.bench.client.broker
    broker[LIST_OFFSETS], broker[LEADER_EPOCH] = follows, answering(LEADER_EPOCH, NOT_LEADER)
    response = await leader.bench.ask(asking(LIST_OFFSETS, 600, replica_id=-2))
    found = response.topics[0].partitions[0]
    assert (found.error_code.name, found.offset) == told


@APIS
async def test_before_readiness_clients_have_to_go_to_the_leader(
    leader: Leader, api_key: ApiKey
) -> None:
    leader.bench.show(NOT_READY)
    assert (await leader.told(api_key, NOT_LEADER))[0] == NOT_LEADER.name
    assert not leader.asked


@APIS
@pytest.mark.parametrize(
    ("before", "now"), [(NOT_READY, HYBRID), (HYBRID, NO_PREFIX)], ids=["ready", "prefix gone"]
)
async def test_the_leader_is_asked_whatever_became_known_while_the_follower_refused(
    leader: Leader, api_key: ApiKey, before: TrackedPartition, now: TrackedPartition
) -> None:
    """Another gateway's deletion takes the prefix away, say, and with it why Kafka was asked."""
    leader.bench.show(before)
    leader.answer = answering(api_key, ErrorCode.none, 40)
    refused = answering(api_key, NOT_LEADER)

    def refuse(message: Any) -> Any:
        leader.bench.show(now)
        return refused(message)

    leader.bench.client.broker[api_key] = refuse
    response = await leader.bench.ask(asking(api_key))
    assert response.topics[0].partitions[0].error_code is ErrorCode.none
    assert leader.asked


@pytest.mark.parametrize(
    ("row", "told"), [(HYBRID, "offset_out_of_range"), (NOT_READY, "not_leader_or_follower")]
)
async def test_that_a_position_has_expired_is_told_at_a_follower_too(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, row: TrackedPartition, told: str
) -> None:
    """Otherwise a consumer that Metadata sends here would come here for ever."""
    paired = leader.bench.parts.paired_broker

    async def offset(topic: str, partition: int, spec: int, *, node: int) -> OffsetAnswer:
        if node != 2:
            raise KafkaUnavailable("it follows")
        return OffsetAnswer(50, -1, 5)

    monkeypatch.setattr(paired._observer, "offset", offset)
    leader.bench.show(row)
    leader.bench.client.broker[ApiKey.FETCH] = serving(
        {(TOPIC, 0): KafkaLog(code=ErrorCode.offset_out_of_range)}
    )
    answered = await leader.bench.ask(fetch((TOPIC, 0, 49)))
    assert answered.responses[0].partitions[0].error_code.name == told
