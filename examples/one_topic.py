"""One topic becomes diskless while it is in use, with nothing but a stock Kafka client.

    python examples/one_topic.py orders --bootstrap 127.0.0.1:19191

Creates a tiered topic, writes, asks for the migration, waits, writes on, and reads everything back.
"""

from __future__ import annotations

import argparse
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

PARTITIONS = 2
RECORDS = 500  # before the migration, and again after it


def create(admin: AdminClient, topic: str) -> None:
    """A tiered topic with the cluster's own replication factor."""
    configs = {"remote.storage.enable": "true", "local.retention.ms": "60000"}
    new = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=-1, config=configs)
    admin.create_topics([new], operation_timeout=30)[topic].result(60)


def produce(bootstrap: str, topic: str, first: int) -> None:
    """Records first, first + 1, …: each acknowledged before this returns."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(first, first + RECORDS):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    if left := producer.flush(60):
        raise SystemExit(f"{left} records were not acknowledged within 60 s")


def ask_for_migration(admin: AdminClient, topic: str) -> None:
    change = ConfigEntry("diskless.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(60)


def state(admin: AdminClient, topic: str) -> str:
    """TIERED_ONLY, then MIGRATING, then HYBRID: the topic's read-only config."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    configs = admin.describe_configs([resource])[resource].result(30)
    return str(configs["diskless.migration.state"].value)


def wait_until_hybrid(admin: AdminClient, topic: str, timeout_s: float = 120) -> None:
    deadline, shown = time.monotonic() + timeout_s, ""
    while (now := state(admin, topic)) != "HYBRID":
        if now != shown:
            print(f"{topic} is {now}")
            shown = now
        if time.monotonic() > deadline:
            raise SystemExit(f"{topic} is still {now}: `tideline preflight {topic}` says why")
        time.sleep(0.2)
    print(f"{topic} is HYBRID: what is written now goes to object storage")


def read_all(bootstrap: str, topic: str) -> list[list[int]]:
    """The numbers of each partition, from its first offset to its last."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-reader"})
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    try:
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
        while sum(map(len, found)) < 2 * RECORDS:
            message = consumer.poll(30)
            if message is None:
                raise SystemExit(f"only {sum(map(len, found))} records came within 30 s")
            if message.error():
                raise SystemExit(str(message.error()))
            found[message.partition()].append(int(message.value()))
    finally:
        consumer.close()
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("topic")
    arguments.add_argument("--bootstrap", default="127.0.0.1:19191", help="the gateways")
    given = arguments.parse_args()
    admin = AdminClient({"bootstrap.servers": given.bootstrap})

    create(admin, given.topic)
    produce(given.bootstrap, given.topic, first=0)
    ask_for_migration(admin, given.topic)
    wait_until_hybrid(admin, given.topic)
    produce(given.bootstrap, given.topic, first=RECORDS)

    for partition, numbers in enumerate(read_all(given.bootstrap, given.topic)):
        if numbers != list(range(partition, 2 * RECORDS, PARTITIONS)):
            raise SystemExit(f"partition {partition} is not what was written")
        print(f"partition {partition}: {len(numbers)} records, in order, across the boundary")


if __name__ == "__main__":
    main()
