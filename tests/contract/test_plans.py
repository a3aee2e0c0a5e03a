"""A plan keeps what became of its topics, and Postgres knows which topics were aborted."""

from __future__ import annotations

from tests.contract.scenes import Scene
from tideline.control_plane.model import PlannedOutcome, TrackingKind


async def test_a_plan_keeps_the_newest_outcome_of_each_of_its_topics(scene: Scene) -> None:
    plane = scene.plane
    await plane.record_plan_outcome("p", ["b", "a", "a"], PlannedOutcome.STARTED, run="run 1")
    await plane.record_plan_outcome("p", ["a"], PlannedOutcome.ABORTED, "a person did", "run 1")
    await plane.record_plan_outcome("q", ["a"], PlannedOutcome.REJECTED, "no", "run 2")
    await plane.record_plan_outcome("q", [], PlannedOutcome.DONE)
    for outcome in PlannedOutcome:
        await plane.record_plan_outcome("every", ["a"], outcome)
        assert [f.outcome for f in await plane.plan_outcomes("every")] == [outcome]
    found = await plane.plan_outcomes("p")
    assert [(f.topic, f.outcome, f.reason, f.run) for f in found] == [
        ("a", PlannedOutcome.ABORTED, "a person did", "run 1"),
        ("b", PlannedOutcome.STARTED, "", "run 1"),
    ]
    assert [f.outcome for f in await plane.plan_outcomes("q")] == [PlannedOutcome.REJECTED]
    assert await plane.plan_outcomes("another") == []


async def test_a_topic_is_a_rejected_one_until_another_plan_or_person_lets_it_begin(
    scene: Scene,
) -> None:
    plane = scene.plane
    await plane.record_plan_outcome("p", ["rb", "ra"], PlannedOutcome.REJECTED, "no", "run 1")
    await plane.record_plan_outcome("q", ["rb"], PlannedOutcome.STARTED, "", "run 2")
    (found,) = await plane.rejected_topics(["ra", "rb", "unheard of"])
    assert (found.topic, found.plan, found.reason, found.run) == ("ra", "p", "no", "run 1")
    await plane.record_plan_outcome("p", ["ra"], PlannedOutcome.ALLOWED, "yes", "run 1")
    assert await plane.rejected_topics(["ra", "rb"]) == []
    assert await plane.rejected_topics([]) == []


async def test_a_topic_is_an_aborted_one_until_its_migration_begins_anew(scene: Scene) -> None:
    gateway = await scene.gateway()
    name, (log,) = await scene.migrating_topic([gateway])
    other, _ = await scene.migrating_topic([gateway])
    assert await scene.plane.aborted_topics([name, other]) == []
    await scene.plane.abort_migration(log.topic_id)
    (first,) = await scene.plane.aborted_topics([name, other, "unheard of"])
    assert (first.topic, first.topic_id) == (name, log.topic_id)
    await scene.plane.abort_migration(log.topic_id)
    await scene.plane.stop_tracking(name)
    assert await scene.plane.aborted_topics([name]) == [first], "the abort stays where it was"
    assert await scene.plane.aborted_topics([other]) == []
    await scene.plane.begin_tracking(
        name, log.topic_id, TrackingKind.MIGRATED, 1, "CreateTime", 1_000_000
    )
    assert await scene.plane.aborted_topics([name]) == []
