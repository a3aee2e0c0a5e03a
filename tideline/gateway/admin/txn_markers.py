"""WriteTxnMarkers: an administrator's markers stay out of a log that ends, or has ended, at B0.

Coordinators write theirs to the brokers, past the gateways; this is for tools that end a hanging
transaction (``kafka-transactions.sh abort``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32

from tideline.domain.api_answers import WRITE_TXN_MARKERS, Whose, answer_to
from tideline.domain.request_handling import KafkaErrorCode
from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules
from tideline.gateway.messages import error, locate, messages
from tideline.gateway.per_partition import refusal_when_stopped
from tideline.gateway.tracking.view import TrackingView

NO_PARTITION = i32(-1)
_NO_RIGHT = ErrorCode.cluster_authorization_failed
"""Kafka's answer for the whole request, before it looks at any topic
(``KafkaApis.handleWriteTxnMarkersRequest``)."""


@dataclass(frozen=True, slots=True)
class TxnMarkersHandler:
    """Serves WriteTxnMarkers."""

    tracking: TrackingView

    def rules(self) -> Rules:
        return {ApiKey.WRITE_TXN_MARKERS: Rule(self.write, self.tracking.has_topics)}

    async def write(self, ctx: RequestContext) -> bytes | None:
        """What is refused does not reach the broker; the rest is answered by it, and so is whether
        the client may write markers at all: else it would hear which topics are tracked."""
        request: Any = ctx.request()
        refused: dict[tuple[str, int], int] = {
            (topic.name, int(partition)): code
            for marker in request.markers
            for topic in marker.topics
            for partition in topic.partition_indexes
            if (code := self._refusal(topic.name, int(partition))) is not None
        }
        if not refused:
            return await ctx.forward()
        kept = tuple(filter(None, (_without(marker, refused) for marker in request.markers)))
        told = _codes(
            await ctx.forward_message(replace(request, markers=kept or _for_nobody(request)))
        )
        if _NO_RIGHT in told.values():
            refused = dict.fromkeys(refused, _NO_RIGHT)
        return await ctx.respond_of(_answer(ctx, request, refused, told), len(refused) + len(told))

    def _refusal(self, topic: str, partition: int) -> KafkaErrorCode | None:
        route = locate(self.tracking, topic, partition).route(self.tracking)
        stopped = refusal_when_stopped(self.tracking, route)
        if stopped is not None:
            return stopped
        rule = answer_to(WRITE_TXN_MARKERS, route)
        return rule.error if rule.whose is Whose.REFUSED else None


def _without(marker: Any, refused: Mapping[tuple[str, int], int]) -> Any | None:
    """The marker for the partitions that are not refused; ``None`` if there are none."""
    topics = []
    for topic in marker.topics:
        kept = tuple(p for p in topic.partition_indexes if (topic.name, int(p)) not in refused)
        if kept:
            topics.append(replace(topic, partition_indexes=kept))
    return replace(marker, topics=tuple(topics)) if topics else None


def _for_nobody(request: Any) -> tuple[Any]:
    """A marker that no broker writes: who has no right hears so for each partition that is named,
    and of a request that names none nothing."""
    marker = next(m for m in request.markers if any(t.partition_indexes for t in m.topics))
    topic = next(t for t in marker.topics if t.partition_indexes)
    return (replace(marker, topics=(replace(topic, partition_indexes=(NO_PARTITION,)),)),)


def _codes(answer: Any) -> dict[tuple[int, str, int], ErrorCode]:
    """By producer id and partition: a broker answers in an order of its own."""
    return {
        (int(marker.producer_id), topic.name, int(row.partition_index)): row.error_code
        for marker in answer.markers
        for topic in marker.topics
        for row in topic.partitions
    }


def _answer(
    ctx: RequestContext,
    request: Any,
    refused: Mapping[tuple[str, int], int],
    told: Mapping[tuple[int, str, int], ErrorCode],
) -> Any:
    api = messages(ctx.header.api_key, ctx.header.api_version)

    def row(producer: int, topic: str, partition: int) -> Any:
        code = refused.get((topic, partition))
        return api.response_part(
            "WritableTxnMarkerPartitionResult",
            partition_index=partition,
            error_code=error(code)
            if code is not None
            else told.get((producer, topic, partition), ErrorCode.unknown_server_error),
        )

    return api.response(
        markers=tuple(
            api.response_part(
                "WritableTxnMarkerResult",
                producer_id=marker.producer_id,
                topics=tuple(
                    api.response_part(
                        "WritableTxnMarkerTopicResult",
                        name=topic.name,
                        partitions=tuple(
                            row(int(marker.producer_id), topic.name, int(partition))
                            for partition in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )
