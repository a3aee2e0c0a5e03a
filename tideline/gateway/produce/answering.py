"""The response to a Produce, out of what every partition of it is told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from tideline.gateway.context import RequestContext
from tideline.gateway.leaders import LeaderNaming
from tideline.gateway.messages import (
    Messages,
    RequestedPartition,
    error,
    group_by_topic,
    in_milliseconds,
    key_fields,
    timestamp,
)
from tideline.gateway.produce.partition import ProduceOutcome
from tideline.kafka.decoding import AT_ONCE_PARTITIONS
from tideline.kafka.produce_answer import RECORD_ERRORS_SINCE, PlainRow, plain_answer

Told = Sequence[tuple[RequestedPartition, ProduceOutcome]]
"""In the order of the request."""


async def response(
    context: RequestContext,
    api: Messages,
    told: Told,
    throttle: timedelta,
    endpoints: Sequence[Any] = (),
) -> bytes:
    """The frame. ``endpoints``: structures of Kafka's own that are told as well."""
    some = len(told) <= AT_ONCE_PARTITIONS
    if some and not endpoints and all(outcome.is_plain for _, outcome in told):
        return plain_answer(
            context.header.correlation_id,
            api.version,
            group_by_topic([(at.key, _plain_row(at, outcome)) for at, outcome in told]),
            in_milliseconds(throttle),
        )
    message = api.response(
        responses=tuple(
            api.response_part(
                "TopicProduceResponse", **key_fields(key), partition_responses=tuple(group)
            )
            for key, group in group_by_topic([(at.key, _row(api, at, o)) for at, o in told])
        ),
        throttle_time=throttle,
        node_endpoints=tuple(endpoints),
    )
    return await context.respond_of(message, len(told))


def count_appended(context: RequestContext, leaders: LeaderNaming, size: int) -> None:
    """Note ``size`` bytes that the suffix took of this request."""
    leaders.count("produced", size, leaders.zones.of(context.header.client_id))


def _plain_row(at: RequestedPartition, told: ProduceOutcome) -> PlainRow:
    return PlainRow(at.partition, told.code, told.base_offset, told.append_time, told.log_start)


def _row(api: Messages, at: RequestedPartition, told: ProduceOutcome) -> Any:
    if told.relayed is not None:
        return told.relayed
    return api.response_part(
        "PartitionProduceResponse",
        index=at.partition,
        error_code=error(told.code),
        base_offset=told.base_offset,
        log_append_time=timestamp(told.append_time),
        log_start_offset=told.log_start,
        record_errors=tuple(
            api.response_part(
                "BatchIndexAndErrorMessage",
                batch_index=index,
                batch_index_error_message=message,
            )
            for index, message in told.record_errors
            if api.version >= RECORD_ERRORS_SINCE
        ),
        error_message=told.message,
    )
