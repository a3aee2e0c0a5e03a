"""``tideline rebuild --write --fill-holes``: a lost range becomes one that readers pass over."""

from __future__ import annotations

from random import Random

import pytest

from tests.contract.conftest import Database
from tests.contract.rebuilding import BY, look, stop
from tests.contract.recorded import Recorder, RecordingGateway, rows
from tests.contract.scenes import PostgresScene, Scene, batch
from tests.contract.test_rebuild import read
from tests.contract.test_restored_postgres import lost_afterwards
from tests.contract.tiering import PREFIX
from tests.unit.rebuild.buckets import Bucket
from tideline.control_plane.model import BatchToCommit, FindBatchesRequest, ListOffsetsKind
from tideline.domain.ids import TopicIdPartition
from tideline.domain.rebuild_plan import Verdict
from tideline.domain.wal_filling import EMPTY_BATCH_BYTES, is_filling
from tideline.rebuild import report
from tideline.rebuild.filling import fill
from tideline.rebuild.postgres import RebuildPostgres
from tideline.rebuild.survey import Survey, again
from tideline.rebuild.write import write


async def rebuild(
    bucket: Bucket, postgres: RebuildPostgres, scene: PostgresScene, *, filling: bool = True
) -> Survey:
    """As the command does it; the survey of afterwards."""
    stop(postgres)
    found = look(bucket, postgres, fill_holes=filling)
    if filling:
        fill(found, "", lambda key, body: bucket.put("wal", key, body))
    write(found, postgres, PREFIX)
    after = again(found, postgres)
    await scene.plane.begin_history(*BY)
    return after


async def lose(recorder: Recorder, log: TopicIdPartition) -> None:
    """Of four batches of two records the second is lost; behind them two objects of five records
    each may have been committed. Another log has no trouble."""
    gateway, other = recorder.gateways
    uploads = [recorder.upload(gateway, [batch(log, records=2)]) for _ in range(3)]
    for upload in uploads:
        await recorder.commit(gateway, upload)
    await recorder.commit(gateway, recorder.upload(gateway, [batch(recorder.logs[2])]))
    await recorder.tell(gateway)
    del recorder.bucket.objects[uploads[1].key]
    recorder.upload(gateway, [batch(log, records=5)])
    recorder.upload(other, [batch(log, records=5)])


async def lost(scene: PostgresScene, bucket: Bucket) -> tuple[Recorder, TopicIdPartition]:
    """And Postgres is, too."""
    recorder = Recorder(scene, bucket, Random(10))
    await recorder.begin()
    log = recorder.logs[1]
    await lose(recorder, log)
    scene.clear()
    return recorder, log


async def spans(scene: PostgresScene, log: TopicIdPartition, offset: int) -> list[tuple[int, int]]:
    (found,) = await scene.plane.find_batches([FindBatchesRequest(log, offset, 1_000_000)])
    assert found.error == "NONE"
    return [(b.base_offset, b.last_offset) for b in found.batches]


async def test_a_lost_range_is_filled_and_everything_behind_it_is_read(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, bucket: Bucket
) -> None:
    _, log = await lost(postgres_scene, bucket)
    after = await rebuild(bucket, postgres, postgres_scene)
    assert not report.is_fine(after), "what this run gives up is missing"
    assert after.plans[log].verdict is Verdict.WHOLE
    (told,) = (one for one in report.document(after)["logs"] if one["filled_now"])
    assert told["filled_now"] == told["filled"] == [[2, 3], [6, 15]]
    assert await spans(postgres_scene, log, 0) == [(0, 1), (2, 3), (4, 5), (6, 15)]
    assert await spans(postgres_scene, log, 3) == [(2, 3), (4, 5), (6, 15)]
    (following,) = await postgres_scene.commit(await postgres_scene.gateway(), batch(log))
    assert following.base_offset == 16
    later = look(bucket, postgres)
    assert report.is_fine(later), list(report.lines(later))
    assert {plan.verdict for plan in later.plans.values()} == {Verdict.WHOLE}


async def test_without_the_word_of_an_operator_nothing_is_filled(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, bucket: Bucket
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(10))
    await recorder.begin()
    await lose(recorder, recorder.logs[1])
    postgres_scene.clear()
    before = dict(bucket.objects)
    await rebuild(bucket, postgres, postgres_scene, filling=False)
    assert bucket.objects == before
    assert await read(postgres_scene, recorder.logs[1], 2) == "SUFFIX_HOLE"


async def test_what_was_written_with_its_holes_is_filled_later_and_from_nothing_it_is_the_same(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, bucket: Bucket
) -> None:
    """A record came behind the hole meanwhile. What is open is left free at the new end once
    more, and then given up as well."""
    recorder, log = await lost(postgres_scene, bucket)
    await rebuild(bucket, postgres, postgres_scene, filling=False)
    new = RecordingGateway(await postgres_scene.gateway())
    await recorder.commit(new, recorder.upload(new, [batch(log)]))
    await recorder.tell(new)
    await rebuild(bucket, postgres, postgres_scene)
    whole = [(0, 1), (2, 3), (4, 5), (6, 15), (16, 16), (17, 26)]
    assert await spans(postgres_scene, log, 0) == whole
    filled = rows(postgres_scene)
    objects = dict(bucket.objects)
    await rebuild(bucket, postgres, postgres_scene)
    assert (rows(postgres_scene), bucket.objects) == (filled, objects), "once is enough"
    postgres_scene.clear()
    after = await rebuild(bucket, postgres, postgres_scene, filling=False)
    assert report.is_fine(after), list(report.lines(after))
    again_there = rows(postgres_scene)
    for name in ("topics", "logs", "batches", "producers", "files"):
        assert again_there[name] == filled[name], name


@pytest.mark.parametrize("ended", ["between two objects", "before it is written", "in a log"])
async def test_a_filling_that_was_ended_in_the_middle_is_done_by_the_next_one(
    postgres_scene: PostgresScene,
    postgres: RebuildPostgres,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
    ended: str,
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(10))
    await recorder.begin()
    for log in recorder.logs[1:]:
        await lose(recorder, log)
    postgres_scene.clear()
    lost = dict(bucket.objects)
    await rebuild(bucket, postgres, postgres_scene)
    wanted, objects = rows(postgres_scene), dict(bucket.objects)
    assert len(objects) == len(lost) + 2
    postgres_scene.clear()
    bucket.objects = dict(lost)
    stop(postgres)
    found = look(bucket, postgres, fill_holes=True)
    assert any(plan.inferred for plan in found.plans.values()), "it has to be inferred again"

    def put(key: str, body: bytes) -> None:
        if ended == "between two objects" and len(bucket.objects) > len(lost):
            raise KeyboardInterrupt
        bucket.put("wal", key, body)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    def begun() -> None:
        fill(found, "", put)
        write(found, postgres, PREFIX)

    step = "topics" if ended == "before it is written" else "end_log"
    with monkeypatch.context() as patch:
        patch.setattr(postgres, step, killed)
        with pytest.raises(KeyboardInterrupt):
            begun()
    assert lost != bucket.objects
    await rebuild(bucket, postgres, postgres_scene)
    assert bucket.objects == objects
    assert rows(postgres_scene) == wanted


async def test_rows_that_a_defect_took_whose_objects_are_lost_too_are_given_up(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, database: Database, bucket: Bucket
) -> None:
    """Postgres is whole otherwise; what it has is not touched."""
    recorder = Recorder(postgres_scene, bucket, Random(10))
    await recorder.begin()
    log, gateway = recorder.logs[1], recorder.gateways[0]
    uploads = [recorder.upload(gateway, [batch(log, records=2)]) for _ in range(4)]
    for upload in uploads:
        await recorder.commit(gateway, upload)
    await recorder.tell(gateway)
    for upload in (uploads[1], uploads[3]):
        del bucket.objects[upload.key]
    before = rows(postgres_scene)["batches"]
    postgres_scene.lose(log, 2, 3)
    postgres_scene.lose(log, 6, 7)
    await rebuild(bucket, postgres, postgres_scene)
    after = rows(postgres_scene)["batches"]
    assert [row for row in after if row[6] != EMPTY_BATCH_BYTES] == [
        row for row in before if row[2] in (0, 4)
    ]
    assert await spans(postgres_scene, log, 0) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert {plan.verdict for plan in look(bucket, postgres).plans.values()} == {Verdict.WHOLE}


async def test_a_log_with_two_histories_keeps_its_hole(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, database: Database, bucket: Bucket
) -> None:
    recorder = Recorder(postgres_scene, bucket, Random(12))
    await recorder.begin()
    log, gateway = recorder.logs[1], recorder.gateways[0]
    with lost_afterwards(database):
        await recorder.commit(gateway, recorder.upload(gateway, [batch(log, records=4)]))
        await recorder.tell(gateway)
    await postgres_scene.commit(gateway.process, batch(log))
    before = dict(bucket.objects)
    after = await rebuild(bucket, postgres, postgres_scene)
    assert after.plans[log].verdict is Verdict.CONTRADICTED
    assert bucket.objects == before


async def test_what_holds_a_filling_is_collected_when_its_range_is_deleted_and_told_by_nobody(
    postgres_scene: PostgresScene, postgres: RebuildPostgres, bucket: Bucket
) -> None:
    _, log = await lost(postgres_scene, bucket)
    after = await rebuild(bucket, postgres, postgres_scene)
    key = next(r.object_key for r in after.rebuilt.logs[log].batches
               if is_filling(r.footer.byte_size))  # fmt: skip
    process = await postgres_scene.gateway()
    untold = await postgres_scene.plane.untold_commits(process.gateway_id, process.incarnation, 100)
    assert key not in {commit.object_key for commit in untold}, "it tells of itself"
    assert await postgres_scene.plane.delete_records(log, 9) == 9, "into the middle of it"
    assert await spans(postgres_scene, log, 9) == [(6, 15)]
    assert await read(postgres_scene, log, 8) == "OFFSET_OUT_OF_RANGE"
    postgres_scene.jobs.prune_batches()
    assert key not in postgres_scene.jobs.claim_dead_files(0), "its end is still read"
    assert await postgres_scene.plane.delete_records(log, 16) == 16
    postgres_scene.jobs.prune_batches()
    assert key in postgres_scene.jobs.claim_dead_files(0)


async def test_retention_removes_a_range_with_the_records_before_it(
    postgres_scene: PostgresScene,
) -> None:
    """By time: that of its commit. By size it counts as any batch."""
    scene, gateway = postgres_scene, await postgres_scene.gateway()
    _, (log,) = await scene.diskless_topic(1)
    committed_ms, kept_ms = 3 * 10**12, 4 * 10**12
    for one in (batch(log, timestamp=100), empty(log, 3), batch(log, timestamp=kept_ms)):
        await scene.commit(gateway, one)
    ((log_id,),) = scene.sql("SELECT log_id FROM logs")

    def cut(start: int, cutoff: int, excess: int) -> tuple[object, ...]:
        query = "SELECT before_offset FROM retention_wal_cut(%s, %s, %s, %s, 100)"
        (found,) = scene.sql(query, [log_id], [start], [cutoff], [excess])
        return found

    assert cut(0, 500, 0) == (1,)
    assert cut(0, committed_ms, 0) == (4,)
    assert cut(0, 50, 0) == (0,), "not before what stands in front of it"
    assert cut(1, -1, 0) == (1,), "nothing goes by time without a limit"
    assert cut(0, -1, 100) == (1,)
    assert cut(0, -1, 100 + EMPTY_BATCH_BYTES) == (4,)


def empty(log: TopicIdPartition, offsets: int) -> BatchToCommit:
    return batch(log, records=offsets, timestamp=-1, size=EMPTY_BATCH_BYTES)


async def test_a_search_by_time_never_ends_at_an_empty_batch_while_there_is_another(
    scene: Scene,
) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic(1)
    for one in (
        batch(log, records=2, timestamp=500),
        empty(log, 3),
        batch(log, timestamp=100),
        empty(log, 2),
        batch(log, timestamp=700),
        empty(log, 4),
    ):
        await scene.commit(gateway, one)

    async def found(kind: ListOffsetsKind, timestamp: int | None = None) -> int:
        answer = await scene.plane.list_offsets(log, kind, timestamp)
        return answer.batch.base_offset if answer.batch is not None else -1

    by_time = ListOffsetsKind.TIMESTAMP
    assert [await found(by_time, t) for t in (0, 500, 501, 700, 701)] == [0, 0, 8, 8, -1]
    assert await found(ListOffsetsKind.MAX_TIMESTAMP) == 8
    for start, answers in ((3, [5, 8, 8]), (6, [8, 8, 8]), (8, [8, 8, 8]), (10, [-1, -1, -1])):
        await scene.plane.delete_records(log, start)
        assert [await found(by_time, t) for t in (0, 500, 501)] == answers, start
        largest = await found(ListOffsetsKind.MAX_TIMESTAMP)
        assert largest == (8 if start < 9 else 9), "a last one alone has no record to answer"
    (at_end,) = await scene.plane.find_batches([FindBatchesRequest(log, 13, 100)])
    assert (at_end.error, at_end.high_watermark) == ("NONE", 13)
