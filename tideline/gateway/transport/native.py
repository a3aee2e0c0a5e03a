"""A transport whose pass path is native (docs/decisions/0034-a-native-pass-path.md). A prototype:
only benchmarks and tests use it.

What the library does not pass comes here as a frame in its slot, and goes the way that it goes in
:mod:`tideline.gateway.transport.connection`: to a handler, or to the broker with its answer
rewritten. Plain connections without a login alone.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, cast
from uuid import UUID

import structlog

from tideline.background import spawn
from tideline.domain.sasl import ANONYMOUS, Identity
from tideline.gateway.context import ApiKey, ConnectionRegistry, Handler, RequestContext, Rules
from tideline.gateway.transport.addresses import Asker, ResponseRewriter
from tideline.gateway.transport.upstream import Broker
from tideline.kafka.errors import KafkaUnavailable, MalformedFrame, UnsupportedVersion
from tideline.kafka.protocol import parse_header, produce_acks
from tideline.kafka.wire import Kind, Message, Treatment, Wire, socket_address

BY_TOPICS = frozenset(
    {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH}
)
NEVER_NATIVE = frozenset(
    {ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER,
     ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE, 17, 36}
)  # fmt: skip
"""Answers that are rewritten, and logins."""

S = TypeVar("S")
log = structlog.get_logger()


def treatments(rules: Rules, offered: Iterable[int]) -> dict[int, Treatment]:
    """What becomes of each API as long as the rules say of themselves what they say now."""
    found = {}
    for key in offered:
        rule = rules.get(key)
        if key in NEVER_NATIVE:
            found[key] = Treatment.PYTHON
        elif rule is None or not rule.is_due():
            found[key] = Treatment.PASS
        else:
            found[key] = Treatment.PASS_BY_TOPICS if key in BY_TOPICS else Treatment.PYTHON
    return found


class NativeTransport:
    """The event loop's side of one engine."""

    def __init__(
        self,
        wire: Wire,
        rules: Rules,
        rewriter: ResponseRewriter,
        connections: ConnectionRegistry,
        broker: Broker,
        *,
        threaded: bool,
    ) -> None:
        """``threaded``: a thread of the library's runs it; else the event loop does."""
        self.wire, self.rules, self.rewriter = wire, rules, rewriter
        self.connections, self.broker = connections, broker
        self._address = socket_address(*broker.address)
        self._open: dict[int, NativeConnection] = {}
        self._threaded = threaded

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self.wire.wake_fd, self.taken)
        if self._threaded:
            self.wire.start()
        else:
            loop.add_reader(self.wire.poll_fd, self._turn)

    def show(self, names: Iterable[str], ids: Iterable[UUID]) -> None:
        """From now on these are tracked, and the rules are due as they are now."""
        offered = self.rewriter.offered
        self.wire.table(treatments(self.rules, offered), offered, names, ids)

    def adopt(self, client: socket.socket, address: tuple[Any, ...]) -> None:
        """Serve one client, whose socket is the library's from now on."""
        number = self.wire.adopt(client, self._address)
        connection = NativeConnection(self, number, f"{address[0]}:{address[1]}")
        self._open[number] = connection
        self.connections.add(connection)

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.wire.wake_fd)
        loop.remove_reader(self.wire.poll_fd)
        self.wire.free()
        for connection in tuple(self._open.values()):
            self._ended(connection, "the gateway stops")

    def _turn(self) -> None:
        self.wire.turn()
        self.taken()

    def taken(self) -> None:
        """Deal with what the library has for Python."""
        for message in self.wire.take():
            connection = self._open.get(message.connection)
            if connection is not None:
                self._deal(connection, message)

    def _deal(self, connection: NativeConnection, message: Message) -> None:
        if message.kind == Kind.FRAME:
            connection.start(message.number, message.payload)
        elif message.kind == Kind.ANSWER:
            connection.answered(message.number, message.payload)
        elif message.kind == Kind.SLOT_ANSWER:
            connection.rewrite(message.number, message.aux >> 16, message.aux & 0xFFFF,
                               message.payload)  # fmt: skip
        elif message.kind == Kind.REACHED:
            connection.reached(message.number)
        else:
            self._ended(connection, message.payload.decode("utf-8", "replace"))

    def _ended(self, connection: NativeConnection, reason: str) -> None:
        del self._open[connection.number]
        self.connections.discard(connection)
        connection.ended(reason)


class NativeConnection:
    """One client's, as handlers see it: see
    :class:`tideline.gateway.context.ClientConnection`."""

    def __init__(self, transport: NativeTransport, number: int, peer: str) -> None:
        self._transport, self._wire = transport, transport.wire
        self.number, self.peer = number, peer
        self._asker = Asker()
        self._sinks: dict[int, Callable[[bytes], None]] = {}
        """By token: what becomes of an answer that is due."""
        self._waiting: dict[asyncio.Future[bytes], None] = {}
        self._barriers: dict[int, asyncio.Future[None]] = {}
        self._tokens = 0
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._states: dict[type[Any], Any] = {}
        self._over = False
        self._unmuting: asyncio.TimerHandle | None = None

    @property
    def identity(self) -> Identity:
        return ANONYMOUS

    @property
    def broker_id(self) -> int:
        return self._transport.broker.node

    # -- what the library has for Python

    def start(self, slot: int, frame: bytes) -> None:
        """One request, in its slot; none that came behind it is begun before this one has."""
        try:
            self._start(slot, frame)
        except (MalformedFrame, UnsupportedVersion) as error:
            self.close(f"the client sent a request that cannot be served: {error}")
        except Exception:
            log.exception("a request cannot be begun", client=self.peer)
            self.close("a request failed")

    def _start(self, slot: int, frame: bytes) -> None:
        header = parse_header(frame)
        key, version = header.api_key, header.api_version
        self._asker.client_id = header.client_id
        if not self._transport.rewriter.offers(key, version):
            raise UnsupportedVersion(f"version {version} of API {key} is not offered here")
        rule = self._transport.rules.get(key)
        if rule is not None and rule.is_due() and not rule.passes(header, frame, self):
            context = RequestContext(header, frame, self)
            task = spawn(self._handle(rule.handler, context, slot), "request")
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)
            asyncio.get_running_loop().call_soon(self._wire.begun, self.number)
            return
        if key == ApiKey.PRODUCE and produce_acks(frame, header) == 0:
            self._wire.forward(self.number, 0, frame)
            self._wire.fill(self.number, slot, None)
        else:
            self._send(frame, lambda answer: self.rewrite(slot, key, version, answer))
        self._wire.begun(self.number)

    async def _handle(self, handler: Handler, context: RequestContext, slot: int) -> None:
        try:
            answer = await handler(context)
        except KafkaUnavailable as error:
            self.close(str(error))
        except (MalformedFrame, UnsupportedVersion) as error:
            self.close(f"the client sent a request that cannot be served: {error}")
        except Exception:
            log.exception("request failed", **context.words())
            self.close("a request failed")
        else:
            self._wire.fill(self.number, slot, answer)

    def rewrite(self, slot: int, key: int, version: int, answer: bytes) -> None:
        """The answer to a request that went as it came."""
        try:
            answer = self._transport.rewriter(answer, key, version, self._asker)
        except MalformedFrame as error:
            self.close(f"the broker sent {error}")
            return
        self._wire.fill(self.number, slot, answer)

    def answered(self, token: int, answer: bytes) -> None:
        sink = self._sinks.pop(token, None)
        if sink is not None:
            sink(answer)

    def reached(self, token: int) -> None:
        done = self._barriers.pop(token, None)
        if done is not None and not done.done():
            done.set_result(None)

    def ended(self, reason: str) -> None:
        """Neither side is there any more."""
        self._over = True
        log.debug("connection ended", client=self.peer, reason=reason)
        if self._unmuting is not None:
            self._unmuting.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        self._sinks.clear()
        for answer in tuple(self._waiting):
            _fail(answer, reason)
        for token in tuple(self._barriers):
            self.reached(token)

    # -- what a handler asks for

    def _send(self, frame: bytes, sink: Callable[[bytes], None]) -> bool:
        self._tokens += 1
        self._sinks[self._tokens] = sink
        if self._wire.forward(self.number, self._tokens, frame):
            return True
        del self._sinks[self._tokens]
        return False

    def forward(self, frame: bytes, api_key: int, api_version: int) -> Awaitable[bytes]:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[answer] = None
        answer.add_done_callback(self._waiting.pop)

        def deliver(response: bytes) -> None:
            if answer.done():
                return
            try:
                made = self._transport.rewriter(response, api_key, api_version, self._asker)
            except MalformedFrame as error:
                self.close(f"the broker sent {error}")
                return
            answer.set_result(made)

        if self._over or not self._send(frame, deliver):
            _fail(answer, "the client's connection has ended")
        return answer

    def ask(self, frame: bytes, api_key: int, api_version: int) -> Awaitable[bytes]:
        return self.forward(frame, api_key, api_version)

    def forward_unanswered(self, frame: bytes) -> None:
        self._wire.forward(self.number, 0, frame)

    def drain_barrier(self) -> Awaitable[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tokens += 1
        self._barriers[self._tokens] = done
        if self._over or not self._wire.barrier(self.number, self._tokens):
            self.reached(self._tokens)
        return done

    def mute(self, seconds: float) -> None:
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._wire.mute(self.number, True)
        loop = asyncio.get_running_loop()
        self._unmuting = loop.call_later(seconds, self._wire.mute, self.number, False)

    def close(self, reason: str) -> None:
        log.info("connection closed", client=self.peer, reason=reason)
        self._wire.close(self.number)

    def state(self, kind: type[S]) -> S:
        if kind not in self._states:
            self._states[kind] = kind()
        return cast(S, self._states[kind])


def _fail(answer: asyncio.Future[bytes], reason: str) -> None:
    if not answer.done():
        answer.set_exception(KafkaUnavailable(reason))
        answer.exception()  # a handler that was cancelled does not look
