"""What real brokers answer of a hybrid topic, through the gateways and past them.

Where an API passes the two are the same and true (each of them: ``test_passed_apis.py``); where
it does not the broker's would be wrong, and clients do not see it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode

from infra.apis_page import offered_up_to
from tests.harness import Case, asked_of, leader_of, migration_case
from tests.integration.test_answers import settle_coordinators
from tests.raw import TRANSACTION, Doors, ask, doors
from tests.support.waiting import HANGS_S, flushed, until
from tideline.domain.api_answers import BROKER_HIGHEST, WITH_A_PLUGIN
from tideline.domain.migration import Phase
from tideline.gateway.messages import messages
from tideline.kafka.client import KafkaConnection
from tideline.kafka.observer import KafkaObserver, PartitionLayout
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

T = TypeVar("T")
WRITTEN = 50
"""Records of the suffix, by one producer."""


@pytest.fixture(scope="module")
def hybrid(stack: Stack) -> Iterator[Case]:
    """One partition on brokers 1 and 2, with records on both sides of B0."""
    with migration_case(stack, name="answers", placed=(1, 2)) as case:
        case.trigger()
        case.until_crossed()
        case.until_ready()
        case.write(WRITTEN, "suffix")
        yield case


async def offered(address: str) -> dict[int, tuple[int, int]]:
    """Lowest and highest version by API key."""
    host, _, port = address.rpartition(":")
    connection = await KafkaConnection.open(host, int(port))
    try:
        answer = await connection.send(ApiVersionsRequest())
    finally:
        connection.close()
    assert isinstance(answer, ApiVersionsResponse)
    return {int(a.api_key): (int(a.min_version), int(a.max_version)) for a in answer.api_keys}


def test_what_is_offered_is_what_the_page_says(stack: Stack) -> None:
    """By brokers without a plugin for clients' metrics."""
    for address, page in (
        (stack.endpoints.gateways[1], offered_up_to()),
        (stack.endpoints.brokers[1], BROKER_HIGHEST),
    ):
        told = {key: high for key, (_, high) in asyncio.run(offered(address)).items()}
        assert told == {key: high for key, high in page.items() if key not in WITH_A_PLUGIN}


def transactions(asked: Doors, names: Sequence[str]) -> dict[str, tuple[str, set[str]]]:
    """Of each its state and its topics, as its coordinator says by both APIs."""
    told = {}
    for name in names:
        at = asked.coordinator(name, TRANSACTION)
        (found,) = asked.ask(
            "DescribeTransactions", at, transactional_ids=[name]
        ).transaction_states
        assert found.error_code is ErrorCode.none
        listed = asked.ask(
            "ListTransactions", at, state_filters=["Ongoing"], duration_filter=-1,
            producer_id_filters=[found.producer_id], transactional_id_pattern=None,
        )  # fmt: skip
        state = str(found.transaction_state)
        assert [t.transactional_id for t in listed.transaction_states] == [
            name for _ in range(state == "Ongoing")
        ]
        told[name] = (state, {str(t.topic) for t in found.topics})
    return told


def test_a_transaction_that_names_a_migrating_topic_is_told_beside_one_that_does_not(
    stack: Stack,
) -> None:
    """It was begun before, and B0 waits for it; the other one stays open over all of it."""
    settle_coordinators(stack)
    with (
        migration_case(stack, name="in-transaction", history=0) as case,
        migration_case(stack, name="classic", history=0) as classic,
        doors(stack.endpoints.gateways) as gateways,
        doors(stack.endpoints.brokers) as brokers,
    ):
        names = [f"app-{case.topic}", f"app-{classic.topic}"]
        applications = []
        for name, at in zip(names, (case, classic), strict=True):
            application = Producer(
                {"bootstrap.servers": case.bootstrap, "transactional.id": name,
                 "transaction.timeout.ms": 600_000}
            )  # fmt: skip
            application.init_transactions(HANGS_S)
            application.begin_transaction()
            application.produce(at.topic, b"inside", partition=0)
            flushed(application, 60)
            applications.append(application)
        case.trigger()
        reason = until("the drain", lambda: case.waiting_reason(Phase.DRAIN_TRANSACTIONS))
        assert names[0] in reason
        assert names[1] not in reason
        both = {names[0]: ("Ongoing", {case.topic}), names[1]: ("Ongoing", {classic.topic})}
        assert transactions(gateways, names) == transactions(brokers, names) == both
        shown = tool(
            "org.apache.kafka.tools.TransactionsCommand",
            "--bootstrap-server", case.bootstrap, "describe", "--transactional-id", names[0],
        )  # fmt: skip
        assert f"{case.topic}-0" in shown
        assert case.boundaries() == [-1]
        applications[0].commit_transaction(HANGS_S)
        case.until_crossed()
        then = {names[0]: ("CompleteCommit", set()), names[1]: both[names[1]]}
        until("the commit", lambda: transactions(brokers, names) == then)
        assert transactions(gateways, names) == then
        applications[1].abort_transaction(HANGS_S)


def test_the_producers_of_a_hybrid_topic_are_those_of_its_suffix_at_every_gateway(
    stack: Stack, hybrid: Case
) -> None:
    """The broker knows nobody who came after B0."""
    api = messages(61, 0)
    request = api.request(
        topics=(api.request_part("TopicRequest", name=hybrid.topic, partition_indexes=(0,)),)
    )
    told = {
        node: producers(ask(address, request)) for node, address in stack.endpoints.gateways.items()
    }
    assert told[1] == told[2] == told[3]
    assert WRITTEN - 1 in {last for _, last in told[1].values()}
    at_broker = producers(ask(stack.endpoints.brokers[1], request))
    assert at_broker.keys() < told[1].keys(), "the broker knows those of before B0 only"
    shown = tool(
        "org.apache.kafka.tools.TransactionsCommand",
        "--bootstrap-server", hybrid.bootstrap,
        "describe-producers", "--topic", hybrid.topic, "--partition", "0",
    )  # fmt: skip
    assert all(str(producer) in shown for producer in told[1]), shown


def producers(answer: Any) -> dict[int, tuple[int, int]]:
    """Epoch and last sequence by producer id."""
    ((row,),) = (topic.partitions for topic in answer.topics)
    assert row.error_code is ErrorCode.none
    return {
        int(p.producer_id): (int(p.producer_epoch), int(p.last_sequence))
        for p in row.active_producers
    }


def test_an_administrators_marker_does_not_reach_a_log_that_has_ended(
    stack: Stack, hybrid: Case
) -> None:
    leader, _ = leader_of(stack, hybrid.topic, 0)
    api = messages(27, 1)
    request = api.request(
        markers=(
            api.request_part(
                "WritableTxnMarker", producer_id=987, producer_epoch=0, transaction_result=False,
                coordinator_epoch=0,
                topics=(
                    api.request_part(
                        "WritableTxnMarkerTopic", name=hybrid.topic, partition_indexes=(0,)
                    ),
                ),
            ),
        )
    )  # fmt: skip
    answer = ask(stack.endpoints.gateways[leader], request)
    (row,) = answer.markers[0].topics[0].partitions
    assert row.error_code is ErrorCode.invalid_txn_state
    assert [kafkas_end(stack, hybrid, leader)] == hybrid.boundaries()


def test_a_groups_offsets_past_the_boundary_are_kept_and_deleted(
    stack: Stack, hybrid: Case
) -> None:
    (boundary,) = hybrid.boundaries()
    at = TopicPartition(hybrid.topic, 0, boundary + 20)
    group = f"offsets-{hybrid.topic}"

    def committed() -> int:
        (found,) = consumer.committed([TopicPartition(hybrid.topic, 0)], timeout=HANGS_S)
        return int(found.offset)

    consumer = Consumer({"bootstrap.servers": hybrid.bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[at], asynchronous=False)
        assert committed() == boundary + 20
        tool(
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            "--bootstrap-server", hybrid.bootstrap,
            "--delete-offsets", "--group", group, "--topic", hybrid.topic,
        )  # fmt: skip
        assert committed() < 0
    finally:
        consumer.close()


def test_a_hybrid_topic_is_reassigned_and_its_new_replica_has_the_prefix(
    stack: Stack, hybrid: Case, tmp_path: Path
) -> None:
    """With Kafka's own tools, through the gateways, while a producer goes on. The new replica
    leads then, and everything is read with it."""
    (boundary,) = hybrid.boundaries()
    hybrid.produce("meanwhile")
    plan = tmp_path / "plan.json"
    wanted = {"topic": hybrid.topic, "partition": 0, "replicas": [3, 2]}
    plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
    tool(
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        "--bootstrap-server", hybrid.bootstrap,
        "--reassignment-json-file", str(plan), "--execute",
    )  # fmt: skip
    until("replicas 3 and 2", lambda: set(layout(stack, hybrid).in_sync) == {2, 3})
    until("no replica at 1", lambda: layout(stack, hybrid).replicas == (3, 2))

    def leads() -> bool:
        asked_for = tool_command(
            "org.apache.kafka.tools.LeaderElectionCommand",
            "--bootstrap-server", hybrid.bootstrap,
            "--election-type", "preferred", "--topic", hybrid.topic, "--partition", "0",
        )  # fmt: skip
        subprocess.run(asked_for, capture_output=True, timeout=HANGS_S, check=False)
        return leader_of(stack, hybrid.topic, 0)[0] == 3

    until("broker 3 to lead", leads)
    assert kafkas_end(stack, hybrid, 3) == boundary
    hybrid.until_acknowledged(20)
    hybrid.consume()
    hybrid.settle()


def layout(stack: Stack, case: Case) -> PartitionLayout:
    """As the brokers say."""
    return observed(stack, lambda observer: observer.partition(case.topic, 0))


def kafkas_end(stack: Stack, case: Case, node: int) -> int:
    """Where Kafka's log ends at a replica in sync, told by its broker."""

    async def ask(observer: KafkaObserver) -> int:
        found = await observer.log_end(case.topic, await observer.partition(case.topic, 0))
        return found.log_ends[node]

    return observed(stack, ask)


def observed(stack: Stack, ask: Callable[[KafkaObserver], Awaitable[T]]) -> T:
    return asked_of([stack.endpoints.brokers[2]], lambda cluster: ask(KafkaObserver(cluster)))


def tool(main: str, *arguments: str) -> str:
    done = subprocess.run(
        tool_command(main, *arguments),
        capture_output=True, text=True, timeout=HANGS_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
