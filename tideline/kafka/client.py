"""A Kafka client for Tideline's own questions to brokers: one connection, and a pool by node id.

Nothing here retries: a caller knows what may be sent twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.api_versions.v3 import request as av3
from kio.schema.api_versions.v3.response import ApiVersionsResponse as ApiVersionsResponse3
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import TopicName
from kio.static.protocol import RequestPayload, ResponsePayload

from tideline import __version__
from tideline.domain.kafka_release import NOT_TOLD
from tideline.kafka.decoding import decoded_response
from tideline.kafka.errors import KafkaError, KafkaUnavailable, MalformedFrame, UnsupportedVersion
from tideline.kafka.framing import FrameProtocol
from tideline.kafka.login import log_in
from tideline.kafka.protocol import (
    API_VERSIONS_KEY,
    correlation_of,
    decodable_versions,
    encode_request,
)
from tideline.kafka.security import UNSECURED, KafkaSecurity
from tideline.settings import KafkaSettings

Address = tuple[str, int]


class Apart(NamedTuple):
    """The place of a connection to a broker over which nothing else is asked."""

    node_id: int


METADATA_VERSION = "metadata.version"
DESCRIBE_CLUSTER, OF_FENCED_BROKERS = 60, 2
"""KIP-1073: every broker from 4.0 on has this version."""
Place = int | Address | Apart
"""Of a connection: which broker it is to, by its node id or as it was named."""
DEFAULT_MAX_FRAME_BYTES = 104_857_600
DEFAULT_TIMEOUT_MS = 10_000
MAX_IN_FLIGHT = 256
"""Requests of one connection that wait for an answer; more wait before they are sent."""
METADATA_FRESH_S = 1.0
"""How long :meth:`KafkaCluster.leader` relies on an answer."""
LOGIN_SHARE = 0.8
"""Of the time for which a broker takes a login: then the connection is replaced by a new one, as
the broker would end it at its next request (KIP-368)."""


class _Wire(FrameProtocol):
    """Answers come in the order of the requests (Kafka serves a connection one by one)."""

    def __init__(self, peer: str, max_frame_bytes: int) -> None:
        super().__init__(max_frame_bytes)
        self.peer = peer
        self.pending: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refusal: str | None = None

    def frame_received(self, frame: bytes) -> None:
        if not self.pending:
            self.abort("it sent an answer that nobody asked for")
            return
        expected, waiter = self.pending[0]
        if len(frame) < 4 or correlation_of(frame) != expected:
            self.abort(f"it answered something else where {expected} was due")
            return
        self.pending.popleft()
        if not waiter.done():
            waiter.set_result(frame)

    def frame_refused(self, reason: str) -> None:
        self.refusal = reason

    def abort(self, reason: str) -> None:
        self.refusal = self.refusal or reason
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        why = self.refusal or (str(exc) if exc else "the connection was closed")
        for _, waiter in self.pending:
            if not waiter.done():
                waiter.set_exception(KafkaUnavailable(f"broker {self.peer}: {why}"))
                waiter.exception()  # a caller that timed out does not look
        self.pending.clear()
        if not self.closed.done():
            self.closed.set_result(None)


class KafkaConnection:
    """One TCP connection to one broker; requests are pipelined. Use :meth:`open`."""

    def __init__(self, wire: _Wire, address: Address, client_id: str) -> None:
        self._wire = wire
        self._client_id = client_id
        self._correlation = 0
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self.address = address
        self.versions: Mapping[int, range] = {}
        """What broker and kio both know, by API key."""
        self._stale_at: float | None = None
        """When it should be replaced, on the loop's clock."""

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "tideline",
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        security: KafkaSecurity = UNSECURED,
    ) -> Self:
        """Connect, learn the broker's versions and log in. Raises :class:`KafkaUnavailable`, and
        :class:`KafkaError` if the broker refuses."""
        peer = f"{host}:{port}"
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                _, wire = await asyncio.get_running_loop().create_connection(
                    lambda: _Wire(peer, max_frame_bytes), host, port, ssl=security.tls()
                )
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no connection within {timeout_ms} ms"
            raise KafkaUnavailable(f"broker {peer}: {reason}") from None
        connection = cls(wire, (host, port), client_id)
        try:
            await connection._negotiate(timeout_ms)
            if security.protocol.is_sasl:
                await connection._log_in(security, timeout_ms)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _log_in(self, security: KafkaSecurity, timeout_ms: int) -> None:
        asked = asyncio.get_running_loop().time()
        send = partial(self.send, timeout_ms=timeout_ms)
        lifetime_ms = await log_in(send, security, self._wire.peer)
        if lifetime_ms > 0:
            self._stale_at = asked + lifetime_ms / 1000 * LOGIN_SHARE

    async def _negotiate(self, timeout_ms: int) -> None:
        request = ApiVersionsRequest()
        self.versions = {API_VERSIONS_KEY: range(1)}
        answer = await self.send(request, timeout_ms=timeout_ms)
        assert isinstance(answer, ApiVersionsResponse)
        if answer.error_code is not ErrorCode.none:
            raise KafkaError(answer.error_code, f"versions of broker {self._wire.peer}")
        self.versions = {
            int(api.api_key): _overlap(
                range(api.min_version, api.max_version + 1), decodable_versions(api.api_key)
            )
            for api in answer.api_keys
        }

    @property
    def is_closed(self) -> bool:
        return self._wire.transport is None or self._wire.transport.is_closing()

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and its login not about to lapse."""
        stale = self._stale_at is not None and asyncio.get_running_loop().time() >= self._stale_at
        return not stale and not self.is_closed

    @property
    def closed(self) -> asyncio.Future[None]:
        """Done when the connection has ended."""
        return self._wire.closed

    def supports(self, api_key: int, version: int) -> bool:
        """Whether the broker knows this version, and it can be decoded here."""
        return version in self.versions.get(api_key, range(0))

    async def metadata_level(self, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> int | None:
        """The highest ``metadata.version`` that the broker supports, which tells its release (see
        :mod:`tideline.domain.kafka_release`); ``None``: it does not say. Raises
        :class:`KafkaUnavailable`."""
        if self.supports(API_VERSIONS_KEY, av3.ApiVersionsRequest.__version__):
            asked = av3.ApiVersionsRequest(
                client_software_name="tideline", client_software_version=__version__
            )
            answer = await self.send(asked, timeout_ms=timeout_ms)
            assert isinstance(answer, ApiVersionsResponse3)
            for feature in answer.supported_features:
                if feature.name == METADATA_VERSION:
                    return int(feature.max_version)
        return None if self.supports(DESCRIBE_CLUSTER, OF_FENCED_BROKERS) else NOT_TOLD

    async def send(
        self, message: RequestPayload, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> ResponsePayload:
        """Send one request in the version of its class and await the answer.

        The broker must have an answer to it (no Produce with acks=0). Raises
        :class:`UnsupportedVersion`, and :class:`KafkaUnavailable` on a lost connection or at the
        timeout, which also ends the connection: what follows would wait behind.
        """
        key, version = int(message.__api_key__), int(message.__version__)
        if not self.supports(key, version):
            raise UnsupportedVersion(
                f"broker {self._wire.peer} does not know version {version} of API {key}"
            )
        is_sent = False
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._room:
                is_sent = True
                frame = await self._exchange(message)
        except TimeoutError:
            reason = f"no answer within {timeout_ms} ms"
            if is_sent:
                self._wire.abort(reason)
            raise KafkaUnavailable(f"broker {self._wire.peer}: {reason}") from None
        try:
            return await decoded_response(self, frame, key, version)
        except MalformedFrame as error:
            raise KafkaUnavailable(f"broker {self._wire.peer} answered nonsense: {error}") from None

    async def _exchange(self, message: RequestPayload) -> bytes:
        if self.is_closed:
            raise KafkaUnavailable(f"broker {self._wire.peer}: the connection is closed")
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        frame = encode_request(message, self._correlation, self._client_id)
        self._wire.pending.append((self._correlation, waiter))
        self._wire.send_frame(frame)
        return await waiter

    def close(self) -> None:
        """End the connection at once; whatever is pending fails."""
        self._wire.abort("closed by us")

    def retire(self) -> None:
        """End it when nothing is pending: its place is taken by another one."""
        awaited = [waiter for _, waiter in self._wire.pending if not waiter.done()]
        if awaited:
            awaited[-1].add_done_callback(lambda _: self.retire())
        else:
            self.close()


def _same(address: Address) -> Address:
    return address


def _overlap(a: range, b: range) -> range:
    return range(max(a.start, b.start), min(a.stop, b.stop))


@dataclass(frozen=True, slots=True)
class Node:
    """A broker as the cluster's metadata names it."""

    node_id: int
    host: str
    port: int
    rack: str | None


class KafkaCluster:
    """Connections by node id, opened when first needed and again after they broke."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str = "tideline",
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        security: KafkaSecurity = UNSECURED,
    ) -> None:
        self._security = security
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._max_frame_bytes = max_frame_bytes
        self._connections: dict[Place, KafkaConnection] = {}
        self._dialling: dict[Place, asyncio.Lock] = {}
        self._nodes: dict[int, Node] = {}
        self._leaders: dict[tuple[str, int], tuple[float, int]] = {}
        self._cluster_id = ""
        """Of the first answer that named one."""

    @classmethod
    def of(cls, settings: KafkaSettings, client_id: str) -> Self:
        """The cluster that ``settings`` name, with their patience and login."""
        return cls(
            settings.kafka_bootstrap,
            client_id=client_id,
            timeout_ms=settings.kafka_request_timeout_ms,
            security=KafkaSecurity.of(settings),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def any(self) -> KafkaConnection:
        """A connection to any broker that answers. Raises :class:`KafkaUnavailable`."""
        for place, connection in self._connections.items():
            if connection.is_usable and not isinstance(place, Apart):
                return connection
        failures = []
        known = [(node.host, node.port) for node in self._nodes.values()]
        for address in dict.fromkeys((*self._bootstrap, *known)):
            try:
                return await self._connected(address, partial(_same, address))
            except KafkaUnavailable as error:
                failures.append(str(error))
        raise KafkaUnavailable("no broker answers: " + "; ".join(failures))

    async def node(self, node_id: int, *, apart: bool = False) -> KafkaConnection:
        """A connection to one broker. Raises :class:`KafkaUnavailable`, also when the cluster
        does not name that broker. ``apart``: for what a broker may take long to answer, while it
        answers nothing else that comes over the same connection."""
        place: Place = Apart(node_id) if apart else node_id
        if (open_ := self._connections.get(place)) is not None and open_.is_usable:
            return open_
        await self.refresh()

        def address() -> Address:
            node = self._nodes.get(node_id)
            if node is None:
                raise KafkaUnavailable(
                    f"broker {node_id} is not in the cluster; it has {sorted(self._nodes)}"
                )
            return node.host, node.port

        return await self._connected(place, address)

    async def leader(self, topic: str, partition: int) -> KafkaConnection:
        """A connection to a partition's leader.

        Raises :class:`KafkaError` if the partition or its leader does not exist.
        """
        return await self.node(await self.leader_id(topic, partition))

    async def leader_id(self, topic: str, partition: int) -> int:
        """Who leads a partition. Raises as :meth:`leader` does."""
        now = asyncio.get_running_loop().time()
        until, leader = self._leaders.get((topic, partition), (0.0, -1))
        if now >= until:
            leader = await self._find_leader(topic, partition)
            self._leaders[topic, partition] = (now + METADATA_FRESH_S, leader)
        return leader

    async def nodes(self) -> dict[int, Node]:
        """Every broker, asked now."""
        await self.refresh()
        return dict(self._nodes)

    async def cluster_id(self) -> str:
        """The id that the brokers' metadata names, asked now; empty when it names none."""
        return (await self._metadata(())).cluster_id or ""

    async def refresh(self) -> None:
        """Learn the brokers' addresses anew."""
        await self._metadata(())

    async def described(self, topics: Sequence[str]) -> MetadataResponse:
        """What the cluster's metadata says of these topics and of its brokers, asked now."""
        return await self._metadata(topics)

    async def _find_leader(self, topic: str, partition: int) -> int:
        answer = await self._metadata((topic,))
        for found in answer.topics:
            for row in found.partitions:
                if row.partition_index == partition and row.leader_id >= 0:
                    return int(row.leader_id)
            if found.error_code is not ErrorCode.none:
                raise KafkaError(found.error_code, f"topic {topic!r}")
        raise KafkaError(ErrorCode.leader_not_available, f"partition {topic}-{partition}")

    async def _metadata(self, topics: Sequence[str]) -> MetadataResponse:
        self._forget_closed()
        request = MetadataRequest(
            topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(t)) for t in topics),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        connection = await self.any()
        answer = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(answer, MetadataResponse)
        found = answer.cluster_id or self._cluster_id
        if self._cluster_id not in ("", found):
            connection.close()
            raise KafkaUnavailable(
                f"brokers of Kafka cluster {found!r} answer, this process works at cluster "
                f"{self._cluster_id!r}, of which another one knows nothing: lead the bootstrap "
                "addresses to that one again, or start the process anew"
            )
        self._cluster_id = found
        self._nodes = {
            int(b.node_id): Node(int(b.node_id), b.host, int(b.port), b.rack)
            for b in answer.brokers
        }
        return answer

    def _forget_closed(self) -> None:
        for key in [key for key, open_ in self._connections.items() if open_.is_closed]:
            del self._connections[key]
        now = asyncio.get_running_loop().time()
        self._leaders = {key: entry for key, entry in self._leaders.items() if entry[0] > now}

    async def _connected(self, key: Place, address: Callable[[], Address]) -> KafkaConnection:
        async with self._dialling.setdefault(key, asyncio.Lock()):
            open_ = self._connections.get(key)
            if open_ is None or not open_.is_usable:
                if open_ is not None:
                    open_.retire()
                host, port = address()
                open_ = await KafkaConnection.open(
                    host,
                    port,
                    client_id=self._client_id,
                    timeout_ms=self._timeout_ms,
                    max_frame_bytes=self._max_frame_bytes,
                    security=self._security,
                )
                self._connections[key] = open_
            return open_
