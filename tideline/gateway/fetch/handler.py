"""Fetch: the prefix from Kafka, the suffix from object storage, and no answer across B0.

A fetch that names a tracked topic is answered without a session. It is served in rounds until it
has enough bytes or its time is over; each round asks Kafka for a short while only, so that a
partition whose B0 becomes known in the middle of a long poll is served by the suffix in the next.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from tideline.domain.leader_choice import zone_of
from tideline.domain.request_handling import (
    FetchRegion,
    KafkaErrorCode,
    Request,
    handling,
    position_of,
    region_of,
)
from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules
from tideline.gateway.fetch.from_kafka import KafkaSide
from tideline.gateway.fetch.from_suffix import HighWatermarks, SuffixSide
from tideline.gateway.fetch.partition import (
    MAX_BYTES,
    PartitionFetch,
    PartitionResult,
    current_route,
    partitions_of,
)
from tideline.gateway.fetch.suffix_reader import SuffixReader
from tideline.gateway.leaders import LeaderNaming
from tideline.gateway.messages import (
    NO_TIME,
    Messages,
    TopicKey,
    error,
    group_by_topic,
    key_fields,
    messages,
    named,
    topic_key,
)
from tideline.gateway.paired_broker import PairedBroker
from tideline.gateway.room import Room
from tideline.gateway.session_topics import SessionTopics
from tideline.gateway.tracking.quiesce import Fences
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.decoding import AT_ONCE_PARTITIONS, beside_the_loop

KAFKA_ROUND_S = 0.1
"""How long Kafka may hold one round of a tracked fetch; Kafka serves a connection one by one."""
BREATH_S = 0.01
SESSIONS_SINCE = 7
SESSIONS_REMEMBERED = 64
"""Sessions per connection; a client has one per broker connection."""
TOPICS_REMEMBERED = 5_000
"""Topics in the sessions of one connection, together. A session that would take it past this ends
with whatever topic joins the tracked set."""


class TrackedFetch:
    """One Fetch request that names a tracked topic."""

    def __init__(
        self,
        context: RequestContext,
        request: Any,
        asked: list[PartitionFetch],
        handler: FetchHandler,
    ) -> None:
        self.context = context
        self.request = request
        self.tracking = handler.tracking
        self.room = handler.room
        self.leaders = handler.leaders
        self.rack = str(getattr(request, "rack_id", ""))
        self.zone = self.rack or zone_of(context.header.client_id)
        self.messages: Messages = messages(ApiKey.FETCH, context.header.api_version)
        self.asked = asked
        self.kafka = KafkaSide(
            context,
            request,
            self.messages,
            handler.tracking,
            handler.fences,
            handler.watermarks,
            handler.paired_broker,
        )
        self.suffix = SuffixSide(
            handler.tracking, handler.reader, handler.watermarks, context.header.api_version
        )

    async def answer(self) -> bytes:
        """The response, once there are ``min_bytes``, an outcome that waiting cannot improve, or
        no time left."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(0.0, self.request.max_wait.total_seconds())
        max_bytes = min(int(self.request.max_bytes), MAX_BYTES)
        min_bytes = min(int(self.request.min_bytes), max_bytes)
        while True:
            began = loop.time()
            left = max(0.0, deadline - began)
            answers = await self._round(left, min_bytes, max_bytes)
            size = sum(answer.size for answer in answers.values())
            settled = any(answer.settled for answer in answers.values())
            if size >= min_bytes or settled or left <= 0:
                return await self._respond(answers, max_bytes)
            if loop.time() - began < BREATH_S:
                # Kafka has records that may not be shown, so it does not wait itself.
                await asyncio.sleep(BREATH_S)

    async def _round(
        self, left_s: float, min_bytes: int, max_bytes: int
    ) -> dict[PartitionFetch, PartitionResult]:
        """Look at every partition once; wait a while if there is too little."""
        in_kafka, in_suffix = [], []
        answers: dict[PartitionFetch, PartitionResult] = {}
        for asked in self.asked:
            route = current_route(asked, self.tracking)
            asked.offset = position_of(route, asked.offset)
            match region_of(route, asked.offset):
                case FetchRegion.KAFKA | FetchRegion.PREFIX:
                    in_kafka.append(asked)
                case FetchRegion.SUFFIX:
                    if (node := await self._nearer(asked)) is None:
                        in_suffix.append(asked)
                    else:
                        answers[asked] = self.suffix.sent_on(asked, node)
                case FetchRegion.LOST:
                    answers[asked] = PartitionResult.refusal(KafkaErrorCode.OFFSET_OUT_OF_RANGE)
                case FetchRegion.NOWHERE:
                    answers[asked] = PartitionResult.refusal(
                        named(handling(route.kind, Request.FETCH).error, asked.at.key)
                    )
        wait_s = min(left_s, KAFKA_ROUND_S)
        found = await self.suffix.find(in_suffix, max_bytes)
        enough = answers or sum(a.size for a in found.values()) >= min_bytes
        enough = enough or any(answer.settled for answer in found.values())
        if in_kafka:
            answers |= await self.kafka.ask(in_kafka, 0.0 if enough else wait_s, min_bytes)
            if not enough:
                found = await self.suffix.find(in_suffix, max_bytes)
        elif in_suffix and not enough and left_s > 0:
            await self.suffix.wait(found, left_s)
            found = await self.suffix.find(in_suffix, max_bytes)
        return answers | found

    async def _nearer(self, asked: PartitionFetch) -> int | None:
        """The replica in the consumer's zone that it is sent on to."""
        if asked.at.log is None:
            return None
        return await self.leaders.nearer(asked.at.log, self.rack)

    async def _respond(
        self, answers: dict[PartitionFetch, PartitionResult], max_bytes: int
    ) -> bytes:
        left = max_bytes - sum(a.size for a in answers.values() if a.found is None)
        found = sum(a.size for a in answers.values() if a.found is not None)
        with self.room.answer(max(0, min(left, found))) as granted:
            await self.suffix.read(answers, min(left, granted) if granted < found else left)
            read = sum(len(a.records or b"") for a in answers.values() if a.found is not None)
            self.leaders.count("fetched", read, self.zone)
            if len(self.asked) > AT_ONCE_PARTITIONS:
                return await beside_the_loop(self._response, answers)
            return self._response(answers)

    def _response(self, answers: dict[PartitionFetch, PartitionResult]) -> bytes:
        rows = [(asked.at.key, answers[asked].row(self.messages, asked)) for asked in self.asked]
        return self.context.respond(
            self.messages.response(
                throttle_time=self.kafka.throttle,
                error_code=error(KafkaErrorCode.NONE),
                session_id=0,
                responses=tuple(
                    self.messages.response_part(
                        "FetchableTopicResponse", **key_fields(key), partitions=tuple(group)
                    )
                    for key, group in group_by_topic(rows)
                ),
                node_endpoints=tuple(self.kafka.endpoints.values()),
            )
        )


class FetchSessions:
    """Incremental fetch sessions (KIP-227) that one connection's full fetches opened.

    A session lives in the broker and names its partitions only once. What always holds: an
    incremental fetch is passed only if every request of its session was looked into, and none of
    the topics that they named is tracked now (schedule 9).
    """

    def __init__(self) -> None:
        self._sessions: OrderedDict[int, SessionTopics] = OrderedDict()
        self._named = 0

    def opened(self, session_id: int, keys: Collection[TopicKey], tracking_version: int) -> None:
        """A full fetch of these topics, none of them tracked, was answered with this session."""
        self.ended(session_id)
        if session_id == 0:
            return
        self._sessions[session_id] = SessionTopics(tracking_version)
        self._name(session_id, keys)
        while len(self._sessions) > SESSIONS_REMEMBERED:
            self.ended(next(iter(self._sessions)))

    def ended(self, session_id: int) -> None:
        """The client goes on without it."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._named -= len(session)

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
        self._name(session_id, keys)
        return True

    def _name(self, session_id: int, keys: Collection[TopicKey]) -> None:
        session = self._sessions[session_id]
        before = len(session)
        session.name(keys, TOPICS_REMEMBERED - self._named)
        self._named += len(session) - before


def is_incremental(session_id: int, session_epoch: int) -> bool:
    """Epoch 0 opens a session, -1 asks for none (``FetchMetadata``)."""
    return session_epoch > 0


def _ended_session(context: RequestContext, api: Messages) -> bytes:
    """The client opens another session by a full fetch, which is looked into."""
    return context.respond(
        api.response(
            throttle_time=NO_TIME,
            error_code=error(KafkaErrorCode.FETCH_SESSION_ID_NOT_FOUND),
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
    room: Room = field(default_factory=Room)

    def rules(self) -> Rules:
        return {ApiKey.FETCH: Rule(self.fetch, self.tracking.has_topics)}

    async def fetch(self, context: RequestContext) -> bytes | None:
        request: Any = context.request()
        tracking = self.tracking
        version = context.header.api_version
        session_id = int(getattr(request, "session_id", 0))
        session_epoch = int(getattr(request, "session_epoch", -1))
        sessions = context.connection.state(FetchSessions)
        keys = {topic_key(topic) for topic in request.topics}
        tracked = not all(map(tracking.is_classic, keys))
        if is_incremental(session_id, session_epoch):
            if tracked or not sessions.may_continue(session_id, keys, tracking):
                return _ended_session(context, messages(ApiKey.FETCH, version))
            return await context.forward()
        sessions.ended(session_id)  # which a full fetch may name, to have it replaced
        if tracked:
            asked = partitions_of(request, tracking)
            return await TrackedFetch(context, request, asked, self).answer()
        inspected_under = tracking.version
        frame = await context.forward()
        if version >= SESSIONS_SINCE and session_epoch == 0:
            sessions.opened(_session_of(frame, version), keys, inspected_under)
        return frame


def _session_of(frame: bytes, version: int) -> int:
    """Correlation id, (header tags since version 12), throttle time, error code, session id."""
    start = 4 + (1 if version >= 12 else 0) + 4 + 2
    return int.from_bytes(frame[start : start + 4], "big", signed=True)
