"""Temporal servers for workflows over fake activities: a real one, and the one that skips time,
which is that of all tests that do not say otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment

from tests.contract.workflows.skipping import program
from tests.contract.workflows.world import World
from workflows import fan_out, phases, reporting

KEYS: list[SearchAttributeKey[int] | SearchAttributeKey[str]] = [
    reporting.PHASE,
    reporting.TOPIC,
    reporting.BOUNDARY,
    reporting.WAITS,
]


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[WorkflowEnvironment]:
    """A real development server."""
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=program("temporal"),
        search_attributes=KEYS,
        dev_server_extra_args=[
            "--sqlite-pragma=journal_mode=wal",
            "--sqlite-pragma=synchronous=normal",
            "--dynamic-config-value=history.transferProcessorMaxPollRPS=100",
        ],
    ) as environment:
        yield environment


@pytest.fixture
def client(skipping: WorkflowEnvironment) -> Client:
    return skipping.client


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine does not make two tries of one, of a phase that is tried for a moment, nor two
    tasks of one."""
    for phase in phases.TRIED_IN_PROCESS:
        monkeypatch.setitem(phases.TRIED_IN_PROCESS, phase, timedelta(minutes=1))
    monkeypatch.setattr(fan_out, "TASK_TIMEOUT", timedelta(minutes=1))


@pytest.fixture
def world() -> World:
    """A topic of one partition, under a name of its own."""
    return World(topic=f"orders-{uuid4().hex[:8]}")
