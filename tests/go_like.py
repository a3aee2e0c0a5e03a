"""A producer that takes connections as franz-go does.

What distinguishes it from librdkafka and Java: a connection that is refused is tried again at once,
as often as need be; one that is accepted and ends before its first answer is an error, which fails
the record (``kgo.ErrFirstReadEOF``: somebody listens who does not speak Kafka). One that ends later
is made anew.
"""

from __future__ import annotations

import socket
import struct
import threading
import time

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v9.response import ProduceResponse
from kio.schema.types import TopicName
from kio.static.primitive import Records, i16, i32, i32Timedelta
from kio.static.protocol import RequestPayload, ResponsePayload

from tests.history.operations import Outcome, Produce
from tests.recorder import PERIOD_S, Recorder
from tests.support.waiting import Wait
from tideline.kafka.observer import milliseconds
from tideline.kafka.protocol import decode_response, encode_request

Address = tuple[str, int]
ANSWER_S = 30.0
RECORD_S = 300.0
"""kgo retries a record for ever by default."""


class Ended(Exception):
    """The connection ended. ``answered``: it had answered before. ``made``: when it was made,
    monotonic."""

    def __init__(self, answered: bool, made: float) -> None:
        super().__init__()
        self.answered, self.made = answered, made


class GoLikeProducer:
    """One record at a time to partition 0 of the recorder's topic, acks=all, not idempotent."""

    def __init__(self, recorder: Recorder, name: str, bootstrap: str) -> None:
        self._recorder, self.name, self._bootstrap = recorder, name, bootstrap
        self._seeds = [_address(text) for text in bootstrap.split(",")]
        self._leader: Address | None = None
        self._connection: Connection | None = None
        self._stop = threading.Event()
        self.refused: list[float] = []
        """When a connection was refused, monotonic."""
        self.failed: list[tuple[str, float, str]] = []
        """A record that was given up; when the connection was made, monotonic; why."""

    def start(self) -> None:
        self._recorder.start(self.name, self._run, self._stop)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(PERIOD_S):
            self._send(number)
            number += 1
        if self._connection is not None:
            self._connection.close()

    def _send(self, number: int) -> None:
        value, sent, attempts = f"{self.name}-{number}", time.monotonic(), 0
        base: int | None = None
        wait = Wait(value, RECORD_S)
        while base is None and not wait.over:
            try:
                leader = self._to_leader()
                attempts += 1
                base = self._attempt(leader, value)
            except ConnectionRefusedError:
                self.refused.append(time.monotonic())
                self._leave()
            except TimeoutError:
                self._leave()
            except Ended as ended:
                self._leave()
                if not ended.answered:
                    why = "the connection ended before its first answer"
                    self.failed.append((value, ended.made, why))
                    break
            if base is None:
                wait.pause()
        else:
            if base is None:
                self.failed.append((value, time.monotonic(), f"not told within {RECORD_S:.0f} s"))
        self._recorder.produced(
            Produce(
                self._recorder.partition, self.name, self._bootstrap, sent, time.monotonic(),
                (value,), Outcome.UNKNOWN if base is None else Outcome.ACKNOWLEDGED, number,
                base_offset=base, idempotent=False, attempts=max(1, attempts),
            )
        )  # fmt: skip

    def _attempt(self, leader: Connection, value: str) -> int | None:
        """Its offset; None after an error that Kafka calls retriable."""
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 16)
        builder.append(0, int(time.time() * 1000), None, value.encode(), [])
        row = PartitionProduceData(index=i32(0), records=Records(bytes(builder.build())))
        topic = TopicProduceData(name=TopicName(self._recorder.topic), partition_data=(row,))
        answer = leader.ask(
            ProduceRequest(
                acks=i16(-1),
                timeout=i32Timedelta.parse(milliseconds(10_000)),
                topic_data=(topic,),
            )
        )
        assert isinstance(answer, ProduceResponse)
        told = answer.responses[0].partition_responses[0]
        if told.error_code is ErrorCode.none:
            return int(told.base_offset)
        assert told.error_code.retriable, told.error_code
        self._leave()
        return None

    def _to_leader(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self._leader or self._find_leader())
        return self._connection

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._leader = None

    def _find_leader(self) -> Address:
        """From the seeds in turn; one that refuses is passed over."""
        seed = self._seeds.pop(0)
        self._seeds.append(seed)
        connection = Connection(seed)
        try:
            answer = connection.ask(
                MetadataRequest(
                    topics=(
                        MetadataRequestTopic(topic_id=None, name=TopicName(self._recorder.topic)),
                    ),
                    allow_auto_topic_creation=False,
                    include_topic_authorized_operations=False,
                )
            )
        finally:
            connection.close()
        assert isinstance(answer, MetadataResponse)
        partitions = {int(p.partition_index): int(p.leader_id) for p in answer.topics[0].partitions}
        for broker in answer.brokers:
            if int(broker.node_id) == partitions.get(0, -1):
                return broker.host, int(broker.port)
        raise ConnectionRefusedError(f"partition 0 of {self._recorder.topic} has no leader")


class Connection:
    """Blocking; one request at a time."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection(address, ANSWER_S)
        self._made = time.monotonic()
        self._answered = False
        self._correlation = 0

    def ask(self, message: RequestPayload) -> ResponsePayload:
        """Raises :class:`Ended`."""
        self._correlation += 1
        frame = encode_request(message, self._correlation, "go-like")
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            (size,) = struct.unpack(">i", self._read(4))
            answer = self._read(size)
        except TimeoutError:
            raise  # the connection stands
        except OSError as error:
            raise Ended(self._answered, self._made) from error
        self._answered = True
        return decode_response(answer, int(message.__api_key__), int(message.__version__))

    def _read(self, size: int) -> bytes:
        read = b""
        while len(read) < size:
            if not (piece := self._socket.recv(size - len(read))):
                raise Ended(self._answered, self._made)
            read += piece
        return read

    def close(self) -> None:
        self._socket.close()


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)
