"""A pooler as it looks to a client: it greets by itself, and lends connections of a server."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

SSL_REQUEST, GSS_REQUEST, PROTOCOL = 80877103, 80877104, 196608
"""Codes of start-up messages ("Message Formats" in Postgres' documentation)."""
Lent = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Pooler:
    """``by_transaction``: else a client has its connection until it goes. ``passes_options``: of
    a start-up message to the server. ``newest_first``: in which order connections are lent."""

    server_port: int
    by_transaction: bool = True
    passes_options: bool = False
    newest_first: bool = True
    servers: int = 3
    port: int = 0
    idle: deque[Lent] = field(default_factory=deque)
    opened: list[asyncio.StreamWriter] = field(default_factory=list)
    greeting: bytes = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            started = await self._started(reader, writer)
            own = await self._to_server(started) if not self.by_transaction else None
            while own is None and len(self.opened) < self.servers:
                self.idle.append(await self._to_server(started))
            key = b"K" + struct.pack(">iii", 12, 1, 1)
            writer.write(b"R" + struct.pack(">ii", 8, 0) + self.greeting + key + b"Z\0\0\0\5I")
            await self._transactions(reader, writer, own)
        writer.close()

    @staticmethod
    async def _started(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            (code,) = struct.unpack(">i", await reader.readexactly(4))
            body = await reader.readexactly(size - 8)
            if code not in (SSL_REQUEST, GSS_REQUEST):
                return body
            writer.write(b"N")

    async def _to_server(self, started: bytes) -> Lent:
        given = started.split(b"\0")
        pairs = zip(given[::2], given[1::2], strict=False)
        kept = [
            name + b"\0" + value + b"\0"
            for name, value in pairs
            if name and (self.passes_options or name in (b"user", b"database"))
        ]
        body = struct.pack(">i", PROTOCOL) + b"".join(kept) + b"\0"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        self.opened.append(writer)
        writer.write(struct.pack(">i", len(body) + 4) + body)
        self.greeting, kind = b"", b""
        while kind != b"Z":
            kind, message = await _message(reader)
            if kind == b"S":
                self.greeting += message
        return reader, writer

    async def _transactions(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, own: Lent | None
    ) -> None:
        lent, unsent = own, b""
        while True:
            kind, message = await _message(reader)
            unsent += message
            if kind not in (b"S", b"Q"):
                continue
            lent = lent or (self.idle.pop() if self.newest_first else self.idle.popleft())
            lent[1].write(unsent)
            unsent = b""
            while kind != b"Z":
                kind, message = await _message(lent[0])
                writer.write(message)
            if own is None and message.endswith(b"I"):
                self.idle.append(lent)
                lent = None


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(struct.unpack(">i", head[1:])[0] - 4)


@contextlib.asynccontextmanager
async def pooling(pooler: Pooler) -> AsyncIterator[Pooler]:
    """It answers at its ``port``."""
    server = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    pooler.port = server.sockets[0].getsockname()[1]
    try:
        yield pooler
    finally:
        server.close()
        for writer in pooler.opened:
            writer.close()
