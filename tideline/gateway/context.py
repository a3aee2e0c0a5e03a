"""Between transport and handlers: everything that either knows of the other.

The transport is given the routing table (:data:`Rules`): which handler looks into which API, and
whether it has to at present. It hands a handler one :class:`RequestContext`, whose
:class:`ClientConnection` is all that the handler sees of sockets, and gets the response frame
back. It knows nothing of topics; what a handler needs beside the request is the handler's own,
given to its constructor. Whatever keeps this interface can take the transport's place.

The order that a transport has to keep: requests of one connection are begun in the order of their
arrival, each up to its first ``await`` before the next one is looked at, and one that takes long to
decode is decoded before that; answers leave in the order of the requests; what is forwarded reaches
the broker in the order of the calls.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable
from uuid import UUID

from kio.static.protocol import RequestPayload, ResponsePayload

from tideline.domain.api_answers import API_RULES
from tideline.domain.foreign_text import MOST_OF_A_NAME, quoted
from tideline.domain.sasl import Identity
from tideline.gateway.listeners import Listeners
from tideline.gateway.metrics import EXAMINATION_SECONDS
from tideline.gateway.turn import TurnBudget
from tideline.kafka.decoding import (
    AT_ONCE_ELEMENTS,
    AT_ONCE_PARTITIONS,
    beside_the_loop,
    decoded_response,
)
from tideline.kafka.errors import KafkaUnavailable, MalformedFrame, TooManyElements
from tideline.kafka.named_topics import WalkedProduce, walked_produce
from tideline.kafka.native_look import LookedPart, looked_produce
from tideline.kafka.protocol import (
    RequestHeader,
    decode_request,
    encode_request,
    encode_response,
)

S = TypeVar("S")
LOOKS_OF_A_TURN = TurnBudget(0.008)
"""Into Produces as a whole: 80 MB of ordinary ones, two of the worst; then batch by batch, with a
thread for what is large."""
DRAIN_PATIENCE_S = 60.0
"""Longer than a Kafka client's request timeout: what is still unanswered then has no client."""


class ApiKey(IntEnum):
    """The APIs that the gateway knows by name (``org.apache.kafka…protocol.ApiKeys``)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    CREATE_PARTITIONS = 37
    INCREMENTAL_ALTER_CONFIGS = 44
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79


class ClientConnection(Protocol):
    """One client's connection and its one upstream connection to a broker: the paired one, or one
    whose gateway is away."""

    @property
    def peer(self) -> str:
        """``host:port`` of the client."""

    @property
    def identity(self) -> Identity:
        """Who the client is. A handler of a SASL listener runs only once Kafka has authenticated
        the client, so that it always sees whom Kafka accepted; :data:`~tideline.domain.sasl.
        ANONYMOUS` of a listener without SASL. Its principal stays the same for the connection's
        life: who renews a login as somebody else is disconnected. Its name may come to be known by
        a renewal."""

    @property
    def broker_id(self) -> int:
        """Node id of that broker: who is asked where the client itself would ask."""

    def forward(self, frame: bytes, api_key: int, api_version: int) -> Awaitable[bytes]:
        """Queue a request upstream *now*, behind everything queued before; await its answer.

        The answer is the broker's with the brokers' addresses made the gateways'. The awaitable
        raises :class:`tideline.kafka.errors.KafkaUnavailable` when the broker is gone; the
        client's connection is closed then, as it would be by a dead broker. While the client
        renews its login what is queued waits for that, as the broker takes nothing else.
        """

    def ask(self, frame: bytes, api_key: int, api_version: int) -> Awaitable[bytes]:
        """As :meth:`forward`, of a question that is the gateway's own, about this client: nobody is
        owed its answer, so that the client keeps its connection when the broker is gone."""

    def forward_unanswered(self, frame: bytes) -> None:
        """Queue a request that Kafka does not answer (Produce with acks=0)."""

    def drain_barrier(self) -> Awaitable[None]:
        """Done when the broker has served everything that was queued upstream before this call.

        Kafka serves a connection one request at a time, so the answer to an ApiVersions request
        sent behind proves that appends of acks=0 are done too and that fetches have ended. Done
        at once without an upstream connection, and when the connection ends.
        """

    def mute(self, seconds: float) -> None:
        """Begin no further request of this client, and do not read it, for so long (KIP-219). What
        has begun goes on, and is answered."""

    def close(self, reason: str) -> None:
        """End it, both sides, without answering what is pending."""

    def state(self, kind: type[S]) -> S:
        """The connection's own object of ``kind``, made without arguments on first use: what a
        handler remembers of this client (its fetch sessions, for example)."""


class ConnectionRegistry:
    def __init__(self) -> None:
        self._open: dict[ClientConnection, None] = {}
        self._brokers: Counter[int] = Counter()

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(tuple(self._open))

    def __len__(self) -> int:
        return len(self._open)

    @property
    def brokers(self) -> Collection[int]:
        """Node ids of the brokers that they are joined to."""
        return tuple(self._brokers)

    def add(self, connection: ClientConnection) -> None:
        if connection not in self._open:
            self._open[connection] = None
            self._brokers[connection.broker_id] += 1

    def discard(self, connection: ClientConnection) -> None:
        if connection in self._open:
            del self._open[connection]
            node = connection.broker_id
            self._brokers[node] -= 1
            if not self._brokers[node]:
                del self._brokers[node]

    async def drain(self) -> None:
        """Everything that was sent to Kafka before now is done; who cannot say so is closed."""
        barriers = {
            asyncio.ensure_future(connection.drain_barrier()): connection for connection in self
        }
        if not barriers:
            return
        _, late = await asyncio.wait(barriers, timeout=DRAIN_PATIENCE_S)
        for barrier, connection in barriers.items():
            if barrier not in late:
                continue
            barrier.cancel()
            connection.close("its requests did not end before a topic had to be tracked")


def words_of(header: RequestHeader, peer: str) -> Mapping[str, object]:
    """What the log says of a request, by which its client's own log tells of it."""
    rule = API_RULES.get(header.api_key)
    return {
        "client": peer,
        "client_id": (header.client_id or "")[:MOST_OF_A_NAME],
        "correlation_id": header.correlation_id,
        "api": rule.name if rule is not None else header.api_key,
        "api_version": header.api_version,
    }


@dataclass(slots=True)
class RequestContext:
    """One request. Handlers start in the order of arrival on their connection; whatever must
    keep that order (decode, park, forward, append) is done before the first ``await``."""

    header: RequestHeader
    frame: bytes
    """The whole request without its length prefix."""
    connection: ClientConnection
    spent_elsewhere_s: float = 0.0
    """CPU that it has had elsewhere than in its handler: of other threads, and of the event loop
    before the handler began."""
    _decoded: RequestPayload | None = field(default=None, repr=False)
    _walked: WalkedProduce | None = field(default=None, repr=False)
    _looked: list[LookedPart] | None = field(default=None, repr=False)
    _was_looked_into: bool = False

    def words(self) -> Mapping[str, object]:
        """See :class:`tideline.subject.Subject`."""
        return words_of(self.header, self.connection.peer)

    def asked_by(self) -> str:
        """Who asks, for a record that people go by: what Kafka has authenticated, and where it
        comes from, before what the client says of itself."""
        connection, named = self.connection, self.header.client_id
        client_id = f"client id {quoted(named)}" if named else "no client id"
        return f"{connection.identity.in_words()} from {connection.peer}, {client_id}"

    def request(self) -> RequestPayload:
        """The decoded request. Raises as :func:`tideline.kafka.protocol.decode_request` does:
        let it pass, the connection is closed for it."""
        if self._decoded is None:
            self._decoded = decode_request(self.frame, self.header)
            # It may wait for long: one copy of its records will do.
            self._walked = self._looked = None
        return self._decoded

    def walked_produce(self) -> WalkedProduce | None:
        """What a Produce says, if it need not be decoded for that."""
        if self._walked is None and self._decoded is None:
            self._walked = walked_produce(self.frame, self.header)
        return self._walked

    def looked_produce(self) -> list[LookedPart] | None:
        """What a Produce says, and what the native library says of its batches."""
        if not self._was_looked_into and self._decoded is None:
            self._was_looked_into = True
            if not LOOKS_OF_A_TURN.is_spent:
                began = time.perf_counter()
                self._looked = looked_produce(self.frame, self.header)
                took = time.perf_counter() - began
                LOOKS_OF_A_TURN.spend(took)
                if self._looked is not None:
                    EXAMINATION_SECONDS.observe(took)
        return self._looked

    def is_long(self) -> bool:
        """Whether decoding it would hold the event loop up, so that :meth:`decode` has to be
        awaited before a handler is given it. Raises as :meth:`request` does."""
        if self._decoded is not None or len(self.frame) <= AT_ONCE_ELEMENTS:
            return False
        if self.header.api_key == ApiKey.PRODUCE and self._has_few_elements():
            return False
        try:
            self._decoded = decode_request(self.frame, self.header, AT_ONCE_ELEMENTS)
        except TooManyElements:
            return True
        return False

    def _has_few_elements(self) -> bool:
        """Of a Produce: whether it may be decoded at once, should that be needed after all."""
        looked = self.on_account(self.looked_produce)()
        return looked is not None or self.walked_produce() is not None

    async def decode(self) -> None:
        """Decode it beside the event loop. Raises as :meth:`request` does."""
        self._decoded = await self.beside_the_loop(decode_request, self.frame, self.header)

    async def beside_the_loop(self, work: Callable[..., S], *arguments: object) -> S:
        """As :func:`~tideline.kafka.decoding.beside_the_loop`, on the account of this request."""
        return await beside_the_loop(self.connection, self.on_account(partial(work, *arguments)))

    def on_account(self, work: Callable[[], S]) -> Callable[[], S]:
        """``work``, to be done outside of the handler, with its CPU counted as this request's."""

        def timed() -> S:
            began = time.thread_time()
            try:
                return work()
            finally:
                self.spent_elsewhere_s += time.thread_time() - began

        return timed

    def forward(self, frame: bytes | None = None) -> Awaitable[bytes]:
        """Queue this request (or ``frame``, one of the same API and version) upstream now; await
        the response frame, ready for the client."""
        return self.connection.forward(
            self.frame if frame is None else frame,
            self.header.api_key,
            self.header.api_version,
        )

    def forward_message(self, message: RequestPayload) -> Awaitable[ResponsePayload]:
        """Queue a message of any API upstream now; await its decoded response."""
        key, version = int(message.__api_key__), int(message.__version__)
        frame = encode_request(message, self.header.correlation_id, self.header.client_id)
        return self._decoded_answer(self.connection.forward(frame, key, version), key, version)

    def ask(self, message: RequestPayload) -> Awaitable[ResponsePayload]:
        """The same, of a question that is the gateway's own (see :meth:`ClientConnection.ask`)."""
        key, version = int(message.__api_key__), int(message.__version__)
        frame = encode_request(message, self.header.correlation_id, self.header.client_id)
        return self._decoded_answer(self.connection.ask(frame, key, version), key, version)

    def _decoded_answer(
        self, answer: Awaitable[bytes], key: int, version: int
    ) -> Awaitable[ResponsePayload]:
        async def decoded() -> ResponsePayload:
            response = await answer
            try:
                return await decoded_response(self.connection, response, key, version)
            except MalformedFrame as error:
                raise KafkaUnavailable(f"the broker answered nonsense: {error}") from error

        return decoded()

    def respond(self, message: ResponsePayload) -> bytes:
        """The response frame of this request."""
        return encode_response(message, self.header.correlation_id)

    async def respond_of(self, message: ResponsePayload, partitions: int) -> bytes:
        """The same, made beside the event loop if it is of many ``partitions``."""
        if partitions > AT_ONCE_PARTITIONS:
            return await self.beside_the_loop(self.respond, message)
        return self.respond(message)


Handler = Callable[[RequestContext], Awaitable[bytes | None]]
"""Returns the response frame, or ``None`` where the request has no response (Produce, acks=0).
An exception closes the client's connection: a bug must not become a wrong answer."""


Passes = Callable[[RequestHeader, bytes, ClientConnection], bool]


def always() -> bool:
    """The requests are looked into even while no topic is tracked."""
    return True


def never(header: RequestHeader, frame: bytes, connection: ClientConnection) -> bool:
    """No request of the API passes while its rule is due."""
    return False


@dataclass(frozen=True, slots=True)
class Rule:
    handler: Handler
    is_due: Callable[[], bool]
    """Asked for every request before anything is decoded. While no topic is tracked most rules
    say no, so that classic traffic costs a look into a table (I1)."""
    passes: Passes = never
    """Asked while it is due, before anything is decoded: whether the handler would do nothing but
    forward this request as it came and give back its answer. What is in doubt does not pass."""
    by_topics: Callable[[], bool] | None = None
    """For a transport that has a copy of what :attr:`passes` goes by (:class:`Passing`) and does
    not ask. Whether now that is nothing but the topics of a request, those of the fetch session
    that it goes on with (:class:`FollowedSessions`), and, of a Produce, that none of its connection
    is looked into. What it says, and :attr:`is_due`, changes only together with
    :attr:`Passing.changed`. ``None``: each request of the API has to be asked about."""


class Passing(Protocol):
    """What is tracked, and who hears of changes of that and of whatever else rules go by."""

    changed: Listeners[[]]
    """Called in the step in which something changes."""

    def names(self) -> Collection[str]:
        """Of the topics that are tracked."""

    def ids(self) -> Collection[UUID]:
        """Of those, and of topics that are deleted and must not be asked about."""


TopicKeys = Collection["str | UUID | None"]


@runtime_checkable
class FollowedSessions(Protocol):
    """State of a connection (:meth:`ClientConnection.state`): fetch sessions of which a handler
    knows all topics, none of them tracked when it looked last."""

    def follow(self, told: Callable[[int, TopicKeys | None], None]) -> None:
        """From now on ``told`` hears of each session that there is its topics, whenever they
        change, and ``None`` when the handler knows it no more, in the same step."""


Rules = Mapping[int, Rule]
"""By API key; what has no rule, or one that is not due, passes as it came."""
