"""One replica in each rack, on three brokers in two racks: born, grown, moved, and watched while a
rack is away (seed 003)."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kio.schema.errors import ErrorCode

from tests.conftest import HOMES_VARIABLE
from tests.harness import Case, asked_of, command, killed, migration_case
from tests.support.waiting import HANGS_S, SOON_S, flushed, until
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError as KafkaSays
from tideline.kafka.observer import KafkaObserver, OffsetSpec, PartitionLayout
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

TOPIC = "one-in-each-rack"
RACK_OF = {1: "rack-1", 2: "rack-2", 3: "rack-1"}
PARTS = ("postgres", "s3", "temporal", "kafka", "gateway", "worker")


@pytest.fixture(scope="module")
def racks(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Three brokers in two racks, and gateways that place replicas."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "one")
    home = Path(os.environ[HOMES_VARIABLE]) / f"{process}-racks"
    home.mkdir(mode=0o755)
    managed = {"TIDELINE_DISKLESS_MANAGED_RF_ENABLED": "true"}
    try:
        yield Stack.up(home, brokers=3, parts=PARTS, racks=2, settings=managed)
    finally:
        (Stack.take_down if request.session.testsfailed else Stack.purge)(home)


@pytest.fixture(scope="module")
def admin(racks: Stack) -> AdminClient:
    """With a topic of four partitions."""
    create(racks, TOPIC, 4)
    return admin_client(racks)


def admin_client(stack: Stack) -> AdminClient:
    return AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})


def create(stack: Stack, name: str, partitions: int, factor: int = -1) -> None:
    """Again where the gateway that was asked has lost its broker, and the connection with it: an
    admin client does not try again, and its request may have been done. Each time with a client of
    its own: librdkafka's keeps the controller that it was told of first, dead or not."""
    topic = NewTopic(name, partitions, factor, config={"diskless.enable": "true"})
    lost: list[KafkaError] = []

    def made() -> bool:
        try:
            client = admin_client(stack)
            client.create_topics([topic], request_timeout=20.0)[name].result(HANGS_S)
        except KafkaException as error:
            told = error.args[0]
            if told.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT):
                lost.append(told)
                return False
            if not (lost and told.code() == KafkaError.TOPIC_ALREADY_EXISTS):
                raise
        return True

    until(f"topic {name}", made)


def layouts(stack: Stack, topic: str = TOPIC, node: int = 1) -> dict[int, PartitionLayout]:
    """By partition, as a client is told through a gateway."""

    async def told(cluster: KafkaCluster) -> dict[int, PartitionLayout]:
        found = await KafkaObserver(cluster).topic(topic)
        if found is None:  # it was made a moment ago
            raise KafkaSays(ErrorCode.unknown_topic_or_partition, topic)
        return dict(found.partitions)

    return asked_of([stack.endpoints.gateways[node]], told)


def log_ends(stack: Stack, topic: str = TOPIC) -> set[int | str]:
    """Of Kafka's own logs of the topic, on every replica."""
    rows = layouts(stack, topic).values()

    async def told(cluster: KafkaCluster) -> set[int | str]:
        observer, found = KafkaObserver(cluster), set[int | str]()
        for row in rows:
            ends = await observer.on_replicas(topic, row, OffsetSpec.LATEST)
            found.update(ends.values())
        return found

    return asked_of(stack.endpoints.brokers.values(), told)


def racks_of(replicas: Sequence[int]) -> list[str]:
    return sorted(RACK_OF[n] for n in replicas)


def round_trip(stack: Stack, tag: str, topic: str = TOPIC) -> None:
    """Each partition takes a record and gives it back."""
    bootstrap = stack.endpoints.gateway_bootstrap
    sent: list[Message] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    partitions = len(layouts(stack, topic))

    def settled(error: object, message: Message) -> None:
        assert error is None
        sent.append(message)

    for n in range(partitions):
        producer.produce(topic, f"{tag}-{n}".encode(), partition=n, on_delivery=settled)
    flushed(producer, 120)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"g-{tag}"})
    consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(partitions)])
    values: set[bytes] = set()

    def read() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.add(message.value() or b"")
        return {f"{tag}-{n}".encode() for n in range(partitions)} <= values

    until(f"the records of {tag}", read)
    consumer.close()


def tool(stack: Stack, name: str, *arguments: str) -> str:
    """One of Kafka's own, through a gateway."""
    done = subprocess.run(
        tool_command(name, "--bootstrap-server", stack.endpoints.gateway_bootstrap, *arguments),
        capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def reassign(stack: Stack, file: Path, wanted: dict[int, Sequence[int]]) -> None:
    """With kafka-reassign-partitions, until it is done."""
    rows = [{"topic": TOPIC, "partition": p, "replicas": list(r)} for p, r in wanted.items()]
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    main = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    tool(stack, main, "--reassignment-json-file", str(file), "--execute")
    until(
        f"replicas {wanted}",
        lambda: all(
            layouts(stack)[p].replicas == tuple(r) and set(layouts(stack)[p].in_sync) == set(r)
            for p, r in wanted.items()
        ),
    )


def test_a_topic_born_diskless_has_a_replica_in_each_rack_and_so_has_what_it_grows_by(
    racks: Stack, admin: AdminClient
) -> None:
    admin.create_partitions([NewPartitions(TOPIC, 6)])[TOPIC].result(HANGS_S)
    until("six partitions", lambda: len(layouts(racks)) == 6)
    found = layouts(racks)
    assert [racks_of(p.replicas) for p in found.values()] == [["rack-1", "rack-2"]] * 6
    held = Counter(n for p in found.values() for n in p.replicas)
    assert held == {1: 3, 2: 6, 3: 3}
    round_trip(racks, "grown")


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"replication_factor": 3}, "INVALID_REPLICATION_FACTOR"),
        ({"replica_assignment": [[1]]}, "INVALID_REPLICA_ASSIGNMENT"),
    ],
)
def test_what_is_the_clusters_to_say_is_refused(
    admin: AdminClient, how: dict[str, object], code: str
) -> None:
    topic = NewTopic("refused", 1, config={"diskless.enable": "true"}, **how)  # type: ignore[arg-type]
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([topic])["refused"].result(HANGS_S)
    assert refused.value.args[0].name() == code
    assert "refused" not in admin.list_topics(timeout=HANGS_S).topics


def test_kafkas_own_tools_move_replicas_and_leaders_and_normalising_makes_them_even_again(
    racks: Stack, admin: AdminClient, tmp_path: Path
) -> None:
    reassign(racks, tmp_path / "plan.json", {0: [2], 1: [3, 1]})
    report = json.loads(
        command(racks, "replicas", "report", TOPIC, "-o", "json", wait=True).answer()
    )
    uneven = {row["partition"]: row for row in report["partitions"]}
    assert {p: row["spread"] for p, row in uneven.items()} == {
        0: "one replica",
        1: "racks uneven",
    }
    assert uneven[1]["missing_racks"] == ["rack-2"]
    command(racks, "replicas", "normalise", TOPIC, "--run", "--at-once", "1", wait=True)
    # The command has asked the controller that the moves are over; broker 1 hears of it by itself.
    until("broker 1 to hear of it", lambda: layouts(racks)[1].replicas == (3, 2))
    found = layouts(racks)
    assert found[0].replicas[0] == 2
    assert all(racks_of(p.replicas) == ["rack-1", "rack-2"] for p in found.values())
    assert all(set(p.in_sync) == set(p.replicas) for p in found.values())
    reassign(racks, tmp_path / "plan.json", {0: [found[0].replicas[1], 2]})
    tool(
        racks, "org.apache.kafka.tools.LeaderElectionCommand",
        "--election-type", "preferred", "--topic", TOPIC, "--partition", "0",
    )  # fmt: skip
    until("the preferred leader", lambda: layouts(racks)[0].leader == found[0].replicas[1])
    round_trip(racks, "moved")


def test_a_broker_that_is_away_leaves_the_isr_is_not_replaced_and_is_back_in_it_at_once(
    racks: Stack, admin: AdminClient
) -> None:
    """Of the rack that has one broker: the other rack leads, and the partition goes on."""
    before = layouts(racks)
    with killed(racks, "kafka-2"):
        until(
            "the ISR without broker 2",
            lambda: all(2 not in p.in_sync and p.leader > 0 for p in layouts(racks).values()),
        )
        away = layouts(racks)
        assert {n: set(p.replicas) for n, p in away.items()} == {
            n: set(p.replicas) for n, p in before.items()
        }
        round_trip(racks, "away")
        create(racks, "meanwhile", 2)
        assert {racks_of(p.replicas)[1] for p in layouts(racks, "meanwhile").values()} == {
            "rack-2"
        }, "a rack that restarts counts"
    until(
        "broker 2 in every ISR",
        lambda: all(2 in p.in_sync for p in layouts(racks).values()),
        SOON_S,
    )
    assert log_ends(racks) == {0}, "it had to copy something first"
    round_trip(racks, "back")
    round_trip(racks, "new", "meanwhile")


def test_after_a_migration_a_prefix_gets_replicas_that_serve_it(stack: Stack) -> None:
    """From one broker, the only one that had it, to all three racks; read where it was not."""
    with migration_case(stack, name="normalised", history=300, placed=(1,)) as case:
        case.trigger()
        case.until_ready()
        assert case.boundaries() == [300]
        until("a migration that is over", lambda: _may_move(case))
        assert layouts(stack, case.topic)[0].replicas == (1,), "the migration moved nothing"
        command(stack, "replicas", "normalise", case.topic, "--run", wait=True)
        layout, starts, ends = until("every replica to tell", partial(_on_replicas, case))
        assert sorted(layout.replicas) == sorted(layout.in_sync) == [1, 2, 3]
        assert layout.replicas[0] == 1
        assert starts == dict.fromkeys(layout.replicas, 300)
        assert ends == dict.fromkeys(layout.replicas, 300)
        case.produce()
        case.consume()
        with killed(stack, "kafka-1"):
            until("another leader", lambda: layouts(stack, case.topic, 2)[0].leader in (2, 3))
            assert read(stack, case.topic, 300) == list(range(300))
        case.until_acknowledged(20)
        case.settle()


def read(stack: Stack, topic: str, count: int) -> list[int]:
    """The offsets of the first records of the first partition, by a client of its own."""
    consumer = Consumer(
        {"bootstrap.servers": stack.endpoints.gateway_bootstrap, "group.id": f"read-{topic}"}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    offsets: list[int] = []

    def enough() -> bool:
        for message in consumer.consume(count, 0.5):
            assert message.error() is None
            offsets.append(message.offset() or 0)
        return len(offsets) >= count

    until(f"{count} records of {topic}", enough)
    consumer.close()
    return offsets[:count]


def _may_move(case: Case) -> bool:
    found = command(case.stack, "replicas", "report", case.topic, "-o", "json", wait=True)
    return bool(json.loads(found.answer())["partitions"][0]["target"])


Told = dict[int, int | str]


def _on_replicas(case: Case) -> tuple[PartitionLayout, Told, Told] | None:
    """The first partition, with the local start and the end of each replica's log; ``None``: one
    does not tell."""

    async def ask(cluster: KafkaCluster) -> tuple[PartitionLayout, Told, Told]:
        observer = KafkaObserver(cluster)
        layout = await observer.partition(case.topic, 0)
        starts = await observer.on_replicas(case.topic, layout, OffsetSpec.EARLIEST_LOCAL)
        return layout, starts, await observer.on_replicas(case.topic, layout, OffsetSpec.LATEST)

    layout, starts, ends = asked_of(case.stack.endpoints.brokers.values(), ask)
    told = (*starts.values(), *ends.values())
    return None if any(isinstance(one, str) for one in told) else (layout, starts, ends)
