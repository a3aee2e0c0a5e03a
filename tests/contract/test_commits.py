"""commit_file: one call, offsets without gaps, each record once, whatever is retried."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import tuple_row

from tests.contract.scenes import PostgresScene, Scene, batch
from tests.support.waiting import HANGS_S, WITHIN_S, bounded, eventually, within
from tideline.control_plane.errors import (
    GatewayFenced,
    ObjectKeyRejected,
    OffsetOutOfRange,
    TopicDeleted,
)
from tideline.control_plane.model import (
    CommitError,
    FindBatchesRequest,
    ListOffsetsKind,
    TrackingKind,
)
from tideline.domain.ids import TopicIdPartition
from tideline.gateway.fetch.from_suffix import HighWatermarks
from tideline.gateway.tracking.view import TrackingView

MAX_SEQUENCE = 2**31 - 1


async def test_offsets_follow_each_other_across_partitions_and_files(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (first, second) = await scene.diskless_topic(2)
    outcomes = await scene.commit(
        gateway, batch(first, records=3), batch(second, records=5), batch(first, records=2)
    )
    assert [o.base_offset for o in outcomes] == [0, 0, 3]
    assert [o.high_watermark for o in outcomes] == [3, 5, 5]
    (later,) = await scene.commit(gateway, batch(first))
    assert later.base_offset == 5
    assert await scene.plane.high_watermarks([first, second]) == {first: 6, second: 5}


async def test_producers_of_a_suffix_are_described_by_their_newest_batch(scene: Scene) -> None:
    """Of more than are asked for those that wrote last; none of a log without B0."""
    gateway = await scene.gateway()
    _, (log, other) = await scene.diskless_topic(2)
    _, (unset,) = await scene.tracking_topic()
    (first,) = await scene.commit(gateway, batch(log, records=3, producer=(5, 0, 0)))
    await scene.commit(gateway, batch(log, records=2, producer=(5, 0, 3)))
    (newest,) = await scene.commit(gateway, batch(log, producer=(4, 0, 0)))
    asked = [log, other, unset, TopicIdPartition(uuid4(), 0)]
    found = await scene.plane.describe_producers(asked, 10)
    assert {at: [(p.producer_id, p.last_sequence) for p in ps] for at, ps in found.items()} == {
        log: [(4, 0), (5, 4)]
    }
    assert found[log][0].last_timestamp == newest.append_time
    assert found[log][1].last_timestamp >= first.append_time
    latest = await scene.plane.describe_producers(asked, 1)
    assert [p.producer_id for p in latest[log]] == [4]
    assert await scene.plane.describe_producers([], 10) == {}


async def test_of_high_watermarks_only_what_is_past_what_is_known_is_answered(
    scene: Scene,
) -> None:
    gateway = await scene.gateway()
    _, (still, moved, new) = await scene.diskless_topic(3)
    await scene.commit(gateway, batch(still, records=3), batch(moved, records=4), batch(new))
    elsewhere = TopicIdPartition(uuid4(), 0)
    asked = [still, moved, new, elsewhere]
    known = {still: 3, moved: 3, elsewhere: -1}
    assert await scene.plane.high_watermarks(asked, known) == {moved: 4, new: 1}
    assert await scene.plane.high_watermarks(asked, {still: 9, moved: 4, new: 1}) == {}
    assert await scene.plane.high_watermarks(asked) == {still: 3, moved: 4, new: 1}


async def test_a_gateway_of_the_version_before_still_asks_for_all_high_watermarks(
    postgres_scene: PostgresScene,
) -> None:
    """It passes no third argument."""
    gateway = await postgres_scene.gateway()
    _, (log,) = await postgres_scene.diskless_topic()
    await postgres_scene.commit(gateway, batch(log, records=3))
    with psycopg.connect(postgres_scene.dsn, row_factory=tuple_row) as connection:
        found = connection.execute(
            "SELECT high_watermark FROM tideline.high_watermarks(%s::uuid[], %s::integer[])",
            ([log.topic_id], [log.partition]),
        ).fetchall()
    assert found == [(3,)]


async def test_long_polls_are_answered_what_has_moved_and_nothing_else(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway's poll over a control plane, while another gateway commits to one log of many."""
    gateway = await scene.gateway()
    _, logs = await scene.diskless_topic(20)
    await scene.commit(gateway, *(batch(log) for log in logs))
    answers: list[dict[TopicIdPartition, int]] = []
    answered = asyncio.Condition()
    ask = scene.plane.high_watermarks

    async def recorded(*arguments: Any) -> dict[TopicIdPartition, int]:
        found = await ask(*arguments)
        async with answered:
            answers.append(found)
            answered.notify_all()
        return found

    async def until_answered(more: int) -> None:
        wanted = len(answers) + more
        async with bounded("more answers", 30), answered:
            await answered.wait_for(lambda: len(answers) >= wanted)

    monkeypatch.setattr(scene.plane, "high_watermarks", recorded)
    watermarks = HighWatermarks(scene.plane, TrackingView(lambda: True), poll_s=0.005)
    waiting = asyncio.create_task(watermarks.wait(dict.fromkeys(logs, 1), HANGS_S))
    await until_answered(3)
    assert answers[0] == dict.fromkeys(logs, 1), "nothing was known before"
    assert answers[1:] == [{}] * len(answers[1:])
    await scene.commit(gateway, batch(logs[7], records=2))
    assert await within("what has moved", waiting, 30)
    assert [found for found in answers[1:] if found] == [{logs[7]: 3}]
    await watermarks.close()


async def test_a_commit_of_unknown_outcome_finds_its_own_success(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    await scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["k"])
    batches = [batch(log, records=4), batch(log, producer=(7, 0, 3)), batch(log, records=2)]
    first = await scene.commit(gateway, *batches, key="k")
    assert await scene.commit(gateway, *batches, key="k") == first
    assert await scene.plane.high_watermarks([log]) == {log: 7}
    with pytest.raises(ObjectKeyRejected, match="exactly its first input"):
        await scene.commit(gateway, batches[0], key="k")


async def test_a_retry_while_the_first_call_still_runs_waits_for_its_outcome(
    postgres_scene: PostgresScene,
) -> None:
    gateway = await postgres_scene.gateway()
    _, (log,) = await postgres_scene.diskless_topic()
    await postgres_scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["k"])
    blocker = await psycopg.AsyncConnection.connect(postgres_scene.dsn, row_factory=tuple_row)
    async with blocker:
        await blocker.execute("SELECT FROM tideline.logs FOR UPDATE")
        calls = [
            asyncio.create_task(postgres_scene.commit(gateway, batch(log, records=4), key="k"))
            for _ in range(2)
        ]

        def both_wait() -> bool:
            """Asked on another connection: within a transaction the answer stays the same."""
            return postgres_scene.sql(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE wait_event_type = 'Lock' AND datname = current_database()"
            ) == [(2,)]

        await eventually("both calls to wait for the lock", both_wait, WITHIN_S)
        await blocker.rollback()
        first, second = await asyncio.gather(*calls)
    assert first == second
    assert await postgres_scene.plane.high_watermarks([log]) == {log: 4}


async def test_a_key_must_be_registered_and_not_be_forgotten(scene: Scene) -> None:
    """Schedule 17: the uploader slept past the collector's grace."""
    gateway, other = await scene.gateway(), await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    with pytest.raises(ObjectKeyRejected, match="never is not registered"):
        await scene.commit(gateway, batch(log), key="never")
    await scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["slow"])
    with pytest.raises(ObjectKeyRejected, match="belongs to gateway"):
        await scene.commit(other, batch(log), key="slow")
    assert scene.jobs.forget_uncommitted_keys(grace_ms=60_000) == 0
    assert scene.jobs.forget_uncommitted_keys(grace_ms=0) == 1
    assert scene.jobs.claim_dead_files(grace_ms=0) == [], "its object is an orphan now"
    with pytest.raises(ObjectKeyRejected, match="slow is not registered"):
        await scene.commit(gateway, batch(log), key="slow")


async def test_a_used_key_is_not_registered_again(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    for _ in range(2):
        await scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["k"])
    await scene.commit(gateway, batch(log), key="k")
    with pytest.raises(ObjectKeyRejected, match="k is taken"):
        await scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["k"])


async def test_a_key_belongs_to_the_incarnation_that_registered_it_first(scene: Scene) -> None:
    """Whose commit stream its object is of is known by it."""
    gateway = await scene.gateway()
    await scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["k"])
    for other in (await scene.gateway(), await scene.gateway(gateway.gateway_id)):
        with pytest.raises(ObjectKeyRejected, match="k is taken"):
            await scene.plane.register_object_keys(other.gateway_id, other.incarnation, ["k"])


async def test_a_fenced_gateway_registers_no_key(scene: Scene) -> None:
    gateway = await scene.gateway()
    await scene.fence(gateway)
    with pytest.raises(GatewayFenced):
        await scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["k"])


async def test_a_fenced_gateway_commits_nothing(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    await scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["k"])
    await scene.fence(gateway)
    with pytest.raises(GatewayFenced):
        await scene.commit(gateway, batch(log), key="k")
    assert await scene.plane.high_watermarks([log]) == {log: 0}


async def test_a_deleted_topic_takes_no_commit_and_answers_no_read(scene: Scene) -> None:
    """Schedule 19: also when a topic of the same name exists again."""
    gateway = await scene.gateway()
    name, (old,) = await scene.diskless_topic()
    await scene.commit(gateway, batch(old, producer=(7, 0, 0)))
    await scene.plane.delete_topic(old.topic_id)
    await scene.plane.delete_topic(old.topic_id)
    new = TopicIdPartition(uuid4(), 0)
    tracked = await scene.plane.tracked_topic(name)
    assert tracked is None
    await scene.plane.begin_tracking(
        name, new.topic_id, TrackingKind.BORN_DISKLESS, 1, "CreateTime", 1_000_000
    )
    dead, alive, unknown = await scene.commit(
        gateway, batch(old), batch(new), batch(TopicIdPartition(new.topic_id, 5))
    )
    assert dead.error is CommitError.TOPIC_DELETED
    assert (alive.error, alive.base_offset) == (CommitError.NONE, 0)
    assert unknown.error is CommitError.UNKNOWN_LOG
    (found,) = await scene.plane.find_batches([FindBatchesRequest(old, 0, 100)])
    assert (found.error, found.batches) == ("TOPIC_DELETED", ())
    with pytest.raises(TopicDeleted):
        await scene.plane.delete_records(old, -1)
    assert scene.jobs.prune_batches() == 1
    assert scene.producers() == []


async def test_two_gateways_commit_to_the_same_partitions_without_deadlock(
    postgres_scene: PostgresScene,
) -> None:
    gateways = [await postgres_scene.gateway(), await postgres_scene.gateway()]
    _, logs = await postgres_scene.diskless_topic(6)

    async def commits(index: int) -> None:
        order = logs if index % 2 else list(reversed(logs))
        for _ in range(15):
            outcomes = await postgres_scene.commit(gateways[index], *[batch(log) for log in order])
            assert all(o.error is CommitError.NONE for o in outcomes)

    await asyncio.gather(commits(0), commits(1))
    assert set((await postgres_scene.plane.high_watermarks(logs)).values()) == {30}
    rows = postgres_scene.sql("SELECT count(*), count(DISTINCT (log_id, base_offset)) FROM batches")
    assert rows == [(180, 180)]


async def test_a_duplicate_is_answered_with_its_first_offset_and_time(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    first, again = await scene.commit(
        gateway,
        batch(log, records=3, producer=(7, 0, 0)),
        batch(log, records=3, producer=(7, 0, 0)),
    )
    (later,) = await scene.commit(gateway, batch(log, records=3, producer=(7, 0, 0)))
    for duplicate in (again, later):
        assert duplicate.error is CommitError.DUPLICATE
        assert (duplicate.base_offset, duplicate.append_time) == (0, first.append_time)
    assert await scene.plane.high_watermarks([log]) == {log: 3}


async def test_only_the_last_five_batches_are_known_as_duplicates(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    sent = [batch(log, producer=(7, 0, sequence)) for sequence in range(6)]
    await scene.commit(gateway, *sent)
    oldest, kept = await scene.commit(gateway, sent[0], sent[1])
    assert oldest.error is CommitError.OUT_OF_ORDER_SEQUENCE
    assert (kept.error, kept.base_offset) == (CommitError.DUPLICATE, 1)


async def test_sequences_wrap_to_0_between_and_inside_batches(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    outcomes = await scene.commit(
        gateway,
        batch(log, producer=(7, 0, MAX_SEQUENCE)),
        batch(log, producer=(7, 0, 0)),
        batch(log, producer=(8, 0, MAX_SEQUENCE - 1), records=4),
        batch(log, producer=(8, 0, 2)),
    )
    assert [o.error for o in outcomes] == [CommitError.NONE] * 4


async def test_epochs_fence_producers(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    outcomes = await scene.commit(
        gateway,
        batch(log, producer=(7, 4, 100)),  # without state: any first sequence
        batch(log, producer=(7, 3, 101)),
        batch(log, producer=(7, 5, 101)),
        batch(log, producer=(7, 5, 0)),
        batch(log, producer=(7, 4, 101)),
    )
    assert [o.error.value for o in outcomes] == [
        "NONE",
        "INVALID_PRODUCER_EPOCH",
        "OUT_OF_ORDER_SEQUENCE",
        "NONE",
        "INVALID_PRODUCER_EPOCH",
    ]


async def test_a_clock_that_was_set_forward_makes_nobody_forgotten(scene: Scene) -> None:
    """Schedule 21: a retry that is under way would be stored twice."""
    day_ms = 86_400_000
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    await scene.commit(gateway, batch(log, producer=(7, 0, 0)))
    assert scene.jobs.expire_producers(day_ms) == 0
    scene.set_clock_forward(minutes=25 * 60)
    for _ in range(2):
        assert scene.jobs.expire_producers(day_ms) == 0
    (again,) = await scene.commit(gateway, batch(log, producer=(7, 0, 0)))
    assert again.error is CommitError.DUPLICATE
    for _ in range(3):
        scene.set_clock_forward(minutes=9 * 60)
        scene.jobs.expire_producers(day_ms)
    assert scene.producers() == []


async def test_log_append_time_is_the_commits_time(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    (committed,) = await scene.commit(
        gateway, batch(log, timestamp=5, timestamp_type="LogAppendTime")
    )
    (found,) = await scene.plane.find_batches([FindBatchesRequest(log, 0, 100)])
    assert found.batches[0].timestamp_type == "LogAppendTime"
    assert found.batches[0].max_timestamp == committed.append_time > 5


async def test_a_read_of_many_logs_answers_a_bounded_number_of_batches_and_one_of_each(
    scene: Scene,
) -> None:
    gateway = await scene.gateway()
    _, logs = await scene.diskless_topic(7)
    for log in logs:
        await scene.commit(gateway, *[batch(log) for _ in range(450)])
    found = await scene.plane.find_batches([FindBatchesRequest(log, 0, 2**31 - 1) for log in logs])
    assert [len(answer.batches) for answer in found] == [450, 450, 450, 450, 200, 1, 1]
    assert [answer.batches[-1].last_offset for answer in found[-2:]] == [0, 0]


async def test_a_read_answers_at_least_one_batch_and_then_what_fits(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10)
    await scene.commit(gateway, *[batch(log, records=5, size=100) for _ in range(4)])

    async def read(offset: int, max_bytes: int) -> tuple[str, list[int]]:
        (found,) = await scene.plane.find_batches([FindBatchesRequest(log, offset, max_bytes)])
        assert found.high_watermark == 30
        return found.error, [b.base_offset for b in found.batches]

    assert await read(10, 1) == ("NONE", [10])
    assert await read(12, 250) == ("NONE", [10, 15])
    assert await read(29, 10_000) == ("NONE", [25])
    assert await read(30, 10_000) == ("NONE", [])
    assert await read(31, 10_000) == ("OFFSET_OUT_OF_RANGE", [])
    assert await read(9, 10_000) == ("BELOW_BOUNDARY", [])


async def test_deleting_records_moves_the_suffix_but_never_b0(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10)
    assert await scene.plane.delete_records(log, -1) == 10  # empty: the prefix keeps its start
    (found,) = await scene.plane.find_batches([FindBatchesRequest(log, 10, 100)])
    assert found.log_start == 0
    await scene.commit(gateway, *[batch(log, records=5) for _ in range(3)])
    assert await scene.plane.delete_records(log, 17) == 17
    assert await scene.plane.delete_records(log, 12) == 17
    with pytest.raises(OffsetOutOfRange, match="offset 26"):
        await scene.plane.delete_records(log, 26)
    early, inside = await scene.plane.find_batches(
        [FindBatchesRequest(log, 16, 1_000), FindBatchesRequest(log, 17, 1_000)]
    )
    assert early.error == "OFFSET_OUT_OF_RANGE"
    assert (inside.log_start, [b.base_offset for b in inside.batches]) == (17, [15, 20])
    assert scene.jobs.prune_batches() == 1
    assert await scene.plane.delete_records(log, -1) == 25
    assert await scene.plane.get_diskless_log_start_offset(log) == 10
    earliest = await scene.plane.list_offsets(log, ListOffsetsKind.EARLIEST)
    assert earliest.offset == 25


async def test_lookups_by_time_survive_the_deletion_of_the_largest_timestamp(
    scene: Scene,
) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10)
    await scene.commit(gateway, *[batch(log, timestamp=t) for t in (100, 900, 200, 300, 300)])

    async def lookup(kind: ListOffsetsKind, timestamp: int | None = None) -> tuple[int, int]:
        found = await scene.plane.list_offsets(log, kind, timestamp)
        assert found.error == "NONE"
        return found.offset, found.timestamp

    assert await lookup(ListOffsetsKind.TIMESTAMP, 50) == (10, 100)
    assert await lookup(ListOffsetsKind.TIMESTAMP, 150) == (11, 900)
    assert await lookup(ListOffsetsKind.TIMESTAMP, 901) == (-1, -1)
    assert await lookup(ListOffsetsKind.MAX_TIMESTAMP) == (11, 900)
    await scene.plane.delete_records(log, 12)
    for prune in (False, True):
        if prune:
            assert scene.jobs.prune_batches() == 2
        assert await lookup(ListOffsetsKind.TIMESTAMP, 150) == (12, 200)
        assert await lookup(ListOffsetsKind.TIMESTAMP, 250) == (13, 300)
        assert await lookup(ListOffsetsKind.TIMESTAMP, 301) == (-1, -1)
        assert await lookup(ListOffsetsKind.MAX_TIMESTAMP) == (13, 300)
    assert await lookup(ListOffsetsKind.EARLIEST) == (12, -1)
    assert await lookup(ListOffsetsKind.LATEST) == (15, -1)


async def test_a_file_without_live_batches_is_collected(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    await scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["a", "b"])
    await scene.commit(gateway, batch(log), key="a")
    await scene.commit(gateway, replace(batch(log), byte_offset=7), key="b")
    assert scene.jobs.claim_dead_files(grace_ms=0) == []
    await scene.plane.delete_records(log, 1)
    assert scene.jobs.prune_batches() == 1
    assert scene.jobs.claim_dead_files(grace_ms=0) == ["a"]
