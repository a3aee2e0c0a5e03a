"""The transport, whose pass path is native (docs/decisions/0034-a-native-pass-path.md): a client's
socket is the library's from its admission on, with TLS from the handshake on.

What the library does not pass comes here as a frame with its place in the order of the answers, and
goes the way of :mod:`tideline.gateway.transport.serving`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import structlog
from aiohappyeyeballs import start_connection

from tideline.background import spawn
from tideline.domain.sasl import SASL_APIS
from tideline.errors import UsageError
from tideline.gateway.context import ApiKey, FollowedSessions, Passing, Rule, Rules
from tideline.gateway.metrics import BOUND_REACHED, requests_passed
from tideline.gateway.room import Room
from tideline.gateway.transport.addresses import ResponseRewriter
from tideline.gateway.transport.broker import (
    CONNECT_TIMEOUT_S,
    Expected,
    keep_alive,
)
from tideline.gateway.transport.dialling import Dialling
from tideline.gateway.transport.login import Login
from tideline.gateway.transport.serving import ServedConnection
from tideline.kafka.errors import MalformedFrame
from tideline.kafka.security import UNSECURED, KafkaSecurity
from tideline.kafka.tls import TlsFiles, naming_files
from tideline.kafka.wire import (
    Api,
    Cause,
    Close,
    Encrypted,
    Kind,
    Limits,
    Message,
    Treatment,
    Wire,
)
from tideline.kafka.wire_tls import rules_of

ANSWERS_WALKED = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
"""The library finds out by itself which of their answers have something to be rewritten."""
BOUNDS = ("in_flight", "unread_answers")
UNASKED_LEAST, UNASKED_MOST = 1_048_576, 16_777_216
"""Bytes that the library may hold before it asks, of those that are left: half of them, within
these bounds. So much one side may not know of the other."""
FIRST_LOOKED_AT = 16_384
"""A first request of more bytes is judged by its head."""
GONE_S = 1.0
"""How long the end of the process waits for what is written to be sent."""

S = TypeVar("S")
log = structlog.get_logger()


def treated(rules: Rules, rewriter: ResponseRewriter) -> Mapping[int, Api]:
    """How each API is treated for as long as the rules say of themselves what they say now. What
    does not say by what it passes is Python's to ask about."""
    return {
        key: _treated(key, versions, rules.get(key), rewriter)
        for key, versions in rewriter.offered.items()
    }


def _treated(key: int, versions: range, rule: Rule | None, rewriter: ResponseRewriter) -> Api:
    looks = key in rewriter.rewritten and key not in ANSWERS_WALKED
    if looks or key in SASL_APIS:
        treatment = Treatment.PYTHON
    elif rule is None:
        treatment = Treatment.PASS
    elif rule.by_topics is None:
        treatment = Treatment.PYTHON
    elif not rule.is_due():
        treatment = Treatment.PASS
    else:
        treatment = Treatment.PASS_BY_TOPICS if rule.by_topics() else Treatment.PYTHON
    return Api(treatment, versions, looks)


class NativeTransport:
    """The event loop's side of one engine."""

    def __init__(
        self,
        limits: Limits,
        rules: Rules,
        rewriter: ResponseRewriter,
        room: Room,
        passing: Passing | None,
        security: KafkaSecurity = UNSECURED,
    ) -> None:
        """``passing``: what is tracked; ``None``: nobody tells, so that whatever has a rule is
        Python's to ask about. ``security``: of the broker's listener. Raises
        :class:`~tideline.kafka.wire.LibraryMissing`, and :class:`~tideline.errors.UsageError` if
        connections to the broker cannot be encrypted."""
        self.wire = Wire(limits)
        self._rules, self._rewriter = rules, rewriter
        self._room = room
        self._passing = passing
        self._open: dict[int, NativeConnection] = {}
        self._names: frozenset[str] = frozenset()
        self._ids: frozenset[UUID] = frozenset()
        self._treated: Mapping[int, Api] = {}
        self._held = {"requests": 0, "answers": 0}
        self._passed: list[int] = []
        self._bounds: list[int] = []
        self._dials: dict[asyncio.Task[None], None] = {}
        self.dialling = Dialling()
        self._closed = False
        self._security = security
        self._to_brokers: ssl.SSLContext | None = None
        """After whose rules they are encrypted now."""
        self.encrypt_to_brokers()

    def encrypt_clients(self, tls: ssl.SSLContext, files: TlsFiles) -> None:
        """See :class:`tideline.gateway.transport.serving.Transport`."""
        self._encrypt(Encrypted.WITH_CLIENTS, tls, files)

    def encrypt_to_brokers(self) -> bool:
        """Whether connections to brokers are encrypted, from now on by the files as they are.
        Raises :class:`~tideline.errors.UsageError` at first; later what was read before stays."""
        tls = self._security.tls()
        if tls is None or tls is self._to_brokers:
            return tls is not None
        first, self._to_brokers = self._to_brokers is None, tls
        try:
            self._encrypt(Encrypted.WITH_BROKERS, tls, self._security.files)
        except UsageError as error:
            if first:
                raise
            log.error(
                "tls.files_refused: connections go on with what was read before", reason=error
            )
        return True

    def _encrypt(self, which: Encrypted, tls: ssl.SSLContext, files: TlsFiles) -> None:
        with naming_files(files):
            self.wire.encrypt(which, rules_of(tls, files))

    def start(self) -> None:
        """See :class:`tideline.gateway.transport.serving.Transport`."""
        self._show()
        if self._passing is not None:
            self._passing.changed.add(self._show)
        self._allow()
        self._room.changed.add(self._allow)
        asyncio.get_running_loop().add_reader(self.wire.wake_fd, self.taken)
        self.wire.start()

    async def close(self) -> None:
        """End every connection, after what is written was sent, for :data:`GONE_S`."""
        if self._closed:
            return
        for connection in tuple(self._open.values()):
            connection.close("the gateway stops")
        waited_for = [connection.gone for connection in self._open.values()]
        if waited_for:
            await asyncio.wait(waited_for, timeout=GONE_S)
        self.count()
        self._closed = True
        asyncio.get_running_loop().remove_reader(self.wire.wake_fd)
        for dial in tuple(self._dials):
            dial.cancel()
        self.wire.free()
        for connection in tuple(self._open.values()):
            self._gone(connection)
        self._are_held(0, 0)

    def connection(self, *served: Any) -> NativeConnection:
        """See :class:`tideline.gateway.transport.serving.Transport`."""
        return NativeConnection(self, *served)

    def take_in(
        self, connection: NativeConnection, client: socket.socket, handshake_s: float = 0.0
    ) -> int:
        """The number of a connection whose socket is the library's from now on; 0: a defect, and
        the socket is closed. ``handshake_s``: see :meth:`Wire.adopt`."""
        number = self.wire.adopt(client, handshake_s)
        if number:
            self._open[number] = connection
        return number

    def dial(self, connection: NativeConnection, number: int) -> None:
        """Open the broker's connection that is wanted by ``number``."""
        task = spawn(connection.join(number), "upstream")
        self._dials[task] = None
        task.add_done_callback(self._dials.pop)

    # -- what passes

    def _show(self) -> None:
        """What is tracked, and how rules stand, as it is now. In the step in which it changes: what
        the library has passed until then it has sent before any barrier that is asked for later."""
        if self._closed:
            return
        rules, names, ids = self._rules, frozenset[str](), frozenset[UUID]()
        if self._passing is None:
            rules = {key: replace(rule, by_topics=None) for key, rule in rules.items()}
        else:
            names, ids = frozenset(self._passing.names()), frozenset(self._passing.ids())
        joined = names - self._names, ids - self._ids
        left = self._names - names, self._ids - ids
        apis = treated(rules, self._rewriter)
        if any((*joined, *left)) or apis != self._treated:
            self.wire.table(apis, joined, left)
        self._names, self._ids, self._treated = names, ids, apis

    # -- room

    def _allow(self) -> None:
        if self._closed:
            return
        left = self._room.left
        unasked = min(left, max(UNASKED_LEAST, min(left // 2, UNASKED_MOST)))
        self.wire.room(self._room.full, sum(self._held.values()) + unasked)

    def _are_held(self, requests: int, answers: int) -> None:
        for kind, now in (("requests", requests), ("answers", answers)):
            more = now - self._held[kind]
            self._held[kind] = now
            if more > 0:
                self._room.take(kind, more)
            elif more < 0:
                self._room.give(kind, -more)
        self._allow()

    # -- metrics

    def count(self) -> None:
        """Note what the library has counted since the last time."""
        if self._closed:
            return
        passed, bounds = self.wire.counters()
        for key, more in _since(self._passed, passed):
            requests_passed(key).inc(more)
        for number, more in _since(self._bounds, bounds):
            BOUND_REACHED.labels(BOUNDS[number]).inc(more)
        self._passed, self._bounds = passed, bounds

    # -- messages

    def taken(self) -> None:
        """Deal with what the library has for Python."""
        for message in self.wire.take():
            if message.kind == Kind.HELD:
                self._are_held(message.connection, message.number)
                self.count()
            elif (connection := self._open.get(message.connection)) is not None:
                self._tell(connection, message)

    def _tell(self, connection: NativeConnection, message: Message) -> None:
        if message.kind == Kind.GONE:
            self._gone(connection)
            return
        try:
            connection.hear(message)
        except Exception:  # what others wait for comes behind it
            log.exception("a message of the native transport cannot be dealt with")
            connection.close("the gateway failed")

    def _gone(self, connection: NativeConnection) -> None:
        self._open.pop(connection.number, None)
        connection.is_gone()


def _since(before: list[int], now: list[int]) -> Iterable[tuple[int, int]]:
    return [
        (number, count - was)
        for number, (count, was) in enumerate(zip(now, before or [0] * len(now), strict=True))
        if count > was
    ]


class NativeConnection(ServedConnection):
    """One client's."""

    def __init__(self, transport: NativeTransport, *served: Any) -> None:
        """``served``: as of :class:`ServedConnection`."""
        super().__init__(*served)
        self._transport, self._wire = transport, transport.wire
        self.number = 0
        self._unread: socket.socket | None = None
        """Its socket, as long as that is not the library's."""
        self._unheard = False
        self._shaking: asyncio.Future[None] | None = None
        """Done when hands are shaken, or are not going to be."""
        self._host = "?"
        self._slot = 0
        self._tokens = 0
        self._lapsing: asyncio.TimerHandle | None = None
        self._sinks: dict[int, Expected] = {}
        """By the number under which it was forwarded: what becomes of an answer that is due."""

    # -- who comes

    def adopt(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        """See :meth:`ServedConnection.adopt`."""
        self._comes(accepted, address)
        self._unread = accepted
        if not self._let_in(self._host) or self._unheard:
            return
        self._unread = None
        self.number = self._transport.take_in(self, accepted)
        if not self.number:
            self._end("the native transport has failed")

    async def shake(
        self, accepted: socket.socket, address: tuple[Any, ...], within_s: float
    ) -> None:
        """See :meth:`ServedConnection.shake`."""
        self._comes(accepted, address)
        self._shaking = asyncio.get_running_loop().create_future()
        self.number = self._transport.take_in(self, accepted, within_s)
        if not self.number:
            self._end("it cannot be encrypted")
            raise OSError("it cannot be encrypted: no memory, or a defect")
        try:
            await self._shaking
        except asyncio.CancelledError:
            self.turn_away("the gateway stops")
            raise

    def _comes(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        self._host, port = address[:2]
        self.peer = f"{self._host}:{port}"
        with contextlib.suppress(OSError):  # it has left: the library finds that out
            keep_alive(accepted)

    def _is_shaken(self, shaking: asyncio.Future[None], told: str) -> None:
        self._shaking = None
        log.debug("handshake done", client=self.peer, agreed_on=told)
        if self._let_in(self._host):
            if self._unheard:
                self._wire.drain(self.number)
            else:
                self._admit()
        if not shaking.done():
            shaking.set_result(None)

    def turn_away(self, reason: str) -> None:
        """See :class:`tideline.gateway.transport.admission.Guest`."""
        self._end(reason)
        self._leave(Close.CUT_OFF)

    def wait_unread(self) -> None:
        """See :class:`tideline.gateway.transport.admission.Guest`."""
        self._unheard = True

    def shown(self) -> None:
        """See :meth:`ServedConnection.shown`."""
        self._wire.shown(self.number)
        super().shown()

    # -- what the library has to say

    def hear(self, message: Message) -> None:
        """Deal with one message; after the end nothing matters."""
        kind, number, payload = message.kind, message.number, message.payload
        if kind == Kind.DIAL:
            self._transport.dial(self, number)  # also for what an ended one has still to send
        elif self._ended:
            return
        elif self._shaking is not None and kind == Kind.SHAKEN:
            self._is_shaken(self._shaking, _text(payload))
        elif self._shaking is not None and kind == Kind.ENDED:
            self._end(_text(payload))
        elif kind == Kind.FRAME:
            self._take(number, payload)
        elif kind == Kind.ANSWER:
            self._deal(self._sinks.pop(number).sink, payload)
        elif kind == Kind.SLOT_ANSWER:
            fill = partial(self._rewrite, number, message.aux >> 16, message.aux & 0xFFFF)
            self._deal(fill, payload)
        elif kind == Kind.LOST:
            self._sinks.pop(number).lost(_text(payload))
        elif kind == Kind.DROPPED:
            self._broker_has_left(_text(payload))
        elif kind == Kind.LEFT:
            # Behind what is begun in this pass of the loop. What is still to be decoded is not.
            asyncio.get_running_loop().call_soon(self.turn_away, "the client disconnected")
        elif kind == Kind.LONG_FIRST:
            if not self._refuses_first(number, payload):
                self._admit()
        elif kind == Kind.ENDED:
            self._has_ended(Cause(message.aux), _text(payload))

    def _take(self, slot: int, frame: bytes) -> None:
        """One request, in its slot; none that came behind it is begun before this one has."""
        self._slot = slot
        if self._young and len(frame) > FIRST_LOOKED_AT and self._refuses_first(len(frame), frame):
            return
        if self._begin(frame) is False:
            self._admit()

    def _refuses_first(self, size: int, head: bytes) -> bool:
        reason = self._door.check_first(self, size, head)
        if reason is not None:
            self.close(f"the client sent {reason}")
        return reason is not None

    def _rewrite(self, slot: int, key: int, version: int, told: bytes) -> None:
        """The answer to a request that passed in the library, behind its client's id."""
        size = int.from_bytes(told[:2], "big", signed=True)
        end = 2 + max(size, 0)
        self._asker.client_id = None if size < 0 else told[2:end].decode()
        answer = self._rewriter(told[end:], key, version, self._asker)
        self._wire.fill(self.number, slot, answer)

    def _deal(self, sink: Any, answer: bytes) -> None:
        try:
            sink(answer)
        except MalformedFrame as error:
            self._broker_fails(f"the broker sent {error}")
        except Exception as error:
            log.exception("an answer cannot be dealt with")
            self._broker_fails(f"its answer cannot be dealt with: {error}")

    def _broker_has_left(self, reason: str) -> None:
        if self._authenticated:
            # Behind what was begun, with what it had answered, in this pass of the loop.
            asyncio.get_running_loop().call_soon(self._broker_fails, reason)
        else:
            self._broker_is_gone()
            self._dropped(reason)

    def _broker_fails(self, reason: str) -> None:
        self._broker_is_gone()
        host, port = self._at.address
        self.close(f"broker {host}:{port}: {reason}")

    def _has_ended(self, cause: Cause, reason: str) -> None:
        if cause == Cause.CLIENT:
            self._end(reason)
        elif cause in (Cause.BROKER, Cause.ANSWER):
            if cause == Cause.ANSWER:
                BOUND_REACHED.labels("answer").inc()
                log.error("upstream.answer_refused", reason=reason)
            self._broker_fails(reason)
        else:
            if cause == Cause.DEFECT:
                log.error("the native transport has failed in a step", client=self.peer)
            self.close(reason)

    def is_gone(self) -> None:
        """Both sockets are closed."""
        self._end("the client disconnected")
        if not self.gone.done():
            self.gone.set_result(None)

    # -- the broker's side

    async def join(self, number: int) -> None:
        """Open the connection to the broker that is wanted by ``number``."""
        host, port = self._at.address
        clock = asyncio.get_running_loop().time
        until = clock() + CONNECT_TIMEOUT_S
        try:
            async with asyncio.timeout_at(until), self._transport.dialling.turn((host, port)):
                made = await _connected(host, port)
            keep_alive(made)
            name = host if self._transport.encrypt_to_brokers() else None
            self._wire.joined(self.number, number, made, name, max(until - clock(), 0.0))
        except (OSError, TimeoutError, UnicodeError) as error:  # of a name, too
            reason = str(error) or f"no connection within {CONNECT_TIMEOUT_S:.0f} s"
            self._wire.not_joined(self.number, number, reason)
        except Exception as error:  # the library waits for it, and the client would without end
            log.exception("no connection to the broker can be opened")
            self._wire.not_joined(self.number, number, f"no connection can be opened: {error}")

    def _send_now(self, frame: bytes, expected: Expected | None) -> None:
        if expected is None:
            self._wire.forward(self.number, 0, frame)
            return
        self._tokens += 1
        self._sinks[self._tokens] = expected
        # If it has ended there, that is told next, and fails whatever waits.
        self._wire.forward(self.number, self._tokens, frame, own=expected.own)

    def _has_broker(self) -> bool:
        return self._wire.is_joined(self.number)

    # -- who the client is

    def _authenticates(self) -> None:
        """All that comes is Python's until the login, or its renewal, is complete."""
        super()._authenticates()
        self._wire.bind(self.number)
        self._hide()

    def _hide(self) -> None:
        self._wire.hide(self.number)

    def _logged_in(self, login: Login) -> None:
        super()._logged_in(login)
        self._wire.shown(self.number)
        self._forget_lapse()
        if login.expires_at is not None:
            # What it sends then is refused, unless that is a new login.
            loop = asyncio.get_running_loop()
            self._lapsing = loop.call_at(login.expires_at, self._hide)

    def _forget_lapse(self) -> None:
        if self._lapsing is not None:
            self._lapsing.cancel()
            self._lapsing = None

    def _login_answered(self) -> None:
        self._admit()

    # -- its requests

    def _admit(self) -> None:
        if self._login is None or not self._login.waits:  # else its answer goes on
            self._wire.begun(self.number)

    def _open_slot(self) -> int:
        return self._slot

    def _fill(self, slot: int, response: bytes | None) -> None:
        self._wire.fill(self.number, slot, response)

    def _pass_unanswered(self, frame: bytes) -> None:
        self._send(frame, None)
        self._wire.fill(self.number, self._slot, None)

    def _muting_changed(self) -> None:
        self._wire.mute(self.number, self._is_muted)

    def state(self, kind: type[S]) -> S:
        """See :class:`tideline.gateway.context.ClientConnection`."""
        is_new = kind not in self._states
        state = super().state(kind)
        if is_new and isinstance(state, FollowedSessions):
            state.follow(partial(self._wire.session, self.number))
        return state

    # -- the end

    @property
    def is_idle(self) -> bool:
        """See :attr:`ServedConnection.is_idle`."""
        return not self._tasks and (not self.number or self._wire.is_idle(self.number))

    def drain(self) -> None:
        """See :meth:`ServedConnection.drain`."""
        self._draining = True
        self._stop_muting()
        self._wire.drain(self.number)

    def close(self, reason: str, about: Mapping[str, object] | None = None) -> None:
        """See :meth:`ServedConnection.close`."""
        if not self._ended:
            self._door.tell_closed(about or {"client": self.peer}, reason)
            self._end(reason)
        self._leave(Close.FLUSH)

    def hand_over(self, reason: str) -> None:
        """See :meth:`ServedConnection.hand_over`."""
        if self._ended or not self.number:
            self.close(reason)
            return
        log.info("connection handed over", client=self.peer, reason=reason)
        self._end(reason)
        self._leave(Close.HAND_OVER)

    def _leave(self, how: Close) -> None:
        if self.number:
            self._wire.close(self.number, how)
        elif self._unread is not None:
            self._unread.close()
            self._unread = None
            self.is_gone()

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._forget_lapse()
        shaking, self._shaking = self._shaking, None
        if shaking is not None and not shaking.done():
            shaking.set_exception(OSError(reason))
            shaking.exception()  # who was cancelled does not look
        self._end_served(reason)
        self._sinks.clear()


async def _connected(host: str, port: int) -> socket.socket:
    """Raises ``OSError``."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return await start_connection(found)


def _text(payload: bytes) -> str:
    return payload.decode("utf-8", "replace")
