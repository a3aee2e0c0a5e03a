"""A suffix of segments and WAL objects over fakes, beside the list of what it holds."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from aiokafka.record.default_records import DefaultRecordBatch

from tests.segment_on_disk import write_segment
from tests.unit.gateway.fakes import (
    LOG,
    FakeObjectStore,
    GatewayPlane,
    Suffix,
    tracked_row,
    tracked_topic,
)
from tests.unit.kafka.segment_batches import EPOCH, Spec, build
from tideline.control_plane.model import BatchCoordinates, FindBatchesRequest, SegmentCoordinates
from tideline.gateway.fetch.object_reader import ObjectCache
from tideline.gateway.fetch.record_search import Searcher
from tideline.gateway.fetch.suffix_reader import UNREADABLE, SuffixReader
from tideline.gateway.unpacking import Unpacking
from tideline.kafka.batches import iter_batches, parse_at, patch
from tideline.kafka.segment_files import SegmentFile

BOUNDARY = 100
ANYBODY = Searcher("anybody", 1 << 26, lambda work: work)


@dataclass(frozen=True)
class Record:
    offset: int
    timestamp: int


def raw(spec: Spec, offset: int) -> bytes:
    """As a producer sent it: without its offset, without LogAppendTime."""
    body = bytearray(build(replace(spec, log_append_time=None), offset))
    patch(body, 0, -1)
    return bytes(body)


def merge(
    store: FakeObjectStore,
    suffix: Suffix,
    count: int,
    *,
    interval: int = 4096,
    leader_epoch: int = EPOCH,
) -> None:
    """Move the first ``count`` WAL batches of ``suffix`` into a segment, as the merge job does."""
    batches, finals = suffix.batches[:count], []
    for batch in batches:
        start = batch.byte_offset
        body = bytearray(store.objects[batch.object_key][start : start + batch.byte_size])
        append_time = batch.append_time if batch.timestamp_type == "LogAppendTime" else None
        patch(body, batch.base_offset, leader_epoch, append_time)
        finals.append(bytes(body))
    base = batches[0].base_offset
    segment_id = uuid4()
    stem = f"segments/orders/{base:020d}-{segment_id}"
    with tempfile.TemporaryDirectory() as directory:
        written = write_segment(
            Path(directory), finals, base_offset=base, leader_epoch=leader_epoch,
            index_interval_bytes=interval,
        )  # fmt: skip
        for file, path in written.files.items():
            store.tiered[stem + file] = path.read_bytes()
    suffix.segments.append(
        SegmentCoordinates(
            segment_id=segment_id,
            object_key_stem=stem,
            base_offset=base,
            last_offset=written.last_offset,
            size_bytes=written.log_bytes,
            max_timestamp=written.max_timestamp,
            offset_index_bytes=written.sizes[SegmentFile.OFFSET_INDEX],
            time_index_bytes=written.sizes[SegmentFile.TIME_INDEX],
        )
    )
    del suffix.batches[:count]


class MergedLog:
    """Batches of ``specs`` from offset 100 on; ``segments`` says how many batches each one has."""

    def __init__(
        self,
        specs: Sequence[Spec],
        segments: Sequence[int] = (),
        *,
        interval: int = 4096,
        cache_bytes: int = 64 << 20,
    ) -> None:
        self.store, self.plane = FakeObjectStore(), GatewayPlane()
        self.plane.put(tracked_topic(tracked_row(boundary=BOUNDARY, boundary_epoch=EPOCH)))
        self.suffix = self.plane.suffix()
        self.cache_bytes = cache_bytes
        self.finals: list[bytes] = []
        offset = BOUNDARY
        for number, spec in enumerate(specs):
            self._append(f"wal-{number // 3}", spec, offset)
            self.finals.append(build(spec, offset, EPOCH))
            offset += spec.offsets
        for count in segments:
            if count and self.suffix.batches:
                merge(
                    self.store,
                    self.suffix,
                    min(count, len(self.suffix.batches)),
                    interval=interval,
                )
        self.end = offset
        self.forget()

    def forget(self) -> None:
        """A gateway that has read nothing yet."""
        self.reader = SuffixReader(
            self.store, self.plane, ObjectCache(self.cache_bytes), Unpacking()
        )
        self.store.gets.clear()

    def _append(self, key: str, spec: Spec, offset: int) -> None:
        body = raw(spec, offset)
        before = self.store.objects.get(key, b"")
        self.store.objects[key] = before + body
        append_time = spec.log_append_time
        self.suffix.batches.append(
            BatchCoordinates(
                object_key=key,
                byte_offset=len(before),
                byte_size=len(body),
                base_offset=offset,
                last_offset=offset + spec.offsets - 1,
                timestamp_type="CreateTime" if append_time is None else "LogAppendTime",
                append_time=9_000 if append_time is None else append_time,
                max_timestamp=spec.max_timestamp,
            )
        )

        self.suffix.high_watermark = offset + spec.offsets

    @property
    def segment(self) -> SegmentCoordinates:
        return self.suffix.segments[0]

    def expected(self, offset: int) -> list[bytes]:
        """Every batch that reaches ``offset``."""
        return [b for b in self.finals if parse_at(b, 0).last_offset >= offset]

    def records(self) -> list[Record]:
        """The readable records, in order."""
        found = [
            Record(record.offset, record.timestamp)
            for batch in self.finals
            for record in DefaultRecordBatch(batch)
        ]
        return [record for record in found if record.offset >= self.suffix.start]

    async def fetch(self, offset: int, max_bytes: int = 1 << 20) -> tuple[str, bytes]:
        """(error, bytes) of one fetch."""
        request = FindBatchesRequest(LOG, offset, max_bytes)
        found = await self.reader.find([request])
        (rows,) = await self.reader.locate([request], found, max_bytes)
        if rows.error != "NONE":
            return rows.error, b""
        (read,) = await self.reader.read([(rows.batches, EPOCH)])
        failed = read.failure is not None and not read.records
        return UNREADABLE if failed else rows.error, read.records

    async def read_on(self, offset: int, max_bytes: int = 1 << 20) -> list[bytes]:
        """What a consumer gets that starts at ``offset``, answer by answer."""
        answers = []
        while offset < self.end:
            error, body = await self.fetch(offset, max_bytes)
            assert error == "NONE"
            headers = list(iter_batches(body))
            assert headers, f"an empty answer at {offset}"
            assert headers[0].last_offset >= offset, "nothing wholly below the wanted offset"
            answers.append(body)
            offset = headers[-1].last_offset + 1
        return answers
