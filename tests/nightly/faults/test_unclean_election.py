"""An unclean election cuts the logs of topics that migrate, judged by what clients were told.

What it may lose is what Kafka itself does not promise: records that the lost leader alone had, and
acknowledged alone. What a topic's ``min.insync.replicas`` put on two brokers stays.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from tests.go_like import GoLikeProducer
from tests.harness import Breakpoint, Case, leader_of, migration_case
from tests.history.operations import Outcome, Produce, Truncated
from tests.recorder import Recorder
from tests.support.waiting import HANGS_S, Wait, flushed, until
from tideline.domain.ids import TopicPartition
from tideline.domain.migration import UNDEFINED_OFFSET, Phase
from tideline.kafka.admin import KafkaAdmin
from tideline.kafka.batches import iter_batches
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.log_reader import LogReader
from tideline.kafka.observer import DEBUG_CONSUMER, KafkaObserver, OffsetSpec
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

T = TypeVar("T")
LEADER, BEHIND, THIRD = 1, 2, 3
LASTING: dict[str, Any] = {"delivery.timeout.ms": 300_000}
"""Of a producer: on a busy machine two brokers that start one after the other take minutes."""
A_MOMENT = 5
"""Records that a client may send before the gateway of a broker that died refuses it."""
FIRST_MS, NEVER_MS = 0, 1 << 52
"""Times before and after every record."""


def test_what_two_brokers_had_survives_an_unclean_election_of_a_tracked_topic(stack: Stack) -> None:
    """Three topics. Of ``safe`` two brokers must have a record before acks=all is told, of
    ``risky`` one; both lose their leader while the other broker is behind. Of ``whole`` every
    broker has everything: its clients wait for the next leader, and none is told of a failure."""
    with ExitStack() as held:
        pair, everyone = (LEADER, BEHIND), (LEADER, THIRD, BEHIND)
        safe, risky, whole = (
            held.enter_context(
                migration_case(stack, name=name, history=0, placed=placed, **least)  # type: ignore[arg-type]
            )
            for name, placed, least in (
                ("safe", pair, {"min.insync.replicas": "2"}),
                ("risky", pair, {}),
                ("whole", everyone, {}),
            )
        )
        cases = (safe, risky)
        clients = {case.topic: Recorder(case.topic) for case in (*cases, whole)}
        for recorder in clients.values():
            held.callback(recorder.stop)
            recorder.produce(
                "idempotent", safe.bootstrap, idempotent=True, **{"message.timeout.ms": 300_000}
            )
        go_like = GoLikeProducer(clients[whole.topic], "go-like", whole.bootstrap)
        go_like.start()
        for case in cases:
            clients[case.topic].follow("follower", case.bootstrap)
        stops = [Breakpoint(case.superuser_dsn, case.topic_id, Phase.QUIESCE) for case in cases]
        for stop in stops:
            held.callback(stop.release)
        for case in cases:
            clients[case.topic].until_told("idempotent")
            case.trigger()
        for stop in stops:
            stop.wait_until_hit()

        held.callback(all_back, stack)
        stack.stop(f"kafka-{BEHIND}")
        for case, acks in ((safe, 1), (risky, -1)):
            lone = clients[case.topic]
            lone.produce("lone", case.bootstrap, idempotent=False, acks=acks)
            lone.until_told("lone", more=50)
            lone.stop("lone")
        clients[risky.topic].stop("idempotent")
        clients[safe.topic].until_nobody_is_told("idempotent", seconds=1.0)
        died = time.monotonic()
        stack.kill(f"kafka-{LEADER}", restart=False)
        slowness = until_refused(stack, LEADER)
        refusing = time.monotonic()
        stack.start(f"kafka-{BEHIND}")
        for case in cases:
            elect(stack, case)
        for case in cases:
            recorder, cut = clients[case.topic], truncated_at(stack, case)
            recorder.operations.append(Truncated(recorder.partition, cut, died))
            lost = [o for o in told(recorder) if o.base_offset is not None
                    and o.base_offset >= cut]  # fmt: skip
            assert lost, "the election lost nothing"
            assert {o.acks for o in lost} == {1 if case is safe else -1}
        all_back(stack)
        clients[risky.topic].produce("after", risky.bootstrap, idempotent=True)
        for case in cases:
            assert case.boundaries() == [-1], "the election has to come before B0"
        for stop in stops:
            stop.let_go()
        for case in cases:
            case.until_crossed()
        clients[safe.topic].until_told("idempotent")
        clients[risky.topic].until_told("after")
        clients[whole.topic].until_told("idempotent", "go-like")
        for recorder in clients.values():
            recorder.finish({str(n): where for n, where in stack.endpoints.gateways.items()})
        assert go_like.refused, "no connection was refused while the broker was dead"
        # A broker that dies, too, has accepted whom it does not answer any more.
        as_it_died = {value for value, made, _ in go_like.failed if died <= made <= refusing}
        assert len(as_it_died) <= A_MOMENT * slowness
        assert [given_up for given_up in go_like.failed if given_up[0] not in as_it_died] == []
        failed = [o for o in clients[whole.topic].operations
                  if isinstance(o, Produce) and o.outcome is not Outcome.ACKNOWLEDGED
                  and not as_it_died.intersection(o.values)]  # fmt: skip
        assert failed == []


def told(recorder: Recorder) -> list[Produce]:
    return [
        o for o in recorder.operations
        if isinstance(o, Produce) and o.outcome is Outcome.ACKNOWLEDGED
    ]  # fmt: skip


def all_back(stack: Stack) -> None:
    for node in (BEHIND, LEADER):
        stack.start(f"kafka-{node}", wait=False)
    for node in (BEHIND, LEADER):
        stack.wait_ready(f"kafka-{node}")


def until_refused(stack: Stack, node: int) -> float:
    """The gateway of a dead broker lives, and nobody can connect to it. How slow the machine was
    meanwhile."""
    host, _, port = stack.endpoints.gateways[node].rpartition(":")

    def refused() -> bool:
        try:
            socket.create_connection((host, int(port)), HANGS_S).close()
        except ConnectionRefusedError:
            return True
        return False

    wait = Wait(f"gateway {node} to refuse connections", 10.0)
    while not refused():
        wait.check()
        wait.pause()
    assert stack.pid(f"gateway-{node}")
    return wait.slowness


def elect(stack: Stack, case: Case, node: int = BEHIND, *, avoid: int = LEADER) -> None:
    """As an operator does, past the gateways. Of ``safe`` Kafka knows that the other broker has
    all that it promised, and elects it by itself (KIP-966)."""
    brokers = stack.endpoints.brokers

    def elected() -> bool:
        with suppress(KafkaError, KafkaUnavailable):
            if leader_of(stack, case.topic, 0, avoid=avoid)[0] == node:
                return True
        # The admin client of confluent-kafka cannot be called for this (2.x: SystemError).
        asked = tool_command(
            "org.apache.kafka.tools.LeaderElectionCommand",
            "--bootstrap-server", f"{brokers[node]},{brokers[THIRD]}",
            "--election-type", "unclean", "--topic", case.topic, "--partition", "0",
        )  # fmt: skip
        subprocess.run(asked, capture_output=True, timeout=HANGS_S, check=False)
        return False

    until(f"broker {node} to lead {case.topic}", elected)


def truncated_at(stack: Stack, case: Case) -> int:
    """Where the log of the elected broker ended: its newest leader epoch begins there."""
    host, _, port = stack.endpoints.brokers[BEHIND].rpartition(":")

    async def ask() -> int:
        async with KafkaCluster([(host, int(port))], client_id="truncated") as cluster:
            observer = KafkaObserver(cluster)
            layout = await observer.partition(case.topic, 0, BEHIND)
            return (await observer.lineage(case.topic, layout, 0))[-1].start_offset

    return asked_again(ask, KafkaError)  # a broker is told that it leads before its log does


def test_replicas_that_end_past_or_before_the_boundary_change_nothing_that_is_read(
    stack: Stack,
) -> None:
    """Seed 000, "Failure and edge cases". ``tail`` goes on past B0 behind the gateways' backs, each
    leader with records of its own; of ``short`` the elected replica has lost the end of the prefix,
    while a consumer that has read it with an older leader epoch than B0's stands at B0. Then the
    deposed leader returns and is elected: the other one follows it."""
    with ExitStack() as held:
        pair = (LEADER, BEHIND)
        tail, short = (
            held.enter_context(
                migration_case(stack, name=name, history=20, placed=placed, partitions=2)
            )
            for name, placed in (("tail", pair), ("short", pair[::-1]))
        )
        short.write(20, "second")
        move_leader(stack, short, LEADER)
        cases = (tail, short)
        # While another partition has not crossed, the classic log is neither rolled nor sealed.
        uncrossed, stops = (
            [Breakpoint(c.superuser_dsn, c.topic_id, phase, partition) for c in cases]
            for phase, partition in ((Phase.VALIDATE, 1), (Phase.ZOMBIE_CLEANUP, 0))
        )
        for stop in (*uncrossed, *stops):
            held.callback(stop.release)
        for case in cases:
            case.partitions = 1
            case.consume()
        tail.produce(**LASTING)
        until("the prefix to be read", lambda: short.ledger.consumed_through(0) >= 29)
        for case in cases:
            case.trigger()
        for stop in (*uncrossed, *stops):
            stop.wait_until_hit()
        boundary, whole = tail.boundaries()[0], short.boundaries()[0]

        held.callback(all_back, stack)
        stack.kill(f"kafka-{BEHIND}", restart=False)
        lose_the_last_batch(stack, short.topic, BEHIND)
        append_past_the_gateways(stack, tail.topic, LEADER, [b"deposed"] * 7)
        stack.kill(f"kafka-{LEADER}", restart=False)
        stack.start(f"kafka-{BEHIND}")
        for case in cases:
            elect(stack, case)
        until("its end to be told", lambda: log_end(stack, tail.topic, BEHIND) >= 0)
        assert log_end(stack, tail.topic, BEHIND) == boundary, "this one never saw the tail"
        append_past_the_gateways(stack, tail.topic, BEHIND, [b"elected"] * 3)
        until("the other's, too", lambda: log_end(stack, short.topic, BEHIND) >= 0)
        cut = log_end(stack, short.topic, BEHIND)
        assert 0 < cut < whole
        until("its leader to be known", lambda: fetched(stack, short, cut - 1) is ErrorCode.none)
        for offset in (cut, whole - 1):
            told_of = asked_again(partial(fetch, stack, short, offset))
            assert told_of is ErrorCode.not_leader_or_follower
        assert lineage(stack, short) is ErrorCode.not_leader_or_follower, f"it ends at {cut}"
        assert searched(stack, short, FIRST_MS) == 0
        assert searched(stack, short, NEVER_MS) is ErrorCode.not_leader_or_follower
        short.produce(**LASTING)
        for case, stop in zip(cases, stops, strict=True):
            case.until_acknowledged(20)
            stop.let_go()
        until(
            "the gap to be told",
            lambda: "log gap" in (short.waiting_reason(Phase.ZOMBIE_CLEANUP) or ""),
        )

        stack.kill(f"kafka-{BEHIND}", restart=False)
        stack.start(f"kafka-{LEADER}")
        for case in cases:
            elect(stack, case, LEADER, avoid=BEHIND)
        all_back(stack)
        for case, end in ((tail, boundary + 7), (short, whole)):
            until(
                f"both replicas of {case.topic} to end at {end}",
                lambda case=case, end=end: (  # type: ignore[misc]
                    [log_end(stack, case.topic, node) for node in pair] == [end, end]
                ),
            )
        for stop in uncrossed:
            stop.let_go()
        until(
            "the gateway of the broker that came back",
            lambda: fetched(stack, short, 0) is not ErrorCode.leader_not_available,
        )
        until("its lineage to be told", lambda: isinstance(lineage(stack, short), list))
        assert lineage(stack, short) == [0, whole]
        assert searched(stack, short, NEVER_MS) == UNDEFINED_OFFSET
        for case in cases:
            case.end_well()
        assert [case.boundaries()[0] for case in cases] == [boundary, whole]
        found = tail.evidence(Phase.ZOMBIE_CLEANUP)[0]
        assert found["divergent_tail"]["from"] == boundary
        assert found["divergent_tail"]["object"].startswith("s3://")


def lose_the_last_batch(stack: Stack, topic: str, node: int) -> None:
    """Of a killed broker's replica: recovery cuts a batch that is not whole."""
    segment = max((stack.data_path(f"kafka-{node}") / f"{topic}-0").glob("*.log"))
    with segment.open("r+b") as file:
        written = file.read()
        *_, last = iter_batches(written)
        file.truncate(last.end - 1)


def fetched(stack: Stack, case: Case, offset: int) -> ErrorCode:
    """As :func:`fetch`; while that broker is away its gateway listens to nobody."""
    try:
        return asyncio.run(fetch(stack, case, offset))
    except KafkaUnavailable:
        return ErrorCode.leader_not_available


async def fetch(stack: Stack, case: Case, offset: int) -> ErrorCode:
    """How the gateway of the elected broker answers a consumer there."""
    host, _, port = stack.endpoints.gateways[BEHIND].rpartition(":")
    async with KafkaCluster([(host, int(port))], client_id="fetched") as cluster:
        try:
            await LogReader(cluster).fetch(case.topic, 0, offset, node=BEHIND)
        except KafkaError as error:
            return error.code
        return ErrorCode.none


def lineage(stack: Stack, case: Case) -> ErrorCode | list[int]:
    """Where leader epochs begin, as a client hears from gateways of partition 0."""
    host, _, port = stack.endpoints.gateways[BEHIND].rpartition(":")

    async def ask() -> ErrorCode | list[int]:
        async with KafkaCluster([(host, int(port))], client_id="lineage") as cluster:
            observer = KafkaObserver(cluster)
            layout = await observer.partition(case.topic, 0, BEHIND)
            try:
                return [e.start_offset for e in await observer.lineage(case.topic, layout, 0)]
            except KafkaError as error:
                return error.code

    return asked_again(ask)


def searched(stack: Stack, case: Case, timestamp: int) -> ErrorCode | int:
    """The first offset at or after ``timestamp``, as a client hears of partition 0."""
    host, _, port = stack.endpoints.gateways[BEHIND].rpartition(":")

    async def ask() -> ErrorCode | int:
        async with KafkaCluster([(host, int(port))], client_id="searched") as cluster:
            observer = KafkaObserver(cluster)
            leader = (await observer.partition(case.topic, 0, BEHIND)).leader
            try:
                found = await observer.offset(case.topic, 0, timestamp, node=leader)
            except KafkaError as error:
                return error.code
            return found.offset

    return asked_again(ask)


def asked_again(ask: Callable[[], Coroutine[Any, Any, T]], *while_told: type[Exception]) -> T:
    """As a client does whose connection was ended: a gateway takes its clients back from those that
    stood in for it, and an address that is not listened to any more resets who was about to
    connect. Also while that is what ``ask`` is told."""

    def answered() -> list[T]:
        with suppress(KafkaUnavailable, *while_told):
            return [asyncio.run(ask())]
        return []

    return until("an answer of a gateway", answered, 30.0)[0]


def move_leader(stack: Stack, case: Case, node: int) -> None:
    """Of partition 0, to its other replica, which is in sync."""
    partition = TopicPartition(case.topic, 0)
    others = [n for n in (LEADER, BEHIND) if n != node]

    async def ask() -> None:
        host, _, port = stack.endpoints.brokers[THIRD].rpartition(":")
        async with KafkaCluster([(host, int(port))], client_id="move-leader") as cluster:
            admin = KafkaAdmin(cluster)
            await admin.reorder_replicas(partition, [node, *others])
            with suppress(KafkaError):  # not in sync yet
                await admin.elect_preferred(partition)

    def moved() -> bool:
        asyncio.run(ask())
        return leader_of(stack, case.topic, 0)[0] == node

    until(f"broker {node} to lead {case.topic}", moved)


def append_past_the_gateways(stack: Stack, topic: str, node: int, values: list[bytes]) -> None:
    """As a client does that was given the broker's own address."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": stack.endpoints.brokers[node], "acks": 1})
    for value in values:
        producer.produce(
            topic, value, partition=0, on_delivery=lambda error, _: failures.append(error)
        )
    flushed(producer, 60)
    assert failures == [None] * len(values)


def log_end(stack: Stack, topic: str, node: int) -> int:
    """Of the replica itself, whoever leads; -1 while it does not tell."""
    host, _, port = stack.endpoints.brokers[node].rpartition(":")

    async def ask() -> int:
        with suppress(KafkaError, KafkaUnavailable):
            async with KafkaCluster([(host, int(port))], client_id="log-end") as cluster:
                answer = await KafkaObserver(cluster).offset(
                    topic, 0, OffsetSpec.LATEST, node=node, replica_id=DEBUG_CONSUMER
                )
                return answer.offset
        return -1

    return asyncio.run(ask())
