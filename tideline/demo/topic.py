"""The demo's topic: created, filled, tiered and migrated through stock admin clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from tideline.demo.history import segment_of
from tideline.demo.patience import Patience
from tideline.domain.ids import topic_id_from_base64
from tideline.object_store.client import ObjectEntry, ObjectStoreClient

TIERED_CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1048576",
    "retention.ms": "604800000",
    "min.insync.replicas": "1",
}


def create_tiered(
    admin: AdminClient,
    topic: str,
    partitions: int,
    replication: int,
    *,
    placed: Sequence[int] = (),
    **configs: str,
) -> UUID:
    """A new topic's id. ``placed``: the brokers of each partition, instead of ``replication``."""
    how: dict[str, Any] = (
        {"replica_assignment": [list(placed)] * partitions}
        if placed
        else {"replication_factor": replication}
    )
    request = NewTopic(topic, partitions, config={**TIERED_CONFIGS, **configs}, **how)
    admin.create_topics([request], operation_timeout=30)[topic].result(60)
    return topic_id(admin, topic)


@retry(
    retry=retry_if_exception_type(KafkaException),
    stop=stop_after_delay(15),
    wait=wait_fixed(0.1),
    reraise=True,
)
def topic_id(admin: AdminClient, topic: str) -> UUID:
    """The topic's id, from a DescribeTopics of the stock client; asked again while the broker
    that answers has not heard of a new topic."""
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    return topic_id_from_base64(str(described.topic_id))


def wait_until_tiered(
    store: ObjectStoreClient,
    bucket: str,
    prefix: str,
    partitions: int,
    *,
    segments: int,
    timeout_s: float,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, ObjectEntry]:
    """Wait until every partition has ``segments`` ``.log`` objects in S3; returns the listing."""
    patience = Patience(timeout_s)
    while True:
        objects = {entry.key: entry for entry in store.list_objects(bucket, prefix)}
        files = [segment for key in objects if (segment := segment_of(key))]
        logs = [partition for partition, _, kind in files if kind == "log"]
        progress(len(logs))
        if all(logs.count(p) >= segments for p in range(partitions)):
            return objects
        if patience.over:
            raise TimeoutError(
                f"only {len(logs)} segments of {partitions * segments} reached s3://{bucket}/"
                f"{prefix} within {timeout_s:.0f} s: see `tideline stack logs kafka-1`"
            )
        time.sleep(0.5)


def trigger_migration(admin: AdminClient, topic: str) -> None:
    """``diskless.enable=true`` by IncrementalAlterConfigs: the only trigger a user needs."""
    set_config(admin, topic, "diskless.enable", "true")


def set_config(admin: AdminClient, topic: str, key: str, value: str) -> None:
    """One topic config, by IncrementalAlterConfigs of the stock client."""
    change = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(60)


def topic_configs(admin: AdminClient, topic: str) -> dict[str, str | None]:
    """The topic's configs as a user sees them."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    described = admin.describe_configs([resource])[resource].result(30)
    return {name: entry.value for name, entry in described.items()}
