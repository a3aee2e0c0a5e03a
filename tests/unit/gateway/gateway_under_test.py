"""A gateway's server between the test and a fake broker, in the test's own event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from tests.support.waiting import bounded
from tests.unit.kafka.fake_broker import FakeBroker
from tideline.gateway.context import ConnectionRegistry, Passing, Rules
from tideline.gateway.room import Room
from tideline.gateway.transport.native import NativeTransport
from tideline.gateway.transport.server import GatewayServer, WhyUnfit
from tideline.gateway.transport.serving import MakesTransport
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


@runtime_checkable
class Begins(Protocol):
    """Rules that begin work in the background."""

    async def close(self) -> None:
        """End it: the loop is shared by all tests of the process."""


class Client:
    """A client that sends and reads raw frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def send(self, *frames: bytes) -> None:
        """All in one write: they arrive together, or a test's second may come behind what the
        gateway does with its first."""
        self.writer.write(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
        await self.writer.drain()

    async def receive(self) -> bytes:
        async with bounded("an answer of the gateway"):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return await self._reader.readexactly(size)

    def pause(self) -> None:
        """Read nothing until :meth:`resume`."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume(self) -> None:
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]

    async def disconnected(self) -> None:
        """Wait until the gateway has closed the connection."""
        async with bounded("the gateway to close the connection"):
            try:
                assert await self._reader.read() == b""
            except (ConnectionError, ssl.SSLError):  # an alert says why
                return

    def close(self) -> None:
        self.writer.close()


class Gateway:
    """The server and its connections."""

    def __init__(self, server: GatewayServer, connections: ConnectionRegistry, room: Room) -> None:
        self.server, self.connections, self.room = server, connections, room

    async def connect(self, tls: ssl.SSLContext | None = None) -> Client:
        return Client(*await asyncio.open_connection(*self.server.address, ssl=tls))


@asynccontextmanager
async def gateway(
    broker: FakeBroker | tuple[str, int],
    rules: Rules | Callable[[KafkaCluster], Rules] | None = None,
    *,
    passing: Passing | None = None,
    why_unfit: WhyUnfit | None = None,
    makes_transport: MakesTransport = NativeTransport,
    **changes: str,
) -> AsyncIterator[Gateway]:
    """A running gateway; ``changes`` are settings. Rules may need our own way to the broker.
    ``passing``: what is tracked."""
    host, port = broker.address if isinstance(broker, FakeBroker) else broker
    settings = gateway_settings(f"{host}:{port}", gateway_listen="127.0.0.1:1", **changes)
    settings = settings.model_copy(update={"gateway_listen": ("127.0.0.1", 0)})
    cluster = KafkaCluster([(host, port)], timeout_ms=60_000)
    table = rules(cluster) if callable(rules) else rules or {}
    connections = ConnectionRegistry()
    room = Room(settings.gateway_memory_max_bytes)
    server = GatewayServer(
        settings,
        table,
        connections,
        room,
        passing=passing,
        why_unfit=why_unfit,
        makes_transport=makes_transport,
    )
    await server.start()
    try:
        yield Gateway(server, connections, room)
    finally:
        await server.stop(0.2)
        if isinstance(rules, Begins):
            await rules.close()
        cluster.close()
