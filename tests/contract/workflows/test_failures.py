"""What follows when an activity fails: who waits, what is shown, and that producers never stay
parked."""

from __future__ import annotations

import asyncio
import json

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from tests.contract.workflows.world import ADA, World, ended, fails, of, reach, soon
from tideline.domain import failures
from tideline.domain.messages import ABORTED, ConfigStage, PartitionStatus, TopicActivity
from tideline.domain.migration import PHASE_ORDER, PHASES, Phase

IN_WRITE_PAUSE = [rule.phase for rule in PHASES if rule.inside_write_pause]
OUTSIDE = [phase for phase in PHASE_ORDER if phase not in IN_WRITE_PAUSE]


@pytest.mark.usefixtures("one_try")
@pytest.mark.parametrize("phase", PHASE_ORDER)
async def test_a_phase_is_tried_again_when_a_part_does_not_answer(
    world: World, client: Client, phase: Phase
) -> None:
    world.script[phase] = fails(failures.UNREACHABLE, times=3)
    async with world.worker(client):
        outcome = await world.run(client)
    assert outcome.outcome == "hybrid"
    assert world.count(phase) == 4


@pytest.mark.usefixtures("one_try")
@pytest.mark.parametrize("phase", OUTSIDE)
async def test_a_wait_goes_on_until_its_condition_holds(
    world: World, client: Client, phase: Phase
) -> None:
    times = 5 if phase is Phase.READINESS else 20  # its pauses grow
    world.script[phase] = fails(failures.WAITING, "an open transaction", times=times)
    async with world.worker(client):
        outcome = await world.run(client)
    assert outcome.outcome == "hybrid"
    assert world.count(phase) == times + 1


@pytest.mark.parametrize("phase", IN_WRITE_PAUSE)
@pytest.mark.parametrize(
    "kind", [failures.QUIESCE_VOID, failures.NOT_SETTLED, failures.STALE_GENERATION]
)
async def test_a_write_pause_that_fails_lets_producers_go_and_starts_anew(
    world: World, client: Client, phase: Phase, kind: str
) -> None:
    world.script[phase] = fails(kind)
    async with world.worker(client):
        outcome = await world.run(client, world.unhurried)
    assert outcome.outcome == "hybrid"
    order = world.order()
    failed_at = order.index(phase)
    assert order[failed_at + 1] == TopicActivity.REOPEN_PARTITION
    assert order[failed_at + 2] == Phase.DRAIN_TRANSACTIONS
    assert world.logs[0].generation == (1 if phase is Phase.QUIESCE else 2)


async def test_a_write_pause_that_failed_is_begun_again_only_with_another_permit(
    world: World, client: Client
) -> None:
    world.script[Phase.ROLL_AND_FLUSH] = fails(failures.NOT_SETTLED, times=2)
    async with world.worker(client):
        handle = await world.start(client, world.unhurried)
        assert (await ended(handle)).outcome == "hybrid"
        events = (await handle.fetch_history()).events
        partition = client.get_workflow_handle(world.ref.partition_workflow_id(0))
        status: PartitionStatus = await partition.query("status", result_type=PartitionStatus)
    told = [
        event.signal_external_workflow_execution_initiated_event_attributes.input.payloads[0].data
        for event in events
        if event.HasField("signal_external_workflow_execution_initiated_event_attributes")
    ]
    permits = [json.loads(steering)["permit"] for steering in told]
    assert sorted(set(permits) - {0}) == [1, 2, 3]
    assert status.write_pauses == 3


async def test_b0_that_was_persisted_by_an_attempt_of_unknown_outcome_stays(
    world: World, client: Client
) -> None:
    def persisted() -> None:
        world.logs[0].boundary = 100

    world.before[Phase.SEED_AND_PERSIST] = persisted
    world.script[Phase.SEED_AND_PERSIST] = fails(failures.REFUSED, "B0 is set already")
    async with world.worker(client):
        outcome = await world.run(client)
    assert outcome.boundaries == {"0": 100}
    assert world.count(Phase.QUIESCE) == 1


async def test_a_boundary_reset_migrates_the_partition_anew_and_arms_again(
    world: World, server: WorkflowEnvironment
) -> None:
    client = server.client
    world.script[Phase.ZOMBIE_CLEANUP] = fails(failures.BOUNDARY_RESET)
    async with world.worker(client):
        outcome = await world.run(client, world.unhurried)
    assert outcome.outcome == "hybrid"
    assert world.count(Phase.QUIESCE) == 2
    # The second write pause began only after the topic was armed again, or still was.
    last = len(world.calls) - 1 - [c for c, _ in reversed(world.calls)].index(Phase.QUIESCE)
    assert f"{TopicActivity.RECONCILE_CONFIGS}:{ConfigStage.ARMED}" in [
        name for name, _ in world.calls[:last]
    ]
    assert world.stages[-3:] == [ConfigStage.CROSSED, ConfigStage.ROLLING, ConfigStage.FROZEN]


async def test_a_boundary_reset_after_the_seal_opens_the_classic_log_before_the_next_pause(
    world: World, server: WorkflowEnvironment
) -> None:
    """Until it has another B0 the partition takes classic produces, which a sealed log refuses."""
    client = server.client
    world.script[Phase.ZOMBIE_CLEANUP] = fails(failures.BOUNDARY_RESET)
    cleanup = world.hold(Phase.ZOMBIE_CLEANUP)
    async with world.worker(client):
        running = asyncio.ensure_future(world.run(client, world.unhurried))
        await reach(world, f"{TopicActivity.RECONCILE_CONFIGS}:{ConfigStage.ROLLING}")
        cleanup.set()
        outcome = await running
    assert outcome.outcome == "hybrid"
    after = world.stages[world.stages.index(ConfigStage.CROSSED) + 1 :]
    assert ConfigStage.TRACKED in after[: after.index(ConfigStage.ARMED)]
    assert after[-3:] == [ConfigStage.CROSSED, ConfigStage.ROLLING, ConfigStage.FROZEN]


@pytest.mark.parametrize("phase", [rule.phase for rule in PHASES if rule.abortable])
@pytest.mark.parametrize("unknown", [False, True])
async def test_a_topic_that_is_not_tracked_any_more_is_tracked_and_armed_again(
    world: World, client: Client, phase: Phase, unknown: bool
) -> None:
    """A history was begun that lacks that gateways have acknowledged it, or all of it."""
    world.partitions = 2
    if unknown:
        begun = iter([True])

        def forget() -> None:
            world.unknown = world.unknown or next(begun, False)

        world.before[phase] = forget
    else:
        world.script[of(phase, 0)] = fails(failures.UNTRACKED, times=2)
    async with world.worker(client):
        outcome = await world.run(client, world.unhurried)
    assert (outcome.outcome, outcome.boundaries) == ("hybrid", {"0": 100, "1": 101})
    assert world.count(TopicActivity.BEGIN_TRACKING) > 1
    called = [name for name, _ in world.calls]
    again = len(called) - 1 - called[::-1].index(TopicActivity.BEGIN_TRACKING)
    expected = [
        TopicActivity.AWAIT_TRACKING,
        f"{TopicActivity.RECONCILE_CONFIGS}:{ConfigStage.TRACKED}",
        f"{TopicActivity.RECONCILE_CONFIGS}:{ConfigStage.ARMED}",
        Phase.QUIESCE,
    ]
    assert [name for name in called[again:] if name in expected][:4] == expected


async def test_a_partition_that_finds_its_topic_untracked_once_has_it_tracked_again_once(
    world: World, client: Client
) -> None:
    """Its next try says nothing of that before it has ended."""
    world.script[Phase.DRAIN_TRANSACTIONS] = fails(failures.UNTRACKED)
    async with world.worker(client):
        outcome = await world.run(client, world.unhurried)
    assert outcome.outcome == "hybrid"
    assert world.count(TopicActivity.BEGIN_TRACKING) == 2


async def test_a_partition_tells_each_time_that_it_finds_its_topic_untracked(
    world: World, client: Client
) -> None:
    """Also for the same reason: another history was begun since."""
    begun = iter([True, True, True])

    def forget() -> None:
        world.unknown = world.unknown or next(begun, False)

    world.before[Phase.DRAIN_TRANSACTIONS] = forget
    async with world.worker(client):
        outcome = await world.run(client, world.unhurried)
    assert outcome.outcome == "hybrid"
    assert world.count(TopicActivity.BEGIN_TRACKING) == 4


async def test_a_topic_that_is_found_untracked_as_it_is_tracked_is_not_begun_again_at_once(
    world: World, client: Client
) -> None:
    world.script[TopicActivity.AWAIT_TRACKING] = fails(failures.UNTRACKED, times=4)
    async with world.worker(client):
        handle = await world.start(client, world.unhurried)
        assert (await ended(handle)).outcome == "hybrid"
        events = (await handle.fetch_history()).events
    waits = [
        event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta().total_seconds()
        for event in events
        if event.HasField("timer_started_event_attributes")
    ]
    assert waits[:4] == [0.5, 1, 2, 4]
    assert world.count(TopicActivity.BEGIN_TRACKING) == 5


async def test_a_topic_that_is_gone_from_postgres_before_it_is_tracked_is_tracked_once_more(
    world: World, client: Client
) -> None:
    world.script[TopicActivity.AWAIT_TRACKING] = fails(failures.UNTRACKED)
    async with world.worker(client):
        outcome = await world.run(client, world.unhurried)
    assert outcome.outcome == "hybrid"
    assert world.count(TopicActivity.BEGIN_TRACKING) == 2
    assert world.count(Phase.QUIESCE) == 1


async def test_a_partition_whose_b0_is_gone_waits_until_somebody_brings_it_back(
    world: World, client: Client
) -> None:
    """Clients were told of B0. The topic is not tracked again over that."""
    world.partitions = 2
    world.script[of(Phase.ZOMBIE_CLEANUP, 0)] = fails(failures.UNTRACKED, times=3)
    other = world.hold(of(Phase.DRAIN_TRANSACTIONS, 1))
    async with world.worker(client):
        handle = await world.start(client, world.unhurried)
        await soon("the fourth try", lambda: cleaned(world, 4))
        other.set()
        assert (await ended(handle)).boundaries == {"0": 100, "1": 101}
    assert world.count(TopicActivity.BEGIN_TRACKING) == 1


async def cleaned(world: World, tries: int) -> bool:
    return world.count(Phase.ZOMBIE_CLEANUP) >= tries


async def test_a_topic_all_of_whose_b0s_are_gone_is_not_tracked_again(
    world: World, client: Client
) -> None:
    crossed = f"{TopicActivity.RECONCILE_CONFIGS}:{ConfigStage.CROSSED}"
    world.script[crossed] = fails(failures.UNTRACKED, "nothing is known of it")
    async with world.worker(client):
        handle = await world.start(client, world.unhurried)
        with pytest.raises(WorkflowFailureError) as failed:
            await ended(handle)
    assert isinstance(failed.value.cause, ApplicationError)
    assert "nothing is known of it" in failed.value.cause.message
    assert world.count(TopicActivity.BEGIN_TRACKING) == 1


async def test_an_abort_ends_what_waits_for_a_topic_to_be_tracked_again(
    world: World, client: Client
) -> None:
    drain = world.hold(Phase.DRAIN_TRANSACTIONS)
    async with world.worker(client):
        handle = await world.start(client, world.unhurried)
        await reach(world, Phase.DRAIN_TRANSACTIONS)
        world.unknown = True
        world.script[TopicActivity.BEGIN_TRACKING] = fails(failures.UNREACHABLE, times=999)
        drain.set()
        await soon("a try to track it again", lambda: tried_again(world))
        await handle.execute_update("abort", ADA)
        assert (await ended(handle)).outcome == "aborted"
        partition = client.get_workflow_handle(world.ref.partition_workflow_id(0))
        assert (await ended(partition))["outcome"] == ABORTED
    assert world.unknown, "it is not tracked again"


async def tried_again(world: World) -> bool:
    return world.count(TopicActivity.BEGIN_TRACKING) > 1


async def test_a_reset_in_a_paused_topic_opens_the_log(world: World, client: Client) -> None:
    """Producers have no use for the pause: they would be refused for as long as it lasts."""
    world.script[Phase.ZOMBIE_CLEANUP] = fails(failures.BOUNDARY_RESET)
    cleanup = world.hold(Phase.ZOMBIE_CLEANUP)
    async with world.worker(client):
        handle = await world.start(client, world.unhurried)
        await reach(world, f"{TopicActivity.RECONCILE_CONFIGS}:{ConfigStage.ROLLING}")
        await handle.execute_update("pause", ADA)
        cleanup.set()

        async def opened() -> bool:
            return world.stages[-1] == ConfigStage.TRACKED

        await soon("the classic log to be opened", opened)
        assert world.count(Phase.QUIESCE) == 1
        await handle.execute_update("resume", ADA)
        outcome = await ended(handle)
    assert outcome.outcome == "hybrid"
    after = world.stages[world.stages.index(ConfigStage.ROLLING) + 1 :]
    assert after.count(ConfigStage.TRACKED) == 1
    assert after[-3:] == [ConfigStage.CROSSED, ConfigStage.ROLLING, ConfigStage.FROZEN]


async def test_a_refused_preflight_fails_the_workflow_and_changes_nothing(
    world: World, client: Client
) -> None:
    world.script[TopicActivity.VALIDATE_TOPIC] = fails(
        failures.PREFLIGHT_REFUSED, "cleanup_policy: cleanup.policy=compact"
    )
    async with world.worker(client):
        with pytest.raises(WorkflowFailureError) as failed:
            await world.run(client)
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == failures.PREFLIGHT_REFUSED
    assert "cleanup.policy=compact" in failed.value.cause.message
    assert not world.tracked
    assert world.stages == []


async def test_an_unknown_topic_fails_the_workflow_by_name(world: World, client: Client) -> None:
    async with world.worker(client):
        handle = await world.start(client, {"topic": "no-such"}, workflow_id=f"x-{world.topic}")
        with pytest.raises(WorkflowFailureError) as failed:
            await ended(handle)
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == failures.UNKNOWN_TOPIC
    assert "no-such" in failed.value.cause.message


async def test_the_start_is_held_back_until_every_gateway_tracks_the_topic(
    world: World, client: Client
) -> None:
    world.script[TopicActivity.AWAIT_TRACKING] = fails(
        failures.WAITING, "gateway 2 has not acknowledged", times=5
    )
    async with world.worker(client):
        outcome = await world.run(client)
    assert outcome.outcome == "hybrid"
    assert world.count(TopicActivity.AWAIT_TRACKING) == 6


async def test_the_roll_waits_for_the_proof_of_coverage(world: World, client: Client) -> None:
    world.script[TopicActivity.PROVE_COVERAGE_FOR_ROLL] = fails(failures.WAITING, times=3)
    async with world.worker(client):
        await world.run(client)
    names = [name for name, _ in world.calls]
    proven = len(names) - 1 - names[::-1].index(TopicActivity.PROVE_COVERAGE_FOR_ROLL)
    assert names[proven + 1] == f"{TopicActivity.RECONCILE_CONFIGS}:{ConfigStage.ROLLING}"


async def test_a_topic_that_is_past_a_config_stage_keeps_what_it_has(
    world: World, client: Client
) -> None:
    for stage in (ConfigStage.TRACKED, ConfigStage.ARMED):
        world.script[f"{TopicActivity.RECONCILE_CONFIGS}:{stage}"] = fails(failures.STALE_STAGE)
    async with world.worker(client):
        outcome = await world.run(client)
    assert outcome.outcome == "hybrid"
    assert world.stages == [ConfigStage.CROSSED, ConfigStage.ROLLING, ConfigStage.FROZEN]


async def test_a_deleted_topic_ends_the_migration(world: World, client: Client) -> None:
    world.script[Phase.DRAIN_TRANSACTIONS] = fails(failures.TOPIC_CHANGED, "it was created again")
    async with world.worker(client):
        with pytest.raises(WorkflowFailureError) as failed:
            await world.run(client)
    assert isinstance(failed.value.cause, ApplicationError)
    assert "created again" in failed.value.cause.message


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_partition_that_is_started_again_parks_nobody_before_the_topic_is_armed_again(
    world: World, server: WorkflowEnvironment, is_late: bool
) -> None:
    """Its first pause had failed, so that the topic had permitted two; then B0 was reset, which
    the other workflow finds itself, or (late) has found before its worker died."""
    client = server.client
    if not is_late:
        world.script[Phase.ROLL_AND_FLUSH] = fails(failures.NOT_SETTLED)
    world.script[Phase.READINESS] = fails(failures.BOUNDARY_RESET)

    def reset() -> None:
        if is_late and world.logs[0].boundary >= 0:
            world.logs[0].boundary = -1
            world.script[of(Phase.READINESS, 0)].clear()

    world.before[TopicActivity.OBSERVE_PARTITION] = reset
    async with world.worker(client):
        assert (await world.run(client)).outcome == "hybrid"
    names = [name for name, _ in world.calls]
    last = len(names) - 1 - names[::-1].index(Phase.QUIESCE)
    armed = f"{TopicActivity.RECONCILE_CONFIGS}:{ConfigStage.ARMED}"
    looked = names.index(TopicActivity.AWAIT_READINESS)
    assert armed in names[looked:last]
