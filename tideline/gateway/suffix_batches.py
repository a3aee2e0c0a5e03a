"""What the suffix accepts as a record batch, and the record inside a stored batch.

The checks are those of Kafka's ``ProduceRequest.validateRecords`` and ``LogValidator``: a batch
that Kafka would refuse is refused here, with Kafka's error, so that no consumer meets it later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aiokafka.record.default_records import DefaultRecordBatch

from tideline.domain.request_handling import KafkaErrorCode
from tideline.errors import TidelineError
from tideline.kafka.batches import (
    BatchHeader,
    InvalidBatch,
    UnsupportedMagic,
    iter_batches,
    verify_crc,
)

ZSTD_SINCE_PRODUCE = 7
"""KIP-110: zstd is for clients that speak at least Produce v7 (and Fetch v10)."""
ZSTD_SINCE_FETCH = 10


class RefusedBatch(ValueError):
    """Not appended: ``code`` is the answer, the message says what is wrong with the batch."""

    def __init__(self, code: KafkaErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def accept(records: bytes, *, max_message_bytes: int, produce_version: int) -> BatchHeader:
    """The header of the one batch in ``records``. Raises :class:`RefusedBatch`."""
    try:
        headers = list(iter_batches(records))
    except UnsupportedMagic as error:
        raise RefusedBatch(KafkaErrorCode.INVALID_RECORD, f"only magic 2: {error}") from error
    except InvalidBatch as error:
        raise RefusedBatch(KafkaErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if len(headers) != 1:
        raise RefusedBatch(
            KafkaErrorCode.INVALID_RECORD, f"{len(headers)} batches, exactly one is allowed"
        )
    header = headers[0]
    if header.size > max_message_bytes:
        raise RefusedBatch(
            KafkaErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.size} bytes, max.message.bytes is {max_message_bytes}",
        )
    if not verify_crc(records, header):
        raise RefusedBatch(KafkaErrorCode.CORRUPT_MESSAGE, "the CRC does not match the batch")
    _check_header(header)
    _check_compression(records, header, produce_version)
    return header


def _check_header(header: BatchHeader) -> None:
    if header.is_control:
        raise RefusedBatch(KafkaErrorCode.INVALID_RECORD, "control batches are not for clients")
    if header.is_transactional:
        raise RefusedBatch(
            KafkaErrorCode.INVALID_TXN_STATE, "a diskless partition takes no transactional records"
        )
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise RefusedBatch(
            KafkaErrorCode.INVALID_RECORD,
            f"{header.record_count} records but a last offset delta of {header.last_offset_delta}",
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise RefusedBatch(
            KafkaErrorCode.INVALID_RECORD,
            f"sequence {header.base_sequence}, epoch {header.producer_epoch} of a producer with id",
        )
    if header.timestamp_type != "CreateTime":
        raise RefusedBatch(KafkaErrorCode.INVALID_TIMESTAMP, "the client set LogAppendTime")
    if header.max_timestamp < -1 or header.base_timestamp < -1:
        raise RefusedBatch(
            KafkaErrorCode.INVALID_TIMESTAMP, f"max timestamp {header.max_timestamp} ms"
        )


def _check_compression(records: bytes, header: BatchHeader, produce_version: int) -> None:
    try:
        codec = header.compression
    except InvalidBatch as error:
        raise RefusedBatch(KafkaErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error)) from error
    if codec == "zstd" and produce_version < ZSTD_SINCE_PRODUCE:
        raise RefusedBatch(
            KafkaErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce v{ZSTD_SINCE_PRODUCE}, this is v{produce_version}",
        )


def uses_zstd(batches: bytes) -> bool:
    """Whether any of these stored batches needs a client that knows zstd."""
    return any(header.compression == "zstd" for header in iter_batches(batches))


@dataclass(frozen=True, slots=True)
class FoundRecord:
    offset: int
    """inclusive"""
    timestamp: int
    """ms"""


class UndecodableBatch(TidelineError):
    """A stored batch whose records cannot be unpacked. Only a search by timestamp unpacks them."""


def _records(batch: bytes | memoryview, base_offset: int) -> Iterator[FoundRecord]:
    try:
        parsed = DefaultRecordBatch(bytes(batch))
        shift = base_offset - parsed.base_offset
        for record in parsed:
            yield FoundRecord(record.offset + shift, record.timestamp)
    except Exception as error:  # every codec has exceptions of its own
        raise UndecodableBatch(
            f"the records of the batch at offset {base_offset} cannot be unpacked: {error!r}; a "
            "search by timestamp that meets it fails, delete records up to its end to get past it"
        ) from error


def first_record_at(
    batch: bytes | memoryview,
    timestamp: int,
    *,
    base_offset: int = 0,
    log_append_time: int | None = None,
    not_before: int = 0,
) -> FoundRecord | None:
    """The first record of a whole batch at or after ``timestamp`` (ms), or ``None``.

    ``base_offset``: where the batch stands in the log, whatever it says itself.
    ``log_append_time``: the timestamp of all records of a LogAppendTime topic's batch.
    ``not_before``: records below this offset do not count; the batch reaches it.
    Raises :class:`UndecodableBatch`.
    """
    if log_append_time is not None:
        if log_append_time < timestamp:
            return None
        return FoundRecord(max(base_offset, not_before), log_append_time)
    for record in _records(batch, base_offset):
        if record.timestamp >= timestamp and record.offset >= not_before:
            return record
    return None


def largest_record(
    batch: bytes | memoryview,
    *,
    base_offset: int = 0,
    log_append_time: int | None = None,
    not_before: int = 0,
) -> FoundRecord | None:
    """The first record with the largest timestamp among those from ``not_before`` on. The
    arguments are those of :func:`first_record_at`."""
    if log_append_time is not None:
        return FoundRecord(max(base_offset, not_before), log_append_time)
    return largest(*(r for r in _records(batch, base_offset) if r.offset >= not_before))


def largest(*records: FoundRecord | None) -> FoundRecord | None:
    """The one with the largest timestamp, the smallest offset among equals."""
    found = (record for record in records if record is not None)
    return max(found, key=lambda record: (record.timestamp, -record.offset), default=None)
