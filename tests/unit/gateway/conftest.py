"""The gateway's tests run on the event loop that it has in production."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tideline.gateway.transport import server


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def no_probe_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker is sent is what clients have sent, however long that takes."""
    monkeypatch.setattr(server, "PROBE_S", 600.0)


@pytest.fixture
def probes(no_probe_meanwhile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the broker is back is seen at once."""
    monkeypatch.setattr(server, "PROBE_S", 0.2)
