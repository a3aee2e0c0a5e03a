"""What becomes of a client's requests.

The transport hands over whole frames in their order, each with its place in the order of the
answers, and takes what goes to the broker and what is the answer in a place. What lies between is
here: which requests are offered, which pass, what a handler sees, and what a refusal says.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import structlog
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode

from tideline.background import spawn
from tideline.domain.sasl import ANONYMOUS, SASL_APIS, Identity
from tideline.gateway.context import (
    ApiKey,
    ConnectionRegistry,
    Handler,
    Passing,
    RequestContext,
    Rules,
    words_of,
)
from tideline.gateway.metrics import (
    BOUND_REACHED,
    CONNECTIONS,
    UPSTREAM_DROPPED,
    handling_seconds,
    requests_handled,
    requests_passed,
)
from tideline.gateway.room import Room
from tideline.gateway.transport.addresses import Asker, ResponseRewriter
from tideline.gateway.transport.admission import Door
from tideline.gateway.transport.broker import Broker, Expected
from tideline.gateway.transport.login import LOGIN_S, Login, versions_nobody_has
from tideline.kafka.errors import (
    KafkaUnavailable,
    MalformedFrame,
    TooManyElements,
    UnsupportedVersion,
)
from tideline.kafka.protocol import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    fetch_within,
    parse_header,
    produce_acks,
)
from tideline.kafka.security import KafkaSecurity
from tideline.kafka.tls import TlsFiles
from tideline.kafka.wire import Limits
from tideline.settings import GatewaySettings
from tideline.subject import begin

_BARRIER_CORRELATION = -2_000_000_000
MAX_INT32 = 2**31 - 1

TRANSACTIONS = 1
"""``FindCoordinatorRequest.CoordinatorType``."""

S = TypeVar("S")
log = structlog.get_logger()


class ServedConnection(ABC):
    """A client's connection as handlers see it
    (:class:`tideline.gateway.context.ClientConnection`), as the door does
    (:class:`tideline.gateway.transport.admission.Guest`), and as the server ends it."""

    def __init__(
        self,
        settings: GatewaySettings,
        rules: Rules,
        rewriter: ResponseRewriter,
        connections: ConnectionRegistry,
        door: Door,
        broker_is_gone: Callable[[], None],
        broker: Broker,
    ) -> None:
        """``broker_is_gone`` hears that the broker ended a connection, or took none."""
        self._settings = settings
        self._rules = rules
        self._rewriter = rewriter
        self._connections = connections
        self._door = door
        self._broker_is_gone = broker_is_gone
        self._at = broker
        self._asker = Asker()
        self._login = Login() if settings.gateway_security_protocol.is_sasl else None
        self._login_bound: asyncio.TimerHandle | None = None
        # Dicts for sets: in the order of their coming, so that an end is the same each time.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._barriers: dict[asyncio.Future[None], None] = {}
        self._forwarded: dict[asyncio.Future[bytes], None] = {}
        self._asked: dict[asyncio.Future[bytes], None] = {}
        """Questions of the gateway's own, which no client waits for."""
        self._states: dict[type[Any], Any] = {}
        self._authenticated = False
        """The broker knows who the client is by this connection alone."""
        self._draining = False
        self._ended = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when both sides have ended it, or one has cut it off."""
        self._counted = False
        self._young = True
        """It has not shown itself yet."""
        self.peer = "?"
        self._muted_until = 0.0
        self._unmuting: asyncio.TimerHandle | None = None

    # -- what a transport has

    @abstractmethod
    def adopt(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        """Serve the client that was accepted, if the door lets it in. The socket is its own from
        now on."""

    @abstractmethod
    async def shake(
        self, accepted: socket.socket, address: tuple[Any, ...], within_s: float
    ) -> None:
        """Shake hands with the client that was accepted, and return once that is done; then it is
        served. Raises ``OSError`` if it fails. The socket is its own from the first step on."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Nothing is owed to this client."""

    @abstractmethod
    def drain(self) -> None:
        """Take no further requests; what has arrived is still answered, muted or not: the client
        would wait for it in vain."""

    @abstractmethod
    def close(self, reason: str, about: Mapping[str, object] | None = None) -> None:
        """End both sides. Answers that were written are still sent, for a while. ``about``: the
        request that is the reason, for the log."""

    @abstractmethod
    def hand_over(self, reason: str) -> None:
        """End a connection that nothing is owed to so that its client loses no answer: what it has
        sent meanwhile is taken and not served, or the kernel would cut off what it has not read
        yet. It ends its side when it sees that ours has ended, or is made to."""

    @abstractmethod
    def _admit(self) -> None:
        """What came behind the request that was begun last may begin."""

    @abstractmethod
    def _open_slot(self) -> int:
        """The number of the answer to the request that is begun, in the order of them."""

    @abstractmethod
    def _fill(self, slot: int, response: bytes | None) -> None:
        """Its answer; ``None``: there is none."""

    @abstractmethod
    def _send_now(self, frame: bytes, expected: Expected | None) -> None:
        """Queue a request upstream; ``expected`` is ``None`` if Kafka does not answer it."""

    @abstractmethod
    def _pass_unanswered(self, frame: bytes) -> None:
        """The same, of the request that is begun, which has no place then."""

    @abstractmethod
    def _has_broker(self) -> bool:
        """Whether there is a connection to the broker, or one is being opened."""

    @abstractmethod
    def _muting_changed(self) -> None:
        """The client is muted now, or not any more (:attr:`_is_muted`)."""

    def _authenticates(self) -> None:
        """From now on :attr:`_authenticated`."""
        self._authenticated = True

    @abstractmethod
    def _login_answered(self) -> None:
        """The broker has answered a request of a login, for which what came behind it waited."""

    # -- who comes and goes

    def _let_in(self, host: str) -> bool:
        """Whether the new connection may stay; else it was turned away."""
        if not self._door.let_in(self, host):
            return False
        self._connections.add(self)
        CONNECTIONS.inc()
        self._counted = True
        if self._login is not None:
            self._bound_login()
        return True

    @abstractmethod
    def turn_away(self, reason: str) -> None:
        """See :class:`tideline.gateway.transport.admission.Guest`."""

    @abstractmethod
    def wait_unread(self) -> None:
        """See :class:`tideline.gateway.transport.admission.Guest`."""

    def shown(self) -> None:
        """What connected is a client: the door's bounds for strangers hold no longer."""
        self._young = False
        self._door.show(self)

    @property
    def has_ended(self) -> bool:
        """It serves nobody any more."""
        return self._ended

    @property
    def broker_id(self) -> int:
        """See :class:`tideline.gateway.context.ClientConnection`."""
        return self._at.node

    @property
    def identity(self) -> Identity:
        """See :class:`tideline.gateway.context.ClientConnection`."""
        return ANONYMOUS if self._login is None else self._login.identity or ANONYMOUS

    def _end_served(self, reason: str) -> None:
        """Nothing is waited for any more, and nobody counts it."""
        self._unbound_login()
        self._stop_muting()
        for task in tuple(self._tasks):
            task.cancel()
        for answer in (*self._forwarded, *self._asked):
            fail(answer, reason)
        self._reach_barriers()
        self._connections.discard(self)
        self._door.leave(self)
        if self._counted:
            CONNECTIONS.dec()

    def _dropped(self, reason: str) -> None:
        """The broker has ended its connection, and the client keeps its own."""
        UPSTREAM_DROPPED.inc()
        log.debug("connection to the broker dropped", client=self.peer, reason=reason)

    # -- its requests

    def _begin(self, frame: bytes) -> bool | None:
        """Begin one request; whether a handler is given it, which goes on admitting. ``None``: it
        ended the connection."""
        try:
            return self._start(frame)
        except (MalformedFrame, UnsupportedVersion) as error:
            self._refuse(error, frame)
        except Exception:
            # Its client would wait for it, and take the next answer for this one's.
            log.exception("a request cannot be begun", **self._words(frame))
            self.close("a request failed")
        return None

    def _start(self, frame: bytes) -> bool:
        """Begin one request; whether a handler is given it, which goes on admitting."""
        header = parse_header(frame)
        key, version = header.api_key, header.api_version
        self._asker.client_id = header.client_id
        if (login := self._login) is not None:
            if (why := login.refuses(key, asyncio.get_running_loop().time())) is not None:
                self.close(why)
                return False
            if key in SASL_APIS:
                self._relay_login(login, frame, header)
                return False
        if key == ApiKey.FIND_COORDINATOR:
            self._asker.of_transactions = _asks_of_transactions(frame, header)
        if not self._rewriter.offers(key, version):
            if key != ApiKey.API_VERSIONS:
                # As a broker does: the schema of an answer that said so is not known either.
                raise UnsupportedVersion(f"version {version} of API {key} is not offered here")
            if login is None or login.is_complete:
                frame = _as_version_0(frame, header)
            else:
                frame = versions_nobody_has(frame, header)
            version = 0
        if self._young and login is None:
            self.shown()
        rule = self._rules.get(key)
        if rule is not None and rule.is_due() and not rule.passes(header, frame, self):
            slot = self._open_slot()
            context = RequestContext(header, frame, self)
            requests_handled(key).inc()
            if context.is_long():
                self._run(self._decode_and_handle(context, rule.handler, slot), "long-request")
            else:
                self._run(self._handle(rule.handler, context, slot), "request")
                asyncio.get_running_loop().call_soon(self._admit)
            return True
        requests_passed(key).inc()
        if key in SASL_APIS:
            self._authenticates()
        if key == ApiKey.PRODUCE and produce_acks(frame, header) == 0:
            self._pass_unanswered(frame)
            return False
        slot = self._open_slot()
        refused = version != header.api_version

        def fill(response: bytes) -> None:
            answer = self._rewriter(response, key, version, self._asker)
            self._fill(slot, _version_refused(answer) if refused else answer)

        self._ask(frame, key, version, Expected(header.correlation_id, fill))
        return False

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = spawn(work, name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _decode_and_handle(
        self, context: RequestContext, handler: Handler, slot: int
    ) -> None:
        """What arrives behind it waits for its being decoded, too."""
        try:
            await context.decode()
        except (MalformedFrame, UnsupportedVersion) as error:
            self._refuse(error, context.frame)
            return
        self._run(self._handle(handler, context, slot), "request")
        asyncio.get_running_loop().call_soon(self._admit)

    async def _handle(self, handler: Handler, context: RequestContext, slot: int) -> None:
        begin(context)
        clock = asyncio.get_running_loop().time
        began, outcome = clock(), "given_up"
        try:
            response = await handler(context)
        except KafkaUnavailable as error:
            outcome = "broker_away"
            self.close(str(error))
        except (MalformedFrame, UnsupportedVersion) as error:
            outcome = "refused"
            self._refuse(error, context.frame)
        except Exception:
            outcome = "failed"
            log.exception("request failed", **context.words())
            self.close("a request failed")
        else:
            outcome = "answered"
            self._fill(slot, response)
        finally:
            handling_seconds(context.header.api_key, outcome).observe(clock() - began)

    def _refuse(self, error: Exception, frame: bytes) -> None:
        if isinstance(error, TooManyElements):
            BOUND_REACHED.labels("elements").inc()
        reason = f"the client sent a request that cannot be served: {error}"
        self.close(reason, self._words(frame))

    def _words(self, frame: bytes) -> Mapping[str, object]:
        try:
            return words_of(parse_header(frame), self.peer)
        except MalformedFrame:
            return {"client": self.peer}

    # -- what handlers ask for

    def forward(self, frame: bytes, api_key: int, api_version: int) -> Awaitable[bytes]:
        """See :class:`tideline.gateway.context.ClientConnection`."""
        return self._queue(frame, api_key, api_version, self._forwarded)

    def ask(self, frame: bytes, api_key: int, api_version: int) -> Awaitable[bytes]:
        """See :class:`tideline.gateway.context.ClientConnection`."""
        return self._queue(frame, api_key, api_version, self._asked)

    def _queue(
        self,
        frame: bytes,
        api_key: int,
        api_version: int,
        waiting: dict[asyncio.Future[bytes], None],
    ) -> Awaitable[bytes]:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._ended:
            fail(answer, "the client's connection has ended")
            return answer
        waiting[answer] = None
        answer.add_done_callback(waiting.pop)

        def deliver(response: bytes) -> None:
            rewritten = self._rewriter(response, api_key, api_version, self._asker)
            if not answer.done():
                answer.set_result(rewritten)

        correlation = int.from_bytes(frame[4:8], "big", signed=True)
        own = waiting is self._asked
        expected = Expected(correlation, deliver, own=own, lost=partial(fail, answer))
        self._ask(frame, api_key, api_version, expected)
        return answer

    def _ask(self, frame: bytes, api_key: int, api_version: int, expected: Expected) -> None:
        """Queue a request upstream. A fetch asks for no more than may be taken: who is disconnected
        for an answer that is too long would ask for the same again."""
        if api_key == ApiKey.FETCH:
            most = self._settings.gateway_max_answer_bytes // 4 * 3
            frame = fetch_within(frame, api_version, min(most, MAX_INT32))
        self._send(frame, expected)

    def _send(self, frame: bytes, expected: Expected | None) -> None:
        if self._login is not None and not self._login.is_complete and self._login.identity:
            self._login.held.append((frame, expected))
        else:
            self._send_now(frame, expected)

    def forward_unanswered(self, frame: bytes) -> None:
        """See :class:`tideline.gateway.context.ClientConnection`."""
        if not self._ended:
            self._send(frame, None)

    def drain_barrier(self) -> Awaitable[None]:
        """See :class:`tideline.gateway.context.ClientConnection`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        login = self._login
        nothing_sent = login is not None and (login.identity is None or login.owes_nothing)
        if self._ended or nothing_sent or not self._has_broker():
            done.set_result(None)
            return done
        self._barriers[done] = None
        done.add_done_callback(self._barriers.pop)

        def reached(_: object) -> None:
            if not done.done():
                done.set_result(None)

        probe = encode_request(ApiVersionsRequest(), _BARRIER_CORRELATION, "tideline-gateway")
        self._send(probe, Expected(_BARRIER_CORRELATION, reached, own=True, lost=reached))
        return done

    def _reach_barriers(self) -> None:
        for barrier in tuple(self._barriers):
            if not barrier.done():
                barrier.set_result(None)

    def state(self, kind: type[S]) -> S:
        """See :class:`tideline.gateway.context.ClientConnection`."""
        if kind not in self._states:
            self._states[kind] = kind()
        return cast(S, self._states[kind])

    @property
    def _is_muted(self) -> bool:
        return self._unmuting is not None

    def mute(self, seconds: float) -> None:
        """See :class:`tideline.gateway.context.ClientConnection`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        if self._ended or self._draining or until <= self._muted_until:
            return
        self._muted_until = until
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._unmuting = loop.call_at(until, self._unmute)
        self._muting_changed()

    def _stop_muting(self) -> None:
        """Without a word to the transport, which drains or ends."""
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None

    def _unmute(self) -> None:
        self._unmuting = None
        self._muting_changed()

    # -- who the client is

    def _relay_login(self, login: Login, frame: bytes, header: RequestHeader) -> None:
        slot = self._open_slot()
        sent = login.sends(frame, header, asyncio.get_running_loop().time())
        requests_passed(header.api_key).inc()
        self._authenticates()
        if self._login_bound is None:
            self._bound_login()

        def fill(response: bytes) -> None:
            answer, why = login.answered(response, header)
            self._fill(slot, answer)
            if why is not None:
                self.close(why)
            elif login.is_complete:
                self._logged_in(login)
            self._login_answered()

        self._send_now(sent, Expected(header.correlation_id, fill))

    def _logged_in(self, login: Login) -> None:
        self._unbound_login()
        if self._young:
            self.shown()
        held, login.held = login.held, []
        for frame, expected in held:
            self._send_now(frame, expected)

    def _bound_login(self) -> None:
        self._login_bound = asyncio.get_running_loop().call_later(
            LOGIN_S, self.close, f"its login was not complete within {LOGIN_S:.0f} s"
        )

    def _unbound_login(self) -> None:
        if self._login_bound is not None:
            self._login_bound.cancel()
            self._login_bound = None


class Transport(Protocol):
    """What has the sockets of one gateway's clients, and of their brokers."""

    def encrypt_clients(self, tls: ssl.SSLContext, files: TlsFiles) -> None:
        """Connections with clients from now on are encrypted as by ``tls``, which was made of
        ``files``. Raises :class:`~tideline.errors.UsageError`, and then it stays as it was."""

    def start(self) -> None:
        """Begin. Raises ``OSError`` if there can be no thread."""

    def connection(
        self,
        settings: GatewaySettings,
        rules: Rules,
        rewriter: ResponseRewriter,
        connections: ConnectionRegistry,
        door: Door,
        broker_is_gone: Callable[[], None],
        broker: Broker,
    ) -> ServedConnection:
        """What serves the client that is accepted next; see :class:`ServedConnection`."""

    async def close(self) -> None:
        """End every connection, after what is written was sent, for a while."""


MakesTransport = Callable[
    [Limits, Rules, ResponseRewriter, Room, Passing | None, KafkaSecurity], Transport
]
"""Given the bounds, the rules by which requests pass, what rewrites their answers, the memory that
the process has, what is tracked, and the security of the broker's listener."""


def fail(answer: asyncio.Future[bytes], reason: str) -> None:
    """Nobody will answer it."""
    if not answer.done():
        answer.set_exception(KafkaUnavailable(reason))
        answer.exception()  # a handler that was cancelled does not look


def _asks_of_transactions(frame: bytes, header: RequestHeader) -> bool:
    request: Any = decode_request(frame, header)
    return int(getattr(request, "key_type", 0)) == TRANSACTIONS


def _as_version_0(frame: bytes, header: RequestHeader) -> bytes:
    """An ApiVersions request that every broker knows, in the place of one that is too new."""
    return encode_request(ApiVersionsRequest(), header.correlation_id, header.client_id)


def _version_refused(frame: bytes) -> bytes:
    """UNSUPPORTED_VERSION with the versions of this API alone, as Kafka has it (KIP-511): the
    client asks again. One that is told all others here goes by them, and by no features."""
    answer: Any = decode_response(frame, ApiKey.API_VERSIONS, 0)
    own = tuple(api for api in answer.api_keys if api.api_key == ApiKey.API_VERSIONS)
    refused = replace(answer, error_code=ErrorCode.unsupported_version, api_keys=own)
    return encode_response(refused, int.from_bytes(frame[:4], "big", signed=True))
