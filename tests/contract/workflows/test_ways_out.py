"""What an operator decides while a migration runs: other options, a forced completion, an accepted
log gap. On a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any
from unittest.mock import AsyncMock

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from typer.testing import CliRunner

from tests.contract.workflows.test_steering import topic_status
from tests.contract.workflows.world import ADA, TOPIC_ID, World, ended, fails, reach, soon
from tideline import temporal
from tideline.cli import operators, steer
from tideline.cli.app import app
from tideline.domain import failures
from tideline.domain.messages import (
    FORCED,
    AbortDecision,
    ConfigStage,
    PauseOutcome,
    TopicActivity,
    TopicMigrationInput,
    Update,
)
from tideline.domain.migration import Phase
from tideline.domain.operator_choices import (
    UPDATES,
    CompletionOutcome,
    ConfigureOutcome,
    ConfigureRequest,
    Decider,
    GapOutcome,
    GapRequest,
    differing_options,
    joined_with_other_options,
)
from tideline.domain.options import Durability, MigrationOptions, OpenTransactionsPolicy


@pytest.fixture
def client(server: WorkflowEnvironment) -> Client:
    return server.client


@pytest.fixture
def commands(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Awaitable[Any]]:
    """The command line against this Temporal, as programs read its answers; Kafka and Postgres are
    not asked for the topic's id."""
    known = AsyncMock(return_value=(TOPIC_ID, {}))
    monkeypatch.setattr(steer, "find_topic", known)
    monkeypatch.setattr(operators, "find_topic", known)
    for name, value in {
        "TIDELINE_TEMPORAL_ADDRESS": client.service_client.config.target_host,
        "TIDELINE_POSTGRES_DSN": "postgresql://nobody@127.0.0.1:1/none",
        "TIDELINE_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "TIDELINE_S3_BUCKET": "none",
    }.items():
        monkeypatch.setenv(name, value)

    async def invoke(*arguments: str) -> Any:
        asked = [*arguments, "--by", ADA.by, "--reason", ADA.why, "-o", "json"]
        result = await asyncio.to_thread(CliRunner().invoke, app, asked)
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)

    return invoke


async def test_commands_give_the_workflow_what_their_operator_decided(
    world: World, client: Client, commands: Callable[..., Awaitable[Any]]
) -> None:
    """They once gave it nothing, and every one of them failed."""
    world.script[Phase.READINESS] = fails(failures.WAITING, "segments are missing", times=999)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.READINESS)
        option = ("--option", "segment_wait_ms=1000")
        changed = (await commands("configure", world.topic, *option))["changed"]
        bounds = ("--from", "90", "--to", "100")
        gap = await commands("gap", "accept", world.topic, "0", *bounds)
        forced = await commands("complete", world.topic, "--force")
        await ended(handle)
    assert changed == {"segment_wait_ms": [30_000, 1_000]}
    assert (gap["first"], gap["end"]) == (90, 100)
    assert forced["incomplete"] == [0]
    assert [decider for decider, _ in world.decided] == [ADA] * len(world.decided)


async def configure(
    handle: WorkflowHandle[Any, Any], decider: Decider = ADA, **options: Any
) -> ConfigureOutcome:
    return await handle.execute_update(
        "configure", ConfigureRequest(options, decider), result_type=ConfigureOutcome
    )


async def refusal(handle: WorkflowHandle[Any, Any], update: str, *given: Any) -> str:
    """Why ``update`` is refused."""
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await handle.execute_update(update, args=given)
    cause = refused.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == failures.REFUSED
    return cause.message


async def test_a_running_drain_goes_by_the_options_that_an_operator_gives_it(
    world: World, client: Client
) -> None:
    world.script[Phase.DRAIN_TRANSACTIONS] = fails(failures.WAITING, "transaction 7", times=999)
    async with world.worker(client):
        handle = await world.start(client)
        await soon("a second try to drain", lambda: drained(world, 0))
        outcome = await configure(handle, open_transactions="abort")
        await soon("a drain by the other options", lambda: asked_anew(world))
        world.script[Phase.DRAIN_TRANSACTIONS].clear()
        await ended(handle)
        shown = (await topic_status(handle)).options
    assert outcome.changed == {"open_transactions": ["wait", "abort"]}
    assert outcome.options.drain_deadline_ms == 60_000
    assert shown == outcome.options
    assert world.options[0].open_transactions is OpenTransactionsPolicy.WAIT
    assert world.options[-1].open_transactions is OpenTransactionsPolicy.ABORT
    assert world.decided == [(ADA, {"open_transactions": ["wait", "abort"]})]


async def test_options_change_past_the_first_b0_for_those_that_have_not_crossed(
    world: World, client: Client
) -> None:
    """An abort is refused from there on: no other way out of a transaction that hangs."""
    world.partitions = 2

    def next_one_hangs() -> None:
        """The other partition begins when this one has its B0."""
        world.script[Phase.DRAIN_TRANSACTIONS] = fails(failures.WAITING, "hangs", times=999)

    world.before[Phase.SEED_AND_PERSIST] = next_one_hangs
    async with world.worker(client):
        handle = await world.start(
            client, {"topic": world.topic, "options": {"parallel_partitions": 1}}
        )
        await soon("a second try to drain", lambda: drained(world, 1))
        await configure(handle, open_transactions="abort")
        await soon("a drain by the other options", lambda: asked_anew(world))
        del world.before[Phase.SEED_AND_PERSIST]
        world.script[Phase.DRAIN_TRANSACTIONS].clear()
        outcome = await ended(handle)
    assert outcome.outcome == "hybrid"
    assert world.options[-1].open_transactions is OpenTransactionsPolicy.ABORT


async def drained(world: World, partition: int) -> bool:
    """In process, and once more as a task: then there is a rest."""
    return world.calls.count((Phase.DRAIN_TRANSACTIONS, partition)) > 1


async def asked_anew(world: World) -> bool:
    """Its workflow has heard of the options, which is later than the topic's."""
    return world.options[-1].open_transactions is OpenTransactionsPolicy.ABORT


async def test_what_may_not_change_any_more_is_refused_by_name(
    world: World, client: Client
) -> None:
    held = world.hold(Phase.READINESS)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.READINESS)
        for options, why in (
            ({"durability": "replicated"}, "durability: what it asks of the brokers is in force"),
            ({"quiesce_hold_ms": 2_000}, "quiesce_hold_ms: every partition has its B0"),
            ({"parallel": 2}, "options.parallel: no such field"),
            ({"segment_wait_ms": -1}, "write a whole number (ms) from 0"),
            ({}, "none is named"),
        ):
            assert why in await refusal(handle, "configure", ConfigureRequest(options, ADA))
        nobody = ConfigureRequest({"segment_wait_ms": 1_000}, Decider(" ", ""))
        assert "decider.by: ' '; write text" in await refusal(handle, "configure", nobody)
        assert world.decided == []
        assert (await configure(handle, segment_wait_ms=1_000)).options.segment_wait_ms == 1_000
        assert (await configure(handle, segment_wait_ms=1_000)).changed == {}
        held.set()
        await ended(handle)
    assert len(world.decided) == 1


@pytest.mark.parametrize("waits_in", [Phase.READINESS, TopicActivity.PROVE_COVERAGE_FOR_ROLL])
async def test_a_forced_completion_freezes_and_ends_what_waits_behind_b0(
    world: World, client: Client, waits_in: str
) -> None:
    world.partitions = 2
    world.script[waits_in] = fails(failures.WAITING, "segments are missing", times=999)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, waits_in)
        await soon("all partitions to cross", lambda: crossed(world))
        outcome = await handle.execute_update("complete", ADA, result_type=CompletionOutcome)
        result = await ended(handle)
        ends = [report.phase for report in (await topic_status(handle)).partitions]
    assert ends == [FORCED, FORCED]
    assert outcome.incomplete == [0, 1]
    assert result.outcome == "hybrid"
    assert result.reason == "completion forced by ada: prefix of partition 0, 1 not complete"
    assert world.stages[-1] is ConfigStage.FROZEN
    assert not world.logs[0].ready
    assert result.boundaries == {"0": 100, "1": 101}


async def crossed(world: World) -> bool:
    return all(log.boundary >= 0 for log in world.logs.values())


async def test_no_completion_is_forced_before_every_partition_has_crossed(
    world: World, client: Client
) -> None:
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.DRAIN_TRANSACTIONS)
        assert "has no B0" in await refusal(handle, "complete", ADA)
        held.set()
        assert (await ended(handle)).reason == ""


async def test_an_accepted_gap_lets_the_partition_go_on(world: World, client: Client) -> None:
    world.script[Phase.ZOMBIE_CLEANUP] = fails(failures.WAITING, "log gap", times=999)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.ZOMBIE_CLEANUP)
        given = GapRequest(0, 90, 100, Decider("ada", "the disk of broker 2 is lost"))
        outcome = await handle.execute_update("accept_gap", given, result_type=GapOutcome)
        world.script[Phase.ZOMBIE_CLEANUP].clear()
        assert (await ended(handle)).outcome == "hybrid"
    assert (outcome.first, outcome.end, outcome.leader_epoch) == (90, 100, 4)
    assert world.decided == [(given.decider, (90, 100))]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (GapRequest(99, 90, 100, ADA), "partition 99: the migration has 1"),
        (GapRequest(-1, 90, 100, ADA), "partition: -1; write a whole number"),
        (GapRequest(0, 9, 5, ADA), "first 9, end 5 of partition 0: a gap is"),
        (GapRequest(0, -1, 5, ADA), "first: -1; write a whole number"),
    ],
)
async def test_a_gap_that_there_cannot_be_is_refused_before_anybody_is_asked(
    world: World, client: Client, given: GapRequest, why: str
) -> None:
    held = world.hold(Phase.ZOMBIE_CLEANUP)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.ZOMBIE_CLEANUP)
        assert why in await refusal(handle, "accept_gap", given)
        held.set()
        await ended(handle)
    assert world.decided == []


async def test_an_update_that_names_another_topic_is_refused(world: World, client: Client) -> None:
    held = world.hold(Phase.ZOMBIE_CLEANUP)
    request = asdict(GapRequest(0, 90, 100, ADA)) | {"ref": {"topic": "payments", "topic_id": "0"}}
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.ZOMBIE_CLEANUP)
        assert "ref: no such field" in await refusal(handle, "accept_gap", request)
        held.set()
        await ended(handle)
    assert world.decided == []


NOTHING = object()


@pytest.mark.parametrize(
    ("update", "given", "said"),
    [
        ("configure", {"options": {"parallel_partitions": 4}}, "decider: missing"),
        ("configure", {"parallel_partitions": 4}, "parallel_partitions: no such field"),
        ("configure", "parallel_partitions=4", "the input: text"),
        ("configure", NOTHING, "the input: missing"),
        (
            "configure",
            {"options": {"first_partitions": 4}, "decider": asdict(ADA), "dry_run": True},
            "dry_run: no such field",
        ),
        ("complete", {"by": "ada"}, "why: missing"),
        ("accept_gap", {"partition": "0", "first": 9}, "partition: '0'; write a whole number"),
        ("pause", {"x": 1}, "x: no such field"),
        ("resume", NOTHING, "the input: missing"),
        ("abort", {"by": " ", "why": "x"}, "by: ' '; write text"),
    ],
)
async def test_a_malformed_update_is_refused_with_field_rule_and_example(
    world: World, client: Client, update: str, given: Any, said: str
) -> None:
    """The decoder of Temporal's SDK says neither, or takes what it does not know for nothing."""
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.DRAIN_TRANSACTIONS)
        answer = await refusal(handle, update, *([] if given is NOTHING else [given]))
        held.set()
        await ended(handle)
    assert said in answer
    assert f"for example {UPDATES[Update(update)].example}" in answer
    assert world.decided == []


async def test_who_steers_a_topic_or_a_partition_is_kept_with_the_reason(
    world: World, client: Client
) -> None:
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.DRAIN_TRANSACTIONS)
        child = client.get_workflow_handle(world.ref.partition_workflow_id(0))
        for update in ("pause", "resume"):
            assert "why: missing" in await refusal(child, update, {"by": "ada"})
            await child.execute_update(update, ADA)
            await handle.execute_update(update, ADA)
        assert (await handle.execute_update("abort", ADA, result_type=AbortDecision)).won
        held.set()
        await ended(handle)
    assert world.steered == [
        ("pause", 0, ADA), ("pause", None, ADA), ("resume", 0, ADA), ("resume", None, ADA),
        ("abort", None, ADA),
    ]  # fmt: skip


async def test_a_pause_holds_also_where_it_cannot_be_kept(world: World, client: Client) -> None:
    world.script[TopicActivity.RECORD_CONFIGURATION] = fails(
        failures.REFUSED, "Postgres is away", times=9
    )
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.DRAIN_TRANSACTIONS)
        paused = await handle.execute_update("pause", ADA, result_type=PauseOutcome)
        shown = (await topic_status(handle)).paused
        world.script[TopicActivity.RECORD_CONFIGURATION].clear()
        await handle.execute_update("resume", ADA)
        held.set()
        await ended(handle)
    assert paused.paused
    assert shown
    assert "Postgres not: Postgres is away" in paused.explanation


async def test_a_gap_that_somebody_can_fill_is_refused_with_the_activitys_own_words(
    world: World, client: Client
) -> None:
    held = world.hold(Phase.ZOMBIE_CLEANUP)
    world.script[TopicActivity.ACCEPT_GAP] = fails(failures.REFUSED, "segment x holds 90 to 95")
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.ZOMBIE_CLEANUP)
        given = GapRequest(0, 90, 100, ADA)
        assert "segment x holds 90 to 95" in await refusal(handle, "accept_gap", given)
        held.set()
        await ended(handle)


async def test_who_joins_with_other_options_is_told_which_and_changes_none(
    world: World, client: Client
) -> None:
    world.script[Phase.DRAIN_TRANSACTIONS] = fails(failures.WAITING, "transaction 7", times=999)
    async with world.worker(client):
        handle = await world.start(client)
        await reach(world, Phase.DRAIN_TRANSACTIONS)
        wanted = MigrationOptions(durability=Durability.TIERED, quiesce_hold_ms=9_000)
        given = TopicMigrationInput(world.topic, wanted, "cli: ada")
        joined = await temporal.start_or_join(client, world.queue, world.ref, given)
        running = await temporal.options_in_force(joined)
        assert running == MigrationOptions()
        differing = differing_options(running, wanted)
        world.script[Phase.DRAIN_TRANSACTIONS].clear()
        await ended(handle)
    assert set(differing) == {"durability", "quiesce_hold_ms"}
    said = joined_with_other_options("orders", differing)
    assert "orders migrates already, with other options: durability is fsynced, not tiered" in said
    assert "`tideline configure orders` changes them" in said
    assert joined_with_other_options("orders", differing_options(running, running)) == ""
    assert {options.durability for options in world.options} == {Durability.FSYNCED}
