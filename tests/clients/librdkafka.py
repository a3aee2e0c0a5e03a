"""librdkafka, through confluent-kafka. ``python -m tests.clients.librdkafka WAYS``"""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from tests.clients.serving import (
    FETCH_MAX_WAIT_MS,
    FETCH_MIN_BYTES,
    POLL_S,
    RECORDS_PER_SECOND,
    Loop,
    Stoppable,
    connections,
    record_id,
    serve,
    tell,
)

TIMEOUT_S = 300.0
"""Of any machine; how long it may take on this one is for who drives this program to say."""


class Reader(Loop):
    def __init__(self, name: str, consumer: Consumer) -> None:
        super().__init__(name)
        self._consumer = consumer

    def turn(self) -> None:
        seen = self._consumer.consume(500, POLL_S)
        for message in seen:
            if (error := message.error()) is not None:
                tell(self.name, "told", error.name())
                continue
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert isinstance(value, bytes)
            tell(self.name, "read", record_id(value), offset)
        if any(message.error() is None for message in seen):
            self._consumer.commit(asynchronous=False)

    def end(self) -> None:
        self._consumer.close()


class Writer(Loop):
    def __init__(self, name: str, producer: Producer, topic: str) -> None:
        super().__init__(name)
        self._producer, self._topic, self._sent = producer, topic, 0

    def turn(self) -> None:
        value = f"{self.name}/{self._sent}"
        self._sent += 1
        self._producer.produce(self._topic, value, partition=0, on_delivery=self._settled)
        self._producer.poll(0)
        self.pause(1 / RECORDS_PER_SECOND)

    def end(self) -> None:
        left = self._producer.flush(TIMEOUT_S)
        assert left == 0, f"{left} records are not settled"

    def _settled(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            tell(self.name, "told", error.name())
            return
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert isinstance(value, bytes)
        tell(self.name, "acked", value.decode(), offset)


class Librdkafka:
    def __init__(self, ways: str) -> None:
        self._connection = connections(ways, "librdkafka")
        self._transactional: dict[str, Producer] = {}

    def _common(self, name: str) -> dict[str, Any]:
        return {**self._connection(name), "log_level": 2}

    def open(self, name: str, group: str, protocol: str, isolation: str, topic: str) -> Stoppable:
        consumer = Consumer(
            {
                **self._common(name),
                "group.id": group,
                "group.protocol": protocol,
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.min.bytes": FETCH_MIN_BYTES,
                "fetch.wait.max.ms": FETCH_MAX_WAIT_MS,
            }
        )
        consumer.subscribe([topic])
        return Reader(name, consumer).start()

    def produce(self, name: str, topic: str) -> Stoppable:
        producer = Producer({**self._common(name), "enable.idempotence": True, "linger.ms": 2})
        return Writer(name, producer, topic).start()

    def transact(self, name: str, topic: str, end: str, value: str) -> str:
        if name not in self._transactional:
            made = Producer(
                {**self._common(name), "transactional.id": f"{name}-{topic}", "linger.ms": 0}
            )
            made.init_transactions(TIMEOUT_S)
            self._transactional[name] = made
        producer = self._transactional[name]
        offsets: list[int] = []
        producer.begin_transaction()
        producer.produce(
            topic, value, partition=0,
            on_delivery=lambda error, message: offsets.append(-1 if error else message.offset()),
        )  # fmt: skip
        producer.flush(TIMEOUT_S)
        try:
            if end == "commit" or offsets[0] < 0:
                producer.commit_transaction(TIMEOUT_S)
                return f"committed {offsets[0]}"
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(TIMEOUT_S)
            return f"refused {error.args[0].name()}"
        producer.abort_transaction(TIMEOUT_S)
        return f"aborted {offsets[0]}"


if __name__ == "__main__":
    serve(Librdkafka(sys.argv[1]))
