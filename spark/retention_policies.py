"""What the user wants kept of each topic: its retention in Kafka, read by the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tideline.control_plane.tiering_model import PartitionRow
from tideline.domain.retention import UNLIMITED, Policy, policy_of
from tideline.errors import UsageError
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.topic_observer import TopicObserver
from tideline.settings import JobsSettings

AT_ONCE = 16
"""DescribeConfigs requests under way."""
BROKER_RETENTION_BYTES = "log.retention.bytes"
"""Counts for a user who has set none: the topic's own entry, −1, hides it."""


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """Policies by topic id; and topics that have none, with why: those are left alone."""

    policies: Mapping[UUID, Policy] = field(default_factory=dict)
    left_alone: Mapping[str, str] = field(default_factory=dict)


def read_policies(settings: JobsSettings, rows: Iterable[PartitionRow]) -> TopicPolicies:
    """Ask Kafka for the topics of ``rows``. Raises ``KafkaUnavailable``; a topic that Kafka does
    not know, or whose limits are no numbers, is left alone."""
    topics = {row.topic_id: row for row in rows}
    return asyncio.run(_read(settings, topics)) if topics else TopicPolicies()


async def _read(settings: JobsSettings, topics: Mapping[UUID, PartitionRow]) -> TopicPolicies:
    places = asyncio.Semaphore(AT_ONCE)
    policies: dict[UUID, Policy] = {}
    left_alone: dict[str, str] = {}
    async with KafkaCluster(
        settings.kafka_bootstrap,
        client_id="tideline-retention",
        timeout_ms=settings.kafka_request_timeout_ms,
    ) as cluster:
        observer = TopicObserver(cluster, settings.kafka_request_timeout_ms)
        default = await observer.broker_config(min(await cluster.nodes()), BROKER_RETENTION_BYTES)
        default_bytes = UNLIMITED if default is None else int(default)

        async def one(row: PartitionRow) -> None:
            async with places:
                try:
                    found = await observer.configs(row.topic)
                    configs = {key: entry.value for key, entry in found.items()}
                    policies[row.topic_id] = policy_of(configs, row.user_configs, default_bytes)
                except (KafkaError, ValueError) as error:
                    left_alone[row.topic] = str(error)

        async with asyncio.TaskGroup() as group:
            for row in topics.values():
                group.create_task(one(row))
    return TopicPolicies(policies, left_alone)


def parse_topics(names: Iterable[str], rows: Iterable[PartitionRow]) -> frozenset[str]:
    """``names`` as a set. Raises :class:`UsageError` for one that no live partition has."""
    wanted = frozenset(names)
    if missing := sorted(wanted - {row.topic for row in rows if not row.deleted}):
        raise UsageError(
            f"topic {missing[0]!r} is not tracked: retention of a classic topic is Kafka's own; "
            "see `tideline status`"
        )
    return wanted
