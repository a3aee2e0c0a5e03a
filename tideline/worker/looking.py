"""One look at many tracked topics: what Kafka says of them that Postgres does not, with one request
per broker for many topics."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from tideline.control_plane.model import TrackedPartition, TrackedTopic
from tideline.domain.broker_defaults import BrokerDefaults
from tideline.domain.config_changes import JUDGED
from tideline.domain.grown import NewLog
from tideline.domain.watched import (
    ChangedDefault,
    Finding,
    WatchedPartition,
    config_findings,
    defaults_compared,
    log_end_findings,
)
from tideline.errors import TidelineError
from tideline.kafka.errors import KafkaError
from tideline.kafka.new_logs import new_logs, unknown_partitions
from tideline.kafka.observer import DEBUG_CONSUMER, OffsetAnswer, OffsetSpec, TopicLayout
from tideline.kafka.topic_observer import ConfigEntry
from tideline.migration.connections import WorkerServices

log = structlog.get_logger()

MOST_TOPICS = 50
MOST_PARTITIONS = 1_000
"""Asked about at once: bounds of a request, of its answer, and of the time that reading the answer
takes from the migrations in the same process."""

Views = list[dict[str, ConfigEntry]]


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look at one topic found."""

    findings: Sequence[Finding] = ()
    new: Sequence[NewLog] = ()
    """Partitions that Kafka has and Postgres has no row of."""
    defaults: Sequence[ChangedDefault] = ()
    unheard: int = 0
    """Replicas whose log end could not be compared with B0."""
    problem: str = ""
    """Why nothing can be said of the topic at all."""


@dataclass(slots=True)
class LogEnds:
    """By topic and partition, of each replica that answered."""

    ends: dict[tuple[str, int], dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    unheard: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def in_portions(topics: Iterable[TrackedTopic]) -> Iterator[list[TrackedTopic]]:
    """At least one topic in each, else within the bounds."""
    portion: list[TrackedTopic] = []
    partitions = 0
    for topic in topics:
        partitions += len(topic.partitions)
        if portion and (len(portion) == MOST_TOPICS or partitions > MOST_PARTITIONS):
            yield portion
            portion, partitions = [], len(topic.partitions)
        portion.append(topic)
    if portion:
        yield portion


async def compare(
    services: WorkerServices, topics: Sequence[TrackedTopic], defaults: BrokerDefaults | None
) -> dict[UUID, Seen]:
    """Of each topic, by its id. What nobody answers for has a problem; nothing is raised.
    ``defaults``: of the limits of batches; ``None`` while a broker does not tell them."""
    seen: dict[UUID, Seen] = {}
    layouts: dict[str, TopicLayout] = {}
    meant: list[TrackedTopic] = []
    try:
        known = await services.observer.topics([t.name for t in topics])
    except TidelineError as error:
        return {t.topic_id: _unknown(t, str(error)) for t in topics if t.topic_id}
    for topic in topics:
        assert topic.topic_id is not None
        layout = known.get(topic.name)
        if layout is None or layout.topic_id != topic.topic_id:
            # Another topic of the name is the identity reconciler's finding.
            seen[topic.topic_id] = Seen()
        else:
            layouts[topic.name] = layout
            meant.append(topic)
    if meant:
        ends, views = await asyncio.gather(
            _log_ends(services, meant, layouts), _configs(services, meant)
        )
        for topic in meant:
            assert topic.topic_id is not None
            layout = layouts[topic.name]
            seen[topic.topic_id] = _judged(topic, layout, ends, views[topic.name], defaults)
    return seen


def _unknown(topic: TrackedTopic, problem: str) -> Seen:
    return Seen(unheard=len(topic.partitions), problem=problem)


def _judged(
    topic: TrackedTopic,
    layout: TopicLayout,
    ends: LogEnds,
    views: Views | TidelineError,
    defaults: BrokerDefaults | None,
) -> Seen:
    if not isinstance(views, list):
        return _unknown(topic, str(views))
    rows = [_watched(row) for row in topic.partitions.values()]
    found = [
        finding
        for row in rows
        for finding in log_end_findings(row, ends.ends.get((topic.name, row.partition), {}))
    ]
    changed: Sequence[ChangedDefault] = ()
    if defaults is not None:
        users = {key: override.user_value for key, override in topic.overrides.items()}
        own = {key for view in views for key, entry in view.items() if entry.own}
        changed, differing = defaults_compared(users, topic.limits, own, defaults)
        found += differing
    for view in views:
        found += config_findings(
            rows,
            {key: override.override_value for key, override in topic.overrides.items()},
            topic.limits,
            {key: entry.value for key, entry in view.items() if entry.own},
            {key: entry.value for key, entry in view.items()},
        )
    once = {(f.kind, f.subject): f for f in found}
    of_new = {n: ends.ends[topic.name, n] for n in unknown_partitions(layout, topic.partitions)}
    new = new_logs(layout, topic.partitions, of_new)
    return Seen(list(once.values()), new, changed, ends.unheard.get(topic.name, 0))


async def _log_ends(
    services: WorkerServices, topics: Sequence[TrackedTopic], layouts: Mapping[str, TopicLayout]
) -> LogEnds:
    """Of every replica of the partitions whose B0 is set; of those that Postgres does not know, at
    their leader's epoch."""
    by_node: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    epochs: dict[tuple[str, int], int] = {}
    for topic in topics:
        layout = layouts[topic.name]
        new = unknown_partitions(layout, topic.partitions)
        epochs |= {(topic.name, n): layout.partitions[n].leader_epoch for n in new}
        crossed = [n for n, row in topic.partitions.items() if row.boundary >= 0]
        for number in (*crossed, *new):
            if number in layout.partitions:
                for node in layout.partitions[number].replicas:
                    by_node[node][topic.name].append(number)
    found = LogEnds()
    for node, wanted in sorted(by_node.items()):
        try:
            answers = await services.observer.offsets_of(
                wanted,
                OffsetSpec.LATEST,
                node=node,
                leader_epochs=epochs,
                replica_id=DEBUG_CONSUMER,
            )
        except TidelineError as error:
            log.debug("replica_not_watched", node=node, reason=str(error))
            answers = {}
        for name, numbers in wanted.items():
            for number in numbers:
                answer = answers.get((name, number))
                if isinstance(answer, OffsetAnswer):
                    found.ends[name, number][node] = answer.offset
                elif (name, number) not in epochs:
                    found.unheard[name] += 1
    return found


async def _configs(
    services: WorkerServices, topics: Sequence[TrackedTopic]
) -> Mapping[str, Views | TidelineError]:
    keys = set(JUDGED).union(*(topic.overrides for topic in topics))
    names = [topic.name for topic in topics]
    try:
        found: dict[str, Views | KafkaError] = await services.topics.configs_of(names, sorted(keys))
    except TidelineError as error:
        return dict.fromkeys(names, error)
    return found


def _watched(row: TrackedPartition) -> WatchedPartition:
    return WatchedPartition(row.partition, row.partly_in_kafka, row.boundary, row.prefix_end)
