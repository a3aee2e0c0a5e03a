"""Produce: to Kafka behind the ack gate, parked, or to the suffix, partition by partition.

What always holds: a partition's batches of one connection go where they go in the order in which
they came, and an acknowledgement of Kafka passes the ack gate (schedules 1, 2, 6, 10; seed 000
"Produce request handling by state").
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tideline.background import spawn
from tideline.domain.ack_gate import UNKNOWN_OFFSET, AckTicket, is_final, told_as
from tideline.domain.answers import READ_AGAIN, SEND_AGAIN, Asked, Behaviour, LeaseState, handling
from tideline.domain.quotas import QuotaKind
from tideline.domain.request_handling import KafkaErrorCode, RouteKind
from tideline.errors import TidelineError
from tideline.gateway import metrics
from tideline.gateway.context import ApiKey, ClientConnection, RequestContext, Rule, Rules
from tideline.gateway.leaders import LeaderNaming
from tideline.gateway.messages import (
    NO_TIME,
    Messages,
    by_partition,
    group_by_topic,
    key_fields,
    leaves_out,
    locate,
    messages,
    milliseconds,
    named,
)
from tideline.gateway.passing import classic_alone
from tideline.gateway.produce.answering import count_appended, response
from tideline.gateway.produce.appends import AppendDropped
from tideline.gateway.produce.at_once import answer, appended_at_once
from tideline.gateway.produce.examination import Allowance, Examiner
from tideline.gateway.produce.parking import ParkedProduce, ParkingLot
from tideline.gateway.produce.partition import PartitionProduce, ProduceOutcome
from tideline.gateway.produce.wal import RefusedProduces, WalWriter
from tideline.gateway.quotas import ClientQuotas
from tideline.gateway.rights import Judged, TopicRights
from tideline.gateway.tracking.quiesce import Fences, IncarnationFenced
from tideline.gateway.tracking.view import TrackingView
from tideline.gateway.transactions import OpenTransactions
from tideline.kafka.batches import BatchHeader
from tideline.kafka.decoding import AT_ONCE_PARTITIONS, decoded_response
from tideline.kafka.protocol import RequestHeader, encode_request


class ProduceOrder:
    """Of one connection: a produce that waits for a question to Kafka, or until its batches were
    looked into, before it is admitted keeps those behind it waiting."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0
        """Produces that have the turn or wait for it. A lock that was let go of a moment ago is not
        locked although its next holder stands by."""


class ProduceRequest:
    """One produce request whose partitions do not all simply go to Kafka."""

    def __init__(self, context: RequestContext, request: Any, handler: ProduceHandler) -> None:
        self.context = context
        self.request = request
        self._tracking = handler.tracking
        self._fences = handler.fences
        self._parking = handler.parking
        self._leaders = handler.leaders
        self._judged = Judged({})
        self._patience_s = handler.patience_s
        self.messages: Messages = messages(ApiKey.PRODUCE, context.header.api_version)
        self.acks = int(request.acks)
        # Of a partition that is named twice the last batch alone is stored, as with Kafka.
        rows = by_partition(request.topic_data, "partition_data", "index")
        self.all: list[PartitionProduce] = [
            PartitionProduce(
                locate(self._tracking, key, index),
                row.records,
                version=context.header.api_version,
                source=context.connection,
                writer=handler.writer,
                refused=handler.refused,
                examiner=handler.examiner,
                to_kafka=self.to_kafka,
            )
            for (key, index), row in rows.items()
        ]
        self._collecting: list[PartitionProduce] | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self.endpoints: dict[int, Any] = {}
        self.throttle = NO_TIME
        """Kafka's."""
        self.throttle_s = 0.0
        """Ours."""
        self._whole_answer: bytes | None = None
        """Kafka's answer to the whole request."""

    @property
    def is_tracked(self) -> bool:
        return any(part.at.route(self._tracking).kind is not RouteKind.CLASSIC for part in self.all)

    @property
    def is_transactional(self) -> bool:
        return any(part.is_transactional for part in self.all)

    async def authorize(self, rights: TopicRights) -> None:
        """Refuse what the client may not write, before it is told anything else of it."""
        names = {part.at.topic.name for part in self.all if part.at.topic is not None}
        self._judged = await rights.judge(self.context, names)
        for part in self.all:
            if (code := self._judged.refusal(part.at)) is not None:
                part.refuse(code)

    async def refuse_new_transactions(self, transactions: OpenTransactions) -> None:
        """Only a transaction that is open on a partition already may go on there, and none in
        the suffix (seed 000 "Transaction completion")."""
        for part in self.all:
            route, header = part.at.route(self._tracking), part.header
            if route.kind is RouteKind.CLASSIC or header is None or not part.is_transactional:
                continue
            if part.answer.done():
                continue
            if route.in_kafka and part.at.topic is not None:
                try:
                    if await transactions.has_open(
                        self.context.connection.broker_id,
                        part.at.topic.name,
                        part.at.partition,
                        header.producer_id,
                        header.producer_epoch,
                    ):
                        continue
                except TidelineError:
                    part.refuse(READ_AGAIN)
                    continue
            part.refuse_transaction()

    async def examine(self) -> None:
        """Look into the batches that may go to the suffix. What goes to Kafka now is Kafka's to
        judge."""
        allowance = Allowance()
        tracking, waits = self._tracking, {Behaviour.SUFFIX, Behaviour.PARK}

        def due() -> list[PartitionProduce]:
            return [
                part
                for part in self.all
                if not part.answer.done()
                and not part.is_examined
                and handling(Asked.PRODUCE, part.at.route(tracking), tracking.lease).behaviour
                in waits
            ]

        while some := due():  # others may have crossed meanwhile
            for part in some:
                await part.examine(allowance, self.context.on_account)

    def admit(self, max_wait_s: float) -> None:
        """Take every partition on, in order, before anything else on the connection is."""
        self._collecting = []
        for part in self.all:
            part.at = locate(self._tracking, part.at.key, part.at.partition)
            if not part.answer.done():
                self._admit(part, max_wait_s)
        together, self._collecting = self._collecting, None
        if together:
            self._forward(together)

    def _admit(self, part: PartitionProduce, max_wait_s: float) -> None:
        if (code := self._judged.refusal(part.at)) is not None:
            part.refuse(code)  # it joined the tracked set since the client's rights were asked
            return
        # The lease is looked at when its turn comes.
        answer = handling(Asked.PRODUCE, part.at.route(self._tracking), LeaseState.HELD)
        if answer.behaviour is Behaviour.PASS:
            self.to_kafka(part)
        elif self.acks not in (-1, 0, 1):
            part.refuse(KafkaErrorCode.INVALID_REQUIRED_ACKS)
        elif answer.behaviour is Behaviour.REFUSE or part.at.log is None:
            part.refuse(named(answer.error, part.at.key))
        else:
            self._parking.offer(
                part.at.log,
                ParkedProduce(
                    source=self.context.connection,
                    size=len(part.records),
                    batch=part.producer,
                    max_wait_s=max_wait_s,
                    admit=part.admit,
                    refuse=part.refuse,
                    awaited=self.acks != 0,
                ),
            )

    def to_kafka(self, part: PartitionProduce) -> None:
        """Forward it: with the others of the first round, else by itself."""
        if self._collecting is not None:
            self._collecting.append(part)
        else:
            self._forward([part])

    def _forward(self, parts: Sequence[PartitionProduce]) -> None:
        tickets = [
            self._fences.forwarded(part.at.log) if part.at.log is not None else None
            for part in parts
        ]
        if len(parts) == len(self.all) and self.acks != 0:
            answer = self.context.forward()
        else:
            answer = self.context.forward(self._frame(parts))
        task = spawn(self._relay(parts, tickets, answer), "produce-relay")
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)

    def _frame(self, parts: Sequence[PartitionProduce]) -> bytes:
        topics = group_by_topic(
            [
                (
                    part.at.key,
                    self.messages.request_part(
                        "PartitionProduceData", index=part.at.partition, records=part.records
                    ),
                )
                for part in parts
            ]
        )
        message = self.messages.request(
            transactional_id=self.request.transactional_id,
            # Only an answer shows when Kafka is done with it (schedule 6).
            acks=self.acks or 1,
            timeout=self.request.timeout,
            topic_data=tuple(
                self.messages.request_part(
                    "TopicProduceData", **key_fields(key), partition_data=tuple(rows)
                )
                for key, rows in topics
            ),
        )
        header = self.context.header
        return encode_request(message, header.correlation_id, header.client_id)

    async def _relay(
        self,
        parts: Sequence[PartitionProduce],
        tickets: Sequence[AckTicket | None],
        answer: Awaitable[bytes],
    ) -> None:
        waiting = list(zip(parts, tickets, strict=True))
        try:
            frame = await answer
            response: Any = await decoded_response(
                self.context.connection, frame, ApiKey.PRODUCE, self.messages.version
            )
            self.throttle = max(self.throttle, response.throttle_time)
            for endpoint in getattr(response, "node_endpoints", ()):
                self.endpoints[endpoint.node_id] = endpoint
            found = by_partition(response.responses, "partition_responses", "index")
            if len(parts) == len(self.all) and self.acks != 0:
                self._whole_answer = frame
            judged = []
            for part, ticket in waiting:
                if (row := found.get((part.at.key, part.at.partition))) is None:
                    raise leaves_out(part.at)
                judged.append((part, ticket, row))
            waiting.clear()
            await asyncio.gather(*(self._gate(*one) for one in judged))
        except Exception as failure:
            for part in parts:
                part.fail(failure)
        finally:
            for part, ticket in waiting:
                if ticket is not None and part.at.log is not None:
                    self._fences.answered(part.at.log)

    async def _gate(self, part: PartitionProduce, ticket: AckTicket | None, row: Any) -> None:
        """Tell what Kafka answered, unless the ack gate withholds it. An error that ends the
        producer's retries passes the gate as well: the log may be sealed behind B0 by now."""
        code = int(row.error_code)
        relayed = ProduceOutcome(code, relayed=row)
        log = part.at.log
        if ticket is None or log is None:
            part.settle(relayed, "kafka")
            return
        if told_as(code) != code:
            relayed = ProduceOutcome(told_as(code))
        acknowledged = -1
        try:
            if not is_final(code):
                part.settle(relayed, "kafka")
                return
            if part.is_refused_by_seal(code):
                part.settle(ProduceOutcome(SEND_AGAIN), "withheld")
                return
            last = _last_offset(row, part.header)
            if await self._fences.pass_gate(log, ticket, last, self._patience_s):
                acknowledged = last
                part.settle(relayed, "kafka")
            else:
                metrics.ACKS_WITHHELD.inc()
                part.settle(ProduceOutcome(SEND_AGAIN), "withheld")
        except TimeoutError:
            part.settle(ProduceOutcome(SEND_AGAIN), "withheld")
        finally:
            self._fences.answered(log, acknowledged)

    async def outcome(self) -> bytes:
        """Every partition's answer, as the response frame."""
        pending = [part.answer for part in self.all if not part.answer.done()]
        if pending:
            await asyncio.wait(pending, timeout=self._patience_s)
        elif len(self.all) > AT_ONCE_PARTITIONS:
            await asyncio.sleep(0)  # all refused: others have their turn before the answer is made
        outcomes = []
        for part in self.all:
            if not part.answer.done():
                part.refuse(SEND_AGAIN)
            outcomes.append(part.answer.result())
        self._count_bytes(outcomes)
        throttle = self.throttle
        if self.throttle_s > 0:
            throttle = max(throttle, milliseconds(self.throttle_s))
        relayed = all(told.relayed is not None for told in outcomes)
        if relayed and self._whole_answer is not None and throttle == self.throttle:
            return self._whole_answer
        told = [(part.at, outcome) for part, outcome in zip(self.all, outcomes, strict=True)]
        endpoints = tuple(self.endpoints.values())
        return await response(self.context, self.messages, told, throttle, endpoints)

    def _count_bytes(self, outcomes: Sequence[ProduceOutcome]) -> None:
        appended = (
            part.size
            for part, told in zip(self.all, outcomes, strict=True)
            if told.relayed is None and told.code == 0
        )
        count_appended(self.context, self._leaders, sum(appended))

    async def unanswered(self) -> None:
        """acks=0: a failure is reported by the end of the connection only, as Kafka does."""
        outcomes = await asyncio.gather(*(part.answer for part in self.all), return_exceptions=True)
        for part, outcome in zip(self.all, outcomes, strict=True):
            if isinstance(outcome, BaseException) or outcome.code != 0:
                self.context.connection.close(
                    f"a produce with acks=0 to partition {part.at.partition} failed"
                )
                return


@dataclass(frozen=True, slots=True)
class ProduceHandler:
    """Serves Produce (v3 and newer)."""

    tracking: TrackingView
    fences: Fences
    parking: ParkingLot
    refused: RefusedProduces
    writer: WalWriter
    transactions: OpenTransactions
    examiner: Examiner
    leaders: LeaderNaming
    patience_s: float
    """How long a produce may wait for its outcome in the suffix or behind the ack gate."""
    rights: TopicRights
    quotas: ClientQuotas
    _background: set[asyncio.Task[None]] = field(default_factory=set)

    def rules(self) -> Rules:
        has_topics = self.tracking.has_topics
        return {ApiKey.PRODUCE: Rule(self.produce, has_topics, self.passes, self.by_topics)}

    def by_topics(self) -> bool:
        """See :attr:`Rule.by_topics`."""
        return not self.quotas.has(QuotaKind.PRODUCE)

    def passes(self, header: RequestHeader, frame: bytes, connection: ClientConnection) -> bool:
        """See :attr:`Rule.passes`. A produce behind one whose turn has not come waits for it."""
        if self.quotas.has(QuotaKind.PRODUCE):
            return False  # its bytes count
        named = classic_alone(self.tracking, header, frame)
        return named is not None and not connection.state(ProduceOrder).waiting

    async def produce(self, context: RequestContext) -> bytes | None:
        order = context.connection.state(ProduceOrder)
        if not order.waiting and (appended := appended_at_once(context, self)) is not None:
            try:
                return await answer(context, self, appended)
            except AppendDropped as fenced:
                context.connection.close(f"no answer may be given: {fenced}")
                return None
        return await self._piece_by_piece(context, order)

    async def _piece_by_piece(self, context: RequestContext, order: ProduceOrder) -> bytes | None:
        """Each partition as it has to be."""
        request: Any = context.request()
        produce = ProduceRequest(context, request, self)
        throttle_s = self.quotas.record(QuotaKind.PRODUCE, context, len(context.frame))
        if not produce.is_tracked and not order.waiting:
            if produce.acks == 0:
                context.connection.forward_unanswered(context.frame)
                return None
            return await context.forward()
        # Of classic topics alone the broker throttles.
        self.quotas.throttle(QuotaKind.PRODUCE, context, throttle_s)
        produce.throttle_s = throttle_s
        timeout_s = request.timeout.total_seconds()
        max_wait_s = timeout_s if timeout_s > 0 else self.patience_s
        order.waiting += 1
        try:
            async with order.turn:
                await produce.authorize(self.rights)
                if produce.is_transactional:
                    await produce.refuse_new_transactions(self.transactions)
                await produce.examine()
                produce.admit(max_wait_s)
        finally:
            order.waiting -= 1
        if produce.acks == 0:
            task = spawn(produce.unanswered(), "produce-acks-0")
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            return None
        try:
            return await produce.outcome()
        except (IncarnationFenced, AppendDropped) as fenced:
            context.connection.close(f"no answer may be given: {fenced}")
            return None
        except asyncio.CancelledError:
            self.parking.drop(context.connection)
            raise


def _last_offset(row: Any, header: BatchHeader | None) -> int:
    if int(row.base_offset) < 0 or header is None or int(row.error_code) != 0:
        return UNKNOWN_OFFSET
    return int(row.base_offset) + header.last_offset_delta
