"""The bucket's catalog tells what Postgres has, whichever role has asked it."""

from __future__ import annotations

from contextlib import closing
from typing import cast

import pytest

from tests.contract.conftest import Database
from tests.contract.scenes import PostgresScene, Scene, batch, seed
from tests.contract.tiering import Worker, jobs_settings
from tests.unit.control_plane.catalog_world import Bucket
from tideline.control_plane import ControlPlane
from tideline.control_plane.catalog_writer import CatalogUnavailable, CatalogWriter
from tideline.control_plane.cataloged import CatalogedControlPlane
from tideline.control_plane.cataloged_jobs import CatalogedJobs
from tideline.domain.catalog import MergedSegment
from tideline.domain.catalog_fold import LogFacts, fold
from tideline.domain.ids import TopicIdPartition


async def facts(scene: Scene, bucket: Bucket, log: TopicIdPartition) -> LogFacts:
    found = fold(bucket.entries(), (await scene.plane.identity()).history_id)
    assert found.contradictions == []
    return found.logs[log]


async def test_a_migration_its_starts_and_its_end_are_told(scene: Scene) -> None:
    bucket, asked = Bucket(), scene.plane
    try:
        writer = CatalogWriter(bucket, "b", "")
        scene.plane = cast(ControlPlane, CatalogedControlPlane(asked, writer))
        gateway = await scene.gateway()
        log = await scene.hybrid_log(gateway, 10, [seed()])
        await scene.plane.reset_boundary(log, 1, 3)
        await scene.persist(log, 12, await scene.quiesce(log, [gateway], 11), seeds=[seed()])
        await scene.commit(gateway, batch(log, records=5))
        assert await scene.plane.delete_records(log, 14) == 14
        await scene.plane.advance_prefix_start(log, 3)
        told = await facts(scene, bucket, log)
        row = await asked.tracked_partition(log.topic_id, 0)
        assert row is not None
        assert told.boundary is not None
        boundary = told.boundary
        assert (boundary.boundary, boundary.leader_epoch) == (row.boundary, row.boundary_epoch)
        assert (boundary.generation, boundary.seeds) == (row.generation, (seed(),))
        assert (told.suffix_start, told.prefix_start) == (row.suffix_start, 3)
        assert told.undecided == ()
        await scene.plane.delete_topic(log.topic_id)
        assert log.topic_id in fold(bucket.entries(), (await asked.identity()).history_id).deleted
    finally:
        scene.plane = asked


async def test_what_retention_moves_is_told_by_the_jobs(
    postgres_scene: PostgresScene, database: Database
) -> None:
    bucket, gateway = Bucket(), await postgres_scene.gateway()
    writer = CatalogWriter(bucket, "b", "")
    asked = postgres_scene.plane
    try:
        postgres_scene.plane = cast(ControlPlane, CatalogedControlPlane(asked, writer))
        log = await postgres_scene.hybrid_log(gateway)
    finally:
        postgres_scene.plane = asked
    await postgres_scene.commit(gateway, batch(log, records=5), batch(log, records=5))
    with closing(CatalogedJobs(jobs_settings(database), "test", writer)) as jobs:
        assert jobs.delete_records(log.topic_id, 0, 12) == 12
        jobs.advance_prefix_start(log.topic_id, 0, 4)
        told = await facts(postgres_scene, bucket, log)
        assert (told.suffix_start, told.announced_start, told.prefix_start) == (12, 12, 4)
        bucket.fails = iter([True])
        with pytest.raises(CatalogUnavailable):
            jobs.delete_records(log.topic_id, 0, 15)
    row = await asked.tracked_partition(log.topic_id, 0)
    assert row is not None
    assert row.suffix_start == 12


async def test_a_merged_segment_is_told_by_the_jobs_before_it_counts_and_when_it_does(
    postgres_scene: PostgresScene, database: Database
) -> None:
    bucket, gateway = Bucket(), await postgres_scene.gateway()
    _, (log,) = await postgres_scene.diskless_topic()
    await postgres_scene.commit(gateway, batch(log, records=5), batch(log, records=5))
    with closing(
        CatalogedJobs(jobs_settings(database), "test", CatalogWriter(bucket, "b", ""))
    ) as jobs:
        worker = Worker(jobs)
        worker.split(log.topic_id)
        assert worker.merge(log) is not None
        told = [e for e in bucket.entries() if isinstance(e.record, MergedSegment)]
        assert sorted(entry.counted for entry in told) == [False, True]
        (row,) = jobs.merged_segments(*jobs.log_id_range())
        assert {
            (e.record.segment_id, e.record.base_offset, e.record.last_offset, e.record.size_bytes)
            for e in told
        } == {(row.segment_id, 0, 9, row.size_bytes)}
        assert jobs.tell_segments() == 0, "what Postgres has of a segment is the same record"
