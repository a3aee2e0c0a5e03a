"""Clients' and brokers' streams of the simulated network, in the place of the native library's
sockets (:mod:`tideline.gateway.transport.native`), which are the kernel's.

It moves frames and keeps their order. What becomes of a request is
:mod:`tideline.gateway.transport.serving`'s, as it is in the product; bounds on bytes and time, TLS
and logins are not simulated.
``tests/unit/gateway/test_transports_alike.py`` holds it to what the product does with frames, and
``test_transport.py`` to what it does when a broker is lost, or too much is under way.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import structlog

from tideline.background import spawn
from tideline.gateway.transport.broker import CONNECT_TIMEOUT_S, Address, Expected
from tideline.gateway.transport.serving import ServedConnection, fail
from tideline.kafka.errors import MalformedFrame
from tideline.kafka.framing import SMALL, FrameProtocol
from tideline.kafka.protocol import correlation_of
from tideline.kafka.tls import TlsFiles
from tideline.kafka.wire import Limits

log = structlog.get_logger()


class Corked(FrameProtocol):
    """Gathers small frames: what one read brings causes one write."""

    def __init__(self, max_frame_bytes: int) -> None:
        super().__init__(max_frame_bytes)
        self._corked: list[bytes] | None = None

    def cork(self) -> None:
        """Gather the small frames that are sent from now on, in their order, until
        :meth:`release`. Whoever corks releases in the same step."""
        if self._corked is None:
            self._corked = []

    def release(self) -> None:
        """Write what was gathered, and from now on each frame when it is sent."""
        self._uncork()
        self._corked = None

    def _uncork(self) -> None:
        if self._corked:
            gathered = b"".join(self._corked)
            self._corked.clear()
            if self.transport is not None and not self.transport.is_closing():
                self.transport.write(gathered)

    def send_frame(self, frame: bytes) -> None:
        """See :meth:`FrameProtocol.send_frame`."""
        if self._corked is None or len(frame) >= SMALL:
            self._uncork()
            super().send_frame(frame)
        elif self.transport is not None and not self.transport.is_closing():
            self._corked += (len(frame).to_bytes(4, "big"), frame)


class AsyncioTransport:
    """See :class:`tideline.gateway.transport.serving.Transport`."""

    def __init__(self, limits: Limits, *_: object) -> None:
        self._limits = limits

    def encrypt_clients(self, tls: ssl.SSLContext, files: TlsFiles) -> NoReturn:
        raise NotImplementedError("TLS is not simulated")

    def start(self) -> None:
        """There is nothing to begin."""

    def connection(self, *served: Any) -> AsyncioConnection:
        return AsyncioConnection(self._limits, *served)

    async def close(self) -> None:
        """The server has closed its connections."""


class AsyncioConnection(Corked, ServedConnection):
    """The client's side; :class:`Upstream` is the broker's."""

    def __init__(self, limits: Limits, *served: Any) -> None:
        """``served``: as of :class:`ServedConnection`."""
        ServedConnection.__init__(self, *served)
        Corked.__init__(self, limits.max_frame_bytes)
        self._limits = limits
        self._arrived: deque[bytes] = deque()
        self._answers: dict[int, bytes | None] = {}
        """By place: what is there of them, in the order of the requests."""
        self._owed: dict[int, None] = {}
        """Places whose answer is not there."""
        self._places = 0
        self._admitting = False
        self._upstream: Upstream | None = None
        self._reading = True
        self._unheard = False
        """It is closed soon, and nothing that it sends is looked at."""

    # -- who comes

    def adopt(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        """See :meth:`ServedConnection.adopt`."""
        loop = asyncio.get_running_loop()
        spawn(loop.connect_accepted_socket(lambda: self, accepted), "accepted")

    async def shake(
        self, accepted: socket.socket, address: tuple[Any, ...], within_s: float
    ) -> NoReturn:
        raise NotImplementedError("TLS is not simulated")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        host, port = transport.get_extra_info("peername")[:2]
        self.peer = f"{host}:{port}"
        self._let_in(host)

    def turn_away(self, reason: str) -> None:
        """See :class:`tideline.gateway.transport.admission.Guest`."""
        self._end(reason)
        if self.transport is not None:
            self.transport.abort()

    def wait_unread(self) -> None:
        """See :class:`tideline.gateway.transport.admission.Guest`."""
        self._unheard = True
        # Not before the loop has begun to read, which it does whatever it was told.
        asyncio.get_running_loop().call_soon(self.drain)

    # -- its requests

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended or self._unheard:
            return  # into the same place again
        upstream = self._upstream
        if upstream is None:
            super().buffer_updated(nbytes)
            return
        upstream.cork()
        try:
            super().buffer_updated(nbytes)
        finally:
            upstream.release()

    def frame_received(self, frame: bytes) -> None:
        if self._ended:
            return
        self._arrived.append(frame)
        if not self._admitting:
            self._admit()
        self._regulate()

    def frame_refused(self, reason: str) -> None:
        self.close(f"the client sent {reason}")

    def _admit(self) -> None:
        """Start requests in their order of arrival. A handler runs up to its first ``await`` in
        the next pass of the event loop, so what arrived behind it waits for that."""
        self._admitting = False
        while self._arrived and not (self._ended or self._is_muted):
            if (started := self._begin(self._arrived.popleft())) is None:
                return
            if started:
                self._admitting = True
                return
        self._regulate()

    def _regulate(self) -> None:
        """Read from the client, or not."""
        if self._ended or self.transport is None:
            return
        waiting = len(self._answers) + len(self._arrived)
        most = self._limits.in_flight
        read = waiting < most if self._reading else waiting <= most // 2
        read = read and not self._draining and not self._is_muted
        if read == self._reading or self.transport.is_closing():
            return
        self._reading = read
        if read:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _muting_changed(self) -> None:
        if not self._is_muted and not self._admitting:
            self._admit()
        self._regulate()

    # -- answers

    def _open_slot(self) -> int:
        self._places += 1
        self._answers[self._places] = None
        self._owed[self._places] = None
        return self._places

    def _fill(self, slot: int, response: bytes | None) -> None:
        self._owed.pop(slot, None)
        if self._ended:
            return
        self._answers[slot] = response
        while self._answers and (first := next(iter(self._answers))) not in self._owed:
            if (answer := self._answers.pop(first)) is not None:
                self.send_frame(answer)
        self._regulate()

    def _pass_unanswered(self, frame: bytes) -> None:
        self._send(frame, None)

    # -- the broker's side

    def _send_now(self, frame: bytes, expected: Expected | None) -> None:
        if self._upstream is None:
            most = self._limits.max_answer_bytes
            self._upstream = Upstream(self._at.address, most, self, self._broker_lost)
        self._upstream.send(frame, expected)

    def _has_broker(self) -> bool:
        return self._upstream is not None

    def _broker_lost(self, reason: str, owes: bool) -> None:
        """Kafka closes idle connections, and all when it restarts: a client that it owes nothing
        keeps its own (a producer of the suffix would repeat records for it)."""
        self._broker_is_gone()
        host, port = self._at.address
        if owes or self._draining:
            self.close(f"broker {host}:{port}: {reason}")
            return
        self._dropped(reason)
        self._upstream = None
        for answer in tuple(self._asked):
            fail(answer, reason)
        self._reach_barriers()
        self._regulate()

    def _login_answered(self) -> NoReturn:
        raise NotImplementedError("logins are not simulated")

    # -- the end

    @property
    def is_idle(self) -> bool:
        """See :attr:`ServedConnection.is_idle`."""
        return not self._answers and not self._arrived and not self._tasks

    def drain(self) -> None:
        """See :meth:`ServedConnection.drain`."""
        self._draining = True
        self._stop_muting()
        self._muting_changed()

    def close(self, reason: str, about: Mapping[str, object] | None = None) -> None:
        """See :meth:`ServedConnection.close`."""
        if not self._ended:
            self._door.tell_closed(about or {"client": self.peer}, reason)
            self._end(reason)
        self.release()
        if self.transport is not None:
            self.transport.close()

    def hand_over(self, reason: str) -> None:
        """See :meth:`ServedConnection.hand_over`; one side of a stream cannot end alone here."""
        self.close(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self._end("the client disconnected")

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        if self._upstream is not None:
            self._upstream.close()
        self._end_served(reason)
        self._arrived.clear()
        self._answers.clear()
        self._owed.clear()


class Upstream(Corked):
    """The one connection to the broker that belongs to a client's connection. Opened with the
    first request; what is sent before it is open waits in order."""

    def __init__(
        self,
        address: Address,
        max_frame_bytes: int,
        client: Corked,
        on_lost: Callable[[str, bool], None],
    ) -> None:
        """``client``: whom its answers go to. ``on_lost`` hears, once, why it ended and whether the
        client was owed something."""
        super().__init__(max_frame_bytes)
        self._client, self._on_lost = client, on_lost
        self._sent_without_answer = 0
        self._served_without_answer = 0
        self._expected: deque[tuple[Expected, int]] = deque()
        """With each, how many requests without an answer were sent before it."""
        self._waiting: list[bytes] | None = []
        """Frames that wait for the connection; ``None`` once it is open."""
        self._closing = False
        self._refusal: str | None = None
        self._dial = spawn(self._open(*address), "upstream")

    async def _open(self, host: str, port: int) -> None:
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
            self._expected.append((expected, self._sent_without_answer))
        else:
            self._sent_without_answer += 1
        if self._waiting is not None:
            self._waiting.append(frame)
        else:
            self.send_frame(frame)

    @property
    def _owes(self) -> bool:
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
        if self.transport is not None:
            self.transport.close()

    def buffer_updated(self, nbytes: int) -> None:
        self._client.cork()
        try:
            super().buffer_updated(nbytes)
        finally:
            self._client.release()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        waiting, self._waiting = self._waiting or [], None
        for frame in waiting:
            self.send_frame(frame)
        if self._closing:
            transport.close()

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
        self._refusal = f"the broker sent {reason}"

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self._refusal or (str(exc) if exc else "the broker closed the connection"))

    def _lost(self, reason: str, *, owes: bool = False) -> None:
        if self._closing:
            return
        owes = owes or self._owes
        self.close()
        self._on_lost(reason, owes)
