"""Marks what is below as needing the embedded stack; what its tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tideline.migration.connections import WorkerServices, open_services
from tideline.settings import WorkerSettings
from tideline.stack import Stack

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="module")
async def services(stack: Stack) -> AsyncIterator[WorkerServices]:
    """A worker's."""
    async with open_services(WorkerSettings.of(stack.environment("worker"))) as opened:
        yield opened
