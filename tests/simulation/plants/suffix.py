"""The suffix: offsets, and how a batch of a producer is judged."""

from __future__ import annotations

from typing import Any

from tests.history.violations import Kind
from tests.simulation.plants.bug import Theme, edited, instead
from tideline.control_plane.memory import suffix
from tideline.control_plane.memory.suffix import Suffix
from tideline.control_plane.model import CommitError, CommittedBatch
from tideline.domain import producer_state, producer_tail

THEME = Theme()
bug = THEME.bug


def _gaps(batches: Any, offset: int) -> Any:
    return (batch for batch in batches if batch.last_offset >= offset)


def _losing(self: Suffix, batch: Any, object_key: str, now_ms: int) -> CommittedBatch:
    found = APPEND(self, batch, object_key, now_ms)
    if found.error is CommitError.NONE and found.base_offset % 11 == 0:
        self.batches.pop()
    return found


APPEND = Suffix.append
bug("hole skipped", "a row that is missing in the suffix is passed over in silence",
    (Kind.LOST,), instead(Suffix, "append", _losing), instead(suffix, "unbroken", _gaps)
    )  # fmt: skip
bug("hole", "a row is missing in the suffix: consumers stop there, with an error, and what was "
    "told is never read", (Kind.LOST,), instead(Suffix, "append", _losing))  # fmt: skip


def _all_new(entry: Any, epoch: int, base_sequence: int, last_sequence: int) -> Any:
    return producer_state.Verdict("NONE")


bug("deduplication", "the suffix takes every batch of an idempotent producer as new",
    (Kind.TWICE, Kind.REORDERED), instead(suffix, "judge", _all_new))  # fmt: skip


def _unmoved(self: Suffix, batch: Any, object_key: str, now_ms: int) -> CommittedBatch:
    before = self.high_watermark
    found = APPEND(self, batch, object_key, now_ms)
    if found.base_offset % 7 == 3:
        self.high_watermark = before
    return found


bug("high watermark", "an append does not move the suffix's end: its offset is given again",
    (Kind.DIFFERENT, Kind.LOST), instead(Suffix, "append", _unmoved))  # fmt: skip
bug("epochs mixed", "a producer's batches are remembered over its epochs: one of a new epoch is "
    "told the offset of an older one with its sequences, and stored nowhere",
    (Kind.LOST, Kind.DIFFERENT),
    edited(suffix, "remember", ("if entry is None or entry.epoch != epoch:", "if entry is None:")),
    edited(suffix, "judge",
           ("for kept in entry.batches if epoch == entry.epoch else ():",
            "for kept in entry.batches:")))  # fmt: skip


def _counted_on(sequence: int) -> int:
    return sequence + 1


bug("wrapped sequence", "sequence 0 does not follow 2147483647, neither in a batch nor behind one: "
    "its producer is told a fatal error", (Kind.FATAL,),
    instead(producer_state, "sequence_after", _counted_on),
    instead(producer_tail, "SEQUENCES", 2**62))  # fmt: skip
bug("four remembered", "of five batches in flight to the suffix the first is forgotten: when all "
    "answers are lost its retry is told a fatal error", (Kind.FATAL,),
    edited(suffix, "remember", ("[-BATCHES_KEPT:]", "[-BATCHES_KEPT + 1:]")))  # fmt: skip
bug("duplicate told the newest offset", "a retry of a batch is told the offset of its producer's "
    "newest one", (Kind.DIFFERENT, Kind.LOST),
    edited(suffix, "judge", ('Verdict("DUPLICATE", kept)',
                             'Verdict("DUPLICATE", entry.batches[-1])')))  # fmt: skip
