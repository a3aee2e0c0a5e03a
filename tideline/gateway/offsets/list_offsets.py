"""ListOffsets over the whole log: Kafka below B0, the suffix from B0 on.

What always holds: no offset of Kafka's log at or past B0 is told (schedules 2 and 3), and a search
by timestamp answers with the smallest offset of both regions (seed 000 "ListOffsets semantics").
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tideline.control_plane.model import (
    FindBatchesRequest,
    ListOffsetsKind,
    SuffixOffset,
    TrackedPartition,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.offset_search import (
    NOTHING,
    Candidate,
    SpecialTimestamp,
    WrongSide,
    below,
    earliest,
    latest_of_maxima,
    smallest,
)
from tideline.domain.read_ceiling import NO_CEILING, UNKNOWN_CEILING
from tideline.domain.request_handling import (
    FIND_ERRORS,
    Behaviour,
    KafkaErrorCode,
    Request,
    handling,
)
from tideline.domain.routing import PartitionRoute
from tideline.errors import TidelineError
from tideline.gateway.assembly import TrackedParts
from tideline.gateway.context import GatewayServices, RequestContext
from tideline.gateway.interception import ApiKey, Rule, Rules
from tideline.gateway.per_partition import Item, Shape, SplitRequest, failure_code
from tideline.kafka.batches import FoundRecord

SHAPE = Shape(
    ApiKey.LIST_OFFSETS,
    "ListOffsetsTopic",
    "ListOffsetsTopicResponse",
    "ListOffsetsPartitionResponse",
    "partition_index",
    extra=("replica_id", "isolation_level", "timeout"),
)
_SUFFIX_ALONE = frozenset({SpecialTimestamp.LATEST, SpecialTimestamp.MAX_TIMESTAMP})


class SuffixRefused(Exception):
    """The control plane said no; ``code`` is the answer."""

    def __init__(self, code: KafkaErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


async def handle(context: RequestContext, services: GatewayServices) -> bytes | None:
    """Answer one ListOffsets request."""
    parts = services.tracked
    split = SplitRequest(context, parts.tracking, SHAPE)
    if not split.is_tracked:
        return await context.forward()
    to_kafka = [
        (item, item.row)
        for item in split.items
        if _asks_kafka(item.at.route(parts.tracking), int(item.row.timestamp))
    ]
    answers = dict(await split.forward(to_kafka))
    rows = await asyncio.gather(
        *(_answer(split, item, answers.get(item), parts) for item in split.items)
    )
    return split.respond(dict(zip(split.items, rows, strict=True)))


def _asks_kafka(route: PartitionRoute, timestamp: int) -> bool:
    match handling(route.kind, Request.LIST_OFFSETS).behaviour:
        case Behaviour.PASS | Behaviour.GATE:
            return True
        case Behaviour.SPLIT:
            return route.boundary > 0 and timestamp not in _SUFFIX_ALONE
        case _:
            return False


async def _answer(split: SplitRequest, item: Item, from_kafka: Any, parts: TrackedParts) -> Any:
    """The structure for one partition; its route may have changed while Kafka was asked."""
    route = item.at.route(parts.tracking)
    rule = handling(route.kind, Request.LIST_OFFSETS)
    timestamp = int(item.row.timestamp)
    if rule.behaviour is Behaviour.REFUSE:
        return split.row(item, rule.error, timestamp=-1, offset=-1, leader_epoch=-1)
    if from_kafka is not None and int(from_kafka.error_code) != 0:
        return from_kafka
    if rule.behaviour is Behaviour.PASS and from_kafka is not None:
        return from_kafka
    log = item.at.log
    if log is None or (from_kafka is None and _asks_kafka(route, timestamp)):
        code = KafkaErrorCode.NOT_LEADER_OR_FOLLOWER
        return split.row(item, code, timestamp=-1, offset=-1, leader_epoch=-1)
    if rule.behaviour is Behaviour.GATE:
        return _below_ceiling(split, item, from_kafka, log, route, parts)
    try:
        prefix = _candidate(from_kafka) if from_kafka is not None else None
        found = await _whole_log(item, log, route, timestamp, prefix, parts)
    except SuffixRefused as refused:
        return split.row(item, refused.code, timestamp=-1, offset=-1, leader_epoch=-1)
    except WrongSide:
        code = KafkaErrorCode.KAFKA_STORAGE_ERROR
        return split.row(item, code, timestamp=-1, offset=-1, leader_epoch=-1)
    except TidelineError as failure:
        return split.row(item, failure_code(failure), timestamp=-1, offset=-1, leader_epoch=-1)
    return split.row(
        item, timestamp=found.timestamp, offset=found.offset, leader_epoch=found.leader_epoch
    )


def _candidate(row: Any) -> Candidate:
    return Candidate(int(row.offset), int(row.timestamp), int(getattr(row, "leader_epoch", -1)))


def _below_ceiling(
    split: SplitRequest,
    item: Item,
    row: Any,
    log: TopicIdPartition,
    route: PartitionRoute,
    parts: TrackedParts,
) -> Any:
    """B0 is unset, or set without our knowing: nothing past what was seen before is told."""
    timestamp = int(item.row.timestamp)
    if timestamp == SpecialTimestamp.LATEST:
        lease_valid = parts.tracking.lease_valid()
        parts.fences.of(log).ceiling.observe(int(row.offset), lease_valid=lease_valid)
    limit = parts.fences.ceiling_of(log, route)
    if limit == NO_CEILING:
        return row
    if limit == UNKNOWN_CEILING:
        code = KafkaErrorCode.NOT_LEADER_OR_FOLLOWER
        return split.row(item, code, timestamp=-1, offset=-1, leader_epoch=-1)
    if timestamp == SpecialTimestamp.LATEST:
        return replace(row, offset=min(int(row.offset), limit))
    if timestamp >= 0 or timestamp == SpecialTimestamp.MAX_TIMESTAMP:
        return row if int(row.offset) < limit else replace(row, offset=-1, timestamp=-1)
    return row


async def _whole_log(
    item: Item,
    log: TopicIdPartition,
    route: PartitionRoute,
    timestamp: int,
    prefix: Candidate | None,
    parts: TrackedParts,
) -> Candidate:
    """The answer for a partition whose B0 is known. ``prefix``: Kafka's, if it was asked."""
    kafka = prefix if prefix is not None else NOTHING
    match timestamp:
        case SpecialTimestamp.LATEST:
            answer = await parts.control_plane.list_offsets(log, ListOffsetsKind.LATEST)
            return Candidate(_checked(answer).offset, leader_epoch=route.boundary_epoch)
        case SpecialTimestamp.EARLIEST | SpecialTimestamp.EARLIEST_LOCAL:
            if below(kafka, route.boundary) is not NOTHING:
                return kafka
            answer = _checked(await parts.control_plane.list_offsets(log, ListOffsetsKind.EARLIEST))
            start = earliest(None, answer.offset, route.boundary)
            return Candidate(start, leader_epoch=route.boundary_epoch)
        case SpecialTimestamp.MAX_TIMESTAMP:
            found, record = await parts.reader.record_of_max_timestamp(log)
            suffix = _suffix_candidate(found, record, route)
            prefix_maximum = _prefix_maximum(item, log)
            whole = latest_of_maxima(prefix_maximum, suffix)
            if whole is prefix_maximum and not await _is_readable(whole.offset, log, route, parts):
                return suffix
            return whole
        case SpecialTimestamp.LATEST_TIERED:
            return replace(kafka, offset=min(kafka.offset, route.boundary - 1))
        case SpecialTimestamp.EARLIEST_PENDING_UPLOAD:
            return below(kafka, route.boundary)
    if below(kafka, route.boundary) is not NOTHING:
        return kafka
    found, record = await parts.reader.first_at_or_after(log, timestamp)
    return smallest(kafka, _suffix_candidate(found, record, route), route.boundary)


def _checked(answer: SuffixOffset) -> SuffixOffset:
    code = FIND_ERRORS.get(answer.error, KafkaErrorCode.KAFKA_STORAGE_ERROR)
    if code is not KafkaErrorCode.NONE:
        raise SuffixRefused(code)
    return answer


def _suffix_candidate(
    answer: SuffixOffset, record: FoundRecord | None, route: PartitionRoute
) -> Candidate:
    _checked(answer)
    if record is None:
        return NOTHING
    return Candidate(record.offset, record.timestamp, route.boundary_epoch)


def _prefix_maximum(item: Item, log: TopicIdPartition) -> Candidate:
    """Kafka forgets its maximum once everything is tiered, so it was kept at B0."""
    row: TrackedPartition | None = (
        item.at.topic.partitions.get(log.partition) if item.at.topic is not None else None
    )
    if row is None or row.prefix_max_timestamp_offset < 0:
        return NOTHING
    return Candidate(row.prefix_max_timestamp_offset, row.prefix_max_timestamp)


async def _is_readable(
    offset: int, log: TopicIdPartition, route: PartitionRoute, parts: TrackedParts
) -> bool:
    """Whether retention has left ``offset`` of the prefix."""
    (rows,) = await parts.reader.find([FindBatchesRequest(log, route.boundary, 1)])
    return offset >= rows.log_start


RULES: Rules = {ApiKey.LIST_OFFSETS: Rule(handle)}
