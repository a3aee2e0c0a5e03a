"""Principals and operations, at a broker with Kafka's authorizer and at a gateway before it.

One partition of a tracked topic has a prefix in the broker and a suffix; its twin is classic. Who
may not do something at the broker hears the same of both, below B0 and from B0 on.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kio.schema.errors import ErrorCode

from tests.asked import Places, request, told
from tests.authorizing_broker import AuthorizingBroker, User, authorizing_broker
from tests.harness import create_topics, id_of
from tests.raw import message
from tests.support.waiting import HANGS_S, WITHIN_S, Wait, eventually
from tests.unit.gateway.fakes import (
    FakeObjectStore,
    GatewayPlane,
    record_batch,
    tracked_row,
    tracked_topic,
)
from tests.unit.gateway.gateway_under_test import gateway_settings
from tests.unit.gateway.test_no_right import LINES, Line
from tests.unit.gateway.tracked_bench import outcomes, produce
from tideline.domain.answers import Asked
from tideline.domain.quotas import QuotaKind, QuotaWindow
from tideline.gateway.assembly import Parts, build_parts, build_rules
from tideline.gateway.context import ConnectionRegistry
from tideline.gateway.transactions import OpenTransactions
from tideline.gateway.transport.server import GatewayServer
from tideline.kafka.client import KafkaCluster

TRACKED, TWIN, SECRET = "m-tracked", "m-twin", "hidden"
BOUNDARY, END = 5, 8
"""B0, and the high watermark."""
PLACES = Places(prefix=2, suffix=BOUNDARY, end=END, old_epoch=-1, new_epoch=0)
GRANTED = {
    "writer": AclOperation.WRITE,
    "reader": AclOperation.READ,
    "describer": AclOperation.DESCRIBE,
    "deleter": AclOperation.DELETE,
    "alterer": AclOperation.ALTER,
}
"""On every topic that begins with ``m-``; ``nobody`` has no right at all."""
USERS = ("admin", *GRANTED, "nobody")
DENIED = "TOPIC_AUTHORIZATION_FAILED"
NOT_YET_LED = ("not_leader_or_follower", "unknown_topic_or_partition")
MAY = {
    Asked.PRODUCE: {"writer"},
    Asked.FETCH_PREFIX: {"reader"},
    Asked.FETCH_SUFFIX: {"reader"},
    Asked.EARLIEST: set(GRANTED),
    Asked.LATEST: set(GRANTED),
    Asked.MAX_TIMESTAMP: set(GRANTED),
    Asked.BY_TIME: set(GRANTED),
    Asked.EPOCH_PREFIX: set(GRANTED),
    Asked.EPOCH_SUFFIX: set(GRANTED),
    Asked.DELETE_PREFIX: {"deleter"},
    Asked.DELETE_SUFFIX: {"deleter"},
}
"""Besides the administrator. Whoever has one of these rights may describe, too."""
RIGHTS_MS = 400


@dataclass
class World:
    broker: AuthorizingBroker
    gateway: tuple[str, int]
    parts: Parts
    plane: GatewayPlane
    topic_id: UUID
    admin: AdminClient


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    directory = tmp_path_factory.mktemp("authorizing")
    async with AsyncExitStack() as exits:
        broker = exits.enter_context(authorizing_broker(directory, USERS[1:]))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        create_topics(admin, *(NewTopic(name, 1, 1) for name in (TRACKED, TWIN, SECRET)))
        grant(admin, "m-", GRANTED)
        plane = GatewayPlane()
        gateway, parts = await serve(exits, directory, broker, plane)
        topic_id = id_of(admin, TRACKED)
        plane.put(
            tracked_topic(
                tracked_row(
                    topic_id=topic_id, generation=2, boundary=BOUNDARY, boundary_epoch=0, ready=True
                ),
                name=TRACKED,
                topic_id=topic_id,
            )
        )
        owner = await User.log_in(broker.users, "admin")
        for name, count in ((TRACKED, BOUNDARY), (TWIN, END)):
            await first_written(owner, name, count)
        owner.close()
        parts.tracking.replace_all([topic.tracked() for topic in plane.topics.rows])
        owner = await User.log_in(gateway, "admin")
        answer = outcomes(await owner.ask(produce((TRACKED, 0, record_batch(END - BOUNDARY)))))
        assert answer == {(TRACKED, 0): ("none", BOUNDARY)}
        owner.close()
        yield World(broker, gateway, parts, plane, topic_id, admin)


async def first_written(owner: User, name: str, count: int) -> None:
    """A broker that has just been given a topic may not lead it yet."""

    async def taken() -> bool:
        answer = outcomes(await owner.ask(produce((name, 0, record_batch(count)))))
        if answer == {(name, 0): ("none", 0)}:
            return True
        assert answer[name, 0][0] in NOT_YET_LED, answer
        return False

    await eventually(f"{name} to take records", taken, WITHIN_S)


async def serve(
    exits: AsyncExitStack, directory: Path, broker: AuthorizingBroker, plane: GatewayPlane
) -> tuple[tuple[str, int], Parts]:
    """A gateway whose clients are led to the listener where they log in; what it asks itself it
    asks at the owners'."""
    host, port = broker.users
    settings = gateway_settings(
        f"{host}:{port}",
        directory,
        gateway_listen="127.0.0.1:1",
        gateway_rights_ms=str(RIGHTS_MS),
        gateway_lease_ms="120000",
        gateway_rack="here",
    ).model_copy(update={"gateway_listen": ("127.0.0.1", 0)})
    cluster = KafkaCluster([broker.owners], timeout_ms=10_000)
    exits.callback(cluster.close)
    connections = ConnectionRegistry()
    parts = build_parts(settings, plane, FakeObjectStore(), cluster, connections)
    exits.push_async_callback(parts.close, 0.0)
    await parts.lease.renew(parts.sync.learn_anew)
    rules = build_rules(
        parts,
        plane,
        cluster,
        OpenTransactions(cluster),
        patience_s=10,
    )
    server = GatewayServer(settings, rules, connections, parts.room)
    await server.start()
    exits.push_async_callback(server.stop, 0.2)
    return server.address, parts


def grant(admin: AdminClient, prefix: str, granted: dict[str, AclOperation]) -> None:
    bindings = [_binding(user, prefix, operation) for user, operation in granted.items()]
    for made in admin.create_acls(bindings).values():
        made.result(HANGS_S)


def _binding(
    user: str, prefix: str, operation: AclOperation, kind: ResourceType = ResourceType.TOPIC
) -> AclBinding:
    return AclBinding(
        kind,
        prefix,
        ResourcePatternType.PREFIXED,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )


@pytest.mark.parametrize("asked", MAY)
async def test_who_may_what_is_the_same_at_the_broker_and_at_the_gateway_on_both_sides_of_b0(
    world: World, asked: Asked
) -> None:
    batch = record_batch(1)
    for user in USERS:
        at_broker = await User.log_in(world.broker.users, user)
        at_gateway = await User.log_in(world.gateway, user)
        of_twin = told(asked, await at_broker.ask(request(asked, TWIN, 0, PLACES, batch)))
        ours = told(asked, await at_gateway.ask(request(asked, TRACKED, 0, PLACES, batch)))
        passed = told(asked, await at_gateway.ask(request(asked, TWIN, 0, PLACES, batch)))
        expected = "NONE" if user == "admin" or user in MAY[asked] else DENIED
        assert (of_twin.error, ours.error, passed.error) == (expected,) * 3, user
        if expected == DENIED:
            assert ours == of_twin, user
        at_broker.close()
        at_gateway.close()


async def test_a_topic_by_its_id_is_refused_as_at_the_broker(world: World) -> None:
    twin = id_of(world.admin, TWIN)
    for user in ("nobody", "describer"):
        at_broker = await User.log_in(world.broker.users, user)
        at_gateway = await User.log_in(world.gateway, user)
        for asked in (produce_by_id, fetch_by_id):
            of_twin = codes(await at_broker.ask(asked(twin)))
            ours = codes(await at_gateway.ask(asked(world.topic_id)))
            assert of_twin == ours == [DENIED], (asked, user)
            unknown = UUID(int=77)
            assert codes(await at_broker.ask(asked(unknown))) == codes(
                await at_gateway.ask(asked(unknown))
            )
        at_broker.close()
        at_gateway.close()


def produce_by_id(topic_id: UUID) -> Any:
    rows = [{"index": 0, "records": record_batch(1)}]
    return message(
        "Produce",
        13,
        transactional_id=None,
        acks=-1,
        timeout=timedelta(seconds=5),
        topic_data=[{"topic_id": topic_id, "partition_data": rows}],
    )


def fetch_by_id(topic_id: UUID) -> Any:
    rows = [{"partition": 0, "fetch_offset": BOUNDARY, "partition_max_bytes": 1000}]
    return message(
        "Fetch",
        17,
        max_wait=timedelta(0),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic_id": topic_id, "partitions": rows}],
        forgotten_topics_data=[],
        rack_id="",
    )


async def test_other_admin_apis_refuse_at_the_gateway_whom_the_broker_refuses(world: World) -> None:
    """CreatePartitions of a tracked topic, its producers, transactions and configs."""
    may = {
        "DescribeProducers": {"reader"},
        "CreatePartitions": {"alterer"},
        "AddPartitionsToTxn": set[str](),
        "IncrementalAlterConfigs": set[str](),
        "DescribeConfigs": set[str](),
        "DeleteTopics": set[str](),
    }
    for api, allowed in may.items():
        for user in (*GRANTED, "nobody"):
            if user in allowed or (api == "DeleteTopics" and user == "deleter"):
                continue
            at_broker = await User.log_in(world.broker.users, user)
            at_gateway = await User.log_in(world.gateway, user)
            of_twin = codes(await at_broker.ask(admin_request(api, TWIN)))
            ours = codes(await at_gateway.ask(admin_request(api, TRACKED)))
            assert of_twin == ours, (api, user)
            assert ours, (api, user)
            assert set(ours) <= {DENIED, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"}, api
            at_broker.close()
            at_gateway.close()
        for user in allowed:
            at_gateway = await User.log_in(world.gateway, user)
            assert DENIED not in codes(await at_gateway.ask(admin_request(api, TRACKED))), api
            at_gateway.close()


def admin_request(api: str, topic: str) -> Any:
    second = timedelta(seconds=1)
    configs = {"resource_type": 2, "resource_name": topic}
    entry = {"name": "diskless.enable", "config_operation": 0, "value": "false"}
    about = {"name": topic, "partition_indexes": [0]}
    grown = {"name": topic, "count": 2, "assignments": None}
    values: dict[str, dict[str, Any]] = {
        "DescribeProducers": {"topics": [about]},
        "CreatePartitions": {"topics": [grown], "timeout": second, "validate_only": True},
        "AddPartitionsToTxn": {
            "v3_and_below_transactional_id": "tx",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
        },
        "IncrementalAlterConfigs": {
            "resources": [{**configs, "configs": [entry]}],
            "validate_only": False,
        },
        "DescribeConfigs": {
            "resources": [{**configs, "configuration_keys": None}],
            "include_synonyms": False,
            "include_documentation": False,
        },
        "DeleteTopics": {"topics": [{"name": topic, "topic_id": None}], "timeout": second},
    }
    versions = {
        "DescribeProducers": 0,
        "CreatePartitions": 3,
        "AddPartitionsToTxn": 3,
        "IncrementalAlterConfigs": 1,
        "DescribeConfigs": 4,
        "DeleteTopics": 6,
    }
    return message(api, versions[api], **values[api])


def codes(answer: Any) -> list[str]:
    """Every error of an answer, in Kafka's spelling."""
    found = []
    for name in getattr(answer, "__dataclass_fields__", {}):
        value = getattr(answer, name)
        if name in ("error_code", "partition_error_code"):
            found.append(value.name.upper())
        elif isinstance(value, tuple):
            found += [code for part in value for code in codes(part)]
    return [code for code in found if code != "NONE"]


@pytest.mark.parametrize("line", LINES, ids=lambda one: f"{one.api}-{one.version}-{one.why}")
async def test_who_has_no_right_hears_of_every_name_what_the_broker_says(
    world: World, line: Line
) -> None:
    """Each field of the answer, of a tracked, a classic and an absent topic. The transactional id
    may be used, so that nothing but the topics' rights refuses."""
    of_id = _binding("nobody", "tx", AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID)
    for made in world.admin.create_acls([of_id]).values():
        made.result(HANGS_S)
    twin = id_of(world.admin, TWIN)
    keys = (world.topic_id, twin) if line.by_id else (TRACKED, TWIN, "m-absent")
    answers = []
    for where in (world.broker.users, world.gateway):
        client = await User.log_in(where, "nobody")
        for key in keys:
            answer = await client.ask(message(line.api, line.version, **line.asked(key)))
            answers.append(without_addresses(repr(answer).replace(repr(key), "KEY")))
        client.close()
    assert set(answers) == {answers[0]}


def without_addresses(answer: str) -> str:
    """And without how long the client is throttled."""
    return re.sub(r"throttle_time=datetime.timedelta\([^)]*\)|port=\d+", "", answer)


async def test_a_right_that_is_taken_away_ends_within_its_time_and_one_that_is_given_works(
    world: World,
) -> None:
    client = await User.log_in(world.gateway, "nobody")
    ask = request(Asked.LATEST, TRACKED, 0, PLACES, b"")
    assert told(Asked.LATEST, await client.ask(ask)).error == DENIED
    grant(world.admin, TRACKED, {"nobody": AclOperation.DESCRIBE})
    try:
        await until_told(world, client, "NONE")
    finally:
        binding = _binding("nobody", TRACKED, AclOperation.DESCRIBE)
        for gone in world.admin.delete_acls([_filter(binding)]).values():
            gone.result(HANGS_S)
    await until_told(world, client, DENIED)
    client.close()


async def until_told(world: World, client: User, error: str) -> None:
    async def is_told() -> bool:
        answer = await client.ask(request(Asked.LATEST, TRACKED, 0, PLACES, b""))
        return told(Asked.LATEST, answer).error == error

    await eventually(f"{error} to be told", is_told, 20)


def _filter(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


async def test_a_producer_of_the_suffix_keeps_to_the_quota_that_kafka_has_for_it(
    world: World,
) -> None:
    """And is told for how long it is not read."""
    rate, size = 40_000, 20_000
    limit = message(
        "AlterClientQuotas",
        1,
        entries=[
            {
                "entity": [{"entity_type": "client-id", "entity_name": "heavy"}],
                "ops": [{"key": "producer_byte_rate", "value": float(rate), "remove": False}],
            }
        ],
        validate_only=False,
    )
    owner = await User.connect(world.broker.owners)
    (answer,) = (await owner.ask(limit)).entries
    assert answer.error_code is ErrorCode.none, answer
    quotas = world.parts.quotas

    async def is_known() -> bool:
        await quotas.look()
        return bool(quotas.quotas.get(QuotaKind.PRODUCE))

    await eventually("the quota to be known", is_known, 20)
    assert quotas.window == QuotaWindow(11, 1.0), "the broker's own"
    client = await User.log_in(world.gateway, "writer", "heavy")
    batch = record_batch(1, payload=b"x" * size)
    sent, throttled = 0, 0.0
    wait = Wait("the end of a producer's time", HANGS_S)
    while wait.waited < 16:
        wait.check()
        answer = await client.ask(produce((TRACKED, 0, batch)))
        assert {code for code, _ in outcomes(answer).values()} == {"none"}
        sent += size
        throttled = max(throttled, answer.throttle_time.total_seconds())
    took, slowness = wait.waited, wait.slowness
    client.close()
    owner.close()
    assert throttled > 0
    # The window of an idle client is spent first: ten seconds' worth, as at a broker. Who gets no
    # core for what he sends is below his quota.
    assert sent / (took + 10) <= 1.25 * rate
    assert sent / (took / slowness + 10) >= 0.75 * rate
