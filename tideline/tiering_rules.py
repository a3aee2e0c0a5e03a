"""How the user wants each topic to be tiered: its configs in Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tideline.control_plane.jobs import JobsControlPlane
from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.tiering import LOCAL_RETENTION_MS, TieringConfig, effective_config
from tideline.errors import RefusedError
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.topic_observer import TopicObserver
from tideline.settings import KafkaSettings

AT_ONCE = 16
"""DescribeConfigs requests under way."""
LOG_ID_RANGE = 100_000
"""Log ids per read: partitions are read in pieces of this."""
BROKER_DEFAULTS = {LOCAL_RETENTION_MS: "log.local.retention.ms"}
"""Configs that a migration holds at its own value (``MANAGED_KEYS``): for a user who has not set
one, the broker's default counts, which the topic's own entry hides."""


@dataclass(frozen=True, slots=True)
class SuffixTopic:
    """A live topic with a suffix."""

    name: str
    topic_id: UUID
    user_values: Mapping[str, str | None]
    """The user's values of the configs that Tideline holds."""


@dataclass(frozen=True, slots=True)
class TopicRules:
    """Configs by topic id, and the topics that have none, with why: those are left alone."""

    configs: Mapping[UUID, TieringConfig] = field(default_factory=dict)
    left_alone: Mapping[str, str] = field(default_factory=dict)

    def cutoffs(self, now_ms: int) -> dict[UUID, int]:
        """For ``claim_wal_files``: batches older than this are split."""
        found = {topic_id: config.cutoff(now_ms) for topic_id, config in self.configs.items()}
        return {topic_id: cutoff for topic_id, cutoff in found.items() if cutoff is not None}


def suffix_topics(plane: JobsControlPlane, only: Collection[str] = ()) -> list[SuffixTopic]:
    """Topics with a suffix that are neither deleted nor paused; ``only``: none but these.

    Raises :class:`RefusedError` for a name in ``only`` that has no suffix.
    """
    found: dict[UUID, SuffixTopic] = {}
    known: set[str] = set()
    first, end = plane.log_id_range()
    for lo in range(first, end, LOG_ID_RANGE):
        for row in plane.partitions(lo, min(lo + LOG_ID_RANGE, end)):
            if row.deleted or row.boundary == UNDEFINED_OFFSET:
                continue
            if only and row.topic not in only:
                continue
            known.add(row.topic)
            if not row.tiering_paused:
                found[row.topic_id] = SuffixTopic(row.topic, row.topic_id, row.user_configs)
    if unknown := sorted(set(only) - known):
        raise RefusedError(
            f"topic {unknown[0]!r} has no diskless data: only a topic that has crossed B0, or was "
            "born diskless, is tiered; see `tideline status`"
        )
    return list(found.values())


def read_rules(settings: KafkaSettings, topics: Collection[SuffixTopic]) -> TopicRules:
    """Ask Kafka. Raises ``KafkaUnavailable``; a topic that Kafka does not know is left alone."""
    return asyncio.run(_read(settings, topics)) if topics else TopicRules()


async def _read(settings: KafkaSettings, topics: Collection[SuffixTopic]) -> TopicRules:
    places = asyncio.Semaphore(AT_ONCE)
    configs: dict[UUID, TieringConfig] = {}
    left_alone: dict[str, str] = {}
    async with KafkaCluster(
        settings.kafka_bootstrap,
        client_id="tideline-tiering",
        timeout_ms=settings.kafka_request_timeout_ms,
    ) as cluster:
        observer = TopicObserver(cluster, settings.kafka_request_timeout_ms)
        node = min(await cluster.nodes())
        defaults = {
            key: await observer.broker_config(node, of_broker)
            for key, of_broker in BROKER_DEFAULTS.items()
        }

        async def one(topic: SuffixTopic) -> None:
            async with places:
                try:
                    found = await observer.configs(topic.name)
                except KafkaError as error:
                    left_alone[topic.name] = str(error)
                    return
            described = {key: entry.value for key, entry in found.items()}
            configs[topic.topic_id] = effective_config(described, topic.user_values, defaults)

        await asyncio.gather(*(one(topic) for topic in topics))
    return TopicRules(configs, left_alone)
