"""Split files of one partition become segments, as Kafka's tiered storage would hold them.

Each segment is made under the partition's merge token: its six files are built on local disk,
checked, uploaded (the log last), and then one transaction makes it count and takes the batch rows
away. Whoever lost the token changes nothing; objects that it left are gc's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import UUID, uuid4

from spark.common.retry import retry
from spark.common.scratch import scratch_directory
from spark.tiering.services import Services
from spark.tiering.split_file import Ended
from tideline.control_plane.errors import (
    StaleClaim,
    TieredRangeGone,
    TieringMismatch,
    TopicDeleted,
    UnknownLog,
)
from tideline.control_plane.tiering_model import (
    MergePlan,
    NewSegment,
    SplitFileToMerge,
    TieringScope,
)
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_state import StoredProducerState
from tideline.domain.remote_log import EpochStart
from tideline.errors import TidelineError, UnreachableError
from tideline.kafka import segment_files
from tideline.kafka.batches import InvalidBatch, iter_batches
from tideline.kafka.segment_files import UPLOAD_ORDER, SegmentFile
from tideline.kafka.segment_writer import InvalidSegment, WrittenSegment, write_segment
from tideline.object_store.client import ObjectMissing

MAX_BATCHES = 100_000
"""Batches of one segment: as many rows go away in its last transaction, in a few seconds."""
SLOWEST_BYTES_PER_S = 4 * 1024 * 1024
"""A claim is held for the time that its bytes take at this rate, beside its usual duration."""
READ_AHEAD_BYTES = 32 * 1024 * 1024
"""Bytes that are read ahead at most, beside the object in hand; one larger object goes alone."""
READERS = 8
"""Many objects are small: their latency, not their bytes, is what reading ahead hides."""
WORKSPACE = "tideline-merge-"
WORKSPACE_LOCK = ".in-use"


class WrongSplitFile(TidelineError):
    """Split files do not hold what Postgres says: they make no segment."""


@dataclass(frozen=True, slots=True)
class MergeOrder:
    """A partition that has enough for a segment, and how its segments are to be."""

    topic: str
    topic_id: UUID
    partition: int
    log_id: int
    pending_bytes: int
    """Split bytes that lie at the frontier without a gap."""
    requested: bool
    limit_bytes: int
    """No segment is larger, unless its first batch is."""
    enough_bytes: int
    """A further segment is made while at least this is left."""
    index_interval_bytes: int
    lineage: tuple[EpochStart, ...] = ()
    """Leader epochs of the whole log, for the checkpoints; empty: only each segment's own."""

    @property
    def log(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """What became of one segment. Offsets inclusive, -1 without a plan; sizes in bytes.
    ``object_*``: objects read and written, however many requests each took."""

    topic: str
    topic_id: str
    partition: int
    ended: Ended
    segment_id: str
    base_offset: int = -1
    last_offset: int = -1
    size_bytes: int = 0
    batches: int = 0
    records: int = 0
    split_files: int = 0
    object_reads: int = 0
    object_writes: int = 0
    elapsed_ms: int = 0
    error: str | None = None


def merge_partition(
    services: Services,
    worker: UUID,
    order: MergeOrder,
    *,
    claim_ms: int,
    root: Path | None = None,
) -> Iterator[MergeOutcome]:
    """Make segments while there is enough for one, until another worker is met or one fails.

    Nothing is yielded when another worker has the partition or nothing is left to merge. What is
    not the partition's fault is not counted and ends the task: :class:`UnreachableError`, refused
    credentials, a missing bucket.
    """
    left = order.pending_bytes
    while left > 0:
        started = time.monotonic()
        outcome = _one_segment(services, worker, order, claim_ms, root)
        if outcome is None:
            return
        yield replace(outcome, elapsed_ms=round((time.monotonic() - started) * 1000))
        left -= outcome.size_bytes
        if outcome.ended != Ended.DONE or not (order.requested or left >= order.enough_bytes):
            return


def _one_segment(
    services: Services, worker: UUID, order: MergeOrder, claim_ms: int, root: Path | None
) -> MergeOutcome | None:
    plane, segment_id = services.plane, uuid4()
    nothing = MergeOutcome(
        order.topic, str(order.topic_id), order.partition, Ended.STALE, str(segment_id)
    )
    hold_ms = claim_ms + 1000 * order.limit_bytes // SLOWEST_BYTES_PER_S
    try:
        plan = retry(
            lambda: plane.begin_merge(
                order.log, worker, hold_ms, segment_id, order.limit_bytes, MAX_BATCHES
            )
        )
    except UnknownLog:
        plan = None
    if plan is None:
        return None
    planned = replace(nothing, base_offset=plan.base_offset, last_offset=plan.last_offset)
    try:
        with workspace(root) as directory:
            written = _build(services, order, plan, directory)
            _upload(services, plan, written)
        segment = _registered(plan, written)
        # The split files are marked; only the collection deletes, and lists what it does.
        retry(lambda: plane.finish_merge(plan.log, plan.token, segment))
    except StaleClaim:
        return planned
    except (TieredRangeGone, TopicDeleted) as error:
        _abandon(services, plan, error)
        return planned
    except (WrongSplitFile, InvalidSegment, InvalidBatch, ObjectMissing, TieringMismatch) as error:
        return _failed(services, plan, planned, error)
    except UnreachableError as error:
        # Another attempt need not wait for the claim to expire; if Postgres is away, it does.
        with suppress(TidelineError):
            plane.abandon_merge(plan.log, plan.token, str(error))
        raise
    return replace(
        planned,
        ended=Ended.DONE,
        size_bytes=written.log_bytes,
        batches=written.batches,
        records=written.records,
        split_files=len(plan.files),
        object_reads=len(plan.files),
        object_writes=len(UPLOAD_ORDER),
    )


def _build(
    services: Services, order: MergeOrder, plan: MergePlan, directory: Path
) -> WrittenSegment:
    written = write_segment(
        directory,
        planned_batches(plan, _bodies(services, plan)),
        base_offset=plan.base_offset,
        leader_epoch=plan.boundary_epoch,
        index_interval_bytes=order.index_interval_bytes,
        lineage=order.lineage,
        producers=[segment_files.ProducerSnapshotEntry(**asdict(p)) for p in plan.producers],
    )
    found = (written.base_offset, written.last_offset, written.log_bytes, written.batches)
    wanted = (plan.base_offset, plan.last_offset, plan.byte_size, plan.batch_count)
    if found != wanted:
        raise WrongSplitFile(
            f"the segment of {plan.topic}-{plan.partition} has (base offset, last offset, bytes, "
            f"batches) {found}, Postgres has committed {wanted}; compare {_names(plan.files)} "
            "with the batches of their offsets"
        )
    return written


def _bodies(services: Services, plan: MergePlan) -> Iterator[bytes]:
    def get(key: str) -> bytes:
        return retry(lambda: services.store.get(services.diskless_bucket, key))

    return read_ahead([(file.object_key, file.byte_size) for file in plan.files], get)


def planned_batches(plan: MergePlan, bodies: Iterable[bytes]) -> Iterator[memoryview]:
    """The bytes of ``bodies`` that lie in the plan's offsets: the first file may begin before
    them, the last may go on after them. Raises :class:`WrongSplitFile`."""
    for file, body in zip(plan.files, bodies, strict=True):
        if len(body) != file.byte_size:
            raise WrongSplitFile(
                f"{file.object_key} has {len(body)} bytes, {file.byte_size} were registered"
            )
        whole = plan.base_offset <= file.base_offset and file.last_offset <= plan.last_offset
        start, end = (0, len(body)) if whole else _inside(plan, body)
        yield memoryview(body)[start:end]


def _inside(plan: MergePlan, body: bytes) -> tuple[int, int]:
    inside = [
        header
        for header in iter_batches(body)
        if plan.base_offset <= header.base_offset and header.last_offset <= plan.last_offset
    ]
    return (inside[0].position, inside[-1].end) if inside else (0, 0)


def _upload(services: Services, plan: MergePlan, written: WrittenSegment) -> None:
    for file in UPLOAD_ORDER:
        key, path = plan.object_key_stem + file, written.files[file]
        retry(lambda key=key, path=path: services.store.upload_file(  # type: ignore[misc]
            services.tiered_bucket, key, path
        ))  # fmt: skip


def _registered(plan: MergePlan, written: WrittenSegment) -> NewSegment:
    return NewSegment(
        segment_id=plan.segment_id,
        base_offset=written.base_offset,
        last_offset=written.last_offset,
        size_bytes=written.log_bytes,
        max_timestamp=written.max_timestamp,
        record_count=written.records,
        batch_count=written.batches,
        offset_index_bytes=written.sizes[SegmentFile.OFFSET_INDEX],
        time_index_bytes=written.sizes[SegmentFile.TIME_INDEX],
        producers=tuple(
            StoredProducerState(
                p.producer_id,
                p.producer_epoch,
                p.last_sequence,
                p.last_offset,
                p.offset_delta,
                p.timestamp,
            )
            for p in written.producers
        ),
    )


def _failed(
    services: Services, plan: MergePlan, outcome: MergeOutcome, error: Exception
) -> MergeOutcome:
    """Count it before the claim is given back, so that nobody takes the partition in between."""
    services.count_failure(TieringScope.MERGE, plan.log_id, str(error))
    _abandon(services, plan, error)
    return replace(outcome, ended=Ended.FAILED, error=str(error))


def _abandon(services: Services, plan: MergePlan, error: Exception) -> None:
    retry(lambda: services.plane.abandon_merge(plan.log, plan.token, str(error)))


def _names(files: tuple[SplitFileToMerge, ...]) -> str:
    names = [file.object_key for file in files[:3]]
    return ", ".join(names) + (f" and {len(files) - 3} more" if len(files) > 3 else "")


def read_ahead(
    objects: Sequence[tuple[str, int]],
    get: Callable[[str], bytes],
    *,
    window_bytes: int = READ_AHEAD_BYTES,
    threads: int = READERS,
) -> Iterator[bytes]:
    """The bodies of ``objects`` (key, size in bytes), in their order. Raises what ``get`` raises,
    at the place of the object that it concerns."""
    under_way: deque[tuple[Future[bytes], int]] = deque()
    ahead = 0
    remaining = deque(objects)
    with ThreadPoolExecutor(threads, thread_name_prefix="read-ahead") as pool:
        try:
            while remaining or under_way:
                while remaining and (not under_way or ahead + remaining[0][1] <= window_bytes):
                    key, size = remaining.popleft()
                    under_way.append((pool.submit(get, key), size))
                    ahead += size
                future, size = under_way.popleft()
                ahead -= size
                yield future.result()
        finally:
            for future, _ in under_way:
                future.cancel()


@contextmanager
def workspace(root: Path | None = None) -> Iterator[Path]:
    """An empty directory under ``root`` (default: one of Spark's local disks), removed at the end.
    What a killed process left there is removed first: its lock died with it."""
    base = root or scratch_directory()
    _sweep(base)
    directory = Path(tempfile.mkdtemp(prefix=WORKSPACE, dir=base))
    lock = os.open(directory / f"{WORKSPACE_LOCK}.new", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Never seen without being held.
        (directory / f"{WORKSPACE_LOCK}.new").rename(directory / WORKSPACE_LOCK)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _sweep(base: Path) -> None:
    """A directory without its lock file is being made right now, or is not ours: left alone."""
    for directory in base.glob(f"{WORKSPACE}*"):
        with suppress(OSError):
            lock = os.open(directory / WORKSPACE_LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)
