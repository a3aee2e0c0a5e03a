"""What the user wants of each topic: how it is retained and how it is tiered, its configs in Kafka.

From tracking on Tideline overrides some of these configs. There the user's own values, which
Postgres keeps, count; for a user who has set none, the broker's default, which the topic's own
entry hides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from uuid import UUID

from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import MergeCandidate, PartitionRow
from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.domain.retention import UNLIMITED, Policy, policy_of
from tideline.domain.tiering import (
    LOCAL_RETENTION_MS,
    PendingMerge,
    TieringConfig,
    effective_config,
    merge_reason,
    segment_limit,
)
from tideline.domain.topic_configs import RETENTION_BYTES
from tideline.errors import RefusedError, UsageError
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.topic_observer import ConfigEntry, TopicObserver
from tideline.settings import JobsSettings, KafkaSettings, PolicySettings

AT_ONCE = 16
"""DescribeConfigs requests under way."""
LOG_ID_RANGE = 100_000
"""Log ids per read: partitions are read in pieces of this."""
Configs = Mapping[str, str | None]
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class PolicyTopic:
    """A live topic, and the user's values of the configs that Tideline overrides."""

    name: str
    topic_id: UUID
    user_values: Configs


@dataclass(frozen=True, slots=True)
class TieringPolicies:
    """Configs by topic id, and the topics that have none, with why: those are left alone."""

    configs: Mapping[UUID, TieringConfig] = field(default_factory=dict)
    left_alone: Mapping[str, str] = field(default_factory=dict)

    def cutoffs(self, now_ms: int) -> dict[UUID, int]:
        """For ``claim_wal_files``: batches older than this are split."""
        found = {topic_id: config.cutoff(now_ms) for topic_id, config in self.configs.items()}
        return {topic_id: cutoff for topic_id, cutoff in found.items() if cutoff is not None}

    def ready(
        self, candidates: Iterable[MergeCandidate], settings: JobsSettings, now_ms: int
    ) -> Iterator[tuple[MergeCandidate, TieringConfig]]:
        """Those that have enough for a segment now, each with its topic's config."""
        for one in candidates:
            config = self.configs.get(one.topic_id)
            if config is not None and merge_reason(
                PendingMerge(one.bytes, one.oldest_split_at, one.requested),
                config,
                min_segment_bytes=settings.tiering_min_segment_bytes,
                limit=segment_limit(config, settings.tiering_max_segment_bytes),
                now_ms=now_ms,
            ):
                yield one, config


@dataclass(frozen=True, slots=True)
class RetentionPolicies:
    """Policies by topic id, and the topics that have none, with why: those are left alone."""

    policies: Mapping[UUID, Policy] = field(default_factory=dict)
    left_alone: Mapping[str, str] = field(default_factory=dict)


def suffix_topics(plane: JobsControlPlane, only: Collection[str] = ()) -> list[PolicyTopic]:
    """Topics with a suffix that are neither deleted nor paused; ``only``: none but these.

    Raises :class:`RefusedError` for a name in ``only`` that has no suffix.
    """
    found: dict[UUID, PolicyTopic] = {}
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
                found[row.topic_id] = PolicyTopic(row.topic, row.topic_id, row.user_configs)
    if unknown := sorted(set(only) - known):
        raise RefusedError(
            f"topic {unknown[0]!r} has no diskless data: only a topic that has crossed B0, or was "
            "born diskless, is tiered; see `tideline status`"
        )
    return list(found.values())


def tracked_topics(names: Iterable[str], rows: Iterable[PartitionRow]) -> frozenset[str]:
    """``names`` as a set. Raises :class:`UsageError` for one that no live partition has."""
    wanted = frozenset(names)
    if missing := sorted(wanted - {row.topic for row in rows if not row.deleted}):
        raise UsageError(
            f"topic {missing[0]!r} is not tracked: retention of a classic topic is Kafka's own; "
            "see `tideline status`"
        )
    return wanted


def read_tiering_policies(
    settings: PolicySettings, topics: Collection[PolicyTopic]
) -> TieringPolicies:
    """Ask Kafka. Raises ``KafkaUnavailable``; a topic that Kafka does not know, or whose configs
    are no numbers, is left alone."""
    policy = partial(effective_config, default_age_ms=settings.tiering_default_age_ms)
    read = _read(settings, "tideline-tiering", topics, LOCAL_RETENTION_MS, policy)
    return TieringPolicies(*read)


def read_retention_policies(
    settings: KafkaSettings, rows: Iterable[PartitionRow]
) -> RetentionPolicies:
    """As :func:`read_tiering_policies`, for the topics of ``rows``."""

    def policy(configs: Configs, user_values: Configs, defaults: Configs) -> Policy:
        default = defaults.get(RETENTION_BYTES)
        return policy_of(configs, user_values, UNLIMITED if default is None else int(default))

    topics = {row.topic_id: PolicyTopic(row.topic, row.topic_id, row.user_configs) for row in rows}
    read = _read(settings, "tideline-retention", topics.values(), RETENTION_BYTES, policy)
    return RetentionPolicies(*read)


def _read(
    settings: KafkaSettings,
    client_id: str,
    topics: Collection[PolicyTopic],
    overridden: str,
    policy: Callable[[Configs, Configs, Configs], P],
) -> tuple[dict[UUID, P], dict[str, str]]:
    """``policy`` takes a topic's effective configs, the user's values, and broker defaults.
    ``overridden``: what it goes by that is overridden from tracking on, so that the topic's own
    entry hides the default; where brokers differ in it, topics that set none are left alone."""
    if not topics:
        return {}, {}
    return asyncio.run(_read_all(settings, client_id, topics, overridden, policy))


async def _read_all(
    settings: KafkaSettings,
    client_id: str,
    topics: Collection[PolicyTopic],
    overridden: str,
    policy: Callable[[Configs, Configs, Configs], P],
) -> tuple[dict[UUID, P], dict[str, str]]:
    places = asyncio.Semaphore(AT_ONCE)
    policies: dict[UUID, P] = {}
    left_alone: dict[str, str] = {}
    async with KafkaCluster.of(settings, client_id) as cluster:
        observer = TopicObserver(cluster, settings.kafka_request_timeout_ms)
        defaults = await observer.topic_defaults((overridden,))
        differ = defaults.difference(overridden)

        async def one(topic: PolicyTopic) -> None:
            async with places:
                try:
                    found = await observer.configs(topic.name)
                    configs = {key: entry.value for key, entry in found.items()}
                    if differ and not _sets(topic, overridden, found):
                        left_alone[topic.name] = f"{differ}; set it for the cluster or on the topic"
                        return
                    users = topic.user_values
                    policies[topic.topic_id] = policy(configs, users, defaults.of_first)
                except (KafkaError, ValueError) as error:
                    left_alone[topic.name] = str(error)

        await asyncio.gather(*(one(topic) for topic in topics))
    return policies, left_alone


def _sets(topic: PolicyTopic, key: str, found: Mapping[str, ConfigEntry]) -> bool:
    """Whether the user has set ``key`` on the topic."""
    if key in topic.user_values:
        return topic.user_values[key] is not None
    return key in found and found[key].own
