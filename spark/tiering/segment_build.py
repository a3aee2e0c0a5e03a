"""Planned segments are built and uploaded, several of one partition side by side.

A segment's ``.log`` goes to the store while it is written; the five files beside it follow when it
is whole, and it appears last, at once. What a segment says of producers begins with what the one
before it ended with: so its snapshot waits for that one to be written, and for nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Self

from spark.common.merged_objects import NotWhole, why_not_whole
from spark.common.retry import retry
from spark.tiering.log_upload import LogUpload, WrongLength
from spark.tiering.services import Services
from spark.tiering.wal_reads import BatchMismatch, Read, in_segment, reads
from tideline.control_plane.tiering_model import MergePlan
from tideline.domain.remote_log import EpochStart
from tideline.errors import TidelineError
from tideline.kafka.batches import InvalidBatch
from tideline.kafka.segment_files import ProducerSnapshotEntry, SegmentFile
from tideline.kafka.segment_writer import InvalidSegment, SegmentWriter, WrittenSegment
from tideline.object_store.byte_ranges import ByteRange
from tideline.object_store.client import ObjectMissing

Producers = Sequence[ProducerSnapshotEntry]
ReadRanges = Callable[[Sequence[ByteRange]], Generator[bytes]]
"""Of WAL objects, in their order. Raises what a range raises at its place."""
ENDS_EARLY = (BatchMismatch, ObjectMissing)
"""What of a WAL object can be wrong. Everything before it is as committed, and is a segment."""
WRONG = (*ENDS_EARLY, InvalidSegment, InvalidBatch, WrongLength, NotWhole)
"""The partition's own failures. Batches that were right when they were read, and cannot be a
segment, or one of another length than was counted, are nobody's data: nothing is made of them."""


class WrongPlan(TidelineError):
    """What was built is not what was planned."""


class Stopped(TidelineError):
    """Nobody waits for the segment any more."""


@dataclass(frozen=True, slots=True)
class Built:
    """A segment whose six objects are there. ``object_*``: requests that were answered."""

    written: WrittenSegment
    object_reads: int
    bytes_read: int
    object_writes: int
    wrong: Exception | None = None
    """Why it ends before its plan does: the batch behind it is not as committed."""


@dataclass(frozen=True, slots=True)
class SegmentShape:
    """How the segments of a partition are to be."""

    index_interval_bytes: int
    lineage: tuple[EpochStart, ...]


class Builds:
    """The segments of consecutive ``plans``, being built; :attr:`ready` has a future for each. At
    the end, and when one fails, those that are not done stop."""

    def __init__(
        self, services: Services, read: ReadRanges, shape: SegmentShape, plans: Sequence[MergePlan]
    ) -> None:
        self._services, self._read, self._shape = services, read, shape
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(len(plans), thread_name_prefix="segment")
        first: Future[Producers] = Future()
        first.set_result([ProducerSnapshotEntry(**asdict(p)) for p in plans[0].producers])
        known = [first, *(Future[Producers]() for _ in plans)]
        self.ready: list[Future[Built]] = [
            self._pool.submit(self._build, plan, before, after)
            for plan, (before, after) in zip(plans, pairwise(known), strict=True)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._pool.shutdown(cancel_futures=True)

    def _build(self, plan: MergePlan, before: Future[Producers], after: Future[Producers]) -> Built:
        try:
            return self._built(plan, before, after)
        finally:
            if not after.done():
                after.set_exception(Stopped(f"the segment at {plan.base_offset} has failed"))

    def _built(self, plan: MergePlan, before: Future[Producers], after: Future[Producers]) -> Built:
        services = self._services
        key = plan.object_key_stem + SegmentFile.LOG
        with LogUpload(services.store, services.tiered_bucket, key) as log:
            writer = SegmentWriter(
                log,
                base_offset=plan.base_offset,
                leader_epoch=plan.boundary_epoch,
                index_interval_bytes=self._shape.index_interval_bytes,
                lineage=self._shape.lineage,
            )
            asked = list(reads(plan.batches))
            wrong = None
            try:
                self._append(writer, plan, asked)
            except ENDS_EARLY as error:
                if writer.next_offset == plan.base_offset:
                    raise
                wrong = error
            written = writer.finish(producers=before.result())
            if wrong is None:
                _must_be_as_planned(plan, written)
                after.set_result(written.producers)
            self._put_beside(plan, written)
            log.finish(written.log_bytes)
        self._must_be_there(plan, written)
        return Built(
            written,
            object_reads=len(asked),
            bytes_read=sum(read.part.size for read in asked),
            object_writes=log.requests + len(written.beside),
            wrong=wrong,
        )

    def _must_be_there(self, plan: MergePlan, written: WrittenSegment) -> None:
        """What was answered may have been an attempt that another one came behind. Raises
        :class:`NotWhole`. Looked at again before the batches' objects go (``spark/gc``)."""
        services = self._services
        wanted: dict[str, int | None] = {f: len(body) for f, body in written.beside.items()}
        why = why_not_whole(
            services.store,
            services.tiered_bucket,
            plan.object_key_stem,
            {SegmentFile.LOG: written.log_bytes, **wanted},
        )
        if why:
            raise NotWhole(
                f"the objects of segment {plan.object_key_stem} are not what was sent: {why}. It "
                "is made again under another name; `tideline doctor` shows whether the store lets "
                "a late, partial PUT win"
            )

    def _append(self, writer: SegmentWriter, plan: MergePlan, asked: Sequence[Read]) -> None:
        label = f"{plan.topic}-{plan.partition}"
        bodies = self._read([read.part for read in asked])
        with closing(bodies):
            for read, body in zip(asked, bodies, strict=True):
                if self._stopping.is_set():
                    raise Stopped(f"the segment at {plan.base_offset} of {label}")
                for piece in in_segment(read, body, plan.boundary_epoch, label):
                    writer.append(piece)

    def _put_beside(self, plan: MergePlan, written: WrittenSegment) -> None:
        """The five small files, side by side."""
        services = self._services

        def put(file: SegmentFile) -> None:
            key, body = plan.object_key_stem + file, written.beside[file]
            retry(lambda: services.store.put(services.tiered_bucket, key, body))

        with ThreadPoolExecutor(len(written.beside), thread_name_prefix="beside-log") as pool:
            for _ in pool.map(put, written.beside):
                pass


def _must_be_as_planned(plan: MergePlan, written: WrittenSegment) -> None:
    found = (written.base_offset, written.last_offset, written.log_bytes, written.batches)
    wanted = (plan.base_offset, plan.last_offset, plan.byte_size, plan.batch_count)
    if found != wanted:
        raise WrongPlan(
            f"the segment of {plan.topic}-{plan.partition} has (base offset, last offset, bytes, "
            f"batches) {found}, planned were {wanted}: report it, with what became of its batches"
        )
