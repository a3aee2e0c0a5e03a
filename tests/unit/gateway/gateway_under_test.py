"""A gateway's server between the test and a fake broker, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.unit.kafka.fake_broker import FakeBroker
from tideline.gateway.context import ConnectionRegistry, GatewayServices
from tideline.gateway.interception import Rules
from tideline.gateway.tracking.view import Tracking
from tideline.gateway.transactions import OpenTransactions
from tideline.gateway.transport.server import GatewayServer
from tideline.kafka.client import KafkaCluster
from tideline.settings import GatewaySettings

NOWHERE = "127.0.0.1:1"
"""An address where nothing listens."""


def gateway_settings(broker: str, state: Path | str = "/tmp", **changes: str) -> GatewaySettings:
    """Settings of a gateway with Postgres and S3 out of reach."""
    values = {
        "gateway_id": "1",
        "gateway_broker_id": "1",
        "gateway_listen": "127.0.0.1:19599",
        "gateway_advertised": "127.0.0.1:19599",
        "gateway_broker": broker,
        "gateway_peers": "1=127.0.0.1:19599",
        "gateway_state_dir": str(state),
        "postgres_dsn": f"host=127.0.0.1 port={NOWHERE.rpartition(':')[2]}",
        "s3_endpoint": f"http://{NOWHERE}",
        **changes,
    }
    return GatewaySettings.of({f"TIDELINE_{k.upper()}": v for k, v in values.items()})


class Client:
    """A client that sends and reads raw frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def send(self, *frames: bytes) -> None:
        for frame in frames:
            self.writer.write(len(frame).to_bytes(4, "big") + frame)
        await self.writer.drain()

    async def receive(self) -> bytes:
        async with asyncio.timeout(5):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return await self._reader.readexactly(size)

    async def disconnected(self) -> None:
        """Wait until the gateway has closed the connection."""
        async with asyncio.timeout(5):
            try:
                assert await self._reader.read() == b""
            except ConnectionError:
                return

    def close(self) -> None:
        self.writer.close()


class Gateway:
    """The server and its services."""

    def __init__(self, server: GatewayServer, services: GatewayServices) -> None:
        self.server, self.services = server, services

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection(*self.server.address))


@asynccontextmanager
async def gateway(
    broker: FakeBroker | tuple[str, int],
    rules: Rules | None = None,
    *,
    tracking: Any = None,
    control_plane: Any = None,
    **changes: str,
) -> AsyncIterator[Gateway]:
    """A running gateway; ``changes`` are settings."""
    host, port = broker.address if isinstance(broker, FakeBroker) else broker
    settings = gateway_settings(f"{host}:{port}", gateway_listen="127.0.0.1:1", **changes)
    settings = settings.model_copy(update={"gateway_listen": ("127.0.0.1", 0)})
    cluster = KafkaCluster([(host, port)], timeout_ms=2_000)
    services = GatewayServices(
        settings=settings,
        tracking=tracking or Tracking(lambda: True),
        control_plane=control_plane,
        cluster=cluster,
        connections=ConnectionRegistry(),
        transactions=OpenTransactions(cluster, 1),
        tracked=None,  # type: ignore[arg-type]
    )
    server = GatewayServer(services, rules or {})
    await server.start()
    try:
        yield Gateway(server, services)
    finally:
        await server.stop(0.2)
        cluster.close()
