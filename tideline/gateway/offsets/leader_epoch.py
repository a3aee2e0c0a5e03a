"""OffsetForLeaderEpoch over the whole log.

What always holds: a consumer past B0 that validates its position is answered the suffix's high
watermark, whoever leads the partition by now, and is never sent back (schedule 8); nor is one below
B0 by a leader that has lost the end of the prefix, a log gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kio.static.primitive import i64

from tideline.control_plane import ControlPlane
from tideline.domain.answers import READ_AGAIN, Asked, Behaviour, asked_by_epoch
from tideline.domain.ids import TopicIdPartition
from tideline.domain.offset_search import end_below, end_without_prefix
from tideline.domain.request_handling import KafkaErrorCode, PartitionRoute, RouteKind
from tideline.errors import TidelineError
from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules
from tideline.gateway.offsets.whole_prefix import EPOCHS, said_by_whole_leaders
from tideline.gateway.passing import PassesByTopics, always_by_topics
from tideline.gateway.per_partition import PartitionEntry, SplitRequest, failure_code
from tideline.gateway.prefix_leader import PrefixLeaders
from tideline.gateway.rights import TopicRights
from tideline.gateway.tracking.quiesce import Fences
from tideline.gateway.tracking.view import TrackingView


@dataclass(frozen=True, slots=True)
class LeaderEpochHandler:
    """Serves OffsetForLeaderEpoch."""

    tracking: TrackingView
    fences: Fences
    control_plane: ControlPlane
    leaders: PrefixLeaders
    rights: TopicRights = field(default_factory=TopicRights)

    def rules(self) -> Rules:
        passes = PassesByTopics(self.tracking)
        rule = Rule(self.end_of_epoch, self.tracking.has_topics, passes, always_by_topics)
        return {ApiKey.OFFSET_FOR_LEADER_EPOCH: rule}

    async def end_of_epoch(self, context: RequestContext) -> bytes | None:
        split = SplitRequest(context, self.tracking, EPOCHS, self.leaders, _asked)
        if not split.is_tracked:
            return await context.forward()
        await split.authorize(self.rights)
        asked = [(item, item.row) for item in split.items if split.rule(item).asks_kafka]
        answers = await split.forward(asked)
        shown = await asyncio.gather(*(self._shown(split, *a) for a in answers.items()))
        told = dict(zip(answers, shown, strict=True))
        rows: dict[PartitionEntry, Any] = {}
        prefix, ours = {}, []
        # By what is known now: B0's epoch ended there at Kafka, and goes on in the suffix.
        for item in split.items:
            rule = split.rule(item)
            if rule.behaviour is Behaviour.REFUSE:
                rows[item] = _unknown(split, item, rule.error)
            elif not rule.asks_kafka:
                ours.append(item)
            elif item in told:
                prefix[item] = told[item]
            else:
                rows[item] = _unknown(split, item, READ_AGAIN)
        rows |= await self._of_whole_logs(split, prefix)
        rows |= await self._from_suffix(split, ours)
        return await split.respond(rows)

    async def _shown(self, split: SplitRequest, item: PartitionEntry, row: Any) -> Any:
        """Kafka's answer if it may be told. While B0 is unknown here it may be set: a consumer past
        it would be sent back to Kafka's log end (schedule 8)."""
        log = item.at.log
        if int(row.error_code) == KafkaErrorCode.NONE and item.at.route(self.tracking).in_kafka:
            confirmed = log is not None and await self.fences.confirmed(log)
            if not confirmed and item.at.route(self.tracking).in_kafka:
                return _unknown(split, item, split.rule(item).error)
        return row

    async def _of_whole_logs(
        self, split: SplitRequest, answers: Mapping[PartitionEntry, Any]
    ) -> dict[PartitionEntry, Any]:
        """Kafka's answers as far as they are true of the whole log; that an epoch ended below that
        of no leader which has lost the end of its prefix."""
        told = dict(answers)
        below: dict[PartitionEntry, PartitionRoute] = {}
        for item, row in answers.items():
            route = item.at.route(self.tracking)
            if route.kind is not RouteKind.SUFFIX or int(row.error_code) != KafkaErrorCode.NONE:
                continue
            end = end_below(int(row.end_offset), route.prefix_end, route.boundary)
            told[item] = replace(row, end_offset=i64(end))
            if end != route.boundary:
                below[item] = route
        believed = await said_by_whole_leaders(split, answers, below)
        for item in below.keys() - believed:
            told[item] = _unknown(split, item, READ_AGAIN)
        return told

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
            if (rule := split.rule(item)).behaviour is not Behaviour.SUFFIX:
                # A lease that is over: this Postgres may be one that was left behind.
                rows[item] = _unknown(split, item, rule.error or READ_AGAIN)
                continue
            if log is None or log not in ends:
                rows[item] = _unknown(split, item, code)
                continue
            route, asked = item.at.route(self.tracking), int(item.row.leader_epoch)
            end = end_without_prefix(asked, route.boundary_epoch, route.boundary, ends[log])
            rows[item] = split.row(item, leader_epoch=end.leader_epoch, end_offset=end.end_offset)
        return rows


def _unknown(split: SplitRequest, item: PartitionEntry, code: int) -> Any:
    return split.row(item, code, leader_epoch=-1, end_offset=-1)


def _asked(row: Any, route: PartitionRoute) -> Asked:
    return asked_by_epoch(route, int(row.leader_epoch))
