"""What a produce may append to a diskless partition: Kafka's rules, so that no consumer meets a
batch that Kafka would have refused.

Kafka: ``ProduceRequest.validateRecords``, ``LogValidator``, ``UnifiedLog``. What is stricter here,
or not looked at, is in docs/differences.md ("What is checked less than one might wish").
"""

from __future__ import annotations

from dataclasses import dataclass

from tideline.domain.request_handling import KafkaErrorCode
from tideline.domain.topic_configs import CREATE_TIME, LOG_APPEND_TIME, TopicLimits
from tideline.kafka.batches import (
    ZSTD_SINCE_PRODUCE,
    BatchHeader,
    InvalidBatch,
    UnsupportedMagic,
    is_cut_off,
    iter_batches,
    verify_crc,
    with_max_timestamp,
)
from tideline.kafka.records import (
    InvalidRecords,
    RecordSummary,
    UnpackedTooLarge,
    summarize,
    unpacked,
)

MAX_UNPACKED_BYTES = 64 * 1024 * 1024
"""Of the records of one batch, and of one that is as large as its topic allows, if that is more.
Kafka has no such bound: it unpacks as it reads."""
MAX_RECORDS = 1_000_000
"""Of one batch: without the native library reading each costs a microsecond of the process."""
MIN_TIMESTAMP, MAX_TIMESTAMP = -(2**63), 2**63 - 1


class RefusedBatch(ValueError):
    """Not appended: ``code`` is the answer, the message says what is wrong with the batch."""

    def __init__(
        self,
        code: KafkaErrorCode,
        message: str,
        records: tuple[tuple[int, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.records = records
        """Index in the batch, and what is wrong with it, of the first few wrong records."""


@dataclass(slots=True)
class Effort:
    """How much may be read of several batches in a first try. What is read is taken off; a batch
    that needs more than is left uses it up."""

    unpacked: int
    """bytes of records"""
    headers: int
    """of records"""


@dataclass(frozen=True, slots=True)
class ValidBatch:
    """One batch that may be appended, its largest timestamp set right as Kafka does."""

    header: BatchHeader
    records: bytes


def validated(
    records: bytes,
    limits: TopicLimits,
    *,
    produce_version: int,
    now_ms: int,
    effort: Effort | None = None,
    header: BatchHeader | None = None,
) -> ValidBatch:
    """The one batch in ``records``, all that a partition takes of a produce.

    ``effort``: for a first try. ``header``: what :func:`~tideline.kafka.batches.parse_at` reads at
    the beginning, if it was read already.
    Raises :class:`RefusedBatch`, or :class:`~tideline.kafka.records.UnpackedTooLarge` if an effort
    was given and is not enough.
    """
    if header is None or header.end != len(records):
        header = the_one_batch(records, limits, produce_version)
    else:
        check_batch(records, header, limits, produce_version)
    bound = unpacked_bound(limits)
    try:
        earliest, latest = timestamp_range(limits, now_ms)
        if effort is None:
            body = unpacked(records, header, bound)
            summary = summarize(body, header, earliest=earliest, latest=latest)
        else:
            body = unpacked(records, header, effort.unpacked)
            effort.unpacked -= len(body)
            summary = summarize(
                body, header, earliest=earliest, latest=latest, most_headers=effort.headers
            )
            effort.headers -= summary.headers
    except UnpackedTooLarge as error:
        if effort is not None:
            effort.unpacked = effort.headers = 0
            raise
        raise RefusedBatch(KafkaErrorCode.MESSAGE_TOO_LARGE, str(error)) from error
    except InvalidRecords as error:
        if effort is not None:
            effort.headers = 0  # nobody knows how many were read
        wrong = () if error.index is None else ((error.index, str(error)),)
        raise RefusedBatch(KafkaErrorCode.INVALID_RECORD, str(error), wrong) from error
    _check_timestamps(summary, earliest, latest)
    if summary.max_timestamp == header.max_timestamp:
        return ValidBatch(header, records)
    right = with_max_timestamp(records, summary.max_timestamp)
    return ValidBatch(header._replace(max_timestamp=summary.max_timestamp), right)


def unpacked_bound(limits: TopicLimits) -> int:
    """How many bytes of records a batch may have when it is unpacked."""
    return max(MAX_UNPACKED_BYTES, limits.max_message_bytes)


def the_one_batch(records: bytes, limits: TopicLimits, produce_version: int) -> BatchHeader:
    """All rules that need no look at the records themselves. Raises :class:`RefusedBatch`."""
    headers = []
    try:
        for header in iter_batches(records):
            headers.append(header)
            if len(headers) > 1:
                break
    except UnsupportedMagic as error:
        raise RefusedBatch(KafkaErrorCode.INVALID_RECORD, f"only magic 2: {error}") from error
    except InvalidBatch as error:
        # Without a batch a client does not send it again (``ProduceRequest.validateRecords``).
        is_none = not headers and is_cut_off(records)
        code = KafkaErrorCode.INVALID_RECORD if is_none else KafkaErrorCode.CORRUPT_MESSAGE
        raise RefusedBatch(code, str(error)) from error
    if len(headers) != 1:
        number = "more than one batch" if headers else "no batch"
        raise RefusedBatch(KafkaErrorCode.INVALID_RECORD, f"{number}, exactly one is allowed")
    check_batch(records, headers[0], limits, produce_version)
    return headers[0]


def check_batch(
    records: bytes, header: BatchHeader, limits: TopicLimits, produce_version: int
) -> None:
    """The same rules of a batch that is alone in ``records``: base offset, size and CRC in the
    order of ``UnifiedLog.analyzeAndValidateRecords``."""
    if header.base_offset != 0:
        raise RefusedBatch(
            KafkaErrorCode.INVALID_RECORD,
            f"a base offset of {header.base_offset}: offsets are given by the log, a client says 0",
        )
    if header.size > limits.max_message_bytes:
        raise RefusedBatch(
            KafkaErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.size} bytes, max.message.bytes is {limits.max_message_bytes}",
        )
    if not verify_crc(records, header):
        raise RefusedBatch(KafkaErrorCode.CORRUPT_MESSAGE, "the CRC does not match the batch")
    _check_header(header)
    _check_compression(header, produce_version)


def _check_header(header: BatchHeader) -> None:
    """Kafka: ``LogValidator.validateBatch``, which looks at no epoch; the type of the timestamps is
    ``validateTimestamp``'s."""
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
    if header.record_count > MAX_RECORDS:
        raise RefusedBatch(
            KafkaErrorCode.MESSAGE_TOO_LARGE,
            f"{header.record_count} records in a batch, {MAX_RECORDS} are allowed",
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise RefusedBatch(
            KafkaErrorCode.INVALID_RECORD,
            f"sequence {header.base_sequence}, epoch {header.producer_epoch} of a producer with id",
        )
    if header.timestamp_type != CREATE_TIME:
        raise RefusedBatch(KafkaErrorCode.INVALID_TIMESTAMP, "the client set LogAppendTime")


def _check_compression(header: BatchHeader, produce_version: int) -> None:
    """Kafka: ``ProduceRequest.validateRecords``; a codec that it does not have is
    ``UNKNOWN_SERVER_ERROR`` there (``CompressionType.forId``)."""
    try:
        codec = header.compression
    except InvalidBatch as error:
        raise RefusedBatch(KafkaErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error)) from error
    if codec == "zstd" and produce_version < ZSTD_SINCE_PRODUCE:
        raise RefusedBatch(
            KafkaErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce v{ZSTD_SINCE_PRODUCE}, this is v{produce_version}",
        )


def timestamp_range(limits: TopicLimits, now_ms: int) -> tuple[int, int]:
    """Of the records of a topic, in ms, inclusive, of any sign (Kafka:
    ``LogValidator.validateTimestamp``). Under LogAppendTime the timestamps of the client are not
    kept. Java lets what needs more than 64 bits begin again at the other end; here it is refused.
    """
    if limits.timestamp_type == LOG_APPEND_TIME:
        return MIN_TIMESTAMP, MAX_TIMESTAMP
    return (
        max(MIN_TIMESTAMP, now_ms - limits.timestamp_before_max_ms),
        min(MAX_TIMESTAMP, now_ms + limits.timestamp_after_max_ms),
    )


def _check_timestamps(summary: RecordSummary, earliest: int, latest: int) -> None:
    if not summary.out_of_range:
        return
    wrong = tuple(
        (index, f"timestamp {timestamp} ms is not within [{earliest}, {latest}]")
        for index, timestamp in summary.out_of_range
    )
    raise RefusedBatch(
        KafkaErrorCode.INVALID_TIMESTAMP,
        f"record {wrong[0][0]}: {wrong[0][1]}; message.timestamp.before.max.ms and "
        "message.timestamp.after.max.ms say how far from now it may be",
        wrong,
    )
