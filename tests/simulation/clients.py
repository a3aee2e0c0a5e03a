"""Producers, consumers and readers as clients of Kafka are, and what they were told.

A producer's window slides: a new batch goes as soon as the oldest is answered. After an error or a
lost connection it sends what is unanswered again, with the same sequences: all of it in order
(librdkafka), or the first alone until that one is answered (Java: ``RecordAccumulator``'s
``shouldStopDrainBatchesForPartition``). What it has given up after :data:`DELIVERY_S` it never
sends again, and begins a new epoch at sequence 0 when nothing is in flight any more
(``TransactionManager.maybeResolveSequences``, ``rd_kafka_idemp_drain_epoch_bump``). A newer
librdkafka does so, too, after a batch that was refused since one before it was; an older one and
Java send it again as it is.

A consumer knows the leader epoch of what it read, validates its position when the leader moves, and
goes back to where the log diverged (KIP-320). Some clients go on with the leader, and the topic id,
that they know, until they are told that these are old.
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
    Away,
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
from tests.simulation.kafka import SEQUENCES
from tests.simulation.loop import WALL_START_S, VirtualLoop
from tideline.gateway.context import ApiKey
from tideline.gateway.messages import messages
from tideline.kafka.client import KafkaConnection
from tideline.kafka.errors import KafkaError, KafkaUnavailable, UnsupportedVersion

REQUEST_MS = 5_000
PRODUCE_TIMEOUT_S = 4.0
BACKOFF_S = 0.1
DELIVERY_S = 60.0
"""``delivery.timeout.ms`` and ``message.timeout.ms``, shorter, as runs are."""
HASTY_S = 3.0
"""The same of those who rather lose than wait."""
QUIET_S, QUIETER = 0.3, 16
"""For how long something that happened keeps producers busy, and how much longer they pause
afterwards, one batch at a time."""
QUIET_READ_S = 1.0
"""How long consumers pause between two fetches then."""
TICK_S = 0.5
RESETS = 0.04
"""Of the batches that are sent while something happens, those behind which the connection ends."""
STICKY = 2
"""How often a client comes back to the leader that it knows, without asking who leads."""
AWAY = (KafkaUnavailable, KafkaError, UnsupportedVersion, OSError)
FATAL = (
    ErrorCode.invalid_producer_epoch,
    ErrorCode.unknown_producer_id,
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.producer_fenced,
)
ENDS = (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)
"""Java's producer goes on in a new epoch after any other."""
FINAL = (ErrorCode.message_too_large, ErrorCode.corrupt_message, ErrorCode.invalid_record)


def timestamp_ms(at: float) -> int:
    """What a client's clock says at ``at`` seconds of the loop."""
    return int(WALL_START_S) * 1000 + int(at * 1000)


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
    stirred_at: float = 0.0
    """When something last happened that clients are busy around."""
    wakes: list[asyncio.Event] = field(default_factory=list)
    """Of those who pause until then."""
    _away: dict[str, float] = field(default_factory=dict)

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)

    def note(self, text: str) -> None:
        self.events.append(f"{self.loop.time():9.4f}  {text}")
        self.stir()

    def stir(self) -> None:
        """A milestone, or a fault that begins or ends: whoever pauses goes on."""
        self.stirred_at = self.loop.time()
        for wake in self.wakes:
            wake.set()

    def leaves(self, client: str) -> None:
        """From now on ``client`` reaches nobody: how long it waits is not judged."""
        self._away.setdefault(client, self.loop.time())

    def comes_back(self, client: str) -> None:
        """Nothing where it has come back already."""
        if (since := self._away.pop(client, None)) is not None:
            self.add(Away(client, since, self.loop.time()))

    @property
    def is_quiet(self) -> bool:
        return self.loop.time() - self.stirred_at > QUIET_S


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
        self._leads: tuple[str, int] | None = None
        """Who leads, as long as nobody has said otherwise."""
        self._is_sticky, self._came_back = self._chance.random() < 0.5, 0

    async def find(self) -> None:
        """Connect to the partition's leader."""
        self.drop()
        self.stream = next(self._history.connections)
        known, self._leads = self._leads, None
        if known is not None and self._is_sticky and self._came_back < STICKY:
            self._came_back += 1
            self.connection = await KafkaConnection.open(
                *known, client_id=self.name, timeout_ms=2000
            )
            self.via, self._leads = known[0], known
            return
        self._came_back = 0
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
                self.connection, self.via, self._leads = first, host, address
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
            self.via, self._leads = address[0], address
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

    def told_otherwise(self) -> None:
        """What it knows of the leader or of the topic is old."""
        self._leads = None
        self.drop()


@dataclass
class Sent:
    """One batch on its way."""

    number: int
    values: tuple[str, ...]
    sequence: int
    invoked: float
    acks: int
    attempts: int = 0
    flying: bool = False
    """Its last attempt is not answered yet."""
    epoch: int = 0
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
        self._label = name
        self._producer_id = -1
        self._number = self._sequence = self._epoch = 0
        self._waiting: list[Sent] = []
        self._unresolved = False
        """Nothing new is sent before a new epoch begins."""
        self._gap = False
        """Something was given up, and may be missing in the log, or Java's producer has been told
        that something is."""
        self._attempts: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        history.wakes.append(self._wake)
        self._next_at = self._retry_at = 0.0
        self._failures = 0
        self._patience_ms = self._chance.choice((REQUEST_MS, REQUEST_MS, 300))
        """For an answer; twice as long after each failure."""
        hasty = random.Random(f"hasty {name} {loop.network.seed}").random() < 1 / 3
        self._delivery_s = HASTY_S if hasty else DELIVERY_S
        self._bumps = style is Style.LIBRDKAFKA and self._chance.random() < 0.5
        self.stopping = False
        plain = self._chance.choice((1, 5))
        self.limit = {Style.LIBRDKAFKA: 5, Style.JAVA: 5, Style.PLAIN: plain}[style]
        self._begin()

    def _begin(self) -> None:
        """A producer id of its own: the one before may have lost its place. Kafka takes any first
        sequence of one that it does not know; some are soon at the last one, behind which is 0."""
        life = next(self._lives)
        self._label = f"{self.name}.{life}"
        known = int(self.name.rsplit("-", 1)[1])
        self._producer_id = -1 if self._style is Style.PLAIN else 1000 * known + life
        self._number, self._epoch = 0, 0
        self._unresolved = self._gap = False
        self._since = self.loop.time()
        self._sequence = self._chance.choice((0, 0, SEQUENCES - self._chance.randint(1, 60)))

    async def run(self) -> None:
        while not (self.stopping and not self._waiting):
            try:
                if self.connection is None or self.connection.is_closed:
                    await self.find()
            except AWAY:
                self.drop()
                await asyncio.sleep(BACKOFF_S)
            self._give_up_late()
            if self.connection is not None:
                self._send_again()
                self._send_new()
            await self._pause()

    @property
    def _again(self) -> list[Sent]:
        """What is to be sent again; before a new epoch begins, what belongs to the old one."""
        idle = [sent for sent in self._waiting if not sent.flying]
        return [sent for sent in idle if sent.attempts or not self._unresolved]

    @property
    def _has_room(self) -> bool:
        """Whether it may send something new."""
        if self.stopping or self._unresolved or any(not sent.flying for sent in self._waiting):
            return False
        return len(self._waiting) < (1 if self._history.is_quiet else self.limit)

    async def _pause(self) -> None:
        """Until the next batch is due, something is to be sent again, or something happens."""
        now = self.loop.time()
        until = now + TICK_S
        if self._again and self._retry_at > now:
            until = self._retry_at
        elif self._has_room and self._next_at > now:
            until = min(until, self._next_at)
        alarm = self.loop.call_at(until, self._wake.set)
        await self._wake.wait()
        alarm.cancel()
        self._wake.clear()

    def _send_new(self) -> None:
        """One batch more, if there is room and time for it."""
        now, quiet = self.loop.time(), self._history.is_quiet
        pause = self._every_s * self._chance.uniform(0.1, 0.5) * (QUIETER if quiet else 1)
        self._next_at = min(self._next_at, now + pause)
        if now < self._next_at or not self._has_room:
            return
        self._next_at = now + pause
        count = self._chance.choice((1, 1, 2, 3))
        values = tuple(f"{self._label}/{self._number}/{i}" for i in range(count))
        sent = Sent(self._number, values, self._sequence, now, -1, epoch=self._epoch)
        self._number += 1
        self._sequence = (self._sequence + count) % SEQUENCES
        self._waiting.append(sent)
        self._send(sent)
        if not quiet and self._chance.random() < RESETS:
            self.loop.call_later(self._chance.uniform(0.0, 0.02), self.drop)

    def _send_again(self) -> None:
        if self.loop.time() < self._retry_at:
            return
        again = self._again
        if self._style is Style.JAVA and again:
            alone = again[0] is self._waiting[0] or not any(s.flying for s in self._waiting)
            again = again[:1] if alone else []
        for sent in again:
            self._send(sent)

    def _give_up_late(self) -> None:
        """What is older than the delivery timeout; and a new epoch once everything is settled."""
        late = [s for s in self._waiting if self.loop.time() - s.invoked > self._delivery_s]
        for sent in late:
            self._history.note(f"{self._label} gives batch {sent.number} up")
            self._done(sent, Outcome.UNKNOWN, None)
            self._unresolved = self._gap = self._style is not Style.PLAIN
        if self._unresolved and not any(sent.attempts for sent in self._waiting):
            self._unresolved, self._gap, self._sequence = False, False, 0
            self._epoch += 1
            for sent in self._waiting:
                sent.epoch, sent.sequence = self._epoch, self._sequence
                self._sequence += len(sent.values)

    def _send(self, sent: Sent) -> None:
        sent.flying = True
        task = asyncio.ensure_future(self._attempt(sent))
        self._attempts.add(task)
        task.add_done_callback(self._attempts.discard)

    async def _attempt(self, sent: Sent) -> None:
        connection = self.connection
        try:
            code, base = await self._ask_for(sent)
        except AWAY:
            sent.flying, sent.earlier = False, True
            if self.connection is connection:
                self._failures += 1
                self.drop()
            self._retry_at = self.loop.time() + BACKOFF_S
        else:
            sent.flying = False
            if sent in self._waiting:  # else it was given up
                self._judge(sent, code, base)
        self._wake.set()

    def _judge(self, sent: Sent, code: ErrorCode, base: int) -> None:
        if code is ErrorCode.none or code is ErrorCode.duplicate_sequence_number:
            self._failures = 0
            self._done(sent, Outcome.ACKNOWLEDGED, base if base >= 0 else None)
            return
        self._retry_at = self.loop.time() + BACKOFF_S
        if code is ErrorCode.out_of_order_sequence_number and self._waits(sent):
            return
        if code in FATAL and len(self.lives.possible(self._since)) == 1:
            sent.fatal = code.name  # of one topic, in which it has its place
        if code in FINAL:
            sent.fatal = code.name  # its records are as they are to be: no log may refuse them
        if code in FATAL and self._style is Style.JAVA and code not in ENDS:
            self._history.note(f"{self._label}: {code.name} for batch {sent.number}")
            sent.attempts, self._unresolved, self._gap = 0, True, True
        elif code in FINAL or code in FATAL:
            self._history.note(f"{self._label}: {code.name} for batch {sent.number}")
            for other in list(self._waiting):
                refused = other is sent and not sent.earlier and code in FINAL
                self._done(other, Outcome.REFUSED if refused else Outcome.UNKNOWN, None)
            self._begin()
        else:
            self._failures += 1
            if code not in (ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition):
                sent.earlier = True
            self.told_otherwise()

    def _waits(self, sent: Sent) -> bool:
        """Whether a batch that was refused for its sequence only has to come again, since one
        before it is missing: behind that, or in the next epoch."""
        if self._waiting[0] is sent and not self._gap:
            return False
        if self._gap and sent.earlier:  # what was lost on the way may yet be done
            self._done(sent, Outcome.UNKNOWN, None)
        elif (self._unresolved or self._bumps) and not sent.earlier:
            sent.attempts, self._unresolved = 0, True
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

    async def _ask_for(self, sent: Sent) -> tuple[ErrorCode, int]:
        if self.connection is None:
            raise KafkaUnavailable("the connection was reset before it was sent")
        sent.attempts += 1
        sent.stream = self.stream
        idempotent = self._style is not Style.PLAIN
        data = records.batch(
            sent.values,
            sent.timestamp,
            self._producer_id,
            sent.epoch if idempotent else -1,
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
        patience_ms = min(REQUEST_MS, self._patience_ms * 2 ** min(self._failures, 5))
        answer: Any = await self.connection.send(request, timeout_ms=patience_ms)
        sent.ids = (topic_id,) if self._by_id else self._meant(began)
        row = answer.responses[0].partition_responses[0]
        return row.error_code, int(row.base_offset)

    @property
    def begun(self) -> int:
        """Batches, of its producer id."""
        return self._number

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
        hurries: bool = False,
    ) -> None:
        """``hurries``: it pauses nowhere on its way to the end."""
        super().__init__(loop, name, gateways, topic, history, lives, number)
        self._hurries = hurries
        self._wake = asyncio.Event()
        history.wakes.append(self._wake)
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
                if self._history.is_quiet and not self._hurries:
                    await self._pause()
            except AWAY:
                self.drop()
                await asyncio.sleep(BACKOFF_S)

    async def _pause(self) -> None:
        """It has to do with what it has read, unless something happens."""
        self._wake.clear()
        alarm = self.loop.call_later(QUIET_READ_S, self._wake.set)
        await self._wake.wait()
        alarm.cancel()

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
            self.told_otherwise()
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
            self.told_otherwise()
            raise KafkaUnavailable(row.error_code.name)
        return offset

    def _reset(self) -> None:
        """Its position is out of range (``auto.offset.reset=earliest``)."""
        self._begins, self._sought = Which.EARLIEST, False
        self._reader = f"{self.name}@{self.loop.time():.3f}"

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
        end = int(row.end_offset)
        self._history.add(
            EpochEnd(
                self._partition(self.topic_id, self.number),
                self.via,
                invoked,
                self.loop.time(),
                self.position,
                None if failed else end,
                row.error_code.name if failed else None,
            )
        )
        if failed:
            self.told_otherwise()
            raise KafkaUnavailable("the position is not validated")
        self._validated = self.leader_epoch
        if 0 <= end < self.position:
            self.position = end

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
                            current_leader_epoch=self.leader_epoch if self._by_id else -1,
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
            self.told_otherwise()
            raise KafkaUnavailable("the whole fetch failed")
        row = answer.responses[0].partitions[0]
        if row.error_code is not ErrorCode.none:
            self._history.add(replace(before, answered=self.loop.time(), error=row.error_code.name))
            self.told_otherwise()
            if row.error_code is ErrorCode.offset_out_of_range:
                self._reset()
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

    _reset = _at_end

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
