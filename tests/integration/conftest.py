"""What the tests on the embedded stack share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tideline.migration.connections import WorkerServices, open_services
from tideline.settings import WorkerSettings
from tideline.stack import Stack


@pytest.fixture(scope="module")
async def services(stack: Stack) -> AsyncIterator[WorkerServices]:
    """A worker's."""
    async with open_services(WorkerSettings.of(stack.environment("worker"))) as opened:
        yield opened
