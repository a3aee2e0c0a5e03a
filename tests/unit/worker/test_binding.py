"""A worker takes the tasks of its own Kafka cluster, and stands beside no other's."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from tideline import temporal
from tideline.domain.messages import PhaseInput, TopicMigrationInput, TopicRef, TopicStep
from tideline.domain.options import MigrationOptions
from tideline.errors import RefusedError
from tideline.worker.binding import OwnTasks, identity

OURS = TopicRef("orders", UUID(int=1).hex, 1, "ours")
OTHERS = TopicRef("orders", UUID(int=1).hex, 1, "another")
OPTIONS = MigrationOptions()


class Runs(ActivityInboundInterceptor):
    def __init__(self) -> None:
        self.ran = 0

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        self.ran += 1


async def asked(given: object) -> int:
    """How often the activity ran."""
    runs = Runs()
    task = ExecuteActivityInput(fn=asked, args=[given], executor=None, headers={})
    await OwnTasks("ours").intercept_activity(runs).execute_activity(task)
    return runs.ran


@pytest.mark.parametrize(
    "given",
    [OURS, TopicStep(OURS, OPTIONS), PhaseInput(OURS.partition(0), OPTIONS),
     TopicMigrationInput("orders")],
)  # fmt: skip
async def test_its_own_tasks_and_those_that_name_no_cluster_run(given: object) -> None:
    assert await asked(given) == 1


@pytest.mark.parametrize(
    "given",
    [OTHERS, OTHERS.partition(0), TopicStep(OTHERS, OPTIONS),
     PhaseInput(OTHERS.partition(0), OPTIONS)],
)  # fmt: skip
async def test_anothers_are_refused_by_name_and_may_be_tried_again(given: object) -> None:
    with pytest.raises(ApplicationError, match=r"cluster another .* cluster ours") as refused:
        await asked(given)
    assert not refused.value.non_retryable


async def start_beside(pollers: Mapping[str, timedelta]) -> None:
    found = DescribeTaskQueueResponse()
    for who, ago in pollers.items():
        found.pollers.add(identity=who).last_access_time.FromDatetime(datetime.now(UTC) - ago)

    async def describe(*_: Any, **__: Any) -> DescribeTaskQueueResponse:
        return found

    service = SimpleNamespace(describe_task_queue=describe)
    client = cast(Client, SimpleNamespace(namespace="default", workflow_service=service))
    await temporal.refuse_other_workers(client, "tideline", "ours")


async def test_it_refuses_to_start_beside_workers_of_another_cluster() -> None:
    with pytest.raises(RefusedError, match="TIDELINE_TEMPORAL_TASK_QUEUE"):
        await start_beside({identity("ours"): timedelta(0), identity("another"): timedelta(0)})


async def test_it_starts_beside_its_own_and_what_has_ended() -> None:
    await start_beside({identity("ours"): timedelta(0), identity("another"): timedelta(minutes=2)})
