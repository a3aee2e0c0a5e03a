"""Read a topic by offset and by time: a hybrid topic is one log to every client.

python examples/read_hybrid.py orders --offset 100
python examples/read_hybrid.py orders --since 2026-01-31T12:00:00+00:00
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from confluent_kafka import Consumer, TopicPartition


def start_at(
    consumer: Consumer, place: TopicPartition, offset: int | None, since: datetime | None
) -> TopicPartition:
    """Where to read: an offset, the first record at or after a time, or the log's start."""
    earliest, latest = consumer.get_watermark_offsets(place, timeout=30)
    print(f"{place.topic} {place.partition}: offsets {earliest} to {latest - 1}")
    if since is not None:
        at = TopicPartition(place.topic, place.partition, round(since.timestamp() * 1000))
        (found,) = consumer.offsets_for_times([at], timeout=30)
        return TopicPartition(place.topic, place.partition, found.offset)
    return TopicPartition(place.topic, place.partition, earliest if offset is None else offset)


def show(consumer: Consumer, count: int) -> None:
    for _ in range(count):
        message = consumer.poll(10)
        if message is None:
            return
        if message.error():
            raise SystemExit(str(message.error()))
        _, timestamp_ms = message.timestamp()
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
        print(f"{message.offset():>10}  {when}  {message.value().decode(errors='replace')}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("topic")
    arguments.add_argument("--partition", type=int, default=0)
    arguments.add_argument("--offset", type=int)
    arguments.add_argument("--since", type=datetime.fromisoformat, help="a time with its zone")
    arguments.add_argument("--count", type=int, default=10)
    arguments.add_argument("--bootstrap", default="127.0.0.1:19191", help="the gateways")
    given = arguments.parse_args()

    settings = {
        "bootstrap.servers": given.bootstrap,
        "group.id": "read-hybrid",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
    }
    consumer = Consumer(settings)
    try:
        place = TopicPartition(given.topic, given.partition)
        consumer.assign([start_at(consumer, place, given.offset, given.since)])
        show(consumer, given.count)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
