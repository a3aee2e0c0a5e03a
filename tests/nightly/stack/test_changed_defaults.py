"""A default of the cluster that is changed reaches topics that do not set the config, as it
does on stock brokers (docs/kafka-copies.md, copy 2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from tests.harness import create_topics, delete_topics, migration_case, until_led
from tests.raw import ask, message
from tests.support.waiting import flushed, until
from tideline.stack import Stack
from tideline.worker.watches import LOOK_EVERY_S

DEFAULTS = {"message.max.bytes": "20000", "log.message.timestamp.type": "LogAppendTime"}
SMALL, LARGE = 10, 50_000
"""Bytes of a value, on both sides of the changed default."""
FOLLOWED_S = 3 * LOOK_EVERY_S
"""Two looks of the worker's watch that see it, the first up to one period after the change, and
what gateways take to hear of it."""
BROKER = 4
"""What a config is of (Kafka: ``ConfigResource.Type``); without a name: of every broker."""
SET, DELETE = 0, 1


def altered(stack: Stack, defaults: Mapping[str, str], operation: int) -> None:
    """The cluster's defaults, through a gateway."""
    configs = [
        {"name": name, "config_operation": operation, "value": value if operation == SET else None}
        for name, value in defaults.items()
    ]
    about = {"resource_type": BROKER, "resource_name": "", "configs": configs}
    asked = message("IncrementalAlterConfigs", 1, resources=[about], validate_only=False)
    (told,) = ask(next(iter(stack.endpoints.gateways.values())), asked).responses
    assert told.error_code is ErrorCode.none, told


@contextmanager
def changed(stack: Stack, defaults: Mapping[str, str]) -> Iterator[None]:
    """They are others inside, also where only some were taken."""
    try:
        altered(stack, defaults, SET)
        yield
    finally:
        altered(stack, defaults, DELETE)


def told(stack: Stack, topic: str, size: int) -> int:
    """What a producer is told of one record: the code of an error, or its timestamp's type."""
    said: list[int] = []
    producer = Producer(
        {"bootstrap.servers": stack.endpoints.gateway_bootstrap, "message.max.bytes": 1_000_000}
    )
    producer.produce(
        topic, b"x" * size, partition=0,
        on_delivery=lambda error, record: said.append(
            error.code() if error is not None else record.timestamp()[0]
        ),
    )  # fmt: skip
    flushed(producer)
    return said[0]


def until_told(stack: Stack, topics: Mapping[str, str], size: int, expected: int) -> None:
    """Wait until a producer is told so of each of ``topics``, by what they are."""
    for kind, topic in topics.items():
        until(f"a {kind} topic to follow", told_so(stack, topic, size, expected), FOLLOWED_S)


def told_so(stack: Stack, topic: str, size: int, expected: int) -> Callable[[], bool]:
    return lambda: told(stack, topic, size) == expected


def test_a_changed_default_reaches_classic_born_diskless_and_hybrid_topics(stack: Stack) -> None:
    """A limit that is cut, a timestamp's type that is another one, and both taken back."""
    admin = AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})
    number = time.monotonic_ns() % 1_000_000
    made = {"classic": f"defaults-classic-{number}", "born diskless": f"defaults-born-{number}"}
    create_topics(
        admin,
        NewTopic(made["classic"], 1, 3),
        NewTopic(made["born diskless"], 1, 3, config={"diskless.enable": "true"}),
    )
    with migration_case(stack, name="defaults-hybrid", history=3) as case:
        case.trigger()
        case.until_ready()
        topics = {**made, "hybrid": case.topic}
        for topic in topics.values():
            until_led(stack.endpoints.gateways.values(), topic, 1)
            assert told(stack, topic, LARGE) == TIMESTAMP_CREATE_TIME, topic
        with changed(stack, DEFAULTS):
            until_told(stack, topics, LARGE, KafkaError.MSG_SIZE_TOO_LARGE)
            until_told(stack, topics, SMALL, TIMESTAMP_LOG_APPEND_TIME)
        until_told(stack, topics, LARGE, TIMESTAMP_CREATE_TIME)
    delete_topics(admin, *made.values())
