"""ListOffsets over the whole log: Kafka below B0, the suffix from B0 on.

What always holds: no offset of Kafka's log at or past B0 is answered (schedules 2 and 3), and a
search by timestamp answers with the smallest offset of both regions (seed 000 "ListOffsets
semantics"). It goes on into the suffix only behind a leader that has all of the prefix: one that
has lost the end of it, a log gap, finds nothing there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import (
    FindBatchesRequest,
    ListOffsetsKind,
    SuffixOffset,
    TrackedPartition,
)
from tideline.domain.answers import READ_AGAIN, Asked, Behaviour, asked_by_listing
from tideline.domain.ids import TopicIdPartition
from tideline.domain.offset_search import (
    NOTHING,
    Candidate,
    SpecialTimestamp,
    WrongSide,
    below,
    earliest,
    is_known,
    is_of_prefix,
    latest_of_maxima,
    smallest,
)
from tideline.domain.read_ceiling import UNKNOWN_EPOCH
from tideline.domain.request_handling import (
    FIND_ERRORS,
    KafkaErrorCode,
    PartitionRoute,
    RouteKind,
)
from tideline.errors import TidelineError
from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules
from tideline.gateway.fetch.object_reader import PARALLEL_GETS
from tideline.gateway.fetch.record_search import Searcher
from tideline.gateway.fetch.suffix_reader import SuffixReader
from tideline.gateway.offsets.whole_prefix import said_by_whole_leaders
from tideline.gateway.passing import PassesByTopics, always_by_topics
from tideline.gateway.per_partition import (
    CONSUMER,
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
from tideline.kafka.decoding import AT_ONCE_PARTITIONS
from tideline.kafka.produced import unpacked_bound
from tideline.kafka.record_search import FoundRecord

NAMES = ApiNames(
    ApiKey.LIST_OFFSETS,
    "ListOffsetsTopic",
    "ListOffsetsTopicResponse",
    "ListOffsetsPartitionResponse",
    "partition_index",
    Twice.REFUSED,
    extra=("replica_id", "isolation_level", "timeout"),
)


class SuffixRefused(Exception):
    """The control plane said no; ``code`` is the answer."""

    def __init__(self, code: KafkaErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class Searches:
    """Of one connection: how many searches go on at once, each of which holds a batch."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(PARALLEL_GETS)


@dataclass(frozen=True, slots=True)
class ListOffsetsHandler:
    """Serves ListOffsets."""

    tracking: TrackingView
    fences: Fences
    reader: SuffixReader
    control_plane: ControlPlane
    leaders: PrefixLeaders
    rights: TopicRights = field(default_factory=TopicRights)

    def rules(self) -> Rules:
        passes = PassesByTopics(self.tracking)
        has_topics = self.tracking.has_topics
        return {ApiKey.LIST_OFFSETS: Rule(self.list_offsets, has_topics, passes, always_by_topics)}

    async def list_offsets(self, context: RequestContext) -> bytes | None:
        split = SplitRequest(context, self.tracking, NAMES, self.leaders, _asked)
        if not split.is_tracked:
            return await context.forward()
        await split.authorize(self.rights)
        to_kafka = [(item, item.row) for item in split.items if split.rule(item).asks_kafka]
        answers = dict(await split.forward(to_kafka))
        searched = await self._searched(split, answers)
        rows: list[Any] = []
        for at in range(0, len(split.items), AT_ONCE_PARTITIONS):
            some = split.items[at : at + AT_ONCE_PARTITIONS]
            rows += await asyncio.gather(
                *(self._answer(split, item, answers.get(item), searched) for item in some)
            )
        return await split.respond(dict(zip(split.items, rows, strict=True)))

    async def _searched(
        self, split: SplitRequest, answers: Mapping[PartitionEntry, Any]
    ) -> frozenset[PartitionEntry]:
        """Those of which a leader with the whole prefix says that what was searched for by time is
        not in it."""
        beyond = {}
        for item, row in answers.items():
            route = item.at.route(self.tracking)
            if (
                route.kind is RouteKind.SUFFIX
                and int(row.error_code) == KafkaErrorCode.NONE
                and _ends_outside(item, route, _candidate(row))
            ):
                beyond[item] = route
        return await said_by_whole_leaders(split, answers, beyond)

    async def _answer(
        self,
        split: SplitRequest,
        item: PartitionEntry,
        from_kafka: Any,
        searched: frozenset[PartitionEntry],
    ) -> Any:
        """The structure for one partition; its route may have changed while Kafka was asked."""
        route, rule = item.at.route(self.tracking), split.rule(item)
        if rule.behaviour is Behaviour.PASS and from_kafka is not None:
            return from_kafka
        if (code := split.refused(item)) is not None:
            return _refusal(split, item, code)
        if not is_known(int(item.row.timestamp), split.context.header.api_version):
            return _refusal(split, item, KafkaErrorCode.UNSUPPORTED_VERSION)
        if rule.behaviour is Behaviour.REFUSE:
            return _refusal(split, item, rule.error)
        if from_kafka is not None and int(from_kafka.error_code) != KafkaErrorCode.NONE:
            return from_kafka
        log = item.at.log
        if log is None or (from_kafka is None and rule.asks_kafka):
            return _refusal(split, item, READ_AGAIN)
        if rule.behaviour is Behaviour.GATE:
            if await self._may_be_shown(split, item, from_kafka, log):
                return from_kafka
            return _refusal(split, item, rule.error)
        prefix = _candidate(from_kafka) if from_kafka is not None else None
        if prefix and item not in searched and _ends_outside(item, route, prefix):
            return _refusal(split, item, READ_AGAIN)
        try:
            found = await self._whole_log(split, item, log, route, int(item.row.timestamp), prefix)
        except SuffixRefused as refused:
            return _refusal(split, item, refused.code)
        except WrongSide:
            return _refusal(split, item, KafkaErrorCode.KAFKA_STORAGE_ERROR)
        except TidelineError as failure:
            return _refusal(split, item, failure_code(failure))
        return split.row(
            item, timestamp=found.timestamp, offset=found.offset, leader_epoch=found.leader_epoch
        )

    async def _may_be_shown(
        self, split: SplitRequest, item: PartitionEntry, row: Any, log: TopicIdPartition
    ) -> bool:
        """Whether Kafka's answer is true of the whole log. B0 is unset, or set without our knowing:
        then nothing past what was confirmed is answered."""
        offset, timestamp = int(row.offset), int(item.row.timestamp)
        is_record = timestamp >= 0 or timestamp == SpecialTimestamp.MAX_TIMESTAMP
        end = offset + 1 if is_record else offset
        if split.replica_id != CONSUMER:
            # A debugging consumer (-2) is answered the log end: it may be asked, not believed.
            return end <= self.fences.ceiling_of(log, item.at.route(self.tracking))
        if offset < 0:
            # That Kafka has no such record says nothing of a suffix.
            return await self.fences.confirmed(log)
        await self.fences.observe(log, end, int(getattr(row, "leader_epoch", UNKNOWN_EPOCH)))
        route = item.at.route(self.tracking)
        # B0 may have become known meanwhile: then the whole log's answer is another one.
        return route.in_kafka and end <= self.fences.ceiling_of(log, route)

    async def _whole_log(
        self,
        split: SplitRequest,
        item: PartitionEntry,
        log: TopicIdPartition,
        route: PartitionRoute,
        timestamp: int,
        prefix: Candidate | None,
    ) -> Candidate:
        """The answer for a partition whose B0 is known. ``prefix``: Kafka's, if it was asked."""
        kafka = prefix if prefix is not None else NOTHING
        match timestamp:
            case SpecialTimestamp.LATEST:
                answer = await self.control_plane.list_offsets(log, ListOffsetsKind.LATEST)
                return Candidate(_checked(answer).offset, leader_epoch=route.boundary_epoch)
            case SpecialTimestamp.EARLIEST | SpecialTimestamp.EARLIEST_LOCAL:
                if below(kafka, route.prefix_end) is not NOTHING:
                    return kafka
                answer = _checked(
                    await self.control_plane.list_offsets(log, ListOffsetsKind.EARLIEST)
                )
                start = earliest(None, answer.offset, route.boundary)
                return Candidate(start, leader_epoch=route.boundary_epoch)
            case SpecialTimestamp.MAX_TIMESTAMP:
                async with split.context.connection.state(Searches).places:
                    found, record = await self.reader.record_of_max_timestamp(
                        log, searcher_of(split, item)
                    )
                suffix = _suffix_candidate(found, record, route)
                prefix_maximum = _prefix_maximum(item, log, route)
                whole = latest_of_maxima(prefix_maximum, suffix, route.boundary)
                if whole is prefix_maximum and not await self._is_readable(
                    whole.offset, log, route
                ):
                    return suffix
                return whole
            case SpecialTimestamp.LATEST_TIERED:
                return replace(kafka, offset=min(kafka.offset, route.boundary - 1))
            case SpecialTimestamp.EARLIEST_PENDING_UPLOAD:
                return below(kafka, route.prefix_end)
        if below(kafka, route.prefix_end) is not NOTHING:
            return kafka
        async with split.context.connection.state(Searches).places:
            found, record = await self.reader.first_at_or_after(
                log, timestamp, searcher_of(split, item)
            )
        return smallest(NOTHING, _suffix_candidate(found, record, route), route.boundary)

    async def _is_readable(self, offset: int, log: TopicIdPartition, route: PartitionRoute) -> bool:
        """Whether retention has left ``offset`` of the prefix."""
        (rows,) = await self.reader.find([FindBatchesRequest(log, route.boundary, 1)])
        return offset >= rows.log_start


def searcher_of(split: SplitRequest, item: PartitionEntry) -> Searcher:
    assert item.at.topic is not None
    context, limits = split.context, item.at.topic.limits
    return Searcher(context.connection, unpacked_bound(limits), context.on_account)


def _ends_outside(item: PartitionEntry, route: PartitionRoute, prefix: Candidate) -> bool:
    """Whether a search by time found no record that is certainly of the prefix."""
    return asked_by_listing(int(item.row.timestamp)) is Asked.BY_TIME and not is_of_prefix(
        prefix, route.prefix_end, route.boundary_epoch
    )


def _asked(row: Any, route: PartitionRoute) -> Asked:
    return asked_by_listing(int(row.timestamp))


def _refusal(split: SplitRequest, item: PartitionEntry, code: KafkaErrorCode) -> Any:
    return split.row(item, code, timestamp=-1, offset=-1, leader_epoch=-1)


def _candidate(row: Any) -> Candidate:
    return Candidate(int(row.offset), int(row.timestamp), int(getattr(row, "leader_epoch", -1)))


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


def _prefix_maximum(
    item: PartitionEntry, log: TopicIdPartition, route: PartitionRoute
) -> Candidate:
    """Kafka forgets its maximum once everything is tiered, so it was kept at B0. Nothing if its
    record went with the prefix, or lies in a log gap."""
    row: TrackedPartition | None = (
        item.at.topic.partitions.get(log.partition) if item.at.topic is not None else None
    )
    if row is None or not route.has_prefix:
        return NOTHING
    kept = Candidate(row.prefix_max_timestamp_offset, row.prefix_max_timestamp)
    return below(kept, route.prefix_end)
