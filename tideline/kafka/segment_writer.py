"""Builds the files that Kafka would have written for a run of record batches.

The rules are those of Kafka 4.2's ``LogSegment.append`` and ``onBecomeInactiveSegment``: batch by
batch, an entry of ``.index`` and one of ``.timeindex`` before a batch once more than
``index.interval.bytes`` were appended since the last; a time entry carries the largest timestamp
so far and the *last* offset of the first batch that has it; a final time entry when the segment is
closed. So the files do not depend on how batches were grouped into appends.

The ``.log`` goes on as it comes. Memory holds the indexes, 20 bytes for each of their entries, and
one header per producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Protocol

from tideline.domain.offset_search import NO_TIMESTAMP
from tideline.domain.remote_log import EpochStart
from tideline.kafka.batches import BatchHeader, Buffer, InvalidBatch, iter_batches, verify_crc
from tideline.kafka.segment_files import (
    ProducerSnapshotEntry,
    SegmentFile,
    after_batch,
    encode_leader_epochs,
    encode_snapshot,
)
from tideline.kafka.segment_lookup import OFFSET_ENTRY, TIME_ENTRY, TimestampOffset

DEFAULT_INDEX_INTERVAL_BYTES = 4096
"""Kafka's default of ``index.interval.bytes``."""
MAX_INT = 2_147_483_647
"""Positions and relative offsets are 32 bit integers."""


class Sink(Protocol):
    """Where the bytes of a ``.log`` go. They stay as they are: it may keep them."""

    def write(self, some: Buffer, /) -> object: ...


class InvalidSegment(ValueError):
    """What was given cannot be one segment of one log."""


class OffsetGap(InvalidSegment):
    """A batch does not begin where the one before it ended: records are missing or repeated."""

    def __init__(self, expected: int, found: int) -> None:
        kind = "missing" if found > expected else "repeated"
        super().__init__(
            f"offset {expected} must follow but a batch begins at {found}: records are {kind}"
        )
        self.expected = expected
        self.found = found


@dataclass(frozen=True, slots=True)
class WrittenSegment:
    """A finished segment. Offsets inclusive, sizes in bytes, timestamps in ms."""

    base_offset: int
    last_offset: int
    leader_epochs: tuple[EpochStart, ...]
    """Of the segment alone: the first one begins at its base offset."""
    batches: int
    records: int
    max_timestamp: int
    """-1 when no record has a timestamp."""
    max_timestamp_offset: int
    """Last offset of the first batch with that timestamp; the base offset when none has one."""
    producers: tuple[ProducerSnapshotEntry, ...]
    """State at the segment's end, the basis of the next segment's."""
    log_bytes: int
    beside: Mapping[SegmentFile, bytes]
    """The files beside the ``.log``."""


class SegmentWriter:
    """Appends batches to a new segment; :meth:`finish` ends it."""

    def __init__(
        self,
        log: Sink,
        *,
        base_offset: int,
        leader_epoch: int,
        index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
        lineage: Sequence[EpochStart] | None = None,
    ) -> None:
        """``log``: takes the bytes of the ``.log``. ``lineage``: all epochs of the log up to this
        segment, for the checkpoint; without it the segment's own epoch from its base on.

        Raises :class:`InvalidSegment` for a lineage that does not lead to ``leader_epoch``.
        """
        self._base, self._epoch = base_offset, leader_epoch
        self._lineage = tuple(lineage) if lineage else (EpochStart(leader_epoch, base_offset),)
        newest = self._lineage[-1]
        if newest.epoch != leader_epoch or newest.start_offset > base_offset:
            raise InvalidSegment(
                f"the lineage ends with epoch {newest.epoch} from offset {newest.start_offset}, "
                f"the segment has epoch {leader_epoch} from offset {base_offset}"
            )
        self._interval = index_interval_bytes
        self._since_entry = 0
        self._position = 0
        self._next = base_offset
        self._largest = TimestampOffset(NO_TIMESTAMP, base_offset)
        self._indexed_timestamp = NO_TIMESTAMP
        self._batches = self._records = 0
        self._newest: dict[int, BatchHeader] = {}
        self._log, self._index, self._timeindex = log, BytesIO(), BytesIO()

    @property
    def next_offset(self) -> int:
        """The base offset that the next batch must have."""
        return self._next

    @property
    def size(self) -> int:
        """Bytes of the ``.log`` so far."""
        return self._position

    def append(self, batches: Buffer) -> None:
        """Append one or more whole batches, with offsets and leader epoch in place: all of them,
        or none where it raises.

        Raises :class:`OffsetGap`, or :class:`InvalidSegment` for a batch that is damaged, of
        another leader epoch, transactional, or does not fit in a segment.
        """
        following, position, checked = self._next, self._position, list[BatchHeader]()
        try:
            for header in iter_batches(batches):
                self._check(batches, header, following, position)
                checked.append(header)
                following, position = header.last_offset + 1, position + header.size
        except InvalidBatch as error:
            raise InvalidSegment(f"after offset {following - 1}: {error}") from error
        # Only what is in the log is counted: what is registered is what was counted.
        self._log.write(batches)
        for header in checked:
            self._append(header)

    def _check(self, batches: Buffer, header: BatchHeader, following: int, position: int) -> None:
        if header.base_offset != following:
            raise OffsetGap(following, header.base_offset)
        if header.partition_leader_epoch != self._epoch:
            raise InvalidSegment(
                f"the batch at offset {header.base_offset} has leader epoch "
                f"{header.partition_leader_epoch}, the segment {self._epoch}"
            )
        counts = header.record_count >= 1 and header.last_offset_delta == header.record_count - 1
        if not counts and not (header.is_empty and header.last_offset_delta >= 0):
            raise InvalidSegment(
                f"the batch at offset {header.base_offset} has {header.record_count} records "
                f"but a last offset delta of {header.last_offset_delta}"
            )
        if header.is_control or header.is_transactional:
            raise InvalidSegment(
                f"the batch at offset {header.base_offset} is transactional: a suffix has none"
            )
        if position + header.size > MAX_INT or header.last_offset - self._base > MAX_INT:
            raise InvalidSegment(
                f"the batch at offset {header.base_offset} does not fit: a segment ends at "
                f"{MAX_INT} bytes and {MAX_INT} offsets after its base {self._base}"
            )
        if not verify_crc(batches, header):
            raise InvalidSegment(
                f"the batch at offset {header.base_offset} does not match its CRC {header.crc}"
            )

    def _append(self, header: BatchHeader) -> None:
        size, last_offset = header.size, header.last_offset
        if header.max_timestamp > self._largest.timestamp:
            self._largest = TimestampOffset(header.max_timestamp, last_offset)
        if self._since_entry > self._interval:
            self._index.write(OFFSET_ENTRY.pack(last_offset - self._base, self._position))
            self._add_time_entry()
            self._since_entry = 0
        self._since_entry += size
        self._position += size
        self._next = last_offset + 1
        self._batches += 1
        self._records += header.record_count
        if header.producer_id >= 0:
            self._newest[header.producer_id] = header

    def _add_time_entry(self) -> None:
        if self._largest.timestamp > self._indexed_timestamp:
            self._timeindex.write(
                TIME_ENTRY.pack(self._largest.timestamp, self._largest.offset - self._base)
            )
            self._indexed_timestamp = self._largest.timestamp

    def finish(
        self,
        *,
        producers: Iterable[ProducerSnapshotEntry] = (),
        producers_since: int | None = None,
    ) -> WrittenSegment:
        """Write what belongs to the end.

        ``producers``: the state at the base offset. Producers whose last batch is older than
        ``producers_since`` (ms) are left out, as a broker forgets them after
        ``producer.id.expiration.ms``. Raises :class:`InvalidSegment` for a segment without records.
        """
        if not self._batches:
            raise InvalidSegment(f"no batch was appended to the segment at {self._base}")
        self._add_time_entry()
        before = {entry.producer_id: entry for entry in producers}
        newest = {number: after_batch(header) for number, header in self._newest.items()}
        left = tuple(
            entry
            for _, entry in sorted((before | newest).items())
            if producers_since is None or entry.timestamp >= producers_since
        )
        return WrittenSegment(
            base_offset=self._base,
            last_offset=self._next - 1,
            leader_epochs=(EpochStart(self._epoch, self._base),),
            batches=self._batches,
            records=self._records,
            max_timestamp=self._largest.timestamp,
            max_timestamp_offset=self._largest.offset,
            producers=left,
            log_bytes=self._position,
            beside={
                SegmentFile.OFFSET_INDEX: self._index.getvalue(),
                SegmentFile.TIME_INDEX: self._timeindex.getvalue(),
                SegmentFile.TXN_INDEX: b"",
                SegmentFile.SNAPSHOT: encode_snapshot(left),
                SegmentFile.LEADER_EPOCHS: encode_leader_epochs(self._lineage),
            },
        )
