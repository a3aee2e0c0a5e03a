"""Share groups cannot read a tracked topic: they would see Kafka's log only, and past B0.

Preflight refuses a topic that has a share group; this is for one that joins later. A share
session that was opened before a topic was tracked names no topics any more, so it is ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i32

from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules
from tideline.gateway.messages import build, nested, no_throttle
from tideline.gateway.rights import TopicRights
from tideline.gateway.session_topics import SessionTopics
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.protocol import response_class

REFUSED = ErrorCode.topic_authorization_failed
"""The Java share consumer reports it to the application instead of trying again for ever."""
REASON = "share groups cannot read a topic that is, or becomes, diskless"


TOPICS_REMEMBERED = 5_000
"""In a connection's session; one with more ends with whatever topic joins the tracked set."""


@dataclass(slots=True)
class ShareSession:
    """The one share session of a connection, in so far as it was looked into."""

    topics: SessionTopics | None = None


@dataclass(frozen=True, slots=True)
class ShareGroupsHandler:
    """Serves ShareFetch and ShareAcknowledge."""

    tracking: TrackingView
    rights: TopicRights = field(default_factory=TopicRights)

    def rules(self) -> Rules:
        return {
            ApiKey.SHARE_FETCH: Rule(self.share_fetch, self.tracking.has_topics),
            ApiKey.SHARE_ACKNOWLEDGE: Rule(self.share_acknowledge, self.tracking.has_topics),
        }

    async def share_fetch(self, ctx: RequestContext) -> bytes | None:
        """Tracked topics are left out of the request and refused in the answer."""
        request: Any = ctx.request()
        schema: Any = response_class(ctx.header.api_key, ctx.header.api_version)
        if self._is_over(ctx, request):
            return ctx.respond(_session_ended(schema))
        tracked = self._tracked(request)
        if not tracked:
            return await ctx.forward()
        kept = tuple(topic for topic in request.topics if topic.topic_id not in tracked)
        answer: Any = await ctx.forward_message(replace(request, topics=kept))
        if answer.error_code is not ErrorCode.none:
            return ctx.respond(answer)  # of the whole request, its group for example
        known = await self._readable(ctx, tracked)
        refused = tuple(
            _refusal(schema, topic, REASON if topic.topic_id in known else None)
            for topic in request.topics
            if topic.topic_id in tracked
        )
        return ctx.respond(replace(answer, responses=(*answer.responses, *refused)))

    async def _readable(self, ctx: RequestContext, tracked: frozenset[UUID]) -> frozenset[UUID]:
        """Those that the client may read: of the others it hears what Kafka would say, and not
        what becomes of them."""
        names = {t: topic.name for t in tracked if (topic := self.tracking.topic_by_id(t))}
        judged = await self.rights.judge(ctx, names.values())
        return frozenset(t for t, name in names.items() if judged.refusal_of(name) is None)

    async def share_acknowledge(self, ctx: RequestContext) -> bytes | None:
        """Acknowledgements of what was read before are Kafka's; only old sessions are ended."""
        request: Any = ctx.request()
        if self._is_over(ctx, request):
            schema: Any = response_class(ctx.header.api_key, ctx.header.api_version)
            return ctx.respond(_session_ended(schema))
        return await ctx.forward()

    def _is_over(self, ctx: RequestContext, request: Any) -> bool:
        """Whether its session names a topic that is tracked now, or was never looked into. Epoch 0
        begins one, -1 ends it."""
        session = ctx.connection.state(ShareSession)
        epoch = request.share_session_epoch
        if epoch == 0:
            session.topics = SessionTopics(self.tracking.version)
        topics = session.topics
        if epoch > 0 and (topics is None or not topics.is_classic(self.tracking)):
            return True
        if topics is not None:
            kept = {topic.topic_id for topic in request.topics} - self._tracked(request)
            topics.name(kept, TOPICS_REMEMBERED - len(topics))
        return False

    def _tracked(self, request: Any) -> frozenset[UUID]:
        return frozenset(
            topic.topic_id
            for topic in request.topics
            if not self.tracking.is_classic(topic.topic_id)
        )


def _session_ended(schema: Any) -> Any:
    return build(
        schema,
        throttle_time=no_throttle(),
        error_code=ErrorCode.share_session_not_found,
        error_message="the tracked topics have changed: begin a new share session",
        acquisition_lock_timeout=no_throttle(),
        responses=(),
        node_endpoints=(),
    )


def _refusal(schema: Any, topic: Any, reason: str | None) -> Any:
    answer = nested(schema, "responses")
    partition = nested(answer, "partitions")
    leader: Any
    (leader,) = (f.type for f in fields(partition) if f.name == "current_leader")
    return answer(
        topic_id=topic.topic_id,
        partitions=tuple(
            build(
                partition,
                partition_index=asked.partition_index,
                error_code=REFUSED,
                error_message=reason,
                acknowledge_error_code=i16(0),
                acknowledge_error_message=None,
                current_leader=leader(leader_id=i32(-1), leader_epoch=i32(-1)),
                records=b"",
                acquired_records=(),
            )
            for asked in topic.partitions
        ),
    )
