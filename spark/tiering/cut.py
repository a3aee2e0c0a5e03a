"""The batches of one partition out of a WAL object, as a segment will hold them.

The gateway checked each batch when it took it, and its coordinates were written in the commit. A
batch that does not say what its coordinates say is therefore corruption or another object: it is
never repaired by guessing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from tideline.control_plane.tiering_model import ClaimedBatch
from tideline.domain.tiering import contiguous_runs
from tideline.errors import TidelineError
from tideline.kafka.batches import InvalidBatch, parse_at, patch, verify_crc
from tideline.object_store.byte_ranges import ByteRange

MAX_SPLIT_BYTES = 64 * 1024 * 1024
"""A WAL object is far smaller; whoever made it larger still gets split files that fit in memory."""


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
    expected: dict[str, tuple[object, object]] = {
        "bytes": (header.size, batch.byte_size),
        "records": (header.record_count, batch.last_offset - batch.base_offset + 1),
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


_REMEDY = "compare the object with a copy of it; nothing of it is tiered before it is right"


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
