"""OffsetForLeaderEpoch over the whole log.

What always holds: a consumer past B0 that validates its position is answered the suffix's high
watermark, whoever leads the partition by now, and is never sent back (schedule 8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tideline.control_plane import ControlPlane
from tideline.domain.answers import Asked, Behaviour, asked_by_epoch
from tideline.domain.ids import TopicIdPartition
from tideline.domain.offset_search import EpochEnd, end_below, end_without_prefix
from tideline.domain.request_handling import KafkaErrorCode, PartitionRoute, RouteKind
from tideline.errors import TidelineError
from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules
from tideline.gateway.per_partition import (
    ApiNames,
    PartitionEntry,
    SplitRequest,
    failure_code,
)
from tideline.gateway.prefix_leader import PrefixLeaders
from tideline.gateway.tracking.quiesce import Fences
from tideline.gateway.tracking.view import TrackingView

NAMES = ApiNames(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    "OffsetForLeaderTopic",
    "OffsetForLeaderTopicResult",
    "EpochEndOffset",
    "partition",
    extra=("replica_id",),
)


@dataclass(frozen=True, slots=True)
class LeaderEpochHandler:
    """Serves OffsetForLeaderEpoch."""

    tracking: TrackingView
    fences: Fences
    control_plane: ControlPlane
    leaders: PrefixLeaders

    def rules(self) -> Rules:
        return {ApiKey.OFFSET_FOR_LEADER_EPOCH: Rule(self.end_of_epoch, self.tracking.has_topics)}

    async def end_of_epoch(self, context: RequestContext) -> bytes | None:
        split = SplitRequest(context, self.tracking, NAMES, self.leaders, _asked)
        if not split.is_tracked:
            return await context.forward()
        ours, kafkas = [], []
        rows: dict[PartitionEntry, Any] = {}
        for item in split.items:
            rule = split.rule(item)
            if rule.behaviour is Behaviour.REFUSE:
                rows[item] = split.row(item, rule.error, leader_epoch=-1, end_offset=-1)
            elif rule.asks_kafka:
                kafkas.append((item, item.row))
            else:
                ours.append(item)
        answers = await split.forward(kafkas)
        told = await asyncio.gather(*(self._told(split, *answer) for answer in answers.items()))
        rows |= dict(zip(answers, told, strict=True))
        rows |= await self._from_suffix(split, ours)
        return await split.respond(rows)

    async def _told(self, split: SplitRequest, item: PartitionEntry, row: Any) -> Any:
        """Kafka's answer as far as it is true of the whole log. While B0 is unknown here it may be
        set: a consumer past it would be sent back to Kafka's log end (schedule 8)."""
        code, log = int(row.error_code), item.at.log
        route = item.at.route(self.tracking)
        if route.kind is RouteKind.CLASSIC:
            return row
        if code == KafkaErrorCode.NONE and route.in_kafka:
            confirmed = log is not None and await self.fences.confirmed(log)
            route = item.at.route(self.tracking)
            if not confirmed and route.in_kafka:
                return split.row(item, split.rule(item).error, leader_epoch=-1, end_offset=-1)
        if route.kind is not RouteKind.SUFFIX or code != KafkaErrorCode.NONE:
            return row
        end = end_below(EpochEnd(int(row.leader_epoch), int(row.end_offset)), route.boundary)
        return replace(row, end_offset=end.end_offset)

    async def _from_suffix(
        self, split: SplitRequest, items: list[PartitionEntry]
    ) -> Mapping[PartitionEntry, Any]:
        """Asked now, not from memory: a stale high watermark would send a consumer back."""
        logs = {item: item.at.log for item in items}
        wanted: list[TopicIdPartition] = [log for log in logs.values() if log is not None]
        code, ends = KafkaErrorCode.NOT_LEADER_OR_FOLLOWER, {}
        try:
            ends = await self.control_plane.high_watermarks(wanted)
        except TidelineError as failure:
            code = failure_code(failure)
        rows = {}
        for item, log in logs.items():
            if log is None or log not in ends:
                rows[item] = split.row(item, code, leader_epoch=-1, end_offset=-1)
                continue
            route, asked = item.at.route(self.tracking), int(item.row.leader_epoch)
            end = end_without_prefix(asked, route.boundary_epoch, route.boundary, ends[log])
            rows[item] = split.row(item, leader_epoch=end.leader_epoch, end_offset=end.end_offset)
        return rows


def _asked(row: Any, route: PartitionRoute) -> Asked:
    return asked_by_epoch(route, int(row.leader_epoch))
