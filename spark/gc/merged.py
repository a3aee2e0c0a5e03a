"""Merged segments are looked at once more before what they were merged from may go.

A merge counts what it sent. A store that lets the end of an earlier, partial attempt win over the
whole one behind it can take that away later, and the WAL objects would be the only copy. So no
object that died since the oldest merge whose segment nobody has seen whole is due
(``collection_horizon``), and a segment is looked at a grace after it was finished: no upload lasts
longer. One that is not as it was sent is told of, and holds what died since for as long as it is
kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from spark.common.merged_objects import Lists, why_not_whole
from spark.common.rows import from_frame, map_rows, to_frame
from tideline.control_plane.garbage_model import UnseenSegment
from tideline.control_plane.jobs import JobsControlPlane
from tideline.object_store.client import ObjectStoreClient

if TYPE_CHECKING:
    from spark.common.entry import Job

MOST = 100_000
"""Segments that one run looks at, the oldest first; a rebuild makes more, and later runs go on."""
SEGMENTS_PER_TASK = 100
MOST_TOLD = 5


@dataclass(frozen=True, slots=True)
class LookedAt:
    segment_id: UUID
    why: str
    """Which of its objects are not whole; empty: they are."""


@dataclass(frozen=True, slots=True)
class MergedLook:
    looked_at: int
    not_whole: tuple[str, ...]
    """Each with what is wrong with it."""

    @property
    def problem(self) -> str | None:
        if not self.not_whole:
            return None
        more = len(self.not_whole) - MOST_TOLD
        return (
            f"{len(self.not_whole)} merged segments are not what was sent: "
            f"{'; '.join(self.not_whole[:MOST_TOLD])}{f' and {more} more' if more > 0 else ''}. "
            "What they were merged from stays, with everything that died since "
            "(docs/failures.md#a-merged-segment-that-is-not-whole)"
        )


def look_at(store: Lists, bucket: str, segments: Iterable[UnseenSegment]) -> Iterator[LookedAt]:
    for one in segments:
        yield LookedAt(
            one.segment_id, why_not_whole(store, bucket, one.object_key_stem, one.wanted())
        )


def note(
    plane: JobsControlPlane, unseen: Sequence[UnseenSegment], looks: Sequence[LookedAt]
) -> MergedLook:
    """Those that are whole count as seen from now on."""
    plane.note_segments_seen([one.segment_id for one in looks if not one.why])
    stems = {one.segment_id: one.object_key_stem for one in unseen}
    wrong = sorted(f"{stems[one.segment_id]}: {one.why}" for one in looks if one.why)
    return MergedLook(len(looks), tuple(wrong))


def look_at_merged(job: Job, plane: JobsControlPlane) -> MergedLook:
    """Every segment that was finished a grace ago and that nobody has seen whole."""
    settings = job.settings
    unseen = plane.unseen_segments(settings.gc_grace_ms, MOST)
    if not unseen:
        return MergedLook(0, ())
    job.progress(f"{len(unseen)} merged segments to look at")

    def look(segments: Iterator[UnseenSegment]) -> Iterator[LookedAt]:
        return look_at(ObjectStoreClient(settings), settings.s3_tiered_bucket, segments)

    tasks = min(job.parallelism, -(-len(unseen) // SEGMENTS_PER_TASK))
    frame = to_frame(job.spark, UnseenSegment, unseen, tasks)
    found = from_frame(LookedAt, map_rows(frame, UnseenSegment, LookedAt, look))
    return note(plane, unseen, found)
