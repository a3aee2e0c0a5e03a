"""The part of a fetch that Kafka answers: below B0, or while B0 is unset.

What always holds: nothing at or past B0 is returned, known or not (the read ceiling), and a stale
replica's word about its end of the log is not passed on (schedules 2, 3, 4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from typing import Any, TypeVar

import structlog

from tideline.domain.ack_gate import told_as
from tideline.domain.answers import READ_AGAIN, Behaviour, asked_by_fetch, handling
from tideline.domain.ids import TopicPartition
from tideline.domain.leader_choice import may_be_led_elsewhere
from tideline.domain.read_ceiling import (
    NO_CEILING,
    UNKNOWN_CEILING,
    UNKNOWN_EPOCH,
    may_say_out_of_range,
    prefix_answer,
)
from tideline.domain.request_handling import (
    FETCH_FAILURE,
    KafkaErrorCode,
    PartitionRoute,
    RouteKind,
)
from tideline.gateway.context import ApiKey, RequestContext
from tideline.gateway.fetch.from_suffix import HighWatermarks
from tideline.gateway.fetch.late_answers import LateAnswer, LateAnswers
from tideline.gateway.fetch.partition import (
    PartitionFetch,
    PartitionResult,
    asked_of,
    current_route,
)
from tideline.gateway.messages import (
    NO_TIME,
    Messages,
    by_partition,
    error,
    key_fields,
    named,
    without_leader_hint,
)
from tideline.gateway.metrics import LOCAL_READS, TIERED_READS
from tideline.gateway.paired_broker import PairedBroker
from tideline.gateway.per_partition import CONSUMER
from tideline.gateway.room import Room
from tideline.gateway.tracking.quiesce import Fences
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.batches import InvalidBatch, newest_epoch, truncate_at, until_epoch
from tideline.kafka.decoding import WALKED_AT_ONCE_BYTES, decoded_response
from tideline.kafka.protocol import encode_request

T = TypeVar("T")
log = structlog.get_logger()
NO_REPLICA = -1
_SAME = ("replica_id", "replica_state", "isolation_level", "rack_id")
"""Fields of a request that have to be the same for an answer to be the same."""
FINAL_EPOCH = -1
"""Session epoch of a fetch that asks for no session (``FetchMetadata.FINAL_EPOCH``)."""


def replica_of(request: Any) -> int:
    """Whom a Fetch says that it is from: a broker's node id, or a consumer (below 0); in versions
    from 15 on in another field (``FetchRequest.replicaId``)."""
    named = int(getattr(request, "replica_id", CONSUMER))
    state = getattr(request, "replica_state", None)
    return named if state is None else int(state.replica_id)


class KafkaSide:
    """Forwards its partitions to the paired broker and clips what comes back."""

    def __init__(
        self,
        context: RequestContext,
        request: Any,
        api: Messages,
        tracking: TrackingView,
        fences: Fences,
        watermarks: HighWatermarks,
        paired_broker: PairedBroker,
        room: Room,
    ) -> None:
        self._context = context
        self._room = room
        self._tracking = tracking
        self._fences = fences
        self._watermarks = watermarks
        self._paired_broker = paired_broker
        self._request = request
        self.replica = replica_of(request)
        self._api = api
        self._walked_at_once = 0
        """Bytes of the answer that may still be walked on the event loop."""
        self.throttle = NO_TIME
        self.endpoints: dict[int, Any] = {}

    async def ask(
        self, asked: Sequence[PartitionFetch], wait_s: float, min_bytes: int, max_bytes: int
    ) -> dict[PartitionFetch, PartitionResult]:
        """One round: Kafka may wait ``wait_s`` for ``min_bytes``, and answer with ``max_bytes``. If
        the caller goes on without the answer the next fetch of the connection has it."""
        late = self._context.connection.state(LateAnswers)
        await late.settled()
        answers: dict[PartitionFetch, PartitionResult] = {}
        if (before := late.taken()) is not None:
            try:
                answers = await self._of_before(before, asked)
            except asyncio.CancelledError:
                late.keep(before, self._room)
                raise
        size = sum(answer.size for answer in answers.values())
        rest = [one for one in asked if one not in answers]
        left = max_bytes - size
        if not rest or (size and left <= 0):
            return answers | {one: PartitionResult() for one in rest}
        request = self._message(rest, 0.0 if size else wait_s, min_bytes, left)
        header = self._context.header
        frame = encode_request(request, header.correlation_id, header.client_id)
        question = asyncio.ensure_future(self._context.forward(frame))
        try:
            return answers | await self._judged(rest, await asyncio.shield(question))
        except asyncio.CancelledError:
            late.leave(request, question, self._room)
            raise

    async def _of_before(
        self, before: LateAnswer, asked: Sequence[PartitionFetch]
    ) -> dict[PartitionFetch, PartitionResult]:
        """The records that came too late for an earlier fetch, for those that ask the same."""
        if type(before.request) is not type(self._request) or any(
            getattr(before.request, name, None) != getattr(self._request, name, None)
            for name in _SAME
        ):
            return {}
        questions = asked_of(before.request)
        same = [
            one for one in asked if questions.get((one.at.key, one.at.partition)) == one.structure
        ]
        judged = await self._judged(same, before.frame) if same else {}
        return {one: a for one, a in judged.items() if a.size and a.code is KafkaErrorCode.NONE}

    async def _judged(
        self, asked: Sequence[PartitionFetch], frame: bytes
    ) -> dict[PartitionFetch, PartitionResult]:
        """What of Kafka's answer may be told now."""
        response: Any = await decoded_response(
            self._context.connection,
            frame,
            ApiKey.FETCH,
            self._api.version,
            partitions=len(asked),
        )
        self.throttle = max(self.throttle, response.throttle_time)
        for endpoint in getattr(response, "node_endpoints", ()):
            self.endpoints[endpoint.node_id] = endpoint
        failed = int(getattr(response, "error_code", 0))
        rows = by_partition(response.responses, "partitions", "partition_index")
        await self._watermarks.follow(
            [
                one.at.log
                for one in asked
                if one.at.log is not None
                and current_route(one, self._tracking).kind is RouteKind.SUFFIX
            ]
        )
        answers = {}
        self._walked_at_once = WALKED_AT_ONCE_BYTES
        for one in asked:
            row = rows.get((one.at.key, one.at.partition))
            if row is None:
                code = KafkaErrorCode.NOT_LEADER_OR_FOLLOWER
                answers[one] = PartitionResult(code, settled=True) if failed else PartitionResult()
            else:
                answers[one] = await self._clipped(one, row)
        return answers

    def _message(
        self, asked: Sequence[PartitionFetch], wait_s: float, min_bytes: int, max_bytes: int
    ) -> Any:
        prefix = any(one.at.route(self._tracking).kind is RouteKind.SUFFIX for one in asked)
        return self._api.request(
            **{
                name: getattr(self._request, name)
                for name in ("replica_id", "replica_state", "isolation_level")
                if hasattr(self._request, name)
            },
            rack_id=getattr(self._request, "rack_id", ""),
            max_wait=timedelta(milliseconds=int(wait_s * 1000)),
            min_bytes=1 if prefix else min_bytes,
            max_bytes=max_bytes,
            session_id=0,
            session_epoch=FINAL_EPOCH,
            # A topic comes again behind another one: what is served first is what is asked first.
            topics=tuple(
                self._api.request_part(
                    "FetchTopic",
                    **key_fields(key),
                    partitions=tuple(one.structure for one in group),
                )
                for key, group in groupby(asked, lambda one: one.at.key)
            ),
            forgotten_topics_data=(),
        )

    async def _clipped(self, asked: PartitionFetch, row: Any) -> PartitionResult:
        """Kafka's answer as far as it may be returned by what is known now. Bytes that are no
        batches are their partition's trouble alone."""
        try:
            return await self._as_far_as_known(asked, row)
        except InvalidBatch as damaged:
            log.error(
                "fetch.prefix_damaged",
                log=str(asked.at.log),
                offset=asked.offset,
                error=str(damaged),
                remedy="look at the replica's log and at its remote segments",
            )
            return PartitionResult.refusal(FETCH_FAILURE)

    async def _as_far_as_known(self, asked: PartitionFetch, row: Any) -> PartitionResult:
        route = current_route(asked, self._tracking)
        code = int(row.error_code)
        if route.kind is RouteKind.CLASSIC:
            settled = code != 0 or _sent_on(row)
            return PartitionResult(records=row.records, relayed=row, settled=settled)
        at, wanted = asked.at.log, asked_by_fetch(route, asked.offset)
        rule = handling(wanted, route, self._tracking.lease)
        if rule.behaviour is Behaviour.REFUSE or at is None:
            return PartitionResult.refusal(named(rule.error, asked.at.key))
        if code == KafkaErrorCode.OFFSET_OUT_OF_RANGE:
            return PartitionResult.refusal(await self._out_of_range(asked, route))
        if told_as(code) != code:
            return PartitionResult.refusal(KafkaErrorCode(told_as(code)))
        if code != 0:
            # Kafka's leader need not be who Metadata names here.
            told = without_leader_hint(row) if may_be_led_elsewhere(route) else row
            return PartitionResult(relayed=told, settled=True)
        epoch = UNKNOWN_EPOCH
        if route.in_kafka:
            epoch = await self._leader_epoch(asked, row)
            await self._fences.observe(at, int(row.high_watermark), epoch)
            route = current_route(asked, self._tracking)
        limit = self._fences.ceiling_of(at, route)
        if limit == UNKNOWN_CEILING:
            return PartitionResult.refusal(READ_AGAIN)
        if row.records:
            # A round of a long poll that finds nothing has read nothing.
            (TIERED_READS if route.kind is RouteKind.SUFFIX else LOCAL_READS).inc()
        if limit == NO_CEILING:
            return PartitionResult(records=row.records, relayed=row, settled=_sent_on(row))
        ceiling = self._fences.of(at).ceiling
        if (
            route.in_kafka
            and self.replica == CONSUMER
            and limit >= int(row.high_watermark)
            and not ceiling.asks(int(row.high_watermark), epoch)
        ):
            return PartitionResult(records=row.records, relayed=row, settled=_sent_on(row))
        # Both as they are now: what is confirmed while the batches are walked is for later rounds.
        newest = ceiling.leader_epoch
        records = await self._walked(truncate_at, row.records or b"", limit)
        if route.in_kafka:
            records = await self._walked(until_epoch, records, newest)
        if route.kind is not RouteKind.SUFFIX:
            # Nothing new is to be had below the ceiling: the answer waits for B0 like the rest.
            return _below_ceiling(row, records, limit, settled=_sent_on(row))
        return await self._prefix(asked, route, row, records)

    async def _leader_epoch(self, asked: PartitionFetch, row: Any) -> int:
        """The leader's epoch, which the client has named and the broker did not refuse; of a client
        that does not name one, which any negative number says (``FetchRequest.optionalEpoch``), the
        newest epoch of what was returned."""
        named = int(getattr(asked.structure, "current_leader_epoch", UNKNOWN_EPOCH))
        if named >= 0:
            return named
        return await self._walked(newest_epoch, row.records or b"")

    async def _walked(self, walk: Callable[..., T], records: Any, *bound: int) -> T:
        """What ``walk`` finds in the batches, beside the event loop once an answer has many."""
        if len(records) > self._walked_at_once:
            return await self._context.beside_the_loop(walk, records, *bound)
        self._walked_at_once -= len(records)
        return walk(records, *bound)

    async def _prefix(
        self, asked: PartitionFetch, route: PartitionRoute, row: Any, records: Any
    ) -> PartitionResult:
        stale = prefix_answer(
            fetch_offset=asked.offset,
            boundary=route.boundary,
            broker_high_watermark=int(row.high_watermark),
            empty=not len(row.records or b""),
        )
        if stale is not KafkaErrorCode.NONE:
            return PartitionResult.refusal(stale)
        assert asked.at.log is not None
        end = max(route.boundary, self._watermarks.known(asked.at.log))
        changed = replace(
            row,
            records=bytes(records),
            high_watermark=end,
            last_stable_offset=end,
        )
        # A read that ends at B0 does not wait for more: what follows is in the suffix.
        settled = bool(len(records)) or _sent_on(row)
        return PartitionResult(records=changed.records, relayed=changed, settled=settled)

    async def _out_of_range(self, asked: PartitionFetch, route: PartitionRoute) -> KafkaErrorCode:
        """Passed on only where it cannot come from a broker that is behind (schedule 3)."""
        topic, at = asked.at.topic, asked.at.log
        log_start = None
        confirmed = route.in_kafka and at is not None and await self._fences.confirmed(at)
        if topic is not None and route.kind is RouteKind.SUFFIX:
            named = TopicPartition(topic.name, asked.at.partition)
            asked_of = self._context.connection.broker_id
            log_start = await self._paired_broker.log_start(named, asked_of)
            if log_start is None and may_be_led_elsewhere(route):
                log_start = await self._paired_broker.log_start_of_leader(named)
        is_true = may_say_out_of_range(
            route,
            lease_valid=self._tracking.lease_valid(),
            confirmed=confirmed,
            fetch_offset=asked.offset,
            log_start=log_start,
        )
        if is_true:
            return KafkaErrorCode.OFFSET_OUT_OF_RANGE
        return KafkaErrorCode.NOT_LEADER_OR_FOLLOWER


def _sent_on(row: Any) -> bool:
    """No records, but a replica that is nearer to the consumer (KIP-392), or where its log and the
    leader's part (KIP-595): answered at once, as Kafka does."""
    if int(getattr(row, "preferred_read_replica", NO_REPLICA)) != NO_REPLICA:
        return True
    diverging = getattr(row, "diverging_epoch", None)
    return diverging is not None and int(diverging.epoch) != UNKNOWN_EPOCH


def _below_ceiling(row: Any, records: Any, limit: int, *, settled: bool) -> PartitionResult:
    changed = replace(
        row,
        error_code=error(KafkaErrorCode.NONE),
        records=bytes(records),
        high_watermark=min(int(row.high_watermark), limit),
        last_stable_offset=min(int(row.last_stable_offset), limit),
    )
    return PartitionResult(records=changed.records, relayed=changed, settled=settled)
