"""The Temporal server on which hours of waiting take milliseconds: one for each process of tests.

Its clock skips while nothing holds it. Whatever is under way holds it, and lets go of it when it is
over. Some ends are forgotten by the server, which then keeps real time for ever, for all tests that
come after (temporalio/sdk-java#1138, and by its source): an activity or a workflow's task that is
under way when its workflow ends (an abort does not wait for what runs), and a child that ends when
the run that has started it is over (partitions outlive the runs of their topic). No test can avoid
all of these, they are what is tested. So :func:`settled` follows each test: it ends what runs yet
and lets go of what the server has forgotten.
"""

from __future__ import annotations

import sysconfig
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.testservice.v1 import UnlockTimeSkippingRequest
from temporalio.api.workflowservice.v1 import ListOpenWorkflowExecutionsRequest
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from tests.support.waiting import WITHIN_S, Wait, eventually

TYPES = {
    "TidelinePhase": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "TidelineTopic": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "TidelineBoundary": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "TidelineWaits": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
}
MOST_FORGOTTEN = 50
"""A test that leaves more behind is none of ours."""
LOOKS, LOOK_S = 4, 0.25
"""What is still being told to the server is told in the time of them all; and a server that wakes
late skips only what is left of one look, or nothing."""


def program(name: str) -> str:
    return str(Path(sysconfig.get_path("scripts")) / name)


@asynccontextmanager
async def time_skipping_server() -> AsyncIterator[WorkflowEnvironment]:
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=program("temporal-test-server")
    ) as environment:
        await environment.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(search_attributes=TYPES, namespace="default")
        )
        yield environment


async def settled(environment: WorkflowEnvironment) -> int:
    """Make it a server of the next test. No worker may be left. How often the server had forgotten
    to let go of its clock."""

    async def nothing_runs() -> bool:
        return await _ended(environment) == 0

    await eventually("all workflows to have ended", nothing_runs)
    forgotten = 0
    while await _stands(environment):
        assert forgotten < MOST_FORGOTTEN, "the clock stands, whatever is let go of"
        await environment.client.test_service.unlock_time_skipping(UnlockTimeSkippingRequest())
        forgotten += 1
    return forgotten


async def _ended(environment: WorkflowEnvironment) -> int:
    """End all workflows that run; how many did."""
    client = environment.client
    found = await client.workflow_service.list_open_workflow_executions(
        ListOpenWorkflowExecutionsRequest(namespace=client.namespace)
    )
    for execution in (info.execution for info in found.executions):
        run = client.get_workflow_handle(execution.workflow_id, run_id=execution.run_id)
        with suppress(RPCError):  # it has ended by itself
            await run.terminate("its test is over")
    return len(found.executions)


async def _stands(environment: WorkflowEnvironment) -> bool:
    """Whether the clock goes no faster than ours in several looks in a row. An answer that is late
    says neither: the question is put again."""
    stood, answers = 0, Wait("the clock to be seen", WITHIN_S)
    while stood < LOOKS:
        began, before = time.monotonic(), await environment.get_current_time()
        sleeps = time.monotonic()
        await environment.sleep(LOOK_S)
        slept = time.monotonic() - sleeps
        after = await environment.get_current_time()
        went = (after - before).total_seconds()
        # Less than half of a look is how its milliseconds are counted.
        if went - (time.monotonic() - began) > LOOK_S / 2:
            return False
        stood = stood + 1 if went - slept < LOOK_S / 2 else 0
        answers.check()
    return True
