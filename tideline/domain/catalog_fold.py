"""What the catalog's records say together of each topic and log, in whatever order they are read.

What always holds: only what has counted is told as a fact. What was announced, and would change a
fact if it had counted, is named beside it: who rebuilds decides it by what else is known (a batch
that was committed at B0, say), or asks. Two facts that cannot both be are a contradiction, and
neither is told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard, TypeVar
from uuid import UUID

from tideline.domain.catalog import (
    AcceptedGap,
    Boundary,
    BoundaryReset,
    Entry,
    HeldConfig,
    Limits,
    MergedSegment,
    MigrationAborted,
    PrefixStart,
    Record,
    SuffixStart,
    Topic,
    TopicDeleted,
    log_of,
)
from tideline.domain.ids import TopicIdPartition

T = TypeVar("T")
LIMITS = (
    "timestamp_type",
    "max_message_bytes",
    "timestamp_before_max_ms",
    "timestamp_after_max_ms",
)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """One partition. Offsets are -1 where nothing is told."""

    boundary: Boundary | None
    """In force; ``None``: B0 is unset as far as is told."""
    generation: int
    """The largest that anything mentions: a rebuilt plane goes on behind it."""
    suffix_start: int
    """First offset of the suffix; B0 while nothing was removed."""
    announced_start: int
    """Removal up to here was begun: objects below it may be gone. Never below ``suffix_start``."""
    prefix_start: int
    accepted_gap_from: int
    segments: tuple[MergedSegment, ...]
    """By offset, without overlaps."""
    undecided: tuple[Record, ...]
    """Announced only: each would change the boundary, the gap or the segments if it had counted."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic that is not deleted."""

    name: str
    born_diskless: bool
    partitions: int
    limits: Mapping[str, str | int]
    """By the names of :data:`LIMITS`, as far as they are told."""
    held: Mapping[str, HeldConfig]
    """By config key."""
    let_go: frozenset[str]
    """Config keys that were held before."""
    undecided: tuple[Record, ...]
    """Announced only: tracking, or partitions."""


@dataclass(slots=True)
class Catalog:
    """Everything that the records of one history say."""

    topics: dict[UUID, TopicFacts] = field(default_factory=dict)
    logs: dict[TopicIdPartition, LogFacts] = field(default_factory=dict)
    """Of these topics, by topic and partition."""
    deleted: dict[UUID, str] = field(default_factory=dict)
    """Topic ids that may never be tracked again, with their names ('' where no record has it)."""
    contradictions: list[str] = field(default_factory=list)
    foreign: int = 0
    """Records of other histories."""


def fold(entries: Iterable[Entry], history_id: UUID) -> Catalog:
    """Order and repetition do not matter."""
    result = Catalog()
    told: dict[Record, bool] = {}
    foreign = set()
    for entry in entries:
        if entry.history_id == history_id:
            told[entry.record] = told.get(entry.record, False) or entry.counted
        else:
            foreign.add((entry.history_id, entry.record))
    result.foreign = len(foreign)
    by_topic: dict[UUID, list[tuple[Record, bool]]] = defaultdict(list)
    for record, counted in sorted(told.items(), key=repr):
        by_topic[record.topic_id].append((record, counted))
    for topic_id, records in sorted(by_topic.items()):
        _Topic(topic_id, records, result).tell()
    _refuse_shared_names(result)
    return result


def _refuse_shared_names(result: Catalog) -> None:
    ids: dict[str, list[str]] = defaultdict(list)
    for topic_id, topic in result.topics.items():
        ids[topic.name].append(str(topic_id))
    for name, several in sorted(ids.items()):
        if len(several) > 1:
            result.contradictions.append(
                f"topic {name} has the ids {', '.join(several)}, none of them deleted: "
                "Kafka says which one is there"
            )


class _Topic:
    """The records of one topic id."""

    def __init__(
        self, topic_id: UUID, records: Sequence[tuple[Record, bool]], result: Catalog
    ) -> None:
        self._topic_id, self._result = topic_id, result
        self._counted = [record for record, counted in records if counted]
        self._announced = [record for record, counted in records if not counted]
        self._topics = [r for r in self._counted if isinstance(r, Topic)]

    def tell(self) -> None:
        records = self._counted + self._announced
        # Deleted by Kafka before anybody was told: it needs no answer of Postgres.
        if any(isinstance(record, TopicDeleted) for record in records):
            names = sorted({r.name for r in records if isinstance(r, Topic)})
            self._result.deleted[self._topic_id] = names[0] if names else ""
            return
        if len(kinds := sorted({(r.name, r.born_diskless) for r in self._topics})) > 1:
            self._contradict(f"it is told as {' and as '.join(map(str, kinds))}")
            return
        logs: dict[int, list[tuple[Record, bool]]] = defaultdict(list)
        for record in records:
            if (log := log_of(record)) is not None:
                logs[log.partition].append((record, record in self._counted))
        if not kinds:
            if counted := [r.kind for r in self._counted if not isinstance(r, MigrationAborted)]:
                self._contradict(f"no counted record names it, but there is {counted[0]}")
            return
        ((name, born),) = kinds
        partitions = max(record.partitions for record in self._topics)
        configs = self._configs()
        self._result.topics[self._topic_id] = TopicFacts(
            name,
            born,
            partitions,
            self._limits(),
            {key: latest for key, latest in configs.items() if latest.held},
            frozenset(key for key, latest in configs.items() if not latest.held),
            self._undecided(partitions),
        )
        for partition in range(partitions):
            log = TopicIdPartition(self._topic_id, partition)
            self._result.logs[log] = self._log(log, logs.pop(partition, []))
        if any(counted for records in logs.values() for _, counted in records):
            self._contradict(f"it has {partitions} partitions, but records of {sorted(logs)}")

    def _contradict(self, what: str) -> None:
        self._result.contradictions.append(f"topic id {self._topic_id}: {what}")

    def _undecided(self, partitions: int) -> tuple[Record, ...]:
        return tuple(
            r for r in self._announced if isinstance(r, Topic) and r.partitions > partitions
        )

    def _limits(self) -> dict[str, str | int]:
        told = [r for r in self._counted if isinstance(r, Limits)]
        found = {}
        for name in LIMITS:
            words = [(r.noted_at_ms, getattr(r, name)) for r in told]
            latest = self._latest(name, [word for word in words if word[1] is not None])
            if latest is not None:
                found[name] = latest
        return found

    def _configs(self) -> dict[str, HeldConfig]:
        told: dict[str, list[HeldConfig]] = defaultdict(list)
        for record in self._counted:
            if isinstance(record, HeldConfig):
                told[record.key].append(record)
        found = {}
        for key, records in sorted(told.items()):
            latest = self._latest(key, [(r.noted_at_ms, r) for r in records])
            if latest is not None:
                found[key] = latest
        return found

    def _latest(self, what: str, words: Sequence[tuple[int, T]]) -> T | None:
        at = max((word[0] for word in words), default=None)
        latest = [word[1] for word in words if word[0] == at]
        if len(set(latest)) > 1:
            self._contradict(f"{what} has two values of one time: {sorted(map(str, latest))}")
        return latest[0] if len(set(latest)) == 1 else None

    def _log(self, log: TopicIdPartition, records: Sequence[tuple[Record, bool]]) -> LogFacts:
        aborted = max(
            (
                generation
                for record in self._counted
                if isinstance(record, MigrationAborted)
                for partition, generation in record.generations
                if partition == log.partition
            ),
            default=-1,
        )
        born = any(r.born_from <= log.partition < r.partitions for r in self._topics)
        told = _Log(log, born, aborted, records)
        facts = told.facts()
        self._result.contradictions += told.contradictions
        return facts


def born_boundary(log: TopicIdPartition) -> Boundary:
    """B0 of a partition that is born diskless."""
    return Boundary(log.topic_id, log.partition, 0, 0, 0, (), 0, -1, -1)


class _Log:
    """The records of one partition. ``aborted``: no boundary up to this generation counts."""

    def __init__(
        self,
        log: TopicIdPartition,
        born: bool,
        aborted: int,
        records: Sequence[tuple[Record, bool]],
    ) -> None:
        self._log, self._born, self._aborted = log, born, aborted
        self._counted = [record for record, counted in records if counted]
        self._announced = [record for record, counted in records if not counted]
        self.contradictions: list[str] = []
        self._since = 0
        """The generation in which B0 was set."""

    def facts(self) -> LogFacts:
        boundary = self._boundary()
        at = boundary.boundary if boundary else -1
        segments = self._segments()
        start = self._start(self._counted, SuffixStart, at)
        return LogFacts(
            boundary=boundary,
            generation=max(
                [self._aborted, boundary.generation if boundary else -1]
                + [getattr(r, "generation", -1) for r in self._counted + self._announced]
            ),
            suffix_start=start,
            announced_start=max(start, self._start(self._announced, SuffixStart, at)),
            prefix_start=max(
                self._start(self._counted + self._announced, PrefixStart, at, least=-1),
                boundary.prefix_log_start if boundary else -1,
            ),
            accepted_gap_from=min(
                (r.first for r in self._counted if self._is_gap_of(r, boundary)), default=-1
            ),
            segments=segments,
            undecided=self._undecided(boundary, segments),
        )

    def _contradict(self, what: str) -> None:
        self.contradictions.append(f"{self._log}: {what}")

    def _boundary(self) -> Boundary | None:
        resets = [r for r in self._counted if isinstance(r, BoundaryReset)]
        told = [r for r in self._counted if isinstance(r, Boundary)]
        if self._born:
            if wrong := [r.boundary for r in told if r.boundary != 0]:
                self._contradict(f"it was born diskless, but has B0 {wrong[0]}")
            return born_boundary(self._log)
        living = [
            r
            for r in told
            if r.generation > self._aborted and not any(_unsets(reset, r) for reset in resets)
        ]
        newest = max((r.generation for r in living), default=-1)
        several = [r for r in living if r.generation == newest]
        if len(offsets := sorted({r.boundary for r in several})) > 1:
            self._contradict(f"generation {newest} has more than one B0: {offsets}")
            return None
        return self._whole(several[0], living) if several else None

    def _whole(self, newest: Boundary, living: Sequence[Boundary]) -> Boundary:
        """The epoch at which B0 was set first, with the seeds, which a later note may lack."""
        same = [r for r in living if r.boundary == newest.boundary]
        self._since = min(r.generation for r in same)
        seeds = {r.seeds for r in same if r.seeds is not None}
        if len(seeds) > 1:
            self._contradict(f"B0 {newest.boundary} has different producer seeds")
        return replace(
            newest,
            leader_epoch=min(r.leader_epoch for r in same),
            seeds=next(iter(seeds)) if len(seeds) == 1 else None,
            prefix_log_start=max(r.prefix_log_start for r in same),
            prefix_max_timestamp=max(r.prefix_max_timestamp for r in same),
            prefix_max_timestamp_offset=max(r.prefix_max_timestamp_offset for r in same),
        )

    def _start(
        self,
        records: Iterable[Record],
        kind: type[SuffixStart] | type[PrefixStart],
        boundary: int,
        *,
        least: int | None = None,
    ) -> int:
        """The largest of those that belong to this B0."""
        return max(
            (r.start for r in records if isinstance(r, kind) and r.boundary == boundary >= 0),
            default=boundary if least is None else least,
        )

    def _segments(self) -> tuple[MergedSegment, ...]:
        found: list[MergedSegment] = []
        told = (r for r in self._counted if isinstance(r, MergedSegment))
        for one in sorted(told, key=lambda r: (r.base_offset, r.segment_id)):
            if found and one.base_offset <= found[-1].last_offset:
                self._contradict(
                    f"segments {found[-1].segment_id} and {one.segment_id} both hold offset "
                    f"{one.base_offset}"
                )
                return ()
            found.append(one)
        return tuple(found)

    def _undecided(
        self, boundary: Boundary | None, segments: Sequence[MergedSegment]
    ) -> tuple[Record, ...]:
        resets = [r for r in self._counted if isinstance(r, BoundaryReset)]
        newest = boundary.generation if boundary else -1
        known = {segment.segment_id for segment in segments}
        end = segments[-1].last_offset if segments else -1

        def matters(record: Record) -> bool:
            match record:
                case Boundary():
                    if self._born or (boundary and record.boundary == boundary.boundary):
                        return False
                    return record.generation >= max(newest, self._aborted + 1) and not any(
                        _unsets(reset, record) for reset in resets
                    )
                case BoundaryReset():
                    return boundary is not None and _unsets(record, boundary)
                case AcceptedGap():
                    return self._is_gap_of(record, boundary)
                case MergedSegment():
                    return record.segment_id not in known and record.last_offset > end
            return False

        return tuple(record for record in self._announced if matters(record))

    def _is_gap_of(self, record: Record, boundary: Boundary | None) -> TypeGuard[AcceptedGap]:
        """The same B0 may have been set before, and reset: its gap was of that generation. It may
        also be told again in a later one, and the gap stays."""
        return (
            isinstance(record, AcceptedGap)
            and boundary is not None
            and record.end == boundary.boundary
            and record.generation >= self._since
        )


def _unsets(reset: BoundaryReset, boundary: Boundary) -> bool:
    return reset.generation > boundary.generation or (
        reset.generation == boundary.generation and reset.boundary == boundary.boundary
    )
