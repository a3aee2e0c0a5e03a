"""The gateway's tests run on the event loop that it has in production."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from tests.unit.gateway import gateway_under_test
from tests.unit.gateway.gateway_under_test import TRANSPORTS
from tideline.gateway.transport import server


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(params=TRANSPORTS)
def each_transport(request: pytest.FixtureRequest) -> Iterator[str]:
    """What is said of a gateway's connections is said of each transport that may serve them."""
    before, gateway_under_test.transport = gateway_under_test.transport, request.param
    yield request.param
    gateway_under_test.transport = before


@pytest.fixture
def no_probe_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker is sent is what clients have sent, however long that takes."""
    monkeypatch.setattr(server, "PROBE_S", 600.0)


@pytest.fixture
def probes(no_probe_meanwhile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the broker is back is seen at once."""
    monkeypatch.setattr(server, "PROBE_S", 0.2)
