"""A secured stack: TLS, logins and rights everywhere, and everything else as without."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
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

from spark.common.record_tables import tell
from spark.coverage.job import coverage
from spark.gc.job import gc
from spark.retention.job import retention
from tests.aged_topic import let_the_grace_pass, run, settings_of
from tests.clients.migrating import Migration, checks, migrated
from tests.clients.ways import Way
from tests.conftest import HOMES_VARIABLE, SHARED
from tests.harness import Case, create_tiered, migration_case
from tests.records_asked import asked
from tests.support.waiting import HANGS_S, bounded, flushed, until
from tests.tiering_now import tier
from tests.unit.gateway.test_transport import produce
from tideline.demo.ledger import Ledger
from tideline.demo.workload import LibrdkafkaProducer
from tideline.domain.rights import Process
from tideline.errors import TidelineError
from tideline.kafka.client import KafkaCluster, KafkaConnection
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.protocol import encode_request
from tideline.kafka.security import KafkaSecurity
from tideline.object_store.client import ObjectMissing, ObjectStoreClient
from tideline.settings import ObjectStoreSettings
from tideline.stack import Stack
from tideline.stack.home import Home, write_private
from tideline.stack.kafka_jars import tool_command
from tideline.stack.secured import CLIENT, REAUTH_MS, Secured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORY = 200
MODULES = "org.apache.kafka.common.security"
MECHANISMS = f"""\
listener.name.clients.sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN,OAUTHBEARER
listener.name.clients.plain.sasl.jaas.config={MODULES}.plain.PlainLoginModule required \
user_{{user}}="{{password}}";
listener.name.clients.oauthbearer.sasl.jaas.config=\
{MODULES}.oauthbearer.OAuthBearerLoginModule required;
"""
CHECKS = checks("SASL_SSL")
DENIED = re.compile(r"Principal = User:(\S+) is Denied .* for request = (\w+)")
EVERYTHING = MetadataRequest(
    topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
)


@pytest.fixture(scope="module")
def secured_stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """One broker is enough; taken down after the tests of this file. Its clients may log in by
    other mechanisms, too, which a secured stack does not offer by itself: Kafka takes a token of
    OAUTHBEARER from anybody unless told otherwise."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "one")
    home = Path(os.environ[HOMES_VARIABLE]) / f"{process}-secured"
    home.mkdir(mode=0o755)
    password = Secured(Home.locate(home)).password(CLIENT)
    others = home / "kafka-1.properties"
    write_private(others, MECHANISMS.format(user=CLIENT, password=password))
    try:
        yield Stack.up(home, brokers=1, secure=True, settings=SHARED)
    finally:
        if request.session.testsfailed:
            Stack.take_down(home)
        else:
            others.unlink()
            Stack.purge(home)


def at_gateway(stack: Stack) -> tuple[str, int]:
    host, _, port = stack.endpoints.gateways[1].rpartition(":")
    return host, int(port)


def config(stack: Stack, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": stack.endpoints.gateway_bootstrap,
        **stack.kafka_login().librdkafka,
        **more,
    }


def counted(stack: Stack, name: str, outcome: str) -> float:
    with urlopen(
        f"http://{stack.endpoints.metrics['gateway-1']}/metrics", timeout=HANGS_S
    ) as answer:
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
        async with bounded("the end of the connection", HANGS_S):
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
    # Earlier than the product does: what is left is for a machine that is busy.
    await asyncio.sleep(REAUTH_MS / 1000 / 2)
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
    topic_id = create_tiered(admin, topic, 1, 1)
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
        assert read(stack, topic, end - 1) == list(range(end))
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


@pytest.fixture(scope="module")
def migration(
    secured_stack: Stack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Migration]:
    """Triggered by a config change, so that the gateway looks before the worker does."""
    stack = secured_stack
    way = Way(stack.endpoints.gateway_bootstrap, stack.kafka_login())
    directory, began = tmp_path_factory.mktemp("clients"), time.monotonic()
    logins = counted(stack, "authentications", "done")
    with (
        migration_case(stack, name="secured-clients") as case,
        migrated(case, [way], directory) as seen,
    ):
        assert time.monotonic() - began > 2 * REAUTH_MS / 1000, "no login has lapsed meanwhile"
        assert counted(stack, "authentications", "done") - logins > len(seen.consumers())
        yield seen


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_clients_that_log_in_see_of_a_migration_what_others_see(
    migration: Migration, check: Callable[[Migration], None]
) -> None:
    check(migration)


def unsecured_token(_: str) -> tuple[str, float]:
    """A JWS that nobody signed, as Kafka takes it where nothing else is configured (RFC 7515)."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": CLIENT, "iat": now, "exp": now + 3600})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*encoded, b""]).decode(), now + 3600


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_who_logs_in_by_another_mechanism_writes_and_reads_across_b0(
    migration: Migration, mechanism: str
) -> None:
    stack, topic = migration.case.stack, migration.case.topic
    login: dict[str, Any] = {"sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        login["oauth_cb"] = unsecured_token
    at: list[int | None] = []
    producer = Producer(config(stack, **login))
    producer.produce(
        topic, mechanism, partition=0, on_delivery=lambda error, m: at.append(error or m.offset())
    )
    flushed(producer, 60)
    (offset,) = at
    assert isinstance(offset, int), offset
    assert offset > migration.boundary > 0
    found = read(stack, topic, offset, **login)
    assert found == sorted({*found})
    assert found[0] == 0
    assert found[-1] == offset


def test_each_process_may_do_in_the_store_what_its_policy_says_and_nothing_else(
    secured_stack: Stack,
) -> None:
    stack = secured_stack

    def client(role: str) -> tuple[ObjectStoreClient, str, str]:
        settings = ObjectStoreSettings.of(stack.environment(role))
        store = ObjectStoreClient(settings)
        return store, settings.s3_bucket, f"{settings.s3_tiered_prefix}/"

    gateway, diskless, segments = client("gateway-1")
    worker, jobs = client("worker")[0], client("jobs")[0]
    tiered = stack.endpoints.s3.tiered_bucket
    gateway.put(diskless, "wal/of-a-test", b"batch")
    assert gateway.get(diskless, "wal/of-a-test") == b"batch"
    assert worker.get(diskless, "wal/of-a-test") == b"batch"
    jobs.put(tiered, f"{segments}of-a-test", b"segment")
    refused = [
        partial(gateway.delete, diskless, ["wal/of-a-test"]),
        partial(gateway.put, tiered, f"{segments}of-a-test", b"other"),
        partial(gateway.put, diskless, "elsewhere", b"other"),
        partial(worker.put, diskless, "wal/of-a-test", b"other"),
        partial(worker.delete, diskless, ["wal/of-a-test"]),
        partial(jobs.put, diskless, "wal/of-a-test", b"other"),
        partial(jobs.get, diskless, "elsewhere"),
    ]
    for what in refused:
        with pytest.raises(TidelineError, match="AccessDenied"):
            what()
    jobs.delete(diskless, ["wal/of-a-test"])
    jobs.delete(tiered, [f"{segments}of-a-test"])
    with pytest.raises(ObjectMissing):
        gateway.get(diskless, "wal/of-a-test")


def test_jobs_do_their_work_under_the_rights_of_the_table(
    migration: Migration, spark: SparkSession
) -> None:
    """Coverage reads brokers; split, merge and collection write and delete; retention judges. The
    clients before have left thousands of WAL files: rights are the same for the first of them."""
    stack, topic = migration.case.stack, migration.case.topic
    covered = run(stack, spark, lambda job: coverage(job, [topic]))
    assert covered["covered"] == 1
    assert tier(stack, topic, segment_bytes=100_000, most=40) > 0
    run(stack, spark, lambda job: gc(job, orphans=False))  # notes what nothing refers to
    let_the_grace_pass(stack)
    assert run(stack, spark, lambda job: gc(job, orphans=False))["deleted"]["wal"] > 0
    run(stack, spark, lambda job: retention(job, [topic]))
    settings = settings_of(stack)
    assert tell(settings, ObjectStoreClient(settings), print, now=True) > 0
    (row,) = asked(settings, "deleted_objects", "SELECT count(*) AS n FROM deleted_objects")
    assert row["n"] > 0
    end = read(stack, topic, migration.acknowledged()[-1][0])[-1]
    assert end >= migration.acknowledged()[-1][0]


def test_kafka_has_refused_nothing_that_gateway_worker_or_jobs_have_asked(
    migration: Migration,
) -> None:
    """The last test of this file. What jobs may not do on purpose above is CreateTopics."""
    written = migration.case.stack.log_path("kafka-1").read_text()
    assert DENIED.search(written), "the authorizer tells of nothing"
    told = [(who, api) for who, api in DENIED.findall(written) if who in {*Process}]
    assert {*told} <= {("jobs", "CreateTopics")}, told


def read(stack: Stack, topic: str, last: int, **login: Any) -> list[int]:
    """Offsets that librdkafka's consumer reads from the first one on, up to ``last`` at least."""
    consumer = Consumer(config(stack, **{"group.id": f"{topic}-readers"}, **login))
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []

    def more() -> bool | None:
        for message in consumer.consume(500, 1.0):
            assert message.error() is None, message.error()
            offset = message.offset()
            assert offset is not None
            found.append(offset)
        return (found and found[-1] >= last) or None

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
