"""Metadata and DescribeTopicPartitions, while some name must not lead a client anywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kio.schema.errors import ErrorCode

from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.decoding import decoded_response


@dataclass(frozen=True, slots=True)
class MetadataHandler:
    """Forwards; topics that are hidden are answered as topics that do not exist (yet)."""

    tracking: TrackingView

    def rules(self) -> Rules:
        rule = Rule(self.metadata, self.tracking.hides_names)
        return {ApiKey.METADATA: rule, ApiKey.DESCRIBE_TOPIC_PARTITIONS: rule}

    async def metadata(self, ctx: RequestContext) -> bytes | None:
        """Both APIs. A retriable error for a hidden topic that was asked for; it is left out of all
        topics. A cursor passes: it says where Kafka goes on, and shows nothing but a name."""
        request: Any = ctx.request()
        response = await ctx.forward()
        answer: Any = await decoded_response(response, ctx.header.api_key, ctx.header.api_version)
        names = {t.name for t in answer.topics if t.name is not None}
        hidden = {name for name in names if self.tracking.is_hidden(name)}
        if not hidden:
            return response
        asked = request.topics
        if _means_all(asked, ctx.header.api_key, ctx.header.api_version):
            kept = tuple(t for t in answer.topics if t.name not in hidden)
        else:
            by_id = {t.topic_id for t in asked if getattr(t, "topic_id", None) is not None}
            kept = tuple(_unknown(t, by_id) if t.name in hidden else t for t in answer.topics)
        return ctx.respond(replace(answer, topics=kept))


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
