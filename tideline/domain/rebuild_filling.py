"""Which offsets of a log an operator gives up at a rebuild, and by which object (docs/restore.md).

What always holds: the same log gives the same object, whenever it is made and by whom, so that a
rebuild may be ended anywhere and run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import UUID

from tideline.domain.rebuild import Rebuilt
from tideline.domain.rebuild_plan import LogPlan, Verdict
from tideline.domain.wal_filling import MOST_OFFSETS, Filled, FillingObject
from tideline.domain.wal_placing import Hole

NO_HISTORY = UUID(int=0)
"""In the footer, where nobody knows which history counts."""


def holes_to_fill(plan: LogPlan, rebuilt: Rebuilt, *, asked: bool = True) -> tuple[Hole, ...]:
    """All of a log's, also the one that is reserved at its end; none of a log that contradicts
    itself, or of which some batch may lie anywhere: there nobody knows yet what is lost. Without
    being ``asked``, only what was acknowledged to nobody."""
    verdicts = {Verdict.HOLES, Verdict.OPEN, Verdict.UNANSWERED} if asked else {Verdict.UNANSWERED}
    if plan.verdict not in verdicts or plan.log in rebuilt.doubtful:
        return ()
    return plan.holes


def filling_of(
    plan: LogPlan, rebuilt: Rebuilt, history: UUID | None, *, asked: bool = True
) -> FillingObject | None:
    """What fills the log's holes; ``None``: nothing is to be filled."""
    holes = holes_to_fill(plan, rebuilt, asked=asked)
    if not holes:
        return None
    times = list(_append_times(plan))
    newest = rebuilt.newest_ms if rebuilt.newest_ms >= 0 else max((t for _, t in times), default=0)
    return FillingObject(
        plan.log,
        history or NO_HISTORY,
        newest,
        tuple(_filled(holes, times, newest)),
        tuple(sorted({o.wal_object.key for o in plan.open_objects if o.placed_at is None})),
    )


def _append_times(plan: LogPlan) -> Iterator[tuple[int, int]]:
    """Last offset and time of the commit of each batch, in offset order."""
    known = plan.known.batches if plan.known is not None else ()
    rows = [(row.last_offset, row.append_time) for row in known]
    rows += [(row.last_offset, row.append_time) for row in plan.add]
    yield from sorted(rows)


def _filled(holes: Iterable[Hole], times: list[tuple[int, int]], newest: int) -> Iterator[Filled]:
    """Times of commits grow with the offset: each has that of the batch before it, or of the one
    behind it where none is."""
    at = 0
    for hole in holes:
        while at < len(times) and times[at][0] < hole.base_offset:
            at += 1
        near = times[max(0, at - 1)][1] if times else newest
        base = hole.base_offset
        while base <= hole.last_offset:
            offsets = min(MOST_OFFSETS, hole.last_offset - base + 1)
            yield Filled(base, offsets, min(near, newest))
            base += offsets
