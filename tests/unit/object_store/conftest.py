"""A scripted server for each file, and surroundings that send nobody elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from tests.unit.object_store.scripted_server import ScriptedServer, scripted_server
from tideline.object_store.client import ObjectStoreClient


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The gateway's, whose calls these are above all, and asyncio's, which the worker has."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(scope="module")
def _server() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


@pytest.fixture
def s3(_server: ScriptedServer) -> ScriptedServer:
    _server.begin_anew()
    return _server


@pytest.fixture(params=[False, True], ids=["boto3", "direct"])
def direct(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def _clients() -> Iterator[dict[object, ObjectStoreClient]]:
    """Making one takes boto3 a moment."""
    clients: dict[object, ObjectStoreClient] = {}
    yield clients
    for client in clients.values():
        client.close()
