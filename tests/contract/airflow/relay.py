"""A loopback address in front of Temporal, for outages, and one where nobody is."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.ports import free_port

NOWHERE = "127.0.0.1:1"


class Relay:
    """A loopback address in front of another, that can fall silent."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._port = free_port()
        """Nobody else is given it while it is silent."""
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.accepted = 0
        """Connections so far."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def __aenter__(self) -> Relay:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        host, _, port = self._target.rpartition(":")
        behind, beyond = await asyncio.open_connection(host, int(port))
        self._open |= {writer, beyond}
        await asyncio.gather(self._pump(reader, beyond), self._pump(behind, writer))
        self._open -= {writer, beyond}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()
