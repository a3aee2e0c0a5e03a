"""DeleteRecords: one request per leader, by topic id; one refusal stays one partition's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kio.schema.delete_records.v2 import response as dr
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from tideline.domain.ids import TopicPartition
from tideline.kafka.admin import Deletion, NotDeleted, RecordDeletion
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.observer import PartitionLayout, TopicLayout, milliseconds

TOPIC, OTHER = UUID(int=1), UUID(int=2)


@dataclass
class Cluster:
    """Leaders by partition; every broker deletes what it is asked to, unless ``errors`` say no."""

    leaders: dict[int, int]
    topic_id: UUID = TOPIC
    errors: dict[int, ErrorCode] = field(default_factory=dict)
    away: set[int] = field(default_factory=set)
    asked: list[tuple[int, list[int]]] = field(default_factory=list)

    async def topic(self, name: str) -> TopicLayout | None:
        partitions = {
            p: PartitionLayout(p, leader, 1, (1, 2), (1, 2)) for p, leader in self.leaders.items()
        }
        return TopicLayout(name, self.topic_id, False, partitions)

    async def node(self, node: int) -> Broker:
        if node in self.away:
            raise KafkaUnavailable(f"broker {node} is away")
        return Broker(self, node)


@dataclass
class Broker:
    cluster: Cluster
    node: int

    async def send(self, request: Any, timeout_ms: int) -> dr.DeleteRecordsResponse:
        (topic,) = request.topics
        self.cluster.asked.append((self.node, [int(p.partition_index) for p in topic.partitions]))
        return dr.DeleteRecordsResponse(
            throttle_time=i32Timedelta.parse(milliseconds(0)),
            topics=(
                dr.DeleteRecordsTopicResult(
                    name=TopicName(topic.name),
                    partitions=tuple(
                        dr.DeleteRecordsPartitionResult(
                            partition_index=i32(p.partition_index),
                            low_watermark=i64(p.offset),
                            error_code=self.cluster.errors.get(
                                int(p.partition_index), ErrorCode.none
                            ),
                        )
                        for p in topic.partitions
                    ),
                ),
            ),
        )


async def deleted(cluster: Cluster, *partitions: int) -> dict[TopicPartition, int | NotDeleted]:
    deletion = RecordDeletion(cluster, 1_000)  # type: ignore[arg-type]
    deletion._observer = cluster  # type: ignore[assignment]
    return await deletion.delete([Deletion("t", TOPIC, p, 10 + p) for p in partitions])


async def test_each_leader_is_asked_once_for_all_of_its_partitions() -> None:
    cluster = Cluster({0: 1, 1: 2, 2: 1})
    answers = await deleted(cluster, 0, 1, 2)
    assert answers == {TopicPartition("t", p): 10 + p for p in range(3)}
    assert sorted(cluster.asked) == [(1, [0, 2]), (2, [1])]


async def test_a_topic_of_the_same_name_with_another_id_is_left_alone() -> None:
    cluster = Cluster({0: 1}, topic_id=OTHER)
    (answer,) = (await deleted(cluster, 0)).values()
    assert isinstance(answer, NotDeleted)
    assert answer.gone
    assert cluster.asked == []


async def test_a_leader_that_is_away_refuses_its_own_partitions_only() -> None:
    answers = await deleted(Cluster({0: 1, 1: 2}, away={2}), 0, 1)
    assert answers[TopicPartition("t", 0)] == 10
    assert answers[TopicPartition("t", 1)] == NotDeleted("broker 2 is away")


async def test_a_partition_without_a_leader_is_refused() -> None:
    assert await deleted(Cluster({0: -1}), 0, 7) == {
        TopicPartition("t", 0): NotDeleted("the partition has no leader"),
        TopicPartition("t", 7): NotDeleted("the partition has no leader"),
    }


async def test_an_error_of_one_partition_is_its_own() -> None:
    cluster = Cluster({0: 1, 1: 1}, errors={1: ErrorCode.offset_out_of_range})
    answers = await deleted(cluster, 0, 1)
    assert answers[TopicPartition("t", 0)] == 10
    refusal = answers[TopicPartition("t", 1)]
    assert isinstance(refusal, NotDeleted)
    assert "OFFSET_OUT_OF_RANGE" in refusal.reason
