"""What a worker tells of itself, on a real server: metrics of the SDK, and its own pollers."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from prometheus_client import CollectorRegistry
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from tests.contract.workflows.world import soon
from tests.unit.test_monitoring import OF_TEMPORAL
from tideline.domain.messages import waits_queue
from tideline.pages import rendered
from tideline.settings import WorkerSettings
from tideline.worker.health import looks_of
from tideline.worker.sdk_metrics import with_metrics


@activity.defn
async def nothing() -> None:
    """Ends at once."""


@workflow.defn(sandboxed=False)
class Broken:
    """Its task fails for ever, behind an activity."""

    @workflow.run
    async def run(self) -> None:
        bound = timedelta(seconds=60)
        await workflow.execute_activity(nothing, schedule_to_close_timeout=bound)
        raise RuntimeError("a bug")


async def test_what_alerts_ask_of_temporals_sdk_is_on_the_workers_page(
    server: WorkflowEnvironment,
) -> None:
    native, metrics = with_metrics(("127.0.0.1", 0))
    registry = CollectorRegistry()
    registry.register(metrics)
    address = server.client.service_client.config.target_host
    client = await Client.connect(address, runtime=native)
    queue = f"broken-{uuid4()}"
    async with Worker(client, task_queue=queue, workflows=[Broken], activities=[nothing]):
        handle = await client.start_workflow(Broken.run, id=queue, task_queue=queue)

        def page() -> str:
            return rendered(registry).decode()

        async def told() -> bool:
            """Whatever the unit is."""
            names = [name.removesuffix("_seconds_bucket") for name in OF_TEMPORAL]
            return all(f"\n{name}" in page() for name in names)

        await soon("every series", told)
        await handle.terminate()
    for name in OF_TEMPORAL:
        assert f"\n{name}{{" in page()


async def test_a_worker_that_does_not_poll_is_told_by_queue_and_kind(
    server: WorkflowEnvironment,
) -> None:
    client = server.client
    queue = f"seen-{uuid4()}"
    settings = WorkerSettings.model_construct(temporal_task_queue=queue)
    polls = looks_of(settings, client, "polls")["temporal"]
    assert await polls() == (
        f"this worker does not poll {queue} (workflow tasks), {queue} (activity tasks), "
        f"{waits_queue(queue)} (activity tasks)"
    )
    async with (
        Worker(
            client, task_queue=queue, identity="polls", workflows=[Broken], activities=[nothing]
        ),
        Worker(client, task_queue=waits_queue(queue), identity="polls", activities=[nothing]),
    ):

        async def polled() -> bool:
            return await polls() == ""

        await soon("its pollers to be known", polled)
