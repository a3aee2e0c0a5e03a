"""Requests that ask one thing of many partitions: some of Kafka, some answered here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tideline.domain.request_handling import (
    FAILURE_ERRORS,
    Failure,
    KafkaErrorCode,
    PartitionRoute,
    RouteKind,
)
from tideline.errors import TidelineError, UnreachableError
from tideline.gateway.context import ApiKey, RequestContext
from tideline.gateway.messages import (
    NO_TIME,
    RequestedPartition,
    TopicKey,
    error,
    group_by_topic,
    key_fields,
    locate,
    messages,
    topic_key,
)
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.decoding import decoded_response
from tideline.kafka.protocol import encode_request

CONSUMER = -1
"""Replica id of every client that is neither a broker nor a debugging consumer (-2)."""


@dataclass(frozen=True, slots=True)
class ApiNames:
    """The names of an API's structures."""

    api: ApiKey
    request_topic: str
    response_topic: str
    response_partition: str
    index: str
    """The field that holds a partition's number, in request and response."""
    extra: tuple[str, ...] = ()
    """Fields of the request beside its topics."""


@dataclass(frozen=True, slots=True, eq=False)
class PartitionEntry:
    at: RequestedPartition
    row: Any


class SplitRequest:
    """One request, partition by partition."""

    def __init__(self, context: RequestContext, tracking: TrackingView, names: ApiNames) -> None:
        self.context = context
        self.names = names
        self.api = messages(names.api, context.header.api_version)
        request: Any = context.request()
        self._request = request
        self._throttle = NO_TIME
        self.replica_id = int(getattr(request, "replica_id", CONSUMER))
        self.items = [
            PartitionEntry(locate(tracking, topic_key(topic), int(getattr(row, names.index))), row)
            for topic in request.topics
            for row in topic.partitions
        ]
        self.is_tracked = any(
            item.at.route(tracking).kind is not RouteKind.CLASSIC for item in self.items
        )

    async def forward(
        self, items: Sequence[tuple[PartitionEntry, Any]]
    ) -> Mapping[PartitionEntry, Any]:
        """Ask Kafka about ``items``, each with the structure to send; its structures."""
        if not items:
            return {}
        topics = group_by_topic([(item.at.key, row) for item, row in items])
        message = self.api.request(
            **{n: getattr(self._request, n) for n in self.names.extra if hasattr(self._request, n)},
            topics=tuple(
                self.api.request_part(
                    self.names.request_topic, **key_fields(key), partitions=tuple(rows)
                )
                for key, rows in topics
            ),
        )
        header = self.context.header
        frame = await self.context.forward(
            encode_request(message, header.correlation_id, header.client_id)
        )
        response: Any = await decoded_response(frame, self.names.api, self.api.version)
        self._throttle = max(self._throttle, getattr(response, "throttle_time", NO_TIME))
        found: dict[tuple[TopicKey, int], Any] = {
            (topic_key(topic), int(getattr(row, self.names.index))): row
            for topic in response.topics
            for row in topic.partitions
        }
        return {item: found[item.at.key, item.at.partition] for item, _ in items}

    def row(self, item: PartitionEntry, code: int = KafkaErrorCode.NONE, **values: Any) -> Any:
        """A structure of our own for the response."""
        return self.api.response_part(
            self.names.response_partition,
            **{self.names.index: item.at.partition},
            error_code=error(code),
            **values,
        )

    async def respond(self, rows: Mapping[PartitionEntry, Any]) -> bytes:
        """The response, in the order of the request."""
        topics = group_by_topic([(item.at.key, rows[item]) for item in self.items])
        message = self.api.response(
            throttle_time=self._throttle,
            topics=tuple(
                self.api.response_part(
                    self.names.response_topic, **key_fields(key), partitions=tuple(group)
                )
                for key, group in topics
            ),
        )
        return await self.context.respond_of(message, len(self.items))


def refusal_when_stopped(tracking: TrackingView, route: PartitionRoute) -> KafkaErrorCode | None:
    """The answer of every tracked partition while Postgres is another one than was pinned: what it
    says of offsets may be older than what clients were told (schedule 16)."""
    if tracking.stopped is None or route.kind is RouteKind.CLASSIC:
        return None
    return FAILURE_ERRORS[Failure.HARD]


def failure_code(failure: TidelineError) -> KafkaErrorCode:
    """The answer when Postgres or S3 failed (seed 000 "Error semantics")."""
    transient = isinstance(failure, UnreachableError)
    return FAILURE_ERRORS[Failure.TRANSIENT if transient else Failure.HARD]
