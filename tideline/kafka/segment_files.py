"""The files of one tiered segment: their kinds, names and upload order.

Kafka hands a remote storage manager six files per segment (``LogSegmentData``); here each becomes
one object, ``<stem><suffix>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from uuid import UUID

from tideline.domain.ids import topic_id_to_base64
from tideline.domain.remote_log import EpochStart

MAX_OFFSET_DIGITS = 20
"""``LogFileUtils.filenamePrefixFromOffset`` pads with zeros, so that names sort as offsets do."""
_CHECKPOINT_VERSION = 0


class SegmentFile(StrEnum):
    """A file of a segment, with its suffix."""

    LOG = ".log"
    OFFSET_INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TXN_INDEX = ".txnindex"
    SNAPSHOT = ".snapshot"
    LEADER_EPOCHS = ".leader-epoch-checkpoint"


UPLOAD_ORDER = (
    SegmentFile.OFFSET_INDEX,
    SegmentFile.TIME_INDEX,
    SegmentFile.TXN_INDEX,
    SegmentFile.SNAPSHOT,
    SegmentFile.LEADER_EPOCHS,
    SegmentFile.LOG,
)
"""The log last, so that its presence marks a complete set."""
DELETE_ORDER = tuple(reversed(UPLOAD_ORDER))
"""The log first, for the same reason."""


class MalformedCheckpoint(ValueError):
    """A leader-epoch checkpoint that Kafka would not have written."""


def offset_name(offset: int) -> str:
    """20 digits. Raises ``ValueError`` for a negative offset."""
    if offset < 0:
        raise ValueError(f"offset {offset} is negative; a segment begins at 0 or later")
    return f"{offset:0{MAX_OFFSET_DIGITS}d}"


def segment_stem(base_offset: int, segment_id: UUID) -> str:
    """Name of a segment's objects without suffix, below its partition's prefix."""
    return f"{offset_name(base_offset)}-{topic_id_to_base64(segment_id)}"


def object_keys(stem: str) -> dict[SegmentFile, str]:
    """The key of each file, in upload order. ``stem`` is the whole key up to the suffix."""
    return {file: stem + file for file in UPLOAD_ORDER}


def encode_leader_epochs(epochs: Sequence[EpochStart]) -> bytes:
    """The text of a leader-epoch checkpoint (``LeaderEpochCheckpointFile``, version 0).

    Raises :class:`MalformedCheckpoint` when the epochs or their starts do not grow.
    """
    _check_growing(epochs)
    lines = [str(_CHECKPOINT_VERSION), str(len(epochs))]
    lines += [f"{entry.epoch} {entry.start_offset}" for entry in epochs]
    return "".join(f"{line}\n" for line in lines).encode()


def decode_leader_epochs(text: bytes) -> tuple[EpochStart, ...]:
    """Inverse of :func:`encode_leader_epochs`. Raises :class:`MalformedCheckpoint`."""
    lines = text.decode("ascii", errors="replace").splitlines()
    try:
        version, count = int(lines[0]), int(lines[1])
        epochs = tuple(
            EpochStart(int(epoch), int(start))
            for epoch, start in (row.split(" ") for row in lines[2:])
        )
    except (IndexError, ValueError) as error:
        raise MalformedCheckpoint(f"not a leader-epoch checkpoint: {text[:80]!r}") from error
    if version != _CHECKPOINT_VERSION or count != len(epochs):
        raise MalformedCheckpoint(
            f"version {version} with {count} entries declared and {len(epochs)} found; "
            f"version {_CHECKPOINT_VERSION} is known"
        )
    _check_growing(epochs)
    return epochs


def _check_growing(epochs: Sequence[EpochStart]) -> None:
    for before, after in pairwise(epochs):
        if after.epoch <= before.epoch or after.start_offset < before.start_offset:
            raise MalformedCheckpoint(
                f"epoch {after.epoch} from offset {after.start_offset} does not follow "
                f"epoch {before.epoch} from offset {before.start_offset}"
            )
