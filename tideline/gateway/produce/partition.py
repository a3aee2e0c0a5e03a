"""One partition of a produce request: its way to Kafka or into the WAL, and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tideline.control_plane.model import CommittedBatch
from tideline.domain.pipelining import ProducerBatch
from tideline.domain.request_handling import COMMIT_ERRORS, FAILURE_ERRORS, KafkaErrorCode
from tideline.domain.topic_configs import LOG_APPEND_TIME
from tideline.gateway import metrics
from tideline.gateway.messages import RequestedPartition, error
from tideline.gateway.produce.parking import Gate
from tideline.gateway.produce.wal import Append, AppendFailed, WalWriter
from tideline.gateway.transactions import refuse_new_transaction
from tideline.kafka.batches import (
    BatchHeader,
    InvalidBatch,
    RefusedBatch,
    parse_at,
    validate_produced,
)


@dataclass(frozen=True, slots=True)
class ProduceOutcome:
    """What the response says of one partition."""

    code: int
    base_offset: int = -1
    append_time: int = -1
    log_start: int = -1
    message: str | None = None
    relayed: Any = None
    """Kafka's own structure, passed on as it is."""


class PartitionProduce:
    """One partition of the request, on its way."""

    def __init__(
        self,
        at: RequestedPartition,
        records: bytes | None,
        *,
        version: int,
        source: object,
        writer: WalWriter,
        to_kafka: Callable[[PartitionProduce], None],
    ) -> None:
        """``source`` is the client's connection; ``to_kafka`` forwards the part at once."""
        self.at = at
        self.records = records if records is not None else b""
        self.header = _header(self.records)
        self.answer: asyncio.Future[ProduceOutcome] = asyncio.get_running_loop().create_future()
        self._version = version
        self._source = source
        self._writer = writer
        self._to_kafka = to_kafka

    @property
    def producer(self) -> ProducerBatch:
        header = self.header
        if header is None:
            return ProducerBatch(-1, -1, -1)
        return ProducerBatch(header.producer_id, header.producer_epoch, header.base_sequence)

    @property
    def is_transactional(self) -> bool:
        return self.header is not None and self.header.is_transactional

    def admit(self, gate: Gate) -> None:
        """Its turn has come."""
        if gate is Gate.SUFFIX:
            self._append()
        else:
            self._to_kafka(self)

    def refuse(self, code: int, message: str | None = None) -> None:
        """Not taken on."""
        self.settle(ProduceOutcome(code, message=message), "refused")

    def refuse_transaction(self) -> None:
        """In the code that its client can abort after."""
        self.refuse(int(refuse_new_transaction(self._version)))

    def settle(self, outcome: ProduceOutcome, path: str) -> None:
        """The outcome; the first one counts. ``path`` is for the metric."""
        metrics.PRODUCE.labels(path, error(outcome.code).name).inc()
        if not self.answer.done():
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
        try:
            header = validate_produced(
                self.records,
                max_message_bytes=topic.max_message_bytes,
                produce_version=self._version,
            )
        except RefusedBatch as refused:
            self.refuse(refused.code, str(refused))
            return
        outcome = self._writer.append(
            Append(
                log=log,
                source=self._source,
                batch=self.records,
                producer=self.producer,
                last_sequence=header.last_sequence,
                record_count=header.record_count,
                max_timestamp=header.max_timestamp,
                timestamp_type=topic.timestamp_type,
                outcome=asyncio.get_running_loop().create_future(),
            )
        )
        self.records = b""
        outcome.add_done_callback(self._appended)

    def _appended(self, outcome: asyncio.Future[CommittedBatch]) -> None:
        if outcome.cancelled():
            return
        failure = outcome.exception()
        if failure is None:
            self.settle(self._success(outcome.result()), "suffix")
        elif isinstance(failure, AppendFailed):
            self.settle(
                ProduceOutcome(FAILURE_ERRORS[failure.failure], message=str(failure)), "suffix"
            )
        else:
            self.fail(failure)

    def _success(self, committed: CommittedBatch) -> ProduceOutcome:
        code = COMMIT_ERRORS[committed.error.value]
        if code is not KafkaErrorCode.NONE:
            return ProduceOutcome(code)
        assert self.at.topic is not None
        by_append = self.at.topic.timestamp_type == LOG_APPEND_TIME
        return ProduceOutcome(
            code,
            committed.base_offset,
            committed.append_time if by_append else -1,
            committed.log_start,
        )


def _header(records: bytes) -> BatchHeader | None:
    try:
        return parse_at(records, 0)
    except InvalidBatch:
        return None
