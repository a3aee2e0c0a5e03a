"""Topics by the state of their migration (``listTopicsByMigrationState``, seed 002 4.8.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import TopicState
from tideline.domain.config_changes import REMOTE_STORAGE
from tideline.domain.migration import MigrationState
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import KafkaObserver
from tideline.kafka.topic_observer import TopicObserver
from tideline.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class TopicInState:
    topic: str
    state: MigrationState
    """That of its least advanced partition."""
    partitions: int
    tracked: bool
    """False: Kafka's tiered topic, which never migrated or whose migration was undone."""


def in_state(
    state: MigrationState, tracked: Iterable[TopicState], tiered: Mapping[str, int]
) -> list[TopicInState]:
    """Topics in ``state``, by name. ``tiered``: partitions of Kafka's tiered topics, which are
    ``TIERED_ONLY`` unless Postgres knows better."""
    known = {one.topic: one for one in tracked}
    found = [TopicInState(t.topic, t.state, t.partitions, True) for t in known.values()]
    found += [
        TopicInState(topic, MigrationState.TIERED_ONLY, partitions, False)
        for topic, partitions in tiered.items()
        if topic not in known
    ]
    return sorted((one for one in found if one.state is state), key=lambda one: one.topic)


async def topics_in_state(
    settings: KafkaSettings, plane: ControlPlane, state: MigrationState
) -> list[TopicInState]:
    """Kafka is asked for ``TIERED_ONLY`` alone: every other state is known to Postgres. Raises
    ``KafkaUnavailable``."""
    if state is not MigrationState.TIERED_ONLY:
        return in_state(state, await plane.topic_states(state), {})
    async with KafkaCluster.of(settings, "tideline-cli") as cluster:
        tiered = await tiered_topics(cluster, settings.kafka_request_timeout_ms)
    return in_state(state, await plane.topic_states(), tiered)


async def tiered_topics(cluster: KafkaCluster, timeout_ms: int) -> dict[str, int]:
    """Partitions by name, of the topics that any broker shows with tiered storage switched on."""
    layouts = await KafkaObserver(cluster, timeout_ms).all_topics()
    views = await TopicObserver(cluster, timeout_ms).configs_of(list(layouts), [REMOTE_STORAGE])
    tiered = {}
    for topic, shown in views.items():
        if isinstance(shown, KafkaError):
            continue  # Deleted since it was listed.
        if any(view[REMOTE_STORAGE].value == "true" for view in shown if REMOTE_STORAGE in view):
            tiered[topic] = len(layouts[topic].partitions)
    return tiered
