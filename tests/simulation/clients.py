"""Producers, consumers and readers as clients of Kafka are, and what they were told.

A producer keeps several batches in flight; after an error or a lost connection it sends what is
unanswered again, in order, with the same sequences (librdkafka), or stops the pipeline until the
first is answered and begins a new epoch of sequences where Kafka asks for it (Java). A consumer
knows the leader epoch of what it read and validates its position when the leader moves (KIP-320).
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from tests.history.operations import (
    EpochEnd,
    Fetch,
    ListOffsets,
    Operation,
    Outcome,
    Partition,
    Produce,
    Which,
)
from tests.simulation import records
from tests.simulation.identities import Lives
from tests.simulation.loop import VirtualLoop
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages
from tideline.kafka.client import KafkaConnection
from tideline.kafka.errors import KafkaError, KafkaUnavailable, UnsupportedVersion

REQUEST_MS = 5_000
PRODUCE_TIMEOUT_S = 4.0
BACKOFF_S = 0.1
AWAY = (KafkaUnavailable, KafkaError, UnsupportedVersion, OSError)
FATAL = (
    ErrorCode.invalid_producer_epoch,
    ErrorCode.unknown_producer_id,
    ErrorCode.out_of_order_sequence_number,
)
FINAL = (ErrorCode.message_too_large, ErrorCode.corrupt_message, ErrorCode.invalid_record)


def timestamp_ms(at: float) -> int:
    """What a client's clock says at ``at`` seconds of the loop."""
    return 1_700_000_000_000 + int(at * 1000)


class Style(Enum):
    LIBRDKAFKA = "librdkafka"
    JAVA = "java"
    PLAIN = "plain"
    """Without idempotence."""


@dataclass
class History:
    """What the checker is given, and a log of events for people."""

    loop: VirtualLoop
    operations: list[Operation] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    connections: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Numbers for them."""

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)

    def note(self, text: str) -> None:
        self.events.append(f"{self.loop.time():9.4f}  {text}")


class Client:
    """Finds a topic's leader among the gateways and talks to it."""

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        gateways: list[tuple[str, int]],
        topic: str,
        history: History,
        lives: Lives,
        number: int = 0,
    ) -> None:
        """``number``: the partition that it writes or reads. ``lives``: what the name has meant,
        for the history; the client itself does not look."""
        self.loop, self.name, self.topic, self.number = loop, name, topic, number
        self.lives, self._history = lives, history
        self._bootstrap = gateways
        self._chance = random.Random(f"client {name} {loop.network.seed}")
        self.connection: KafkaConnection | None = None
        self.via = ""
        self.stream = 0
        """The connection's number."""
        self.topic_id = UUID(int=0)
        self.leader_epoch = -1

    async def find(self) -> None:
        """Connect to the partition's leader."""
        self.drop()
        self.stream = next(self._history.connections)
        order = list(self._bootstrap)
        self._chance.shuffle(order)
        for host, port in order:
            try:
                first = await KafkaConnection.open(host, port, client_id=self.name, timeout_ms=2000)
            except AWAY:
                continue
            try:
                address = await self._leader(first)
            except AWAY:
                first.close()
                continue
            if address == (host, port):
                self.connection, self.via = first, host
                return
            first.close()
            if address is None:
                continue
            try:
                self.connection = await KafkaConnection.open(
                    *address, client_id=self.name, timeout_ms=2000
                )
            except AWAY:
                continue
            self.via = address[0]
            return
        raise KafkaUnavailable("no gateway leads to the leader")

    async def _leader(self, connection: KafkaConnection) -> tuple[str, int] | None:
        answer: Any = await connection.send(
            MetadataRequest(
                topics=(MetadataRequestTopic(topic_id=None, name=TopicName(self.topic)),),
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            ),
            timeout_ms=REQUEST_MS,
        )
        (found,) = answer.topics
        if found.error_code is not ErrorCode.none or not found.partitions:
            return None
        rows = {int(row.partition_index): row for row in found.partitions}
        if (row := rows.get(self.number)) is None:
            return None
        self.topic_id, self.leader_epoch = found.topic_id, int(row.leader_epoch)
        for node in answer.brokers:
            if node.node_id == row.leader_id:
                return str(node.host), int(node.port)
        return None

    def _meant(self, since: float) -> tuple[UUID, ...]:
        """The topics that an answer by name may be of which was asked for at ``since``."""
        return tuple(self.lives.possible(since, self.loop.time()))

    def drop(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


@dataclass
class Sent:
    """One batch on its way."""

    number: int
    values: tuple[str, ...]
    sequence: int
    invoked: float
    acks: int
    attempts: int = 0
    earlier: bool = False
    """An attempt may have been appended."""
    ids: tuple[UUID, ...] = ()
    """Which topics the last answer may be of."""
    asked: set[UUID] = field(default_factory=set)
    """The ids in its requests; none by name."""
    stream: int = 0
    """The connection of its last attempt."""
    fatal: str | None = None
    """The error by which its producer was over, which it was told."""

    @property
    def timestamp(self) -> int:
        """ms, of all its records."""
        return timestamp_ms(self.invoked)


class Producer(Client):
    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        gateways: list[tuple[str, int]],
        topic: str,
        style: Style,
        history: History,
        lives: Lives,
        *,
        every_s: float,
        by_id: bool,
        partition: Callable[[UUID, int], Partition],
        number: int = 0,
    ) -> None:
        super().__init__(loop, name, gateways, topic, history, lives, number)
        self._style, self._every_s = style, every_s
        self._by_id, self._version = by_id, 13 if by_id else 11
        self._elsewhere: list[tuple[Sent, Produce]] = []
        self._over = False
        self._partition = partition
        self._lives = itertools.count(1)
        self._numbers = itertools.count()
        self._label = name
        self._producer_id = -1
        self._number = self._sequence = 0
        self._waiting: list[Sent] = []
        self.stopping = False
        plain = self._chance.choice((1, 5))
        self.limit = {Style.LIBRDKAFKA: 5, Style.JAVA: 3, Style.PLAIN: plain}[style]
        self._begin()

    def _begin(self) -> None:
        """A producer id of its own: the one before may have lost its place."""
        life = next(self._lives)
        self._label = f"{self.name}.{life}"
        known = int(self.name.rsplit("-", 1)[1])
        self._producer_id = -1 if self._style is Style.PLAIN else 1000 * known + life
        self._number = self._sequence = 0

    async def run(self) -> None:
        while not (self.stopping and not self._waiting):
            try:
                await self._round()
            except AWAY:
                self.drop()
                await asyncio.sleep(BACKOFF_S)

    def _fill(self) -> None:
        while len(self._waiting) < self.limit and not self.stopping:
            count = self._chance.choice((1, 1, 2, 3))
            values = tuple(f"{self._label}/{self._number}/{i}" for i in range(count))
            sent = Sent(self._number, values, self._sequence, self.loop.time(), -1)
            self._number += 1
            self._sequence += count
            self._waiting.append(sent)

    async def _round(self) -> None:
        """Send all that waits, pipelined, and hear every answer."""
        if self.connection is None or self.connection.is_closed:
            await self.find()
        await asyncio.sleep(self._every_s * self._chance.uniform(0.5, 1.5))
        self._fill()
        if not self._waiting:
            return
        answers = [asyncio.ensure_future(self._send(sent)) for sent in list(self._waiting)]
        sent_now = list(self._waiting)
        results = await asyncio.gather(*answers, return_exceptions=True)
        retry = False
        for sent, result in zip(sent_now, results, strict=True):
            if isinstance(result, BaseException):
                if not isinstance(result, AWAY):
                    raise result
                sent.earlier = True
                retry = True
                self.drop()
                continue
            code, base = result
            retry = self._judge(sent, code, base, retry) or retry
        if retry:
            await asyncio.sleep(BACKOFF_S)

    def _judge(self, sent: Sent, code: ErrorCode, base: int, behind: bool) -> bool:
        """Whether it has to be sent again."""
        if sent not in self._waiting:
            return False
        if code is ErrorCode.none or code is ErrorCode.duplicate_sequence_number:
            self._done(sent, Outcome.ACKNOWLEDGED, base if base >= 0 else None)
            return False
        if code is ErrorCode.out_of_order_sequence_number and (
            behind or self._waiting[0] is not sent
        ):
            return True  # one before it was not appended yet
        if code in FINAL or code in FATAL:
            self._history.note(f"{self._label}: {code.name} for batch {sent.number}")
            sent.fatal = code.name if code in FATAL else None
            for other in list(self._waiting):
                refused = other is sent and not sent.earlier and code in FINAL
                self._done(other, Outcome.REFUSED if refused else Outcome.UNKNOWN, None)
            self._begin()
            return False
        if code not in (ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition):
            sent.earlier = True
        self.drop()
        return True

    def _done(self, sent: Sent, outcome: Outcome, base: int | None) -> None:
        self._waiting.remove(sent)
        topic_id = self.topic_id
        if outcome is Outcome.ACKNOWLEDGED:
            topic_id, *others = sent.ids
            if others:  # told, and nobody can say of which topic
                outcome, base = Outcome.UNKNOWN, None
        produce = Produce(
            partition=self._partition(topic_id, self.number),
            producer=self._label,
            via=self.via,
            invoked=sent.invoked,
            answered=None if self._over else self.loop.time(),
            values=sent.values,
            outcome=outcome,
            number=sent.number,
            base_offset=base,
            idempotent=self._style is not Style.PLAIN,
            attempts=max(1, sent.attempts),
            fatal=sent.fatal,
            connection=sent.stream if sent.attempts == 1 else None,
            timestamp=sent.timestamp,
        )
        self._history.add(produce)
        if outcome is Outcome.UNKNOWN or sent.attempts > 1:
            self._elsewhere.append((sent, produce))

    def tell_elsewhere(self) -> None:
        """The run is over: what may be in another topic of the name, too, by one of its attempts,
        is said of that one."""
        for sent, produce in self._elsewhere:
            for topic_id in sorted(sent.asked) or self.lives.possible(sent.invoked):
                other = self._partition(topic_id, self.number)
                if other != produce.partition:
                    self._history.add(
                        replace(
                            produce,
                            partition=other,
                            outcome=Outcome.UNKNOWN,
                            base_offset=None,
                        )
                    )

    async def _send(self, sent: Sent) -> tuple[ErrorCode, int]:
        assert self.connection is not None
        sent.attempts += 1
        sent.stream = self.stream
        idempotent = self._style is not Style.PLAIN
        data = records.batch(
            sent.values,
            sent.timestamp,
            self._producer_id,
            0 if idempotent else -1,
            sent.sequence if idempotent else -1,
        )
        api = messages(ApiKey.PRODUCE, self._version)
        request = api.request(
            transactional_id=None,
            acks=-1,
            timeout=timedelta(seconds=PRODUCE_TIMEOUT_S),
            topic_data=(
                api.request_part(
                    "TopicProduceData",
                    name=self.topic,
                    topic_id=self.topic_id,
                    partition_data=(
                        api.request_part("PartitionProduceData", index=self.number, records=data),
                    ),
                ),
            ),
        )
        began, topic_id = self.loop.time(), self.topic_id
        if self._by_id:
            sent.asked.add(topic_id)
        answer: Any = await self.connection.send(request, timeout_ms=REQUEST_MS)
        sent.ids = (topic_id,) if self._by_id else self._meant(began)
        row = answer.responses[0].partition_responses[0]
        return row.error_code, int(row.base_offset)

    @property
    def busy(self) -> bool:
        """Something is unanswered."""
        return bool(self._waiting)

    def give_up(self) -> None:
        """The run is over: what is unanswered stays so."""
        self._over = True
        for sent in list(self._waiting):
            self._done(sent, Outcome.UNKNOWN, None)


class Consumer(Client):
    """Reads without a group, from the front, from a time or from the end on."""

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        gateways: list[tuple[str, int]],
        topic: str,
        history: History,
        lives: Lives,
        *,
        by_id: bool,
        partition: Callable[[UUID, int], Partition],
        number: int = 0,
        begins: Which = Which.EARLIEST,
    ) -> None:
        super().__init__(loop, name, gateways, topic, history, lives, number)
        self._partition, self._begins = partition, begins
        self._sought = False
        self._by_id, self._version = by_id, 16 if by_id else 12
        self._reads = UUID(int=0)
        self._reader = name
        self.position = 0
        self._epoch_read = -1
        self._validated = -1
        self.watermark = -1
        self.most_bytes = 1 << 16
        self.reached = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                if self.connection is None or self.connection.is_closed:
                    await self.find()
                    if self.topic_id != self._reads:
                        self._begin_anew()
                    if self._epoch_read >= 0 and self.leader_epoch != self._validated:
                        await self._validate()
                if not self._sought:
                    await self._seek()
                await self._fetch()
            except AWAY:
                self.drop()
                await asyncio.sleep(BACKOFF_S)

    def _begin_anew(self) -> None:
        """The name means another topic, which is read from its front."""
        if self._reads.int:
            self._reader = f"{self.name}@{self.topic_id}"
        self._reads = self.topic_id
        self.position, self.watermark, self._sought = 0, -1, False
        self._epoch_read = self._validated = -1

    def _assert_is_it(self, since: float) -> None:
        """An answer by name that may be of another topic is not judged, and not gone by."""
        if self._meant(since) != (self.topic_id,):
            raise KafkaUnavailable("the name means another topic, or may")

    async def _ask(self, which: Which, timestamp: int | None = None) -> int | None:
        """An offset by ListOffsets; ``None``: there is none of that time or later."""
        assert self.connection is not None
        api = messages(ApiKey.LIST_OFFSETS, 8)
        spec = {Which.LATEST: -1, Which.EARLIEST: -2, Which.BY_TIME: timestamp}[which]
        part = api.request_part(
            "ListOffsetsPartition",
            partition_index=self.number,
            current_leader_epoch=-1,
            timestamp=spec,
        )
        topic = api.request_part("ListOffsetsTopic", name=self.topic, partitions=(part,))
        request = api.request(replica_id=-1, isolation_level=0, topics=(topic,))
        invoked = self.loop.time()
        answer: Any = await self.connection.send(request, timeout_ms=REQUEST_MS)
        self._assert_is_it(invoked)
        row = answer.topics[0].partitions[0]
        failed = row.error_code is not ErrorCode.none
        offset = None if failed or row.offset < 0 else int(row.offset)
        self._history.add(
            ListOffsets(
                self._partition(self.topic_id, self.number),
                self.via,
                invoked,
                self.loop.time(),
                which,
                offset,
                row.error_code.name if failed else None,
                timestamp,
                self.stream,
            )
        )
        if failed:
            raise KafkaUnavailable(row.error_code.name)
        return offset

    async def _seek(self) -> None:
        """To where it begins to read."""
        found = None
        if self._begins is Which.BY_TIME:
            at = self.loop.time() * self._chance.random()
            found = await self._ask(Which.BY_TIME, timestamp_ms(at))
        if found is None:
            which = Which.EARLIEST if self._begins is Which.EARLIEST else Which.LATEST
            found = await self._ask(which)
        self.position = found or 0
        self._sought = True

    async def _validate(self) -> None:
        """The log did not diverge below the position, as the leader of a new epoch says."""
        assert self.connection is not None
        api = messages(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4)
        request = api.request(
            replica_id=-1,
            topics=(
                api.request_part(
                    "OffsetForLeaderTopic",
                    topic=self.topic,
                    partitions=(
                        api.request_part(
                            "OffsetForLeaderPartition",
                            partition=self.number,
                            current_leader_epoch=self.leader_epoch,
                            leader_epoch=self._epoch_read,
                        ),
                    ),
                ),
            ),
        )
        invoked = self.loop.time()
        answer: Any = await self.connection.send(request, timeout_ms=REQUEST_MS)
        self._assert_is_it(invoked)
        row = answer.topics[0].partitions[0]
        failed = row.error_code is not ErrorCode.none
        self._history.add(
            EpochEnd(
                self._partition(self.topic_id, self.number),
                self.via,
                invoked,
                self.loop.time(),
                self.position,
                None if failed else int(row.end_offset),
                row.error_code.name if failed else None,
            )
        )
        if failed:
            raise KafkaUnavailable("the position is not validated")
        self._validated = self.leader_epoch

    async def _fetch(self) -> None:
        assert self.connection is not None
        api = messages(ApiKey.FETCH, self._version)
        request = api.request(
            replica_id=-1,
            max_wait=timedelta(milliseconds=500),
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=(
                api.request_part(
                    "FetchTopic",
                    topic=self.topic,
                    topic_id=self.topic_id,
                    partitions=(
                        api.request_part(
                            "FetchPartition",
                            partition=self.number,
                            current_leader_epoch=-1,
                            fetch_offset=self.position,
                            last_fetched_epoch=-1,
                            log_start_offset=-1,
                            partition_max_bytes=self.most_bytes,
                        ),
                    ),
                ),
            ),
            forgotten_topics_data=(),
            rack_id="",
        )
        invoked = self.loop.time()
        before = Fetch(
            self._partition(self.topic_id, self.number),
            self._reader,
            self.via,
            invoked,
            None,
            self.position,
            connection=self.stream,
        )
        answer: Any = await self.connection.send(request, timeout_ms=REQUEST_MS)
        if not self._by_id:
            self._assert_is_it(invoked)
        if answer.error_code is not ErrorCode.none or not answer.responses:
            raise KafkaUnavailable("the whole fetch failed")
        row = answer.responses[0].partitions[0]
        if row.error_code is not ErrorCode.none:
            self._history.add(replace(before, answered=self.loop.time(), error=row.error_code.name))
            raise KafkaUnavailable(row.error_code.name)
        found = [
            (offset, value, epoch)
            for offset, value, epoch in records.read(bytes(row.records or b""))
            if offset >= self.position
        ]
        self.watermark = int(row.high_watermark)
        self._history.add(
            replace(
                before,
                answered=self.loop.time(),
                records=tuple((offset, value) for offset, value, _ in found),
                high_watermark=self.watermark,
                log_start=int(row.log_start_offset),
                last_stable=int(row.last_stable_offset),
            )
        )
        if found:
            self.position = found[-1][0] + 1
            self._epoch_read = found[-1][2]
        elif self.watermark <= self.position:
            self._at_end()

    def _at_end(self) -> None:
        self.reached.set()


class Prober(Consumer):
    """Asks for one position after another, as consumers that seek do: for each until it is shown
    something, or nothing is to be shown. And for the offsets of some times."""

    positions: tuple[int, ...] = ()
    times: tuple[float, ...] = ()
    """Seconds of the loop."""
    _is_answered = False

    async def run(self) -> None:
        for place in self.positions:
            self.position, self._reader = place, f"{self.name}@{place}"
            self.most_bytes = self._chance.choice((1, 200, 1 << 16))
            self._is_answered = False
            while self.position == place and not self._is_answered:
                await self._try(self._fetch)
        for time in map(timestamp_ms, self.times):
            while not await self._try(partial(self._ask, Which.BY_TIME, time)):
                pass
        self.reached.set()

    def _at_end(self) -> None:
        self._is_answered = True

    async def _try(self, ask: Callable[[], Awaitable[object]]) -> bool:
        try:
            if self.connection is None or self.connection.is_closed:
                await self.find()
            await ask()
        except AWAY:
            self.drop()
            await asyncio.sleep(BACKOFF_S)
            return False
        return True
