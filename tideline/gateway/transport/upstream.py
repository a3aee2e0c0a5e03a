"""The one connection to the paired broker that belongs to a client's connection."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tideline.background import spawn
from tideline.kafka.errors import MalformedFrame
from tideline.kafka.framing import FrameProtocol
from tideline.kafka.protocol import correlation_of

CONNECT_TIMEOUT_S = 5.0
Sink = Callable[[bytes], None]
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Expected:
    """An answer that Kafka owes. It answers in order, so nothing else needs to be known."""

    correlation_id: int
    sink: Sink


class Upstream(FrameProtocol):
    """Opened with the first request; what is sent before it is open waits in order."""

    def __init__(
        self,
        address: Address,
        max_frame_bytes: int,
        *,
        on_lost: Callable[[str], None],
        on_pressure: Callable[[bool], None],
    ) -> None:
        """``on_lost`` hears why it ended, once; ``on_pressure`` whether its buffer is full."""
        super().__init__(max_frame_bytes)
        self._address = address
        self._on_lost = on_lost
        self._on_pressure = on_pressure
        self._expected: deque[Expected] = deque()
        self._waiting: list[bytes] | None = []
        """Frames that wait for the connection; ``None`` once it is open."""
        self._closing = False
        self._refusal: str | None = None
        self._dial = spawn(self._open(), "upstream")

    async def _open(self) -> None:
        host, port = self._address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(lambda: self, host, port)
        except (OSError, TimeoutError) as error:
            self._lost(str(error) or f"no connection within {CONNECT_TIMEOUT_S:.0f} s")

    def send(self, frame: bytes, expected: Expected | None) -> None:
        """Queue one request; ``expected`` is ``None`` if Kafka does not answer it."""
        if self._closing:
            return
        if expected is not None:
            self._expected.append(expected)
        if self._waiting is not None:
            self._waiting.append(frame)
        else:
            self.send_frame(frame)

    def close(self) -> None:
        """End it after what was queued is written: requests without an answer are not lost."""
        if self._closing:
            return
        self._closing = True
        self._expected.clear()
        if self.transport is not None:
            self.transport.close()

    def pause(self, paused: bool) -> None:
        """Stop or go on reading answers."""
        if self.transport is None or self.transport.is_closing():
            return
        if paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        keep_alive(transport)
        waiting, self._waiting = self._waiting or [], None
        for frame in waiting:
            self.send_frame(frame)
        if self._closing and self.transport is not None:
            self.transport.close()

    def frame_received(self, frame: bytes) -> None:
        if self._closing:
            return
        try:
            if not self._expected or self._expected[0].correlation_id != correlation_of(frame):
                raise MalformedFrame("an answer that is not due")
            self._expected.popleft().sink(frame)
        except MalformedFrame as error:
            self._lost(f"the broker sent {error}")

    def frame_refused(self, reason: str) -> None:
        self._refusal = f"the broker sent {reason}"

    def pause_writing(self) -> None:
        self._on_pressure(True)

    def resume_writing(self) -> None:
        self._on_pressure(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self._refusal or (str(exc) if exc else "the broker closed the connection"))

    def _lost(self, reason: str) -> None:
        if self._closing:
            return
        self.close()
        self._on_lost(reason)


_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""A peer that vanished without a word is noticed after two minutes."""


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Probe a silent peer, so that a half-open connection ends; send small frames at once."""
    found = transport.get_extra_info("socket")
    if found is None:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            found.setsockopt(socket.IPPROTO_TCP, option, value)
