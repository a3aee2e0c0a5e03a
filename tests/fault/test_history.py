"""Migrations with networks that are cut and gateway ids that are doubled, judged by what clients
did and were told (docs/proof.md)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.harness import Breakpoint, Case, gateways, leader_of, migration_case, until
from tests.history.checker import judge
from tests.history.operations import (
    Fetch,
    ListOffsets,
    Operation,
    Outcome,
    Partition,
    Produce,
    Value,
    Which,
)
from tests.history.violations import Bounds
from tests.proxy import Proxy
from tideline.domain.migration import Phase
from tideline.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.fault]

EXTRA = 91
"""The id of a gateway beside the stack's own, whose network the test cuts."""


class Recorder:
    """Clients of one partition, and what they did and were told."""

    def __init__(self, topic: str) -> None:
        self.topic, self.partition = topic, Partition(topic, 0)
        self.operations: list[Operation] = []
        self._stops: list[threading.Event] = []
        self._threads: list[threading.Thread] = []

    def produce(self, name: str, bootstrap: str, *, idempotent: bool) -> None:
        """One record every 20 ms until :meth:`stop`; a producer without idempotence that is not
        told sends nothing again, so that each record is sent once."""
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": idempotent,
                "acks": "all",
                "linger.ms": 0,
                "message.timeout.ms": 60_000,
                "message.send.max.retries": 1_000_000 if idempotent else 0,
                "max.in.flight.requests.per.connection": 5 if idempotent else 1,
            }
        )
        stop = threading.Event()

        def run() -> None:
            number = 0
            while not stop.wait(0.02):
                self._send(producer, name, bootstrap, number, idempotent)
                producer.poll(0)
                number += 1
            producer.flush(60)

        self._start(run, stop)

    def _send(self, producer: Producer, name: str, via: str, number: int, idempotent: bool) -> None:
        value, sent = f"{name}-{number}", time.monotonic()

        def done(error: KafkaError | None, message: Message) -> None:
            told = error is None and message.offset() is not None and message.offset() >= 0
            self.operations.append(
                Produce(
                    self.partition, name, via, sent, time.monotonic(), (value,),
                    Outcome.ACKNOWLEDGED if told else Outcome.UNKNOWN, number,
                    base_offset=message.offset() if told else None, idempotent=idempotent,
                )
            )  # fmt: skip

        producer.produce(self.topic, value.encode(), partition=0, on_delivery=done)

    def follow(self, name: str, bootstrap: str) -> None:
        """Read from the start until :meth:`stop`."""
        stop = threading.Event()
        self._start(lambda: self._read(name, bootstrap, stop, None), stop)

    def read_all(self, name: str, bootstrap: str, end: int) -> None:
        """Read every offset below ``end``."""
        stop = threading.Event()
        reading = threading.Thread(target=self._read, args=(name, bootstrap, stop, end))
        reading.start()
        reading.join(60)
        stop.set()
        assert not reading.is_alive(), f"{name} did not reach {end} within 60 s"

    def _read(self, name: str, bootstrap: str, stop: threading.Event, end: int | None) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        position = 0
        try:
            while not stop.is_set() and (end is None or position < end):
                asked = time.monotonic()
                messages = consumer.consume(500, 0.2)
                records: list[tuple[int, Value]] = []
                for message in messages:
                    error, offset, value = message.error(), message.offset(), message.value()
                    if error is None and offset is not None and value is not None:
                        records.append((offset, value.decode()))
                    elif error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                        self._fetched(name, bootstrap, asked, position, [], "OFFSET_OUT_OF_RANGE")
                if records:
                    self._fetched(name, bootstrap, asked, position, records, None)
                    position = records[-1][0] + 1
        finally:
            consumer.close()

    def _fetched(
        self,
        name: str,
        via: str,
        asked: float,
        position: int,
        records: list[tuple[int, Value]],
        error: str | None,
    ) -> None:
        # librdkafka asks ahead: when the fetch was sent is not known, only that its answer was
        # taken now, and that its reader goes on where it was.
        self.operations.append(
            Fetch(
                self.partition, name, via, asked - 3600, time.monotonic(), position,
                tuple(records), error=error,
            )
        )  # fmt: skip

    def end_of_log(self, bootstrap: str) -> int:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
        asked = time.monotonic()
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), 30.0)
        finally:
            consumer.close()
        now = time.monotonic()
        for which, offset in ((Which.EARLIEST, low), (Which.LATEST, high)):
            self.operations.append(
                ListOffsets(self.partition, bootstrap, asked, now, which, offset)
            )
        return int(high)

    def acknowledged(self, producer: str) -> int:
        return sum(
            isinstance(o, Produce) and o.producer == producer and o.outcome is Outcome.ACKNOWLEDGED
            for o in list(self.operations)
        )

    def _start(self, run: object, stop: threading.Event) -> None:
        thread = threading.Thread(target=run, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)
        self._stops.append(stop)

    def stop(self) -> None:
        for stop in self._stops:
            stop.set()
        for thread in self._threads:
            thread.join(90)
        assert not any(thread.is_alive() for thread in self._threads)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def gateway(
    stack: Stack, node: int, state: Path, postgres_port: int | None = None
) -> Iterator[str]:
    """A process of id EXTRA beside broker ``node``; its bootstrap. Postgres may be behind a
    proxy."""
    own = f"127.0.0.1:{free_port()}"
    environment = stack.environment(f"gateway-{node}")
    dsn = conninfo_to_dict(environment["TIDELINE_POSTGRES_DSN"])
    if postgres_port is not None:
        dsn |= {"host": "127.0.0.1", "port": str(postgres_port)}
    peers = environment["TIDELINE_GATEWAY_PEERS"].split(",")
    peers = [f"{node}={own}" if peer.startswith(f"{node}=") else peer for peer in peers]
    environment |= {
        "TIDELINE_POSTGRES_DSN": make_conninfo(**{k: str(v) for k, v in dsn.items()}),
        "TIDELINE_GATEWAY_ID": str(EXTRA),
        "TIDELINE_GATEWAY_LISTEN": own,
        "TIDELINE_GATEWAY_ADVERTISED": own,
        "TIDELINE_GATEWAY_PEERS": ",".join(peers),
        "TIDELINE_GATEWAY_STATE_DIR": str(state),
        "TIDELINE_METRICS_ADDRESS": f"127.0.0.1:{free_port()}",
    }
    state.mkdir()
    with (state / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tideline.gateway"],
            env=os.environ | environment, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            yield own
        finally:
            process.kill()
            process.wait()


def test_a_doubled_gateway_id_that_is_cut_off_in_the_quiesce_loses_nothing(
    stack: Stack, tmp_path: Path
) -> None:
    """One gateway loses Postgres, not Kafka, while the write pause begins; another process takes
    its id; then the network is back. Producers of both kinds, readers through every gateway."""
    postgres = conninfo_to_dict(stack.environment("gateway-1")["TIDELINE_POSTGRES_DSN"])
    with ExitStack() as held:
        proxy = held.enter_context(Proxy(str(postgres["host"]), int(str(postgres["port"]))))
        case = held.enter_context(migration_case(stack, name="history", history=0))
        leader, _ = leader_of(stack, case.topic, 0)
        cut_off = held.enter_context(gateway(stack, leader, tmp_path / "one", proxy.port))
        until("the gateway to register", lambda: EXTRA in gateways(case))
        recorder = Recorder(case.topic)
        held.callback(retire, case)
        recorder.produce("idempotent", case.bootstrap, idempotent=True)
        recorder.produce("plain", cut_off, idempotent=False)
        recorder.follow("follower", cut_off)
        until("both to be told", lambda: recorder.acknowledged("plain") > 50
              and recorder.acknowledged("idempotent") > 50)  # fmt: skip
        stop = Breakpoint(case.superuser_dsn, case.topic_id, Phase.QUIESCE)
        first = gateways(case)[EXTRA].incarnation
        try:
            case.trigger()
            stop.wait_until_hit()
            held_proxy = held.enter_context(ExitStack())
            held_proxy.enter_context(proxy.cut())
            assert case.boundaries() == [-1], "the cut has to begin before B0"
        finally:
            stop.release()
        second = held.enter_context(gateway(stack, leader, tmp_path / "two"))
        case.until_crossed()
        assert (
            gateways(case)[EXTRA].incarnation != first or gateways(case)[EXTRA].status != "active"
        )
        until("the second process to hold the id", lambda: gateways(case)[EXTRA].status == "active"
              and gateways(case)[EXTRA].incarnation != first)  # fmt: skip
        held_proxy.close()
        told = recorder.acknowledged("idempotent")
        until("the others to go on", lambda: recorder.acknowledged("idempotent") > told + 100)
        recorder.stop()
        end = recorder.end_of_log(case.bootstrap)
        for number, address in {**stack.endpoints.gateways, EXTRA: second}.items():
            recorder.read_all(f"reader-{number}", str(address), end)
        assert case.boundaries()[0] < end, "nothing came after B0"
        found = judge(recorder.operations, Bounds(stale=30.0))
        assert [str(violation) for violation in found] == []


def retire(case: Case) -> None:
    """The stack's later migrations do not wait for a gateway that is gone."""
    with psycopg.connect(case.superuser_dsn, autocommit=True) as connection:
        connection.execute("SELECT tideline.retire_gateway(%s, 'the test')", [EXTRA])
