"""What real brokers answer of a hybrid topic, through the gateways and past them.

Where :data:`tideline.domain.api_answers.API_RULES` lets an API pass the two are the same and true;
where it does not the broker's would be wrong, and clients do not see it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, TopicPartition
from kio.schema.errors import ErrorCode

from infra.apis_page import offered_up_to
from tests.harness import HANGS_S, Case, leader_of, migration_case, until
from tests.integration.test_gateway_classic import offered
from tideline.domain.api_answers import API_RULES, BROKER_HIGHEST, WITH_A_PLUGIN
from tideline.gateway.messages import messages
from tideline.kafka.client import KafkaCluster, KafkaConnection
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


def asked(address: str, request: Any) -> Any:
    async def ask() -> Any:
        host, _, port = address.rpartition(":")
        connection = await KafkaConnection.open(host, int(port))
        try:
            return await connection.send(request)
        finally:
            connection.close()

    return asyncio.run(ask())


def log_dirs(answer: Any) -> object:
    """Size and lag of each copy."""
    return [
        (p.partition_size, p.offset_lag, p.is_future_key)
        for result in answer.results
        for topic in result.topics
        for p in topic.partitions
    ]


Ask = Callable[[Any, str], Any]
TABLE: dict[str, tuple[int, Ask, Callable[[Any], object], Callable[[Any], bool]]] = {
    "sizes are Kafka's, and no replica lags": (
        35,
        lambda api, topic: api.request(
            topics=(api.request_part("DescribableLogDirTopic", topic=topic, partitions=(0,)),)
        ),
        log_dirs,
        lambda told: bool(told) and all(size >= 0 and lag == 0 for size, lag, _ in told),
    ),
    "nothing is being reassigned": (
        46,
        lambda api, topic: api.request(
            timeout=timedelta(seconds=20),
            topics=(
                api.request_part(
                    "ListPartitionReassignmentsTopics", name=topic, partition_indexes=(0,)
                ),
            ),
        ),
        lambda answer: (answer.error_code, answer.topics),
        lambda told: told == (ErrorCode.none, ()),
    ),
    "the preferred replica leads already": (
        43,
        lambda api, topic: api.request(
            election_type=0,
            timeout=timedelta(seconds=20),
            topic_partitions=(
                api.request_part("TopicPartitions", topic=topic, partitions=(0,)),
            ),
        ),
        lambda answer: [
            p.error_code for r in answer.replica_election_results for p in r.partition_result
        ],
        lambda told: told == [ErrorCode.election_not_needed],
    ),
    "no quota is told of it": (
        48,
        lambda api, topic: api.request(components=(), strict=False),
        lambda answer: (answer.error_code, answer.entries),
        lambda told: told[0] is ErrorCode.none,
    ),
    "no transaction is open on it": (
        66,
        lambda api, topic: api.request(
            state_filters=("Ongoing",), producer_id_filters=(), duration_filter=-1,
            transactional_id_pattern=None,
        ),
        lambda answer: (answer.error_code, answer.transaction_states),
        lambda told: told[0] is ErrorCode.none,
    ),
    "what is not there cannot be moved to another disk": (
        34,
        lambda api, topic: api.request(
            dirs=(
                api.request_part(
                    "AlterReplicaLogDir",
                    path="/nowhere",
                    topics=(
                        api.request_part(
                            "AlterReplicaLogDirTopic", name=topic, partitions=(0,)
                        ),
                    ),
                ),
            )
        ),
        lambda answer: [p.error_code for r in answer.results for p in r.partitions],
        lambda told: told == [ErrorCode.log_dir_not_found],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TABLE)
def test_what_passes_is_true_of_a_hybrid_topic(stack: Stack, hybrid: Case, what: str) -> None:
    key, ask, shown, is_true = TABLE[what]
    assert API_RULES[key].passes
    api = messages(key, BROKER_HIGHEST[key])
    request = ask(api, hybrid.topic)
    leader, _ = leader_of(stack, hybrid.topic, 0)
    of_broker, of_gateway = (
        shown(asked(at[leader], request))
        for at in (stack.endpoints.brokers, stack.endpoints.gateways)
    )
    assert of_broker == of_gateway
    assert is_true(of_gateway), of_gateway


def test_what_is_offered_is_what_the_page_says(stack: Stack) -> None:
    """By brokers without a plugin for clients' metrics."""
    for address, page in (
        (stack.endpoints.gateways[1], offered_up_to()),
        (stack.endpoints.brokers[1], BROKER_HIGHEST),
    ):
        told = {key: high for key, (_, high) in asyncio.run(offered(address)).items()}
        assert told == {key: high for key, high in page.items() if key not in WITH_A_PLUGIN}


def test_the_producers_of_a_hybrid_topic_are_those_of_its_suffix_at_every_gateway(
    stack: Stack, hybrid: Case
) -> None:
    """The broker knows nobody who came after B0."""
    api = messages(61, 0)
    request = api.request(
        topics=(api.request_part("TopicRequest", name=hybrid.topic, partition_indexes=(0,)),)
    )
    told = {
        node: producers(asked(address, request))
        for node, address in stack.endpoints.gateways.items()
    }
    assert told[1] == told[2] == told[3]
    assert WRITTEN - 1 in {last for _, last in told[1].values()}
    at_broker = producers(asked(stack.endpoints.brokers[1], request))
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
    answer = asked(stack.endpoints.gateways[leader], request)
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
        (found,) = consumer.committed([TopicPartition(hybrid.topic, 0)], timeout=30)
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
    async def run() -> T:
        host, _, port = stack.endpoints.brokers[2].rpartition(":")
        async with KafkaCluster([(host, int(port))], client_id="answers") as cluster:
            return await ask(KafkaObserver(cluster))

    return asyncio.run(run())


def tool(main: str, *arguments: str) -> str:
    done = subprocess.run(
        tool_command(main, *arguments),
        capture_output=True, text=True, timeout=HANGS_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
