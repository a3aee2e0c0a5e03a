"""Which topics a request names, found by walking its frame instead of decoding it.

The walk is for the requests that nearly all traffic is made of, in the form in which clients write
them. It reads what Kafka's schemas put before and around the topics' names (or ids), skips records
by their length, and looks at every length before it goes by it: nothing is allocated but the names.
It either says of a frame what decoding would say of it, or nothing (``None``): at tagged fields,
arrays that are null, names that no topic can have, more elements than may be walked at once, and
whatever does not fit into the frame. A frame of which it says nothing is decoded.

Layouts: Kafka's ``clients/src/main/resources/common/message/*Request.json``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from tideline.kafka.protocol import RequestHeader
from tideline.kafka.wire_guard import most_elements

NamedKey = str | UUID | None
"""A topic by its name, or by its id; ``None`` for the id that is no id (all zeros)."""

MOST_WALKED = 500
"""Topics, and of a Produce partitions, that are walked on the event loop: half a millisecond."""
MOST_WALKED_BYTES = 64 * 1024
"""Of records, which are copied: no request with more is accepted without being decoded."""
LONGEST_NAME = 249
"""Characters; Kafka has no topic of a longer name."""
LONGEST_STRING = 32_767
UUIDS_KEPT = 10_000

_I16, _I32 = struct.Struct(">h").unpack_from, struct.Struct(">i").unpack_from
_SESSION = struct.Struct(">ii").unpack_from


class _Unsure(Exception):
    """The frame has to be decoded."""


@dataclass(frozen=True, slots=True)
class NamedTopics:
    """What a request says of its topics."""

    keys: list[NamedKey]
    """In the order of the request; one that is named twice is here twice."""
    session_id: int = 0
    session_epoch: int = -1
    """Of Fetch (KIP-227); versions without sessions ask for none."""


@dataclass(frozen=True, slots=True)
class WalkedProduce:
    """What a Produce request without a transactional id says."""

    acks: int
    topics: list[tuple[NamedKey, list[tuple[int, bytes]]]]
    """In the order of the request: of each topic (partition, records)."""


def walked_produce(frame: bytes, header: RequestHeader) -> WalkedProduce | None:
    """A Produce request of at most :data:`MOST_WALKED` topics and partitions, none without records,
    and of :data:`MOST_WALKED_BYTES` of these. ``None``: it has to be decoded to be known, for
    whatever reason."""
    version, at = header.api_version, header.body_start
    if not 3 <= version <= 13:
        return None
    flexible = version >= 9
    try:
        if flexible:
            at = _no_tags(frame, at)
        told, end = _produced(frame, at, version, flexible)
        if flexible:
            end = _no_tags(frame, end)
    except (_Unsure, struct.error, IndexError, UnicodeDecodeError):
        return None
    return told if end <= len(frame) else None


def named_topics(frame: bytes, header: RequestHeader) -> NamedTopics | None:
    """The topics of a Produce, Fetch, ListOffsets, OffsetForLeaderEpoch or Metadata request, of the
    last one those of a list that is not empty. ``None``: it has to be decoded to be known, for
    whatever reason."""
    walk = _WALKS.get(header.api_key)
    if walk is None:
        return None
    least, most, flexible_since, topics_of = walk
    version, at = header.api_version, header.body_start
    if not least <= version <= most:
        return None
    flexible = version >= flexible_since
    try:
        if flexible:
            at = _no_tags(frame, at)
        named, end = topics_of(frame, at, version, flexible)
        if flexible:
            end = _no_tags(frame, end)
    except (_Unsure, struct.error, IndexError, UnicodeDecodeError):
        return None
    return named if end <= len(frame) else None


def _produce(frame: bytes, at: int, version: int, flexible: bool) -> tuple[NamedTopics, int]:
    at = _string(frame, at, flexible)  # transactional id
    at += 2 + 4  # acks, timeout
    count, at = _length(frame, at, flexible)
    walked = count
    keys: list[NamedKey] = []
    end = len(frame)
    for _ in range(_bounded(count)):
        key, at = _key(frame, at, flexible, by_id=version >= 13)
        keys.append(key)
        partitions, at = _length(frame, at, flexible)
        walked += partitions
        for _ in range(_bounded(partitions, walked)):
            at += 4  # index
            if flexible:
                size, at = _varint(frame, at)
                at = _no_tags(frame, at + max(size - 1, 0))
            else:
                (size,) = _I32(frame, at)
                if size < -1:
                    raise _Unsure
                at += 4 + max(size, 0)
            if at > end:
                raise _Unsure
        if flexible:
            at = _no_tags(frame, at)
    return NamedTopics(keys), at


def _produced(frame: bytes, at: int, version: int, flexible: bool) -> tuple[WalkedProduce, int]:
    nobody = frame[at : at + 1] == b"\0" if flexible else frame[at : at + 2] == b"\xff\xff"
    if not nobody:
        raise _Unsure  # a transactional id
    at += 1 if flexible else 2
    (acks,) = _I16(frame, at)
    at += 2 + 4  # timeout
    count, at = _length(frame, at, flexible)
    walked, end, left = count, len(frame), MOST_WALKED_BYTES
    topics: list[tuple[NamedKey, list[tuple[int, bytes]]]] = []
    for _ in range(_bounded(count)):
        key, at = _key(frame, at, flexible, by_id=version >= 13)
        partitions, at = _length(frame, at, flexible)
        walked += partitions
        found: list[tuple[int, bytes]] = []
        for _ in range(_bounded(partitions, walked)):
            (index,) = _I32(frame, at)
            if flexible:
                size, at = _varint(frame, at + 4)
                size -= 1
            else:
                (size,) = _I32(frame, at + 4)
                at += 8
            behind = at + size
            left -= size
            if size < 0 or behind > end or left < 0:
                raise _Unsure
            found.append((index, frame[at:behind]))
            at = _no_tags(frame, behind) if flexible else behind
        topics.append((key, found))
        if flexible:
            at = _no_tags(frame, at)
    return WalkedProduce(acks, topics), at


def _fetch(frame: bytes, at: int, version: int, flexible: bool) -> tuple[NamedTopics, int]:
    # replica id, longest wait, least bytes, most bytes, isolation level
    at += (4 if version < 15 else 0) + 4 + 4 + 4 + 1
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION(frame, at)
        at += 8
    # partition, leader epoch, offset, last fetched epoch, log start, most bytes
    row = 4 + (4 if version >= 9 else 0) + 8 + (4 if flexible else 0) + (8 if version >= 5 else 0)
    row += 4
    most = most_elements(1)
    keys, at, walked = _topics(frame, at, flexible, version >= 13, row, False, most)
    if version >= 7:
        _, at, _ = _topics(frame, at, flexible, version >= 13, 4, True, most - walked)
    if version >= 11:
        at = _string(frame, at, flexible)  # rack
    return NamedTopics(keys, session_id, session_epoch), at


def _list_offsets(frame: bytes, at: int, version: int, flexible: bool) -> tuple[NamedTopics, int]:
    at += 4 + (1 if version >= 2 else 0)  # replica id, isolation level
    row = 4 + (4 if version >= 4 else 0) + 8  # partition, leader epoch, timestamp
    keys, at, _ = _topics(frame, at, flexible, False, row, False, most_elements(2))
    return NamedTopics(keys), at + (4 if version >= 10 else 0)  # timeout


def _leader_epoch(frame: bytes, at: int, version: int, flexible: bool) -> tuple[NamedTopics, int]:
    at += 4 if version >= 3 else 0  # replica id
    row = 4 + (4 if version >= 2 else 0) + 4  # partition, leader epoch, epoch that is asked about
    keys, at, _ = _topics(frame, at, flexible, False, row, False, most_elements(23))
    return NamedTopics(keys), at


def _metadata(frame: bytes, at: int, version: int, flexible: bool) -> tuple[NamedTopics, int]:
    count, at = _length(frame, at, flexible)
    if not count:
        raise _Unsure  # all topics, or none
    keys: list[NamedKey] = []
    for _ in range(_bounded(count)):
        key: NamedKey = None
        if version >= 10:
            key, at = _key(frame, at, flexible, by_id=True)
            if frame[at] == 0:  # no name
                keys.append(key)
                at = _no_tags(frame, at + 1)
                continue
        key, at = _key(frame, at, flexible, by_id=False)
        keys.append(key)
        if flexible:
            at = _no_tags(frame, at)
    # creation of topics, authorized operations of the cluster, of topics
    flags = (
        (1 if version >= 4 else 0) + (1 if 8 <= version <= 10 else 0) + (1 if version >= 8 else 0)
    )
    if any(flag > 1 for flag in frame[at : at + flags]):
        raise _Unsure  # decoding takes 0 and 1 only
    return NamedTopics(keys), at + flags


def _topics(
    frame: bytes, at: int, flexible: bool, by_id: bool, row: int, bare: bool, most: int
) -> tuple[list[NamedKey], int, int]:
    """An array of topics with their partitions of ``row`` bytes each, tags apart; ``bare``: those
    are numbers, which have no tags. (keys, next position, elements), of which ``most`` may be."""
    count, at = _length(frame, at, flexible)
    walked, end = count, len(frame)
    keys: list[NamedKey] = []
    tagged = flexible and not bare
    size = row + 1 if tagged else row
    for _ in range(_bounded(count)):
        key, at = _key(frame, at, flexible, by_id)
        keys.append(key)
        partitions, at = _length(frame, at, flexible)
        walked += partitions
        behind = at + partitions * size
        if behind > end or walked > most:
            raise _Unsure
        if tagged and frame[at + row : behind : size].count(0) != partitions:
            raise _Unsure  # some partition has tagged fields
        at = _no_tags(frame, behind) if flexible else behind
    return keys, at, walked


def _key(frame: bytes, at: int, flexible: bool, by_id: bool) -> tuple[NamedKey, int]:
    if by_id:
        end = at + 16
        if end > len(frame):
            raise _Unsure
        return uuid_of(frame[at:end]), end
    if flexible:
        size, at = _varint(frame, at)
        size -= 1
    else:
        (size,) = _I16(frame, at)
        at += 2
    end = at + size
    if not 0 <= size <= LONGEST_NAME or end > len(frame):
        raise _Unsure
    return str(frame[at:end], "utf-8"), end


@lru_cache(UUIDS_KEPT)
def uuid_of(raw: bytes) -> UUID | None:
    """An id as it is written (16 bytes); ``None``: it is none."""
    found = UUID(bytes=raw)
    return found if found.int else None


def _length(frame: bytes, at: int, flexible: bool) -> tuple[int, int]:
    """Of an array that is not null: (elements, next position)."""
    if flexible:
        count, at = _varint(frame, at)
        count -= 1
    else:
        (count,) = _I32(frame, at)
        at += 4
    if count < 0:
        raise _Unsure
    return count, at


def _bounded(count: int, walked: int = 0) -> int:
    if count > MOST_WALKED or walked > MOST_WALKED:
        raise _Unsure
    return count


def _string(frame: bytes, at: int, flexible: bool) -> int:
    """Skip a string that may be null; it has to be one that decoding would take."""
    if flexible:
        size, at = _varint(frame, at)
        size -= 1
    else:
        (size,) = _I16(frame, at)
        at += 2
    if size <= 0:
        if size < -1:
            raise _Unsure
        return at
    end = at + size
    if size > LONGEST_STRING or end > len(frame):
        raise _Unsure
    text = frame[at:end]
    if not text.isascii():
        str(text, "utf-8")
    return end


def _no_tags(frame: bytes, at: int) -> int:
    if frame[at]:
        raise _Unsure
    return at + 1


def _varint(frame: bytes, at: int) -> tuple[int, int]:
    """Unsigned, of at most 32 bits: (value, next position)."""
    value = frame[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise _Unsure
            return value, at
    raise _Unsure


_Walk = Callable[[bytes, int, int, bool], tuple[NamedTopics, int]]
_WALKS: dict[int, tuple[int, int, int, _Walk]] = {
    0: (3, 13, 9, _produce),
    1: (4, 18, 12, _fetch),
    2: (1, 11, 6, _list_offsets),
    3: (1, 13, 9, _metadata),
    23: (2, 4, 4, _leader_epoch),
}
"""By API key: the versions, from first to last, the first flexible one, and the walk."""
