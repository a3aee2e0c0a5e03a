"""One claimed WAL file becomes split files, one for each run of offsets of a partition in it.

Progress is durable file by file: keys are registered before their objects are written, and one
transaction makes the objects count. Killed anywhere, the claim expires and another worker begins
the file anew; what was uploaded until then is gc's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from uuid import UUID, uuid4

from spark.common.retry import insist
from spark.tiering.cut import BatchMismatch, byte_range, check, runs, split_bytes
from spark.tiering.services import Services
from tideline.control_plane.errors import StaleClaim, TieringMismatch, TopicDeleted
from tideline.control_plane.tiering_model import ClaimedBatch, ClaimedFile, SplitFile, TieringScope
from tideline.domain.ids import topic_id_to_base64
from tideline.errors import TidelineError, UnreachableError
from tideline.kafka.segment_files import offset_name
from tideline.object_store.byte_ranges import ByteRange, coalesce, slice_of
from tideline.object_store.client import ObjectMissing

PARALLEL_PUTS = 8


class Ended(StrEnum):
    """How the work on one claimed thing ended."""

    DONE = "done"
    STALE = "stale"
    """Another worker has it now: nothing was changed, nothing is wrong."""
    FAILED = "failed"
    """Counted; after some failures in a row it is parked and shown."""


@dataclass(frozen=True, slots=True)
class SplitOutcome:
    """What became of one claimed WAL file. Sizes in bytes."""

    file_id: int
    object_key: str
    ended: str
    batches: int = 0
    split_files: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    elapsed_ms: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run and its bytes, ready to be stored."""

    file: SplitFile
    body: bytes


def split_key(batch: ClaimedBatch) -> str:
    """A new key for a run that begins with ``batch``."""
    topic = topic_id_to_base64(batch.topic_id)
    return f"split/{topic}/{batch.partition}/{offset_name(batch.base_offset)}-{uuid4().hex}"


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
        pieces, bytes_read, wrong = _cut(services, claimed)
        done = replace(
            nothing,
            ended=Ended.DONE,
            batches=sum(piece.file.batch_count for piece in pieces),
            split_files=len(pieces),
            bytes_read=bytes_read,
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
) -> tuple[list[_Piece], int, BatchMismatch | None]:
    """The runs of the file that are as committed, the bytes read, and why others are not.

    Holds the wanted part of one WAL object twice: a gateway closes it at ``wal_max_bytes``.
    """
    bodies = {
        part: insist(partial(_get, services, part))
        for part in coalesce(byte_range(claimed.object_key, b) for b in claimed.batches)
    }
    pieces: list[_Piece] = []
    wrong: BatchMismatch | None = None
    for run in runs(claimed.batches):
        parts = [slice_of(bodies, byte_range(claimed.object_key, batch)) for batch in run]
        try:
            for part, batch in zip(parts, run, strict=True):
                check(part, batch, claimed.object_key)
        except BatchMismatch as error:
            wrong = wrong or error
            continue
        pieces.append(_Piece(_described(run), bytes(split_bytes(run, parts))))
    return pieces, sum(len(body) for body in bodies.values()), wrong


def _get(services: Services, part: ByteRange) -> bytes:
    return services.store.get(services.diskless_bucket, part.key, part.start, part.size)


def _described(run: Sequence[ClaimedBatch]) -> SplitFile:
    first, last = run[0], run[-1]
    return SplitFile(
        object_key=split_key(first),
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
    insist(lambda: plane.register_split_keys(worker, claimed.file_id, claimed.token, keys))

    def put(piece: _Piece) -> None:
        insist(lambda: services.store.put(bucket, piece.file.object_key, piece.body))

    with ThreadPoolExecutor(PARALLEL_PUTS, thread_name_prefix="split-put") as pool:
        for _ in pool.map(put, pieces):
            pass
    insist(lambda: plane.finish_split(worker, claimed.file_id, claimed.token, files))


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
        insist(lambda: services.plane.release_claim(worker, claimed.file_id, claimed.token))
    return replace(outcome, ended=Ended.FAILED, error=str(error))
