"""Several fake brokers that follow one metadata log, each as far as the test lets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from kio.schema.create_topics.v7.response import CreatableTopicResult, CreateTopicsResponse
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.describe_quorum.v2 import response as dq
from kio.schema.describe_topic_partitions.v0 import response as dt
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v9 import response as lo
from kio.schema.metadata.v12 import response as md
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32, i64

from tests.unit.kafka.fake_broker import FakeBroker, api_versions
from tideline.gateway.messages import no_throttle
from tideline.kafka.client import KafkaCluster
from tideline.kafka.protocol import RequestHeader, decode_request, encode_response


@dataclass
class FakeController:
    """The committed metadata: topics by name, and one record per change."""

    topics: dict[str, UUID] = field(default_factory=dict)
    history: list[dict[str, UUID]] = field(default_factory=lambda: [{}])
    grown: list[dict[str, int]] = field(default_factory=lambda: [{}])
    """As ``history``: topics that have more than one partition."""
    ends: dict[str, int] = field(default_factory=dict)
    """Log end (exclusive) of the partitions of each topic, on all brokers; 0 without one."""

    @property
    def offset(self) -> int:
        return len(self.history)

    def create(self, name: str, topic_id: UUID | None = None) -> UUID:
        assert name not in self.topics
        self.topics[name] = topic_id or uuid4()
        self._commit()
        return self.topics[name]

    def delete(self, name: str) -> UUID:
        gone = self.topics.pop(name)
        self._commit()
        return gone

    def grow(self, name: str, partitions: int) -> None:
        self._commit(**{name: partitions})

    def _commit(self, **grown: int) -> None:
        self.history.append(dict(self.topics))
        self.grown.append(self.grown[-1] | grown)


@dataclass
class FakeNode:
    """One broker: ``frozen_at`` is how far it has got, if it lags."""

    node: int
    controller: FakeController
    cluster: FakeKafka
    frozen_at: int | None = None
    claims_to_follow: bool = False
    """It has fetched everything and serves what it knew before."""
    silent: bool = False
    answers: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    """By request class: in the place of the broker's own."""
    asked: list[Any] = field(default_factory=list)

    @property
    def at(self) -> int:
        return self.controller.offset if self.frozen_at is None else self.frozen_at

    @property
    def topics(self) -> dict[str, UUID]:
        return self.controller.history[self.at - 1]

    async def __call__(self, header: RequestHeader, frame: bytes) -> bytes | None:
        if header.api_key == 18:
            return api_versions(header)
        if self.silent:
            await asyncio.sleep(3600)
        request: Any = decode_request(frame, header)
        self.asked.append(request)
        kind = type(request).__name__
        found = self.answers.get(kind) or getattr(self, f"_{kind}")
        answer = found(request)
        if asyncio.iscoroutine(answer):
            answer = await answer
        return encode_response(answer, header.correlation_id)

    def _DescribeQuorumRequest(self, request: Any) -> dq.DescribeQuorumResponse:
        def state(node: FakeNode) -> dq.ReplicaState:
            end = node.controller.offset if node.claims_to_follow else node.at
            return dq.ReplicaState(
                replica_id=BrokerId(node.node), replica_directory_id=None, log_end_offset=i64(end)
            )

        return dq.DescribeQuorumResponse(
            error_code=ErrorCode.none,
            error_message=None,
            topics=(
                dq.TopicData(
                    topic_name=TopicName("__cluster_metadata"),
                    partitions=(
                        dq.PartitionData(
                            partition_index=i32(0),
                            error_code=ErrorCode.none,
                            error_message=None,
                            leader_id=BrokerId(1),
                            leader_epoch=i32(1),
                            high_watermark=i64(self.controller.offset),
                            current_voters=(),
                            observers=tuple(map(state, self.cluster.nodes)),
                        ),
                    ),
                ),
            ),
            nodes=(),
        )

    def _MetadataRequest(self, request: Any) -> md.MetadataResponse:
        names = {topic_id: name for name, topic_id in self.topics.items()}
        rows = []
        for asked in request.topics or ():
            name = asked.name if asked.name is not None else names.get(asked.topic_id)
            topic_id = self.topics.get(name) if name is not None else None
            unknown = (
                ErrorCode.unknown_topic_or_partition
                if asked.name is not None
                else ErrorCode.unknown_topic_id
            )
            rows.append(
                md.MetadataResponseTopic(
                    error_code=ErrorCode.none if topic_id else unknown,
                    name=TopicName(name) if name else None,
                    topic_id=topic_id or asked.topic_id,
                    partitions=tuple(map(self._partition, self._numbers(name))) if topic_id else (),
                    is_internal=False,
                )
            )
        return md.MetadataResponse(
            throttle_time=no_throttle(),
            brokers=tuple(
                md.MetadataResponseBroker(node_id=BrokerId(n), host=host, port=i32(port), rack=None)
                for n, (host, port) in self.cluster.addresses.items()
            ),
            cluster_id="c",
            controller_id=BrokerId(1),
            topics=tuple(rows),
        )

    def _numbers(self, name: str) -> range:
        return range(self.controller.grown[self.at - 1].get(name, 1))

    def _partition(self, number: int) -> md.MetadataResponsePartition:
        nodes = tuple(BrokerId(node.node) for node in self.cluster.nodes)
        return md.MetadataResponsePartition(
            error_code=ErrorCode.none,
            partition_index=i32(number),
            leader_id=BrokerId(1),
            leader_epoch=i32(0),
            replica_nodes=nodes,
            isr_nodes=nodes,
            offline_replicas=(),
        )

    def _ListOffsetsRequest(self, request: Any) -> lo.ListOffsetsResponse:
        """The log ends."""
        return lo.ListOffsetsResponse(
            throttle_time=no_throttle(),
            topics=tuple(
                lo.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        lo.ListOffsetsPartitionResponse(
                            partition_index=p.partition_index,
                            error_code=ErrorCode.none,
                            timestamp=i64(-1),
                            offset=i64(self.controller.ends.get(str(topic.name), 0)),
                            leader_epoch=i32(0),
                        )
                        for p in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )

    def _DescribeTopicPartitionsRequest(self, request: Any) -> dt.DescribeTopicPartitionsResponse:
        rows = []
        for asked in request.topics:
            topic_id = self.topics.get(asked.name)
            unknown = ErrorCode.unknown_topic_or_partition
            rows.append(
                dt.DescribeTopicPartitionsResponseTopic(
                    error_code=ErrorCode.none if topic_id else unknown,
                    name=asked.name,
                    topic_id=topic_id,
                    partitions=(),
                )
            )
        return dt.DescribeTopicPartitionsResponse(
            throttle_time=no_throttle(), topics=tuple(rows), next_cursor=None
        )

    def _DeleteTopicsRequest(self, request: Any) -> DeleteTopicsResponse:
        rows = []
        names = {topic_id: name for name, topic_id in self.controller.topics.items()}
        for asked in request.topics:
            name = asked.name if asked.name is not None else names.get(asked.topic_id)
            known = name in self.controller.topics
            rows.append(
                DeletableTopicResult(
                    name=TopicName(name) if name else None,
                    topic_id=self.controller.delete(name) if known and name else asked.topic_id,
                    error_code=ErrorCode.none if known else ErrorCode.unknown_topic_or_partition,
                )
            )
        return DeleteTopicsResponse(throttle_time=no_throttle(), responses=tuple(rows))

    def _CreateTopicsRequest(self, request: Any) -> CreateTopicsResponse:
        rows = []
        for asked in request.topics:
            exists = asked.name in self.controller.topics
            topic_id = None
            if not exists and not request.validate_only:
                topic_id = self.controller.create(str(asked.name))
            code = ErrorCode.topic_already_exists if exists else ErrorCode.none
            rows.append(
                CreatableTopicResult(
                    name=asked.name,
                    topic_id=topic_id,
                    error_code=code,
                    error_message=None,
                    topic_config_error_code=i16(0),
                    num_partitions=i32(1),
                    replication_factor=i16(1),
                    configs=(),
                )
            )
        return CreateTopicsResponse(throttle_time=no_throttle(), topics=tuple(rows))


class FakeKafka:
    """Brokers 1 to ``count`` and their controller."""

    def __init__(self, count: int) -> None:
        self.controller = FakeController()
        self.nodes = [FakeNode(n, self.controller, self) for n in range(1, count + 1)]
        self.brokers: dict[int, FakeBroker] = {}

    @property
    def addresses(self) -> dict[int, tuple[str, int]]:
        return {n: broker.address for n, broker in self.brokers.items()}

    def client(self, timeout_ms: int = 2_000) -> KafkaCluster:
        return KafkaCluster([self.brokers[1].address], timeout_ms=timeout_ms)


@asynccontextmanager
async def fake_kafka(count: int = 3) -> AsyncIterator[FakeKafka]:
    kafka = FakeKafka(count)
    async with AsyncExitStack() as stack:
        for node in kafka.nodes:
            kafka.brokers[node.node] = await stack.enter_async_context(FakeBroker(node))
        yield kafka
