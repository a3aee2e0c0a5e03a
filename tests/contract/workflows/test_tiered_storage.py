"""Tiered storage is switched step by step; local retention is held until coverage is proven."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateStage,
)
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from tests.contract.workflows.tiering_world import TieringWorld
from tests.contract.workflows.world import WITHIN_S, ended, fails, soon
from tests.support.waiting import within
from tideline.domain import failures
from tideline.domain.messages import TOPIC_WORKFLOW, TopicMigrationInput
from tideline.domain.tiered_storage import HELD, LocalRetention
from tideline.domain.tiered_storage_change import (
    Remaining,
    TieredStorageInput,
    TieredStorageOutcome,
    TieredStorageStatus,
)
from tideline.temporal import (
    AnotherWorkflowRuns,
    NoSuchMigration,
    outcome_of,
    refuse_running,
    resume_change,
    running_topics,
    start_or_join,
    start_or_redirect,
    tiered_storage_status,
    unfinished_change,
)
from workflows import calls


@pytest.fixture
def world() -> TieringWorld:
    return TieringWorld(f"orders-{uuid4().hex[:8]}")


async def in_the_proof(
    world: TieringWorld, client: Client, **options: Any
) -> WorkflowHandle[Any, TieredStorageOutcome]:
    """A switch that is enabling, and has looked for the proof once."""
    handle = await world.start(client, "enabled", **options)
    await within("a look for the proof", world.proving.wait(), WITHIN_S)
    return handle


OFF: dict[str, str | None] = {"remote.storage.enable": "false", "local.retention.ms": "3600000"}


async def test_read_only_is_one_request(world: TieringWorld, client: Client) -> None:
    async with world.worker(client):
        outcome = await world.run(client, "read-only")
    assert (outcome.was, outcome.state) == ("enabled", "read-only")
    assert world.sets == [{"remote.log.copy.disable": "true", **HELD}]


async def test_off_is_over_when_remote_storage_is_empty(
    world: TieringWorld, client: Client
) -> None:
    async with world.worker(client):
        outcome = await world.run(client, "disabled")
    assert world.done == ["review", "set", "look"]
    assert (outcome.state, outcome.collected) == ("disabled", 0)


async def test_what_kafka_leaves_behind_is_collected_after_the_grace_and_not_before(
    world: TieringWorld, client: Client
) -> None:
    world.left = Remaining(segments=1, objects=5)
    async with world.worker(client):
        outcome = await world.run(client, "disabled", collect_after_s=300)
    assert world.done.count("look") > 5
    assert world.done.index("collect") > world.done.index("look")
    assert outcome.collected == 5
    assert "1 segments, of which nothing is in the bucket" in outcome.note


async def test_enabling_again_holds_local_retention_until_coverage_is_proven(
    world: TieringWorld, client: Client
) -> None:
    world.configs, world.not_proven = dict(OFF), 4
    async with world.worker(client):
        await world.run(client, "enabled")
    assert HELD.items() <= world.sets[0].items()
    assert world.done == ["review", "set", *["prove"] * 5, "set"]
    assert world.configs["local.retention.ms"] == "3600000"
    assert world.configs["local.retention.bytes"] is None


async def test_another_local_retention_may_be_asked_for_with_the_enabling(
    world: TieringWorld, client: Client
) -> None:
    world.configs = dict(OFF)
    async with world.worker(client):
        await world.run(client, "enabled", local_retention_ms=60_000)
    assert world.configs["local.retention.ms"] == "60000"


async def test_a_local_retention_set_by_hand_meanwhile_is_held_and_given_back(
    world: TieringWorld, client: Client
) -> None:
    world.configs, world.by_hand = dict(OFF), [LocalRetention("5", None)]
    async with world.worker(client):
        await world.run(client, "enabled")
    assert [sets["local.retention.ms"] for sets in world.sets] == ["-2", "-2", "5"]


async def test_enabling_while_a_deletion_runs_waits_for_it(
    world: TieringWorld, client: Client
) -> None:
    world.configs, world.left = dict(OFF), Remaining(0, 3)
    async with world.worker(client):
        await world.run(client, "enabled", collect_after_s=60)
    assert world.done.index("collect") < world.done.index("set")


async def test_a_refusal_ends_it_with_kafkas_words(world: TieringWorld, client: Client) -> None:
    world.script["review"] = fails(failures.REFUSED, "Remote log storage only supports …")
    async with world.worker(client):
        with pytest.raises(WorkflowFailureError) as refused:
            await world.run(client, "enabled")
    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.message.startswith("Remote log storage only supports")
    assert world.sets == []


async def test_a_start_under_another_id_is_refused_with_the_right_one(
    world: TieringWorld, client: Client
) -> None:
    async with world.worker(client):
        handle = await world.start(client, "enabled", f"by-hand-{world.topic}")
        with pytest.raises(WorkflowFailureError) as refused:
            await ended(handle)
    assert isinstance(refused.value.cause, ApplicationError)
    assert world.ref.workflow_id in refused.value.cause.message


async def test_a_wrong_input_is_refused_with_the_choice(
    world: TieringWorld, client: Client
) -> None:
    async with world.worker(client):
        with pytest.raises(WorkflowFailureError) as refused:
            await world.run(client, "gone")
    assert isinstance(refused.value.cause, ApplicationError)
    assert "choose among read-only, disabled, enabled" in refused.value.cause.message


async def test_a_target_that_is_refused_leaves_the_one_that_runs(
    world: TieringWorld, client: Client
) -> None:
    world.configs, world.not_proven = dict(OFF), 1_000_000
    async with world.worker(client):
        handle = await in_the_proof(world, client)
        world.script["review"] = fails(failures.REFUSED, "not now")
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update("target", TieredStorageInput(world.topic, "read-only"))
        world.not_proven = 0
        assert (await ended(handle)).state == "enabled"


async def test_another_target_that_is_reviewed_while_a_new_run_is_due_is_pursued(
    world: TieringWorld, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that goes on had the steps of the one target and reported the other as reached."""
    monkeypatch.setattr(calls, "LONG_HISTORY", 20)
    world.configs, world.not_proven = dict(OFF), 1_000_000
    async with world.worker(client):
        handle = await in_the_proof(world, client)
        world.reviewing = asyncio.Event()
        update = await handle.start_update(
            "target",
            TieredStorageInput(world.topic, "disabled"),
            wait_for_stage=WorkflowUpdateStage.ACCEPTED,
        )
        await soon("nothing but the review to be under way", lambda: world.only_reviews(handle))
        world.reviewing.set()
        await update.result()
        world.not_proven = 0
        outcome = await ended(handle)
    assert outcome.state == "disabled"
    assert world.configs["remote.storage.enable"] == "false"


async def test_no_further_step_is_taken_to_a_target_that_is_not_wanted_any_more(
    world: TieringWorld, client: Client
) -> None:
    world.configs, world.proven = dict(OFF), asyncio.Event()
    async with world.worker(client):
        handle = await in_the_proof(world, client)
        await handle.execute_update("target", TieredStorageInput(world.topic, "disabled"))
        world.proven.set()
        await ended(handle)
    assert [sets.get("remote.storage.enable") for sets in world.sets] == ["true", "false"]


@pytest.mark.parametrize(
    "wrong", [{"collect_after_s": 10**15}, {"local_retention_ms": 2**63}, {"collect_after_s": -1}]
)
async def test_a_number_that_no_clock_and_no_config_has_is_refused(
    world: TieringWorld, client: Client, wrong: dict[str, int]
) -> None:
    """A grace of a million years stopped the workflow for ever, with the topic switched off."""
    world.not_proven = 1_000_000
    async with world.worker(client):
        with pytest.raises(WorkflowFailureError) as refused:
            await world.run(client, "disabled", **wrong)
        handle = await in_the_proof(world, client)
        given = TieredStorageInput(world.topic, "disabled", **wrong)
        with pytest.raises(WorkflowUpdateFailedError) as unchanged:
            await handle.execute_update("target", given)
        await handle.terminate()
    for error in (refused.value.cause, unchanged.value.cause):
        assert "write a whole number" in str(error)
    assert "remote.storage.enable" not in {k for sets in world.sets[1:] for k in sets}


async def test_what_lists_the_bucket_has_as_long_as_a_large_topic_takes(
    world: TieringWorld, client: Client
) -> None:
    """With a minute for an attempt a topic of 1,000 partitions was begun anew for ever."""
    async with world.worker(client):
        handle = await world.start(client, "disabled")
        await ended(handle)
    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in (await handle.fetch_history()).events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    bounds = {each.activity_type.name: each.start_to_close_timeout.seconds for each in scheduled}
    assert bounds["review_tiered_storage"] == bounds["finish_remote_deletion"] == 1_200


async def test_what_was_held_is_named_when_it_fails(world: TieringWorld, client: Client) -> None:
    world.configs = dict(OFF)
    world.script["prove"] = fails(failures.REFUSED, "turned off by hand")
    async with world.worker(client):
        with pytest.raises(WorkflowFailureError) as failed:
            await world.run(client, "enabled")
    assert isinstance(failed.value.cause, ApplicationError)
    assert "before it was local.retention.ms=3600000" in failed.value.cause.message


async def test_a_release_that_kafka_refuses_waits(world: TieringWorld, client: Client) -> None:
    """The total was lowered meanwhile: the topic is safe as it is, an operator decides."""
    world.configs, world.refused_releases = dict(OFF), 2
    async with world.worker(client):
        await world.run(client, "enabled")
    assert world.done.count("set") == 4
    assert world.sets[-1]["local.retention.ms"] == "3600000"


class Meanwhile(Interceptor):
    """Lets something end first, once, before a call of the client's goes out."""

    def __init__(self, call: str, end: Callable[[], Awaitable[object]]) -> None:
        self._call, self._end = call, end

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        outbound = OutboundInterceptor(next)
        original = getattr(outbound, self._call)

        async def after_the_end(given: Any) -> Any:
            setattr(outbound, self._call, original)
            await self._end()
            return await original(given)

        setattr(outbound, self._call, after_the_end)
        return outbound


def hurried(client: Client, call: str, end: Callable[[], Awaitable[object]]) -> Client:
    """A client whose first ``call`` comes just behind ``end``."""
    return Client(client.service_client, interceptors=[Meanwhile(call, end)])


class OnARealServer:
    """The server that skips time refuses a workflow task that an update meets, now and then."""

    @pytest.fixture
    def client(self, server: WorkflowEnvironment) -> Client:
        return server.client


class TestAWorkflowThatEndsBeforeItIsJoined(OnARealServer):
    """Once a person was told: it has just ended, try again."""

    async def soon_over(
        self, world: TieringWorld, client: Client
    ) -> tuple[WorkflowHandle[Any, TieredStorageOutcome], Callable[[], Awaitable[object]]]:
        """A switch that proves, and what lets it come to its end."""
        world.configs, world.not_proven = dict(OFF), 1_000_000
        handle = await in_the_proof(world, client)

        async def end() -> object:
            world.not_proven = 0
            return await ended(handle)

        return handle, end

    async def test_the_other_target_is_reached_by_a_new_one(
        self, world: TieringWorld, client: Client
    ) -> None:
        given = TieredStorageInput(world.topic, "disabled")
        async with world.worker(client):
            first, end = await self.soon_over(world, client)
            late = hurried(client, "start_workflow_update", end)
            second = await start_or_redirect(late, world.queue, world.ref, given)
            assert (await ended(second)).state == "disabled"
            assert (await ended(first)).state == "enabled"

    @pytest.mark.parametrize("how", ["well", "failed", "terminated"])
    async def test_a_target_that_is_reviewed_while_it_ends_is_reached_by_a_new_one_too(
        self, world: TieringWorld, client: Client, how: str
    ) -> None:
        """What the first has left held is given back by the second."""
        given = TieredStorageInput(world.topic, "disabled")
        async with world.worker(client):
            first, _ = await self.soon_over(world, client)
            world.reviewing = asyncio.Event()
            asking = asyncio.create_task(start_or_redirect(client, world.queue, world.ref, given))
            await soon("a review of the target", lambda: _is(world.done.count("review") == 2))
            assert HELD.items() <= world.configs.items()
            if how == "failed":
                world.script["prove"] = fails(failures.REFUSED, "turned off by hand")
            world.not_proven = 0

            async def ends() -> bool:
                status = await first.query("status", result_type=TieredStorageStatus)
                return status.step == "ended"

            if how == "terminated":
                await first.terminate()
            else:
                await soon("nothing left but that review", ends)
            world.reviewing.set()
            second = await within("a workflow with the target", asking, WITHIN_S)
            assert (await ended(second)).state == "disabled"
        assert world.configs["local.retention.ms"] == "3600000"

    async def test_a_migration_begins_when_a_switch_has_just_ended(
        self, world: TieringWorld, client: Client
    ) -> None:
        async with world.worker(client):
            _, end = await self.soon_over(world, client)
            late = hurried(client, "describe_workflow", end)
            given = TopicMigrationInput(world.topic)
            migration = await start_or_join(late, world.queue, world.ref, given)
            description = await migration.describe()
            assert description.workflow_type == TOPIC_WORKFLOW
            await migration.terminate()

    async def test_a_target_for_one_that_looks_the_topic_up_is_given_in_a_moment(
        self, world: TieringWorld, client: Client
    ) -> None:
        world.not_proven = 1_000_000
        first = await world.start(client, "enabled")
        given = TieredStorageInput(world.topic, "disabled")
        asking = asyncio.create_task(start_or_redirect(client, world.queue, world.ref, given))
        async with world.worker(client):
            second = await within("the workflow", asking, WITHIN_S)
            assert (await ended(second)).state == "disabled"
        assert first.id == second.id


class TestTheTopicsId(OnARealServer):
    """One workflow id for both: whichever runs keeps the other out."""

    async def test_another_target_ends_the_wait_and_the_users_retention_is_given_back(
        self, world: TieringWorld, client: Client
    ) -> None:
        world.configs, world.not_proven = dict(OFF), 1_000_000
        async with world.worker(client):
            handle = await in_the_proof(world, client)
            redirected = await start_or_redirect(
                client, world.queue, world.ref, TieredStorageInput(world.topic, "disabled")
            )
            outcome = await ended(redirected)
        assert redirected.id == handle.id
        assert outcome.state == "disabled"
        assert world.configs["remote.storage.enable"] == "false"
        assert world.configs["local.retention.ms"] == "3600000"

    async def test_a_migration_does_not_begin_while_tiered_storage_is_switched(
        self, world: TieringWorld, client: Client
    ) -> None:
        world.not_proven = 1_000_000
        async with world.worker(client):
            handle = await in_the_proof(world, client)
            given = TopicMigrationInput(world.topic)
            with pytest.raises(AnotherWorkflowRuns, match="is being switched"):
                await start_or_join(client, world.queue, world.ref, given)
            assert await running_topics(client, world.topic) == []
            with pytest.raises(NoSuchMigration):
                await outcome_of(client, world.ref)
            await handle.terminate()

    async def test_tiered_storage_is_not_switched_while_the_topic_migrates(
        self, world: TieringWorld, client: Client
    ) -> None:
        migration = await start_or_join(
            client, world.queue, world.ref, TopicMigrationInput(world.topic)
        )
        with pytest.raises(AnotherWorkflowRuns, match="migrates"):
            await start_or_redirect(
                client, world.queue, world.ref, TieredStorageInput(world.topic, "disabled")
            )
        await migration.terminate()

    async def test_what_it_waits_for_is_shown(self, world: TieringWorld, client: Client) -> None:
        world.not_proven = 1_000_000
        async with world.worker(client):
            handle = await world.start(client, "enabled")

            async def waits() -> bool:
                known = await tiered_storage_status(client, world.topic, world.topic_id)
                return known is not None and "are nowhere" in known.waiting_reason

            await soon("why it waits", waits)
            known: TieredStorageStatus = await handle.query(
                "status", result_type=TieredStorageStatus
            )
            assert known.step == "prove coverage"
            assert known.holds_local_retention
            assert known.then == ["release local retention"]
            await handle.terminate()
        assert await tiered_storage_status(client, world.topic, world.topic_id) is None

    async def terminated_in_the_proof(self, world: TieringWorld, client: Client) -> None:
        world.proving.clear()
        world.not_proven = 1_000_000
        handle = await in_the_proof(world, client, collect_after_s=60)
        await handle.terminate()
        world.not_proven = 0

    async def resumed(self, world: TieringWorld, client: Client) -> None:
        given = await unfinished_change(client, world.ref)
        assert given is not None
        handle = await resume_change(client, world.queue, world.ref, given)
        await ended(handle)

    async def test_what_a_terminated_switch_has_left_held_is_given_back_by_the_one_that_resumes_it(
        self, world: TieringWorld, client: Client
    ) -> None:
        world.configs = dict(OFF)
        async with world.worker(client):
            assert await unfinished_change(client, world.ref) is None
            await self.terminated_in_the_proof(world, client)
            assert HELD.items() <= world.configs.items()
            found = await unfinished_change(client, world.ref)
            assert found == TieredStorageInput(
                world.topic, "enabled", collect_after_s=60,
                before_hold=LocalRetention("3600000", None),
            )  # fmt: skip
            await self.resumed(world, client)
            assert await unfinished_change(client, world.ref) is None, "nothing is left twice"
        assert world.configs["local.retention.ms"] == "3600000"
        assert world.configs["local.retention.bytes"] is None

    async def test_one_that_resumes_may_be_terminated_too(
        self, world: TieringWorld, client: Client
    ) -> None:
        world.configs = dict(OFF)
        async with world.worker(client):
            await self.terminated_in_the_proof(world, client)
            given = await unfinished_change(client, world.ref)
            assert given is not None
            world.reviewing = asyncio.Event()
            second = await resume_change(client, world.queue, world.ref, given)
            await soon("a second review", lambda: _is(world.done.count("review") == 2))
            await second.terminate()
            world.reviewing.set()
            await self.resumed(world, client)
        assert world.configs["local.retention.ms"] == "3600000"

    async def test_what_somebody_has_set_since_is_not_replaced_by_what_was_before(
        self, world: TieringWorld, client: Client
    ) -> None:
        world.configs = dict(OFF)
        async with world.worker(client):
            await self.terminated_in_the_proof(world, client)
            world.configs["local.retention.ms"] = "5"
            await self.resumed(world, client)
        assert world.configs["local.retention.ms"] == "5"
        assert world.configs["local.retention.bytes"] is None

    async def test_another_target_gives_back_what_was_left_held_as_well(
        self, world: TieringWorld, client: Client
    ) -> None:
        world.configs = dict(OFF)
        async with world.worker(client):
            await self.terminated_in_the_proof(world, client)
            left = await unfinished_change(client, world.ref)
            assert left is not None
            given = TieredStorageInput(world.topic, "disabled", before_hold=left.before_hold)
            handle = await start_or_redirect(client, world.queue, world.ref, given)
            await ended(handle)
        assert world.configs["remote.storage.enable"] == "false"
        assert world.configs["local.retention.ms"] == "3600000"

    async def test_nothing_is_resumed_while_a_workflow_of_the_topic_runs(
        self, world: TieringWorld, client: Client
    ) -> None:
        world.configs, world.not_proven = dict(OFF), 1_000_000
        async with world.worker(client):
            handle = await in_the_proof(world, client)
            assert await unfinished_change(client, world.ref) is None
            with pytest.raises(AnotherWorkflowRuns, match="Nothing was changed"):
                await refuse_running(client, world.ref)
            given = TieredStorageInput(world.topic, "enabled")
            with pytest.raises(AnotherWorkflowRuns, match="Nothing was changed"):
                await resume_change(client, world.queue, world.ref, given)
            await handle.terminate()
        await refuse_running(client, world.ref)


async def _is(fact: bool) -> bool:
    return fact
