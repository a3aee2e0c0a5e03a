"""The pure Python client. ``python -m tests.clients.kafka_python WAYS``"""

from __future__ import annotations

import logging
import sys

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

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
POLL_MS = int(1_000 * POLL_S)
JOINS_MS = 60_000
"""The first poll returns with the first records, of a member that has joined. One whose time is
over while the member joins anew for the topic's metadata forgets that, for ever (docs/clients.md).
"""


class Reader(Loop):
    def __init__(self, name: str, consumer: KafkaConsumer) -> None:
        super().__init__(name)
        self._consumer, self._poll_ms = consumer, JOINS_MS

    def turn(self) -> None:
        for batch in self._consumer.poll(timeout_ms=self._poll_ms).values():
            for record in batch:
                tell(self.name, "read", record_id(record.value), record.offset)
            self._consumer.commit()
        self._poll_ms = POLL_MS

    def end(self) -> None:
        self._consumer.close()


class Writer(Loop):
    def __init__(self, name: str, producer: KafkaProducer, topic: str) -> None:
        super().__init__(name)
        self._producer, self._topic, self._sent = producer, topic, 0

    def turn(self) -> None:
        value = f"{self.name}/{self._sent}"
        self._sent += 1
        sent = self._producer.send(self._topic, value.encode(), partition=0)
        sent.add_callback(lambda at: tell(self.name, "acked", value, at.offset))
        sent.add_errback(lambda error: tell(self.name, "told", type(error).__name__))
        self.pause(1 / RECORDS_PER_SECOND)

    def end(self) -> None:
        self._producer.flush(TIMEOUT_S)
        self._producer.close()


class KafkaPython:
    def __init__(self, ways: str) -> None:
        self._connection = connections(ways, "kafka-python")
        self._transactional: dict[str, KafkaProducer] = {}

    def open(self, name: str, group: str, protocol: str, isolation: str, topic: str) -> Stoppable:
        assert protocol == "classic"
        consumer = KafkaConsumer(
            topic,
            group_id=group,
            isolation_level=isolation,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_min_bytes=FETCH_MIN_BYTES,
            fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
            **self._connection(name),
        )
        return Reader(name, consumer).start()

    def produce(self, name: str, topic: str) -> Stoppable:
        producer = KafkaProducer(enable_idempotence=True, **self._connection(name))
        return Writer(name, producer, topic).start()

    def transact(self, name: str, topic: str, end: str, value: str) -> str:
        if name not in self._transactional:
            made = KafkaProducer(transactional_id=f"{name}-{topic}", **self._connection(name))
            made.init_transactions()
            self._transactional[name] = made
        producer = self._transactional[name]
        producer.begin_transaction()
        try:
            at = producer.send(topic, value.encode(), partition=0).get(TIMEOUT_S)
            if end == "commit":
                producer.commit_transaction()
                return f"committed {at.offset}"
        except KafkaError as error:
            producer.abort_transaction()
            return f"refused {type(error).__name__}"
        producer.abort_transaction()
        return f"aborted {at.offset}"


if __name__ == "__main__":
    logging.disable()
    serve(KafkaPython(sys.argv[1]))
