"""A secured stack: TLS, logins and rights everywhere, and everything else as without."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.error import KafkaError as LibrdkafkaError
from kio.schema.create_topics.v7 import request as ct
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.types import TopicName
from kio.static.primitive import i16, i32

from tests.conftest import HOMES_VARIABLE
from tests.harness import HANGS_S, Case, command, until
from tests.unit.gateway.test_transport import produce
from tideline.demo import topic as topics
from tideline.demo.ledger import Ledger
from tideline.demo.workload import LibrdkafkaProducer
from tideline.kafka.client import KafkaCluster, KafkaConnection
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.protocol import encode_request
from tideline.kafka.security import KafkaSecurity
from tideline.stack import Stack
from tideline.stack.home import Home
from tideline.stack.kafka_jars import tool_command
from tideline.stack.secured import CLIENT, REAUTH_MS, Secured

HISTORY = 200
EVERYTHING = MetadataRequest(
    topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
)


@pytest.fixture(scope="module")
def secured_stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """One broker is enough; taken down after the tests of this file."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "one")
    home = Path(os.environ[HOMES_VARIABLE]) / f"{process}-secured"
    home.mkdir(mode=0o755)
    try:
        yield Stack.up(home, brokers=1, secure=True)
    finally:
        if request.session.testsfailed:
            Stack.take_down(home)
        else:
            Stack.purge(home)


def at_gateway(stack: Stack) -> tuple[str, int]:
    host, _, port = stack.endpoints.gateways[1].rpartition(":")
    return host, int(port)


def config(stack: Stack, **more: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": stack.endpoints.gateway_bootstrap,
        **stack.kafka_login().librdkafka,
        **more,
    }


def counted(stack: Stack, name: str, outcome: str) -> float:
    with urlopen(f"http://{stack.endpoints.metrics['gateway-1']}/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f'inkless_gateway_{name}_total{{outcome="{outcome}"}}'):
                return float(line.rpartition(" ")[2])
    return 0.0


def shown_certificate(stack: Stack) -> str:
    context = stack.kafka_login().tls()
    assert context is not None

    async def look() -> str:
        _, writer = await asyncio.open_connection(*at_gateway(stack), ssl=context)
        found = writer.get_extra_info("ssl_object").getpeercert()
        writer.close()
        return str(found["serialNumber"])

    return asyncio.run(look())


async def cut_off(stack: Stack, *frames: bytes) -> None:
    """A connection that sends these before a login is ended without an answer."""
    context = stack.kafka_login().tls()
    for frame in frames:
        reader, writer = await asyncio.open_connection(*at_gateway(stack), ssl=context)
        writer.write(len(frame).to_bytes(4, "big") + frame)
        async with asyncio.timeout(HANGS_S):
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                assert await reader.read() == b""
        writer.close()


def test_nothing_is_answered_before_a_login(secured_stack: Stack) -> None:
    metadata = encode_request(EVERYTHING, 1, "early")
    asyncio.run(cut_off(secured_stack, metadata, produce(1, 1), produce(1, 0)))


def test_kafka_itself_refuses_a_wrong_password(secured_stack: Stack) -> None:
    right = secured_stack.kafka_login()
    wrong = KafkaSecurity(right.protocol, right.mechanism, CLIENT, "wrong", right.files)
    with pytest.raises(KafkaError, match="Authentication failed") as failed:
        asyncio.run(KafkaConnection.open(*at_gateway(secured_stack), security=wrong))
    assert failed.value.code is ErrorCode.sasl_authentication_failed
    told: list[LibrdkafkaError] = []
    producer = Producer(
        {**config(secured_stack), "sasl.password": "wrong", "error_cb": told.append, "log_level": 0}
    )

    def refused() -> bool | None:
        producer.poll(0.1)
        return any(e.code() == LibrdkafkaError._AUTHENTICATION for e in told) or None

    until("librdkafka to hear of it", refused)
    assert any("Authentication failed" in error.str() for error in told)


def test_without_rights_nobody_does_anything(secured_stack: Stack) -> None:
    """The jobs' user may not write: Kafka says so through the gateway as it does directly."""
    login = secured_stack.kafka_login("jobs")

    async def ask(address: str) -> set[str]:
        host, _, port = address.rpartition(":")
        async with KafkaCluster([(host, int(port))], security=login) as cluster:
            answer: Any = await (await cluster.any()).send(topics_of("forbidden"))
            return {row.error_code.name for row in answer.topics}

    endpoints = secured_stack.endpoints
    for where in (endpoints.kafka_bootstrap, endpoints.gateway_bootstrap):
        assert asyncio.run(ask(where)) == {"topic_authorization_failed"}


def topics_of(name: str) -> ct.CreateTopicsRequest:
    row = ct.CreatableTopic(
        name=TopicName(name), num_partitions=i32(1), replication_factor=i16(1),
        assignments=(), configs=(),
    )  # fmt: skip
    return ct.CreateTopicsRequest(topics=(row,))


async def renewed(stack: Stack) -> None:
    """One connection renews its login and is served past its first lifetime, one does not."""
    clock, security = asyncio.get_running_loop().time, stack.kafka_login()
    one = await KafkaConnection.open(*at_gateway(stack), security=security)
    other = await KafkaConnection.open(*at_gateway(stack), security=security)
    lapses = clock() + REAUTH_MS / 1000
    assert one._stale_at is not None
    await asyncio.sleep(one._stale_at - clock())
    await one._log_in(security, 10_000)
    await asyncio.sleep(lapses - clock())
    await one.send(EVERYTHING)
    with pytest.raises(KafkaUnavailable):
        await other.send(EVERYTHING)
    one.close()


@contextlib.contextmanager
def written_to(stack: Stack) -> Iterator[Case]:
    """A tiered topic to which an idempotent producer writes that logs in; at the end everything
    that was acknowledged is read by librdkafka and by Java."""
    admin = AdminClient(config(stack))
    topic = f"secured-{time.monotonic_ns() % 1_000_000}"
    topic_id = topics.create_tiered(admin, topic, 1, 1)
    bootstrap = stack.endpoints.gateway_bootstrap
    case = Case(stack, topic, 1, topic_id, Ledger(), admin, bootstrap)
    producer = LibrdkafkaProducer(
        "writer", bootstrap, topic, [0], case.ledger,
        records_per_second=100, config=stack.kafka_login().librdkafka,
    )  # fmt: skip
    case.producers.append(producer)
    producer.start()
    case.until_acknowledged(HISTORY)
    try:
        yield case
        case.until_acknowledged(50)
        producer.stop()
        assert case.ledger.failures == []
        end = max(ack.offset for ack in case.ledger.acknowledgements(0)) + 1
        assert read(stack, topic, end) == list(range(end))
        assert read_by_java(stack, topic, end) == list(range(end))
    finally:
        case.stop()


def test_logins_are_renewed_and_the_certificate_is_replaced_under_clients(
    secured_stack: Stack,
) -> None:
    stack = secured_stack
    began, logins = time.monotonic(), counted(stack, "authentications", "done")
    with written_to(stack):
        before = shown_certificate(stack)
        Secured(Home.locate(stack.home)).authority.issue("gateway", anew=True)
        until(
            "the new certificate",
            lambda: counted(stack, "certificate_reloads", "taken") >= 1 or None,
        )
        assert shown_certificate(stack) != before
        asyncio.run(renewed(stack))
        assert time.monotonic() - began > REAUTH_MS / 1000, "no login of the producer has lapsed"
        assert counted(stack, "authentications", "done") - logins >= 4


def test_a_topic_migrates_under_clients_that_log_in(secured_stack: Stack) -> None:
    with written_to(secured_stack) as case:
        command(secured_stack, "migrate", case.topic, "--wait", wait=True)
        (b0,) = case.boundaries()
        assert b0 >= HISTORY
        case.until_acknowledged(50)
        assert case.ledger.acknowledgements(0)[-1].offset >= b0


def read(stack: Stack, topic: str, end: int) -> list[int]:
    """Offsets that librdkafka's consumer reads."""
    consumer = Consumer(config(stack, **{"group.id": f"{topic}-readers"}))
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []

    def more() -> bool | None:
        for message in consumer.consume(500, 1.0):
            assert message.error() is None, message.error()
            offset = message.offset()
            assert offset is not None
            found.append(offset)
        return len(found) >= end or None

    until("every record", more)
    consumer.close()
    return found


def read_by_java(stack: Stack, topic: str, end: int) -> list[int]:
    """The same, by Kafka's own console consumer with the home's ``client.properties``."""
    ran = subprocess.run(
        tool_command(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", stack.endpoints.gateway_bootstrap, "--topic", topic),
            *("--partition", "0", "--offset", "earliest", "--max-messages", str(end)),
            *("--formatter-property", "print.offset=true"),
            *("--command-config", str(stack.home / "client.properties")),
        ),
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if line.startswith("Offset:")]
    return [int(line.partition("\t")[0].removeprefix("Offset:")) for line in lines]
