"""What the gateways answer by rules of their own beside records, in raw frames (docs/apis.md).

Each is compared with what brokers say themselves: the same but for addresses, or wrong of a topic
that is tracked, and then kept from clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from tests.harness import counted, create_topics, delete_topics, described
from tests.integration.test_answers import RECORDS, STATES, Held, settle_coordinators
from tests.integration.test_passed_apis import EVERY, OK
from tests.raw import GROUP, Doors, doors
from tests.support.waiting import until
from tests.unit.gateway.fakes import record_batch
from tideline.domain.answers import Role, State
from tideline.domain.api_answers import DESCRIBE_PRODUCERS, WRITE_TXN_MARKERS, Whose
from tideline.domain.request_handling import RouteKind
from tideline.stack import Stack

BELOW, ABOVE = 5_000_000, 5_000_001
"""Producers who wrote before the topic was tracked, and after."""
LAPSED = ErrorCode.not_leader_or_follower
KIND = {State.PENDING: RouteKind.PENDING, State.QUIESCING: RouteKind.QUIESCING}
"""Of a route; the other states have their B0."""


def told(stack: Stack, ask: Callable[[], object], wanted: object, lapsed: object) -> None:
    """It is told what is wanted. A gateway whose lease has lapsed for a moment refuses what is
    tracked, and is asked once more."""
    found = ask()
    if found == lapsed != wanted:
        until(
            "the leases to be held",
            lambda: counted(stack, "inkless_gateway_lease_valid") == len(stack.endpoints.gateways),
        )
        found = ask()
    assert found == wanted


def write(asked: Doors, held: Held, partition: int, producer: int) -> ErrorCode:
    """One idempotent batch."""
    batch = record_batch(
        2, producer_id=producer, epoch=0, sequence=0, max_timestamp=time.time_ns() // 1_000_000
    )
    told = asked.ask(
        "Produce", held.nodes[partition][Role.LEADER], version=9, transactional_id=None, acks=-1,
        timeout=timedelta(seconds=30),
        topic_data=[
            {"name": held.name, "partition_data": [{"index": partition, "records": batch}]}
        ],
    )  # fmt: skip
    (code,) = (p.error_code for t in told.responses for p in t.partition_responses)
    assert isinstance(code, ErrorCode)
    return code


@pytest.fixture(scope="module")
def held(stack: Stack) -> Iterator[Held]:
    settle_coordinators(stack)
    made = Held(stack)
    made.fill()
    with doors(stack.endpoints.brokers) as brokers:
        assert {write(brokers, made, p, BELOW) for p in EVERY} == {OK}
    made.track()
    made.hold()
    with doors(stack.endpoints.gateways) as asked:
        for state in (State.NOT_READY, State.READY, State.NO_PREFIX):
            number = STATES.index(state)
            told(stack, lambda number=number: write(asked, made, number, ABOVE), OK, LAPSED)  # type: ignore[misc]
    yield made
    delete_topics(made.admin, made.name)


def at(asked: Doors, node: Any) -> str:
    return asked.addresses.get(int(node), "nobody's")


def addresses(brokers: Any) -> dict[int, str]:
    nodes = ((getattr(b, "node_id", None) or b.broker_id, b) for b in brokers)
    return {int(node): f"{b.host}:{b.port}" for node, b in nodes}


def layout(asked: Doors, held: Held) -> tuple[object, object]:
    """Of the topic, by Metadata and by DescribeTopicPartitions."""
    named = asked.ask(
        "Metadata", topics=[{"topic_id": None, "name": held.name}],
        allow_auto_topic_creation=False, include_topic_authorized_operations=False,
    )  # fmt: skip
    assert addresses(named.brokers) == dict(asked.addresses)
    paged = asked.ask(
        "DescribeTopicPartitions", topics=[{"name": held.name}], response_partition_limit=100,
        cursor=None,
    )  # fmt: skip
    rows = [
        sorted(
            (p.partition_index, p.leader_id, tuple(sorted(p.replica_nodes)), p.error_code)
            for t in told.topics
            for p in t.partitions
        )
        for told in (named, paged)
    ]
    return tuple(rows[0]), tuple(rows[1])


def test_addresses_are_the_gateways_and_the_rest_is_as_brokers_say(
    stack: Stack, held: Held
) -> None:
    with doors(stack.endpoints.gateways) as asked, doors(stack.endpoints.brokers) as brokers:
        of_gateways, of_brokers = layout(asked, held), layout(brokers, held)
        assert of_gateways == of_brokers
        assert of_gateways[0] == of_gateways[1]
        group = f"whose-{held.name}"
        assert asked.coordinator(group) == brokers.coordinator(group)
        for side in (asked, brokers):
            (told,) = side.ask(
                "FindCoordinator", key_type=GROUP, coordinator_keys=[group]
            ).coordinators
            assert f"{told.host}:{told.port}" == at(side, told.node_id)
            cluster = side.ask(
                "DescribeCluster", include_cluster_authorized_operations=False, endpoint_type=1,
                include_fenced_brokers=True,
            )  # fmt: skip
            assert addresses(cluster.brokers) == dict(side.addresses)


def producers(asked: Doors, held: Held, partition: int) -> tuple[ErrorCode, set[int]]:
    told = asked.ask(
        "DescribeProducers", held.nodes[partition][Role.LEADER],
        topics=[{"name": held.name, "partition_indexes": [partition]}],
    )  # fmt: skip
    ((row,),) = (topic.partitions for topic in told.topics)
    return row.error_code, {int(p.producer_id) for p in row.active_producers}


@pytest.mark.parametrize("state", STATES)
def test_the_producers_of_a_partition_are_the_brokers_before_the_boundary_and_the_suffixs_then(
    stack: Stack, held: Held, state: State
) -> None:
    partition = STATES.index(state)
    with doors(stack.endpoints.gateways) as asked, doors(stack.endpoints.brokers) as brokers:
        of_broker = producers(brokers, held, partition)
        assert of_broker == (OK, {BELOW})
        rule = DESCRIBE_PRODUCERS.answer(KIND.get(state, RouteKind.SUFFIX))
        nothing: tuple[ErrorCode, set[int]] = (LAPSED, set())
        if state is State.QUIESCING:
            assert rule.whose is Whose.CONFIRMED
            assert producers(asked, held, partition) == nothing, "nothing is confirmed now"
            return
        if rule.whose is Whose.CONFIRMED:
            wanted = of_broker
        else:
            assert rule.whose is Whose.SUFFIX
            wanted = (OK, {BELOW, ABOVE})
        told(stack, lambda: producers(asked, held, partition), wanted, nothing)


def end(asked: Doors, held: Held, partition: int) -> int:
    """Where a broker's log ends."""
    told = asked.ask(
        "ListOffsets", held.nodes[partition][Role.LEADER], replica_id=-1, isolation_level=0,
        timeout=timedelta(seconds=30),
        topics=[{"name": held.name, "partitions": [
            {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
        ]}],
    )  # fmt: skip
    ((row,),) = (topic.partitions for topic in told.topics)
    return int(row.offset)


def mark(asked: Doors, held: Held, partition: int) -> ErrorCode:
    """An administrator's abort of a transaction that is not there."""
    told = asked.ask(
        "WriteTxnMarkers", held.nodes[partition][Role.LEADER], version=1,
        markers=[{
            "producer_id": BELOW + 100, "producer_epoch": 0, "transaction_result": False,
            "coordinator_epoch": 0,
            "topics": [{"name": held.name, "partition_indexes": [partition]}],
        }],
    )  # fmt: skip
    ((row,),) = (topic.partitions for m in told.markers for topic in m.topics)
    assert isinstance(row.error_code, ErrorCode)
    return row.error_code


@pytest.mark.parametrize("state", STATES)
def test_an_administrators_marker_reaches_a_log_before_the_pause_only(
    stack: Stack, held: Held, state: State
) -> None:
    partition = STATES.index(state)
    rule = WRITE_TXN_MARKERS.answer(KIND.get(state, RouteKind.SUFFIX))
    with doors(stack.endpoints.gateways) as asked, doors(stack.endpoints.brokers) as brokers:
        before = end(brokers, held, partition)
        assert before == RECORDS + 2
        wanted = OK if rule.whose is Whose.KAFKA else ErrorCode(rule.error.value)
        told(stack, lambda: mark(asked, held, partition), wanted, LAPSED)
        if rule.whose is Whose.KAFKA:
            until("the marker", lambda: end(brokers, held, partition) == before + 1)
            assert mark(brokers, held, partition) is OK
        else:
            assert end(brokers, held, partition) == before


def test_to_replace_all_configs_of_a_diskless_topic_leaves_what_is_held(stack: Stack) -> None:
    """AlterConfigs sets back what it does not name; a broker would open the log that has ended."""
    admin = AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})
    brokers = AdminClient({"bootstrap.servers": stack.endpoints.kafka_bootstrap})
    name = f"replaced-{time.monotonic_ns()}"
    own = {"diskless.enable": "true", "max.message.bytes": "500000"}
    create_topics(admin, NewTopic(name, 1, 1, config=own))

    def shown(client: AdminClient, wanted: Mapping[str, str]) -> bool:
        found = described(client, name)
        return all(found[key].value == value for key, value in wanted.items())

    until("its configs", lambda: shown(admin, own) and shown(brokers, {"max.message.bytes": "78"}))
    with doors(stack.endpoints.gateways) as asked:
        told = asked.ask(
            "AlterConfigs", validate_only=False,
            resources=[{"resource_type": 2, "resource_name": name, "configs": [
                {"name": "retention.ms", "value": "7200000"}
            ]}],
        )  # fmt: skip
    assert [r.error_code for r in told.responses] == [OK]
    then = {"diskless.enable": "true", "max.message.bytes": "1048588", "retention.ms": "7200000"}
    until("the new configs", lambda: shown(admin, then))
    kept = {"max.message.bytes": "78", "retention.ms": "7200000"}
    until("those of the brokers", lambda: shown(brokers, kept))
    delete_topics(admin, name)
