"""Temporal servers for workflows over fake activities: one that skips time, one that is real."""

from __future__ import annotations

import sysconfig
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment

from tests.contract.workflows.world import World
from tideline.domain.migration import Phase
from workflows import phases, reporting

KEYS: list[SearchAttributeKey[int] | SearchAttributeKey[str]] = [
    reporting.PHASE,
    reporting.TOPIC,
    reporting.BOUNDARY,
    reporting.WAITING_REASON,
]
TYPES = {
    "TidelinePhase": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "TidelineTopic": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "TidelineBoundary": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "TidelineWaitingReason": IndexedValueType.INDEXED_VALUE_TYPE_TEXT,
}


def program(name: str) -> str:
    return str(Path(sysconfig.get_path("scripts")) / name)


@pytest.fixture
async def skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A server on which hours of waiting take milliseconds: one for each test.

    An activity that is under way when its workflow ends stops the clock of this server for ever
    (temporalio/sdk-java#1138): tests that shared one waited for real hours.
    """
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=program("temporal-test-server")
    ) as environment:
        await environment.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(search_attributes=TYPES, namespace="default")
        )
        yield environment


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
    """A busy machine does not make two tries of one, of a phase that is tried for a moment."""
    monkeypatch.setitem(phases.TRIED_IN_PROCESS, Phase.ZOMBIE_CLEANUP, timedelta(seconds=3))


@pytest.fixture
def world() -> World:
    """A topic of one partition, under a name of its own."""
    return World(topic=f"orders-{uuid4().hex[:8]}")
