"""One client connection: requests in order of arrival, answers in the order of the requests.

Memory is bounded by the number and bytes of unanswered requests, and by the room that the process
has; past a bound the client is not read until answers have left. A client that does not read its
answers holds back its own broker connection and its own next requests, and after a while is
disconnected.

The connection to the broker may end before the client's: while nothing is owed the client keeps its
own, and the next request opens another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

import structlog

from tideline.gateway.context import ConnectionRegistry, Rules
from tideline.gateway.metrics import BOUND_REACHED
from tideline.gateway.room import Room
from tideline.gateway.transport.addresses import ResponseRewriter
from tideline.gateway.transport.admission import Door
from tideline.gateway.transport.login import Login, stranger_frame_bytes
from tideline.gateway.transport.serving import ServedConnection, Slot, fail
from tideline.gateway.transport.upstream import Broker, Expected, Upstream, keep_alive
from tideline.kafka.framing import FIRST, FrameProtocol
from tideline.kafka.security import UNSECURED, KafkaSecurity
from tideline.settings import GatewaySettings

WRITE_STALL_S = 30.0
"""A client that takes none of its answers for so long is disconnected."""
CLOSE_GRACE_S = 10.0
"""How long a connection that is closed may take to send what was written."""
PARTIAL_FRAME_S = 30.0
"""A client that has sent a part of a request and then nothing for so long is disconnected."""
HELD_MUTED_S = 60.0
"""What a muted client has sent is held no longer: more than a Kafka client waits for an answer."""
FIRST_BUFFER_BYTES = 65_536
"""What a stranger gets for saying that a long request comes; the rest as it arrives."""
log = structlog.get_logger()


class GatewayConnection(FrameProtocol, ServedConnection):
    """The client's side; :class:`tideline.gateway.transport.upstream.Upstream` is the broker's."""

    def __init__(
        self,
        settings: GatewaySettings,
        rules: Rules,
        rewriter: ResponseRewriter,
        connections: ConnectionRegistry,
        room: Room,
        door: Door,
        broker_is_gone: Callable[[], None],
        broker: Broker,
        security: KafkaSecurity = UNSECURED,
    ) -> None:
        """``broker_is_gone`` hears that the broker ended a connection, or took none. ``security``:
        of the broker's listener; who the client is there it says itself."""
        ServedConnection.__init__(
            self, settings, rules, rewriter, connections, door, broker_is_gone, broker
        )
        FrameProtocol.__init__(self, stranger_frame_bytes(settings), FIRST_BUFFER_BYTES)
        self._room = room
        self._security = security
        self._limit = settings.gateway_max_inflight_per_connection
        self._byte_limit = settings.gateway_max_frame_bytes
        self._arrived: deque[bytes] = deque()
        self._slots: deque[Slot] = deque()
        self._held_bytes = 0
        self._admitting = False
        self._upstream: Upstream | None = None
        self._upstream_full = False
        self._large_bytes = 0
        self._large_since = 0.0
        self._unread = 0
        """Bytes written that the client has not taken, while it takes none."""
        self._client_stalls = False
        self._reading = True
        self._unheard = False
        """It is closed soon, and nothing that it sends is looked at."""
        self._stall: asyncio.TimerHandle | None = None
        self._last_read = asyncio.get_running_loop().time()

    # -- the client's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        keep_alive(transport)
        host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
        self.peer = f"{host}:{port}"
        self._let_in(host)

    def frame_received(self, frame: bytes) -> None:
        if self._ended:
            return
        self.last_active = asyncio.get_running_loop().time()
        self._arrived.append(frame)
        self._hold(len(frame))
        if not self._admitting:
            self._admit()
        self._regulate()

    def shown(self) -> None:
        """See :meth:`ServedConnection.shown`."""
        self.first_buffer_bytes = FIRST
        super().shown()

    def turn_away(self, reason: str) -> None:
        """See :class:`tideline.gateway.transport.admission.Guest`."""
        self._end(reason)
        if self.transport is not None:
            self.transport.abort()

    @staticmethod
    def _is_encrypted(transport: asyncio.Transport) -> bool:
        return transport.get_extra_info("sslcontext") is not None

    def wait_unread(self) -> None:
        """See :class:`tideline.gateway.transport.admission.Guest`."""
        self._unheard = True  # uvloop may read once before it is told not to
        if self.transport is not None and self._is_encrypted(self.transport):
            self.drain()  # what came with the end of the handshake is read next
        else:
            # Not before the loop has begun to read, which it does whatever it was told.
            asyncio.get_running_loop().call_soon(self.drain)

    def large_frame_begins(self, size: int, head: bytes) -> str | None:
        return self._door.check_first(self, size, head) if self._young else None

    def frame_refused(self, reason: str) -> None:
        self.close(f"the client sent {reason}")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self._end("the client disconnected")
        self._taken()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended or self._unheard:
            return  # into the same place again
        self._last_read = asyncio.get_running_loop().time()
        upstream = self._upstream
        if upstream is None:
            super().buffer_updated(nbytes)
            return
        upstream.cork()
        try:
            super().buffer_updated(nbytes)
        finally:
            upstream.release()

    def buffer_changed(self, size: int) -> None:
        before, self._large_bytes = self._large_bytes, size
        if before == 0:
            self._large_since = self._last_read
        if size > before:
            self._room.take("requests", size - before)
        elif size < before:
            self._room.give("requests", before - size)
        if size == 0:
            self._room.finished(self)
        self._regulate()

    def stalled_since(self, before: float) -> bool:
        """Whether the client has sent a part of a request and then, since ``before``, nothing; or,
        where others have to wait for the end of it, not the end."""
        last = self._large_since if self._room.full else self._last_read
        return self._large_bytes > 0 and self._reading and last < before

    def held_muted_since(self, before: float) -> bool:
        """Whether what the client has sent is held, since ``before``, because it is muted."""
        held = bool(self._arrived) or self._large_bytes > 0
        return held and self._is_muted and self._muted_since < before

    def pause_writing(self) -> None:
        BOUND_REACHED.labels("unread_answers").inc()
        self._client_stalls = True
        if self.transport is not None:
            self._unread = self.transport.get_write_buffer_size()
            self._room.take("answers", self._unread)
        if self._upstream is not None:
            self._upstream.pause(True)
        self._stall = asyncio.get_running_loop().call_later(
            WRITE_STALL_S, self._abort, f"it took no answers for {WRITE_STALL_S:.0f} s"
        )

    def resume_writing(self) -> None:
        if self._ended:
            return  # the bound on closing stays
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        self._client_stalls = False
        self._taken()
        if self._upstream is not None:
            self._upstream.pause(False)
        if not self._admitting:
            self._admit()

    def _taken(self) -> None:
        self._room.give("answers", self._unread)
        self._unread = 0

    def _hold(self, size: int) -> None:
        """``size`` bytes of requests more, or less, are held until they are answered."""
        self._held_bytes += size
        if size > 0:
            self._room.take("requests", size)
        else:
            self._room.give("requests", -size)

    @property
    def is_idle(self) -> bool:
        """See :attr:`ServedConnection.is_idle`."""
        return not self._slots and not self._arrived and not self._tasks

    def drain(self) -> None:
        """See :meth:`ServedConnection.drain`."""
        self._draining = True
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmute()
        self._regulate()

    # -- admission

    def _admit(self) -> None:
        """Start requests in their order of arrival. A handler runs up to its first ``await`` in
        the next pass of the event loop, so what arrived behind it waits for that. While the client
        takes no answers nothing is started that would make more."""
        self._admitting = False
        while self._arrived and not (self._ended or self._client_stalls or self._is_muted):
            if self._login is not None and self._login.waits:
                return  # its answer goes on
            frame = self._arrived.popleft()
            if (started := self._begin(frame)) is None:
                return
            if started:
                self._admitting = True
                return
        self._regulate()

    def _pass_unanswered(self, frame: bytes) -> None:
        self._hold(-len(frame))
        self._send(frame, None)

    # -- answers

    def _open_slot(self, size: int) -> Slot:
        slot = Slot(size)
        self._slots.append(slot)
        return slot

    def _fill(self, slot: Slot, response: bytes | None) -> None:
        slot.response, slot.done = response, True
        if self._ended:
            return
        if response is not None:
            self._room.take("answers", len(response))
        while self._slots and self._slots[0].done:
            first = self._slots.popleft()
            self._hold(-first.size)
            if first.response is not None:
                self._write(first.response)
        self._regulate()

    def _write(self, response: bytes) -> None:
        stalled = self._client_stalls
        self.send_frame(response)
        if stalled:
            self._unread += len(response)  # accounted for by _fill, and until it is taken
        else:
            self._room.give("answers", len(response))

    def _regulate(self) -> None:
        """Read from the client, or not."""
        if self._ended or self.transport is None:
            return
        waiting = len(self._slots) + len(self._arrived)
        if self._reading:
            read = waiting < self._limit and self._held_bytes < self._byte_limit
        else:
            read = waiting <= self._limit // 2 and self._held_bytes <= self._byte_limit // 2
        read = read and not self._upstream_full and not self._draining
        read = read and not self._client_stalls and not self._is_muted and self._has_room()
        if not read:
            self._room.finished(self)
        if read == self._reading or self.transport.is_closing():
            return
        self._reading = read
        if read:
            self._last_read = self._large_since = asyncio.get_running_loop().time()
            self.transport.resume_reading()
        else:
            if waiting >= self._limit or self._held_bytes >= self._byte_limit:
                BOUND_REACHED.labels("in_flight").inc()
            self.transport.pause_reading()

    def _muting_changed(self) -> None:
        if not self._is_muted and not self._admitting:
            self._admit()
        self._regulate()

    def _has_room(self) -> bool:
        return self._room.may_finish(self) if self._large_bytes else not self._room.full

    def room_changed(self) -> None:
        """The process has room again, or the turn to finish a frame is free."""
        self._regulate()
        if self._upstream is not None:
            self._upstream.regulate()

    # -- the broker's side

    def _broker(self) -> Upstream:
        if self._upstream is None:
            self._upstream = Upstream(
                self._at.address,
                self._settings.gateway_max_answer_bytes,
                self._room,
                self,
                tls=self._security.tls(),
                on_lost=self._broker_lost,
                on_pressure=self._broker_pressure,
            )
            self._upstream.pause(self._client_stalls)
        return self._upstream

    def _broker_lost(self, reason: str, owes: bool) -> None:
        """Kafka closes idle connections, and all when it restarts: a client that it owes nothing
        keeps its own (a producer of the suffix would repeat records for it)."""
        self._broker_is_gone()
        host, port = self._at.address
        if owes or self._authenticated or self._draining:
            self.close(f"broker {host}:{port}: {reason}")
            return
        self._dropped(reason)
        self._upstream = None
        self._upstream_full = False
        for answer in tuple(self._asked):
            fail(answer, reason)
        self._reach_barriers()
        self._regulate()

    def close_if_broker_stalls(self, before: float) -> None:
        """End it if the broker has sent a part of an answer and then, since ``before``, nothing."""
        if self._upstream is not None and self._upstream.stalled_since(before):
            self._abort("the broker sent a part of an answer and then nothing")

    def _broker_pressure(self, full: bool) -> None:
        self._upstream_full = full
        self._regulate()

    def _send_now(self, frame: bytes, expected: Expected | None) -> None:
        self._broker().send(frame, expected)

    def _has_broker(self) -> bool:
        return self._upstream is not None

    # -- who the client is

    def _login_answered(self) -> None:
        if not self._admitting:
            self._admit()

    def _logged_in(self, login: Login) -> None:
        self.allow(self._settings.gateway_max_frame_bytes)
        super()._logged_in(login)

    # -- the end

    def close(self, reason: str, about: Mapping[str, object] | None = None) -> None:
        """See :meth:`ServedConnection.close`; for :data:`CLOSE_GRACE_S`."""
        if not self._ended:
            self._door.tell_closed(about or {"client": self.peer}, reason)
            self._end(reason)
        self.release()
        if self.transport is not None:
            if self._is_encrypted(self.transport):
                # asyncio drops what is not sent yet if it cannot take leave for unread requests.
                self.transport.resume_reading()
            self.transport.close()
            if self._stall is None and self.transport.get_write_buffer_size():
                loop = asyncio.get_running_loop()
                self._stall = loop.call_later(CLOSE_GRACE_S, self.transport.abort)

    def hand_over(self, reason: str) -> None:
        """See :meth:`ServedConnection.hand_over`."""
        if self._ended or self.transport is None or not self.transport.can_write_eof():
            self.close(reason)
            return
        log.info("connection handed over", client=self.peer, reason=reason)
        self._end(reason)
        self.release()
        try:
            self.transport.write_eof()
        except OSError:  # the client has cut it off, which asyncio does not know yet
            self.transport.abort()
            return
        self.transport.resume_reading()
        self._stall = asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self.transport.abort)

    def _abort(self, reason: str) -> None:
        self.close(reason)
        if self.transport is not None:
            self.transport.abort()

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self._upstream is not None:
            self._upstream.close()
        self._end_served(reason)
        for slot in self._slots:
            if slot.done and slot.response is not None:
                self._room.give("answers", len(slot.response))
        self._hold(-self._held_bytes)
        self.buffer_changed(0)
        self._arrived.clear()
        self._slots.clear()
