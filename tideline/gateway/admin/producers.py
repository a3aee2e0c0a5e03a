"""DescribeProducers: of a suffix its own producers, whose state is in Postgres.

Tools find a hanging transaction by it, and operators who writes. From B0 on the broker's producer
state stands still; it is asked all the same, since it knows what the client may not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog
from kio.schema.errors import ErrorCode

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import LogProducer
from tideline.domain.api_answers import DESCRIBE_PRODUCERS, ApiAnswer, Whose, answer_to
from tideline.domain.ids import TopicIdPartition
from tideline.domain.request_handling import KafkaErrorCode, RouteKind
from tideline.errors import TidelineError
from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules
from tideline.gateway.messages import RequestedPartition, error, locate, messages
from tideline.gateway.per_partition import failure_code, refusal_when_stopped
from tideline.gateway.tracking.quiesce import Fences
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.decoding import decoded_response

log = structlog.get_logger()
MOST = 20_000
"""Producers of suffixes in one answer: of more, those that wrote last. Kafka has no pages here."""
KAFKAS_WORD = frozenset(
    {
        ErrorCode.topic_authorization_failed,
        ErrorCode.invalid_topic_exception,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""What the broker refuses for a reason that holds for the suffix too; it refuses also because it
has no replica, which does not."""


@dataclass(frozen=True, slots=True)
class ProducersHandler:
    """Serves DescribeProducers."""

    tracking: TrackingView
    fences: Fences
    control_plane: ControlPlane

    def rules(self) -> Rules:
        return {ApiKey.DESCRIBE_PRODUCERS: Rule(self.describe, self.tracking.has_topics)}

    async def describe(self, ctx: RequestContext) -> bytes | None:
        request: Any = ctx.request()
        items = [
            locate(self.tracking, topic.name, int(partition))
            for topic in request.topics
            for partition in topic.partition_indexes
        ]
        response = await ctx.forward()
        if all(item.route(self.tracking).kind is RouteKind.CLASSIC for item in items):
            return response
        answer: Any = await decoded_response(
            ctx.connection, response, ctx.header.api_key, ctx.header.api_version
        )
        found = {
            (topic.name, int(row.partition_index)): row
            for topic in answer.topics
            for row in topic.partitions
        }
        rows = await self._rows(ctx, items, found)
        return await ctx.respond_of(
            replace(
                answer,
                topics=tuple(
                    replace(
                        topic,
                        partitions=tuple(
                            rows.get((topic.name, int(row.partition_index)), row)
                            for row in topic.partitions
                        ),
                    )
                    for topic in answer.topics
                ),
            ),
            len(items),
        )

    async def _rows(
        self,
        ctx: RequestContext,
        items: Iterable[RequestedPartition],
        found: Mapping[tuple[str, int], Any],
    ) -> dict[tuple[str, int], Any]:
        """Those that are not the broker's, by topic and partition."""
        api = messages(ctx.header.api_key, ctx.header.api_version)
        rows, suffixes = {}, []

        def put(item: RequestedPartition, code: int, producers: Iterable[Any] = ()) -> None:
            rows[str(item.key), item.partition] = api.response_part(
                "PartitionResponse",
                partition_index=item.partition,
                error_code=error(code),
                error_message=None,
                active_producers=tuple(producers),
            )

        for item in items:
            row, rule = found.get((str(item.key), item.partition)), self._answer(item)
            if row is None or row.error_code in KAFKAS_WORD or rule.whose is Whose.KAFKA:
                continue
            stopped = refusal_when_stopped(self.tracking, item.route(self.tracking))
            if stopped is not None or rule.whose is Whose.REFUSED or item.log is None:
                put(item, stopped or rule.error or KafkaErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif rule.whose is Whose.SUFFIX or not await self._stays_true(item, item.log):
                suffixes.append((item, item.log))
        if not suffixes:
            return rows
        code, producers = KafkaErrorCode.NONE, {}
        try:
            wanted = list({log for _, log in suffixes})
            producers = await self.control_plane.describe_producers(wanted, MOST)
        except TidelineError as failure:
            code = failure_code(failure)
        if sum(map(len, producers.values())) >= MOST:
            log.warning("describe_producers.more_than_are_shown", shown=MOST)
        for item, at in suffixes:
            if self._answer(item).whose is not Whose.SUFFIX:
                put(item, KafkaErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                put(item, code, (_state(api, p) for p in producers.get(at, ())))
        return rows

    def _answer(self, item: RequestedPartition) -> ApiAnswer:
        return answer_to(DESCRIBE_PRODUCERS, item.route(self.tracking))

    async def _stays_true(self, item: RequestedPartition, at: TopicIdPartition) -> bool:
        """Whether B0 is unset still: else the broker has told whom it knew at B0."""
        return await self.fences.confirmed(at) and item.route(self.tracking).in_kafka


def _state(api: Any, producer: LogProducer) -> Any:
    return api.response_part(
        "ProducerState",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=-1,
        current_txn_start_offset=-1,
    )
