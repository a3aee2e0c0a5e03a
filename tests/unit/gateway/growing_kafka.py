"""A Kafka of a few brokers with one topic that grows, as far as the growth of a topic asks it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from kio.schema.create_partitions.v3.response import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v9 import response as lo
from kio.schema.metadata.v12 import response as md
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i64

from tests.unit.gateway.tracked_bench import allowing
from tests.unit.kafka.fake_broker import FakeBroker, api_versions
from tideline.gateway.messages import no_throttle
from tideline.kafka.protocol import RequestHeader, decode_request, encode_response

EPOCH = 3


class GrowingKafka:
    """Entered, its brokers listen; the topic lies on all of them and broker 1 leads it."""

    def __init__(self, name: str, topic_id: UUID, partitions: int, brokers: int = 2) -> None:
        self.name, self.topic_id = name, topic_id
        self.nodes = range(1, brokers + 1)
        self.ends = {n: dict.fromkeys(self.nodes, 0) for n in range(partitions)}
        """Log end (exclusive) by partition and node."""
        self.away: set[int] = set()
        """Brokers that nobody reaches."""
        self.leader = 1
        self.epoch = EPOCH
        """Of the leader, as replicas know it."""
        self.grow_as = ErrorCode.none
        self.appended_when_it_grows = 0
        self.asked: list[Any] = []
        self._brokers: dict[int, FakeBroker] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            broker = FakeBroker(self._answers_of(node))
            self._brokers[node] = await self._stack.enter_async_context(broker)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    @property
    def address(self) -> tuple[str, int]:
        return self._brokers[1].address

    def add(self, partitions: int = 1, records: int = 0) -> None:
        """As somebody does it at a broker."""
        for n in range(len(self.ends), len(self.ends) + partitions):
            self.ends[n] = dict.fromkeys(self.nodes, records)

    def created(self) -> int:
        """How many requests came to create partitions."""
        return sum(type(r).__name__ == "CreatePartitionsRequest" for r in self.asked)

    def _answers_of(self, node: int) -> Any:
        async def answer(header: RequestHeader, frame: bytes) -> bytes | None:
            if header.api_key == 18:
                return api_versions(header)
            request: Any = decode_request(frame, header)
            if getattr(request, "include_topic_authorized_operations", False):
                return encode_response(allowing()(request), header.correlation_id)
            self.asked.append(request)
            say = {
                "MetadataRequest": self._metadata,
                "CreatePartitionsRequest": self._grown,
                "ListOffsetsRequest": lambda asked: self._offsets(asked, node),
            }[type(request).__name__]
            return encode_response(say(request), header.correlation_id)

        return answer

    def _metadata(self, request: Any) -> Any:
        return md.MetadataResponse(
            throttle_time=no_throttle(),
            brokers=tuple(
                md.MetadataResponseBroker(
                    node_id=BrokerId(node), host=broker.address[0], port=i32(broker.address[1])
                )
                for node, broker in self._brokers.items()
                if node not in self.away
            ),
            cluster_id="c",
            controller_id=BrokerId(1),
            topics=tuple(self._topic() for _ in request.topics or ()),
        )

    def _topic(self) -> Any:
        nodes = tuple(map(BrokerId, self.nodes))
        return md.MetadataResponseTopic(
            error_code=ErrorCode.none,
            name=TopicName(self.name),
            topic_id=self.topic_id,
            is_internal=False,
            partitions=tuple(
                md.MetadataResponsePartition(
                    error_code=ErrorCode.none,
                    partition_index=i32(n),
                    leader_id=BrokerId(self.leader),
                    leader_epoch=i32(EPOCH),
                    replica_nodes=nodes,
                    isr_nodes=nodes,
                    offline_replicas=(),
                )
                for n in self.ends
            ),
        )

    def _offsets(self, request: Any, node: int) -> Any:
        return lo.ListOffsetsResponse(
            throttle_time=no_throttle(),
            topics=tuple(
                lo.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(self._offset(p, node) for p in topic.partitions),
                )
                for topic in request.topics
            ),
        )

    def _offset(self, asked: Any, node: int) -> Any:
        known = asked.current_leader_epoch in (-1, self.epoch)
        return lo.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            error_code=ErrorCode.none if known else ErrorCode.unknown_leader_epoch,
            timestamp=i64(-1),
            offset=i64(self.ends[asked.partition_index][node] if known else -1),
            leader_epoch=i32(self.epoch),
        )

    def _grown(self, request: Any) -> Any:
        results = []
        for topic in request.topics:
            code = self.grow_as
            if topic.count <= len(self.ends):
                code = ErrorCode.invalid_partitions
            if code in (ErrorCode.none, ErrorCode.request_timed_out):
                self.add(topic.count - len(self.ends), self.appended_when_it_grows)
            results.append(
                CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=None)
            )
        return CreatePartitionsResponse(throttle_time=no_throttle(), results=tuple(results))
