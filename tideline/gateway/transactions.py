"""New transactions on tracked topics are refused, so that the drain ends (seed 004).

A transaction that has the partition already goes on. The refusal is an error after which
librdkafka, the Java client, kafka-python and franz-go abort the transaction and can begin another
one elsewhere; fatal or retriable codes would end the producer or let it spin (docs/clients.md).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.describe_producers.v0.response import DescribeProducersResponse
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName, TransactionalId
from kio.static.primitive import i32

from tideline.background import spawn
from tideline.domain.ids import TopicPartition
from tideline.gateway.context import ApiKey, RequestContext, Rule, Rules
from tideline.gateway.messages import nested, no_throttle
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.protocol import decode_response, response_class

ABORTABLE_SINCE = {ApiKey.PRODUCE: 11, ApiKey.ADD_PARTITIONS_TO_TXN: 3}
"""First versions that are told TRANSACTION_ABORTABLE (KIP-890). AddPartitionsToTxn has it from 5,
and clients go up to 3: to those that know the code at all it means the same there."""
BATCHED_SINCE = 4
"""AddPartitionsToTxn carries several transactions from this version on."""
NO_PARTITION = i32(-1)
FRESH_S = 2.0
"""How long an answer of DescribeProducers is used. Once a topic is tracked the set of its open
transactions only shrinks, so an old answer at worst lets a transaction go on that has ended,
which Kafka refuses itself."""
TIMEOUT_MS = 5_000
REMEMBERED = 10_000
"""Refused transactions; those that were refused last. By number and not by time: how long one lives
the cluster says (``transaction.max.timeout.ms``)."""

_Question = tuple[int, TopicPartition]
Producer = tuple[str, int, int]
"""Transactional id, producer id and epoch."""


def refuse_new_transaction(version: int, api_key: int = ApiKey.PRODUCE) -> ErrorCode:
    """The error for a transaction that would begin on a tracked topic.

    At POLICY_VIOLATION librdkafka, kafka-python and Java abort, as at every code that they have no
    rule for; franz-go ends at any but TRANSACTION_ABORTABLE; INVALID_TXN_STATE is fatal to all.
    After TOPIC_AUTHORIZATION_FAILED aiokafka would abort without a word to the coordinator, and its
    next transaction commit what that one wrote elsewhere: better that it ends.
    """
    if version >= ABORTABLE_SINCE[ApiKey(api_key)]:
        return ErrorCode.transaction_abortable
    return ErrorCode.policy_violation


class RefusedTransactions:
    """Transactions that this gateway refused something, until they end. Kept by the gateway of
    their coordinator; a coordinator that moves in between costs the producer its session."""

    def __init__(self) -> None:
        self._known: OrderedDict[Producer, None] = OrderedDict()

    def add(self, producer: Producer) -> None:
        """Something of the producer's present transaction was refused."""
        self._known[producer] = None
        self._known.move_to_end(producer)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def __contains__(self, producer: Producer) -> bool:
        return producer in self._known

    def forget(self, producer: Producer) -> None:
        """Its transaction has ended."""
        self._known.pop(producer, None)


class OpenTransactions:
    """Which producers have a transaction open on a partition, as a broker says."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._asked: dict[_Question, tuple[float, asyncio.Task[frozenset[tuple[int, int]]]]] = {}

    async def has_open(
        self, node: int, topic: str, partition: int, producer_id: int, producer_epoch: int
    ) -> bool:
        """Whether this very producer epoch has written to the partition in a transaction that is
        open, as the broker ``node`` says, which the producer is joined to. With transactions of
        version 2 each transaction has an epoch of its own.

        Raises :class:`tideline.kafka.errors.KafkaUnavailable`, and :class:`KafkaError` when the
        broker has no replica of the partition.
        """
        at = (node, TopicPartition(topic, partition))
        now = asyncio.get_running_loop().time()
        until, asking = self._asked.get(at, (0.0, None))
        if asking is None or now >= until or _failed(asking):
            self._asked = {key: entry for key, entry in self._asked.items() if entry[0] > now}
            asking = spawn(self._ask(*at), "open-transactions")
            self._asked[at] = (now + FRESH_S, asking)
        return (producer_id, producer_epoch) in await asyncio.shield(asking)

    async def _ask(self, node: int, at: TopicPartition) -> frozenset[tuple[int, int]]:
        request = DescribeProducersRequest(
            topics=(TopicRequest(name=TopicName(at.topic), partition_indexes=(i32(at.partition),)),)
        )
        connection = await self._cluster.node(node)
        answer = cast(
            DescribeProducersResponse, await connection.send(request, timeout_ms=TIMEOUT_MS)
        )
        (found,) = answer.topics[0].partitions
        if found.error_code is not ErrorCode.none:
            raise KafkaError(found.error_code, f"producers of {at}")
        return frozenset(
            (int(p.producer_id), int(p.producer_epoch))
            for p in found.active_producers
            if p.current_txn_start_offset >= 0
        )


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


@dataclass(frozen=True, slots=True)
class _Transaction:
    """One transaction of the request, whatever its version."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    topics: tuple[Any, ...]
    verify_only: bool

    def partitions(self) -> Iterable[TopicPartition]:
        for topic in self.topics:
            for partition in topic.partitions:
                yield TopicPartition(topic.name, partition)


@dataclass(frozen=True, slots=True)
class TransactionsHandler:
    """Serves AddPartitionsToTxn and EndTxn."""

    tracking: TrackingView
    refused: RefusedTransactions = field(default_factory=RefusedTransactions)

    def rules(self) -> Rules:
        return {
            ApiKey.ADD_PARTITIONS_TO_TXN: Rule(
                self.add_partitions_to_txn, self.tracking.has_topics
            ),
            ApiKey.END_TXN: Rule(self.end_txn, self.tracking.has_topics),
        }

    async def add_partitions_to_txn(self, ctx: RequestContext) -> bytes | None:
        """Refuse a partition of a tracked topic that is not in the producer's transaction yet; its
        fellows get OPERATION_NOT_ATTEMPTED, as Kafka itself has it.

        Kafka says first what it refuses of the request whatever is tracked, of the transactional
        id and then of the topics: who may not write a topic hears the same of each name.
        """
        request: Any = ctx.request()
        batched = ctx.header.api_version >= BATCHED_SINCE
        transactions = _transactions(request, batched)
        tracked = {t.transactional_id: at for t in transactions if (at := self._tracked(t))}
        if not tracked:
            return await ctx.forward()
        judged: Any = await ctx.forward_message(_adding_nothing(request, batched, tracked))
        if batched and judged.error_code is not ErrorCode.none:
            return ctx.respond(judged)  # of the whole request
        told = _told(judged, batched, transactions)
        refused: dict[str, Any] = {}
        for transaction in transactions:
            if (ours := tracked.get(transaction.transactional_id)) is None:
                continue
            if denied := _denied(transaction, ours, told):
                refused[transaction.transactional_id] = _results(
                    ctx, transaction, denied, ErrorCode.operation_not_attempted
                )
                continue
            open_ = await _in_transaction(ctx, transaction)
            if isinstance(open_, ErrorCode):
                refused[transaction.transactional_id] = _results(ctx, transaction, {}, open_)
            elif new := [at for at in ours if at not in open_]:
                self.refused.add(
                    (
                        transaction.transactional_id,
                        transaction.producer_id,
                        transaction.producer_epoch,
                    )
                )
                code = refuse_new_transaction(ctx.header.api_version, ctx.header.api_key)
                refused[transaction.transactional_id] = _results(
                    ctx,
                    transaction,
                    dict.fromkeys(new, code),
                    ErrorCode.operation_not_attempted,
                )
        if not refused:
            return await ctx.forward()
        schema: Any = response_class(ctx.header.api_key, ctx.header.api_version)
        if not batched:
            (topics,) = refused.values()
            return ctx.respond(
                schema(throttle_time=no_throttle(), results_by_topic_v3_and_below=topics)
            )
        result = nested(schema, "results_by_transaction")
        own = tuple(
            result(transactional_id=TransactionalId(transactional_id), topic_results=topics)
            for transactional_id, topics in refused.items()
        )
        rest = tuple(t for t in request.transactions if t.transactional_id not in refused)
        if not rest:
            return ctx.respond(
                schema(
                    throttle_time=no_throttle(),
                    error_code=ErrorCode.none,
                    results_by_transaction=own,
                )
            )
        answer: Any = await ctx.forward_message(replace(request, transactions=rest))
        return ctx.respond(
            replace(answer, results_by_transaction=answer.results_by_transaction + own)
        )

    def _tracked(self, transaction: _Transaction) -> list[TopicPartition]:
        if transaction.verify_only:
            return []
        return [
            at
            for at in transaction.partitions()
            if self.tracking.topic_by_name(at.topic) is not None
        ]

    async def end_txn(self, ctx: RequestContext) -> bytes | None:
        """Forwarded; only the abort of a transaction to which nothing could be added is answered
        anew.

        librdkafka sends it after a refused AddPartitionsToTxn, and Kafka, which never saw that
        transaction begin, answers INVALID_TXN_STATE, which is fatal to the producer. There is
        nothing to abort, so the abort has succeeded.
        """
        request: Any = ctx.request()
        producer = (request.transactional_id, request.producer_id, request.producer_epoch)
        response = await ctx.forward()
        if producer not in self.refused:
            return response
        answer: Any = decode_response(response, ctx.header.api_key, ctx.header.api_version)
        if answer.error_code is ErrorCode.transactional_id_authorization_failed:
            return response  # of somebody else, who ends nothing
        self.refused.forget(producer)
        if request.committed or answer.error_code is not ErrorCode.invalid_txn_state:
            return response
        return ctx.respond(replace(answer, error_code=ErrorCode.none))


def _transactions(request: Any, batched: bool) -> list[_Transaction]:
    if batched:
        return [
            _Transaction(
                t.transactional_id, t.producer_id, t.producer_epoch, t.topics, t.verify_only
            )
            for t in request.transactions
        ]
    return [
        _Transaction(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            request.v3_and_below_topics,
            False,
        )
    ]


_Told = Mapping[tuple[str, str, int], ErrorCode]
"""What Kafka says, by transactional id, topic and partition."""


def _adding_nothing(
    request: Any, batched: bool, tracked: Mapping[str, Collection[TopicPartition]]
) -> Any:
    """The transactions of the request that name tracked topics, with a partition that no topic has
    in the place of those. Kafka looks at the rights, then whether each partition is there, and adds
    none to a transaction of which one is not (``KafkaApis.handleAddPartitionsToTxnRequest``)."""

    def asked(topics: Iterable[Any], ours: Collection[TopicPartition]) -> tuple[Any, ...]:
        names = {at.topic for at in ours}
        return tuple(
            replace(topic, partitions=(NO_PARTITION,)) if topic.name in names else topic
            for topic in topics
        )

    if not batched:
        (ours,) = tracked.values()
        return replace(request, v3_and_below_topics=asked(request.v3_and_below_topics, ours))
    return replace(
        request,
        transactions=tuple(
            replace(t, topics=asked(t.topics, tracked[t.transactional_id]))
            for t in request.transactions
            if t.transactional_id in tracked
        ),
    )


def _told(answer: Any, batched: bool, transactions: Sequence[_Transaction]) -> _Told:
    by_transaction = (
        {t.transactional_id: t.topic_results for t in answer.results_by_transaction}
        if batched
        else {transactions[0].transactional_id: answer.results_by_topic_v3_and_below}
    )
    return {
        (transactional_id, topic.name, int(row.partition_index)): row.partition_error_code
        for transactional_id, topics in by_transaction.items()
        for topic in topics
        for row in topic.results_by_partition
    }


def _denied(
    transaction: _Transaction, ours: Collection[TopicPartition], told: _Told
) -> dict[TopicPartition, ErrorCode]:
    """What Kafka refuses of the transaction whatever is tracked: nothing if the client may."""
    names = {at.topic for at in ours}
    denied = {}
    for at in transaction.partitions():
        partition = NO_PARTITION if at.topic in names else at.partition
        code = told.get((transaction.transactional_id, at.topic, partition))
        if code is None:
            raise KafkaUnavailable(f"the broker's answer leaves out {at}")
        passes = {ErrorCode.none, ErrorCode.operation_not_attempted}
        if at.topic in names:
            passes.add(ErrorCode.unknown_topic_or_partition)
        if code not in passes:
            denied[at] = code
    return denied


async def _in_transaction(
    ctx: RequestContext, transaction: _Transaction
) -> frozenset[TopicPartition] | ErrorCode:
    """The partitions of the producer's ongoing transaction. The client sent its request to its
    coordinator, so the broker of its own connection is asked, behind what it has asked."""
    request = DescribeTransactionsRequest(
        transactional_ids=(TransactionalId(transaction.transactional_id),)
    )
    answer = cast(DescribeTransactionsResponse, await ctx.forward_message(request))
    if len(answer.transaction_states) != 1:
        raise KafkaUnavailable("the broker's answer leaves out the transaction")
    (found,) = answer.transaction_states
    if found.error_code in _TOLD_AS_IT_IS:
        return found.error_code
    ongoing = (
        found.error_code is ErrorCode.none
        and found.transaction_state == "Ongoing"
        and found.producer_id == transaction.producer_id
        and found.producer_epoch == transaction.producer_epoch
    )
    if not ongoing:
        return frozenset()
    return frozenset(TopicPartition(t.topic, p) for t in found.topics for p in t.partitions)


_TOLD_AS_IT_IS = frozenset(
    {
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    }
)
"""The client finds its coordinator anew, or tries again; or it may not use the transactional id."""


def _results(
    ctx: RequestContext,
    transaction: _Transaction,
    refused: dict[TopicPartition, ErrorCode],
    otherwise: ErrorCode,
) -> tuple[Any, ...]:
    schema: Any = response_class(ctx.header.api_key, ctx.header.api_version)
    if ctx.header.api_version >= BATCHED_SINCE:
        topic_result = nested(nested(schema, "results_by_transaction"), "topic_results")
    else:
        topic_result = nested(schema, "results_by_topic_v3_and_below")
    partition_result = nested(topic_result, "results_by_partition")

    def code(topic: str, partition: int) -> ErrorCode:
        return refused.get(TopicPartition(topic, partition), otherwise)

    return tuple(
        topic_result(
            name=topic.name,
            results_by_partition=tuple(
                partition_result(partition_index=p, partition_error_code=code(topic.name, p))
                for p in topic.partitions
            ),
        )
        for topic in transaction.topics
    )
