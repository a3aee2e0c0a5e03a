"""The batches of a segment, read where they lie in WAL objects and made as they stand in a segment.

The gateway checked each batch when it took it, and its coordinates were written in the commit. A
batch that does not say what its coordinates say is therefore corruption or another object: it is
never repaired by guessing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tideline.control_plane.tiering_model import PlannedBatch
from tideline.errors import TidelineError
from tideline.kafka.batches import InvalidBatch, parse_at, patch, verify_crc
from tideline.object_store.byte_ranges import COALESCE_GAP, MAX_GET, ByteRange

_REMEDY = "compare the object with a copy of it; nothing of it is tiered before it is right"

_COMPARED = ("bytes", "records", "last offset delta", "control", "transactional", "max timestamp")


class BatchMismatch(TidelineError):
    """Bytes of a WAL object are not the batch that Postgres has committed at that place."""


@dataclass(frozen=True, slots=True)
class Read:
    """One GET, and the batches that it holds, in the order of their offsets and places."""

    part: ByteRange
    batches: tuple[PlannedBatch, ...]


def reads(batches: Iterable[PlannedBatch]) -> Iterator[Read]:
    """The fewest GETs that hold ``batches``, which come in offset order, one after the other:
    batches that follow each other in one object share a GET of at most
    :data:`~tideline.object_store.byte_ranges.MAX_GET` over gaps of at most
    :data:`~tideline.object_store.byte_ranges.COALESCE_GAP`."""
    run: list[PlannedBatch] = []
    start = end = 0
    for batch in batches:
        after = batch.byte_offset + batch.byte_size
        if run and not (
            batch.object_key == run[0].object_key
            and 0 <= batch.byte_offset - end <= COALESCE_GAP
            and after - start <= MAX_GET
        ):
            yield Read(ByteRange(run[0].object_key, start, end), tuple(run))
            run = []
        if not run:
            start = batch.byte_offset
        run.append(batch)
        end = after
    if run:
        yield Read(ByteRange(run[0].object_key, start, end), tuple(run))


def in_segment(read: Read, body: bytes, leader_epoch: int, label: str) -> Iterator[memoryview]:
    """The batches of ``read`` out of its bytes, as they stand in a segment: with the offsets, the
    leader epoch at B0 and, where the topic says so, the append time of the commit; every other byte
    is the producer's. Neighbours come in one piece. ``label``: topic and partition, for errors.

    Raises :class:`BatchMismatch` at the first batch that is not as committed, after those before
    it.
    """
    held = memoryview(bytearray(body))
    begun = done = 0
    for batch in read.batches:
        start = batch.byte_offset - read.part.start
        if start != done:
            if done > begun:
                yield held[begun:done]
            begun = start
        piece = held[start : start + batch.byte_size]
        try:
            check(piece, batch, label)
        except BatchMismatch:
            if start > begun:
                yield held[begun:start]
            raise
        patch(piece, batch.base_offset, leader_epoch, batch.append_time)
        done = start + batch.byte_size
    yield held[begun:done]


def check(piece: memoryview, batch: PlannedBatch, label: str) -> None:
    """Whether ``piece`` is the batch that was committed, bit by bit as its producer wrote it.

    Raises :class:`BatchMismatch` that names the object, the place and what differs.
    """
    try:
        header = parse_at(piece, 0)
    except InvalidBatch as error:
        raise BatchMismatch(f"{_where(batch)}: {error}; {_REMEDY}") from error
    delta = batch.last_offset - batch.base_offset
    kept_ms = header.max_timestamp if batch.append_time is not None else batch.max_timestamp
    found = (
        header.size, header.record_count, header.last_offset_delta, header.is_control,
        header.is_transactional, header.max_timestamp,
    )  # fmt: skip
    wanted = (
        batch.byte_size, 0 if header.is_empty else delta + 1, delta, False, False, kept_ms,
    )  # fmt: skip
    if found != wanted:
        name, was, committed = next(
            three for three in zip(_COMPARED, found, wanted, strict=True) if three[1] != three[2]
        )
        raise BatchMismatch(
            f"{_where(batch)}: {name} {was}, but offsets [{batch.base_offset}, "
            f"{batch.last_offset}] of {label} were committed with {committed}; {_REMEDY}"
        )
    if not verify_crc(piece, header):
        raise BatchMismatch(
            f"{_where(batch)}, offsets [{batch.base_offset}, {batch.last_offset}] of {label}: the "
            f"CRC does not match the batch; {_REMEDY}"
        )


def _where(batch: PlannedBatch) -> str:
    return f"{batch.object_key} [{batch.byte_offset}, {batch.byte_offset + batch.byte_size})"
