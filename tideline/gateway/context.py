"""What a handler is given: the gateway's parts, one request, and the connection it came on."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from kio.static.protocol import RequestPayload, ResponsePayload

from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaUnavailable, MalformedFrame
from tideline.kafka.protocol import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from tideline.settings import GatewaySettings

if TYPE_CHECKING:
    from tideline.control_plane import ControlPlane
    from tideline.gateway.assembly import TrackedParts
    from tideline.gateway.tracking.view import Tracking
    from tideline.gateway.transactions import OpenTransactions

S = TypeVar("S")


class ClientConnection(Protocol):
    """One client's connection and its one upstream connection to the paired broker."""

    @property
    def peer(self) -> str:
        """``host:port`` of the client."""

    def forward(self, frame: bytes, api_key: int, api_version: int) -> Awaitable[bytes]:
        """Queue a request upstream *now*, behind everything queued before; await its answer.

        The answer is the broker's with the brokers' addresses made the gateways'. The awaitable
        raises :class:`tideline.kafka.errors.KafkaUnavailable` when the broker is gone; the
        client's connection is closed then, as it would be by a dead broker.
        """

    def forward_unanswered(self, frame: bytes) -> None:
        """Queue a request that Kafka does not answer (Produce with acks=0)."""

    def drain_barrier(self) -> Awaitable[None]:
        """Done when the broker has served everything that was queued upstream before this call.

        Kafka serves a connection one request at a time, so the answer to an ApiVersions request
        sent behind proves that appends of acks=0 are done too and that fetches have ended. Done
        at once without an upstream connection, and when the connection ends.
        """

    def close(self, reason: str) -> None:
        """End it, both sides, without answering what is pending."""

    def state(self, kind: type[S]) -> S:
        """The connection's own object of ``kind``, made without arguments on first use: what a
        handler remembers of this client (its fetch sessions, for example)."""


class ConnectionRegistry:
    """Every open client connection."""

    def __init__(self) -> None:
        self._open: set[ClientConnection] = set()

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(tuple(self._open))

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: ClientConnection) -> None:
        self._open.add(connection)

    def discard(self, connection: ClientConnection) -> None:
        self._open.discard(connection)


@dataclass(slots=True)
class GatewayServices:
    """The parts that handlers share; one of each per process."""

    settings: GatewaySettings
    tracking: Tracking
    control_plane: ControlPlane
    cluster: KafkaCluster
    """Our own connections to brokers."""
    connections: ConnectionRegistry
    transactions: OpenTransactions
    tracked: TrackedParts
    """What serves tracked topics: lease, parking, suffix writer and reader."""


@dataclass(slots=True)
class RequestContext:
    """One request. Handlers start in the order of arrival on their connection; whatever must
    keep that order (decode, park, forward, append) is done before the first ``await``."""

    header: RequestHeader
    frame: bytes
    """The whole request without its length prefix."""
    connection: ClientConnection
    _decoded: RequestPayload | None = field(default=None, repr=False)

    def request(self) -> RequestPayload:
        """The decoded request. Raises as :func:`tideline.kafka.protocol.decode_request` does:
        let it pass, the connection is closed for it."""
        if self._decoded is None:
            self._decoded = decode_request(self.frame, self.header)
        return self._decoded

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
        answer = self.connection.forward(frame, key, version)

        async def decoded() -> ResponsePayload:
            response = await answer
            try:
                return decode_response(response, key, version)
            except MalformedFrame as error:
                raise KafkaUnavailable(f"the broker answered nonsense: {error}") from error

        return decoded()

    def respond(self, message: ResponsePayload) -> bytes:
        """The response frame of this request."""
        return encode_response(message, self.header.correlation_id)
