"""One partition of a produce request: where its batch goes, and what its client is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from prometheus_client import Counter

from tideline.domain.ack_gate import is_final, refused_by_seal
from tideline.domain.pipelining import ProducerBatch
from tideline.domain.request_handling import COMMIT_ERRORS, FAILURE_ERRORS, KafkaErrorCode
from tideline.domain.topic_configs import LOG_APPEND_TIME, MAX_MESSAGE_BYTES
from tideline.gateway import metrics
from tideline.gateway.messages import RequestedPartition, error
from tideline.gateway.produce.appends import Append, AppendFailed
from tideline.gateway.produce.examination import Allowance, Examined, Examiner, OnAccount
from tideline.gateway.produce.parking import Admission
from tideline.gateway.produce.wal import RefusedProduces, WalWriter
from tideline.gateway.transactions import refuse_new_transaction
from tideline.kafka.batches import BatchHeader, InvalidBatch, parse_at
from tideline.kafka.produced import RefusedBatch


@dataclass(frozen=True, slots=True)
class ProduceOutcome:
    """What the response says of one partition."""

    code: int
    base_offset: int = -1
    append_time: int = -1
    log_start: int = -1
    message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()
    """Index in the batch, and what is wrong with that record."""
    relayed: Any = None
    """Kafka's own structure, passed on as it is."""

    @property
    def is_plain(self) -> bool:
        """Whether a code and numbers are all."""
        return self.relayed is None and self.message is None and not self.record_errors


class PartitionProduce:
    """One partition of a request: forwarded, parked or appended; ``answer`` has its outcome."""

    def __init__(
        self,
        at: RequestedPartition,
        records: bytes | None,
        *,
        version: int,
        source: object,
        writer: WalWriter,
        refused: RefusedProduces,
        examiner: Examiner,
        to_kafka: Callable[[PartitionProduce], None],
    ) -> None:
        """``source`` is the client's connection; ``to_kafka`` forwards the part at once."""
        self.at = at
        self.records = records if records is not None else b""
        self.size = len(self.records)
        """bytes, as they came"""
        self.header = header_of(self.records)
        self.answer: asyncio.Future[ProduceOutcome] = asyncio.get_running_loop().create_future()
        self._version = version
        self._source = source
        self._writer = writer
        self._refused = refused
        self._examiner = examiner
        self._examined: Examined | None = None
        self._looked = False
        self._to_kafka = to_kafka

    @property
    def producer(self) -> ProducerBatch:
        return ProducerBatch(-1, -1, -1) if self.header is None else producer_of(self.header)

    @property
    def is_transactional(self) -> bool:
        return self.header is not None and self.header.is_transactional

    @property
    def is_examined(self) -> bool:
        return self._looked

    async def examine(self, allowance: Allowance, on_account: OnAccount) -> None:
        """Look into the batch now, so that its turn in the suffix takes no time. The parameters are
        those of :meth:`Examiner.examine`."""
        self._looked = True
        if self.at.topic is not None and not self.is_transactional:
            self._examined = await self._examiner.examine(
                self._source,
                self.records,
                self.header,
                self.at.topic.limits,
                self._version,
                allowance,
                on_account,
            )

    def admit(self, admission: Admission) -> None:
        """Forward or append it now: its turn in the partition's order has come."""
        if admission is Admission.SUFFIX:
            self._append()
        else:
            self._to_kafka(self)

    def refuse(
        self, code: int, message: str | None = None, records: tuple[tuple[int, str], ...] = ()
    ) -> None:
        """Answer ``code``; nothing was appended."""
        self.settle(ProduceOutcome(code, message=message, record_errors=records), "refused")

    def refuse_transaction(self) -> None:
        """With a code after which its client can abort."""
        self.refuse(int(refuse_new_transaction(self._version)))

    def is_refused_by_seal(self, code: int) -> bool:
        """Of ``code``, Kafka's answer, by what Tideline held when the part was forwarded: the seal
        may have gone since. See :func:`tideline.domain.ack_gate.refused_by_seal`."""
        topic = self.at.topic
        if topic is None:
            return False
        sealed, limit = MAX_MESSAGE_BYTES in topic.overrides, topic.limits.max_message_bytes
        return refused_by_seal(code, self.size, sealed=sealed, limit=limit)

    def settle(self, outcome: ProduceOutcome, path: str) -> None:
        """The outcome; the first one counts. ``path`` is for the metric. Behind one that its client
        sends again nothing of its producer is accepted before it, whoever refused it."""
        count_outcome(path, outcome)
        if self.answer.done():
            return
        if self.at.log is not None and not is_final(outcome.code):
            self._refused.refuse((self.at.log, self._source), self.producer)
        self.answer.set_result(outcome)

    def fail(self, failure: BaseException) -> None:
        """There is no answer: the connection ends."""
        if not self.answer.done():
            self.answer.set_exception(failure)
            self.answer.exception()  # a handler whose connection has ended does not look

    def _append(self) -> None:
        topic, log = self.at.topic, self.at.log
        assert topic is not None
        assert log is not None
        if self.is_transactional:
            self.refuse_transaction()
            return
        examined = self._examined or self._examiner.at_once(
            self.records, topic.limits, self._version
        )
        if isinstance(examined, RefusedBatch):
            self.refuse(examined.code, str(examined), examined.records)
            return
        header = examined.header
        append = Append(
            log=log,
            source=self._source,
            batch=examined.records,
            producer=self.producer,
            last_sequence=header.last_sequence,
            record_count=header.record_count,
            max_timestamp=header.max_timestamp,
            timestamp_type=topic.timestamp_type,
            outcome=asyncio.get_running_loop().create_future(),
        )
        outcome = self._writer.append(append)
        self.records, self._examined = b"", None
        outcome.add_done_callback(lambda _: self._appended(append))

    def _appended(self, append: Append) -> None:
        if append.outcome.cancelled():
            return
        try:
            told = outcome_of(append)
        except Exception as failure:
            self.fail(failure)
        else:
            self.settle(told, "suffix")


def header_of(records: bytes) -> BatchHeader | None:
    """Of the batch that they begin with; ``None`` if they do with none."""
    try:
        return parse_at(records, 0)
    except InvalidBatch:
        return None


def producer_of(header: BatchHeader) -> ProducerBatch:
    """Who sent the batch."""
    return ProducerBatch(header.producer_id, header.producer_epoch, header.base_sequence)


def outcome_of(append: Append) -> ProduceOutcome:
    """What is told of a batch that is not under way any more. Raises what the append ended by if
    nothing may be told."""
    try:
        committed = append.outcome.result()
    except AppendFailed as failure:
        return ProduceOutcome(FAILURE_ERRORS[failure.failure], message=str(failure))
    code = COMMIT_ERRORS[committed.error.value]
    if code is KafkaErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        # Clients count on from here: librdkafka makes -1, 0, 1, … of -1, offsets of other records.
        return ProduceOutcome(code, -append.record_count)
    if code is not KafkaErrorCode.NONE:
        return ProduceOutcome(code)
    by_append = append.timestamp_type == LOG_APPEND_TIME
    return ProduceOutcome(
        code,
        committed.base_offset,
        committed.append_time if by_append else -1,
        committed.log_start,
    )


def count_outcome(path: str, outcome: ProduceOutcome) -> None:
    """``path``: where the batch went."""
    _counter(path, int(outcome.code)).inc()


@cache
def _counter(path: str, code: int) -> Counter:
    """Looked up once: a lookup takes a lock and as long as everything else that settles one."""
    return metrics.PRODUCE.labels(path, error(code).name)
