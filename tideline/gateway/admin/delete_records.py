"""DeleteRecords over the whole log: Kafka deletes below B0, the control plane from B0 on.

What always holds: B0 does not move, and nothing at or past B0 is asked of Kafka. The low watermark
of an answer is the first offset that the whole log still has.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import ListOffsetsKind
from tideline.domain.answers import DELETE_ALL, READ_AGAIN, Asked, Behaviour, asked_by_deletion
from tideline.domain.ids import TopicIdPartition
from tideline.domain.prefix import past_gap
from tideline.domain.request_handling import FIND_ERRORS, KafkaErrorCode, PartitionRoute, RouteKind
from tideline.errors import TidelineError
from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules
from tideline.gateway.per_partition import (
    ApiNames,
    PartitionEntry,
    SplitRequest,
    Twice,
    failure_code,
)
from tideline.gateway.prefix_leader import PrefixLeaders
from tideline.gateway.rights import TopicRights
from tideline.gateway.tracking.quiesce import Fences
from tideline.gateway.tracking.view import TrackingView

log = structlog.get_logger()
NAMES = ApiNames(
    ApiKey.DELETE_RECORDS,
    "DeleteRecordsTopic",
    "DeleteRecordsTopicResult",
    "DeleteRecordsPartitionResult",
    "partition_index",
    Twice.LAST,
    extra=("timeout",),
)


@dataclass(frozen=True, slots=True)
class DeleteRecordsHandler:
    """Serves DeleteRecords."""

    tracking: TrackingView
    fences: Fences
    control_plane: ControlPlane
    leaders: PrefixLeaders
    rights: TopicRights = field(default_factory=TopicRights)

    def rules(self) -> Rules:
        return {ApiKey.DELETE_RECORDS: Rule(self.delete_records, self.tracking.has_topics)}

    async def delete_records(self, context: RequestContext) -> bytes | None:
        split = SplitRequest(context, self.tracking, NAMES, self.leaders, _asked)
        if not split.is_tracked:
            return await context.forward()
        await split.authorize(self.rights)
        rows: dict[PartitionEntry, Any] = {}
        kafkas: list[tuple[PartitionEntry, Any]] = []
        split_logs: set[PartitionEntry] = set()
        for item in split.items:
            route, rule = item.at.route(self.tracking), split.rule(item)
            if rule.behaviour is Behaviour.REFUSE:
                rows[item] = split.row(item, rule.error, low_watermark=-1)
            elif rule.behaviour in (Behaviour.PASS, Behaviour.GATE):
                kafkas.append((item, item.row))
            elif (refused := await self._refused(item, route)) is not KafkaErrorCode.NONE:
                rows[item] = split.row(item, refused, low_watermark=-1)
            else:
                split_logs.add(item)
                if rule.asks_kafka:
                    kafkas.append((item, _prefix_row(item, route)))
        told = await split.forward(kafkas)
        for item in split.items:
            if item in split_logs:
                rows[item] = await self._whole_log(split, item, told.get(item))
            elif item in told:
                rows[item] = await self._told(split, item, told[item])
        return await split.respond(rows)

    async def _told(self, split: SplitRequest, item: PartitionEntry, row: Any) -> Any:
        """Kafka's answer, unless B0 was set meanwhile or may be set without our knowing: then
        neither its log start nor that an offset is out of range need be true of the whole log."""
        if item.at.route(self.tracking).kind is RouteKind.CLASSIC:
            return row
        confirmed = item.at.log is not None and await self.fences.confirmed(item.at.log)
        if confirmed and item.at.route(self.tracking).in_kafka:
            return row
        return split.row(item, READ_AGAIN, low_watermark=-1)

    async def _refused(self, item: PartitionEntry, route: PartitionRoute) -> KafkaErrorCode:
        """Why nothing may be deleted, asked before Kafka deletes what lies below B0."""
        if not _reaches_suffix(item.row, route) or int(item.row.offset) == DELETE_ALL:
            return KafkaErrorCode.NONE
        assert item.at.log is not None
        try:
            end = await self.control_plane.list_offsets(item.at.log, ListOffsetsKind.LATEST)
        except TidelineError as failure:
            return failure_code(failure)
        code = FIND_ERRORS.get(end.error, KafkaErrorCode.KAFKA_STORAGE_ERROR)
        if code is KafkaErrorCode.NONE and int(item.row.offset) > end.offset:
            return KafkaErrorCode.OFFSET_OUT_OF_RANGE
        return code

    async def _whole_log(self, split: SplitRequest, item: PartitionEntry, prefix: Any) -> Any:
        """The answer for a partition with B0. ``prefix``: Kafka's, if anything lies below B0."""
        route, offset = item.at.route(self.tracking), int(item.row.offset)
        assert item.at.log is not None
        if prefix is not None:
            code, low_watermark = int(prefix.error_code), int(prefix.low_watermark)
            if code == KafkaErrorCode.OFFSET_OUT_OF_RANGE and offset >= DELETE_ALL:
                # No offset up to B0 is out of range but at a broker that is behind (schedule 3).
                return split.row(item, KafkaErrorCode.NOT_LEADER_OR_FOLLOWER, low_watermark=-1)
            if code != KafkaErrorCode.NONE:
                return prefix
            low_watermark = past_gap(low_watermark, route.prefix_end, route.boundary)
            await self._note_prefix_start(item.at.log, low_watermark)
            if low_watermark < route.boundary:
                return prefix
            offset = offset if _reaches_suffix(item.row, route) else route.boundary
        try:
            start = await self.control_plane.delete_records(item.at.log, offset)
        except TidelineError as failure:
            return split.row(item, failure_code(failure), low_watermark=-1)
        return split.row(item, low_watermark=start)

    async def _note_prefix_start(self, at: TopicIdPartition, log_start: int) -> None:
        """Kafka has deleted already: what is not noted now, the retention job notes later."""
        try:
            await self.control_plane.advance_prefix_start(at, log_start)
        except TidelineError as failure:
            log.warning(
                "delete_records.prefix_start_not_noted",
                log=str(at),
                log_start=log_start,
                why=str(failure),
            )


def _asked(row: Any, route: PartitionRoute) -> Asked:
    return asked_by_deletion(route, int(row.offset))


def _reaches_suffix(row: Any, route: PartitionRoute) -> bool:
    return _asked(row, route) is Asked.DELETE_SUFFIX


def _prefix_row(item: PartitionEntry, route: PartitionRoute) -> Any:
    offset, end = int(item.row.offset), route.prefix_end
    return replace(item.row, offset=end) if offset == DELETE_ALL or offset > end else item.row
