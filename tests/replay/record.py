"""Records the histories that tests/replay/test_replay.py replays.

Run it only when a change of the workflows is meant to break running ones, or to add a case:
``.venv/bin/python -m tests.replay.record``. Histories that running workflows may still have must
stay: add new files beside them (docs/decisions/0005-workflow-shape.md).
"""

from __future__ import annotations

import asyncio
import gzip
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from tests.unit.workflows.conftest import KEYS, program
from tests.unit.workflows.world import World, ended, fails
from tideline.domain import failures
from tideline.domain.messages import TopicActivity
from tideline.domain.migration import Phase

HISTORIES = Path(__file__).parent / "histories"
Scenario = Callable[[World, Client], Awaitable[WorkflowHandle[Any, Any]]]


async def success(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """Two partitions, nothing in the way."""
    world.partitions = 2
    handle = await world.start(client)
    await ended(handle)
    return handle


async def abort(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """Aborted while a partition drains."""
    held = world.hold(Phase.DRAIN_TRANSACTIONS)
    handle = await world.start(client)
    await world.reached[Phase.DRAIN_TRANSACTIONS].wait()
    await handle.execute_update("abort")
    held.set()
    await ended(handle)
    return handle


async def late_abort(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """An abort after B0, which is refused."""
    held = world.hold(Phase.ZOMBIE_CLEANUP)
    handle = await world.start(client)
    await world.reached[Phase.ZOMBIE_CLEANUP].wait()
    await handle.execute_update("abort")
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
    await handle.execute_update("pause")
    child = client.get_workflow_handle(world.ref.partition_workflow_id(0))
    while not (await child.query("status"))["paused"]:  # noqa: ASYNC110 - asks a server
        await asyncio.sleep(0.05)
    held.set()
    while "paused" not in (await child.query("status"))["waiting_reason"]:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await handle.execute_update("resume")
    await ended(handle)
    return handle


async def boundary_reset(world: World, client: Client) -> WorkflowHandle[Any, Any]:
    """B0 was unset while its suffix was empty; the partition migrates anew."""
    world.script[Phase.ZOMBIE_CLEANUP] = fails(failures.BOUNDARY_RESET)
    handle = await world.start(client)
    await ended(handle)
    return handle


SCENARIOS: dict[str, Scenario] = {
    "success": success,
    "abort": abort,
    "late_abort": late_abort,
    "retries": retries,
    "pause_and_resume": pause_and_resume,
    "boundary_reset": boundary_reset,
}


async def record(names: list[str]) -> None:
    """Write the topic's and the first partition's history of each scenario."""
    HISTORIES.mkdir(exist_ok=True)
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=program("temporal"), search_attributes=KEYS
    ) as server:
        for name in names:
            world = World(topic=f"recorded-{name}")
            async with world.worker(server.client):
                topic = await SCENARIOS[name](world, server.client)
                partition = server.client.get_workflow_handle(world.ref.partition_workflow_id(0))
                for kind, handle in (("topic", topic), ("partition", partition)):
                    history = await handle.fetch_history()
                    file = HISTORIES / f"{name}.{kind}.json.gz"
                    with gzip.GzipFile(file, "wb", mtime=0) as out:
                        out.write(history.to_json().encode())
                    print(f"{file.name}: {len(history.events)} events")


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:] or list(SCENARIOS)))
