"""Incremental fetch sessions (KIP-227) of clients that fetch tracked topics.

The broker has none for them: a session of its own would hide from the gateway which partitions a
fetch is about. Here the gateway keeps what a client asked and was told last, so that a client of
thousands of partitions sends and is sent only what has changed. What always holds: each fetch looks
at every partition of its session by its route as it is then, as at a full fetch (schedule 9); a
session is only a shorter way to write a request and its answer.

Bounds and evictions are those of Kafka's ``FetchSessionCache``, and partitions are counted too.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tideline.domain.request_handling import KafkaErrorCode
from tideline.gateway.fetch.partition import asked_of
from tideline.gateway.messages import TopicKey, topic_key
from tideline.gateway.metrics import (
    FETCH_SESSION_PARTITIONS,
    FETCH_SESSIONS,
    FETCH_SESSIONS_EVICTED,
)
from tideline.gateway.session_topics import LONGEST_NAME

SLOTS = 1_000
"""Sessions of one gateway: Kafka's ``max.incremental.fetch.session.cache.slots``."""
EVICTED_AFTER_S = 120.0
"""Kafka's ``min.incremental.fetch.session.eviction.ms``."""
PARTITIONS = 100_000
"""Of all sessions together: about 50 MB."""
LARGEST_SESSION = 10_000
"""Partitions: as many as one request may name."""
IDS_SINCE_FETCH = 13
"""Version from which a request names topics by id."""
LAST_EPOCH = 2**31 - 1

Row = tuple[TopicKey, Any]
"""A partition's structure of the answer, under its topic."""
Told = tuple[KafkaErrorCode, int, list[Row]]
"""Error of the whole answer, session id (0: none), and the rows that are told."""
Answered = Callable[[list[Row]], Told]
"""Makes what a client is told out of every row of its fetch."""
Key = tuple[TopicKey, int]


def without_session(rows: list[Row]) -> Told:
    """Every row is told, each time."""
    return KafkaErrorCode.NONE, 0, rows


@dataclass(slots=True)
class CachedPartition:
    """What was asked of one partition last, and what its client was told last."""

    asked: Any
    high_watermark: int = -1
    log_start: int = -1

    def has_news(self, row: Any) -> bool:
        """Whether ``row`` has to be told, after ``CachedPartition.maybeUpdateResponseData``; takes
        it for told."""
        if int(row.error_code):
            self.high_watermark = -1  # that it is over is news
            return True
        told = self.high_watermark, self.log_start
        end, start = int(row.high_watermark), int(getattr(row, "log_start_offset", -1))
        # Of a side that did not answer in time there is no news.
        self.high_watermark = end if end >= 0 else self.high_watermark
        self.log_start = start if start >= 0 else self.log_start
        return (
            bool(len(row.records or b""))
            or told != (self.high_watermark, self.log_start)
            or int(getattr(row, "preferred_read_replica", -1)) >= 0
            or _diverges(row)
        )


def _diverges(row: Any) -> bool:
    found = getattr(row, "diverging_epoch", None)
    return found is not None and int(found.epoch) >= 0


@dataclass(slots=True, eq=False)
class TrackedSession:
    """One session. Partitions are in the order in which they are served: those that had records
    last come last."""

    id: int
    by_ids: bool
    created: float
    used: float
    epoch: int = 1
    """Of the next request."""
    partitions: OrderedDict[Key, CachedPartition] = field(default_factory=OrderedDict)

    def keys(self) -> set[TopicKey]:
        return {key for key, _ in self.partitions}

    def take(self, request: Any) -> None:
        """What an incremental request adds, changes and forgets."""
        for key, asked in asked_of(request).items():
            if (known := self.partitions.get(key)) is not None:
                known.asked = asked
            else:
                self.partitions[key] = CachedPartition(asked)
        for topic in getattr(request, "forgotten_topics_data", ()):
            for partition in topic.partitions:
                self.partitions.pop((topic_key(topic), int(partition)), None)
        self.epoch = self.epoch + 1 if self.epoch < LAST_EPOCH else 1

    def news(self, rows: Iterable[Row]) -> list[Row]:
        """The rows that an incremental answer tells."""
        told = []
        for topic, row in rows:
            key = topic, int(row.partition_index)
            known = self.partitions.get(key)
            if known is None or not known.has_news(row):
                continue  # forgotten meanwhile, or told before
            told.append((topic, row))
            if len(row.records or b""):
                self.partitions.move_to_end(key)
        return told


class TrackedSessions:
    """The sessions of one gateway. Like Kafka's they outlive the connection that began them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` in s."""
        self._clock = clock
        self._sessions: OrderedDict[int, TrackedSession] = OrderedDict()
        """The one that was used longest ago first."""
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Of all sessions."""
        return self._partitions

    def find(self, session_id: int) -> TrackedSession | None:
        return self._sessions.get(session_id)

    def end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._count(-len(session.partitions))

    def opening(self, request: Any) -> Answered:
        """The answer to a full fetch, with a new session if there is room for it."""

        def answered(rows: list[Row]) -> Told:
            session_id = self._open(request, rows)
            return KafkaErrorCode.NONE, session_id, rows

        return answered

    def _open(self, request: Any, rows: list[Row]) -> int:
        """Returns the id of the session, or 0: there is no room."""
        asked = asked_of(request)
        if not asked or not self._make_room(len(asked), asked):
            return 0
        now = self._clock()
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = random.randrange(1, LAST_EPOCH)
        session = TrackedSession(session_id, _by_ids(request), now, now)
        session.partitions.update((key, CachedPartition(one)) for key, one in asked.items())
        session.news(rows)  # all of them are told
        self._sessions[session_id] = session
        self._count(len(asked))
        return session_id

    def going_on(self, session: TrackedSession, request: Any) -> Answered | KafkaErrorCode:
        """How an incremental fetch of ``session`` is answered, once it has been taken into it, or
        why it is refused."""
        if session.epoch != int(request.session_epoch):
            return KafkaErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_ids != _by_ids(request):
            return KafkaErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        before = len(session.partitions)
        session.take(request)
        more = len(session.partitions) - before
        self._count(more)
        session.used = self._clock()
        self._sessions.move_to_end(session.id)
        if not session.partitions:
            self.end(session.id)
            return without_session
        if more > 0 and not self._keeps(session, request):
            self.end(session.id)
            return KafkaErrorCode.FETCH_SESSION_ID_NOT_FOUND
        epoch = session.epoch

        def answered(rows: list[Row]) -> Told:
            if session.epoch != epoch:
                return KafkaErrorCode.INVALID_FETCH_SESSION_EPOCH, session.id, []
            return KafkaErrorCode.NONE, session.id, session.news(rows)

        return answered

    def _keeps(self, session: TrackedSession, request: Any) -> bool:
        """Whether a session that has grown may stay."""
        if len(session.partitions) > LARGEST_SESSION:
            return False
        if not all(map(_can_be_kept, asked_of(request))):
            return False
        while self._partitions > PARTITIONS:
            if not self._evict(len(session.partitions), session):
                return False
        return True

    def _make_room(self, size: int, keys: Iterable[Key]) -> bool:
        if size > LARGEST_SESSION or not all(map(_can_be_kept, keys)):
            return False
        while len(self._sessions) >= SLOTS or self._partitions + size > PARTITIONS:
            if not self._evict(size, None):
                return False
        return True

    def _evict(self, size: int, but: TrackedSession | None) -> bool:
        """End the session that nobody has used for a while, else a smaller one than of ``size``
        partitions that is old enough; returns whether there was one."""
        now = self._clock()
        others = (session for session in self._sessions.values() if session is not but)
        oldest = next(others, None)
        if oldest is None:
            return False
        if now - oldest.used > EVICTED_AFTER_S:
            victim = oldest
        else:
            aged = [
                session
                for session in self._sessions.values()
                if session is not but and now - session.created > EVICTED_AFTER_S
            ]
            if not aged:
                return False
            victim = min(aged, key=lambda session: len(session.partitions))
            if len(victim.partitions) >= size:
                return False
        self.end(victim.id)
        FETCH_SESSIONS_EVICTED.inc()
        return True

    def _count(self, more: int) -> None:
        self._partitions += more
        FETCH_SESSION_PARTITIONS.set(self._partitions)
        FETCH_SESSIONS.set(len(self._sessions))


def _by_ids(request: Any) -> bool:
    return int(request.__version__) >= IDS_SINCE_FETCH


def _can_be_kept(key: Key) -> bool:
    """Whether its name is as short as those of Kafka are."""
    return isinstance(key[0], UUID) or (key[0] is not None and len(key[0]) <= LONGEST_NAME)
