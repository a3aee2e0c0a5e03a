"""One claimed WAL file becomes split files, one for each run of offsets of a partition in it.

Progress is durable file by file: keys are registered before their objects are written, and one
transaction makes the objects count. Killed anywhere, the claim expires and another worker begins
the file anew; what was uploaded until then is gc's.

The gateway checked each batch when it took it, and its coordinates were written in the commit. A
batch that does not say what its coordinates say is therefore corruption or another object: it is
never repaired by guessing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import groupby
from uuid import UUID, uuid4

from spark.common.retry import retry
from spark.tiering.services import Services
from tideline.control_plane.errors import StaleClaim, TieringMismatch, TopicDeleted
from tideline.control_plane.tiering_model import ClaimedBatch, ClaimedFile, SplitFile, TieringScope
from tideline.domain.ids import topic_id_to_base64
from tideline.domain.tiering import contiguous_runs
from tideline.errors import TidelineError, UnreachableError
from tideline.kafka.batches import InvalidBatch, parse_at, patch, verify_crc
from tideline.kafka.segment_files import offset_name
from tideline.object_store.byte_ranges import ByteRange, ReadRanges, coalesce
from tideline.object_store.client import ObjectMissing

PARALLEL_PUTS = 8
MAX_SPLIT_BYTES = 64 * 1024 * 1024
"""A WAL object is far smaller; whoever made it larger still gets split files that fit in memory."""
_REMEDY = "compare the object with a copy of it; nothing of it is tiered before it is right"


class Ended(StrEnum):
    """How the work on one claimed thing ended."""

    DONE = "done"
    STALE = "stale"
    """Another worker has it now: nothing was changed, nothing is wrong."""
    FAILED = "failed"
    """Counted; after some failures in a row it is parked and shown."""


@dataclass(frozen=True, slots=True)
class SplitOutcome:
    """What became of one claimed WAL file. Sizes in bytes, ``object_*`` in requests of which each
    was answered: a request that was repeated counts once."""

    file_id: int
    object_key: str
    ended: Ended
    batches: int = 0
    split_files: int = 0
    object_reads: int = 0
    bytes_read: int = 0
    object_writes: int = 0
    bytes_written: int = 0
    elapsed_ms: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run and its bytes, ready to be stored."""

    file: SplitFile
    body: bytes


def split_key(batch: ClaimedBatch, prefix: str = "") -> str:
    """A new key for a run that begins with ``batch``. ``prefix``: of the installation."""
    topic = topic_id_to_base64(batch.topic_id)
    name = f"{offset_name(batch.base_offset)}-{uuid4().hex}"
    return f"{prefix}split/{topic}/{batch.partition}/{name}"


def split_file(services: Services, worker: UUID, claimed: ClaimedFile) -> SplitOutcome:
    """Split one file that ``worker`` has claimed.

    A run of offsets whose bytes are not what was committed is left out and counted against the
    file; the other runs of the file do not wait for it. What is not the file's fault is not
    counted and ends the task: :class:`UnreachableError`, refused credentials, a missing bucket.
    """
    started = time.monotonic()
    outcome = _attempt(services, worker, claimed)
    return replace(outcome, elapsed_ms=round((time.monotonic() - started) * 1000))


def _attempt(services: Services, worker: UUID, claimed: ClaimedFile) -> SplitOutcome:
    nothing = SplitOutcome(claimed.file_id, claimed.object_key, Ended.STALE)
    try:
        pieces, read, wrong = _cut(services, claimed)
        done = replace(
            nothing,
            ended=Ended.DONE,
            batches=sum(piece.file.batch_count for piece in pieces),
            split_files=len(pieces),
            object_reads=len(read),
            bytes_read=sum(part.size for part in read),
            object_writes=len(pieces),
            bytes_written=sum(piece.file.byte_size for piece in pieces),
        )
        if pieces:
            _store(services, worker, claimed, pieces)
        if wrong is not None:
            return _failed(services, worker, claimed, done, wrong, held=not pieces)
        return done
    except (StaleClaim, TopicDeleted):
        return nothing
    except (BatchMismatch, ObjectMissing, TieringMismatch) as error:
        return _failed(services, worker, claimed, nothing, error, held=True)
    except UnreachableError:
        # Another attempt need not wait for the claim to expire; if Postgres is away, it does.
        with suppress(TidelineError):
            services.plane.release_claim(worker, claimed.file_id, claimed.token)
        raise


def _cut(
    services: Services, claimed: ClaimedFile
) -> tuple[list[_Piece], list[ByteRange], BatchMismatch | None]:
    """The runs of the file that are as committed, what was read, and why others are not.

    Holds the wanted part of one WAL object twice: a gateway closes it at ``wal_max_bytes``.
    """
    bodies = {
        part: retry(partial(_get, services, part))
        for part in coalesce(byte_range(claimed.object_key, b) for b in claimed.batches)
    }
    read = ReadRanges(bodies)
    pieces: list[_Piece] = []
    wrong: BatchMismatch | None = None
    for run in runs(claimed.batches):
        parts = [read.slice(byte_range(claimed.object_key, batch)) for batch in run]
        try:
            for part, batch in zip(parts, run, strict=True):
                check(part, batch, claimed.object_key)
        except BatchMismatch as error:
            wrong = wrong or error
            continue
        pieces.append(
            _Piece(_described(run, services.diskless_prefix), bytes(split_bytes(run, parts)))
        )
    return pieces, list(bodies), wrong


def _get(services: Services, part: ByteRange) -> bytes:
    return services.store.get(services.diskless_bucket, part.key, part.start, part.size)


def _described(run: Sequence[ClaimedBatch], prefix: str) -> SplitFile:
    first, last = run[0], run[-1]
    return SplitFile(
        object_key=split_key(first, prefix),
        topic_id=first.topic_id,
        partition=first.partition,
        base_offset=first.base_offset,
        last_offset=last.last_offset,
        byte_size=sum(batch.byte_size for batch in run),
        batch_count=len(run),
    )


def _store(
    services: Services, worker: UUID, claimed: ClaimedFile, pieces: Sequence[_Piece]
) -> None:
    plane, bucket = services.plane, services.diskless_bucket
    files = [piece.file for piece in pieces]
    keys = [file.object_key for file in files]
    retry(lambda: plane.register_split_keys(worker, claimed.file_id, claimed.token, keys))

    def put(piece: _Piece) -> None:
        retry(lambda: services.store.put(bucket, piece.file.object_key, piece.body))

    with ThreadPoolExecutor(PARALLEL_PUTS, thread_name_prefix="split-put") as pool:
        for _ in pool.map(put, pieces):
            pass
    retry(lambda: plane.finish_split(worker, claimed.file_id, claimed.token, files))


def _failed(
    services: Services,
    worker: UUID,
    claimed: ClaimedFile,
    outcome: SplitOutcome,
    error: TidelineError,
    *,
    held: bool,
) -> SplitOutcome:
    """Count the failure before the claim is given back, so that nobody takes the file in between
    as if nothing had happened. ``held``: the claim is still ours."""
    services.count_failure(TieringScope.SPLIT, claimed.file_id, str(error))
    if held:
        retry(lambda: services.plane.release_claim(worker, claimed.file_id, claimed.token))
    return replace(outcome, ended=Ended.FAILED, error=str(error))


class BatchMismatch(TidelineError):
    """Bytes of a WAL object are not the batch that Postgres has committed at that place."""


def byte_range(object_key: str, batch: ClaimedBatch) -> ByteRange:
    """Where the batch lies in its WAL object."""
    return ByteRange(object_key, batch.byte_offset, batch.byte_offset + batch.byte_size)


def runs(batches: Iterable[ClaimedBatch]) -> list[tuple[ClaimedBatch, ...]]:
    """``batches`` as contiguous runs of offsets, each of one partition, in offset order."""
    ordered = sorted(batches, key=lambda b: (b.log_id, b.base_offset))
    return [
        run
        for _, of_log in groupby(ordered, key=lambda b: b.log_id)
        for run in contiguous_runs(of_log, MAX_SPLIT_BYTES)
    ]


def check(piece: memoryview, batch: ClaimedBatch, object_key: str) -> None:
    """Whether ``piece`` is the batch that was committed, bit by bit as its producer wrote it.

    Raises :class:`BatchMismatch` that names the object, the place and what differs.
    """
    where = f"{object_key} [{batch.byte_offset}, {batch.byte_offset + batch.byte_size})"
    try:
        header = parse_at(piece, 0)
    except InvalidBatch as error:
        raise BatchMismatch(f"{where}: {error}; {_REMEDY}") from error
    records = 0 if header.is_empty else batch.last_offset - batch.base_offset + 1
    expected: dict[str, tuple[object, object]] = {
        "bytes": (header.size, batch.byte_size),
        "records": (header.record_count, records),
        "last offset delta": (header.last_offset_delta, batch.last_offset - batch.base_offset),
        "control": (header.is_control, False),
        "transactional": (header.is_transactional, False),
    }
    if not batch.log_append_time:
        expected["max timestamp"] = (header.max_timestamp, batch.max_timestamp)
    for name, (found, wanted) in expected.items():
        if found != wanted:
            raise BatchMismatch(
                f"{where}: {name} {found}, but offsets [{batch.base_offset}, {batch.last_offset}] "
                f"of {batch.topic}-{batch.partition} were committed with {wanted}; {_REMEDY}"
            )
    if not verify_crc(piece, header):
        raise BatchMismatch(f"{where}: the CRC does not match the batch; {_REMEDY}")


def split_bytes(run: Sequence[ClaimedBatch], pieces: Sequence[memoryview]) -> bytearray:
    """``run`` as it will stand in a segment: offsets, the leader epoch at B0 and, where the topic
    says so, the append time are those of the commit; every other byte is the producer's."""
    body = bytearray().join(pieces)
    view, position = memoryview(body), 0
    for batch in run:
        end = position + batch.byte_size
        append_time = batch.append_time if batch.log_append_time else None
        patch(view[position:end], batch.base_offset, batch.boundary_epoch, append_time)
        position = end
    view.release()
    return body
