"""The gateway's view of tracked topics, in memory.

What always holds: a topic in this view is not passed through; a partition of it without a row
fails closed; a deleted topic's id never serves again, whatever its name means by now
(schedules 18, 19, 22).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias
from uuid import UUID

from tideline.control_plane.model import (
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.answers import LeaseState
from tideline.domain.ids import TopicIdPartition
from tideline.domain.request_handling import (
    CLASSIC,
    DELETED,
    UNKNOWN,
    PartitionRoute,
    RouteKind,
    route_tracked,
)
from tideline.gateway.listeners import Listeners
from tideline.gateway.metrics import (
    DISPLACED,
    STOPPED,
    TOMBSTONES,
    TRACKED_PARTITIONS,
    TRACKED_TOPICS,
)
from tideline.gateway.tracking.rows import Rows

_LIVE = frozenset({TopicStatus.TRACKING, TopicStatus.ACTIVE})
MAX_TOMBSTONES = 10_000
"""Dead ids that are remembered; the oldest go first."""
TOMBSTONE_S = 3600.0
"""How long a dead id is answered here. By then its clients have asked for metadata many times
(``metadata.max.age.ms`` is five minutes), and every broker refuses it by itself."""


Routes: TypeAlias = dict[TopicIdPartition, PartitionRoute]


class Tracked:
    """One reading of everything that is tracked, ready to be shown. Making it takes as long as
    there are partitions: a thread does it, and the event loop only takes it over."""

    def __init__(self, topics: Iterable[TrackedTopic], before: Routes | None = None) -> None:
        """``before``: the routes that it will take the place of, which nobody changes meanwhile."""
        topics = list(topics)
        self.by_name = {t.name: _paged(t) for t in topics if t.status in _LIVE}
        self.by_id = {t.topic_id: t for t in self.by_name.values() if t.topic_id}
        self.deleted = {
            t.topic_id for t in topics if t.status is TopicStatus.DELETED and t.topic_id
        }
        self.routes: Routes = {}
        for topic in self.by_id.values():
            self.routes |= _routes_of(topic)
        self.counts = Counter(route.kind for route in self.routes.values())
        self._before = before
        self._changed = frozenset[TopicIdPartition]() if before is None else self._unlike(before)

    def changed_from(self, before: Routes) -> frozenset[TopicIdPartition]:
        """The partitions whose routes are others than ``before``."""
        return self._changed if before is self._before else self._unlike(before)

    def _unlike(self, before: Routes) -> frozenset[TopicIdPartition]:
        here = self.routes
        return frozenset(
            log for log in before.keys() | here.keys() if before.get(log) != here.get(log)
        )


class TrackingView:
    """Synchronous reads for the request path; ``TrackingSync`` keeps it up to date."""

    def __init__(
        self, lease_valid: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lease_valid = lease_valid
        self._clock = clock
        self._by_name: dict[str, TrackedTopic] = {}
        self._by_id: dict[UUID, TrackedTopic] = {}
        self._deleted: dict[UUID, float] = {}
        """Dead ids, and when they were heard of."""
        self._displaced: frozenset[UUID] = frozenset()
        """Tracked ids whose names mean another topic in Kafka, or none."""
        self._unborn: frozenset[str] = frozenset()
        self._routes: dict[TopicIdPartition, PartitionRoute] = {}
        self._counts: Counter[RouteKind] = Counter()
        self.changed: Listeners[[frozenset[TopicIdPartition]]] = Listeners()
        """Called with the partitions whose route changed, after each change."""
        self.members_changed: Listeners[[]] = Listeners()
        """Called when another name or id is tracked, or one is no more, deleted ids included, in
        the same step."""
        self.version = 0
        """Grows whenever a topic (or the id of one) joins the tracked set."""
        self.stopped: str | None = None
        """Why tracked traffic is stopped (schedule 16); ``None`` while it is not."""

    @property
    def is_empty(self) -> bool:
        """No topic needs more than being passed through, deleted ones included."""
        return not self._by_name and not self._deleted

    def has_topics(self) -> bool:
        """Whether requests that name topics have to be looked into."""
        return not self.is_empty

    def has_suffixes(self) -> bool:
        """Whether B0 is known of any partition."""
        return self._counts[RouteKind.SUFFIX] > 0

    def names(self) -> Collection[str]:
        """Of the tracked topics."""
        return self._by_name.keys()

    def ids(self) -> Collection[UUID]:
        """Of the tracked topics, and the dead ones that are remembered."""
        return self._by_id.keys() | self._deleted.keys()

    def topics(self) -> list[TrackedTopic]:
        return list(self._by_name.values())

    def topic_by_name(self, name: str) -> TrackedTopic | None:
        return self._by_name.get(name)

    def topic_by_id(self, topic_id: UUID) -> TrackedTopic | None:
        return self._by_id.get(topic_id)

    def is_classic(self, key: str | UUID | None) -> bool:
        """Whether a topic, by the name or the id in a request, is passed through."""
        if isinstance(key, UUID):
            return key not in self._by_id and key not in self._deleted
        return key not in self._by_name

    def is_deleted(self, topic_id: UUID) -> bool:
        return topic_id in self._deleted

    def hides_names(self) -> bool:
        """Whether Metadata must be looked into (:meth:`is_hidden`)."""
        return bool(self._displaced or self._unborn)

    def is_hidden(self, name: str) -> bool:
        """Whether no client may learn of the topic now: what is produced to its name would go to
        another topic than the one that Kafka has; or it is being born and some gateway does not
        know its id yet, so that requests by id would reach its sealed log."""
        if name in self._unborn:
            return True
        topic = self._by_name.get(name)
        return topic is not None and topic.topic_id in self._displaced

    def lease_valid(self) -> bool:
        return self.lease is LeaseState.HELD

    @property
    def lease(self) -> LeaseState:
        """As it is now."""
        if self.stopped is not None:
            return LeaseState.STOPPED
        return LeaseState.HELD if self._lease_valid() else LeaseState.LAPSED

    def partition(self, topic_id: UUID | None, partition: int) -> PartitionRoute:
        """The route of a partition. ``CLASSIC`` for an id that is not tracked; ``UNKNOWN`` for a
        tracked topic's partition without a row, and for a topic whose id is not known yet."""
        if topic_id is None:
            return UNKNOWN
        # Nearly always empty, and an id is hashed to be looked for all the same.
        if (self._deleted and topic_id in self._deleted) or (
            self._displaced and topic_id in self._displaced
        ):
            return DELETED
        if (found := self._routes.get(TopicIdPartition(topic_id, partition))) is not None:
            return found
        return UNKNOWN if topic_id in self._by_id else CLASSIC

    def read_anew(self, topics: Iterable[TrackedTopic]) -> Tracked:
        """A reading to be shown by :meth:`replace_all`, made in whatever thread. Until then nothing
        else may be shown."""
        return Tracked(topics, self._routes)

    def routes(self) -> dict[TopicIdPartition, PartitionRoute]:
        return dict(self._routes)

    def stop(self, reason: str) -> None:
        """Serve nothing of tracked topics that needs Postgres, until :meth:`resume`."""
        self.stopped = reason
        STOPPED.set(1)

    def resume(self) -> None:
        self.stopped = None
        STOPPED.set(0)

    def replace_all(self, tracked: Tracked | Iterable[TrackedTopic]) -> None:
        """What Postgres says is tracked, wholly. Topics that are missing were let go of."""
        if not isinstance(tracked, Tracked):
            tracked = Tracked(tracked)
        before = self._identities()
        self._bury(tracked.deleted)
        if any(topic_id in self._deleted for topic_id in tracked.by_id):
            topics = tracked.by_name.values()
            tracked = Tracked(t for t in topics if t.topic_id not in self._deleted)
        self._by_name = tracked.by_name
        self._by_id = tracked.by_id
        self._unborn = frozenset(t.name for t in self._by_name.values() if _is_unborn(t))
        self._displaced &= self._by_id.keys()
        if self._identities() - before:
            self.version += 1
        changed = tracked.changed_from(self._routes)
        self._routes = tracked.routes
        self._counts = tracked.counts
        self.members_changed()
        if changed:
            self._report(changed)

    def replace_named(self, names: Collection[str], topics: Iterable[TrackedTopic]) -> None:
        """What Postgres says of these names, and of no other. One that is missing among ``topics``
        was let go of."""
        found = {
            topic.name: _paged(topic)
            for topic in topics
            if topic.status in _LIVE and topic.topic_id not in self._deleted
        }
        changed: set[TopicIdPartition] = set()
        moved = False
        for name in sorted(names):
            before, now = self._by_name.pop(name, None), found.get(name)
            if before is None or now is None or before.topic_id != now.topic_id:
                self.version += now is not None
                moved |= before is not now
            old = self._take_routes(before)
            new = {} if now is None else _routes_of(now)
            if before is not None and before.topic_id is not None:
                del self._by_id[before.topic_id]
            if now is not None:
                self._by_name[name] = now
                if now.topic_id is not None:
                    self._by_id[now.topic_id] = now
            self._routes |= new
            for log in old.keys() | new.keys():
                if old.get(log) != new.get(log):
                    changed.add(log)
                    self._recount(old.get(log), new.get(log))
        self._unborn = self._unborn.difference(names) | {
            name for name, topic in found.items() if _is_unborn(topic)
        }
        self._displaced &= self._by_id.keys()
        if moved:
            self.members_changed()
        if changed:
            self._report(frozenset(changed))

    def _recount(self, old: PartitionRoute | None, new: PartitionRoute | None) -> None:
        if old is not None:
            self._counts[old.kind] -= 1
        if new is not None:
            self._counts[new.kind] += 1

    def _take_routes(self, topic: TrackedTopic | None) -> dict[TopicIdPartition, PartitionRoute]:
        if topic is None or topic.topic_id is None:
            return {}
        logs = (TopicIdPartition(topic.topic_id, number) for number in topic.partitions)
        return {log: self._routes.pop(log) for log in logs if log in self._routes}

    def bury(self, ids: Iterable[UUID | None]) -> None:
        """These ids are dead for ever; what is shown as tracked by the next :meth:`replace_all`
        cannot bring them back."""
        self._bury(ids)
        self.members_changed()

    def _bury(self, ids: Iterable[UUID | None]) -> None:
        now = self._clock()
        for topic_id in ids:
            if topic_id is not None:
                self._deleted.setdefault(topic_id, now)
        oldest = iter(list(self._deleted))
        while len(self._deleted) > MAX_TOMBSTONES:
            del self._deleted[next(oldest)]
        for topic_id, heard in list(self._deleted.items()):
            if now - heard <= TOMBSTONE_S:
                break
            del self._deleted[topic_id]
        TOMBSTONES.set(len(self._deleted))

    def displace(self, ids: Collection[UUID]) -> None:
        """The tracked ids whose names Kafka gives to another topic now, or to none: wholly."""
        before = self._displaced
        self._displaced = frozenset(ids) & self._by_id.keys()
        DISPLACED.set(len(self._displaced))
        moved = before ^ self._displaced
        if moved:
            self._report(frozenset(log for log in self._routes if log.topic_id in moved))

    def replace_rows(self, rows: Mapping[TopicIdPartition, TrackedPartition | None]) -> None:
        """These partitions anew, at the cost of them; ``None``: it has no row any more. One of a
        topic that is not tracked here is passed over."""
        changed: set[TopicIdPartition] = set()
        by_topic: dict[UUID, dict[int, TrackedPartition | None]] = {}
        for log, row in rows.items():
            topic = self._by_id.get(log.topic_id)
            if topic is None or topic.partitions.get(log.partition) == row:
                continue
            by_topic.setdefault(log.topic_id, {})[log.partition] = row
            old, new = self._routes.pop(log, None), None if row is None else _route(row)
            if new is not None:
                self._routes[log] = new
            if old != new:
                self._recount(old, new)
                changed.add(log)
        for topic_id, found in by_topic.items():
            topic = self._by_id[topic_id]
            topic = replace(topic, partitions=Rows.of(topic.partitions).put(found))
            self._by_name[topic.name] = self._by_id[topic_id] = topic
        if changed:
            self._report(frozenset(changed))

    def _identities(self) -> set[tuple[str, UUID | None]]:
        return {(topic.name, topic.topic_id) for topic in self._by_name.values()}

    def _report(self, changed: frozenset[TopicIdPartition]) -> None:
        self._count()
        self.changed(changed)

    def _count(self) -> None:
        TRACKED_TOPICS.set(len(self._by_name))
        for kind in RouteKind:
            TRACKED_PARTITIONS.labels(kind.value).set(self._counts[kind])


def _paged(topic: TrackedTopic) -> TrackedTopic:
    """The same, so that one of its partitions can be replaced for itself."""
    if isinstance(topic.partitions, Rows):
        return topic
    return replace(topic, partitions=Rows(topic.partitions))


def _routes_of(topic: TrackedTopic) -> Routes:
    if topic.topic_id is None:
        return {}
    return {
        TopicIdPartition(topic.topic_id, row.partition): _route(row)
        for row in topic.partitions.values()
    }


def _is_unborn(topic: TrackedTopic) -> bool:
    born = topic.kind is TrackingKind.BORN_DISKLESS
    return born and (topic.topic_id is None or topic.status is TopicStatus.TRACKING)


def _route(row: TrackedPartition) -> PartitionRoute:
    return route_tracked(
        generation=row.generation,
        quiesced=row.quiesced,
        boundary=row.boundary,
        boundary_epoch=row.boundary_epoch,
        accepted_gap_from=row.accepted_gap_from,
        prefix_gone=row.prefix_gone,
        ready=row.ready,
    )
