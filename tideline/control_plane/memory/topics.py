"""Tracked topics: what stands under a name, who has acknowledged it, and its config overrides."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from tideline.control_plane.errors import (
    AbortRefused,
    CompletionRefused,
    NotMigrating,
    PartitionsMigrating,
    RoundOver,
    TopicDeleted,
    TopicIdentityConflict,
    TrackingIncomplete,
    UnknownLog,
    UnknownTopic,
)
from tideline.control_plane.memory.partition import Partition
from tideline.control_plane.model import (
    UNACCOUNTED,
    AbortedTopic,
    ConfigOverride,
    GatewayRegistration,
    LiveTopic,
    Tombstone,
    TopicStatus,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import MigrationState
from tideline.domain.topic_configs import DEFAULT_AFTER_MAX_MS, DEFAULT_BEFORE_MAX_MS

_NEVER = datetime.fromtimestamp(0, UTC)
"""Of rows that a test has put where they are."""


@dataclass(slots=True)
class Topic:
    """One row of ``topics``. A deleted one stays: its id is refused for ever (schedule 19)."""

    name: str
    topic_id: UUID | None
    kind: TrackingKind
    timestamp_type: str
    max_message_bytes: int
    status: TopicStatus = TopicStatus.TRACKING
    is_tracked: bool = True
    round: int = 1
    """Ends with an abort."""
    runs: set[str] = field(default_factory=set)
    """Runs of migrations that have begun or joined the present round."""
    acknowledged: dict[int, UUID] = field(default_factory=dict)
    """By gateway: the incarnation that tracks it durably."""
    partitions: dict[int, Partition] = field(default_factory=dict)
    overrides: dict[str, ConfigOverride] = field(default_factory=dict)
    completion_forced_by: str | None = None
    aborted_at: datetime | None = None
    timestamp_before_max_ms: int = DEFAULT_BEFORE_MAX_MS
    timestamp_after_max_ms: int = DEFAULT_AFTER_MAX_MS
    created_at: datetime | None = None
    tombstone: Tombstone | None = None

    @property
    def identity(self) -> str:
        return f"{self.kind} with id {self.topic_id}"

    def tracked(self) -> TrackedTopic:
        return TrackedTopic(
            name=self.name,
            topic_id=self.topic_id,
            kind=self.kind,
            status=self.status,
            timestamp_type=self.timestamp_type,
            max_message_bytes=self.max_message_bytes,
            partitions={n: self.partitions[n].tracked() for n in sorted(self.partitions)},
            overrides=dict(sorted(self.overrides.items())),
            completion_forced_by=self.completion_forced_by,
            timestamp_before_max_ms=self.timestamp_before_max_ms,
            timestamp_after_max_ms=self.timestamp_after_max_ms,
            round=self.round,
        )

    def limit(
        self,
        *,
        timestamp_type: str | None,
        max_message_bytes: int | None,
        timestamp_before_max_ms: int | None,
        timestamp_after_max_ms: int | None,
    ) -> None:
        """What the suffix enforces; ``None`` leaves a limit as it is."""
        if timestamp_type is not None:
            self.timestamp_type = timestamp_type
        if max_message_bytes is not None:
            self.max_message_bytes = max_message_bytes
        if timestamp_before_max_ms is not None:
            self.timestamp_before_max_ms = timestamp_before_max_ms
        if timestamp_after_max_ms is not None:
            self.timestamp_after_max_ms = timestamp_after_max_ms

    def assert_round(self, round: int | None) -> None:
        """Raises ``RoundOver``; ``None`` is the present round, whichever it is."""
        if round not in (None, self.round):
            raise RoundOver(
                f"round {round} of topic {self.name} is over: it is in round {self.round}"
            )

    def add_partitions(self, total: int) -> None:
        """Partitions up to ``total`` (exclusive), as the topic's kind has them."""
        for number in set(range(total)) - set(self.partitions):
            if self.topic_id is not None:
                log = TopicIdPartition(self.topic_id, number)
                self.partitions[number] = Partition(log, self.name)
                if self.kind is TrackingKind.BORN_DISKLESS:
                    self.partitions[number].open_suffix(0, 0, 0)

    def add_diskless_partitions(self, topic_id: UUID, first: int, total: int) -> None:
        """Raises ``PartitionsMigrating`` while one of the topic has no B0 (schedule 22),
        ``UnknownLog`` when one below ``first`` is not known, ``TopicIdentityConflict``."""
        if self.topic_id != topic_id:
            raise TopicIdentityConflict(
                f"topic {self.name} is tracked with id {self.topic_id}, not with id {topic_id}"
            )
        pending = [str(n) for n, partition in self.partitions.items() if partition.boundary < 0]
        if pending:
            raise PartitionsMigrating(
                f"topic {self.name} is migrating (no B0 yet: partition {', '.join(pending)})"
            )
        if unseen := sorted(set(range(first)) - set(self.partitions)):
            raise UnknownLog(f"partition {unseen[0]} of topic id {topic_id} is not tracked")
        for number in set(range(first, total)) - set(self.partitions):
            partition = Partition(TopicIdPartition(topic_id, number), self.name)
            partition.open_suffix(0, 0, 0)
            self.partitions[number] = partition

    def begin_anew(self) -> None:
        """After an abort: what was acknowledged or observed for the aborted round is void."""
        self.acknowledged.clear()
        self.runs.clear()
        self.round += 1
        self.status, self.is_tracked = TopicStatus.TRACKING, True
        for partition in self.partitions.values():
            partition.is_migrating = True
            partition.begin_generation()

    def activate(self, gateways: Iterable[GatewayRegistration]) -> None:
        """TRACKING → ACTIVE when all of ``gateways`` have acknowledged."""
        if self.status is TopicStatus.ACTIVE:
            return
        if self.status is not TopicStatus.TRACKING:
            raise NotMigrating(f"topic {self.name} is {self.status}, not tracking")
        missing = [g for g in gateways if not self.is_acknowledged_by(g)]
        if missing:
            named = ", ".join(f"{g.gateway_id} ({g.status} at {g.address})" for g in missing)
            raise TrackingIncomplete(f"topic {self.name} is not tracked yet by gateway {named}")
        self.status = TopicStatus.ACTIVE

    def is_acknowledged_by(self, gateway: GatewayRegistration) -> bool:
        return (
            gateway.status != UNACCOUNTED
            and self.acknowledged.get(gateway.gateway_id) == gateway.incarnation
        )

    def assert_may_stop(self) -> None:
        """Once a partition has B0 nobody else could serve it."""
        crossed = [
            str(n)
            for n, partition in self.partitions.items()
            if partition.state is not MigrationState.TIERED_ONLY
        ]
        if crossed:
            raise AbortRefused(
                f"partition {', '.join(crossed)} of topic {self.name} is migrating or has B0"
            )

    def abort(self) -> None:
        """Every partition back to tiered only, or none: one with B0 refuses it (schedule 20)."""
        crossed = [
            f"{n} (B0 {partition.boundary})"
            for n, partition in sorted(self.partitions.items())
            if partition.boundary >= 0
        ]
        if crossed or self.kind is not TrackingKind.MIGRATED:
            which = ", ".join(crossed) or "of a topic born diskless"
            raise AbortRefused(f"topic {self.name} cannot go back: partition {which} has crossed")
        self.status = TopicStatus.ABORTED
        for partition in self.partitions.values():
            partition.abort()

    def incomplete_or_refuse(self) -> list[int]:
        """Partitions whose prefix is not complete. Raises ``CompletionRefused`` if one has no B0:
        a sealed log would take none of its records."""
        rows = sorted(self.partitions.items())
        without = [str(n) for n, partition in rows if partition.boundary < 0]
        if without:
            raise CompletionRefused(
                f"topic {self.name} cannot be completed: partition {', '.join(without)} has no B0"
            )
        return [n for n, partition in rows if not partition.tiering_complete]

    def delete(self, at: datetime, by: str, why: str) -> None:
        self.status, self.is_tracked = TopicStatus.DELETED, False
        self.tombstone = Tombstone(self.topic_id, self.name, at, by, why)
        if self.topic_id is None:
            self.acknowledged.clear()
        for partition in self.partitions.values():
            partition.deleted = True


@dataclass(slots=True)
class Topics:
    """Every topic that was ever tracked, deleted ones too."""

    rows: list[Topic] = field(default_factory=list)
    ended_runs: set[str] = field(default_factory=set)
    """Runs of migrations that begin no round any more."""

    def live(self, name: str) -> Topic | None:
        return next(
            (t for t in self.rows if t.name == name and t.status is not TopicStatus.DELETED), None
        )

    def live_or_refuse(self, name: str) -> Topic:
        topic = self.live(name)
        if topic is None:
            raise UnknownTopic(f"topic {name} is not tracked")
        return topic

    def by_id(self, topic_id: UUID) -> Topic | None:
        return next((t for t in self.rows if t.topic_id == topic_id), None)

    def known_id(self, topic_id: UUID) -> Topic:
        topic = self.by_id(topic_id)
        if topic is None:
            raise UnknownTopic(f"topic id {topic_id} is not tracked")
        return topic

    def partition(self, log: TopicIdPartition) -> Partition | None:
        topic = self.by_id(log.topic_id)
        return topic.partitions.get(log.partition) if topic else None

    def known_partition(self, log: TopicIdPartition) -> Partition:
        """A deleted one too. Raises ``UnknownLog``."""
        partition = self.partition(log)
        if partition is None:
            raise UnknownLog(f"partition {log.partition} of topic id {log.topic_id} is not tracked")
        return partition

    def live_partition(self, log: TopicIdPartition) -> Partition:
        """Raises ``UnknownLog``, ``TopicDeleted``."""
        partition = self.known_partition(log)
        if partition.deleted:
            raise TopicDeleted(f"topic {partition.topic} (id {log.topic_id}) was deleted")
        return partition

    def partitions(self) -> list[Partition]:
        return [partition for topic in self.rows for partition in topic.partitions.values()]

    def begin(
        self,
        name: str,
        topic_id: UUID | None,
        kind: TrackingKind,
        partitions: int,
        timestamp_type: str,
        max_message_bytes: int,
        run: str | None = None,
    ) -> int:
        """The round that ``name`` is tracked in from now on. Raises ``RoundOver``."""
        if run in self.ended_runs:
            raise RoundOver(f"run {run} is over: it tracks no topic any more")
        topic = self.live(name)
        if topic is None:
            if topic_id is not None and self.by_id(topic_id) is not None:
                raise TopicDeleted(f"topic id {topic_id} was deleted")
            topic = Topic(name, topic_id, kind, timestamp_type, max_message_bytes)
            self.rows.append(topic)
        elif (topic.topic_id, topic.kind) != (topic_id, kind):
            raise TopicIdentityConflict(
                f"topic {name} is tracked as {topic.identity}, not as {kind} with id {topic_id}"
            )
        topic.timestamp_type, topic.max_message_bytes = timestamp_type, max_message_bytes
        topic.completion_forced_by = None
        if topic.status is TopicStatus.ABORTED:
            topic.begin_anew()
        if run is not None:
            self._join(run, topic)
        if topic.status is TopicStatus.TRACKING or kind is TrackingKind.MIGRATED:
            topic.add_partitions(partitions)
        return topic.round

    def _join(self, run: str, topic: Topic) -> None:
        elsewhere = [other for other in self.rows if run in other.runs and other is not topic]
        if elsewhere:
            raise RoundOver(f"run {run} belongs to topic {elsewhere[0].name}, not to {topic.name}")
        topic.runs.add(run)

    def abort(self, topic: Topic, at: datetime) -> None:
        """Whoever has begun or joined the round begins no other."""
        topic.abort()
        topic.aborted_at = at
        self.ended_runs |= topic.runs

    def aborted(self, names: Collection[str]) -> list[AbortedTopic]:
        """Of these, those whose last migration was aborted, by name."""
        return sorted(
            (
                AbortedTopic(topic.name, topic.topic_id, topic.aborted_at)
                for topic in self.rows
                if topic.status is TopicStatus.ABORTED
                and topic.name in names
                and topic.topic_id is not None
                and topic.aborted_at is not None
            ),
            key=lambda found: found.topic,
        )

    def complete_creation(self, name: str, topic_id: UUID, partitions: int) -> None:
        topic = self.live_or_refuse(name)
        is_born_diskless = topic.kind is TrackingKind.BORN_DISKLESS
        if not is_born_diskless or topic.topic_id not in (None, topic_id):
            raise TopicIdentityConflict(
                f"topic {name} is tracked as {topic.identity}, not as born_diskless with id "
                f"{topic_id}"
            )
        if topic.topic_id is None and topic.status is TopicStatus.TRACKING:
            topic.round += 1
            topic.acknowledged.clear()
        topic.topic_id = topic_id
        topic.add_partitions(partitions)

    def stop(self, topic: Topic, at: datetime) -> None:
        """Gateways let go of it; generations are kept for a later migration."""
        topic.assert_may_stop()
        topic.acknowledged.clear()
        if topic.topic_id is None:
            topic.delete(at, "gateway", "its creation failed")
        else:
            topic.is_tracked, topic.status = False, TopicStatus.ABORTED

    def all_live(self) -> list[LiveTopic]:
        """By name. The key of a row is its place: rows are never taken out."""
        return sorted(
            (
                LiveTopic(
                    key,
                    t.name,
                    t.topic_id,
                    t.kind,
                    t.status,
                    t.is_tracked,
                    t.created_at or _NEVER,
                )
                for key, t in enumerate(self.rows)
                if t.status is not TopicStatus.DELETED
            ),
            key=lambda topic: topic.name,
        )

    def tombstones(self, now: datetime, within_ms: int, limit: int) -> list[Tombstone]:
        """Newest first."""
        since = now - timedelta(milliseconds=within_ms)
        found = [
            (t.tombstone.deleted_at, key, t.tombstone)
            for key, t in enumerate(self.rows)
            if t.tombstone and t.tombstone.deleted_at > since
        ]
        newest = sorted(found, key=lambda entry: entry[:2], reverse=True)[:limit]
        return [tombstone for _, _, tombstone in newest]

    def birth(self, topic_key: int) -> Topic | None:
        """The creation of that row, if it has not ended."""
        if not 0 <= topic_key < len(self.rows):
            return None
        topic = self.rows[topic_key]
        ended = topic.topic_id is not None or topic.status is TopicStatus.DELETED
        return None if ended else topic
