"""What a WAL object says of itself at its end, so that Postgres can be rebuilt from the bucket.

An object is the batches, one behind the other, and the footer: payload, its length (u32), its
CRC-32C (u32), and eight bytes of magic with the version; integers are big-endian. Readers of
records go by coordinates and never see it (decision 0022).

What always holds of one stream, the objects of one incarnation:

* ``sequence`` rises in the order of commits. Objects of equal sequence are attempts to store the
  same batches; at most one of them was committed, and ``earlier`` names it by its key. Each later
  attempt has a later ``written_at_ms`` (:func:`written_again`). Whoever begins one commits none
  before it: of those in the bucket, none but the last may be committed.
* Outcomes are told in the order of commits. So when the outcome of a sequence is told, every
  object of a smaller one of which nothing is told was never committed, or holds nothing that is
  still read. What lies above the largest told sequence is the unmanifested tail.
* Before a commit is sent, the bucket tells of every object before it that was given up or of which
  a batch was refused, and of every batch of its own that it leaves out (decision 0022). So what
  was committed of a stream's tail is a beginning of it, each object with all its batches but those
  that are told to be withdrawn, and of the last one those that are refused. A *notice* is an entry
  of ``earlier`` with batches that are :data:`WANTED` or :data:`UNANSWERED`: it tells that, and no
  outcome.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from uuid import UUID

import crc32c

from tideline.errors import TidelineError

MAGIC = b"TLWALF"
"""Two bytes with the version follow."""
VERSION = 1
TAIL_READ = 64 * 1024
"""Bytes to ask for first: enough for about 900 batches."""
WITHDRAWN = "WITHDRAWN"
"""Of a batch that is in the object but was not committed with it: its producer had been told of a
failure by then."""
WANTED = "WANTED"
"""Of a batch that is to be committed after this was told."""
UNANSWERED = "UNANSWERED"
"""Of a batch that may have been committed: its gateway does not know, and answers it to nobody."""
OUTCOMES = (
    "NONE",
    "DUPLICATE",
    "OUT_OF_ORDER_SEQUENCE",
    "INVALID_PRODUCER_EPOCH",
    "UNKNOWN_LOG",
    "BOUNDARY_UNSET",
    "TOPIC_DELETED",
    WITHDRAWN,
    WANTED,
    UNANSWERED,
    "DUPLICATE_SEQUENCE_NUMBER",
)
"""By their number in the object: only ever appended to."""
NOTICED = frozenset({WANTED, UNANSWERED})
"""What only a notice says."""

_NUMBERS = {outcome: number for number, outcome in enumerate(OUTCOMES)}
_TRAILER = struct.Struct(">II8s")
_HEAD = struct.Struct(">16si16sqqII")
_BATCH = struct.Struct(">16siqiiqhiiq?")
_EARLIER = struct.Struct(">qHI")
_OUTCOME = struct.Struct(">Bqq")


class FooterError(TidelineError):
    """The bytes given do not end with a whole footer of this version."""


class TailTooShort(FooterError):
    """The footer begins before the bytes given."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"the footer takes the last {needed} bytes: read as many and try again")
        self.needed = needed


class NoFooter(FooterError):
    """The object does not end with a footer: it was cut off, or is no WAL object."""

    def __init__(self, found: bytes) -> None:
        super().__init__(
            f"the object ends with {found.hex() or 'nothing'} and not with a footer: it was cut "
            "off; its offsets are known to Postgres alone"
        )


class UnknownFooterVersion(FooterError):
    """A newer version wrote it."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"the footer has version {version}, only version {VERSION} is known: read it with the "
            "version of tideline that wrote it, or a newer one"
        )


class DamagedFooter(FooterError):
    """Its bytes contradict each other, or their checksum."""

    def __init__(self, what: str) -> None:
        super().__init__(f"damaged footer: {what}; restore the object from another copy")


@dataclass(frozen=True, slots=True)
class FooterBatch:
    """One record batch of the object, as it was committed. Offsets and sizes in bytes."""

    topic_id: UUID
    partition: int
    byte_offset: int
    byte_size: int
    record_count: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    max_timestamp: int
    """ms, from the batch's header."""
    log_append_time: bool
    """Then its records' timestamp is the outcome's ``append_time``."""


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What the commit said of one batch."""

    error: str
    """One of :data:`OUTCOMES`; the batch is in its log after ``NONE`` only."""
    base_offset: int
    """Of a duplicate that of its original; -1 where there is none."""
    append_time: int
    """ms since the epoch, of the commit; -1 where there is none."""


@dataclass(frozen=True, slots=True)
class EarlierCommit:
    """What became of an object of the same stream, or a notice of it."""

    sequence: int
    object_key: str
    """Of the attempt that was committed."""
    outcomes: tuple[BatchOutcome, ...]
    """In the order of that object's footer, one for each of its batches."""

    @property
    def is_notice(self) -> bool:
        return any(outcome.error in NOTICED for outcome in self.outcomes)

    @property
    def is_given_up(self) -> bool:
        """Nothing of the object was committed."""
        return all(outcome.error == WITHDRAWN for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class Footer:
    """One object of one commit stream."""

    history_id: UUID
    gateway_id: int
    incarnation: UUID
    sequence: int
    written_at_ms: int
    """By the gateway's clock: for people, and against placing what may have been given up. Of
    attempts to store one object it rises, whatever the clock does."""
    batches: tuple[FooterBatch, ...]
    """In the order of the body, which they fill. None: the object only carries outcomes."""
    earlier: tuple[EarlierCommit, ...]
    """In the order of their commits."""


def encode(footer: Footer) -> bytes:
    """What the object ends with. Raises ``ValueError`` for what the format cannot hold."""
    try:
        parts = [
            _HEAD.pack(
                footer.history_id.bytes,
                footer.gateway_id,
                footer.incarnation.bytes,
                footer.sequence,
                footer.written_at_ms,
                len(footer.batches),
                len(footer.earlier),
            )
        ]
        parts += [_encode_batch(batch) for batch in footer.batches]
        for commit in footer.earlier:
            key = commit.object_key.encode()
            parts += [_EARLIER.pack(commit.sequence, len(key), len(commit.outcomes)), key]
            parts += [
                _OUTCOME.pack(_NUMBERS[told.error], told.base_offset, told.append_time)
                for told in commit.outcomes
            ]
        payload = b"".join(parts)
        _body_size(footer.batches)
        return _with_trailer(payload)
    except (struct.error, KeyError, DamagedFooter) as error:
        raise ValueError(f"no footer can hold this: {error}") from error


def written_again(footer: bytes, now_ms: int) -> bytes:
    """``footer``, as :func:`encode` made it, of a later attempt to store the same object: it says
    that it was written at ``now_ms``, at least 1 ms after the one before it. As many bytes."""
    payload = bytearray(footer[: -_TRAILER.size])
    history, gateway_id, incarnation, sequence, before, *counts = _HEAD.unpack_from(payload)
    later = max(now_ms, before + 1)
    _HEAD.pack_into(payload, 0, history, gateway_id, incarnation, sequence, later, *counts)
    return _with_trailer(bytes(payload))


def decode_tail(tail: bytes, object_size: int) -> Footer:
    """The footer of an object of ``object_size`` bytes, of which ``tail`` are the last.

    Raises :class:`TailTooShort` with the bytes that it takes, and :class:`NoFooter`,
    :class:`UnknownFooterVersion` or :class:`DamagedFooter` for what is no whole footer.
    """
    if len(tail) > object_size:
        raise ValueError(f"{len(tail)} bytes cannot be the end of an object of {object_size}")
    if len(tail) < _TRAILER.size:
        if object_size < _TRAILER.size:
            raise NoFooter(tail)
        raise TailTooShort(_TRAILER.size)
    length, checksum, magic = _TRAILER.unpack_from(tail, len(tail) - _TRAILER.size)
    if magic[: len(MAGIC)] != MAGIC:
        raise NoFooter(magic)
    version = int.from_bytes(magic[len(MAGIC) :], "big")
    if version != VERSION:
        raise UnknownFooterVersion(version)
    needed = length + _TRAILER.size
    if needed > object_size or length < _HEAD.size:
        raise DamagedFooter(f"a payload of {length} bytes in an object of {object_size}")
    if needed > len(tail):
        raise TailTooShort(needed)
    payload = tail[len(tail) - needed : len(tail) - _TRAILER.size]
    if (computed := _checksum(payload)) != checksum:
        raise DamagedFooter(f"CRC-32C {computed:#010x}, not {checksum:#010x}")
    footer = _decode_payload(payload)
    if (body := _body_size(footer.batches)) != object_size - needed:
        raise DamagedFooter(
            f"batches of {body} bytes before it, in an object with {object_size - needed}"
        )
    return footer


def _with_trailer(payload: bytes) -> bytes:
    magic = MAGIC + VERSION.to_bytes(2, "big")
    return payload + _TRAILER.pack(len(payload), _checksum(payload), magic)


def _checksum(payload: bytes) -> int:
    checksum: int = crc32c.crc32c(payload)
    return checksum


def _encode_batch(batch: FooterBatch) -> bytes:
    return _BATCH.pack(
        batch.topic_id.bytes,
        batch.partition,
        batch.byte_offset,
        batch.byte_size,
        batch.record_count,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.last_sequence,
        batch.max_timestamp,
        batch.log_append_time,
    )


def _body_size(batches: tuple[FooterBatch, ...]) -> int:
    """Raises :class:`DamagedFooter` where they do not lie one behind the other."""
    end = 0
    for batch in batches:
        if batch.byte_offset != end or batch.byte_size <= 0 or batch.record_count <= 0:
            raise DamagedFooter(
                f"{batch.byte_size} bytes with {batch.record_count} records at byte "
                f"{batch.byte_offset}, where byte {end} comes next"
            )
        end += batch.byte_size
    return end


def _decode_payload(payload: bytes) -> Footer:
    history, gateway_id, incarnation, sequence, written_at, batches, earlier = _HEAD.unpack_from(
        payload
    )
    at = _room_for(payload, _HEAD.size, batches, _BATCH.size)
    found = tuple(
        FooterBatch(UUID(bytes=fields[0]), *fields[1:])
        for fields in _BATCH.iter_unpack(payload[_HEAD.size : at])
    )
    _room_for(payload, at, earlier, _EARLIER.size)
    commits = []
    for _ in range(earlier):
        commit, at = _decode_earlier(payload, at)
        commits.append(commit)
    if at != len(payload):
        raise DamagedFooter(f"{len(payload) - at} bytes behind the last outcome")
    return Footer(
        history_id=UUID(bytes=history),
        gateway_id=gateway_id,
        incarnation=UUID(bytes=incarnation),
        sequence=sequence,
        written_at_ms=written_at,
        batches=found,
        earlier=tuple(commits),
    )


def _decode_earlier(payload: bytes, at: int) -> tuple[EarlierCommit, int]:
    _room_for(payload, at, 1, _EARLIER.size)
    sequence, key_length, count = _EARLIER.unpack_from(payload, at)
    at += _EARLIER.size
    key_end = _room_for(payload, at, key_length, 1)
    end = _room_for(payload, key_end, count, _OUTCOME.size)
    outcomes = []
    for code, base_offset, append_time in _OUTCOME.iter_unpack(payload[key_end:end]):
        if code >= len(OUTCOMES):
            raise DamagedFooter(f"outcome {code}, {len(OUTCOMES) - 1} is the last one known")
        outcomes.append(BatchOutcome(OUTCOMES[code], base_offset, append_time))
    try:
        key = payload[at:key_end].decode()
    except UnicodeDecodeError as error:
        raise DamagedFooter(f"an object key that is no UTF-8 ({error})") from error
    return EarlierCommit(sequence, key, tuple(outcomes)), end


def _room_for(payload: bytes, at: int, count: int, size: int) -> int:
    """Where ``count`` times ``size`` bytes from ``at`` on end, when that many are left."""
    end = at + count * size
    if end > len(payload):
        raise DamagedFooter(f"{count} times {size} bytes where {len(payload) - at} are left")
    return end
