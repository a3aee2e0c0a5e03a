"""DeleteRecords over the whole log: Kafka deletes below B0, the control plane from B0 on.

What always holds: B0 does not move, and nothing at or past B0 is asked of Kafka.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tideline.control_plane.errors import OffsetOutOfRange
from tideline.domain.request_handling import Behaviour, KafkaErrorCode, Request, handling
from tideline.domain.routing import PartitionRoute
from tideline.errors import TidelineError
from tideline.gateway.context import GatewayServices, RequestContext
from tideline.gateway.handlers.split import Item, Shape, SplitRequest, failure_code
from tideline.gateway.interception import ApiKey, Rule, Rules
from tideline.gateway.tracked import TrackedParts

SHAPE = Shape(
    ApiKey.DELETE_RECORDS,
    "DeleteRecordsTopic",
    "DeleteRecordsTopicResult",
    "DeleteRecordsPartitionResult",
    "partition_index",
    extra=("timeout",),
)
HIGH_WATERMARK = -1
"""``DeleteRecordsRequest.HIGH_WATERMARK``: everything."""


async def handle(context: RequestContext, services: GatewayServices) -> bytes | None:
    """Answer one DeleteRecords request."""
    parts = services.tracked
    split = SplitRequest(context, parts.tracking, SHAPE)
    if not split.is_tracked:
        return await context.forward()
    rows: dict[Item, Any] = {}
    kafkas: list[tuple[Item, Any]] = []
    in_suffix: list[Item] = []
    for item in split.items:
        route = item.at.route(parts.tracking)
        rule = handling(route.kind, Request.DELETE_RECORDS)
        if rule.behaviour is Behaviour.REFUSE:
            rows[item] = split.row(item, rule.error, low_watermark=-1)
        elif rule.behaviour is Behaviour.PASS:
            kafkas.append((item, item.row))
        elif rule.behaviour is Behaviour.GATE:
            if parts.tracking.lease_valid():
                kafkas.append((item, item.row))
            else:
                code = KafkaErrorCode.REQUEST_TIMED_OUT
                rows[item] = split.row(item, code, low_watermark=-1)
        else:
            if _reaches_suffix(item, route):
                in_suffix.append(item)
            if route.boundary > 0:
                kafkas.append((item, _prefix_row(item, route)))
    rows |= await split.forward(kafkas)
    for item in in_suffix:
        if item not in rows or int(rows[item].error_code) == 0:
            rows[item] = await _delete_in_suffix(split, item, parts)
    return split.respond(rows)


def _reaches_suffix(item: Item, route: PartitionRoute) -> bool:
    offset = int(item.row.offset)
    return offset == HIGH_WATERMARK or offset > route.boundary or route.boundary == 0


def _prefix_row(item: Item, route: PartitionRoute) -> Any:
    return replace(item.row, offset=route.boundary) if _reaches_suffix(item, route) else item.row


async def _delete_in_suffix(split: SplitRequest, item: Item, parts: TrackedParts) -> Any:
    assert item.at.log is not None
    try:
        start = await parts.control_plane.delete_records(item.at.log, int(item.row.offset))
    except OffsetOutOfRange:
        return split.row(item, KafkaErrorCode.OFFSET_OUT_OF_RANGE, low_watermark=-1)
    except TidelineError as failure:
        return split.row(item, failure_code(failure), low_watermark=-1)
    return split.row(item, low_watermark=start)


RULES: Rules = {ApiKey.DELETE_RECORDS: Rule(handle)}
