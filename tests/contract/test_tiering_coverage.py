"""Coverage verdicts decide tieringComplete, fenced by generation, B0 and time; bulk reads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.contract.conftest import Database
from tests.contract.scenes import batch
from tests.contract.tiering import Tiered, jobs
from tideline.control_plane.job_model import JobRow
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import CoverageLook, NewVerdict, RecordedVerdict
from tideline.domain.ids import TopicIdPartition

GAP: Mapping[str, Any] = {"gaps": [[3, 5]]}


def record(
    tiered: Tiered,
    log: TopicIdPartition,
    complete: bool,
    observed_at: int,
    *,
    generation: int = 1,
    boundary: int = 10,
    seen_complete: bool = True,
    objects_seen_at: int | None = None,
    detail: Mapping[str, Any] = GAP,
) -> bool:
    told = recorded(tiered, log, complete, observed_at, generation=generation, boundary=boundary,
                    seen_complete=seen_complete, objects_seen_at=objects_seen_at,
                    detail=detail)  # fmt: skip
    assert told.refused is None
    return told.written


def recorded(
    tiered: Tiered,
    log: TopicIdPartition,
    complete: bool,
    observed_at: int,
    *,
    generation: int = 1,
    boundary: int = 10,
    seen_complete: bool = True,
    objects_seen_at: int | None = None,
    detail: Mapping[str, Any] = GAP,
) -> RecordedVerdict:
    """``objects_seen_at``: of an earlier run, whose look is relied on."""
    seen_at = observed_at if objects_seen_at is None else objects_seen_at
    verdict = NewVerdict(
        log_id(tiered, log), log.topic_id, log.partition, generation, boundary, complete,
        "whole" if complete else "offsets 3 to 5 are missing", dict(detail), observed_at,
        seen_complete, seen_at, "ab" * 16 if complete else None,
    )  # fmt: skip
    (told,) = tiered.plane.record_coverage([verdict], "run")
    assert told.log_id == verdict.log_id
    return told


def log_id(tiered: Tiered, log: TopicIdPartition) -> int:
    rows = tiered.plane.partitions(*tiered.plane.log_id_range())
    return next((row.log_id for row in rows if row.log == log), 1 << 40)


async def ready(tiered: Tiered, log: TopicIdPartition) -> bool:
    row = await tiered.scene.plane.tracked_partition(log.topic_id, log.partition)
    assert row is not None
    return row.ready


async def test_the_verdict_sets_and_clears_readiness(tiered: Tiered) -> None:
    log = await tiered.scene.hybrid_log(tiered.gateway, 10)
    (unseen,) = tiered.plane.coverage_status()
    assert (unseen.complete, unseen.observed_at, unseen.boundary) == (None, None, 10)
    for complete, observed_at, since in (
        (True, 100, 100),
        (True, 200, 100),
        (False, 300, 300),
        (False, 400, 300),
        (True, 500, 500),
    ):
        assert record(tiered, log, complete, observed_at)
        assert await ready(tiered, log) is complete
        (status,) = tiered.plane.coverage_status()
        assert (status.complete, status.tiering_complete) == (complete, complete)
        assert (status.observed_at, status.since) == (observed_at, since)
        assert (status.detail, status.run_id) == ({"gaps": [[3, 5]]}, "run")
    assert tiered.plane.coverage_status("another") == []


async def test_of_a_prefix_with_a_gap_the_tiered_high_offset_is_the_last_before_it(
    tiered: Tiered,
) -> None:
    log = await tiered.scene.hybrid_log(tiered.gateway, 10)

    def high_offset() -> int:
        (status,) = tiered.plane.tiering_status()
        return status.tiered_high_offset

    assert high_offset() == -1, "nobody has looked"
    for at, (start, covered_to, known) in enumerate(((0, 3, 2), (0, 0, -1), (4, 4, -1), (4, 9, 8))):
        found = {"wanted_start": start, "covered_to": covered_to}
        assert record(tiered, log, False, at, detail=found)
        assert high_offset() == known
    assert record(tiered, log, True, 100, detail={"wanted_start": 4, "covered_to": 10})
    assert high_offset() == 9


async def test_an_older_run_never_overwrites_a_newer_one(tiered: Tiered) -> None:
    log = await tiered.scene.hybrid_log(tiered.gateway, 10)
    assert record(tiered, log, False, 200)
    assert not record(tiered, log, True, 199)
    assert not await ready(tiered, log)
    assert record(tiered, log, False, 200)


async def test_who_relies_on_an_earlier_look_does_not_undo_what_an_audit_has_found(
    tiered: Tiered,
) -> None:
    log = await tiered.scene.hybrid_log(tiered.gateway, 10)
    assert record(tiered, log, True, 100)
    assert record(tiered, log, True, 150, objects_seen_at=100), "nothing was found since"
    assert record(tiered, log, False, 200)
    assert not record(tiered, log, True, 300, objects_seen_at=100)
    assert not await ready(tiered, log)
    assert list(tiered.plane.coverage_looks()) == []
    await tiered.scene.plane.set_tiering_complete(log, 1, True, "readiness has listed them")
    assert not record(tiered, log, True, 400, objects_seen_at=100), "that look is not the last one"
    (status,) = tiered.plane.coverage_status()
    assert (status.complete, status.observed_at, status.tiering_complete) == (False, 200, True)
    assert record(tiered, log, True, 500), "it has listed them itself"


async def test_an_audit_counts_against_a_run_that_began_later_and_listed_nothing(
    tiered: Tiered,
) -> None:
    log = await tiered.scene.hybrid_log(tiered.gateway, 10)
    assert record(tiered, log, True, 100)
    assert record(tiered, log, True, 300, objects_seen_at=100)
    assert record(tiered, log, False, 200)
    assert not await ready(tiered, log)
    assert record(tiered, log, True, 400)
    assert not record(tiered, log, False, 350), "the objects were listed since"
    assert await ready(tiered, log)


async def test_a_look_that_is_not_the_last_one_is_not_confirmed(tiered: Tiered) -> None:
    log = await tiered.scene.hybrid_log(tiered.gateway, 10)
    whole = NewVerdict(log_id(tiered, log), log.topic_id, 0, 1, 10, True, "whole", {}, 100, True,
                       100, "0f")  # fmt: skip
    not_quite = replace(whole, observed_at=200, objects_seen_at=200, objects_digest=None)
    late = replace(whole, observed_at=300)
    told = [
        one.written
        for verdict in (whole, not_quite, late)
        for one in tiered.plane.record_coverage([verdict], "run")
    ]
    assert told == [True, True, False]
    assert list(tiered.plane.coverage_looks()) == [], "every object is listed again"


IN_2100 = 4_102_444_800_000
"""ms"""


async def test_a_run_whose_clock_was_ahead_does_not_outlast_those_that_look_after_it(
    tiered: Tiered,
) -> None:
    log = await tiered.scene.hybrid_log(tiered.gateway, 10)
    assert record(tiered, log, True, IN_2100)
    assert record(tiered, log, True, IN_2100), "confirmed, too"
    (status,) = tiered.plane.coverage_status()
    now = time.time_ns() // 1_000_000
    assert status.observed_at is not None
    assert status.objects_seen_at is not None
    assert now - 60_000 < status.objects_seen_at <= status.observed_at <= now + 1
    assert record(tiered, log, False, now + 1_000)
    tiered.scene.sql("UPDATE coverage_results SET observed_at = '2100-01-01'")
    assert record(tiered, log, True, now), "what another version has written is no obstacle"


async def test_a_run_that_looked_before_readiness_does_not_clear_what_readiness_proved(
    tiered: Tiered,
) -> None:
    log = await tiered.scene.hybrid_log(tiered.gateway, 10)
    (before,) = tiered.plane.coverage_status()
    assert not before.tiering_complete
    await tiered.scene.plane.set_tiering_complete(log, 1, True, "")
    assert not record(tiered, log, False, 100, seen_complete=before.tiering_complete)
    assert await ready(tiered, log)
    (status,) = tiered.plane.coverage_status()
    assert (status.complete, status.tiering_complete) == (None, True)
    assert record(tiered, log, False, 200, seen_complete=True), "who doubts it may clear it"
    assert not await ready(tiered, log)


async def test_a_verdict_on_another_boundary_or_generation_is_refused(tiered: Tiered) -> None:
    postgres_scene = tiered.scene
    log = await postgres_scene.hybrid_log(tiered.gateway, 10)
    assert record(tiered, log, True, 900)
    for fence in ({"generation": 0}, {"boundary": 9}):
        assert "TL003" in (recorded(tiered, log, False, 950, **fence).refused or "")
    assert await ready(tiered, log)
    await postgres_scene.plane.reset_boundary(log, 1, 3)
    assert "TL022" in (recorded(tiered, log, True, 950).refused or "")
    generation = await postgres_scene.quiesce(log, [tiered.gateway], 9)
    await postgres_scene.persist(log, 20, generation)
    (fresh,) = tiered.plane.coverage_status()
    assert (fresh.complete, fresh.tiering_complete) == (None, False)
    assert record(tiered, log, False, 100, generation=generation, boundary=20)
    (status,) = tiered.plane.coverage_status()
    assert (status.complete, status.since) == (False, 100)
    await postgres_scene.plane.delete_topic(log.topic_id)
    assert "TL002" in (recorded(tiered, log, True, 990).refused or "")
    unknown = TopicIdPartition(tiered.worker.worker, 0)
    assert "TL001" in (recorded(tiered, unknown, True, 1).refused or "")


async def test_verdicts_that_stand_are_confirmed_without_a_lock_of_their_logs(
    tiered: Tiered, database: Database
) -> None:
    logs = [await tiered.scene.hybrid_log(tiered.gateway, 10) for _ in range(3)]
    ids = [log_id(tiered, log) for log in logs]
    verdicts = [
        NewVerdict(
            number, log.topic_id, 0, 1, 10, True, "whole", {"segments": 1}, 100, False, 100, "0f"
        )
        for number, log in zip(ids, logs, strict=True)
    ]
    told = list(tiered.plane.record_coverage(verdicts, "first"))
    assert [one.log_id for one in told if one.written] == ids
    verdicts = [
        replace(one, observed_at=200, seen_complete=True, objects_seen_at=200, objects_digest="1f")
        for one in verdicts
    ]
    verdicts[1] = replace(verdicts[1], complete=False, reason="offset 3 is missing")
    verdicts[2] = replace(verdicts[2], generation=0)
    with psycopg.connect(database.dsn) as commit:
        commit.execute("SELECT FROM tideline.logs WHERE log_id = %s FOR UPDATE", [ids[0]])
        stood, changed, refused = tiered.plane.record_coverage(verdicts, "second")
    assert (stood.log_id, changed.log_id, refused.log_id) == tuple(ids)
    assert (stood.written, changed.written, refused.written) == (True, True, False)
    found = {row.log_id: row for row in tiered.plane.coverage_status()}
    assert [found[n].observed_at for n in ids] == [200, 200, 100]
    assert [found[n].since for n in ids] == [100, 200, 100]
    assert [found[n].run_id for n in ids] == ["second", "second", "first"]
    assert [await ready(tiered, log) for log in logs] == [True, False, True]
    assert [found[n].objects_seen_at for n in ids] == [200, 200, 100]
    looks = {one.log_id: one for one in tiered.plane.coverage_looks()}
    assert looks == {
        ids[0]: CoverageLook(ids[0], 10, 200, b"\x1f"),
        ids[2]: CoverageLook(ids[2], 10, 100, b"\x0f"),
    }, "of what is not complete nothing is relied on"
    assert [one.written for one in tiered.plane.record_coverage(verdicts[:1], "again")] == [True]
    late = replace(verdicts[0], observed_at=150)
    assert [one.written for one in tiered.plane.record_coverage([late], "late")] == [False]
    assert found[ids[0]].observed_at == 200


async def test_what_readiness_said_since_is_not_confirmed_away(tiered: Tiered) -> None:
    log = await tiered.scene.hybrid_log(tiered.gateway, 10)
    assert record(tiered, log, True, 100)
    await tiered.scene.plane.set_tiering_complete(log, 1, False, "a replica is behind")
    assert record(tiered, log, True, 200), "the flag is not what the verdict says: it is set again"
    assert await ready(tiered, log)


async def test_without_a_prefix_nothing_can_be_missing(tiered: Tiered) -> None:
    log = await tiered.scene.hybrid_log(tiered.gateway, 10)
    await tiered.commit(log, 1)
    tiered.plane.advance_prefix_start(log.topic_id, 0, 10)
    assert record(tiered, log, False, 100)
    assert await ready(tiered, log)
    assert tiered.states(log) == ("DISKLESS_ONLY", -1, -1, 10)
    await tiered.scene.plane.set_tiering_complete(log, 1, True, "the prefix is empty")
    assert tiered.states(log)[2] == -1


async def test_jobs_read_in_half_open_ranges_page_by_page(
    tiered: Tiered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tideline.control_plane.jobs.PAGE", 2)
    postgres_scene = tiered.scene
    assert tiered.plane.log_id_range() == (0, 0)
    name, logs = await postgres_scene.diskless_topic(partitions=3)
    for log in logs:
        await postgres_scene.commit(tiered.gateway, batch(log), batch(log), batch(log))
    await postgres_scene.plane.override_config(logs[0].topic_id, "retention.bytes", "-1", "1000")
    tiered.plane.request_tiering(name)
    lo, hi = tiered.plane.log_id_range()
    rows = list(tiered.plane.partitions(lo, hi))
    assert [row.partition for row in rows] == [0, 1, 2]
    assert (rows[0].topic, rows[0].kind, rows[0].state) == (name, "born_diskless", "DISKLESS_ONLY")
    assert rows[0].user_configs == {"retention.bytes": "1000"}
    assert (rows[0].merge_frontier, rows[0].suffix_start, rows[0].high_watermark) == (0, 0, 3)
    assert rows[0].tiering_requested_at is not None
    assert [row.partition for row in tiered.plane.partitions(lo + 1, hi - 1)] == [1]
    assert [(b.log_id - lo, b.base_offset) for b in tiered.plane.batches(lo, hi)] == [
        (log, offset) for log in range(3) for offset in range(3)
    ]
    assert len(list(tiered.plane.batches(lo + 1, hi))) == 6
    worker = tiered.worker
    worker.split(logs[0].topic_id)
    for log in logs[:2]:
        while worker.merge(log, max_batches=1):
            pass
    segments = list(tiered.plane.merged_segments(lo, hi))
    assert [(s.partition, s.base_offset) for s in segments] == [
        (partition, offset) for partition in range(2) for offset in range(3)
    ]
    assert len(list(tiered.plane.merged_segments(lo, lo + 1))) == 3
    await postgres_scene.plane.delete_topic(logs[0].topic_id)
    assert all(row.deleted for row in tiered.plane.partitions(lo, hi))


async def test_jobs_are_told_where_an_accepted_log_gap_ends_the_prefix(tiered: Tiered) -> None:
    log = await tiered.scene.hybrid_log(tiered.gateway, 10)
    (row,) = tiered.plane.partitions(*tiered.plane.log_id_range())
    assert (row.accepted_gap_from, row.prefix_end, row.boundary) == (-1, 10, 10)
    await tiered.scene.plane.accept_gap(log, 1, 4, 7, 10, "ada", "a disk is lost", {})
    (row,) = tiered.plane.partitions(*tiered.plane.log_id_range())
    assert (row.accepted_gap_from, row.prefix_end, row.boundary) == (7, 7, 10)
    assert record(tiered, log, True, 100), "the verdict is fenced by B0, not by the prefix's end"


def of_merge_and_split(plane: JobsControlPlane) -> list[JobRow]:
    return [row for row in plane.known_jobs() if row.job in ("merge", "split")]


def test_how_the_newest_runs_of_each_job_went_is_known(database: Database) -> None:
    first, second = uuid4(), uuid4()
    with jobs(database) as plane:
        plane.note_job_begun(["split", "merge", "merge"], first)
        merging, splitting = of_merge_and_split(plane)
        assert (merging.job, splitting.job) == ("merge", "split")
        assert splitting.run_id == first
        assert splitting.unfinished_ms is not None
        assert splitting.succeeded_ms is None
        plane.note_job_ended(["split", "merge"], first, None)
        plane.note_job_begun(["merge"], second)
        plane.note_job_ended(["merge"], second, "S3 is away")
        failed, well = of_merge_and_split(plane)
    assert well.run_id == first
    assert well.unfinished_ms is None
    assert well.succeeded_ms is not None
    assert well.now_ms >= well.succeeded_ms >= (well.began_ms or 0) > 1_700_000_000_000
    assert not well.failing
    assert (failed.run_id, failed.error, failed.failing) == (second, "S3 is away", True)
    assert failed.succeeded_ms is not None, "what went well before stays known"
    assert abs(failed.succeeded_ms - well.succeeded_ms) < 1_000


def test_rows_that_wait_for_their_tables_and_rows_that_are_lost_are_known(
    database: Database,
) -> None:
    run, since = uuid4(), datetime(2026, 3, 1, tzinfo=UTC)
    with jobs(database) as plane:
        plane.note_job_begun(["gc"], run)
        plane.note_job_ended(["gc"], run, None, since, 20)
        plane.note_job_ended(["gc"], run, None, since, 3)
        (late,) = (row for row in plane.known_jobs() if row.job == "gc")
        plane.note_job_ended(["gc"], run, None)
        (told,) = (row for row in plane.known_jobs() if row.job == "gc")
    assert (late.records_overdue_ms, late.records_lost) == (1_772_323_200_000, 23)
    assert (told.records_overdue_ms, told.records_lost) == (None, 23)


def test_a_run_that_ends_after_the_next_began_leaves_that_one_running(database: Database) -> None:
    older, newer = uuid4(), uuid4()
    with jobs(database) as plane:
        plane.note_job_begun(["gc"], older)
        plane.note_job_begun(["gc"], newer)
        plane.note_job_ended(["gc"], older, None)
        (row,) = (row for row in plane.known_jobs() if row.job == "gc")
        assert row.run_id == newer
        assert row.unfinished_ms is not None
        assert row.succeeded_ms is not None
        plane.note_job_ended(["gc"], newer, None)
        (row,) = (row for row in plane.known_jobs() if row.job == "gc")
    assert row.unfinished_ms is None
