"""Fetch: which session a request belongs to, and whether the gateway looks into it.

A fetch that names no tracked topic is Kafka's, and so is its session. One that names a tracked
topic is served here (:mod:`tideline.gateway.fetch.tracked_fetch`), and its session is the gateway's
(:mod:`tideline.gateway.fetch.tracked_sessions`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from tideline.domain.quotas import QuotaKind
from tideline.domain.request_handling import KafkaErrorCode
from tideline.gateway.context import (
    ApiKey,
    ClientConnection,
    RequestContext,
    Rule,
    Rules,
    TopicKeys,
)
from tideline.gateway.fetch.from_suffix import HighWatermarks
from tideline.gateway.fetch.partition import partition_of, partitions_of
from tideline.gateway.fetch.suffix_reader import SuffixReader
from tideline.gateway.fetch.tracked_fetch import TrackedFetch
from tideline.gateway.fetch.tracked_sessions import (
    TrackedSession,
    TrackedSessions,
    without_session,
)
from tideline.gateway.leaders import LeaderNaming
from tideline.gateway.messages import NO_TIME, TopicKey, error, messages, topic_key
from tideline.gateway.paired_broker import PairedBroker
from tideline.gateway.passing import classic_alone
from tideline.gateway.quotas import ClientQuotas
from tideline.gateway.rights import TopicRights
from tideline.gateway.room import Room
from tideline.gateway.session_topics import SessionTopics
from tideline.gateway.tracking.quiesce import Fences
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.protocol import RequestHeader

SESSIONS_SINCE = 7
NO_SESSION = -1
"""The epoch of a full fetch that asks for no session (``FetchMetadata.FINAL_EPOCH``)."""
SESSIONS_REMEMBERED = 64
"""Sessions per connection; a client has one per broker connection."""
TOPICS_REMEMBERED = 5_000
"""Topics in the sessions of one connection, together. A session that would take it past this ends
with whatever topic joins the tracked set."""


class FetchSessions:
    """Incremental fetch sessions (KIP-227) that one connection's full fetches opened.

    A session lives in the broker and names its partitions only once. What always holds: an
    incremental fetch is passed only if every request of its session was looked into, and none of
    the topics that they named is tracked now (schedule 9).
    """

    def __init__(self) -> None:
        self._sessions: OrderedDict[int, SessionTopics] = OrderedDict()
        self._named = 0
        self._told: Callable[[int, TopicKeys | None], None] = lambda session_id, topics: None

    def follow(self, told: Callable[[int, TopicKeys | None], None]) -> None:
        """See :class:`~tideline.gateway.context.FollowedSessions`."""
        self._told = told

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

    def opened(self, session_id: int, keys: Collection[TopicKey], tracking_version: int) -> None:
        """A full fetch of these topics, none of them tracked, was answered with this session."""
        self.ended(session_id)
        if session_id == 0:
            return
        session = self._sessions[session_id] = SessionTopics(tracking_version)
        self._name(session_id, keys)
        self._told(session_id, session.topics)
        while len(self._sessions) > SESSIONS_REMEMBERED:
            self.ended(next(iter(self._sessions)))

    def ended(self, session_id: int) -> None:
        """The client goes on without it."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._named -= len(session)
            self._told(session_id, None)

    def is_classic(self, session_id: int, tracking: TrackingView) -> bool:
        """Whether the session is one of these and has no topic that is tracked now."""
        session = self._sessions.get(session_id)
        return session is not None and session.is_classic(tracking)

    def may_continue(
        self, session_id: int, keys: Collection[TopicKey], tracking: TrackingView
    ) -> bool:
        """Whether an incremental fetch that adds these topics, none of them tracked, may pass."""
        session = self._sessions.get(session_id)
        if session is None:
            return False
        if not session.is_classic(tracking):
            self.ended(session_id)
            return False
        self._sessions.move_to_end(session_id)
        if self._name(session_id, keys):
            self._told(session_id, session.topics)
        return True

    def _name(self, session_id: int, keys: Collection[TopicKey]) -> bool:
        session = self._sessions[session_id]
        before = len(session)
        named = session.name(keys, TOPICS_REMEMBERED - self._named)
        self._named += len(session) - before
        return named


def is_incremental(session_epoch: int) -> bool:
    """Epoch 0 opens a session, -1 asks for none; any other one goes on with a session, which none
    below -1 has (``FetchMetadata.isFull``)."""
    return session_epoch not in (0, NO_SESSION)


def _refused(context: RequestContext, code: KafkaErrorCode) -> bytes:
    """The client opens another session by a full fetch, which is looked into."""
    return context.respond(
        messages(ApiKey.FETCH, context.header.api_version).response(
            throttle_time=NO_TIME,
            error_code=error(code),
            session_id=0,
            responses=(),
        )
    )


@dataclass(frozen=True, slots=True)
class FetchHandler:
    """Serves Fetch."""

    tracking: TrackingView
    fences: Fences
    reader: SuffixReader
    watermarks: HighWatermarks
    paired_broker: PairedBroker
    leaders: LeaderNaming
    room: Room
    rights: TopicRights
    quotas: ClientQuotas
    sessions: TrackedSessions = field(
        default_factory=lambda: TrackedSessions(lambda: asyncio.get_running_loop().time())
    )

    def rules(self) -> Rules:
        has_topics = self.tracking.has_topics
        return {ApiKey.FETCH: Rule(self.fetch, has_topics, self.passes, self.by_topics)}

    def by_topics(self) -> bool:
        """See :attr:`Rule.by_topics`."""
        return not self.quotas.has(QuotaKind.FETCH)

    def passes(self, header: RequestHeader, frame: bytes, connection: ClientConnection) -> bool:
        """See :attr:`Rule.passes`: a fetch that neither opens nor ends a session, and goes on with
        none but one of Kafka's."""
        if self.quotas.has(QuotaKind.FETCH):
            return False  # the bytes of its answer count
        named = classic_alone(self.tracking, header, frame)
        if named is None:
            return False
        session_id, session_epoch = named.session_id, named.session_epoch
        if not is_incremental(session_epoch):
            return session_id == 0 and session_epoch == NO_SESSION
        passed = connection.state(FetchSessions)
        if not passed.is_classic(session_id, self.tracking):
            return False
        return passed.may_continue(session_id, set(named.keys), self.tracking)

    async def fetch(self, context: RequestContext) -> bytes | None:
        request: Any = context.request()
        tracking = self.tracking
        version = context.header.api_version
        session_id = int(getattr(request, "session_id", 0))
        session_epoch = int(getattr(request, "session_epoch", -1))
        passed = context.connection.state(FetchSessions)
        keys = {topic_key(topic) for topic in request.topics}
        tracked = not all(map(tracking.is_classic, keys))
        if is_incremental(session_epoch):
            session = None if session_id in passed else self.sessions.find(session_id)
            if session is not None:
                return await self._going_on(context, request, session)
            if tracked or not passed.may_continue(session_id, keys, tracking):
                return _refused(context, KafkaErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return await context.forward()
        if session_id:  # which a full fetch may name, to have it replaced
            if session_id not in passed:
                self.sessions.end(session_id)
            passed.ended(session_id)
        if tracked:
            begins = version >= SESSIONS_SINCE and session_epoch == 0
            answered = self.sessions.opening(request) if begins else without_session
            asked = partitions_of(request, tracking)
            return await TrackedFetch(context, request, asked, self, answered).answer()
        inspected_under = tracking.version
        frame = await context.forward()
        self.quotas.record(QuotaKind.FETCH, context, len(frame))  # which the broker throttles
        if version >= SESSIONS_SINCE and session_epoch == 0:
            passed.opened(_session_of(frame, version), keys, inspected_under)
        return frame

    async def _going_on(
        self, context: RequestContext, request: Any, session: TrackedSession
    ) -> bytes:
        """An incremental fetch of a session of the gateway's."""
        answered = self.sessions.going_on(session, request)
        if isinstance(answered, KafkaErrorCode):
            return _refused(context, answered)
        if all(map(self.tracking.is_classic, session.keys())):
            # Kafka serves it from now on, and with a session of its own. The client is told by an
            # error, since a session that it has does not name what the next one has to.
            self.sessions.end(session.id)
            if session.partitions:
                return _refused(context, KafkaErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        asked = [
            partition_of(key, kept.asked, self.tracking)
            for (key, _), kept in session.partitions.items()
        ]
        return await TrackedFetch(context, request, asked, self, answered).answer()


def _session_of(frame: bytes, version: int) -> int:
    """Correlation id, (header tags since version 12), throttle time, error code, session id."""
    start = 4 + (1 if version >= 12 else 0) + 4 + 2
    return int.from_bytes(frame[start : start + 4], "big", signed=True)
