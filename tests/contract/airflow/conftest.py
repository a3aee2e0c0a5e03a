"""Airflow without a server: a home that nothing else uses, and Temporal's test server."""

from __future__ import annotations

import atexit
import os
import shutil
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.testing import WorkflowEnvironment

from tests.contract.workflows.conftest import TYPES
from tests.contract.workflows.world import World
from tideline.control_plane.memory import MemoryControlPlane
from tideline.control_plane.plane import ControlPlane
from tideline.domain.messages import TASK_QUEUE

# Airflow reads these when it is first imported.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="tideline-airflow-unit-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
async def temporal() -> AsyncIterator[WorkflowEnvironment]:
    """Temporal's test server."""
    server = Path(sysconfig.get_path("scripts")) / "temporal-test-server"
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(server)
    ) as environment:
        await environment.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(search_attributes=TYPES, namespace="default")
        )
        yield environment


@pytest.fixture
def world() -> World:
    """A topic of one partition, under a name of its own."""
    return World(topic=f"orders-{uuid4().hex[:8]}", queue=TASK_QUEUE)


@pytest.fixture(autouse=True)
def quiet_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the machine reach a test, and no trigger waits for Airflow."""
    from tideline.airflow.temporal import trigger

    for name in [name for name in os.environ if name.startswith("TIDELINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(trigger, "SETTLED_AFTER_S", 0.0)
    monkeypatch.setenv("TIDELINE_HOME", str(tmp_path))


@pytest.fixture(autouse=True)
def plane(monkeypatch: pytest.MonkeyPatch) -> MemoryControlPlane:
    """The control plane that waves ask."""
    from tideline.airflow import plans

    made = MemoryControlPlane(lambda: time.time() * 1000)

    @asynccontextmanager
    async def connected() -> AsyncIterator[ControlPlane]:
        yield made

    monkeypatch.setattr(plans, "connected", connected)
    return made
