"""Stock clients of one partition, and what they did and were told, for the history checker."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.history.checker import judge
from tests.history.operations import (
    Fetch,
    ListOffsets,
    Operation,
    Outcome,
    Partition,
    Produce,
    TransactionEnd,
    Value,
    Which,
)
from tests.history.violations import Bounds
from tests.support.waiting import HANGS_S, WITHIN_S, joined, until, until_still

PERIOD_S = 0.05
"""Between two records of one producer."""
BOUNDS = Bounds(stale=30.0)


class Recorder:
    """Clients of one partition, and what they did and were told. ``size``: bytes of a record."""

    def __init__(self, topic: str, size: int = 0) -> None:
        self.topic, self.partition, self._size = topic, Partition(topic, 0), size
        self.operations: list[Operation] = []
        self._told: Counter[str] = Counter()
        self._highest: dict[str, int] = {}
        self._readings = count(1)
        self._running: dict[str, tuple[threading.Thread, threading.Event]] = {}

    def produce(
        self, name: str, bootstrap: str, *, idempotent: bool, acks: int = -1, **configs: object
    ) -> None:
        """One record every 50 ms until :meth:`stop`; a producer without idempotence that is not
        told sends nothing again, so that each record is sent once."""
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": idempotent,
                "acks": acks,
                "linger.ms": 0,
                "message.timeout.ms": 60_000,
                "message.send.max.retries": 1_000_000 if idempotent else 0,
                "max.in.flight.requests.per.connection": 5 if idempotent else 1,
                **configs,
            }
        )
        stop = threading.Event()

        def run() -> None:
            number = 0
            while not stop.wait(PERIOD_S):
                self._send(producer, name, bootstrap, number, idempotent, acks)
                producer.poll(0)
                number += 1
            producer.flush(HANGS_S)

        self.start(name, run, stop)

    def transact(self, name: str, bootstrap: str, records: int = 5) -> None:
        """Transactions of ``records``, until :meth:`stop`; each third one is aborted."""
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"{name}-{self.topic}",
                "linger.ms": 0,
            }
        )
        producer.init_transactions(HANGS_S)
        stop = threading.Event()

        def run() -> None:
            count = 0
            while not stop.wait(PERIOD_S):
                transaction = f"{name}-{count}"
                producer.begin_transaction()
                for place in range(records):
                    number = count * records + place
                    self._send(producer, name, bootstrap, number, True, -1, transaction)
                producer.flush(HANGS_S)
                commits = count % 3 != 2
                if commits:
                    producer.commit_transaction(HANGS_S)
                else:
                    producer.abort_transaction(HANGS_S)
                self.operations.append(TransactionEnd(transaction, time.monotonic(), commits))
                count += 1

        self.start(name, run, stop)

    def _send(
        self,
        producer: Producer,
        name: str,
        via: str,
        number: int,
        idempotent: bool,
        acks: int,
        transaction: str | None = None,
    ) -> None:
        value, sent = f"{name}-{number}", time.monotonic()

        def done(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            base = offset if error is None and offset is not None and offset >= 0 else None
            self.produced(
                Produce(
                    self.partition, name, via, sent, time.monotonic(), (value,),
                    Outcome.UNKNOWN if base is None else Outcome.ACKNOWLEDGED, number,
                    base_offset=base, acks=acks, idempotent=idempotent, transaction=transaction,
                )
            )  # fmt: skip

        padded = value.encode().ljust(self._size)
        while True:
            try:
                producer.produce(self.topic, padded, partition=0, on_delivery=done)
                return
            except BufferError:  # so much is not told yet
                producer.poll(0.1)

    def produced(self, told: Produce) -> None:
        """A producer was told of one record, or that it will not be."""
        self.operations.append(told)
        if told.base_offset is not None:
            self._told[told.producer] += 1
            highest = self._highest.get(told.producer, -1)
            self._highest[told.producer] = max(told.base_offset, highest)

    def follow(self, name: str, bootstrap: str) -> None:
        """Read from the start until :meth:`stop`."""
        stop = threading.Event()
        self.start(name, lambda: self._read(name, bootstrap, stop, 0, None), stop)

    def read_all(self, name: str, bootstrap: str, end: int, first: int = 0) -> None:
        """Read every offset from ``first`` on, below ``end``."""
        stop = threading.Event()
        reading = threading.Thread(
            target=self._read, args=(name, bootstrap, stop, first, end), daemon=True,
            name=f"{name}, which reads up to {end}",
        )  # fmt: skip
        reading.start()
        try:
            joined(reading, WITHIN_S)
        finally:
            stop.set()
            joined(reading, HANGS_S)

    def _read(
        self, name: str, bootstrap: str, stop: threading.Event, first: int, end: int | None
    ) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(self.topic, 0, first)])
        position = first
        try:
            while not stop.is_set() and (end is None or position < end):
                asked = time.monotonic()
                messages = consumer.consume(500, 0.2)
                records: list[tuple[int, Value]] = []
                for message in messages:
                    error, offset, value = message.error(), message.offset(), message.value()
                    if error is None and offset is not None and value is not None:
                        records.append((offset, value.decode().rstrip()))
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
                tuple(records), error=error, read_committed=True,
            )
        )  # fmt: skip

    def end_of_log(self, bootstrap: str) -> int:
        """As a consumer is told now; recorded."""
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
        asked = time.monotonic()
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), HANGS_S)
        finally:
            consumer.close()
        now = time.monotonic()
        for which, offset in ((Which.EARLIEST, low), (Which.LATEST, high)):
            self.operations.append(
                ListOffsets(self.partition, bootstrap, asked, now, which, offset)
            )
        return int(high)

    def acknowledged(self, *producers: str) -> int:
        """How many records these were told of."""
        return sum(self._told[producer] for producer in producers)

    def told_through(self, *producers: str) -> int:
        """The highest offset that any of these was told; -1 without one."""
        return max((self._highest.get(producer, -1) for producer in producers), default=-1)

    def until_told(self, *producers: str, more: int = 20) -> None:
        """Each of these is told of ``more`` records from now on."""
        wanted = {name: self._told[name] + more for name in producers}
        until(
            f"{more} more acknowledgements for each of {', '.join(producers)}",
            lambda: all(self._told[name] >= told for name, told in wanted.items()),
        )

    def until_nobody_is_told(self, *producers: str, seconds: float = 0.5) -> None:
        """None of these, who go on sending, was told anything for so long."""
        until_still(
            f"what {', '.join(producers)} are told", lambda: self.acknowledged(*producers), seconds
        )

    def start(self, name: str, run: Callable[[], None], stop: threading.Event) -> None:
        """A client that ends soon after ``stop``."""
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._running[name] = (thread, stop)

    def stop(self, *names: str) -> None:
        """These, or all, do not send or follow any more, and have been told what they will be."""
        chosen = [self._running.pop(name) for name in names or list(self._running)]
        for _, stop in chosen:
            stop.set()
        for thread, _ in chosen:
            joined(thread, HANGS_S)

    def finish(self, addresses: Mapping[str, str], starts: Sequence[int] = (0,)) -> int:
        """Stop, read from each of ``starts`` to the next one and to the end, through each
        address, and judge; the end of the log."""
        self.stop()
        end = self.read_through(addresses, starts)
        found = judge(self.operations, BOUNDS)
        assert not found, "\n".join(str(violation) for violation in found)
        return end

    def read_through(self, addresses: Mapping[str, str], starts: Sequence[int] = (0,)) -> int:
        """Read all there is, as :meth:`finish` does; the end of the log as it was before."""
        end = self.end_of_log(next(iter(addresses.values())))
        turn = next(self._readings)
        with ThreadPoolExecutor(len(addresses)) as together:
            reading = [
                together.submit(self.read_all, f"{turn}-{name}-{first}", address, last, first)
                for first, last in pairwise([*starts, end])
                for name, address in addresses.items()
            ]
            for one in reading:
                one.result()
        return end
