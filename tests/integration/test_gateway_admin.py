"""The Admin API through a gateway: the trigger, held configs, and the life of tracked topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import KafkaProducer

from tests.harness import delete_topics, described, id_of, until_taken
from tests.support.waiting import HANGS_S, WITHIN_S, eventually, flushed, ran, until
from tideline import control_plane
from tideline.kafka.client import KafkaCluster
from tideline.kafka.topic_identity import TopicIdentity
from tideline.migration.identity import NameCheck, Verdict, check_name, forget
from tideline.settings import WorkerSettings
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

PROBE = Path(__file__).parent / "java" / "AbortableProbe.java"
DISKLESS = {"diskless.enable": "true"}
_names = count()


@pytest.fixture(scope="module")
def admin(stack: Stack) -> AdminClient:
    return AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})


@pytest.fixture
def name() -> str:
    return f"admin-{next(_names)}-{time.monotonic_ns() % 1_000_000}"


@pytest.fixture
def born(admin: AdminClient, name: str) -> Iterator[str]:
    """A topic born diskless."""
    create(admin, name, 2, max_message_bytes="500000", **DISKLESS)
    yield name
    delete_topics(admin, name)


def create(admin: AdminClient, name: str, partitions: int = 1, **configs: str) -> None:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    (made,) = admin.create_topics([NewTopic(name, partitions, 1, config=settings)]).values()
    made.result(HANGS_S)
    until(f"{name} to have leaders", lambda: has_leaders(admin, name, partitions))


def has_leaders(admin: AdminClient, name: str, partitions: int) -> bool:
    """Brokers learn of a new topic after its creation is answered."""
    found = admin.list_topics(timeout=HANGS_S).topics.get(name)
    return (
        found is not None
        and len(found.partitions) == partitions
        and all(p.leader > 0 for p in found.partitions.values())
    )


def altered(
    admin: AdminClient,
    name: str,
    key: str,
    value: str | None,
    operation: AlterConfigOpType = AlterConfigOpType.SET,
    **options: object,
) -> None:
    entry = ConfigEntry(key, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    alter(admin, resource, **options)


def alter(admin: AdminClient, resource: ConfigResource, **options: object) -> None:
    def alter_once() -> None:
        (done,) = admin.incremental_alter_configs([resource], **options).values()
        done.result(HANGS_S)

    until_taken(alter_once)


def filled(stack: Stack, name: str) -> None:
    send(stack, name, b"x", partition=0)


def requests(stack: Stack, name: str) -> list[tuple[str, UUID]]:
    with psycopg.connect(stack.endpoints.postgres_dsn("postgres")) as connection:
        return connection.execute(
            "SELECT requested_by, topic_id FROM tideline.migration_requests WHERE topic = %s",
            [name],
        ).fetchall()


def on_broker(stack: Stack, name: str) -> dict[str, ConfigEntry]:
    """Configs as the broker itself has them."""
    return described(broker_admin(stack), name)


def broker_admin(stack: Stack) -> AdminClient:
    """A client that goes round the gateways."""
    return AdminClient({"bootstrap.servers": stack.endpoints.kafka_bootstrap})


def test_a_config_change_requests_the_migration(
    stack: Stack, admin: AdminClient, name: str
) -> None:
    create(admin, name, remote_storage_enable="true")
    filled(stack, name)
    altered(admin, name, "diskless.enable", "true", validate_only=True)
    assert requests(stack, name) == []
    altered(admin, name, "diskless.enable", "true")
    altered(admin, name, "diskless.enable", "true")
    ((asked_by, topic_id),) = requests(stack, name)
    assert topic_id == id_of(admin, name)
    assert asked_by.startswith('"User:ANONYMOUS" from 127.0.0.1:')
    assert ', client id "rdkafka" (through tideline_gateway_' in asked_by
    assert "diskless.enable" not in on_broker(stack, name)
    admin.delete_topics([name])


def test_other_configs_of_the_same_request_reach_kafka(
    stack: Stack, admin: AdminClient, name: str
) -> None:
    create(admin, name)
    entries = [
        ConfigEntry("diskless.enable", "true", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET),
    ]
    alter(admin, ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries))
    assert requests(stack, name), "an empty topic needs no tiered storage"
    until_shown(broker_admin(stack), name, "retention.ms", "7200000")
    admin.delete_topics([name])


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"cleanup_policy": "compact"}, "cleanup.policy"),
        ({}, "remote.storage.enable"),
        (
            {
                "remote_storage_enable": "true",
                "remote_log_copy_disable": "true",
                "local_retention_ms": "-2",
                "local_retention_bytes": "-2",
            },
            "remote.log.copy.disable",
        ),
    ],
    ids=["compacted", "without tiered storage", "read-only tiered storage"],
)
def test_a_topic_that_cannot_migrate_is_refused_with_rule_and_remedy(
    stack: Stack, admin: AdminClient, name: str, configs: dict[str, str], said: str
) -> None:
    create(admin, name, **configs)
    if "cleanup_policy" not in configs:
        filled(stack, name)
    with pytest.raises(KafkaException, match="INVALID_CONFIG") as refused:
        altered(admin, name, "diskless.enable", "true")
    assert said in str(refused.value)
    assert requests(stack, name) == []
    admin.delete_topics([name])


@pytest.mark.parametrize("topic", ["no-such-topic", "__consumer_offsets"])
def test_an_unknown_or_internal_topic_is_refused(admin: AdminClient, topic: str) -> None:
    with pytest.raises(KafkaException):
        altered(admin, topic, "diskless.enable", "true")


def test_a_wrong_value_of_the_trigger_is_refused(admin: AdminClient, born: str) -> None:
    with pytest.raises(KafkaException, match="write true or false"):
        altered(admin, born, "diskless.enable", "perhaps")
    with pytest.raises(KafkaException, match="cannot be written"):
        altered(admin, born, "diskless.migration.state", "HYBRID")


def test_a_diskless_topic_does_not_come_back(admin: AdminClient, born: str) -> None:
    for value, operation in (
        ("false", AlterConfigOpType.SET),
        (None, AlterConfigOpType.DELETE),
    ):
        with pytest.raises(KafkaException, match="tideline abort"):
            altered(admin, born, "diskless.enable", value, operation)
    altered(admin, born, "diskless.enable", "true")


def test_describe_configs_shows_what_the_user_set(
    stack: Stack, admin: AdminClient, born: str
) -> None:
    shown = described(admin, born)
    assert shown["diskless.enable"].value == "true"
    assert shown["diskless.migration.state"].value == "DISKLESS_ONLY"
    assert shown["diskless.migration.state"].is_read_only
    assert shown["max.message.bytes"].value == "500000"
    assert on_broker(stack, born)["max.message.bytes"].value == "78"


def test_a_classic_topic_shows_the_default(admin: AdminClient, name: str) -> None:
    create(admin, name)
    shown = described(admin, name)
    assert shown["diskless.enable"].value == "false"
    assert shown["diskless.enable"].is_default
    admin.delete_topics([name])


def test_a_held_config_is_changed_for_the_user_and_not_in_kafka(
    stack: Stack, admin: AdminClient, born: str
) -> None:
    altered(admin, born, "max.message.bytes", "600000")
    until_shown(admin, born, "max.message.bytes", "600000")
    assert on_broker(stack, born)["max.message.bytes"].value == "78"
    with pytest.raises(KafkaException, match="out of range"):
        altered(admin, born, "max.message.bytes", "-5")
    altered(admin, born, "max.message.bytes", None, AlterConfigOpType.DELETE)
    until_shown(admin, born, "max.message.bytes", "1048588")
    altered(admin, born, "retention.ms", "3600000")
    until_shown(broker_admin(stack), born, "retention.ms", "3600000")


def test_what_the_suffix_cannot_honour_is_refused_and_its_limits_hold_from_the_answer_on(
    stack: Stack, admin: AdminClient, born: str
) -> None:
    with pytest.raises(KafkaException, match="compaction"):
        altered(admin, born, "cleanup.policy", "compact")
    with pytest.raises(KafkaException, match="as producers wrote them"):
        altered(admin, born, "compression.type", "gzip")
    altered(admin, born, "max.message.bytes", "300")
    # The gateway that answered holds to them at once, another one when it has heard.
    until("larger records to be refused", lambda: is_too_large(stack, born, b"x" * 400))
    altered(admin, born, "max.message.bytes", None, AlterConfigOpType.DELETE)
    until("them to be taken again", lambda: not is_too_large(stack, born, b"x" * 400))


def send(
    stack: Stack, name: str, value: bytes, bootstrap: str | None = None, partition: int = -1
) -> None:
    """One record, through the gateways. Raises what its delivery report says."""
    failures: list[Any] = []
    servers = bootstrap or stack.endpoints.gateway_bootstrap
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(
        name, value, partition=partition, on_delivery=lambda error, _: failures.append(error)
    )
    flushed(producer, 30)
    assert len(failures) == 1
    if failures[0] is not None:
        raise KafkaException(failures[0])


def is_too_large(stack: Stack, name: str, value: bytes) -> bool:
    """Whether a record is refused for its size; raises what it is refused for else."""
    try:
        send(stack, name, value)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
            raise
        return True
    return False


def until_shown(admin: AdminClient, name: str, key: str, value: str) -> None:
    until(f"{key}={value} of {name}", lambda: described(admin, name)[key].value == value)


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"cleanup_policy": "compact", **DISKLESS}, "cleanup.policy"),
        ({"compression_type": "gzip", **DISKLESS}, "compression.type"),
        ({"diskless.enable": "yes"}, "write true or false"),
        ({"segment_ms": "no number", **DISKLESS}, "segment.ms"),
    ],
)
def test_a_topic_that_cannot_be_born_diskless_is_not_created(
    stack: Stack, admin: AdminClient, name: str, configs: dict[str, str], said: str
) -> None:
    with pytest.raises(KafkaException, match=said):
        create(admin, name, **configs)
    assert name not in admin.list_topics(timeout=HANGS_S).topics
    with psycopg.connect(stack.endpoints.postgres_dsn("postgres")) as connection:
        rows = connection.execute("SELECT 1 FROM tideline.topics WHERE name = %s", [name])
        assert rows.fetchall() == []


def test_creating_a_diskless_topic_twice_changes_nothing(admin: AdminClient, born: str) -> None:
    before = id_of(admin, born)
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        create(admin, born, 2, **DISKLESS)
    assert id_of(admin, born) == before
    assert described(admin, born)["diskless.enable"].value == "true"


def test_new_partitions_of_a_diskless_topic_are_diskless(
    stack: Stack, admin: AdminClient, born: str
) -> None:
    (grown,) = admin.create_partitions([NewPartitions(born, 4)]).values()
    grown.result(HANGS_S)
    with psycopg.connect(stack.endpoints.postgres_dsn("postgres")) as connection:
        rows = connection.execute(
            "SELECT partition, diskless_log_start_offset FROM tideline.logs"
            " WHERE topic_id = %s ORDER BY partition",
            [id_of(admin, born)],
        ).fetchall()
    assert rows == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_a_name_can_be_used_again_after_deletion(
    stack: Stack, admin: AdminClient, name: str
) -> None:
    create(admin, name, **DISKLESS)
    first = id_of(admin, name)
    filled(stack, name)
    delete_topics(admin, name)
    with psycopg.connect(stack.endpoints.postgres_dsn("postgres")) as connection:
        assert connection.execute(
            "SELECT status FROM tideline.topics WHERE topic_id = %s", [first]
        ).fetchall() == [("deleted",)]
    create(admin, name)
    until(f"the new {name}", lambda: id_of(admin, name) != first)
    until_shown(admin, name, "diskless.enable", "false")
    filled(stack, name)
    admin.delete_topics([name])


def test_a_topic_that_is_replaced_past_the_gateways_is_refused_until_it_is_forgotten(
    stack: Stack, admin: AdminClient, name: str
) -> None:
    """By name (librdkafka): nothing goes to the dead suffix once a gateway has looked."""
    create(admin, name, **DISKLESS)
    old = id_of(admin, name)
    filled(stack, name)
    past = AdminClient({"bootstrap.servers": stack.endpoints.kafka_bootstrap})
    delete_topics(past, name)
    create(past, name)
    # Any broker is asked, and one may know the topic before.
    new = until("the new topic", lambda: found if (found := id_of(past, name)) != old else None)
    until("a gateway to refuse the name", lambda: admin_hides(admin, name))
    settings = WorkerSettings.of(stack.environment("worker"))

    async def forgotten() -> tuple[NameCheck, NameCheck]:
        async with (
            control_plane.connect(settings, application_name="test") as plane,
            KafkaCluster(settings.kafka_bootstrap) as cluster,
        ):
            identity = TopicIdentity(cluster)

            async def known() -> NameCheck | None:
                """One of the brokers has not heard of the deletion yet: as it says, check again."""
                found = await check_name(plane, identity, name)
                return None if found.verdict is Verdict.UNKNOWN else found

            before = await eventually("the brokers to agree on the name", known, WITHIN_S)
            if before.verdict is Verdict.GONE:
                await forget(plane, identity, name, old, "a test", "it was replaced")
            return before, await check_name(plane, identity, name)

    before, after = asyncio.run(forgotten())
    # The worker may have buried it already.
    assert before.verdict in (Verdict.GONE, Verdict.NOT_TRACKED), before
    assert (after.verdict, after.kafka_id) == (Verdict.NOT_TRACKED, new)
    until("the gateways to show the new topic", lambda: not admin_hides(admin, name))
    filled(stack, name)
    reader = Consumer({"bootstrap.servers": stack.endpoints.kafka_bootstrap, "group.id": name})
    low, high = reader.get_watermark_offsets(TopicPartition(name, 0), timeout=HANGS_S)
    reader.close()
    assert (low, high) == (0, 1), "in Kafka's own log of the new topic"
    past.delete_topics([name])


def admin_hides(admin: AdminClient, name: str) -> bool:
    found = admin.list_topics(name, timeout=HANGS_S).topics.get(name)
    return found is None or found.error is not None


def test_librdkafka_can_abort_a_refused_transaction_and_go_on(
    stack: Stack, admin: AdminClient, born: str, name: str
) -> None:
    elsewhere = f"{name}-classic"
    create(admin, elsewhere)
    producer = Producer(
        {
            "bootstrap.servers": stack.endpoints.gateway_bootstrap,
            "transactional.id": f"rd-{name}",
        }
    )
    producer.init_transactions(HANGS_S)
    producer.begin_transaction()
    producer.produce(born, b"refused")
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(HANGS_S)
    error = refused.value.args[0]
    assert error.txn_requires_abort()
    assert not error.fatal()
    producer.abort_transaction(HANGS_S)
    producer.begin_transaction()
    producer.produce(elsewhere, b"committed")
    producer.commit_transaction(HANGS_S)
    admin.delete_topics([elsewhere])


def test_kafka_python_can_abort_a_refused_transaction_and_go_on(
    stack: Stack, admin: AdminClient, born: str, name: str
) -> None:
    elsewhere = f"{name}-classic"
    create(admin, elsewhere)
    producer = KafkaProducer(
        bootstrap_servers=stack.endpoints.gateway_bootstrap, transactional_id=f"kp-{name}"
    )
    producer.init_transactions()
    producer.begin_transaction()
    with pytest.raises(Exception, match="TransactionAbortable"):
        producer.send(born, b"refused").get(HANGS_S)
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(elsewhere, b"committed").get(HANGS_S)
    producer.commit_transaction()
    producer.close()
    admin.delete_topics([elsewhere])


def test_the_java_client_can_abort_a_refused_transaction_and_go_on(
    stack: Stack, admin: AdminClient, born: str, name: str
) -> None:
    elsewhere = f"{name}-classic"
    create(admin, elsewhere)
    command = tool_command(str(PROBE), stack.endpoints.gateway_bootstrap, born, elsewhere, name)
    done = ran(command, text=True)
    lines = done.stdout.split("\n")
    assert lines[0].startswith("REFUSED"), (done.stdout, done.stderr[-2000:])
    assert "TransactionAbortableException" in lines[0]
    assert lines[1:3] == ["ABORTED", "ELSEWHERE"]
    admin.delete_topics([elsewhere])
