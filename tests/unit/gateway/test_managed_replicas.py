"""CreateTopics and CreatePartitions of diskless topics when the cluster manages the number of
replicas (seed 003)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest
from kio.schema.create_topics.v5 import request as make_v5
from kio.schema.create_topics.v7 import request as make_v7
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.describe_cluster.v2.response import (
    DescribeClusterBroker,
    DescribeClusterResponse,
)
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32

from tests.unit.gateway.gateway_under_test import gateway, gateway_settings
from tests.unit.gateway.test_admin_handlers import (
    SECONDS,
    AdminPlane,
    Kafka,
    admin,
    ask,
    born,
    created,
    grow_to,
    grown,
    tracked,
)
from tests.unit.kafka.fake_broker import FakeBroker
from tideline.domain.placement import Broker
from tideline.gateway.admin import placing as placing_module
from tideline.gateway.admin.placing import MOST_PARTITIONS, ReplicaPlacing
from tideline.gateway.assembly import placing_of
from tideline.gateway.messages import nested, no_throttle
from tideline.gateway.per_partition import failure_code
from tideline.kafka.client import KafkaCluster
from tideline.kafka.cluster_layout import ClusterLayout
from tideline.kafka.errors import UnsupportedVersion

THREE = {1: "a", 2: "b", 3: "c"}


def brokers(
    racks: Mapping[int, str | None], fenced: tuple[int, ...] = ()
) -> Callable[[Any], DescribeClusterResponse]:
    def answer(request: Any) -> DescribeClusterResponse:
        assert request.include_fenced_brokers
        return DescribeClusterResponse(
            throttle_time=no_throttle(),
            error_code=ErrorCode.none,
            cluster_id="c",
            brokers=tuple(
                DescribeClusterBroker(
                    broker_id=BrokerId(n), host="h", port=i32(1), rack=rack, is_fenced=n in fenced
                )
                for n, rack in racks.items()
            ),
        )

    return answer


def topics(**placed: list[tuple[int, ...]]) -> Callable[[Any], MetadataResponse]:
    """Every topic of the cluster, by its partitions' replicas."""

    def answer(request: Any) -> MetadataResponse:
        return MetadataResponse(
            throttle_time=no_throttle(),
            brokers=(),
            cluster_id="c",
            controller_id=BrokerId(1),
            topics=tuple(
                MetadataResponseTopic(
                    error_code=ErrorCode.none,
                    name=TopicName(name),
                    topic_id=uuid4(),
                    is_internal=False,
                    partitions=tuple(
                        MetadataResponsePartition(
                            error_code=ErrorCode.none,
                            partition_index=i32(n),
                            leader_id=BrokerId(replicas[0]),
                            leader_epoch=i32(0),
                            replica_nodes=tuple(map(BrokerId, replicas)),
                            isr_nodes=tuple(map(BrokerId, replicas)),
                            offline_replicas=(),
                        )
                        for n, replicas in enumerate(lists)
                    ),
                )
                for name, lists in placed.items()
            ),
        )

    return answer


def wanting(factor: int = -1, partitions: int = 3, *, assigned: bool = False) -> Any:
    """CreateTopics of one diskless topic."""
    request = born("new", 5)
    (topic,) = request.topics
    assignment = make_v5.CreatableReplicaAssignment(
        partition_index=i32(0), broker_ids=(BrokerId(1),)
    )
    topic = replace(
        topic,
        replication_factor=i16(factor),
        num_partitions=i32(partitions),
        assignments=(assignment,) if assigned else (),
    )
    return replace(request, topics=(topic,))


async def asked_of(
    kafka: Kafka, request: Any, *, gateways: tuple[int, ...] = (1, 2, 3), view: Any = None
) -> Any:
    plane = AdminPlane(view)
    rules = admin(view, plane, placing_on=gateways)
    async with FakeBroker(kafka) as broker, gateway(broker, rules) as g:
        return await ask(g, request)


def of_kind(kafka: Kafka, name: str) -> list[Any]:
    return [r for r in kafka.asked if type(r).__name__ == name]


def birth(
    racks: Mapping[int, str | None] = THREE,
    fenced: tuple[int, ...] = (),
    **placed: list[tuple[int, ...]],
) -> Kafka:
    return Kafka(
        CreateTopicsRequest=created(),
        DescribeClusterRequest=brokers(racks, fenced),
        MetadataRequest=topics(**placed),
    )


def assignment_of(request: Any) -> list[tuple[int, ...]]:
    (topic,) = request.topics
    assert (topic.num_partitions, topic.replication_factor) == (-1, -1)
    assert [a.partition_index for a in topic.assignments] == list(range(len(topic.assignments)))
    return [tuple(a.broker_ids) for a in topic.assignments]


@pytest.mark.parametrize("factor", [-1, 1])
async def test_a_topic_born_diskless_has_one_replica_in_each_rack(factor: int) -> None:
    kafka = birth()
    answer = await asked_of(kafka, wanting(factor))
    assert answer.topics[0].error_code is ErrorCode.none
    validated, made = of_kind(kafka, "CreateTopicsRequest")
    assert validated.validate_only
    assert not made.validate_only
    placed = assignment_of(made)
    assert assignment_of(validated) == placed
    assert [sorted(replicas) for replicas in placed] == [[1, 2, 3]] * 3
    assert sorted(replicas[0] for replicas in placed) == [1, 2, 3]
    assert {c.name: c.value for c in made.topics[0].configs} == {"max.message.bytes": "78"}


async def test_the_broker_of_a_rack_that_holds_least_is_taken_and_none_without_a_gateway() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    kafka = birth(racks, other=[(1, 3), (1, 3)])
    await asked_of(kafka, wanting(partitions=1), gateways=(1, 2, 3))
    (replicas,) = assignment_of(of_kind(kafka, "CreateTopicsRequest")[-1])
    assert set(replicas) == {2, 3}


async def test_a_rack_that_restarts_counts_and_is_not_made_the_leader() -> None:
    kafka = birth(fenced=(1,))
    await asked_of(kafka, wanting(partitions=1))
    (replicas,) = assignment_of(of_kind(kafka, "CreateTopicsRequest")[-1])
    assert set(replicas) == {1, 2, 3}
    assert replicas[0] != 1


@pytest.mark.parametrize("factor", [0, 2, 3, -2])
async def test_any_other_replication_factor_is_refused_and_nothing_is_created(factor: int) -> None:
    kafka = birth()
    (result,) = (await asked_of(kafka, wanting(factor))).topics
    assert result.error_code is ErrorCode.invalid_replication_factor
    assert "ask for -1" in result.error_message
    assert all(request.validate_only for request in kafka.asked), "whether its client may create it"


async def test_an_assignment_by_hand_is_refused() -> None:
    kafka = birth()
    (result,) = (await asked_of(kafka, wanting(-1, -1, assigned=True))).topics
    assert result.error_code is ErrorCode.invalid_replica_assignment
    assert "leave the assignment out" in result.error_message
    assert all(request.validate_only for request in kafka.asked)


async def test_the_default_number_of_partitions_is_kafkas_to_say() -> None:
    kafka = birth()
    await asked_of(kafka, wanting(partitions=-1))
    asked, validated, made = of_kind(kafka, "CreateTopicsRequest")
    assert asked.validate_only
    assert (asked.topics[0].num_partitions, asked.topics[0].replication_factor) == (-1, 3)
    assert len(assignment_of(validated)) == len(assignment_of(made)) == 3


async def test_what_kafka_refuses_is_answered_in_kafkas_words() -> None:
    def refused(request: Any) -> CreateTopicsResponse:
        answer = created()(request)
        result = replace(
            answer.topics[0], error_code=ErrorCode.policy_violation, error_message="not here"
        )
        return replace(answer, topics=(result,))

    kafka = Kafka(
        CreateTopicsRequest=refused,
        DescribeClusterRequest=brokers(THREE),
        MetadataRequest=topics(),
    )
    (result,) = (await asked_of(kafka, wanting(partitions=-1))).topics
    assert (result.error_code, result.error_message) == (ErrorCode.policy_violation, "not here")


async def test_a_number_of_partitions_that_kafka_refuses_is_not_placed_first() -> None:
    kafka = birth()
    await asked_of(kafka, wanting(partitions=2_000_000_000))
    assert of_kind(kafka, "CreateTopicsRequest")[0].topics[0].assignments == ()


async def test_the_gateway_serves_others_while_many_partitions_are_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10,000 on 100 brokers kept it from renewing its lease for seconds, whoever asked."""
    nodes = {n: Broker(n, f"rack-{n % 3}") for n in range(100)}
    look = AsyncMock(return_value=ClusterLayout(nodes, {}))
    monkeypatch.setattr(placing_module, "cluster_layout", look)
    (topic,) = born("new", 5).topics
    asked = make_v7.CreatableTopic(
        name=topic.name,
        num_partitions=i32(MOST_PARTITIONS),
        replication_factor=i16(-1),
        assignments=(),
        configs=(),
    )
    placing = ReplicaPlacing(KafkaCluster([("127.0.0.1", 1)]), frozenset(nodes))
    at_work = asyncio.create_task(placing.birth(asked, AsyncMock()))
    # Of the loop's own thread: what others take of the machine is not its step.
    longest, last = 0.0, time.thread_time()
    while not at_work.done():
        await asyncio.sleep(0)
        longest, last = max(longest, time.thread_time() - last), time.thread_time()
    assert len(at_work.result().assignments) == MOST_PARTITIONS
    assert longest < 1.0


async def test_a_cluster_whose_brokers_have_no_gateway_is_told_of() -> None:
    (result,) = (await asked_of(birth(), wanting(), gateways=(9,))).topics
    assert result.error_code is ErrorCode.invalid_replication_factor
    assert "0 brokers with a gateway" in result.error_message


async def test_brokers_that_cannot_be_listed_make_the_creation_wait_for_another_try() -> None:
    def broken(request: Any) -> DescribeClusterResponse:
        answer = brokers(THREE)(request)
        return replace(answer, error_code=ErrorCode.unknown_server_error)

    kafka = Kafka(DescribeClusterRequest=broken, MetadataRequest=topics())
    (result,) = (await asked_of(kafka, wanting())).topics
    assert result.error_code is ErrorCode.request_timed_out
    assert "try again" in result.error_message


async def test_what_a_broker_does_not_know_is_no_silence_and_not_to_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``TimeoutException`` is retriable for Kafka's clients: they would ask until they give up."""
    unknown = UnsupportedVersion("broker h:1 does not know version 2 of API 60")
    monkeypatch.setattr(placing_module, "cluster_layout", AsyncMock(side_effect=unknown))
    (result,) = (await asked_of(birth(), wanting())).topics
    assert result.error_code is ErrorCode.unsupported_version
    assert "version 2 of API 60" in result.error_message
    assert "try again" not in result.error_message
    assert not ErrorCode(failure_code(unknown)).retriable


async def test_classic_topics_are_placed_as_they_were_asked_for() -> None:
    def topic(name: str, **configs: str) -> make_v7.CreatableTopic:
        return make_v7.CreatableTopic(
            name=TopicName(name),
            num_partitions=i32(3),
            replication_factor=i16(2),
            assignments=(),
            configs=tuple(
                make_v7.CreatableTopicConfig(name=k.replace("_", "."), value=v)
                for k, v in configs.items()
            ),
        )

    request = make_v7.CreateTopicsRequest(
        topics=(topic("new", diskless_enable="true"), topic("classic")), timeout=SECONDS
    )
    kafka = birth()
    answer = await asked_of(kafka, request)
    assert answer.topics[0].error_code is ErrorCode.invalid_replication_factor
    assert answer.topics[1].error_code is ErrorCode.none
    made, whether = of_kind(kafka, "CreateTopicsRequest")
    assert [(t.name, t.replication_factor) for t in made.topics] == [("classic", 2)]
    assert whether.validate_only


async def test_switched_off_the_number_of_replicas_is_the_creators() -> None:
    kafka = Kafka(CreateTopicsRequest=created())
    await asked_of(kafka, wanting(3), gateways=())
    made = of_kind(kafka, "CreateTopicsRequest")[-1]
    assert (made.topics[0].replication_factor, made.topics[0].assignments) == (3, ())


def test_the_setting_is_off_by_default_and_names_the_brokers_with_a_gateway() -> None:
    cluster = KafkaCluster([("127.0.0.1", 1)])
    assert placing_of(gateway_settings("127.0.0.1:1"), cluster) is None
    on = gateway_settings(
        "127.0.0.1:1",
        diskless_managed_rf_enabled="true",
        gateway_peers="1=127.0.0.1:19599,3=127.0.0.1:19600",
    )
    placing = placing_of(on, cluster)
    assert placing is not None
    assert set(placing.gateways) == {1, 3}


# -- growth


def growth(racks: Mapping[int, str | None], *placed: tuple[int, ...]) -> Kafka:
    return Kafka(
        CreatePartitionsRequest=grown,
        DescribeClusterRequest=brokers(racks),
        MetadataRequest=topics(tracked=list(placed)),
    )


async def grown_to(kafka: Kafka, count: int, *names: str) -> Any:
    return await asked_of(kafka, grow_to(count, *names), view=tracked(0, 0))


def new_replicas(kafka: Kafka, name: str = "tracked") -> Any:
    (request,) = of_kind(kafka, "CreatePartitionsRequest")
    (topic,) = (t for t in request.topics if t.name == name)
    return topic.assignments and [tuple(a.broker_ids) for a in topic.assignments]


async def test_new_partitions_have_one_replica_in_each_rack() -> None:
    kafka = growth(THREE, (1, 2, 3), (2, 3, 1))
    answer = await grown_to(kafka, 4, "tracked", "classic")
    assert [r.error_code for r in answer.results] == [ErrorCode.none] * 2
    placed = new_replicas(kafka)
    assert [sorted(replicas) for replicas in placed] == [[1, 2, 3]] * 2
    assert placed[0][0] == 3, "who leads least leads the next one"
    assert new_replicas(kafka, "classic") is None


@pytest.mark.parametrize(("before", "racks_used"), [((1,), 1), ((1, 2), 2), ((1, 2, 3, 4), 3)])
async def test_new_partitions_keep_the_topics_own_number_when_racks_came_or_went(
    before: tuple[int, ...], racks_used: int
) -> None:
    """Kafka takes no partition with another number of replicas than its topic has."""
    racks = {1: "a", 2: "b", 3: "c", 4: "c"}
    kafka = growth(racks, before, before)
    await asked_of(kafka, grow_to(3, "tracked"), view=tracked(0, 0), gateways=(1, 2, 3, 4))
    (replicas,) = new_replicas(kafka)
    assert len(replicas) == len(before)
    assert len({racks[n] for n in replicas}) == racks_used


async def test_an_assignment_of_new_partitions_by_hand_is_refused() -> None:
    request = grow_to(3, "tracked", "classic")
    kind = nested(type(request.topics[0]), "assignments")
    assigned = tuple(
        replace(t, assignments=(kind(broker_ids=(BrokerId(1),)),)) for t in request.topics
    )
    kafka = growth(THREE, (1, 2, 3), (2, 3, 1))
    answer = await asked_of(kafka, replace(request, topics=assigned), view=tracked(0, 0))
    refused, passed = answer.results
    assert refused.error_code is ErrorCode.invalid_replica_assignment
    assert passed.error_code is ErrorCode.none
    assert new_replicas(kafka, "classic") == [(1,)]


async def test_a_count_that_kafka_refuses_is_left_to_kafka() -> None:
    kafka = growth(THREE, (1, 2, 3), (2, 3, 1))
    await grown_to(kafka, 2, "tracked")
    assert new_replicas(kafka) is None


async def test_a_topic_whose_brokers_are_gone_cannot_grow_and_the_remedy_is_said() -> None:
    kafka = growth({1: "a"}, (1, 2, 3), (1, 2, 3))
    (result,) = (await grown_to(kafka, 3, "tracked")).results
    assert result.error_code is ErrorCode.invalid_replication_factor
    assert "3 replicas on 1 brokers" in result.error_message
    assert of_kind(kafka, "CreatePartitionsRequest") == []
