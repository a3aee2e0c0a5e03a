"""Kafka's protocol in front of the model: one request of a connection after the other.

Of each API only what gateways, activities and the simulated clients ask is answered; versions that
are not answered are not offered either.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from operator import attrgetter
from typing import Any, cast
from uuid import UUID

from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16

from tests.simulation import admin_wire
from tests.simulation.kafka import Batch, Broker, Refused, Replica
from tests.simulation.loop import Process
from tideline.domain.authorization import ALL_OPERATIONS
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import Messages, messages
from tideline.kafka.client import METADATA_VERSION
from tideline.kafka.framing import FrameProtocol
from tideline.kafka.protocol import (
    RequestHeader,
    decode_request,
    encode_response,
    parse_header,
)

OFFERED: dict[int, tuple[int, int]] = {
    ApiKey.PRODUCE: (9, 13),
    ApiKey.FETCH: (12, 16),
    ApiKey.LIST_OFFSETS: (5, 9),
    ApiKey.METADATA: (12, 12),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (4, 4),
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.DESCRIBE_CLUSTER: (0, 0),
    ApiKey.CREATE_TOPICS: (7, 7),
    ApiKey.DELETE_TOPICS: (6, 6),
}
FIRST_OF_4_0 = 22
"""Level of metadata.version."""
DEBUG_CONSUMER = -2
MAX_FRAME = 1 << 26
PORT = 9092
CORRELATION = slice(4, 8)
"""Of a request, whose answer begins with it."""


def host_of(node: int) -> str:
    return f"broker{node}"


class BrokerConnection(FrameProtocol):
    """One client of a broker."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(MAX_FRAME)
        self._broker = broker
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._work: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._work = asyncio.get_running_loop().create_task(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._work is not None:
            self._work.cancel()

    def frame_received(self, frame: bytes) -> None:
        self._arrived.put_nowait(frame)

    async def _serve(self) -> None:
        while True:
            frame = await self._arrived.get()
            header = parse_header(frame)
            if header.api_key == ApiKey.API_VERSIONS:
                offered = _offered(header.api_version, self._broker.kafka.has_admins)
                self.send_frame(frame[CORRELATION] + offered)
                continue
            if header.api_key == ApiKey.FETCH and header.client_id in self._broker.throttled:
                await self._throttle(header)
                continue
            request = decode_request(frame, header)
            api = messages(header.api_key, header.api_version)
            answer: Any = await ANSWERS[header.api_key](self._broker, request, api)
            if answer is not None:
                self.send_frame(encode_response(answer, header.correlation_id))

    async def _throttle(self, header: RequestHeader) -> None:
        """What a client over its quota is answered, at once (``FetchContext``'s
        ``getThrottledResponse``); and its connection is not read from for as long."""
        assert header.client_id is not None
        throttled_s = self._broker.throttled[header.client_id]
        api = messages(header.api_key, header.api_version)
        answer = api.response(
            throttle_time=timedelta(seconds=throttled_s),
            error_code=ErrorCode.none,
            session_id=0,
            responses=(),
            node_endpoints=(),
        )
        self.send_frame(encode_response(answer, header.correlation_id))
        await asyncio.sleep(throttled_s)


@cache
def _offered(version: int, has_admins: bool) -> bytes:
    """What each connection asks first, without the correlation id."""
    offered = OFFERED | admin_wire.OFFERED if has_admins else OFFERED
    return encode_response(_versions(version, offered), 0)[4:]


def _versions(version: int, offered: dict[int, tuple[int, int]]) -> Any:
    if version == 0:
        keys = tuple(
            ApiVersion(api_key=i16(key), min_version=i16(low), max_version=i16(high))
            for key, (low, high) in offered.items()
        )
        return ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys)
    api = messages(ApiKey.API_VERSIONS, version)
    release = api.response_part(
        "SupportedFeatureKey",
        name=METADATA_VERSION,
        min_version=i16(FIRST_OF_4_0),
        max_version=i16(FIRST_OF_4_0),
    )
    return api.response(
        error_code=ErrorCode.none,
        api_keys=tuple(
            api.response_part("ApiVersion", api_key=key, min_version=low, max_version=high)
            for key, (low, high) in offered.items()
        ),
        throttle_time=timedelta(0),
        supported_features=(release,),
    )


def _name(topic: Any) -> str | UUID:
    """How a request names a topic."""
    for field in ("topic_id", "name", "topic"):
        found = getattr(topic, field, None)
        if found is not None:
            return cast("str | UUID", found)
    return ""


def _named(topic: Any) -> dict[str, Any]:
    return {
        field: getattr(topic, field)
        for field in ("topic_id", "name", "topic")
        if hasattr(topic, field)
    }


async def _until(broker: Broker, ready: Callable[[], bool], bound_s: float) -> bool:
    """Whether ``ready`` came true in time."""
    try:
        async with asyncio.timeout(bound_s):
            while not ready():
                await broker.changed.wait()
    except TimeoutError:
        return ready()
    return True


# -- produce


async def produce(broker: Broker, request: Any, api: Messages) -> Any:
    bound_s = request.timeout.total_seconds()
    answers: list[tuple[Any, Any, Any]] = []
    for topic in request.topic_data:
        for row in topic.partition_data:
            try:
                key = broker.key_of(_name(topic), int(row.index))
                epoch = broker.view(key).epoch
                base, end = broker.append(key, bytes(row.records))
                answers.append((topic, row, (key, epoch, base, end)))
            except Refused as refused:
                answers.append((topic, row, refused.code))
    if int(request.acks) == -1:
        answers = [
            (topic, row, await _replicated(broker, found, bound_s)) for topic, row, found in answers
        ]
    if int(request.acks) == 0:
        return None
    grouped: dict[str, tuple[Any, list[Any]]] = {}
    for topic, row, found in answers:
        failed = isinstance(found, ErrorCode)
        part = api.response_part(
            "PartitionProduceResponse",
            index=row.index,
            error_code=found if failed else ErrorCode.none,
            base_offset=-1 if failed else found[2],
            log_start_offset=-1 if failed else 0,
            record_errors=(),
        )
        grouped.setdefault(str(_name(topic)), (topic, []))[1].append(part)
    return api.response(
        responses=tuple(
            api.response_part(
                "TopicProduceResponse", **_named(topic), partition_responses=tuple(rows)
            )
            for topic, rows in grouped.values()
        ),
        throttle_time=timedelta(0),
        node_endpoints=(),
    )


async def _replicated(broker: Broker, found: Any, bound_s: float) -> Any:
    if isinstance(found, ErrorCode):
        return found
    key, epoch, _, end = found

    def over() -> bool:
        view = broker.views.get(key)
        return view is None or view.epoch != epoch or broker.replicas[key].high_watermark >= end

    if not await _until(broker, over, bound_s):
        return ErrorCode.request_timed_out
    view = broker.views.get(key)
    if view is None or view.epoch != epoch:
        return ErrorCode.not_leader_or_follower
    return found


# -- fetch


async def fetch(broker: Broker, request: Any, api: Messages) -> Any:
    wanted = [(topic, row) for topic in request.topics for row in topic.partitions]

    def read() -> list[Any]:
        return [_read(broker, topic, row, api) for topic, row in wanted]

    def enough() -> bool:
        parts = read()
        return any(part.error_code is not ErrorCode.none or part.records for part in parts)

    if int(request.min_bytes) > 0 and wanted:
        await _until(broker, enough, request.max_wait.total_seconds())
    grouped: dict[str, tuple[Any, list[Any]]] = {}
    for (topic, _), part in zip(wanted, read(), strict=True):
        grouped.setdefault(str(_name(topic)), (topic, []))[1].append(part)
    return api.response(
        throttle_time=timedelta(0),
        error_code=ErrorCode.none,
        session_id=0,
        responses=tuple(
            api.response_part("FetchableTopicResponse", **_named(topic), partitions=tuple(rows))
            for topic, rows in grouped.values()
        ),
        node_endpoints=(),
    )


def _read(broker: Broker, topic: Any, row: Any, api: Messages) -> Any:
    def part(code: ErrorCode, replica: Replica | None = None, data: bytes = b"") -> Any:
        mark = -1 if replica is None else replica.high_watermark
        return api.response_part(
            "PartitionData",
            partition_index=row.partition,
            error_code=code,
            high_watermark=mark,
            last_stable_offset=mark,
            log_start_offset=-1 if replica is None else replica.start,
            aborted_transactions=(),
            records=data,
        )

    try:
        key = broker.key_of(_name(topic), int(row.partition))
        # Since version 11 a follower serves consumers, too (KIP-392).
        broker.view(key, int(row.current_leader_epoch), leader=False)
    except Refused as refused:
        return part(refused.code)
    replica, offset = broker.replicas[key], int(row.fetch_offset)
    if offset < replica.start or offset > replica.end:
        return part(ErrorCode.offset_out_of_range, replica)
    data, size = [], 0
    for batch in _visible(replica, offset):
        if data and size + len(batch.data) > int(row.partition_max_bytes):
            break
        data.append(batch.data)
        size += len(batch.data)
    return part(ErrorCode.none, replica, b"".join(data))


def _visible(replica: Replica, offset: int) -> list[Batch]:
    by_end = attrgetter("end")
    first = bisect_right(replica.log, offset, key=by_end)
    return replica.log[first : bisect_right(replica.log, replica.high_watermark, key=by_end)]


# -- offsets


async def list_offsets(broker: Broker, request: Any, api: Messages) -> Any:
    debug = int(request.replica_id) == DEBUG_CONSUMER
    topics = []
    for topic in request.topics:
        rows = []
        for row in topic.partitions:
            try:
                key = broker.key_of(topic.name, int(row.partition_index))
                view = broker.view(key, int(row.current_leader_epoch), leader=not debug)
                offset, timestamp = _offset(broker.replicas[key], int(row.timestamp), debug)
                code, epoch = ErrorCode.none, view.epoch
            except Refused as refused:
                code, offset, timestamp, epoch = refused.code, -1, -1, -1
            rows.append(
                api.response_part(
                    "ListOffsetsPartitionResponse",
                    partition_index=row.partition_index,
                    error_code=code,
                    timestamp=timestamp,
                    offset=offset,
                    leader_epoch=epoch,
                )
            )
        topics.append(
            api.response_part("ListOffsetsTopicResponse", name=topic.name, partitions=tuple(rows))
        )
    return api.response(throttle_time=timedelta(0), topics=tuple(topics))


def _offset(replica: Replica, spec: int, debug: bool) -> tuple[int, int]:
    match spec:
        case -1:
            return (replica.end if debug else replica.high_watermark), -1
        case -2:
            return replica.start, -1
        case -4:
            return max(replica.start, replica.local_start), -1
        case -5:
            return -1, -1
        case -3:
            largest = max(replica.log, key=lambda b: b.header.max_timestamp, default=None)
            if largest is None:
                return -1, -1
            return largest.end - 1, largest.header.max_timestamp
    found = next((b for b in replica.log if b.header.max_timestamp >= spec), None)
    return (-1, -1) if found is None else (found.base, found.header.max_timestamp)


async def leader_epochs(broker: Broker, request: Any, api: Messages) -> Any:
    topics = []
    for topic in request.topics:
        rows = []
        for row in topic.partitions:
            try:
                key = broker.key_of(topic.topic, int(row.partition))
                broker.view(key, int(row.current_leader_epoch))
                epoch, end = broker.replicas[key].epoch_end(int(row.leader_epoch))
                code = ErrorCode.none
            except Refused as refused:
                code, epoch, end = refused.code, -1, -1
            rows.append(
                api.response_part(
                    "EpochEndOffset",
                    error_code=code,
                    partition=row.partition,
                    leader_epoch=epoch,
                    end_offset=end,
                )
            )
        topics.append(
            api.response_part(
                "OffsetForLeaderTopicResult", topic=topic.topic, partitions=tuple(rows)
            )
        )
    return api.response(throttle_time=timedelta(0), topics=tuple(topics))


# -- the cluster


async def metadata(broker: Broker, request: Any, api: Messages) -> Any:
    if request.topics is None:
        wanted: list[Any] = [(name, None) for name in sorted(broker.topics)]
    else:
        wanted = [(t.name, t.topic_id) for t in request.topics]
    found = []
    for name, topic_id in wanted:
        topic = (
            broker.topics.get(name)
            if name is not None
            else next((t for t in broker.topics.values() if t.id == topic_id), None)
        )
        rows = []
        for number in range(topic.partitions if topic is not None else 0):
            view = broker.views.get((topic.id, number))  # type: ignore[union-attr]
            if view is not None:
                rows.append(
                    api.response_part(
                        "MetadataResponsePartition",
                        error_code=ErrorCode.none,
                        partition_index=number,
                        leader_id=view.leader,
                        leader_epoch=view.epoch,
                        replica_nodes=view.replicas,
                        isr_nodes=view.in_sync,
                        offline_replicas=(),
                    )
                )
        unknown = (
            ErrorCode.unknown_topic_or_partition if name is not None else ErrorCode.unknown_topic_id
        )
        found.append(
            api.response_part(
                "MetadataResponseTopic",
                error_code=ErrorCode.none if topic is not None else unknown,
                name=topic.name if topic is not None else name,
                topic_id=topic.id if topic is not None else topic_id,
                is_internal=False,
                partitions=tuple(rows),
                topic_authorized_operations=ALL_OPERATIONS,
            )
        )
    return api.response(
        throttle_time=timedelta(0),
        brokers=tuple(
            api.response_part(
                "MetadataResponseBroker", node_id=node, host=host_of(node), port=PORT, rack=None
            )
            for node in sorted(broker.kafka.brokers)
        ),
        cluster_id="simulated",
        controller_id=min(broker.kafka.brokers),
        topics=tuple(found),
    )


async def describe_cluster(broker: Broker, request: Any, api: Messages) -> Any:
    """What a gateway that stands in asks for: nobody is led anywhere by it."""
    return api.response(
        throttle_time=timedelta(0),
        error_code=ErrorCode.none,
        error_message=None,
        cluster_id="simulated",
        controller_id=min(broker.kafka.brokers),
        brokers=(),
    )


ANSWERS: dict[int, Callable[[Broker, Any, Messages], Any]] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: leader_epochs,
    ApiKey.METADATA: metadata,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    **admin_wire.ANSWERS,
}


async def run_broker(broker: Broker, process: Process) -> None:
    """The broker's program: it listens and takes part."""
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: BrokerConnection(broker), host_of(broker.node), PORT)
    broker.start(process)
