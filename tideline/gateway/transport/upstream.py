"""The one connection to the paired broker that belongs to a client's connection."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import structlog

from tideline.background import spawn
from tideline.gateway.metrics import BOUND_REACHED
from tideline.gateway.room import Room
from tideline.kafka.errors import MalformedFrame
from tideline.kafka.framing import FrameProtocol
from tideline.kafka.protocol import correlation_of

log = structlog.get_logger()
CONNECT_TIMEOUT_S = 5.0
WAITING_BYTES = 65_536
"""Of what waits for the connection, before its client is not read: as of a transport's buffer."""
Sink = Callable[[bytes], None]
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Broker:
    """Whom a client's connection is joined to: the paired broker, or one that is stood in for."""

    node: int
    address: Address


class Expected(NamedTuple):
    """An answer that Kafka owes. It answers in order, so nothing else needs to be known."""

    correlation_id: int
    sink: Sink
    own: bool = False
    """Asked by the gateway itself: no client waits for it."""
    lost: Callable[[str], None] = lambda reason: None
    """Told, of one of the gateway's own, that the broker's connection has ended before it."""


class Upstream(FrameProtocol):
    """Opened with the first request; what is sent before it is open waits in order."""

    def __init__(
        self,
        address: Address,
        max_frame_bytes: int,
        room: Room,
        client: FrameProtocol,
        *,
        tls: ssl.SSLContext | None = None,
        on_lost: Callable[[str, bool], None],
        on_pressure: Callable[[bool], None],
    ) -> None:
        """``client``: whom its answers go to. ``on_lost`` hears, once, why it ended and whether the
        client was owed something; ``on_pressure`` whether its buffer is full."""
        super().__init__(max_frame_bytes)
        self._room = room
        self._client = client
        self._large_bytes = 0
        self._sent_without_answer = 0
        self._served_without_answer = 0
        self._paused = False
        self._held_back = False
        self._clock = asyncio.get_running_loop().time
        self.last_read = self._clock()
        """While a part of an answer is there."""
        self._address, self._tls = address, tls
        self._on_lost = on_lost
        self._on_pressure = on_pressure
        self._expected: deque[tuple[Expected, int]] = deque()
        """With each, how many requests without an answer were sent before it."""
        self._waiting: list[bytes] | None = []
        """Frames that wait for the connection; ``None`` once it is open."""
        self._waiting_bytes = 0
        self._closing = False
        self._refusal: str | None = None
        self._dial = spawn(self._open(), "upstream")

    async def _open(self) -> None:
        host, port = self._address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: self, host, port, ssl=self._tls
                )
        except (OSError, TimeoutError) as error:
            self._lost(str(error) or f"no connection within {CONNECT_TIMEOUT_S:.0f} s")

    def send(self, frame: bytes, expected: Expected | None) -> None:
        """Queue one request; ``expected`` is ``None`` if Kafka does not answer it."""
        if self._closing:
            return
        if expected is not None:
            self._expected.append((expected, self._sent_without_answer))
        else:
            self._sent_without_answer += 1
        if self._waiting is not None:
            self._waiting.append(frame)
            before, self._waiting_bytes = self._waiting_bytes, self._waiting_bytes + len(frame)
            if before < WAITING_BYTES <= self._waiting_bytes:
                self._on_pressure(True)
        else:
            self.send_frame(frame)

    @property
    def owes(self) -> bool:
        """Whether the client would miss it: an answer is due, or it has sent requests without one
        that no later answer has proven served. Kafka tells the sender of those that they failed by
        closing the connection."""
        return self._sent_without_answer > self._served_without_answer or any(
            not expected.own for expected, _ in self._expected
        )

    def close(self) -> None:
        """End it after what was queued is written: requests without an answer are not lost."""
        if self._closing:
            return
        self._closing = True
        self.release()
        self._expected.clear()
        self.buffer_changed(0)
        if self.transport is not None:
            self.transport.close()

    def pause(self, paused: bool) -> None:
        """Stop or go on reading answers: the client takes none."""
        self._paused = paused
        self.regulate()

    def regulate(self) -> None:
        """Read from the broker, or not. Short answers are always read: they free memory."""
        if self.transport is None or self.transport.is_closing():
            return
        hold = self._paused or (self._large_bytes > 0 and not self._room.may_finish(self))
        if self._paused:
            self._room.finished(self)
        if hold is self._held_back:
            return
        self._held_back = hold
        if hold:
            self.transport.pause_reading()
        else:
            self.last_read = asyncio.get_running_loop().time()
            self.transport.resume_reading()

    def stalled_since(self, before: float) -> bool:
        """Whether the broker has sent a part of an answer and then, since ``before``, nothing."""
        return self._large_bytes > 0 and not self._held_back and self.last_read < before

    def buffer_updated(self, nbytes: int) -> None:
        self._client.cork()
        try:
            super().buffer_updated(nbytes)
        finally:
            self._client.release()
        if self._large_bytes:
            self.last_read = self._clock()

    def buffer_changed(self, size: int) -> None:
        before, self._large_bytes = self._large_bytes, size
        if size > before:
            self._room.take("answers", size - before)
        elif size < before:
            self._room.give("answers", before - size)
        if size == 0:
            self._room.finished(self)
        self.regulate()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        keep_alive(transport)
        waiting, self._waiting = self._waiting or [], None
        if self._waiting_bytes >= WAITING_BYTES and not self._closing:
            self._on_pressure(False)  # from now on it is the transport's to say
        for frame in waiting:
            self.send_frame(frame)
        if self._closing and self.transport is not None:
            self.transport.close()
        self.regulate()

    def frame_received(self, frame: bytes) -> None:
        if self._closing:
            return
        try:
            if not self._expected or self._expected[0][0].correlation_id != correlation_of(frame):
                raise MalformedFrame("an answer that is not due")
            expected, self._served_without_answer = self._expected.popleft()
            expected.sink(frame)
        except MalformedFrame as error:
            # Who was to have this answer is owed it, and will not get it.
            self._lost(f"the broker sent {error}", owes=True)
        except Exception as error:
            log.exception("an answer cannot be dealt with")
            self._lost(f"its answer cannot be dealt with: {error}", owes=True)

    def frame_refused(self, reason: str) -> None:
        BOUND_REACHED.labels("answer").inc()
        self._refusal = (
            f"the broker sent {reason}; if that is an answer, raise "
            "TIDELINE_GATEWAY_MAX_ANSWER_BYTES to what it needs"
        )
        log.error("upstream.answer_refused", reason=self._refusal)

    def pause_writing(self) -> None:
        self._on_pressure(True)

    def resume_writing(self) -> None:
        self._on_pressure(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self._refusal or (str(exc) if exc else "the broker closed the connection"))

    def _lost(self, reason: str, *, owes: bool = False) -> None:
        if self._closing:
            return
        owes = owes or self.owes
        self.close()
        self._on_lost(reason, owes)


_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""A peer that vanished without a word is noticed after two minutes."""


WRITTEN_BYTES = 65_536
"""What a transport keeps before it says that its peer takes too little; at a quarter of it there is
room again. asyncio's own default."""


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Probe a silent peer, so that a half-open connection ends; send small frames at once."""
    found = transport.get_extra_info("socket")
    if found is None:
        return
    if transport.get_extra_info("sslcontext") is None:
        # uvloop would say that there is room only once nothing is left to write.
        cast(asyncio.Transport, transport).set_write_buffer_limits(WRITTEN_BYTES)
    keep_socket_alive(found)


def keep_socket_alive(found: socket.socket) -> None:
    """The same, of a socket that no transport has."""
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            found.setsockopt(socket.IPPROTO_TCP, option, value)
