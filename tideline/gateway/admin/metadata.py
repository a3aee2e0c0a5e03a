"""Metadata and DescribeTopicPartitions, while some name must not lead a client anywhere, or some
partition may be asked of another gateway than that of Kafka's leader."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kio.schema.errors import ErrorCode

from tideline.gateway.context import ApiKey, ClientConnection, RequestContext, Rule, Rules
from tideline.gateway.leaders import Client, LeaderNaming
from tideline.gateway.messages import TopicKey
from tideline.gateway.passing import classic_alone
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.decoding import decoded_response
from tideline.kafka.protocol import RequestHeader


@dataclass(frozen=True, slots=True)
class MetadataHandler:
    """Forwards; topics that are hidden are answered as topics that do not exist (yet)."""

    tracking: TrackingView
    leaders: LeaderNaming

    def rules(self) -> Rules:
        return {
            ApiKey.METADATA: Rule(self.metadata, self.is_due, self.passes),
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: Rule(self.metadata, self.is_due),
        }

    def is_due(self) -> bool:
        return self.tracking.hides_names() or self.leaders.is_due()

    def passes(self, header: RequestHeader, frame: bytes, connection: ClientConnection) -> bool:
        """See :attr:`Rule.passes`."""
        if self.tracking.hides_names():
            return False
        return classic_alone(self.tracking, header, frame) is not None

    async def metadata(self, ctx: RequestContext) -> bytes | None:
        """Both APIs. A retriable error for a hidden topic that was asked for; it is left out of all
        topics. A cursor passes: it says where Kafka goes on, and shows nothing but a name."""
        header = ctx.header
        request: Any = ctx.request()
        response = await ctx.forward()
        if self._asks_of_others_only(request, header):
            return response
        answer: Any = await decoded_response(
            ctx.connection, response, header.api_key, header.api_version
        )
        client = Client.of(header.client_id, header.api_key, header.api_version)
        rewritten = await self.leaders.rewritten(answer, client)
        shown = self._without_hidden(request, rewritten, header)
        if shown is answer:
            return response
        return await ctx.respond_of(shown, sum(len(topic.partitions) for topic in shown.topics))

    def _asks_of_others_only(self, request: Any, header: RequestHeader) -> bool:
        """Whether only topics are named of which nothing would be changed."""
        if self.tracking.hides_names():
            return False
        if _means_all(request.topics, header.api_key, header.api_version):
            return False
        return all(self.tracking.is_classic(_key(topic)) for topic in request.topics)

    def _without_hidden(self, request: Any, answer: Any, header: RequestHeader) -> Any:
        names = {t.name for t in answer.topics if t.name is not None}
        hidden = {name for name in names if self.tracking.is_hidden(name)}
        if not hidden:
            return answer
        asked = request.topics
        if _means_all(asked, header.api_key, header.api_version):
            kept = tuple(t for t in answer.topics if t.name not in hidden)
        else:
            by_id = {t.topic_id for t in asked if getattr(t, "topic_id", None) is not None}
            kept = tuple(
                # Who may not see it hears so, as of any other name.
                _unknown(t, by_id)
                if t.name in hidden and t.error_code is not ErrorCode.topic_authorization_failed
                else t
                for t in answer.topics
            )
        return replace(answer, topics=kept)


def _key(topic: Any) -> TopicKey:
    name: str | None = topic.name
    return name if name is not None else topic.topic_id


def _means_all(asked: tuple[Any, ...] | None, api_key: int, version: int) -> bool:
    """An empty list means all topics, but in Metadata since version 1, which has null for it."""
    return asked is None or (not asked and (api_key != ApiKey.METADATA or version == 0))


def _unknown(topic: Any, by_id: set[Any]) -> Any:
    is_by_id = getattr(topic, "topic_id", None) in by_id
    code = ErrorCode.unknown_topic_id if is_by_id else ErrorCode.unknown_topic_or_partition
    changes: dict[str, Any] = {"error_code": code, "partitions": ()}
    if is_by_id:
        changes["name"] = None
    elif hasattr(topic, "topic_id"):
        changes["topic_id"] = None
    return replace(topic, **changes)
