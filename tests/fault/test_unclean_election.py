"""An unclean election cuts the logs of topics that migrate, judged by what clients were told.

What it may lose is what Kafka itself does not promise: records that the lost leader alone had, and
acknowledged alone. What a topic's ``min.insync.replicas`` put on two brokers stays.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from contextlib import ExitStack, suppress

import pytest

from tests.go_like import GoLikeProducer
from tests.harness import HANGS_S, Breakpoint, Case, leader_of, migration_case, until
from tests.history.operations import Outcome, Produce, Truncated
from tests.recorder import Recorder
from tideline.domain.migration import Phase
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.observer import KafkaObserver
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

pytestmark = [pytest.mark.integration, pytest.mark.fault]

LEADER, BEHIND, THIRD = 1, 2, 3


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
        until_refused(stack, LEADER)
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
        assert go_like.failed == []
        failed = [o for o in clients[whole.topic].operations
                  if isinstance(o, Produce) and o.outcome is not Outcome.ACKNOWLEDGED]  # fmt: skip
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


def until_refused(stack: Stack, node: int) -> None:
    """The gateway of a dead broker lives, and nobody can connect to it."""
    host, _, port = stack.endpoints.gateways[node].rpartition(":")

    def refused() -> bool:
        try:
            socket.create_connection((host, int(port)), 5.0).close()
        except ConnectionRefusedError:
            return True
        return False

    until(f"gateway {node} to refuse connections", refused, 5.0)
    assert stack.pid(f"gateway-{node}")


def elect(stack: Stack, case: Case) -> None:
    """As an operator does, past the gateways. Of ``safe`` Kafka knows that the other broker has
    all that it promised, and elects it by itself (KIP-966)."""
    brokers = stack.endpoints.brokers

    def elected() -> bool:
        with suppress(KafkaError, KafkaUnavailable):
            if leader_of(stack, case.topic, 0, avoid=LEADER)[0] == BEHIND:
                return True
        # The admin client of confluent-kafka cannot be called for this (2.x: SystemError).
        asked = tool_command(
            "org.apache.kafka.tools.LeaderElectionCommand",
            "--bootstrap-server", f"{brokers[BEHIND]},{brokers[THIRD]}",
            "--election-type", "unclean", "--topic", case.topic, "--partition", "0",
        )  # fmt: skip
        subprocess.run(asked, capture_output=True, timeout=HANGS_S, check=False)
        return False

    until(f"broker {BEHIND} to lead {case.topic}", elected)


def truncated_at(stack: Stack, case: Case) -> int:
    """Where the log of the elected broker ended: its newest leader epoch begins there."""
    host, _, port = stack.endpoints.brokers[BEHIND].rpartition(":")

    async def ask() -> int:
        async with KafkaCluster([(host, int(port))], client_id="truncated") as cluster:
            observer = KafkaObserver(cluster)
            layout = await observer.partition(case.topic, 0, BEHIND)
            return (await observer.lineage(case.topic, layout, 0))[-1].start_offset

    return asyncio.run(ask())
