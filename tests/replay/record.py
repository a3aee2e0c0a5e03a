"""Records the histories that tests/replay/test_replay.py replays.

Run it to add a case, or after a change that the recorded ones do not survive
(CONTRIBUTING.md): ``.venv/bin/python -m tests.replay.record NAME``. A name
whose files are there is refused.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from tests.contract.workflows.conftest import KEYS
from tests.contract.workflows.skipping import program
from tests.contract.workflows.tiering_world import TieringWorld
from tests.contract.workflows.world import World, ended, fails
from tideline.domain import failures
from tideline.domain.messages import TopicActivity, Update
from tideline.domain.migration import Phase
from tideline.domain.operator_choices import ConfigureRequest, Decider, GapRequest
from tideline.domain.places import waiting_reason
from tideline.domain.tiered_storage import LocalRetention
from tideline.domain.tiered_storage_change import Remaining, TieredStorageInput

HISTORIES = Path(__file__).parent / "histories"
Scenario = Callable[[World, Client], Awaitable[WorkflowHandle[Any, Any]]]


async def success(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """Two partitions, nothing in the way."""
    world.partitions = 2
    handle = await world.start(client)
    await ended(handle)
    return handle


async def grown_past_the_gateways(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """A partition that nobody serves is told of when the migration ends."""
    world.grown = "partition 1 (log ends by replica: 1: 4) came past the gateways"
    handle = await world.start(client)
    await ended(handle)
    return handle


async def abort(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """Aborted while a partition drains."""
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    handle = await world.start(client)
    await world.reached[Phase.DRAIN_TRANSACTIONS].wait()
    await handle.execute_update("abort", ADA)
    held.set()
    await ended(handle)
    return handle


async def late_abort(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """An abort after B0, which is refused."""
    held = world.hold(Phase.ZOMBIE_CLEANUP)
    handle = await world.start(client)
    await world.reached[Phase.ZOMBIE_CLEANUP].wait()
    await handle.execute_update("abort", ADA)
    held.set()
    await ended(handle)
    return handle


async def retries(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """A gateway that answers late, an open transaction, three write pauses, a late segment."""
    world.script[TopicActivity.AWAIT_TRACKING] = fails(failures.WAITING, "gateway 2", times=2)
    world.script[Phase.DRAIN_TRANSACTIONS] = fails(failures.WAITING, "a transaction", times=2)
    world.script[Phase.QUIESCE] = fails(failures.QUIESCE_VOID)
    world.script[Phase.ROLL_AND_FLUSH] = fails(failures.NOT_SETTLED)
    world.script[Phase.SEED_AND_PERSIST] = fails(failures.UNREACHABLE)
    world.script[Phase.READINESS] = fails(failures.WAITING, "offset 40 to 50", times=2)
    handle = await world.start(client)
    await ended(handle)
    return handle


async def pause_and_resume(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """Paused during the drain, resumed when the partition has stopped."""
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    handle = await world.start(client)
    await world.reached[Phase.DRAIN_TRANSACTIONS].wait()
    await handle.execute_update("pause", ADA)
    child = client.get_workflow_handle(world.ref.partition_workflow_id(0))
    while not (await child.query("status"))["paused"]:  # noqa: ASYNC110 - asks a server
        await asyncio.sleep(0.05)
    held.set()
    while "paused" not in (await child.query("status"))["waiting_reason"]:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await handle.execute_update("resume", ADA)
    await ended(handle)
    return handle


async def boundary_reset(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """B0 was unset while its suffix was empty; the partition migrates anew."""
    world.script[Phase.ZOMBIE_CLEANUP] = fails(failures.BOUNDARY_RESET)
    handle = await world.start(client)
    await ended(handle)
    return handle


ADA = Decider("ada", "a hanging transaction")


async def configure(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """A drain that hangs is given other options."""
    world.script[Phase.DRAIN_TRANSACTIONS] = fails(failures.WAITING, "transaction 7", times=999)
    handle = await world.start(client)
    await world.reached[Phase.DRAIN_TRANSACTIONS].wait()
    request = ConfigureRequest({"open_transactions": "abort"}, ADA)
    await handle.execute_update(Update.CONFIGURE, request)
    world.script[Phase.DRAIN_TRANSACTIONS].clear()
    await ended(handle)
    return handle


async def called_off(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """Two partitions, aborted while both drain."""
    world.partitions = 2
    world.script[Phase.DRAIN_TRANSACTIONS] = fails(failures.WAITING, "transaction 7", times=999)
    handle = await world.start(client)
    while world.count(Phase.DRAIN_TRANSACTIONS) < 4:  # noqa: ASYNC110 - asks a world
        await asyncio.sleep(0.05)
    await handle.execute_update(Update.ABORT, ADA)
    await ended(handle)
    return handle


async def accepted_gap(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """Zombie cleanup waits for a log gap until an operator gives the range up."""
    world.script[Phase.ZOMBIE_CLEANUP] = fails(failures.WAITING, "a log gap", times=999)
    handle = await world.start(client)
    await world.reached[Phase.ZOMBIE_CLEANUP].wait()
    await handle.execute_update(Update.ACCEPT_GAP, GapRequest(0, 80, 100, ADA))
    world.script[Phase.ZOMBIE_CLEANUP].clear()
    await ended(handle)
    return handle


async def forced(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """Completed by force while readiness waits for segments."""
    world.script[Phase.READINESS] = fails(failures.WAITING, "segments are missing", times=999)
    handle = await world.start(client)
    await world.reached[Phase.READINESS].wait()
    await handle.execute_update(Update.COMPLETE, ADA)
    await ended(handle)
    return handle


async def overdue(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """Remote storage takes longer than the options allow."""
    world.script[Phase.READINESS] = fails(failures.WAITING, "offset 40 to 50", times=3)
    given = {"topic": world.topic, "options": {"segment_wait_ms": 1_200}}
    handle = await world.start(client, given)
    await ended(handle)
    return handle


async def continued(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """The first runs of a topic that waits for a gateway, and of a partition that cannot let its
    producers go: the server finds both histories long."""
    world.script[TopicActivity.AWAIT_TRACKING] = fails(failures.WAITING, "gateway 2", times=6)
    world.script[Phase.ROLL_AND_FLUSH] = fails(failures.NOT_SETTLED)
    world.script[TopicActivity.REOPEN_PARTITION] = fails(failures.WAITING, "Postgres", times=6)
    handle = await world.start(client)
    await ended(handle)
    return handle


async def waits_for_place(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """Others migrate first."""
    world.script[TopicActivity.TAKE_PLACE] = fails(failures.WAITING, waiting_reason(5, 1), times=2)
    handle = await world.start(client)
    await ended(handle)
    return handle


async def place_never_came(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """Aborted while others migrate."""
    world.script[TopicActivity.TAKE_PLACE] = fails(
        failures.WAITING, waiting_reason(5, 1), times=999
    )
    handle = await world.start(client)
    while world.count(TopicActivity.TAKE_PLACE) < 2:  # noqa: ASYNC110 - asks a world
        await asyncio.sleep(0.05)
    await handle.execute_update(Update.ABORT, ADA)
    await ended(handle)
    return handle


async def looked_at_together(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """Two partitions wait for remote storage; then B0 of one turns out to be unset."""
    world.partitions = 2
    world.script[Phase.READINESS] = [
        *fails(failures.WAITING, "replica 2 has not rolled", times=4),
        *fails(failures.BOUNDARY_RESET),
    ]
    handle = await world.start(client)
    await ended(handle)
    return handle


async def asked_for_each_pause(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """Two write pauses fail, the last one does not; the topic waited paused for a while."""
    world.script[Phase.ROLL_AND_FLUSH] = fails(failures.NOT_SETTLED, times=2)
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    handle = await world.start(client)
    await world.reached[Phase.DRAIN_TRANSACTIONS].wait()
    await handle.execute_update("pause", ADA)
    held.set()
    await handle.execute_update("resume", ADA)
    await ended(handle)
    return handle


async def let_through(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """The first partition asks for its permit, the second one is started with it."""
    world.partitions = 2
    given = {"topic": world.topic, "options": {"parallel_partitions": 1}}
    handle = await world.start(client, given)
    await ended(handle)
    return handle


async def permit_given_back(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """The second partition, which was started with its permit, waits for a transaction."""

    def before_drain() -> None:
        if world.count(Phase.DRAIN_TRANSACTIONS) == 2:
            waits = fails(failures.WAITING, "transaction 7", times=2)
            world.script[Phase.DRAIN_TRANSACTIONS] = waits

    world.before[Phase.DRAIN_TRANSACTIONS] = before_drain
    return await let_through(world, client)


async def looks_again(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """B0 of a partition whose workflow had ended turns out to be unset: it gets another one."""
    world.script[Phase.READINESS] = fails(failures.BOUNDARY_RESET)
    handle = await world.start(client)
    await ended(handle)
    return handle


async def follower(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """A start by hand, which follows the topic's own workflow to its end."""
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    by_hand = await world.start(client, workflow_id="by-hand")
    await world.reached[Phase.DRAIN_TRANSACTIONS].wait()
    held.set()
    await ended(by_hand)
    return by_hand


async def switched_off(world: TieringWorld, client: Client) -> WorkflowHandle[Any, Any]:
    """Tiered storage is turned off; Kafka leaves objects behind, which are collected."""
    world.left = Remaining(1, 3)
    handle = await world.start(client, "disabled", collect_after_s=4)
    await handle.result()
    return handle


async def enabled_again(world: TieringWorld, client: Client) -> WorkflowHandle[Any, Any]:
    """Local retention is held over two looks, and one change of it by hand."""
    world.configs = {"remote.storage.enable": "false", "local.retention.ms": "5"}
    world.by_hand, world.not_proven = [LocalRetention("7")], 2
    handle = await world.start(client, "enabled")
    await handle.result()
    return handle


async def redirected(world: TieringWorld, client: Client) -> WorkflowHandle[Any, Any]:
    """Enabling waits for its proof, and is given another target."""
    world.not_proven = 1_000
    handle = await world.start(client, "enabled")
    await world.proving.wait()
    await handle.execute_update("target", TieredStorageInput(world.topic, "read-only"))
    await handle.result()
    return handle


SWITCHES: dict[str, Callable[[TieringWorld, Client], Awaitable[WorkflowHandle[Any, Any]]]] = {
    "switched_off": switched_off,
    "enabled_again": enabled_again,
    "redirected": redirected,
}
"""Of tiered storage, which has no partitions' workflows."""

KEPT = {"let_through": 1, "permit_given_back": 1}
"""Whose history is recorded, where that is not the first partition's."""

UNBEGUN = ("place_never_came",)
"""No partition's workflow was started."""

LONG = {"continued": 45}
"""Scenarios for which a history of so many events is long: the server's word for it stands in the
history, so that the replay continues as new where the run did."""

SCENARIOS: dict[str, Scenario] = {
    "success": success,
    "abort": abort,
    "late_abort": late_abort,
    "retries": retries,
    "pause_and_resume": pause_and_resume,
    "boundary_reset": boundary_reset,
    "configure": configure,
    "called_off": called_off,
    "accepted_gap": accepted_gap,
    "forced": forced,
    "overdue": overdue,
    "continued": continued,
    "looked_at_together": looked_at_together,
    "grown_past_the_gateways": grown_past_the_gateways,
    "asked_for_each_pause": asked_for_each_pause,
    "let_through": let_through,
    "permit_given_back": permit_given_back,
    "looks_again": looks_again,
    "follower": follower,
    "waits_for_place": waits_for_place,
    "place_never_came": place_never_came,
}


def write(file: Path, history: Any) -> None:
    """Without stack traces: they name the machine on which it was recorded."""

    def without_traces(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without_traces(v) for k, v in value.items() if k != "stackTrace"}
        return [without_traces(v) for v in value] if isinstance(value, list) else value

    with gzip.GzipFile(file, "wb", mtime=0) as out:
        out.write(json.dumps(without_traces(history), indent=2).encode())


async def first_run(client: Client, workflow_id: str) -> WorkflowHandle[Any, Any]:
    """Of a workflow that perhaps continued as new."""
    newest = await client.get_workflow_handle(workflow_id).fetch_history()
    started = newest.events[0].workflow_execution_started_event_attributes
    return client.get_workflow_handle(workflow_id, run_id=started.first_execution_run_id)


async def record(names: list[str]) -> None:
    """Write the topic's and one partition's history of each scenario, or that of a workflow under
    another id alone if the scenario is about one."""
    HISTORIES.mkdir(exist_ok=True)
    if recorded := sorted(name for name in names if [*HISTORIES.glob(f"{name}.*")]):
        sys.exit(f"{', '.join(recorded)}: recorded before: remove the files first, or add a name")
    for name in names:
        long = LONG.get(name, 4_096)
        async with await WorkflowEnvironment.start_local(
            dev_server_existing_path=program("temporal"),
            search_attributes=KEYS,
            dev_server_extra_args=[
                f"--dynamic-config-value=limit.historyCount.suggestContinueAsNew={long}"
            ],
        ) as server:
            if name in SWITCHES:
                topic = TieringWorld(f"recorded-{name}")
                async with topic.worker(server.client):
                    handle = await SWITCHES[name](topic, server.client)
                    await keep(server.client, name, {"topic": handle.id})
                continue
            world = World(topic=f"recorded-{name}")
            async with world.worker(server.client):
                handle = await SCENARIOS[name](world, server.client)
                ids = {
                    "topic": world.ref.workflow_id,
                    "partition": world.ref.partition_workflow_id(KEPT.get(name, 0)),
                }
                if handle.id not in ids.values() or name in UNBEGUN:
                    ids = {"topic": handle.id}
                await keep(server.client, name, ids)


async def keep(client: Client, name: str, ids: dict[str, str]) -> None:
    """Write the history of the first run of each of ``ids``."""
    for kind, workflow_id in ids.items():
        history = await (await first_run(client, workflow_id)).fetch_history()
        file = HISTORIES / f"{name}.{kind}.json.gz"
        write(file, json.loads(history.to_json()))
        print(f"{file.name}: {len(history.events)} events")


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:]))
