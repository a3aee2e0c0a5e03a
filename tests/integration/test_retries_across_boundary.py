"""The answer to a producer's batch below B0 is lost, and the client sends the batch again after B0.

Stock clients judge: no record is stored twice, and the offset that is told, if any, is the
record's own. ``far``: 64 MiB lie between the batch and B0, and local retention has taken it, so it
is found in remote storage. ``near``: it was sent last. ``gone``: DeleteRecords has taken it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.beside import gateway, retire, serves
from tests.clients.driving import INTEGRATION, Program, Told, program
from tests.harness import Case, migration_case
from tests.ports import free_port
from tests.proxy import Proxy
from tests.support.waiting import HANGS_S, until
from tideline.stack import Stack
from tideline.stack.kafka_jars import tool_command

FILLER, FILLERS = 100_000, 720
"""Bytes and records: more than a scan for producers reads."""
RECORDS = {"gone": 10, "far": 10, "far-alone": 1, "near": 10}
"""In the batch whose answer is lost, by the name of its producer."""
LIBRARIES = ("java", "librdkafka")
NODE = 1


class Librdkafka:
    """Producers of this process, told what :class:`Program` tells ``RetryProbe.java``."""

    def __init__(self, bootstrap: str, topic: str, told: Told) -> None:
        self._bootstrap, self._topic, self._told = bootstrap, topic, told
        self._producers: dict[str, Producer] = {}

    def ask(self, what: str, name: str, records: str = "0") -> None:
        producer = self._producers.get(name)
        if producer is None:
            producer = self._producers[name] = Producer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "enable.idempotence": True,
                    "linger.ms": 500,
                    "request.timeout.ms": 500_000,
                    "socket.timeout.ms": 300_000,
                    "message.timeout.ms": 900_000,
                }
            )

        def told(error: object, message: object) -> None:
            value = message.value().decode()  # type: ignore[attr-defined]
            if error is not None:
                self._told.errors[name].append(f"{value} {error}")
            else:
                offset = message.offset()  # type: ignore[attr-defined]
                self._told.acked[name].append((-1 if offset is None else offset, value))

        for number in range(int(records) if what == "send" else 0):
            producer.produce(self._topic, f"{name}-{number}", partition=0, on_delivery=told)
        producer.poll(0)
        if what == "flush":
            assert producer.flush(HANGS_S) == 0


@dataclass
class Seen:
    boundary: int
    told: Told
    stored: dict[str, list[int]] = field(default_factory=dict)
    """Offsets by value, as they are read back."""


@pytest.fixture(scope="module")
def seen(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    port = free_port()
    told = Told()
    with (
        migration_case(stack, name="retried", history=0, placed=[NODE]) as case,
        Proxy("127.0.0.1", port) as proxy,
        ExitStack() as held,
    ):
        beside = held.enter_context(
            gateway(
                stack,
                NODE,
                tmp_path_factory.mktemp("retried") / "state",
                peers={NODE: proxy.address},
                settings={"TIDELINE_GATEWAY_LISTEN": f"127.0.0.1:{port}"},
            )
        )
        until(f"{beside.address} to listen", lambda: serves(beside))
        held.callback(retire, case, beside.number)
        java = tool_command(
            str(INTEGRATION / "java" / "RetryProbe.java"), proxy.address, case.topic
        )
        clients: dict[str, Program | Librdkafka] = {
            "java": held.enter_context(program(java, told)),
            "librdkafka": Librdkafka(proxy.address, case.topic, told),
        }

        def each(what: str, *names: str, first: bool = False) -> None:
            for library, client in clients.items():
                for name in names:
                    client.ask(what, f"{library}-{name}", "1" if first else str(RECORDS[name]))

        each("send", *RECORDS, first=True)
        each("flush", *RECORDS)
        with proxy.cut(to_server=False):
            appended(case, lambda: each("send", "gone"), 2 * 10)
            gone = TopicPartition(case.topic, 0, end(case))
            appended(case, lambda: each("send", "far", "far-alone"), 2 * 11)
            appended(case, lambda: fill(case), FILLERS)
            appended(case, lambda: each("send", "near"), 2 * 10)
            (deleted,) = case.admin.delete_records([gone]).values()
            assert deleted.result(HANGS_S).low_watermark == gone.offset
            case.trigger()
            (boundary,) = case.until_crossed()
            assert proxy.end() > 0
        each("flush", *RECORDS)
        found = Seen(boundary, told)
        for offset, value in read(case):
            found.stored.setdefault(value, []).append(offset)
        yield found


def appended(case: Case, how: Callable[[], None], records: int) -> None:
    """Do ``how``, and wait until Kafka has so many more records."""
    wanted = end(case) + records
    how()
    until(f"{records} more records in Kafka", lambda: end(case) >= wanted)


def end(case: Case) -> int:
    """The high watermark, of a broker."""
    with consumer_of(case.stack.endpoints.brokers[NODE]) as consumer:
        return int(consumer.get_watermark_offsets(TopicPartition(case.topic, 0), timeout=30)[1])


def fill(case: Case) -> None:
    producer = Producer({"bootstrap.servers": case.bootstrap, "linger.ms": 20})
    for _ in range(FILLERS):
        producer.produce(case.topic, os.urandom(FILLER), partition=0)
        producer.poll(0)
    assert producer.flush(HANGS_S) == 0


def read(case: Case) -> Iterator[tuple[int, str]]:
    """Every record but the filling, by a stock consumer through the gateways."""
    with consumer_of(case.bootstrap) as consumer:
        last = consumer.get_watermark_offsets(TopicPartition(case.topic, 0), timeout=30)[1] - 1
        consumer.assign([TopicPartition(case.topic, 0, OFFSET_BEGINNING)])
        reached = -1
        while reached < last:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None, message.error()
            reached = message.offset()
            if len(message.value()) < FILLER:
                yield reached, message.value().decode()


def consumer_of(bootstrap: str) -> closing[Consumer]:
    return closing(
        Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "retried", "enable.auto.commit": False}
        )
    )


def sent(library: str, name: str) -> list[str]:
    return [f"{library}-{name}-{number}" for number in range(RECORDS[name])]


CLIENTS = [(library, name) for library in LIBRARIES for name in RECORDS]


@pytest.mark.parametrize(("library", "name"), CLIENTS)
def test_a_batch_whose_answer_was_lost_below_b0_is_stored_once(
    seen: Seen, library: str, name: str
) -> None:
    assert not seen.told.errors[f"{library}-{name}"]
    for value in sent(library, name):
        offsets = seen.stored.get(value, [])
        assert len(offsets) == (0 if name == "gone" else 1)
        assert all(offset < seen.boundary for offset in offsets)


@pytest.mark.parametrize(("library", "name"), CLIENTS)
def test_the_offset_that_is_told_is_the_records_own(seen: Seen, library: str, name: str) -> None:
    told = seen.told.acked[f"{library}-{name}"][1:]
    assert [value for _, value in told] == sent(library, name)
    for offset, value in told:
        assert offset < 0 if name == "gone" else offset in seen.stored[value]
