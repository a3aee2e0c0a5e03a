"""Stock clients at work: librdkafka and Java producers, and a consumer group."""

from __future__ import annotations

import ctypes
import json
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer

from tideline.demo.ledger import NOT_TOLD, Acknowledgement, Ledger
from tideline.demo.patience import Patience
from tideline.stack.kafka_jars import tool_command

STOP_TIMEOUT_S = 150.0
"""Longer than librdkafka's ``delivery.timeout.ms``: by then every record is settled."""
STATISTICS_MS = 2_000
STANDS_STILL_S = 45.0
"""Without a statistic of librdkafka's own main thread, which tells one every ``STATISTICS_MS``."""
QUIET = 2
"""Of librdkafka: a connection that is refused while a gateway is down is no news, twenty times a
second. What went wrong is in the ledger."""


class LibrdkafkaProducer:
    """An idempotent producer that sends to every partition in turn, at a steady pace."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        partitions: Sequence[int],
        ledger: Ledger,
        *,
        records_per_second: float,
        value_bytes: int = 200,
        config: Mapping[str, str | int | float | bool] | None = None,
        limit: int | None = None,
    ) -> None:
        self.name = name
        self._left = limit
        self._topic, self._partitions, self._ledger = topic, list(partitions), ledger
        self._interval = len(self._partitions) / records_per_second
        self._padding = "." * max(0, value_bytes - 32)
        self._sequence = dict.fromkeys(self._partitions, 0)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": 120_000,
                "log_level": QUIET,
                "topic.metadata.refresh.interval.ms": 10_000,
                "socket.nagle.disable": True,
                **(config or {}),
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more and wait until every record is acknowledged or given up."""
        self._stop.set()
        self.wait()

    def abandon(self) -> None:
        """Send no more and drop what is not acknowledged: for a run that has failed already."""
        self._stop.set()
        self._producer.purge()

    def wait(self) -> None:
        """Wait until ``limit`` records, or those sent before a stop, are settled."""
        patience = Patience(STOP_TIMEOUT_S)
        while self._thread.is_alive():
            if patience.over:
                waited = f"{STOP_TIMEOUT_S:.0f} s"
                raise TimeoutError(f"producer {self.name} did not settle in {waited}")
            self._thread.join(0.25)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set() and (self._left is None or self._left > 0):
            for partition in self._partitions:
                self._send(partition)
            due = max(due + self._interval, time.monotonic() - 1.0)
            while (left := due - time.monotonic()) > 0 and not self._stop.is_set():
                self._producer.poll(left)
            self._producer.poll(0)
        self._producer.flush(STOP_TIMEOUT_S)

    def _send(self, partition: int) -> None:
        sequence = self._sequence[partition]
        record_id = f"{self.name}/{partition}/{sequence}"
        sent = time.monotonic()

        def settled(error: KafkaError | None, message: Message) -> None:
            now = time.monotonic()
            if error is not None:
                self._ledger.fail(record_id, str(error))
                return
            self._ledger.acknowledge(
                partition,
                Acknowledgement(told_offset(message), record_id, now, (now - sent) * 1000.0),
            )

        try:
            self._producer.produce(
                self._topic,
                key=f"k{partition}-{sequence % 97}",
                value=f"{record_id} {self._padding}",
                partition=partition,
                on_delivery=settled,
            )
        except BufferError:
            self._producer.poll(0.05)
            return
        self._sequence[partition] = sequence + 1
        if self._left is not None:
            self._left -= 1


def told_offset(message: Message) -> int:
    """Of a message that is delivered."""
    offset = message.offset()
    return NOT_TOLD if offset is None else offset


class JavaProducer:
    """Kafka's own ``VerifiableProducer`` (Java client, idempotent), one line per acknowledgement.

    Its values are counters, so ids are ``<name>/<partition>/<counter>``; the consumer side builds
    the same id from the value's prefix.
    """

    PREFIX = 7001
    MARK = f"{PREFIX}."

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        ledger: Ledger,
        *,
        directory: Path,
        records_per_second: int,
        login: str = "",
    ) -> None:
        """``login``: Java properties by which it logs in."""
        self.name, self._ledger = name, ledger
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / f"{name}.properties"
        config.write_text(
            f"enable.idempotence=true\nretries=2147483647\nlinger.ms=2\ndelivery.timeout.ms=120000\nclient.id={name}\n{login}"
        )
        config.chmod(0o600)
        self._errors = (directory / f"{name}.log").open("w")
        self._command = tool_command(
            "org.apache.kafka.tools.VerifiableProducer",
            "--bootstrap-server", bootstrap, "--topic", topic,
            "--throughput", str(records_per_second), "--acks", "-1",
            "--value-prefix", str(self.PREFIX), "--repeating-keys", "1000",
            "--command-config", str(config),
        )  # fmt: skip
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._reader.start()

    def stop(self) -> None:
        """SIGTERM: the tool flushes, closes and reports; every acknowledgement has been read."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._reader.join(10.0)
            self._errors.close()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            now = time.monotonic()
            event = json.loads(line)
            if event["name"] == "producer_send_success":
                partition = event["partition"]
                record_id = self.record_id(partition, event["value"])
                self._ledger.acknowledge(
                    partition, Acknowledgement(event["offset"], record_id, now, 0.0)
                )
            elif event["name"] == "producer_send_error":
                self._ledger.fail(f"{self.name}/{event.get('value')}", str(event.get("message")))

    @classmethod
    def record_id(cls, partition: int, value: str) -> str:
        return f"java/{partition}/{value.removeprefix(cls.MARK)}"


def record_id_of(partition: int, value: bytes) -> str:
    """The id inside a record's value, whichever of the producers wrote it."""
    text = value.split(b" ", 1)[0].decode()
    return JavaProducer.record_id(partition, text) if text.startswith(JavaProducer.MARK) else text


class GroupConsumer:
    """One member of a consumer group; writes every record it sees into the ledger.

    It begins anew, as who watches a process would have it, when librdkafka's threads wait for each
    other (docs/clients.md): no gateway can do that, and nothing but the library's silence tells it.
    """

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        group: str,
        ledger: Ledger,
        *,
        config: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        self._name, self._topic, self._ledger = name, topic, ledger
        self.assigned = threading.Event()
        self.resets: list[str] = []
        self.errors: list[str] = []
        """Everything else that librdkafka told."""
        self._config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "group.id": group,
            "group.instance.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": True,
            "auto.commit.interval.ms": 1000,
            "fetch.wait.max.ms": 100,
            "log_level": QUIET,
            "topic.metadata.refresh.interval.ms": 10_000,
            "statistics.interval.ms": STATISTICS_MS,
            **(config or {}),
        }
        self._stop = threading.Event()
        self._heard, self._at = time.monotonic(), dict[int, int]()
        self._consumer = self._new()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30.0)

    def state(self) -> str:
        """Where it stands, for whoever waits for it in vain. The library is not asked: one whose
        threads wait for each other never answers, and keeps Python's lock meanwhile."""
        alive = "" if self._thread.is_alive() else " its thread has ended;"
        silent = time.monotonic() - self._heard
        return (
            f"{self._name}:{alive} last offsets {self._at}; its library told something "
            f"{silent:.0f} s ago; told {self.errors}"
        )

    def _new(self) -> Consumer:
        consumer = Consumer({**self._config, "stats_cb": self._told})
        consumer.subscribe([self._topic], on_assign=lambda *_: self.assigned.set())
        self._heard = time.monotonic()
        return consumer

    def _told(self, _: str) -> None:
        self._heard = time.monotonic()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(500, 0.1):
                self._receive(message)
            if time.monotonic() - self._heard > STANDS_STILL_S:
                self.errors.append(f"{self._name}'s library stands still: it begins anew")
                # Whoever frees it waits for ever.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._consumer))
                self._consumer = self._new()
        self._consumer.close()

    def _receive(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                self.resets.append(str(error))
            else:
                self.errors.append(str(error))
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert isinstance(value, bytes)
        self._at[partition] = offset
        self._ledger.consume(partition, offset, record_id_of(partition, value))


def wait_until_consumed(ledger: Ledger, timeout_s: float) -> bool:
    """Wait until consumers have passed every acknowledged offset."""
    patience = Patience(timeout_s)
    while not patience.over:
        if all(
            ledger.consumed_through(p) >= ledger.acknowledged_through(p) for p in ledger.partitions
        ):
            return True
        time.sleep(0.1)
    return False
