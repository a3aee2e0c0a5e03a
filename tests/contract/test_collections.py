"""Runs of the collection: what is due is counted first, and a held run is allowed by name."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.contract.test_tiering_garbage import HOUR_MS, age, listed, merged
from tests.contract.tiering import Tiered
from tideline.control_plane.errors import InvalidInput
from tideline.control_plane.garbage_model import GcRunBegun
from tideline.control_plane.tiering_model import Bucket
from tideline.domain.collection import Amount


def judged(tiered: Tiered, due: Amount, held_because: str | None) -> GcRunBegun:
    """A run that found so much."""
    begun = tiered.plane.begin_gc_run(uuid4())
    tiered.plane.judge_gc_run(
        begun.run_number, listed=None, due=due, orphans=Amount(), held_because=held_because
    )
    return begun


async def test_what_is_due_is_counted_as_it_is_claimed(tiered: Tiered) -> None:
    log = await merged(tiered)
    tiered.plane.delete_records(log.topic_id, 0, 2)
    tiered.plane.mark_dead_objects(0)
    tiered.plane.report_orphans(1, Bucket.DISKLESS, listed("wal/lost"))
    tiered.plane.report_orphans(2, Bucket.DISKLESS, listed("wal/lost"))
    found = {(a.kind, a.reason): a for a in tiered.plane.measure_garbage(2, 0, 0) if a.objects}
    assert found["wal", "empty"].objects == len(tiered.plane.claim_dead_files(0)) == 2
    segments = tiered.plane.claim_dead_objects(0)
    assert found["segment", "expired"].objects == len(segments) == 6
    assert found["segment", "expired"].bytes > 0
    assert (found["orphan", "unknown"].objects, found["orphan", "unknown"].bytes) == (1, 10)
    assert not any(a.objects for a in tiered.plane.measure_garbage(2, HOUR_MS, HOUR_MS))


async def test_a_held_run_is_done_by_the_next_one_only_when_somebody_allows_it(
    tiered: Tiered,
) -> None:
    held = judged(tiered, Amount(30, 3_000), "too much")
    (row,) = tiered.plane.gc_runs(10)
    assert (row.state, row.held_because, row.due_objects) == ("held", "too much", 30)
    assert tiered.plane.begin_gc_run(uuid4()).held_run is None
    age(tiered, "gc_runs", "judged_at")
    tiered.plane.allow_gc_run(row.run_id, "ann", "a topic was deleted")
    begun = tiered.plane.begin_gc_run(uuid4())
    assert (begun.held_run, begun.held_objects, begun.held_bytes) == (row.run_id, 30, 3_000)
    assert begun.held_age_ms >= 2 * HOUR_MS, "what became due since then is not allowed"
    tiered.plane.end_gc_run(begun.run_number, 30, begun.held_run)
    done, _, used = tiered.plane.gc_runs(10)
    assert (done.state, done.deleted_objects) == ("done", 30)
    assert (used.run_number, used.used_by) == (held.run_number, done.run_number)
    assert (used.allowed_by, used.allowed_because) == ("ann", "a topic was deleted")
    assert tiered.plane.begin_gc_run(uuid4()).held_run is None, "it is used up"


async def test_only_a_held_run_is_allowed_and_by_somebody_with_a_reason(tiered: Tiered) -> None:
    begun = judged(tiered, Amount(1, 1), None)
    (row,) = tiered.plane.gc_runs(1)
    with pytest.raises(InvalidInput, match="is not held: it is running"):
        tiered.plane.allow_gc_run(row.run_id, "ann", "why not")
    with pytest.raises(InvalidInput, match="there was no run"):
        tiered.plane.allow_gc_run(uuid4(), "ann", "why not")
    with pytest.raises(InvalidInput, match="must be said"):
        tiered.plane.allow_gc_run(row.run_id, "ann", " ")
    assert begun.held_run is None


async def test_an_allowance_ends_after_a_day(tiered: Tiered) -> None:
    judged(tiered, Amount(30, 3_000), "too much")
    (row,) = tiered.plane.gc_runs(1)
    tiered.plane.allow_gc_run(row.run_id, "ann", "fine")
    tiered.scene.sql("UPDATE gc_runs SET allowed_at = allowed_at - interval '25 hours'")
    assert tiered.plane.begin_gc_run(uuid4()).held_run is None


async def test_who_adopts_another_history_reports_every_orphan_anew(tiered: Tiered) -> None:
    tiered.plane.report_orphans(1, Bucket.DISKLESS, listed("wal/a"))
    adopted = uuid4()
    with pytest.raises(InvalidInput, match="must be said"):
        tiered.plane.adopt_gc_runs(900, adopted, "", "restored")
    tiered.plane.adopt_gc_runs(900, adopted, "ann", "restored and rebuilt")
    assert tiered.scene.sql("SELECT count(*) FROM orphan_reports") == [(0,)]
    (row,) = tiered.plane.gc_runs(1)
    assert (row.run_number, row.run_id, row.allowed_by) == (900, adopted, "ann")
    assert tiered.plane.begin_gc_run(uuid4()).run_number > 900
