"""How jobs read with librdkafka: what is assigned, from its offset on, as nobody's group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, Message

from tideline.kafka.security import KafkaSecurity
from tideline.settings import KafkaSettings

QUIET_TIMEOUTS = 3
"""Who sends nothing for so many request timeouts is away."""


def reader_config(settings: KafkaSettings, bootstrap: Iterable[str]) -> dict[str, Any]:
    """Of a consumer that commits nothing and goes nowhere by itself. ``bootstrap``: host:port."""
    return {
        **KafkaSecurity.of(settings).librdkafka,
        "bootstrap.servers": ",".join(bootstrap),
        "group.id": "tideline-jobs",  # asked for by the library; nothing is committed
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        "queued.max.messages.kbytes": 16_384,
        "log_level": 2,
    }


def what_came(consumer: Consumer, timeout_s: float, most: int, gather_s: float) -> list[Message]:
    """At most ``most`` messages; none when nothing comes for ``timeout_s``."""
    first = consumer.poll(timeout_s)
    if first is None:
        return []
    # A consume() waits until it has all that it may take: ask for what has come.
    return [first, *(consumer.consume(most - 1, gather_s) if most > 1 else ())]
