"""A small model of Kafka: brokers, replicas, leaders, in-sync replicas, topics that come and go.

What a broker knows of a partition (its view) comes from the controller by messages: one that is
cut off goes on as the leader of its old epoch. Epochs, truncation and idempotence follow
``ReplicaManager``, ``UnifiedLog``, ``ProducerAppendInfo`` and KIP-101.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid5

from kio.schema.errors import ErrorCode

from tests.simulation.identities import Lives
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.milestones import Milestones
from tests.simulation.network import Network
from tideline.kafka.batches import BatchHeader, iter_batches

SPACE = UUID("8c1b4d2e-5a3f-4a55-9c53-0a4f6f3a7b11")
HEARTBEAT_S, SESSION_S, LAG_S = 0.5, 2.5, 3.0
KEPT_BATCHES = 5
"""``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``."""
SEQUENCES = 2**31
Key = tuple[UUID, int]


@dataclass(frozen=True)
class Batch:
    base: int
    header: BatchHeader
    data: bytes
    epoch: int

    @property
    def end(self) -> int:
        return self.base + self.header.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """``DefaultRecordBatch.incrementSequence``: 0 follows the largest."""
        return (self.header.base_sequence + self.header.last_offset_delta) % SEQUENCES


@dataclass(frozen=True)
class View:
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    version: int = 0
    """Grows with every decision in one epoch (``PartitionState.partitionEpoch``)."""


@dataclass
class Topic:
    name: str
    id: UUID
    partitions: int
    configs: dict[str, str] = field(default_factory=dict)


@dataclass
class Replica:
    """One partition on one broker's disk."""

    log: list[Batch] = field(default_factory=list)
    start: int = 0
    high_watermark: int = 0
    local_start: int = 0
    """What lies below is in remote storage only; it is read all the same."""
    reconciled: int = -1
    """Newest epoch in which its tail was compared with the leader's."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, first offset), ascending."""

    @property
    def end(self) -> int:
        return self.log[-1].end if self.log else self.start

    def note_epoch(self, epoch: int, start: int) -> None:
        if not self.epochs or self.epochs[-1][0] < epoch:
            self.epochs.append((epoch, start))

    def take(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self.note_epoch(batch.epoch, batch.base)
            self.log.append(batch)

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` batches."""
        if count < len(self.log):
            self.log = self.log[:count]
            end = self.end
            self.epochs = [entry for entry in self.epochs if entry[1] < end]
            self.high_watermark = min(self.high_watermark, end)

    def of_producer(self, producer_id: int) -> list[Batch]:
        own = [batch for batch in self.log if batch.header.producer_id == producer_id]
        return own[-KEPT_BATCHES:]

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Kafka: ``LeaderEpochFileCache.endOffsetFor``."""
        if not self.epochs or epoch < 0:
            return -1, -1
        if epoch == self.epochs[-1][0]:
            return epoch, self.end
        higher = [entry for entry in self.epochs if entry[0] > epoch]
        lower = [entry for entry in self.epochs if entry[0] <= epoch]
        if not higher:
            return -1, -1
        return (lower[-1][0] if lower else epoch), higher[0][1]


class Refused(Exception):
    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class Broker:
    """One broker process; its replicas outlive it."""

    def __init__(self, kafka: Kafka, node: int) -> None:
        self.kafka, self.node = kafka, node
        self.replicas: dict[Key, Replica] = {}
        self.views: dict[Key, View] = {}
        self.topics: dict[str, Topic] = {}
        self.followed: dict[Key, dict[int, tuple[int, float]]] = {}
        """As leader: each follower's log end, and when it last had everything."""
        self.growing: dict[Key, set[int]] = {}
        """As leader: replicas that the controller is asked to take into the in-sync set; they
        count at once (``PendingExpandIsr``)."""
        self.throttled: dict[str, float] = {}
        """Client ids whose fetches are over their quota, and for how many seconds each is told to
        wait."""
        self.changed = asyncio.Event()
        self.process: Process

    def start(self, process: Process) -> None:
        self.process = process
        process.spawn(self._tick(), "tick")

    def pulse(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def key_of(self, name: str | UUID, partition: int) -> Key:
        if isinstance(name, UUID):
            if all(topic.id != name for topic in self.topics.values()):
                raise Refused(ErrorCode.unknown_topic_id)
            return name, partition
        topic = self.topics.get(name)
        if topic is None or partition >= topic.partitions:
            raise Refused(ErrorCode.unknown_topic_or_partition)
        return topic.id, partition

    def view(self, key: Key, epoch: int = -1, *, leader: bool = True) -> View:
        found = self.views.get(key)
        if found is None:
            raise Refused(ErrorCode.unknown_topic_or_partition)
        if epoch >= 0 and epoch != found.epoch:
            raise Refused(
                ErrorCode.fenced_leader_epoch
                if epoch < found.epoch
                else ErrorCode.unknown_leader_epoch
            )
        if leader and found.leader != self.node:
            raise Refused(ErrorCode.not_leader_or_follower)
        if self.node not in found.replicas:
            raise Refused(ErrorCode.not_leader_or_follower)
        return found

    # -- appends

    def append(self, key: Key, data: bytes) -> tuple[int, int]:
        """(base offset, end) of the batch; a duplicate has those of the first one."""
        view = self.view(key)
        topic = next(t for t in self.topics.values() if t.id == key[0])
        if len(data) > int(topic.configs.get("max.message.bytes", "1048588")):
            raise Refused(ErrorCode.message_too_large)
        (header,) = iter_batches(data)
        replica = self.replicas[key]
        if header.producer_id >= 0:
            known = self._duplicate(replica, header)
            if known is not None:
                return known.base, known.end
        base = replica.end
        patched = bytearray(data)
        struct.pack_into(">q", patched, 0, base)
        struct.pack_into(">i", patched, 12, view.epoch)
        (header,) = iter_batches(bytes(patched))
        batch = Batch(base, header, bytes(patched), view.epoch)
        replica.take([batch])
        self.kafka.milestones.reach("append", self.process.name)
        self.push(key)
        self._advance(key)
        return base, batch.end

    @staticmethod
    def _duplicate(replica: Replica, header: BatchHeader) -> Batch | None:
        """The batch that was appended before. A producer that is not known may begin with any
        sequence, a new epoch with 0 alone."""
        own = replica.of_producer(header.producer_id)
        if not own:
            return None
        last = own[-1]
        if header.producer_epoch < last.header.producer_epoch:
            raise Refused(ErrorCode.invalid_producer_epoch)
        if header.producer_epoch > last.header.producer_epoch:
            if header.base_sequence != 0:
                raise Refused(ErrorCode.out_of_order_sequence_number)
            return None
        for batch in own:
            same = batch.header.producer_epoch == header.producer_epoch
            alike = (
                batch.header.base_sequence == header.base_sequence
                and batch.header.last_offset_delta == header.last_offset_delta
            )
            if same and alike:
                return batch
        if header.base_sequence != (last.last_sequence + 1) % SEQUENCES:
            raise Refused(ErrorCode.out_of_order_sequence_number)
        return None

    # -- replication

    def push(self, key: Key) -> None:
        """Tell every follower what there is; what they take is what there was when it was sent."""
        view, replica = self.views[key], self.replicas[key]
        log, count, watermark = replica.log, len(replica.log), replica.high_watermark
        for node in view.replicas:
            if node != self.node:
                other = self.kafka.brokers[node]
                self.kafka.network.send(
                    self.process,
                    other.process,
                    lambda other=other: other._pull(key, view.epoch, self, log, count, watermark),
                )

    def _pull(
        self, key: Key, epoch: int, leader: Broker, log: list[Batch], count: int, watermark: int
    ) -> None:
        view = self.views.get(key)
        if view is None or view.epoch != epoch or view.leader != leader.node:
            return
        replica = self.replicas[key]
        own = replica.log
        if replica.reconciled < epoch:
            same = 0
            while same < min(len(own), count) and own[same] is log[same]:
                same += 1
            replica.truncate(same)
            replica.reconciled = epoch
        replica.take(log[len(replica.log) : count])
        replica.high_watermark = max(replica.high_watermark, min(watermark, replica.end))
        end = replica.end
        self.kafka.network.send(
            self.process, leader.process, lambda: leader._taken(key, epoch, self.node, end)
        )

    def _taken(self, key: Key, epoch: int, node: int, end: int) -> None:
        view = self.views.get(key)
        if view is None or view.epoch != epoch or view.leader != self.node:
            return
        ends = self.followed.setdefault(key, {})
        now = self.kafka.loop.time()
        before, at = ends.get(node, (0, -LAG_S))
        caught = now if end >= self.replicas[key].end else at
        ends[node] = (max(before, end), caught)
        if node not in view.in_sync and end >= self.replicas[key].high_watermark:
            self.growing.setdefault(key, set()).add(node)
            self.kafka.ask_in_sync(self, key, epoch, (*view.in_sync, node))
        self._advance(key)

    def _advance(self, key: Key) -> None:
        view, replica = self.views[key], self.replicas[key]
        ends = self.followed.get(key, {})
        counting = {*view.in_sync, *self.growing.get(key, ())} - {self.node}
        mark = min([replica.end, *(ends.get(node, (0, 0.0))[0] for node in sorted(counting))])
        if mark > replica.high_watermark:
            replica.high_watermark = mark
            self.pulse()

    async def _tick(self) -> None:
        while True:
            self.kafka.heartbeat(self)
            now = self.kafka.loop.time()
            for key, view in list(self.views.items()):
                if view.leader != self.node:
                    continue
                self.push(key)
                ends, end = self.followed.setdefault(key, {}), self.replicas[key].end
                slow = {
                    node
                    for node in view.in_sync
                    if node != self.node
                    and ends.setdefault(node, (0, now))[0] < end
                    and now - ends[node][1] > LAG_S
                }
                if slow:
                    kept = tuple(n for n in view.in_sync if n not in slow)
                    self.kafka.ask_in_sync(self, key, view.epoch, kept)
            await asyncio.sleep(HEARTBEAT_S)

    def learn(self, key: Key, topic: Topic, view: View) -> None:
        """News from the controller; old news change nothing."""
        if key[0] in self.kafka.gone:
            return
        self.topics[topic.name] = topic
        known = self.views.get(key)
        if known is not None and (known.epoch, known.version) >= (view.epoch, view.version):
            return
        replica = self.replicas.setdefault(key, Replica())
        if known is None or view.epoch > known.epoch:
            self.followed[key] = {}
            self.growing[key] = set()
            if view.leader == self.node:
                replica.reconciled = view.epoch
                replica.note_epoch(view.epoch, replica.end)
        else:
            self.growing[key] = self.growing.get(key, set()) - set(view.in_sync)
        self.views[key] = view
        if view.leader == self.node:
            self._advance(key)
        self.pulse()

    def knows(self) -> list[Topic]:
        """The topics that it has heard of, under whatever name."""
        ids = {key[0] for key in self.views}
        gone = [topic for id, topic in self.kafka.gone.items() if id in ids]
        return [*self.topics.values(), *gone]

    def forget(self, topic: Topic) -> None:
        """The topic was deleted."""
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]
        for key in [key for key in self.views if key[0] == topic.id]:
            del self.views[key]
            self.replicas.pop(key, None)
        self.pulse()


class Kafka:
    """The brokers and their controller."""

    def __init__(self, loop: VirtualLoop, network: Network, nodes: Iterable[int]) -> None:
        self.loop, self.network = loop, network
        self.controller = Process(loop, "controller")
        self.brokers = {node: Broker(self, node) for node in nodes}
        self.topics: dict[str, Topic] = {}
        self.views: dict[Key, View] = {}
        self.gone: dict[UUID, Topic] = {}
        self.names = Lives(loop.time, self._is_known)
        self.on_change: Callable[[Topic, bool], None] = lambda topic, is_there: None
        """Told of each creation and deletion, when the controller has decided it."""
        self.milestones = Milestones()
        self.has_admins = False
        """Whether topics are made, deleted or grown, and ids compared, while it runs."""
        self.decisions = 0
        """The end of the metadata log."""
        self._alive: dict[int, float] = {}
        self._made = 0
        self.controller.spawn(self._watch(), "watch")

    def create(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> Topic:
        self._made += 1
        topic = Topic(name, uuid5(SPACE, f"{name} {self._made}"), partitions)
        topic.configs |= {"remote.storage.enable": "true"} if configs is None else configs
        self.topics[name] = topic
        self.names.begin(topic.id)
        self._place(topic, 0)
        self.on_change(topic, True)
        return topic

    def grow(self, name: str, partitions: int) -> None:
        """The topic has so many from now on."""
        topic = self.topics[name]
        first, topic.partitions = topic.partitions, partitions
        self._place(topic, first)

    def _place(self, topic: Topic, first: int) -> None:
        nodes = sorted(self.brokers)
        for number in range(first, topic.partitions):
            shift = (number + self._made) % len(nodes)
            replicas = tuple(nodes[shift:] + nodes[:shift])
            self._decide((topic.id, number), View(replicas[0], 0, replicas, replicas))

    def delete(self, name: str) -> None:
        topic = self.topics.pop(name)
        self.gone[topic.id] = topic
        self.decisions += 1
        for key in [key for key in self.views if key[0] == topic.id]:
            del self.views[key]
        for broker in self.brokers.values():
            self._bury(broker, topic)
        self.on_change(topic, False)

    def _bury(self, broker: Broker, topic: Topic) -> None:
        self.network.send(self.controller, broker.process, lambda: broker.forget(topic))

    def _is_known(self, topic_id: UUID) -> bool:
        return any(key[0] == topic_id for broker in self.brokers.values() for key in broker.views)

    def fetched(self, broker: Broker) -> int:
        """How far the broker has the metadata log: to its end, or one decision less at least."""
        buried = not any(topic.id in self.gone for topic in broker.knows())
        level = all(broker.views.get(key) == view for key, view in self.views.items())
        return self.decisions if buried and level else self.decisions - 1

    def move_leader(self, key: Key) -> bool:
        """Another in-sync replica leads from now on."""
        view = self.views.get(key)
        if view is None:
            return False
        others = [n for n in view.in_sync if n != view.leader and self.lives(n)]
        if not others:
            return False
        self._decide(key, replace(view, leader=others[0], epoch=view.epoch + 1))
        return True

    def elect_unclean(self, key: Key, node: int) -> int | None:
        """``node`` leads from now on, in sync or not, unless it is dead or leads already. Returns
        where its log ends (exclusive): what others have from there on is lost."""
        view = self.views.get(key)
        if view is None or view.leader == node or not self.lives(node):
            return None
        self._decide(key, replace(view, leader=node, epoch=view.epoch + 1, in_sync=(node,)))
        return self.brokers[node].replicas[key].end

    def let_local_go(self, key: Key, share: float) -> None:
        """Retention takes local segments: so much of what is replicated is in remote storage
        only."""
        for broker in self.brokers.values():
            if replica := broker.replicas.get(key):
                behind = [batch.end for batch in replica.log if batch.end <= replica.high_watermark]
                if behind:
                    gone = behind[int(share * (len(behind) - 1))]
                    replica.local_start = max(replica.local_start, gone)

    def lives(self, node: int) -> bool:
        return self.loop.time() - self._alive.get(node, 0.0) < SESSION_S

    def heartbeat(self, broker: Broker) -> None:
        def arrived() -> None:
            self._alive[broker.node] = self.loop.time()
            for key, view in self.views.items():
                known = broker.views.get(key)
                if known != view:
                    self._tell(broker, key, view)
            for topic in broker.knows():
                if topic.id in self.gone:
                    self._bury(broker, topic)

        self.network.send(broker.process, self.controller, arrived)

    def ask_in_sync(self, broker: Broker, key: Key, epoch: int, wanted: tuple[int, ...]) -> None:
        def arrived() -> None:
            view = self.views.get(key)
            if view is not None and view.epoch == epoch and set(view.in_sync) != set(wanted):
                fine = [n for n in view.replicas if n in wanted]
                living = tuple(n for n in fine if n == view.leader or self.lives(n))
                self._decide(key, replace(view, in_sync=living))

        self.network.send(broker.process, self.controller, arrived)

    def _decide(self, key: Key, view: View) -> None:
        view = replace(view, version=view.version + 1)
        self.views[key] = view
        self.decisions += 1
        for broker in self.brokers.values():
            self._tell(broker, key, view)

    def _tell(self, broker: Broker, key: Key, view: View) -> None:
        topic = next((t for t in self.topics.values() if t.id == key[0]), None)
        process = getattr(broker, "process", None)
        if topic is not None and process is not None:
            self.network.send(self.controller, process, lambda: broker.learn(key, topic, view))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for key, view in list(self.views.items()):
                if not self.lives(view.leader):
                    rest = tuple(n for n in view.in_sync if n != view.leader and self.lives(n))
                    if rest:
                        self._decide(
                            key,
                            replace(view, leader=rest[0], epoch=view.epoch + 1, in_sync=rest),
                        )
