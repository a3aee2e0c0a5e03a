"""A Postgres that was lost comes back from the bucket, row by row, and goes on where it was."""

from __future__ import annotations

from dataclasses import asdict
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.contract.conftest import Database, PostgresServer
from tests.contract.rebuilding import BY, look, stop
from tests.contract.recorded import Recorder, rows
from tests.contract.scenes import PostgresScene, batch
from tests.contract.test_restored_postgres import lost_afterwards
from tests.contract.tiering import PREFIX, Worker, jobs, segment_of
from tests.unit.rebuild.buckets import Bucket
from tideline.control_plane import connect
from tideline.control_plane.errors import ControlPlaneFailure, GatewayFenced, RebuildRefused
from tideline.control_plane.migrate import apply
from tideline.control_plane.model import FindBatchesRequest
from tideline.domain import catalog
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_state import StoredProducerState
from tideline.domain.rebuild_plan import Verdict
from tideline.kafka.segment_files import ProducerSnapshotEntry, encode_snapshot
from tideline.rebuild import report
from tideline.rebuild.postgres import RebuildPostgres
from tideline.rebuild.survey import Survey
from tideline.rebuild.write import watch, write

DAY_MS = 86_400_000
SEEDS = range(6)
LIVING = """SELECT topic_id, partition, suffix_start, high_watermark, base_offset, last_offset,
    object_key, byte_offset FROM logs LEFT JOIN (batches JOIN wal_files USING (file_id))
    ON batches.log_id = logs.log_id AND last_offset >= suffix_start
    WHERE deleted_at IS NULL ORDER BY topic_id, partition, base_offset"""
"""Batches of topics that were not deleted."""


async def rebuild(
    bucket: Bucket, postgres: RebuildPostgres, scene: PostgresScene, **choices: object
) -> Survey:
    stop(postgres)
    found = look(bucket, postgres, **choices)
    assert report.blockers(found) == []
    write(found, postgres, PREFIX)
    await scene.plane.begin_history(*BY)
    return found


@pytest.mark.parametrize("number", SEEDS)
async def test_an_empty_postgres_becomes_the_one_that_was_lost(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, bucket: Bucket, number: int
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(number))
    await recorder.begin()
    await recorder.play(80)
    await recorder.settle()
    before = rows(postgres_scene)
    postgres_scene.clear()
    found = await rebuild(bucket, postgres, postgres_scene)
    assert report.is_fine(found), list(report.lines(found))
    assert {plan.verdict for plan in found.plans.values()} <= {Verdict.BEHIND, Verdict.WHOLE}
    after = rows(postgres_scene)
    for name in before:
        assert after[name] == before[name], name
    assert before["batches"]


@pytest.mark.parametrize("number", SEEDS)
async def test_an_old_backup_becomes_the_one_that_was_lost(
    postgres_scene: PostgresScene,
    postgres: RebuildPostgres,
    database: Database,
    bucket: Bucket,
    number: int,
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(100 + number))
    await recorder.begin()
    await recorder.play(40)
    with lost_afterwards(database):
        await recorder.play(40)
        await recorder.settle()
        before = rows(postgres_scene)
    assert rows(postgres_scene) != before
    behind = look(bucket, postgres)
    assert Verdict.BEHIND in {plan.verdict for plan in behind.plans.values()}
    found = await rebuild(bucket, postgres, postgres_scene)
    assert report.is_fine(found), list(report.lines(found))
    after = rows(postgres_scene)
    for name in ("topics", "logs", "batches", "producers", "snapshots"):
        assert after[name] == before[name], name
    again = look(bucket, postgres)
    assert {plan.verdict for plan in again.plans.values()} == {Verdict.WHOLE}


async def test_a_dump_of_the_running_server_that_is_restored_elsewhere_is_a_backup(
    postgres_scene: PostgresScene,
    postgres_server: PostgresServer,
    database: Database,
    bucket: Bucket,
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(200))
    await recorder.begin()
    await recorder.play(40)
    name = str(conninfo_to_dict(database.dsn)["dbname"])
    dump = postgres_server.client("pg_dump", name)
    await recorder.play(40)
    await recorder.settle()
    before = rows(postgres_scene)
    another = f"{name}_restored"
    postgres_server.client("psql", "postgres", f"--command=CREATE DATABASE {another}")
    postgres_server.client("psql", another, "--set=ON_ERROR_STOP=1", stdin=dump)
    restored = Database(make_conninfo(database.dsn, dbname=another))
    apply(restored.dsn)
    async with connect(restored.settings(), application_name="contract-test") as plane:
        scene, postgres = PostgresScene(plane, restored.dsn), RebuildPostgres(restored.settings())
        assert rows(scene) != before
        found = await rebuild(bucket, postgres, scene)
        assert report.is_fine(found), list(report.lines(found))
        after = rows(scene)
        for table in ("topics", "logs", "batches", "producers", "snapshots"):
            assert after[table] == before[table], table
        postgres.close()
        scene.jobs.close()


@pytest.mark.parametrize("another", [False, True])
async def test_a_topic_that_was_deleted_after_the_backup_stays_so_and_its_name_may_be_anothers(
    postgres_scene: PostgresScene,
    postgres: RebuildPostgres,
    database: Database,
    bucket: Bucket,
    another: bool,
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(5))
    await recorder.begin()
    await recorder.play(40)
    await recorder.settle()
    gone, ((name,),) = (
        recorder.logs[1],
        postgres_scene.sql(
            "SELECT name FROM topics WHERE topic_id = %s", recorder.logs[1].topic_id
        ),
    )
    (left,) = [log for log in recorder.logs if log.topic_id != gone.topic_id]
    with lost_afterwards(database):
        await postgres_scene.plane.delete_topic(gone.topic_id)
        bucket.note(catalog.TopicDeleted(gone.topic_id, "gateway", "Kafka deleted it"))
        recorder.logs = [left]
        if another:
            recorder.logs += await recorder.born(str(name))
        await recorder.play(40)
        await recorder.settle()
        before = rows(postgres_scene)["topics"], postgres_scene.sql(LIVING)
    found = await rebuild(bucket, postgres, postgres_scene)
    assert report.is_fine(found), list(report.lines(found))
    assert (rows(postgres_scene)["topics"], postgres_scene.sql(LIVING)) == before
    assert {row[0] for row in before[1]} == {log.topic_id for log in recorder.logs}


async def test_limits_that_were_changed_after_the_backup_hold(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, database: Database, bucket: Bucket
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(6))
    await recorder.begin()
    changed = recorder.logs[1].topic_id
    with lost_afterwards(database):
        await postgres_scene.plane.update_topic_limits(changed, max_message_bytes=20_000)
        bucket.note(catalog.Limits(changed, None, 20_000, None, None, 1_000))
        before = rows(postgres_scene)
    await rebuild(bucket, postgres, postgres_scene)
    assert rows(postgres_scene)["topics"] == before["topics"]


async def test_configs_that_were_let_go_of_after_the_backup_are_the_users_again(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, database: Database, bucket: Bucket
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(6))
    await recorder.begin()
    plane, topic = postgres_scene.plane, recorder.logs[0].topic_id
    await plane.override_config(topic, "retention.bytes", "-1", "5000")
    await plane.override_config(topic, "local.retention.bytes", "0", None)
    with lost_afterwards(database):
        await plane.update_user_config(topic, "retention.bytes", "6000")
        await plane.release_config(topic, "local.retention.bytes", None)
        bucket.note(
            catalog.HeldConfig(topic, "retention.bytes", True, "-1", "6000", 2_000),
            catalog.HeldConfig(topic, "local.retention.bytes", False, None, None, 2_000),
        )
        before = await plane.config_overrides_of(topic)
    assert await plane.config_overrides_of(topic) != before
    await rebuild(bucket, postgres, postgres_scene)
    assert await plane.config_overrides_of(topic) == before


async def test_commits_go_on_behind_what_was_rebuilt_and_retries_are_recognised(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, bucket: Bucket
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(7))
    await recorder.begin()
    log = recorder.logs[1]
    gateway = recorder.gateways[0]
    sent = batch(log, records=2, producer=(9, 0, 0))
    await recorder.commit(gateway, recorder.upload(gateway, [sent]))
    await recorder.settle()
    postgres_scene.clear()
    await rebuild(bucket, postgres, postgres_scene)
    process = await postgres_scene.gateway()
    retried, following, strange = await postgres_scene.commit(
        process,
        sent,
        batch(log, producer=(9, 0, 2)),
        batch(log, producer=(9, 0, 9)),
    )
    assert (retried.error, retried.base_offset) == ("DUPLICATE", 0)
    assert (following.error, following.base_offset) == ("NONE", 2)
    assert strange.error == "OUT_OF_ORDER_SEQUENCE"
    crossed = recorder.logs[0]
    (first,) = await postgres_scene.commit(process, batch(crossed, producer=(3, 0, 10)))
    assert (first.error, first.base_offset) == ("NONE", 10), "seeds at B0 count"


def merged(plane: Any, bucket: Bucket, log: TopicIdPartition, batches: int) -> Any:
    """Merge the first ``batches`` of a log, each of one record of producer 9, as Postgres and the
    bucket know it then. The plan of the segment."""
    worker = Worker(plane)
    worker.split(log.topic_id)
    plan = worker.begun(log, max_batches=batches)
    last = batches - 1
    made = segment_of(plan, (StoredProducerState(9, 0, last, last, 0, 1_000),))
    plane.finish_merge(log, plan.token, made)
    bucket.note(
        catalog.MergedSegment(
            log.topic_id, 0, plan.segment_id, 0, made.last_offset, made.size_bytes, 1_000,
            made.record_count, made.batch_count, 8, 12,
        )
    )  # fmt: skip
    bucket.objects[f"{plan.object_key_stem}.log"] = bytes(made.size_bytes)
    bucket.objects[f"{plan.object_key_stem}.snapshot"] = encode_snapshot(
        ProducerSnapshotEntry(**asdict(one)) for one in made.producers
    )
    return plan


async def test_segments_stand_for_the_batches_that_they_hold(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, database: Database, bucket: Bucket
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(8))
    await recorder.begin()
    log, gateway = recorder.logs[1], recorder.gateways[0]
    for n in range(4):
        upload = recorder.upload(gateway, [batch(log, producer=(9, 0, n))])
        await recorder.commit(gateway, upload)
    with jobs(database) as plane, lost_afterwards(database):
        plan = merged(plane, bucket, log, 3)
        for key in [key for key in bucket.objects if key.startswith("wal/") and "-0000-" in key]:
            del bucket.objects[key]
        await recorder.commit(gateway, recorder.upload(gateway, [batch(log, producer=(9, 0, 4))]))
        await recorder.settle()
        before = rows(postgres_scene)
    backup = await rebuild(bucket, postgres, postgres_scene)
    assert report.is_fine(backup), list(report.lines(backup))
    from_backup = rows(postgres_scene)
    postgres_scene.clear()
    nothing = await rebuild(bucket, postgres, postgres_scene)
    assert report.is_fine(nothing), list(report.lines(nothing))
    del bucket.objects[f"{plan.object_key_stem}.log"]
    told = look(bucket, None).plans[log]
    assert told.verdict is Verdict.CONTRADICTED
    assert "is not in bucket tiered" in told.contradictions[0]
    for after in (from_backup, rows(postgres_scene)):
        for name in ("logs", "batches", "segments", "snapshots"):
            assert after[name] == before[name], name
    assert from_backup["producers"] == before["producers"]
    process = await postgres_scene.gateway()
    again = [
        (await postgres_scene.commit(process, batch(log, producer=(9, 0, n))))[0] for n in range(6)
    ]
    # The object of the first one is gone.
    assert [(one.error.value, one.base_offset) for one in again] == [
        ("DUPLICATE_SEQUENCE_NUMBER", -1),
        ("DUPLICATE", 1),
        ("DUPLICATE", 2),
        ("DUPLICATE", 3),
        ("DUPLICATE", 4),
        ("NONE", 5),
    ]


async def test_producers_are_those_of_before_while_what_was_merged_is_still_in_the_bucket(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, database: Database, bucket: Bucket
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(8))
    await recorder.begin()
    log, gateway = recorder.logs[1], recorder.gateways[0]
    for n in range(7):
        upload = recorder.upload(gateway, [batch(log, producer=(9, 0, n))])
        await recorder.commit(gateway, upload)
    await recorder.settle()
    with jobs(database) as plane:
        plan = merged(plane, bucket, log, 7)
    before = rows(postgres_scene)["producers"]
    postgres_scene.clear()
    found = await rebuild(bucket, postgres, postgres_scene)
    assert report.is_fine(found), list(report.lines(found))
    assert rows(postgres_scene)["producers"] == before
    # Not by the timestamps of its records, which may be of long ago.
    assert postgres_scene.jobs.expire_producers(DAY_MS) == 0
    assert postgres_scene.jobs.expire_producers(DAY_MS) == 0
    assert rows(postgres_scene)["producers"] == before
    del bucket.objects[f"{plan.object_key_stem}.snapshot"]
    postgres_scene.clear()
    found = await rebuild(bucket, postgres, postgres_scene)
    assert rows(postgres_scene)["producers"] == before, "the objects of the merge tell them, too"
    assert not report.is_fine(found), "who wrote before them nobody knows"


async def test_a_rebuild_that_was_ended_in_the_middle_is_done_by_the_next_one(
    postgres_scene: PostgresScene,
    postgres: RebuildPostgres,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(9))
    await recorder.begin()
    await recorder.play(60)
    await recorder.settle()
    before = rows(postgres_scene)
    postgres_scene.clear()
    stop(postgres)
    ended: list[object] = []

    end_log = postgres.end_log

    def killed(*arguments: Any) -> None:
        ended.append(arguments)
        if len(ended) == 2:
            raise KeyboardInterrupt
        end_log(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(postgres, "end_log", killed)
        with pytest.raises(KeyboardInterrupt):
            write(look(bucket, postgres), postgres, PREFIX)
    process = recorder.gateways[0].process
    with pytest.raises((GatewayFenced, ControlPlaneFailure, RebuildRefused)):
        await postgres_scene.commit(process, batch(recorder.logs[0]))
    await rebuild(bucket, postgres, postgres_scene)
    after = rows(postgres_scene)
    for name in before:
        assert after[name] == before[name], name
    stop(postgres)
    assert write(look(bucket, postgres), postgres, PREFIX) == 0, "there is nothing left to do"
    assert rows(postgres_scene) == after
    await postgres_scene.plane.begin_history(*BY)


async def test_what_was_inferred_is_inferred_again_when_the_first_rebuild_was_ended(
    postgres_scene: PostgresScene,
    postgres: RebuildPostgres,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its object was known to the second one, without a batch."""
    recorder = Recorder(postgres_scene, bucket, Random(10))
    await recorder.begin()
    log, gateway = recorder.logs[1], recorder.gateways[0]
    await recorder.commit(gateway, recorder.upload(gateway, [batch(log, records=2)]))
    await recorder.tell(gateway)
    await recorder.commit(gateway, recorder.upload(gateway, [batch(log, records=3)]))
    postgres_scene.clear()
    stop(postgres)
    found = look(bucket, postgres)
    assert found.plans[log].inferred == 1

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(postgres, "end_log", killed)
        with pytest.raises(KeyboardInterrupt):
            write(found, postgres, PREFIX)
    await rebuild(bucket, postgres, postgres_scene)
    assert [row[2:4] for row in rows(postgres_scene)["batches"]] == [(0, 1), (2, 4)]


async def test_a_hole_answers_an_error_and_its_offsets_are_given_to_nobody(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, bucket: Bucket
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(10))
    await recorder.begin()
    log, gateway = recorder.logs[1], recorder.gateways[0]
    uploads = [recorder.upload(gateway, [batch(log, records=2)]) for _ in range(4)]
    for upload in uploads[:3]:
        await recorder.commit(gateway, upload)
    await recorder.tell(gateway)
    del bucket.objects[uploads[1].key]
    recorder.upload(gateway, [batch(log, records=5)])
    recorder.upload(recorder.gateways[1], [batch(log, records=5)])
    postgres_scene.clear()
    found = await rebuild(bucket, postgres, postgres_scene)
    assert found.plans[log].verdict is Verdict.HOLES
    ((high,),) = postgres_scene.sql(
        "SELECT high_watermark FROM logs WHERE topic_id = %s AND partition = 0", log.topic_id
    )
    assert high == 6 + 2 + 5 + 5, "so many may have been given out behind what is known"
    errors = {offset: await read(postgres_scene, log, offset) for offset in (0, 2, 3, 4, 6, 15)}
    assert errors == {
        0: "NONE", 2: "SUFFIX_HOLE", 3: "SUFFIX_HOLE", 4: "NONE", 6: "SUFFIX_HOLE",
        15: "SUFFIX_HOLE",
    }  # fmt: skip


async def read(scene: PostgresScene, log: TopicIdPartition, offset: int) -> str:
    (found,) = await scene.plane.find_batches([FindBatchesRequest(log, offset, 1_000_000)])
    return str(found.error)


async def test_a_rebuild_begins_only_where_nobody_lives(
    postgres_scene: PostgresScene, postgres: RebuildPostgres
) -> None:
    process = await postgres_scene.gateway()

    def renew() -> None:
        postgres_scene.sql("UPDATE gateways SET renewals = renewals + 1")

    with pytest.raises(RebuildRefused, match="lives: its counter has moved"):
        stop(postgres, renew)
    with pytest.raises(RebuildRefused, match="a worker lives"):
        stop(postgres, lambda: postgres_scene.sql("SELECT tideline.beat_history()"))
    positions = iter((1, 2))
    with pytest.raises(RebuildRefused, match="with another Postgres"):
        watch(postgres, lambda: next(positions), 30.0, lambda _: None)
    waits: list[float] = []
    watch(postgres, lambda: None, 30.0, waits.append)
    watch(postgres, lambda: None, 2.0, waits.append)
    assert waits == [40.0, 12.0], "longer than two leases of 3 s"
    with pytest.raises(RebuildRefused, match="is registered"):
        postgres.topics([])
    assert (await postgres_scene.plane.identity()).halted is None
    stop(postgres)
    assert "an operator rebuilds it" in str((await postgres_scene.plane.identity()).halted)
    with pytest.raises(GatewayFenced):
        await postgres_scene.plane.renew_lease(process.gateway_id, process.incarnation)
    await postgres_scene.plane.begin_history(*BY)
    with pytest.raises(RebuildRefused, match="not halted"):
        postgres.topics([])


async def test_tokens_and_generations_are_past_those_of_a_postgres_that_is_gone(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, bucket: Bucket
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(11))
    await recorder.begin()
    postgres_scene.sql("ALTER SEQUENCE tiering_tokens RESTART")
    for _ in range(3):
        await postgres_scene.plane.begin_history(*BY)
    query = "SELECT (SELECT last_value FROM tiering_tokens), max(generation) FROM logs"
    seen = [postgres_scene.sql(query)[0]]
    for _ in range(2):
        postgres_scene.clear()
        postgres_scene.sql("ALTER SEQUENCE tiering_tokens RESTART")
        await rebuild(bucket, postgres, postgres_scene)
        seen.append(postgres_scene.sql(query)[0])
    first, second, third = ([int(str(value)) for value in values] for values in seen)
    assert second[0] > first[0] + 10**9
    assert third[0] > second[0]
    assert second[1] > first[1] + 10**6


async def test_a_postgres_that_has_something_else_is_told_and_left_as_it_is(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, database: Database, bucket: Bucket
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(12))
    await recorder.begin()
    log, gateway = recorder.logs[1], recorder.gateways[0]
    with lost_afterwards(database):
        upload = recorder.upload(gateway, [batch(log, records=4)])
        await recorder.commit(gateway, upload)
        await recorder.tell(gateway)
    (other,) = await postgres_scene.commit(gateway.process, batch(log))
    assert other.base_offset == 0
    found = await rebuild(bucket, postgres, postgres_scene)
    assert found.plans[log].verdict is Verdict.CONTRADICTED
    assert len(rows(postgres_scene)["batches"]) == 1
    (following,) = await postgres_scene.commit(await postgres_scene.gateway(), batch(log))
    assert following.base_offset == 4, "behind what the other Postgres had given out"


@pytest.mark.parametrize("role", ["tideline_gateway_1", "tideline_worker", "tideline_jobs"])
def test_no_role_of_a_process_may_rebuild(database: Database, role: str) -> None:
    with psycopg.connect(database.dsn) as connection:
        found = connection.execute(
            "SELECT p.proname FROM pg_proc AS p WHERE p.pronamespace = 'tideline'::regnamespace "
            "AND p.proname ~ '^(begin_rebuild|rebuild_)' "
            "AND has_function_privilege(%s, p.oid, 'EXECUTE')",
            [role],
        ).fetchall()
    assert found == []
