"""Ways out: recorded with who and why, and refused where they would lose what can be kept."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.contract.scenes import Scene
from tideline.control_plane.errors import (
    BoundaryUnset,
    CompletionRefused,
    GapAcceptedAlready,
    InvalidInput,
    NothingToCallOff,
    ResetRefused,
    StaleGeneration,
    StaleLeaderEpoch,
    TopicDeleted,
    UnknownTopic,
)
from tideline.control_plane.model import RequestState, TrackingKind
from tideline.domain.ids import TopicIdPartition
from tideline.domain.migration import MigrationState
from tideline.errors import TidelineError


async def accept(
    scene: Scene, log: TopicIdPartition, first: int, *, end: int = 10, generation: int = 1,
    epoch: int = 4, reason: str = "broker 2's disk is lost",
) -> None:  # fmt: skip
    await scene.plane.accept_gap(
        log, generation, epoch, first, end, "ada", reason, {"log_ends": {"1": first}}
    )


async def gap_of(scene: Scene, log: TopicIdPartition) -> int:
    row = await scene.plane.tracked_partition(log.topic_id, log.partition)
    assert row is not None
    return row.accepted_gap_from


async def test_an_accepted_gap_is_told_to_gateways_and_kept_with_who_and_why(scene: Scene) -> None:
    log = await scene.hybrid_log(await scene.gateway())
    await accept(scene, log, 7)
    row = await scene.plane.tracked_partition(log.topic_id, log.partition)
    assert row is not None
    assert (row.accepted_gap_from, row.prefix_end, row.boundary) == (7, 7, 10)
    (action,) = await scene.plane.list_operator_actions()
    assert (action.action, action.partition, action.topic_id) == ("accept_gap", 0, log.topic_id)
    assert (action.decided_by, action.reason) == ("ada", "broker 2's disk is lost")
    assert action.details == {
        "from": 7, "to": 10, "generation": 1, "leader_epoch": 4, "log_ends": {"1": 7}
    }  # fmt: skip


async def test_the_same_gap_again_changes_nothing_a_longer_one_replaces_it(scene: Scene) -> None:
    log = await scene.hybrid_log(await scene.gateway())
    for first in (7, 7, 5, 5):
        await accept(scene, log, first)
    assert await gap_of(scene, log) == 5
    assert [a.details["from"] for a in await scene.plane.list_operator_actions()] == [7, 5]
    with pytest.raises(GapAcceptedAlready, match=r"5 to 9 .* is accepted already"):
        await accept(scene, log, 6)


async def test_a_prefix_that_is_gone_up_to_an_accepted_gap_is_gone(scene: Scene) -> None:
    log = await scene.hybrid_log(await scene.gateway())
    await accept(scene, log, 7)
    for log_start, state in ((6, MigrationState.HYBRID), (7, MigrationState.DISKLESS_ONLY)):
        await scene.plane.advance_prefix_start(log, log_start)
        row = await scene.plane.tracked_partition(log.topic_id, log.partition)
        assert row is not None
        assert row.state is state


async def test_a_gap_ends_at_b0_and_begins_in_the_prefix(scene: Scene) -> None:
    log = await scene.hybrid_log(await scene.gateway())
    with pytest.raises(InvalidInput, match="ends at B0 10, not at 9"):
        await accept(scene, log, 7, end=9)
    for first in (-1, 10, 12):
        with pytest.raises(InvalidInput, match=r"lies outside 0 .log start. to 10 .B0."):
            await accept(scene, log, first)
    with pytest.raises(InvalidInput, match="must be said"):
        await accept(scene, log, 7, reason=" ")
    assert (await gap_of(scene, log), await scene.plane.list_operator_actions()) == (-1, [])


async def test_an_older_look_accepts_nothing(scene: Scene) -> None:
    """Of generation and leader epoch, both as they were when the replicas were asked."""
    log = await scene.hybrid_log(await scene.gateway())
    with pytest.raises(StaleGeneration):
        await accept(scene, log, 7, generation=0)
    with pytest.raises(StaleLeaderEpoch, match="B0 was set, or reset, at epoch 3"):
        await accept(scene, log, 7, epoch=2)
    await accept(scene, log, 7, epoch=6)
    with pytest.raises(StaleLeaderEpoch, match="a gap was accepted at epoch 6"):
        await accept(scene, log, 5, epoch=5)


async def test_a_reset_takes_the_gap_with_it_and_the_next_b0_begins_without(scene: Scene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway)
    await accept(scene, log, 7)
    await scene.plane.reset_boundary(log, 1, 3)
    with pytest.raises(BoundaryUnset):
        await accept(scene, log, 6)
    generation = await scene.quiesce(log, [gateway])
    await scene.persist(log, 7, generation, epoch=5)
    assert await gap_of(scene, log) == -1
    with pytest.raises(StaleGeneration):
        await accept(scene, log, 6, end=7, epoch=5)


async def test_of_a_reset_and_an_acceptance_at_once_no_gap_outlives_its_b0(scene: Scene) -> None:
    gateway = await scene.gateway()
    for _ in range(8):
        log = await scene.hybrid_log(gateway)
        results = await asyncio.gather(
            scene.plane.reset_boundary(log, 1, 3), accept(scene, log, 7), return_exceptions=True
        )
        assert results[0] is None
        assert results[1] is None or isinstance(results[1], BoundaryUnset)
        assert await gap_of(scene, log) == -1


async def crossed_topic(scene: Scene) -> tuple[str, TopicIdPartition]:
    log = await scene.hybrid_log(await scene.gateway(1))
    (topic,) = [t for t in await scene.plane.tracked_topics() if t.topic_id == log.topic_id]
    return topic.name, log


async def test_a_forced_completion_leaves_the_prefix_incomplete_and_is_kept(scene: Scene) -> None:
    name, log = await crossed_topic(scene)
    for _ in range(2):
        assert await scene.plane.force_completion(log.topic_id, "ada", "segments are lost") == [0]
    topic = await scene.plane.tracked_topic(name)
    assert topic is not None
    assert (topic.completion_forced_by, topic.partitions[0].ready) == ("ada", False)
    (action,) = await scene.plane.list_operator_actions(name)
    assert (action.action, action.details) == ("force_completion", {"incomplete": [0]})
    await scene.plane.begin_tracking(
        name, log.topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 1_048_588
    )
    again = await scene.plane.tracked_topic(name)
    assert again is not None
    assert again.completion_forced_by is None


async def test_what_is_complete_needs_no_force(scene: Scene) -> None:
    _, log = await crossed_topic(scene)
    await scene.plane.set_tiering_complete(log, 1, True, "covered")
    assert await scene.plane.force_completion(log.topic_id, "ada", "to be sure") == []
    assert await scene.plane.list_operator_actions() == []


async def test_no_completion_while_a_partition_has_no_b0(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (first, _) = await scene.migrating_topic([gateway], 2)
    generation = await scene.quiesce(first, [gateway])
    await scene.persist(first, 10, generation)
    with pytest.raises(CompletionRefused, match="partition 1 has no B0"):
        await scene.plane.force_completion(first.topic_id, "ada", "it takes too long")
    with pytest.raises(UnknownTopic):
        await scene.plane.force_completion(uuid4(), "ada", "it takes too long")
    await scene.plane.delete_topic(first.topic_id)
    with pytest.raises(TopicDeleted):
        await scene.plane.force_completion(first.topic_id, "ada", "it takes too long")


async def test_of_a_reset_and_a_forced_completion_at_once_exactly_one_wins(scene: Scene) -> None:
    """A sealed log takes no records of a partition that migrates anew."""
    for _ in range(8):
        _, log = await crossed_topic(scene)
        forced, reset = await asyncio.gather(
            scene.plane.force_completion(log.topic_id, "ada", "segments are lost"),
            scene.plane.reset_boundary(log, 1, 3),
            return_exceptions=True,
        )
        boundary = await scene.plane.get_diskless_log_start_offset(log)
        if isinstance(reset, TidelineError):
            assert isinstance(reset, ResetRefused)
            assert (forced, boundary) == ([0], 10)
        else:
            assert isinstance(forced, CompletionRefused)
            assert boundary == -1


async def test_a_changed_configuration_is_kept_also_of_a_topic_not_tracked_yet(
    scene: Scene,
) -> None:
    topic_id = uuid4()
    await scene.plane.record_configuration(
        "orders", topic_id, "ada", "hanging transaction", {"open_transactions": ["wait", "abort"]}
    )
    (action,) = await scene.plane.list_operator_actions("orders")
    assert action.details == {"open_transactions": ["wait", "abort"]}
    assert await scene.plane.list_operator_actions("other") == []


@pytest.mark.parametrize("action", ["pause", "resume", "abort"])
async def test_who_steers_a_partition_or_a_topic_is_kept(scene: Scene, action: str) -> None:
    topic_id = uuid4()
    for partition in (None, 3):
        await scene.plane.record_configuration(
            "orders", topic_id, "ada", "incident 12", {}, action, partition
        )
    kept = await scene.plane.list_operator_actions("orders")
    assert [(a.action, a.partition, a.decided_by) for a in kept] == [
        (action, None, "ada"),
        (action, 3, "ada"),
    ]


async def test_a_request_is_tried_again_when_its_time_has_come(scene: Scene) -> None:
    topic_id = uuid4()
    await scene.plane.request_migration("orders", topic_id, "admin", {})
    (request,) = await scene.plane.pending_requests()
    settle = scene.plane.settle_request
    assert await settle(
        topic_id, request.requested_at, RequestState.RETRYING, "Temporal is away", 3_600_000
    )
    assert await scene.plane.pending_requests() == []
    (known,) = await scene.plane.list_requests("orders")
    assert (known.state, known.reason, known.tries) == (
        RequestState.RETRYING,
        "Temporal is away",
        1,
    )
    assert known.next_try_at is not None
    assert await settle(topic_id, request.requested_at, RequestState.RETRYING, "away", 0)
    assert [r.tries for r in await scene.plane.pending_requests()] == [2]


async def test_of_requests_that_were_started_those_that_have_ended_are_left_out(
    scene: Scene,
) -> None:
    for topic in ("first", "second", "third"):
        await scene.plane.request_migration(topic, uuid4(), "admin", {})
    assert await scene.plane.started_requests() == []
    first, second, _ = await scene.plane.pending_requests()
    settle = scene.plane.settle_request
    for request in (second, first):
        await settle(request.topic_id, request.requested_at, RequestState.STARTED)
    assert [r.topic for r in await scene.plane.started_requests()] == ["first", "second"]
    await settle(first.topic_id, first.requested_at, RequestState.DONE)
    assert [r.topic for r in await scene.plane.started_requests()] == ["second"]


async def test_a_refused_request_is_kept_as_refused_until_another_is_made(scene: Scene) -> None:
    topic_id = uuid4()
    await scene.plane.request_migration("orders", topic_id, "admin", {})
    (request,) = await scene.plane.pending_requests()
    settle = scene.plane.settle_request
    assert await settle(topic_id, request.requested_at, RequestState.REFUSED, "compacted")
    assert not await settle(topic_id, request.requested_at, RequestState.STARTED)
    (known,) = await scene.plane.list_requests()
    assert (known.state, known.reason) == (RequestState.REFUSED, "compacted")
    await scene.plane.request_migration("orders", topic_id, "admin", {})
    (again,) = await scene.plane.pending_requests()
    assert (again.state, again.reason) == (RequestState.RECEIVED, "")
    assert not await settle(topic_id, request.requested_at, RequestState.REFUSED, "an older one")


async def test_only_a_request_that_was_not_started_is_called_off(scene: Scene) -> None:
    topic_id = uuid4()
    with pytest.raises(NothingToCallOff, match="unknown"):
        await scene.plane.call_off_request(topic_id, "ada", "not today")
    await scene.plane.request_migration("orders", topic_id, "admin", {})
    (request,) = await scene.plane.pending_requests()
    for _ in range(2):
        await scene.plane.call_off_request(topic_id, "ada", "not today")
    assert await scene.plane.pending_requests() == []
    assert not await scene.plane.settle_request(
        topic_id, request.requested_at, RequestState.STARTED
    )
    (action,) = await scene.plane.list_operator_actions("orders")
    assert (action.action, action.decided_by) == ("call_off_request", "ada")
    await scene.plane.request_migration("orders", topic_id, "admin", {})
    (another,) = await scene.plane.pending_requests()
    await scene.plane.settle_request(topic_id, another.requested_at, RequestState.STARTED)
    with pytest.raises(NothingToCallOff, match="is started"):
        await scene.plane.call_off_request(topic_id, "ada", "not today")
