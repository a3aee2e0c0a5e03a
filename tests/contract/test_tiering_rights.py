"""The jobs' role tiers, collects and records; nobody else does, and it does nothing else."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from tests.contract.conftest import Database
from tests.contract.scenes import PostgresScene, batch
from tests.contract.tiering import ALL_OLD, Tiered, Worker, jobs
from tideline.control_plane import connect
from tideline.control_plane.errors import ControlPlaneFailure

STATUS = (
    "tiering_status",
    "coverage_status",
    "pause_tiering",
    "resume_tiering",
    "request_tiering",
    "list_gc_runs",
    "jobs_known",
    "verify_verdicts_of",
)
STEPS = (
    "claim_wal_files",
    "finish_split",
    "release_claim",
    "release_claims",
    "merge_candidates",
    "begin_merge",
    "renew_merge",
    "pending_reads",
    "merge_claimed_for",
    "take_tiering_work",
    "finish_merge",
    "abandon_merge",
    "record_tiering_failure",
    "claim_dead_objects",
    "forget_dead_objects",
    "report_orphans",
    "claim_orphans",
    "forget_orphans",
    "begin_gc_run",
    "judge_gc_run",
    "end_gc_run",
    "allow_gc_run",
    "adopt_gc_runs",
    "confirm_coverage",
    "record_coverages",
    "refresh_statistics",
    "note_job_begun",
    "note_job_ended",
    "pin_reads",
    "unpin_reads",
    "record_verify_verdict",
)
READS = (
    "coverage_looks",
    "log_id_range",
    "tiering_partitions",
    "tiering_batches",
    "tiering_segments",
    "list_read_pins",
    "topic_log_ids",
    "table_suffix",
)
INTERNAL = (
    "record_coverage",
    "forget_dead_splits",
    "mark_segments_for_deletion",
    "judge_lessened_files",
    "due_objects",
    "due_orphans",
    "mark_split_batches",
    "take_merged_batches",
    "note_tiering_work",
    "end_merge_claim",
    "settle_tiered_region",
    "unpark_tiering",
    "write_seeds",
    "segment_view",
)


def callable_by(database: Database, role: str, functions: tuple[str, ...]) -> set[str]:
    with psycopg.connect(database.dsn) as connection:
        rows = connection.execute(
            "SELECT p.proname FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace "
            "WHERE n.nspname = 'tideline' AND p.proname = ANY (%s) "
            "AND has_function_privilege(%s, p.oid, 'EXECUTE')",
            [list(functions), role],
        )
        return {row[0] for row in rows}


def test_each_role_may_call_what_its_part_needs(database: Database) -> None:
    for functions in (STATUS, STEPS, READS):
        assert callable_by(database, "tideline_jobs", functions) == set(functions)
    assert callable_by(database, "tideline_worker", STATUS + STEPS) == set(STATUS)
    assert callable_by(database, "tideline_gateway_1", STATUS + STEPS + READS) == set()
    for role in ("tideline_jobs", "tideline_worker", "tideline_gateway_1"):
        assert callable_by(database, role, INTERNAL) == set()


def test_what_the_jobs_may_call_pins_its_search_path(database: Database) -> None:
    with psycopg.connect(database.dsn) as connection:
        rows = connection.execute(
            "SELECT p.proname FROM pg_proc AS p "
            "JOIN pg_namespace AS n ON n.oid = p.pronamespace AND n.nspname = 'tideline' "
            "WHERE has_function_privilege('tideline_jobs', p.oid, 'EXECUTE') "
            "AND NOT (p.prosecdef AND p.proconfig @> '{\"search_path=tideline, pg_temp\"}')"
        ).fetchall()
    assert rows == []


@pytest.mark.parametrize("object_name", ["tiering_tokens", "split_files_split_id_seq"])
def test_no_role_draws_tokens_itself(database: Database, object_name: str) -> None:
    with (
        psycopg.connect(database.as_role("tideline_jobs"), autocommit=True) as connection,
        pytest.raises(errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT nextval(%s)", [f"tideline.{object_name}"])


async def test_jobs_tier_but_neither_commit_nor_set_boundaries(
    postgres_scene: PostgresScene, database: Database
) -> None:
    gateway = await postgres_scene.gateway()
    with jobs(database) as plane:
        tiered = Tiered(postgres_scene, gateway, Worker(plane))
        log = await tiered.diskless()
        tiered.worker.split(log.topic_id)
        assert tiered.worker.merge(log) is not None
    async with connect(database.settings("tideline_jobs"), application_name="test") as plane:
        for refused in (
            plane.commit_file(gateway.gateway_id, gateway.incarnation, "k", 1, [batch(log)]),
            plane.reset_boundary(log, 0, 0),
            plane.delete_topic(log.topic_id),
        ):
            with pytest.raises(ControlPlaneFailure, match="permission denied"):
                await refused


async def test_the_gateway_reads_segments_but_does_not_tier(
    postgres_scene: PostgresScene, database: Database
) -> None:
    gateway = await postgres_scene.gateway()
    with jobs(database) as plane:
        tiered = Tiered(postgres_scene, gateway, Worker(plane))
        log = await tiered.diskless()
        tiered.worker.split(log.topic_id)
        tiered.worker.merge(log)
    async with connect(database.settings("tideline_gateway_1"), application_name="test") as plane:
        assert await Tiered(PostgresScene(plane, database.dsn), gateway, tiered.worker).read(
            log
        ) == [("segment", 0, 5)]
    with (
        jobs(database, "tideline_gateway_1") as plane,
        pytest.raises(ControlPlaneFailure, match="permission denied"),
    ):
        Worker(plane).claim({log.topic_id: ALL_OLD})
