"""PUT and GET of what is small on the event loop itself: to go to a thread and back costs as much
again as the call.

One attempt, by the same signature, answers and errors as :mod:`tideline.object_store.direct`. A
body that is large is hashed and encrypted in a thread, where the loop does not wait for it.
"""

from __future__ import annotations

import asyncio
import select
from socket import SOCK_STREAM
from typing import cast

from aiohappyeyeballs import start_connection
from botocore.exceptions import (
    BotoCoreError,
    ConnectionClosedError,
    HTTPClientError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)

from tideline.object_store.connections import (
    MAX_HEADERS,
    MAX_LINE,
    SLOWEST,
    Head,
    Server,
    connecting,
    parsed_head,
    size_of_chunk,
)
from tideline.object_store.direct import (
    GOT,
    MAX_ERROR,
    SUCCESS,
    Bucket,
    DirectCalls,
    must_be_asked,
)

SMALL_PUT = 32 * 1024
"""bytes; what hashing takes of the loop stays well below a tenth of a millisecond"""
SMALL_GET = 256 * 1024
"""bytes; up to here one more copy is cheaper than a thread"""
_NEXT_ADDRESS_S = 0.25
"""until another address is tried as well (RFC 8305)"""


def unchunked(received: bytes | bytearray, most: int) -> tuple[bytes, bool] | None:
    """A body that came in chunks, and whether nothing came behind it; ``None``: there is more to
    come. Raises ``ValueError`` for what is no chunk, and beyond ``most`` bytes."""
    parts: list[bytes] = []
    at = total = 0
    while (end := received.find(b"\r\n", at)) >= 0:
        size, at = size_of_chunk(bytes(received[at:end])), end + 2
        if size == 0:
            if received[at : at + 2] == b"\r\n":
                return b"".join(parts), len(received) == at + 2
            trailers = received.find(b"\r\n\r\n", at)
            return None if trailers < 0 else (b"".join(parts), len(received) == trailers + 4)
        total += size
        if total > most:
            raise ValueError(f"a body in chunks is longer than {most} bytes")
        if len(received) < at + size + 2:
            return None
        if received[at + size : at + size + 2] != b"\r\n":
            raise ValueError("a chunk is longer than its size")
        parts.append(bytes(received[at : at + size]))
        at += size + 2
    if len(received) - at > MAX_LINE:
        raise ValueError(f"a line of the answer is longer than {MAX_LINE} bytes")
    return None


class LoopConnection(asyncio.Protocol):
    """One connection, one call at a time."""

    def __init__(self, server: Server, read_timeout_s: float) -> None:
        self.server = server
        self._read_timeout_s = read_timeout_s
        self._transport: asyncio.Transport | None = None
        self._ready = select.poll()
        self._received = bytearray()
        self._head: Head | None = None
        self._most = 0
        self._answer: asyncio.Future[tuple[Head, bytes]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.usable = False
        """The last call and its answer have passed whole, and the connection is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's own are not declared as such
        self._ready.register(transport.get_extra_info("socket"), select.POLLIN)
        self.usable = True

    @property
    def dropped(self) -> bool:
        """It is not usable, or something has come that the loop has not read yet."""
        return not self.usable or bool(self._ready.poll(0))

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, sent: bytes, most: int) -> tuple[Head, bytes]:
        """Send all of a call; the answer, of whose body no more than ``most`` bytes and one more
        are taken. Raises what :class:`~tideline.object_store.connections.Connection` does."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._head, self._most, self.usable = None, most, False
        self._received.clear()
        self._wait(0)
        self._transport.write(sent)
        try:
            return await self._answer
        finally:
            self._answer = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if not self.usable:
                self.close()

    def _wait(self, size: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(
            self._read_timeout_s * (1 + size // SLOWEST), self._timed_out
        )

    def _timed_out(self) -> None:
        self._fail(ReadTimeoutError(endpoint_url=self.server.url, error="timed out"))

    def _fail(self, error: BotoCoreError) -> None:
        self.usable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _finish(self, body: bytes, clean: bool) -> None:
        assert self._head is not None
        if self._answer is not None and not self._answer.done():
            written = self._transport is not None and not self._transport.get_write_buffer_size()
            if not written and self._head.status in SUCCESS:
                unsent = "it was answered before all of it was sent"
                return self._fail(ConnectionClosedError(endpoint_url=self.server.url, error=unsent))
            self.usable = clean and written and self._head.kept
            self._received = bytearray()  # it would be kept as long as the connection
            self._answer.set_result((self._head, body))

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # nobody has asked: it would be taken for the answer of the next call
            return
        self._received += data
        try:
            if self._head is None:
                self._take_head()
            if self._head is not None:
                self._take_body(self._head)
        except ValueError as error:
            broken = HTTPClientError if self._head is None else ResponseStreamingError
            self._fail(broken(error=error))

    def _take_head(self) -> None:
        received = self._received
        while (end := received.find(b"\r\n\r\n")) >= 0:
            lines = bytes(received[:end]).split(b"\r\n")
            if len(lines) > MAX_HEADERS + 1:
                raise ValueError(f"the answer has more than {MAX_HEADERS} headers")
            head = parsed_head(lines)
            del received[: end + 4]
            if head.status >= 200:
                self._head = head
                self._most = self._most if head.status in SUCCESS else MAX_ERROR
                self._wait(min(head.length or 0, self._most + 1))
                return
        if len(received) > MAX_LINE:
            raise ValueError(f"the head of the answer is longer than {MAX_LINE} bytes")

    def _take_body(self, head: Head) -> None:
        received = self._received
        if head.chunked:
            if (found := unchunked(received, self._most + 1)) is not None:
                self._finish(*found)
            return
        wanted = self._most + 1 if head.length is None else min(head.length, self._most + 1)
        if len(received) >= wanted:
            with memoryview(received) as view:
                body = bytes(view[:wanted])
            self._finish(body, len(received) == wanted == head.length)

    def eof_received(self) -> None:
        self.usable = False
        self._ended(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._ended(exc)

    def _ended(self, cause: Exception | None) -> None:
        head, url = self._head, self.server.url
        if head is None:
            self._fail(ConnectionClosedError(endpoint_url=url, error=cause or "end of stream"))
        elif cause is not None or head.chunked:
            self._fail(ResponseStreamingError(error=cause or "it ended within a chunk"))
        elif head.length is None:
            self._finish(bytes(self._received), False)
        else:
            self._fail(
                IncompleteReadError(actual_bytes=len(self._received), expected_bytes=head.length)
            )


class LoopCalls:
    """Calls of one event loop, at most as many at once as whoever makes them allows."""

    def __init__(self, direct: DirectCalls) -> None:
        self._direct = direct
        self._idle: list[LoopConnection] = []

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def put(self, where: Bucket, bucket: str, key: str, body: bytes, *, new: bool) -> None:
        """As :meth:`DirectCalls.put`. A call that is cancelled ends its connection."""
        asked = {"if-none-match": "*"} if new else {}
        sent = self._direct.request("PUT", where, key, asked, body) + body
        head, told = await self._call(where, sent, MAX_ERROR)
        self._direct.must_be_stored(bucket, head, told)

    async def get(
        self, where: Bucket, bucket: str, key: str, asked: str, size: int
    ) -> tuple[bytes, int]:
        """As :meth:`DirectCalls.get`."""
        sent = self._direct.request("GET", where, key, {"range": asked}, b"")
        head, body = await self._call(where, sent, size)
        if head.status not in GOT:
            self._direct.refused("GetObject", bucket, head, body)
        must_be_asked(asked, size, head)
        return body, len(body) if head.length is None else head.length

    async def _call(self, where: Bucket, sent: bytes, most: int) -> tuple[Head, bytes]:
        connection = await self._take(where.server)
        try:
            answer = await connection.ask(sent, most)
        except BaseException:
            connection.close()  # also when it had ended as the call was cancelled
            raise
        if connection.usable:
            if len(self._idle) < self._direct.kept:
                self._idle.append(connection)
            else:
                connection.close()
        return answer

    async def _take(self, server: Server) -> LoopConnection:
        for at in range(len(self._idle) - 1, -1, -1):
            if self._idle[at].dropped:
                self._idle.pop(at).close()
            elif self._idle[at].server == server:
                return self._idle.pop(at)
        loop, bounds = asyncio.get_running_loop(), self._direct.timeouts
        context = None
        with connecting(server):
            async with asyncio.timeout(bounds["connect_timeout_s"]):
                if server.scheme == "https":
                    context = await asyncio.to_thread(self._direct.context, server)
                # Before the loop does: uvloop tries one address after the other.
                found = await loop.getaddrinfo(server.host, server.port, type=SOCK_STREAM)
                connected = await start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS_S)
                try:
                    _, connection = await loop.create_connection(
                        lambda: LoopConnection(server, bounds["read_timeout_s"]),
                        sock=connected, ssl=context,
                        server_hostname=server.host if context is not None else None,
                    )  # fmt: skip
                except BaseException:
                    connected.close()
                    raise
        return connection
