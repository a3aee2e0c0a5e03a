"""What admin clients and those who compare topic ids ask of the model's brokers: topics made, grown
and deleted by the controller, topic configs, and how far each broker has the metadata log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest
from kio.schema.errors import ErrorCode

from tests.simulation.kafka import Broker, Topic
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import Messages

DESCRIBE_QUORUM = int(DescribeQuorumRequest.__api_key__)
OFFERED = {
    ApiKey.CREATE_TOPICS: (5, 7),
    ApiKey.DELETE_TOPICS: (5, 6),
    ApiKey.DESCRIBE_CONFIGS: (4, 4),
    DESCRIBE_QUORUM: (2, 2),
    ApiKey.CREATE_PARTITIONS: (3, 3),
}
PATIENCE_S = 4.0
"""How long a broker waits for the controller."""
OWN = 1
"""``DescribeConfigsResponse.ConfigSource.TOPIC_CONFIG``."""


async def _at_controller(broker: Broker, decide: Callable[[], Any]) -> Any:
    """What the controller decides; ``None`` where its answer did not come: it may come to pass."""
    kafka = broker.kafka
    answer: asyncio.Future[Any] = kafka.loop.create_future()

    def answered(found: Any) -> None:
        if not answer.done():
            answer.set_result(found)

    def arrived() -> None:
        found = decide()
        kafka.network.send(kafka.controller, broker.process, lambda: answered(found))

    kafka.network.send(broker.process, kafka.controller, arrived)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await answer
    except TimeoutError:
        return None


# -- topics


async def create_topics(broker: Broker, request: Any, api: Messages) -> Any:
    kafka, results = broker.kafka, []
    for asked in request.topics:

        def decide(asked: Any = asked) -> Topic | ErrorCode:
            if asked.name in kafka.topics:
                return ErrorCode.topic_already_exists
            partitions = max(1, int(asked.num_partitions))
            configs = {config.name: config.value for config in asked.configs}
            if request.validate_only:
                return Topic(asked.name, UUID(int=0), partitions, configs)
            return kafka.create(asked.name, partitions, configs)

        found = await _at_controller(broker, decide) or ErrorCode.request_timed_out
        made = isinstance(found, Topic)
        results.append(
            api.response_part(
                "CreatableTopicResult",
                name=asked.name,
                topic_id=found.id if made and not request.validate_only else None,
                error_code=ErrorCode.none if made else found,
                error_message=None,
                topic_config_error_code=0,
                num_partitions=found.partitions if made else -1,
                replication_factor=len(kafka.brokers) if made else -1,
                configs=(),
            )
        )
    return api.response(throttle_time=timedelta(0), topics=tuple(results))


async def delete_topics(broker: Broker, request: Any, api: Messages) -> Any:
    kafka = broker.kafka
    if api.version < 6:
        wanted: list[tuple[str | None, UUID | None]] = [(n, None) for n in request.topic_names]
    else:
        wanted = [(topic.name, topic.topic_id) for topic in request.topics]
    results = []
    for name, topic_id in wanted:

        def decide(name: str | None = name, topic_id: UUID | None = topic_id) -> Any:
            for topic in list(kafka.topics.values()):
                if name == topic.name or (name is None and topic_id == topic.id):
                    kafka.delete(topic.name)
                    return topic
            if name is None:
                return ErrorCode.unknown_topic_id
            return ErrorCode.unknown_topic_or_partition

        found = await _at_controller(broker, decide) or ErrorCode.request_timed_out
        gone = isinstance(found, Topic)
        results.append(
            api.response_part(
                "DeletableTopicResult",
                name=found.name if gone else name,
                topic_id=found.id if gone else topic_id,
                error_code=ErrorCode.none if gone else found,
                error_message=None,
            )
        )
    return api.response(throttle_time=timedelta(0), responses=tuple(results))


async def create_partitions(broker: Broker, request: Any, api: Messages) -> Any:
    kafka, results = broker.kafka, []
    for asked in request.topics:

        def decide(asked: Any = asked) -> ErrorCode:
            topic = kafka.topics.get(asked.name)
            if topic is None:
                return ErrorCode.unknown_topic_or_partition
            if int(asked.count) <= topic.partitions:
                return ErrorCode.invalid_partitions
            if not request.validate_only:
                kafka.grow(topic.name, int(asked.count))
            return ErrorCode.none

        code = await _at_controller(broker, decide)
        results.append(
            api.response_part(
                "CreatePartitionsTopicResult",
                name=asked.name,
                error_code=ErrorCode.request_timed_out if code is None else code,
                error_message=None,
            )
        )
    return api.response(throttle_time=timedelta(0), results=tuple(results))


async def describe_configs(broker: Broker, request: Any, api: Messages) -> Any:
    results = []
    for resource in request.resources:
        topic = broker.topics.get(resource.resource_name)
        configs = {} if topic is None else topic.configs
        unknown = ErrorCode.unknown_topic_or_partition
        results.append(
            api.response_part(
                "DescribeConfigsResult",
                error_code=unknown if topic is None else ErrorCode.none,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=tuple(
                    api.response_part(
                        "DescribeConfigsResourceResult",
                        name=name,
                        value=value,
                        read_only=False,
                        config_source=OWN,
                        is_sensitive=False,
                        synonyms=(),
                        config_type=0,
                        documentation=None,
                    )
                    for name, value in sorted(configs.items())
                ),
            )
        )
    return api.response(throttle_time=timedelta(0), results=tuple(results))


# -- the metadata log


async def describe_quorum(broker: Broker, request: Any, api: Messages) -> Any:
    kafka = broker.kafka
    found = await _at_controller(
        broker, lambda: (kafka.decisions, {n: kafka.fetched(b) for n, b in kafka.brokers.items()})
    )
    end, fetched = found or (-1, {})
    row = api.response_part(
        "PartitionData",
        partition_index=0,
        error_code=ErrorCode.none,
        error_message=None,
        leader_id=0,
        leader_epoch=0,
        high_watermark=end,
        current_voters=(),
        observers=tuple(
            api.response_part(
                "ReplicaState",
                replica_id=node,
                replica_directory_id=None,
                log_end_offset=at,
                last_fetch_timestamp=-1,
                last_caught_up_timestamp=-1,
            )
            for node, at in sorted(fetched.items())
        ),
    )
    topic = api.response_part(
        "TopicData", topic_name=request.topics[0].topic_name, partitions=(row,)
    )
    return api.response(error_code=ErrorCode.none, error_message=None, topics=(topic,), nodes=())


ANSWERS: dict[int, Callable[[Broker, Any, Messages], Any]] = {
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    DESCRIBE_QUORUM: describe_quorum,
    ApiKey.CREATE_PARTITIONS: create_partitions,
}
