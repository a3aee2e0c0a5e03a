"""Records the histories that tests/replay/test_replay.py replays, all of them, from the code as it
is: ``.venv/bin/python -m tests.replay.record`` (CONTRIBUTING.md says when).

A few scenarios hold all that there is to hold: each is one topic on a real server, over activities
that a script lets fail and wait. What a validator refuses leaves no event in a history.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from tests.contract.workflows.conftest import KEYS
from tests.contract.workflows.skipping import program
from tests.contract.workflows.tiering_world import TieringWorld
from tests.contract.workflows.world import ADA, WITHIN_S, World, ended, fails, of, reach, soon
from tests.support.waiting import eventually
from tideline.domain import failures
from tideline.domain.messages import ConfigStage, TopicActivity, Update
from tideline.domain.migration import Phase
from tideline.domain.operator_choices import ConfigureRequest, GapRequest
from tideline.domain.places import waiting_reason
from tideline.domain.tiered_storage import LocalRetention
from tideline.domain.tiered_storage_change import Remaining, TieredStorageInput, TieredStorageUpdate

HISTORIES = Path(__file__).parent / "histories"
Run = WorkflowHandle[Any, Any]
Runs = Mapping[str, Run]
"""By the name of the file: which run's history it has."""
AGAIN = 999
"""Times that a call fails until the scenario lets it succeed."""


async def many(world: World, client: Client) -> Runs:
    """24 partitions, four at once, as operators allow, after a wait for a place and for a gateway.
    Of their workflows one is terminated inside its write pause and meets with all that can hold a
    partition up; others are cancelled before, inside and after theirs. Then B0 of one is unset."""
    world.partitions, world.share, world.grown = 24, 4, "partition 24 came past the gateways"
    world.script[TopicActivity.TAKE_PLACE] = waits(waiting_reason(5, 1), times=2)
    world.script[TopicActivity.AWAIT_TRACKING] = waits("gateway 2", times=2)
    world.script[TopicActivity.PROVE_COVERAGE_FOR_ROLL] = waits("a segment is missing", times=1)
    world.script[Phase.READINESS] = waits("replica 2 has not rolled", times=26)
    world.script[of(Phase.READINESS, 5)] = fails(failures.BOUNDARY_RESET)
    before, inside = of(Phase.DRAIN_TRANSACTIONS, 0), of(Phase.ROLL_AND_FLUSH, 8)
    after, terminated = of(Phase.ZOMBIE_CLEANUP, 9), of(Phase.ROLL_AND_FLUSH, 3)
    for held in (before, inside, after, terminated):
        world.hold(held)
    options = {"parallel_partitions": 8, "quiesce_hold_ms": 60_000}
    topic = await world.start(client, {"topic": world.topic, "options": options})
    await reach(world, before)
    await cancelled(await running(world, client, 0))
    await reach(world, terminated)
    world.script[of(Phase.DRAIN_TRANSACTIONS, 3)] = waits("transaction 7", times=AGAIN)
    first = await running(world, client, 3)
    await first.terminate("from outside")
    begun_again = await another(client, first)
    for released in (before, terminated):  # a worker that goes on would persist B0
        world.held[released].set()
    world.script[of(Phase.QUIESCE, 3)] = fails(failures.QUIESCE_VOID)
    world.script[of(Phase.ROLL_AND_FLUSH, 3)] = fails(failures.NOT_SETTLED)
    world.script[of(Phase.ZOMBIE_CLEANUP, 3)] = [
        *waits("a log gap", times=2),
        *fails(failures.BOUNDARY_RESET),
    ]
    await reach(world, inside)
    in_pause = await cancelled(await running(world, client, 8))
    await reach(world, after)
    await cancelled(await running(world, client, 9))
    for released in (inside, after):
        world.held[released].set()
    for pausing, reason in (
        (begun_again, "paused by an operator"),
        (topic, "the topic's migration is paused"),
    ):
        await waits_because(begun_again, "transaction 7")
        await pausing.execute_update(Update.PAUSE, ADA)
        await waits_because(begun_again, reason)
        await pausing.execute_update(Update.RESUME, ADA)
    await waits_because(begun_again, "transaction 7")
    world.script[of(Phase.DRAIN_TRANSACTIONS, 3)].clear()
    abort_them = ConfigureRequest({"open_transactions": "abort"}, ADA)
    await topic.execute_update(Update.CONFIGURE, abort_them)
    await ended(topic)
    return {
        "many.topic": bound(client, topic),
        "begun_again.partition": begun_again,
        "cancelled_in_pause.partition": in_pause,
    }


async def continued(world: World, client: Client) -> Runs:
    """The server finds the histories long of a topic that waits for a gateway, and of a partition
    that cannot let its producers go: runs follow runs while partitions are open. In the end the
    topic is deleted, which one partition finds out for all."""
    world.partitions = 3
    reopening, cleaning = of(TopicActivity.REOPEN_PARTITION, 0), of(Phase.ZOMBIE_CLEANUP, 0)
    world.script[TopicActivity.AWAIT_TRACKING] = waits("gateway 2", times=4)
    world.script[of(Phase.ROLL_AND_FLUSH, 0)] = fails(failures.NOT_SETTLED)
    world.script[reopening] = waits("Postgres", times=AGAIN)
    world.script[cleaning] = waits("a log gap", times=AGAIN)
    world.script[TopicActivity.AWAIT_READINESS] = fails(failures.UNKNOWN_TOPIC, times=AGAIN)
    world.script[of(Phase.READINESS, 0)] = [
        *waits("offset 40 to 50", times=2),
        *fails(failures.UNKNOWN_TOPIC, "'orders' was deleted"),
    ]
    options = {"segment_wait_ms": 500, "quiesce_hold_ms": 60_000}
    topic = await world.start(client, {"topic": world.topic, "options": options})
    await reach(world, reopening)
    run = await newest(client, topic.id)
    for _ in range(2):
        run = await steered_past(client, run)
    parked = await running(world, client, 0)
    goes_on = await another(client, parked)
    world.script[reopening].clear()
    await another(client, goes_on)
    world.script[cleaning].clear()
    with pytest.raises(WorkflowFailureError):
        await ended(topic)
    found_open = [run async for run in runs(client, bound(client, topic)) if await finds_open(run)]
    return {
        "continued.topic": found_open[0],
        "deleted.topic": await newest(client, topic.id),
        "continued.partition": goes_on,
        "deleted.partition": await running(world, client, 0),
    }


async def steered(world: World, client: Client) -> Runs:
    """Each update is carried out, and refused by whom its handler asks, an abort also while a topic
    that an earlier workflow has tracked waits for its place. A cancel comes too late."""
    world.partitions, world.tracked = 2, True
    world.script[TopicActivity.TAKE_PLACE] = waits(waiting_reason(5, 1), times=AGAIN)
    drain = world.hold(Phase.DRAIN_TRANSACTIONS)
    world.script[Phase.ZOMBIE_CLEANUP] = waits("a log gap", times=AGAIN)
    world.script[Phase.READINESS] = waits("segments are missing", times=AGAIN)
    world.script[TopicActivity.ABORT_MIGRATION] = fails(failures.REFUSED)
    world.script[TopicActivity.ACCEPT_GAP] = fails(failures.REFUSED)
    options = {"parallel_partitions": 1, "first_partitions": 1}
    topic = await world.start(client, {"topic": world.topic, "options": options})
    await reach(world, TopicActivity.TAKE_PLACE)
    await refused(topic, Update.ABORT, ADA)
    world.script[TopicActivity.TAKE_PLACE].clear()
    await reach(world, Phase.DRAIN_TRANSACTIONS)
    configure = ConfigureRequest({"segment_wait_ms": 1}, ADA)
    gap = GapRequest(0, 80, 100, ADA)
    nobody: dict[str, Any] = {}
    for update in Update:
        await refused(topic, update, nobody)
    world.script[TopicActivity.RECORD_CONFIGURATION] = fails(failures.REFUSED, times=2)
    await topic.execute_update(Update.PAUSE, ADA)
    await refused(topic, Update.CONFIGURE, configure)
    await topic.execute_update(Update.CONFIGURE, configure)
    await topic.execute_update(Update.RESUME, ADA)
    await refused(topic, Update.COMPLETE, ADA)
    drain.set()
    await waits_because(topic, "have crossed before the others")
    await topic.execute_update(Update.ABORT, ADA)
    await refused(topic, Update.ACCEPT_GAP, gap)
    await topic.execute_update(Update.ACCEPT_GAP, gap)
    world.script[Phase.ZOMBIE_CLEANUP].clear()
    await topic.cancel()
    asked = TopicActivity.ABORT_MIGRATION
    await eventually("the cancel to be decided", lambda: world.count(asked) == 3, WITHIN_S)
    await topic.execute_update(Update.RESUME, ADA)
    await waits_because(topic, "tiering takes longer")
    await topic.execute_update(Update.COMPLETE, ADA)
    await ended(topic)
    return {"steered.topic": bound(client, topic)}


async def called_off(world: World, client: Client) -> Runs:
    """Aborted while two partitions are inside their write pauses. One of them was started with its
    permit, and has given that back to wait. While the topic is restored it is cancelled."""
    world.partitions = 2
    restoring = f"{TopicActivity.RECONCILE_CONFIGS}:{ConfigStage.RESTORED}"
    world.script[restoring] = waits("Kafka is away", times=AGAIN)
    world.script[of(Phase.DRAIN_TRANSACTIONS, 1)] = waits("transaction 7", times=AGAIN)
    world.hold(Phase.ROLL_AND_FLUSH)
    options = {"parallel_partitions": 1, "quiesce_hold_ms": 60_000}
    topic = await world.start(client, {"topic": world.topic, "options": options})
    await reach(world, Phase.ROLL_AND_FLUSH)
    more = ConfigureRequest({"parallel_partitions": 2}, ADA)
    await topic.execute_update(Update.CONFIGURE, more)
    await reach(world, of(Phase.DRAIN_TRANSACTIONS, 1))
    partition = await running(world, client, 1)
    await waits_because(partition, "transaction 7")
    world.script[of(Phase.DRAIN_TRANSACTIONS, 1)].clear()
    await reach(world, of(Phase.ROLL_AND_FLUSH, 1))
    await topic.execute_update(Update.ABORT, ADA)
    await reach(world, restoring)
    await topic.cancel()
    world.script[restoring].clear()
    with pytest.raises(WorkflowFailureError):
        await ended(topic)
    return {"called_off.topic": bound(client, topic), "called_off.partition": partition}


async def follower(world: World, client: Client) -> Runs:
    """A start under another id, which finds the topic's own workflow when Temporal answers."""
    world.script[TopicActivity.FOLLOW_TOPIC_MIGRATION] = waits("Temporal", times=1)
    by_hand = await world.start(client, workflow_id="by-hand")
    await ended(by_hand)
    return {"follower.topic": bound(client, by_hand)}


async def switched(world: TieringWorld, client: Client) -> Runs:
    """Tiered storage is turned off, and while objects are left behind it is to be enabled again:
    that is refused once, then they are collected; local retention is held over a change by hand."""
    world.left = Remaining(1, 3)
    world.by_hand, world.not_proven = [LocalRetention("7")], 2
    handle = await world.start(client, "disabled")
    await eventually("a look at what is left", lambda: "look" in world.done, WITHIN_S)
    enabled = TieredStorageInput(world.topic, "enabled", collect_after_s=2)
    world.script["review"] = fails(failures.REFUSED)
    await refused(handle, TieredStorageUpdate.TARGET, enabled)
    await handle.execute_update(TieredStorageUpdate.TARGET, enabled)
    await ended(handle)
    return {"switched.topic": bound(client, handle)}


def waits(reason: str, times: int) -> list[ApplicationError]:
    return fails(failures.WAITING, reason, times=times)


async def refused(handle: Run, update: str, given: Any) -> None:
    with pytest.raises(WorkflowUpdateFailedError):
        await handle.execute_update(update, given)


async def cancelled(run: Run) -> Run:
    """Its worker, which may hold a local activity, has heard of it."""
    await run.cancel()
    with pytest.raises(WorkflowFailureError):
        await ended(run)
    return run


async def waits_because(run: Run, reason: str) -> None:
    async def shown() -> bool:
        return reason in (await run.query("status"))["waiting_reason"]

    await soon(f"{run.id} to show {reason!r}", shown)


async def steered_past(client: Client, before: Run) -> Run:
    """The run after ``before``, whose history is made long by its operators."""
    while (run := await newest(client, before.id)).run_id == before.run_id:
        await client.get_workflow_handle(before.id).execute_update(Update.RESUME, ADA)
    return run


async def runs(client: Client, first: Run) -> AsyncIterator[Run]:
    """From ``first`` on, each that continues the one before it."""
    run_id = first.run_id
    while run_id:
        run = client.get_workflow_handle(first.id, run_id=run_id)
        yield run
        last = (await run.fetch_history()).events[-1]
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id


async def finds_open(run: Run) -> bool:
    """It wanted to start a partition that the run before it had started."""
    return any(
        event.HasField("start_child_workflow_execution_failed_event_attributes")
        for event in (await run.fetch_history()).events
    )


def bound(client: Client, first: Run) -> Run:
    """To the run that was started."""
    return client.get_workflow_handle(first.id, run_id=first.first_execution_run_id)


async def newest(client: Client, workflow_id: str) -> Run:
    """The run of the workflow that is the newest by now."""
    found = await client.get_workflow_handle(workflow_id).describe()
    return client.get_workflow_handle(workflow_id, run_id=found.run_id)


async def running(world: World, client: Client, partition: int) -> Run:
    return await newest(client, world.ref.partition_workflow_id(partition))


async def another(client: Client, before: Run) -> Run:
    """The run after ``before``."""

    async def found() -> Run | None:
        run = await newest(client, before.id)
        return run if run.run_id != before.run_id else None

    return await eventually(f"another run of {before.id}", found, WITHIN_S)


def write(file: Path, history: Any) -> None:
    """Without stack traces: they name the machine on which it was recorded."""

    def without_traces(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without_traces(v) for k, v in value.items() if k != "stackTrace"}
        return [without_traces(v) for v in value] if isinstance(value, list) else value

    with gzip.GzipFile(file, "wb", mtime=0) as out:
        out.write(json.dumps(without_traces(history), indent=2).encode())


Scenario = Callable[[Any, Client], Awaitable[Runs]]
SCENARIOS: Sequence[Scenario] = (many, continued, steered, called_off, follower, switched)
LONG: Mapping[Scenario, int] = {continued: 60}
"""With how many events a history is long: the server's word for it stands in the history, so that
the replay continues as new where the run did."""


async def record() -> None:
    histories: dict[str, WorkflowHistory] = {}
    for scenario in SCENARIOS:
        long = LONG.get(scenario, 4_096)
        async with await WorkflowEnvironment.start_local(
            dev_server_existing_path=program("temporal"),
            dev_server_startup_timeout=timedelta(seconds=WITHIN_S),
            search_attributes=KEYS,
            dev_server_extra_args=[
                f"--dynamic-config-value=limit.historyCount.suggestContinueAsNew={long}"
            ],
        ) as server:
            kind: type[Any] = TieringWorld if scenario is switched else World
            world = kind(f"recorded-{scenario.__name__}")
            async with world.worker(server.client):
                for name, run in (await scenario(world, server.client)).items():
                    histories[name] = await run.fetch_history()
                    print(f"{name}: {len(histories[name].events)} events", flush=True)
    for file in HISTORIES.glob("*.json.gz"):
        file.unlink()
    for name, history in histories.items():
        write(HISTORIES / f"{name}.json.gz", json.loads(history.to_json()))


if __name__ == "__main__":
    logging.disable()  # of activities that fail as they should
    asyncio.run(record())
