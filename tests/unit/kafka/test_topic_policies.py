"""What jobs read of the user's configs, from brokers that have defaults of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.describe_configs.v4 import response as describe
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from tests.unit.kafka.fake_cluster import FakeKafka, fake_kafka
from tests.unit.spark.test_retention_orders import HYBRID
from tideline.control_plane.tiering_model import PartitionRow
from tideline.domain.retention import Policy
from tideline.gateway.messages import no_throttle
from tideline.kafka.topic_observer import BROKER_RESOURCE, DYNAMIC_TOPIC_CONFIG
from tideline.kafka.topic_policies import (
    PolicyTopic,
    RetentionPolicies,
    read_retention_policies,
    read_tiering_policies,
)
from tideline.settings import KafkaSettings, PolicySettings

UNSET, SET = "retention.bytes unset", "retention.bytes set"


def configs(
    of_broker: Mapping[str, str], own: Mapping[str, str]
) -> Callable[[Any], describe.DescribeConfigsResponse]:
    """Answers of a broker; ``own`` is set on each topic."""

    def answer(request: Any) -> describe.DescribeConfigsResponse:
        results = []
        for asked in request.resources:
            found = of_broker if asked.resource_type == BROKER_RESOURCE else own
            results.append(
                describe.DescribeConfigsResult(
                    error_code=ErrorCode.none,
                    error_message=None,
                    resource_type=asked.resource_type,
                    resource_name=asked.resource_name,
                    configs=tuple(
                        describe.DescribeConfigsResourceResult(
                            name=key,
                            value=value,
                            read_only=False,
                            config_source=i8(DYNAMIC_TOPIC_CONFIG),
                            is_sensitive=False,
                            synonyms=(),
                            config_type=i8(2),
                            documentation=None,
                        )
                        for key, value in found.items()
                        if asked.configuration_keys is None or key in asked.configuration_keys
                    ),
                )
            )
        return describe.DescribeConfigsResponse(throttle_time=no_throttle(), results=tuple(results))

    return answer


@pytest.fixture
async def kafka() -> AsyncIterator[FakeKafka]:
    async with fake_kafka() as found:
        yield found


def brokers_have(kafka: FakeKafka, key: str, *values: str) -> None:
    """The default of brokers 1, 2 and 3."""
    for node, value in zip(kafka.nodes, values, strict=True):
        node.answers["DescribeConfigsRequest"] = configs(
            {key: value}, {"retention.bytes": "-1", "retention.ms": "60000"}
        )


def row(topic_id: int, name: str, value: str | None) -> PartitionRow:
    users = {"retention.bytes": value}
    return replace(HYBRID, topic=name, topic_id=UUID(int=topic_id), user_configs=users)


async def retention(kafka: FakeKafka) -> RetentionPolicies:
    settings = KafkaSettings(kafka_bootstrap=(kafka.addresses[1],))
    rows = [row(1, UNSET, None), row(2, SET, "500")]
    return await asyncio.to_thread(read_retention_policies, settings, rows)


async def test_a_size_that_the_user_has_not_set_is_that_of_all_brokers(kafka: FakeKafka) -> None:
    brokers_have(kafka, "log.retention.bytes", "900", "900", "900")
    found = await retention(kafka)
    assert found.left_alone == {}
    assert found.policies == {UUID(int=1): Policy(60_000, 900), UUID(int=2): Policy(60_000, 500)}


async def test_where_brokers_differ_a_topic_that_sets_no_size_is_left_alone(
    kafka: FakeKafka,
) -> None:
    """Kafka goes by each leader's: nothing is deleted by the wrong one."""
    brokers_have(kafka, "log.retention.bytes", "900", "900", "-1")
    found = await retention(kafka)
    assert found.policies == {UUID(int=2): Policy(60_000, 500)}
    assert found.left_alone == {
        UNSET: "brokers have different defaults of retention.bytes: 900 on broker 1, 900 on broker "
        "2, -1 on broker 3; set it for the cluster or on the topic"
    }


async def test_tiering_goes_on_where_brokers_differ_in_what_it_does_not_go_by(
    kafka: FakeKafka,
) -> None:
    settings = PolicySettings(kafka_bootstrap=(kafka.addresses[1],))
    topics = [
        PolicyTopic("unset", UUID(int=1), {}),
        PolicyTopic("set", UUID(int=2), {"local.retention.ms": "5"}),
    ]
    brokers_have(kafka, "log.retention.bytes", "900", "900", "-1")
    found = await asyncio.to_thread(read_tiering_policies, settings, topics)
    assert found.left_alone == {}
    brokers_have(kafka, "log.local.retention.ms", "1", "2", "1")
    found = await asyncio.to_thread(read_tiering_policies, settings, topics)
    assert list(found.left_alone) == ["unset"]
    assert list(found.configs) == [UUID(int=2)]
