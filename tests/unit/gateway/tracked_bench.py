"""The tracked parts of a gateway over fakes: control plane, object store, and one broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from tests.unit.gateway.fakes import (
    FakeObjectStore,
    GatewayPlane,
    tracked_topic,
)
from tests.unit.gateway.gateway_under_test import gateway_settings
from tideline.control_plane.model import TrackedPartition
from tideline.domain.authorization import ALL_OPERATIONS
from tideline.domain.sasl import ANONYMOUS, Identity
from tideline.gateway.assembly import Parts, build_parts, build_rules
from tideline.gateway.context import ApiKey, ConnectionRegistry, RequestContext
from tideline.gateway.fetch.object_reader import ObjectCache
from tideline.gateway.messages import key_fields, messages, topic_key
from tideline.kafka.batches import iter_batches
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.protocol import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_header,
)

S = TypeVar("S")
PRODUCE_VERSION = 9
FETCH_VERSION = 12
Script = Callable[[Any], Awaitable[Any] | Any]


@dataclass
class FakeConnection:
    """A client's connection whose broker answers as the test says."""

    broker: dict[int, Script] = field(default_factory=dict)
    forwarded: list[Any] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    """The gateway's own questions, which ``rights`` answers."""
    rights: Script = field(default_factory=lambda: allowing())
    unanswered: list[Any] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    """Of both, as they were handed over."""
    closed: list[str] = field(default_factory=list)
    peer: str = "test:1"
    broker_id: int = 1
    states: dict[type[Any], Any] = field(default_factory=dict)
    identity: Identity = ANONYMOUS
    muted_s: list[float] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def forward(self, frame: bytes, api_key: int, api_version: int) -> Awaitable[bytes]:
        request = decode_request(frame)
        self.forwarded.append(request)
        self.frames.append(frame)

        async def answer() -> bytes:
            response = self.broker[api_key](request)
            if asyncio.iscoroutine(response) or isinstance(response, asyncio.Future):
                response = await response
            if isinstance(response, Exception):
                raise response
            return encode_response(response, parse_header(frame).correlation_id)

        return asyncio.ensure_future(answer())

    def ask(self, frame: bytes, api_key: int, api_version: int) -> Awaitable[bytes]:
        """What the client may do."""
        request: Any = decode_request(frame)
        self.asked.append(request)

        async def encoded() -> bytes:
            response = self.rights(request)
            if asyncio.iscoroutine(response):
                response = await response
            if isinstance(response, Exception):
                raise response
            return encode_response(response, parse_header(frame).correlation_id)

        return asyncio.ensure_future(encoded())

    def forward_unanswered(self, frame: bytes) -> None:
        self.unanswered.append(decode_request(frame))
        self.frames.append(frame)

    def drain_barrier(self) -> Awaitable[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def mute(self, seconds: float) -> None:
        self.muted_s.append(seconds)

    def close(self, reason: str) -> None:
        self.closed.append(reason)

    def state(self, kind: type[S]) -> S:
        return self.states.setdefault(kind, kind())


def allowing(
    operations: int = ALL_OPERATIONS, code: ErrorCode = ErrorCode.none
) -> Callable[[Any], Any]:
    """A broker that allows a client these operations on every topic."""

    def answer(request: Any) -> Any:
        api = messages(ApiKey.METADATA, int(request.__version__))
        return api.response(
            throttle_time=timedelta(0),
            brokers=(),
            cluster_id=None,
            controller_id=1,
            topics=tuple(
                api.response_part(
                    "MetadataResponseTopic",
                    error_code=code,
                    name=topic.name,
                    topic_id=None,
                    is_internal=False,
                    partitions=(),
                    topic_authorized_operations=operations,
                )
                for topic in request.topics
            ),
        )

    return answer


class FakeTransactions:
    """Which producers have a transaction open."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.asked: list[int] = []
        """Node ids of brokers."""

    async def has_open(
        self, node: int, topic: str, partition: int, producer_id: int, epoch: int
    ) -> bool:
        await asyncio.sleep(0)
        self.asked.append(node)
        return producer_id in self.open


BENCH = {"suffix_poll_ms": "5", "gateway_lease_ms": "600000", "wal_max_delay_ms": "1"}
"""An impatient test waits for no next object. A lease lapses when a test says so
(:meth:`TrackedBench.lapse`), however slow a machine is."""


class TrackedBench:
    """Everything that a handler is given."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.plane = GatewayPlane()
        self.store = FakeObjectStore()
        self.settings = gateway_settings("127.0.0.1:1", directory, **BENCH | settings)
        self.cluster: Any = SimpleNamespace(
            node=self._no_broker, leader_id=self._no_leader, described=self._nothing_described
        )
        self.transactions = FakeTransactions()
        self.parts = build_parts(
            self.settings,
            self.plane,  # type: ignore[arg-type]
            self.store,
            self.cluster,
            ConnectionRegistry(),
        )
        self.use(self.parts)
        self.client = FakeConnection()

    async def _no_broker(self, node: int, *, apart: bool = False) -> Any:
        raise KafkaUnavailable("no broker in this test")

    async def _nothing_described(self, topics: Sequence[str]) -> Any:
        raise KafkaUnavailable("no broker in this test")

    async def _no_leader(self, topic: str, partition: int) -> int:
        raise KafkaUnavailable("no broker in this test")

    def use(self, parts: Parts) -> None:
        """Serve requests with ``parts``."""
        self.parts = parts
        self.rules = build_rules(
            parts,
            self.plane,  # type: ignore[arg-type]
            self.cluster,
            self.transactions,  # type: ignore[arg-type]
            patience_s=self.settings.produce_timeout_ms / 1000,
        )

    @contextmanager
    def impatient(self, produce_timeout_ms: int = 200) -> Iterator[None]:
        """For what is to be waited for in vain. Whoever is served may take longer on a slow
        machine."""
        before = self.settings
        self.settings = before.model_copy(update={"produce_timeout_ms": produce_timeout_ms})
        self.use(self.parts)
        yield
        self.settings = before
        self.use(self.parts)

    async def lease(self) -> None:
        """A valid lease without the background work."""
        await self.parts.lease.renew(self.parts.sync.learn_anew)

    def lapse(self) -> None:
        """The lease is not valid until the next renewal."""
        self.parts.lease._valid_until = float("-inf")

    def show(self, *rows: TrackedPartition, **values: Any) -> None:
        """The topic's rows as Postgres has them now."""
        self.plane.put(tracked_topic(*rows, **values))
        shown = [topic.tracked() for topic in self.plane.topics.rows]
        self.parts.tracking.replace_all(shown)
        self.parts.sync._note_drained()

    async def close(self) -> None:
        await self.parts.close(0.0)

    async def ask(
        self,
        message: Any,
        client: FakeConnection | None = None,
        client_id: str = "a client",
    ) -> Any:
        """Send one request and decode its answer. Its handler is asked also if it may pass, and has
        to do then what passing does."""
        frame = encode_request(message, 5, client_id)
        connection = client or self.client
        context = RequestContext(parse_header(frame), frame, connection)
        rule = self.rules[int(message.__api_key__)]
        passes, before = rule.passes(context.header, frame, connection), len(connection.frames)
        answer = await rule.handler(context)
        if passes and rule.is_due():
            assert frame in connection.frames[before:], "it passes what its handler does not"
        if answer is None:
            return None
        return decode_response(answer, int(message.__api_key__), int(message.__version__))


@asynccontextmanager
async def leased(directory: Path) -> AsyncIterator[TrackedBench]:
    """One that holds its lease, and is closed in the end."""
    made = TrackedBench(directory)
    await made.lease()
    try:
        yield made
    finally:
        await made.close()


def forget_everything(bench: TrackedBench) -> None:
    """Nothing is in memory any more."""
    bench.parts.reader._objects._cache = ObjectCache(1 << 20)


def produce(
    *batches: tuple[str | UUID, int, bytes], acks: int = -1, version: int = PRODUCE_VERSION
) -> Any:
    """A produce request of (topic, partition, records)."""
    api = messages(ApiKey.PRODUCE, version)
    topics: dict[str | UUID, list[Any]] = {}
    for topic, partition, records in batches:
        topics.setdefault(topic, []).append(
            api.request_part("PartitionProduceData", index=partition, records=records)
        )
    return api.request(
        transactional_id=None,
        acks=acks,
        timeout=timedelta(seconds=30),
        topic_data=tuple(
            api.request_part("TopicProduceData", **key_fields(topic), partition_data=tuple(rows))
            for topic, rows in topics.items()
        ),
    )


def acknowledging(base_offset: int, code: ErrorCode = ErrorCode.none) -> Script:
    """A broker that acknowledges every partition from ``base_offset`` on, once each."""

    def answer(request: Any) -> Any:
        api = messages(ApiKey.PRODUCE, int(request.__version__))
        return api.response(
            responses=tuple(
                api.response_part(
                    "TopicProduceResponse",
                    **key_fields(topic_key(topic)),
                    partition_responses=tuple(
                        api.response_part(
                            "PartitionProduceResponse",
                            index=index,
                            error_code=code,
                            base_offset=base_offset if code is ErrorCode.none else -1,
                            record_errors=(),
                        )
                        for index in dict.fromkeys(row.index for row in topic.partition_data)
                    ),
                )
                for topic in request.topic_data
            )
        )

    return answer


def outcomes(response: Any) -> dict[tuple[str, int], tuple[str, int]]:
    """(error name, base offset) by (topic, partition) of a produce response."""
    return {
        (topic.name, row.index): (row.error_code.name, row.base_offset)
        for topic in response.responses
        for row in topic.partition_responses
    }


@dataclass(frozen=True)
class KafkaLog:
    """What the broker answers of one partition."""

    records: bytes = b""
    high_watermark: int = 0
    last_stable_offset: int = -1
    code: ErrorCode = ErrorCode.none
    preferred_read_replica: int = -1
    diverging: tuple[int, int] = (-1, -1)
    """Largest epoch that reader and leader share, and where the leader's ends."""


def fetch(
    *wanted: tuple[str, int, int],
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    session: tuple[int, int] = (0, -1),
    leader_epochs: tuple[int, ...] = (),
) -> Any:
    """A fetch request of (topic, partition, offset), the first of which name ``leader_epochs``."""
    api = messages(ApiKey.FETCH, FETCH_VERSION)
    topics: dict[str, list[Any]] = {}
    for (topic, partition, offset), epoch in zip_longest(wanted, leader_epochs, fillvalue=-1):
        topics.setdefault(topic, []).append(
            api.request_part(
                "FetchPartition",
                partition=partition,
                current_leader_epoch=epoch,
                fetch_offset=offset,
                partition_max_bytes=partition_max_bytes,
            )
        )
    return api.request(
        max_wait=timedelta(milliseconds=max_wait_ms),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=tuple(
            api.request_part("FetchTopic", topic=topic, partitions=tuple(rows))
            for topic, rows in topics.items()
        ),
        forgotten_topics_data=(),
        rack_id="",
    )


def serving(logs: dict[tuple[str, int], KafkaLog], session_id: int = 0) -> Script:
    """A broker that has these logs; of a partition that is named twice the last row counts."""

    def answer(request: Any) -> Any:
        api = messages(ApiKey.FETCH, FETCH_VERSION)
        return api.response(
            throttle_time=timedelta(0),
            error_code=ErrorCode.none,
            session_id=session_id,
            responses=tuple(
                api.response_part(
                    "FetchableTopicResponse",
                    topic=topic.topic,
                    partitions=tuple(
                        _fetched(api, partition, logs[topic.topic, partition])
                        for partition in dict.fromkeys(row.partition for row in topic.partitions)
                    ),
                )
                for topic in request.topics
            ),
        )

    return answer


def _fetched(api: Any, partition: int, log: KafkaLog) -> Any:
    good = log.code is ErrorCode.none
    stable = log.high_watermark if log.last_stable_offset < 0 else log.last_stable_offset
    return api.response_part(
        "PartitionData",
        partition_index=partition,
        error_code=log.code,
        high_watermark=log.high_watermark if good else -1,
        last_stable_offset=stable if good else -1,
        log_start_offset=0 if good else -1,
        aborted_transactions=(),
        preferred_read_replica=log.preferred_read_replica,
        diverging_epoch=api.response_part(
            "EpochEndOffset", epoch=log.diverging[0], end_offset=log.diverging[1]
        ),
        records=log.records,
    )


@dataclass(frozen=True)
class Fetched:
    """One partition of a fetch response."""

    error: str
    offsets: list[int]
    """base offsets of the batches"""
    high_watermark: int
    last_stable_offset: int
    epochs: set[int]


def fetched(response: Any) -> dict[tuple[str, int], Fetched]:
    """By (topic, partition)."""
    found = {}
    for topic in response.responses:
        for row in topic.partitions:
            headers = list(iter_batches(row.records or b""))
            found[topic.topic, row.partition_index] = Fetched(
                row.error_code.name,
                [header.base_offset for header in headers],
                row.high_watermark,
                row.last_stable_offset,
                {header.partition_leader_epoch for header in headers},
            )
    return found
