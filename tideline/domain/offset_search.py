"""One offset out of two regions: what ListOffsets and OffsetForLeaderEpoch say of the whole log.

What always holds: the prefix answers below B0, the suffix from B0 on, and of two candidates the
smaller offset wins (seed 000 "ListOffsets semantics"). A candidate on the wrong side of B0 is
refused: it would send a consumer to records that are not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from tideline.domain.migration import UNDEFINED_OFFSET

UNDEFINED_EPOCH = -1
NO_TIMESTAMP = -1


class SpecialTimestamp(IntEnum):
    """``ListOffsetsRequest``'s sentinels; anything from 0 on is a time in ms."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


_KNOWN_SINCE: Mapping[int, int] = {
    SpecialTimestamp.LATEST: 1,
    SpecialTimestamp.EARLIEST: 1,
    SpecialTimestamp.MAX_TIMESTAMP: 7,
    SpecialTimestamp.EARLIEST_LOCAL: 8,
    SpecialTimestamp.LATEST_TIERED: 9,
    SpecialTimestamp.EARLIEST_PENDING_UPLOAD: 11,
}
"""``ReplicaManager.timestampMinSupportedVersion``."""


def is_known(timestamp: int, version: int) -> bool:
    """Whether a ListOffsets of ``version`` may ask for ``timestamp``, a time in ms or a sentinel.
    To any other a broker answers UNSUPPORTED_VERSION
    (``ReplicaManager.isListOffsetsTimestampUnsupported``)."""
    since = _KNOWN_SINCE.get(timestamp)
    return timestamp >= 0 or (since is not None and version >= since)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An offset (inclusive) with its record's timestamp in ms, -1 without one."""

    offset: int
    timestamp: int = NO_TIMESTAMP
    leader_epoch: int = UNDEFINED_EPOCH


NOTHING = Candidate(UNDEFINED_OFFSET)


class WrongSide(ValueError):
    """A region answered for the other one: KAFKA_STORAGE_ERROR (seed 000)."""


def below(candidate: Candidate, boundary: int) -> Candidate:
    """Kafka's candidate, or nothing if it is B0 or past it: a late append that does not count."""
    return candidate if 0 <= candidate.offset < boundary else NOTHING


def of_suffix(candidate: Candidate, boundary: int) -> Candidate:
    """The suffix's candidate. Raises :class:`WrongSide` if it lies below B0."""
    if UNDEFINED_OFFSET < candidate.offset < boundary:
        raise WrongSide(f"the suffix answered {candidate.offset}, below B0 {boundary}")
    return candidate


def is_of_prefix(candidate: Candidate, prefix_end: int, boundary_epoch: int) -> bool:
    """Whether the record that Kafka found is one of the prefix, whatever else its leader has lost.
    One of a newer epoch was appended past the gateways to a log that ends short of B0; of one
    without an epoch (ListOffsets before version 4) that cannot be told."""
    return (
        below(candidate, prefix_end) is not NOTHING
        and UNDEFINED_EPOCH < candidate.leader_epoch <= boundary_epoch
    )


def smallest(prefix: Candidate, suffix: Candidate, boundary: int) -> Candidate:
    """The answer to a search by timestamp. Raises :class:`WrongSide`."""
    kept, found = below(prefix, boundary), of_suffix(suffix, boundary)
    return kept if kept is not NOTHING else found


def latest_of_maxima(prefix: Candidate, suffix: Candidate, boundary: int) -> Candidate:
    """The record with the largest timestamp of the log; the first of several. Raises
    :class:`WrongSide`."""
    found = of_suffix(suffix, boundary)
    return found if found.timestamp > prefix.timestamp else prefix


def earliest(prefix_start: int | None, suffix_start: int, boundary: int) -> int:
    """Log start of the whole log: Kafka's while it is below B0, else the suffix's.

    ``prefix_start``: Kafka's log start offset; ``None`` if there is no prefix.
    """
    if prefix_start is not None and 0 <= prefix_start < boundary:
        return prefix_start
    return max(boundary, suffix_start)


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The largest leader epoch that is not above the asked one, and its end offset (exclusive)."""

    leader_epoch: int
    end_offset: int


def end_in_suffix(asked_epoch: int, boundary_epoch: int, high_watermark: int) -> EpochEnd | None:
    """The suffix's answer, or ``None`` if the asked epoch ends below B0. The suffix has one epoch
    for ever, the one at B0, whoever leads the partition now (schedule 8)."""
    return EpochEnd(boundary_epoch, high_watermark) if asked_epoch >= boundary_epoch else None


def end_without_prefix(
    asked_epoch: int, boundary_epoch: int, boundary: int, high_watermark: int
) -> EpochEnd:
    """The answer when Kafka has nothing below B0. Epochs that went with the prefix ended at B0 at
    the latest, and whoever stands there is not sent back, as at a broker that has deleted their
    records (``LeaderEpochFileCache.endOffsetFor``)."""
    found = end_in_suffix(asked_epoch, boundary_epoch, high_watermark)
    return found or (EpochEnd(asked_epoch, boundary) if asked_epoch >= 0 else EpochEnd(-1, -1))


def end_below(end_offset: int, prefix_end: int, boundary: int) -> int:
    """Where an epoch that Kafka says to end at ``end_offset`` ended, never past B0. What ends where
    an accepted log gap begins ends at B0: whoever has read on from there is not sent back for what
    nobody has any more."""
    return end_offset if end_offset < prefix_end else boundary


def has_whole_prefix(end_of_boundary_epoch: int, prefix_end: int) -> bool:
    """Whether a replica has all that Kafka holds below B0 (``prefix_end``, exclusive), by its own
    word on where B0's leader epoch ended. One that has lost the end of it says that older epochs
    ended at its log end, too: a consumer past it would take acknowledged records for truncated
    (KIP-320). Its log end tells less: it may have been appended to since, past the gateways."""
    return end_of_boundary_epoch >= prefix_end
