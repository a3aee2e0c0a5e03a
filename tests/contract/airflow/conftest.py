"""Airflow without a server: a home that nothing else uses, and Temporal's test server."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.contract.workflows.conftest import world
from tideline.control_plane.memory import MemoryControlPlane
from tideline.control_plane.plane import ControlPlane

__all__ = ["world"]

# Airflow reads these when it is first imported.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="tideline-airflow-unit-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)


@pytest.fixture
def temporal(skipping: WorkflowEnvironment) -> WorkflowEnvironment:
    """Temporal's test server. Its clock may be ahead of ours: other tests have waited."""
    return skipping


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
