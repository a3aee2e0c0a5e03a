"""One run: a seed, a schedule of faults, a history, and what the checker says of it."""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from contextvars import Context
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch
from uuid import UUID

import structlog
from kio.serial import _serialize, writers
from prometheus_client import Counter, Gauge, Histogram

from tests.history.checker import judge
from tests.history.operations import Operation, Partition, Produce, Truncated, Which
from tests.history.violations import Bounds, Kind, Violation
from tests.simulation.broker_wire import PORT, run_broker
from tests.simulation.bucket import BucketJudge
from tests.simulation.clients import Consumer, History, Prober, Producer, Style
from tests.simulation.constants import settings_of, tight, turned
from tests.simulation.faults import GROWS, GROWS_PAST, SCAN_STOPS, UNTIL_S, Fault
from tests.simulation.gateways import Gateway, Surroundings
from tests.simulation.growth import Growth
from tests.simulation.kafka import Kafka
from tests.simulation.loop import Process, current, deterministic, uncollected
from tests.simulation.migration import Driver, Worker
from tests.simulation.network import BoundSocket, NetworkAcceptor, NetworkedLoop
from tests.simulation.promotion import HEARD_S, compare
from tests.simulation.schedules import STANDS_IN_FROM, older_than_tracking, pace_of, schedule
from tests.simulation.unplanned import Unplanned
from tideline.domain.ids import TopicIdPartition
from tideline.gateway.tracking import lease
from tideline.gateway.transport import listener

R = TypeVar("R", bound=Consumer)
Addresses = list[tuple[str, int]]
TOPIC, PARTITIONS = "orders", 2
NODES = (1, 2, 3)
PRODUCERS = (
    (Style.LIBRDKAFKA, 0),
    (Style.JAVA, 0),
    (Style.PLAIN, 0),
    (Style.LIBRDKAFKA, 1),
)
"""How each behaves, and the partition that it writes to."""
NEWCOMERS = (("quiesce", 0.2), ("crossed", 0.05), ("crossed", 1.0))
"""Milestones behind which one producer more begins, and how long behind at most, in s."""
CONSUMERS = (
    (False, 0, Which.EARLIEST),
    (True, 0, Which.EARLIEST),
    (False, 1, Which.EARLIEST),
    (True, 0, Which.BY_TIME),
)
"""Whether by topic id, of which partition, and where each begins. The last one joins late."""
LATEST_S = 6.0
"""How long behind the others it joins at most."""
PROBES = 4
"""Positions beside those around B0, and times of records: each of the last readers asks of them."""
CALM_S = 30.0
"""How long after the last fault everything may take to come to rest."""
LOAD_S, SETTLED_S = 40.0, 1.0
"""When the load ends at the latest; and for how long it goes on when nothing more is under way."""
LOOK_S = 0.5
"""Between two looks at the bucket, and whether the load is over; and before and after each
fault."""
BOUNDS = Bounds(stale=inf, answer=25.0, progress=25.0, sent=0.0, dense=True)
"""A client gives a request up after its patience (5 s), so what takes longer is a batch that is
sent again. That, and errors, may last as long as a fault (6.5 s), until a lease lapses (2.5 s) and
two holds are over (12 s). A position that a consumer has reached is never called out of range. How
old an end may be is not judged: with records below B0 a gateway shows the end that it heard of
last."""


@dataclass
class Result:
    seed: int
    faults: tuple[Fault, ...]
    violations: list[Violation]
    operations: list[Operation]
    events: list[str]
    crossed: bool
    virtual_s: float
    family: Family | None = field(default=None, repr=False)
    without: frozenset[str] = frozenset()
    ends_at: float | None = None
    not_begun: int = 0
    """Faults whose milestone did not come while the load lasted."""
    reached: dict[str, int] = field(default_factory=dict, repr=False)
    """How often the run came to what is named in :mod:`tests.simulation.coverage`."""

    @property
    def digest(self) -> str:
        """Of all that clients did and were told: of two runs of a seed it is the same."""
        return hashlib.sha256(repr(self.operations).encode()).hexdigest()

    def text(self) -> str:
        """The schedule, what happened, and what was broken, for a person."""
        lines = [f"seed {self.seed}: {len(self.operations)} operations, {self.virtual_s:.1f} s"]
        lines += [f"  {fault}" for fault in self.faults]
        lines += [f"    {event}" for event in self.events]
        lines += [str(violation)[:1500] for violation in self.violations[:12]]
        return "\n".join(lines)


class Operator:
    """In the place of ``inkless_gateway_id_held``, as whoever hears the alert on it: of two
    processes, of which the second one has the id and clients are told of the first, which waits,
    stops the second. Goes by what the gateway says and by nothing else, and does nothing while the
    first has the id, or where a fault ends the second."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: dict[str, float] = {}

    def set(self, value: float) -> None:
        """The process whose code runs says so."""
        name = current().name
        self._held[name] = value
        if value and name.startswith("gateway"):
            self._world.loop.call_later(HEARD_S, self._look, name, context=Context())

    def _look(self, name: str) -> None:
        number = int(name[7:])
        twin = self._world.doubles[number]
        holder = self._world.around.plane.gateways.registered[number].address
        if self._held[name] and number in self._world.left and holder == f"{twin.name}:{PORT}":
            self._world.left.remove(number)
            self._world.history.note(f"an operator stops {twin.name}, which has {name}'s id")
            twin.kill(lose_disk=True)


class World:
    """Everything of one run."""

    def __init__(
        self,
        loop: NetworkedLoop,
        seed: int,
        home: Path,
        without: frozenset[str] = frozenset(),
        ends_at: float | None = None,
    ) -> None:
        self.loop, self.network, self.seed = loop, loop.network, seed
        self.without, self.ends_at = without, ends_at
        """Names of clients that are not started, and the second at which the load ends."""
        self.network.pace = pace_of(seed)
        self.chance = random.Random(f"world {seed}")
        self.history = History(loop)
        self.around = Surroundings(loop, home, self.history)
        self.around.stands_in = seed >= STANDS_IN_FROM
        self.around.settings, self.around.tight = settings_of(seed), tight(seed)
        self.kafka = Kafka(loop, self.network, NODES)
        self.kafka.milestones = self.around.milestones
        peers = ",".join(f"{n}=gateway{n}:{PORT}" for n in NODES)
        self.gateways = {n: Gateway(self.around, f"gateway{n}", n, peers) for n in NODES}
        self.doubles = {n: Gateway(self.around, f"twin{n}", n, peers) for n in NODES}
        self.left: set[int] = set()
        """Whose double no fault ends."""
        self.worker = Worker(self.around, self.kafka, "worker")
        self.driver = Driver(self.around, self.worker, TOPIC)
        self.growth = Growth(self, TOPIC, PARTITIONS)
        self.producers: list[Producer] = []
        self.clients: list[str] = []
        self.topic_id = UUID(int=0)
        self.bucket = BucketJudge(self.around.objects, self.around.plane)
        self.faults: list[tuple[float, float]] = []
        """When each that was begun began and ended."""
        self.suspended: dict[Process, float] = {}
        """Since when machines stand still."""
        self.begun = self._under_way = self.disturbed = 0
        """Faults: those that were begun, those that are due or not over, and those under way of
        others than the worker."""
        self._reading: asyncio.Task[None] | None = None
        """What reads the bucket behind each commit."""
        self.found: list[Violation] = []
        """What did not end although nothing stood in its way any more, and what the bucket told
        wrongly."""

    def partition(self, topic_id: UUID, number: int) -> Partition:
        return Partition(str(topic_id), number)

    def start_broker(self, node: int) -> None:
        broker = self.kafka.brokers[node]
        process = Process(self.loop, f"broker{node}")
        broker.process = process
        broker.views.clear()
        process.spawn(run_broker(broker, process), "broker")

    def elect_unclean(self, node: int) -> None:
        """Before B0 only: from then on it would be a log gap, which waits for an operator."""
        if self.driver.crossed:
            return
        end = self.kafka.elect_unclean((self.topic_id, 0), node)
        if end is not None:
            self.history.note(f"broker{node} leads, with what is below {end}")
            self.history.add(Truncated(self.partition(self.topic_id, 0), end, self.loop.time()))

    def promote(self) -> None:
        """A standby of Postgres takes over."""
        self.around.promote()
        self.worker.promoted()
        self._comparing = asyncio.ensure_future(compare(self))

    def process(self, name: str) -> Process:
        if name.startswith("gateway"):
            return self.gateways[int(name[7:])].process
        if name.startswith("twin"):
            return self.doubles[int(name[4:])].process
        if name.startswith("broker"):
            return self.kafka.brokers[int(name[6:])].process
        return {
            "worker": self.worker.process,
            "controller": self.kafka.controller,
            "postgres": self.around.postgres,
            "s3": self.around.s3,
        }[name]

    def addresses(self) -> list[tuple[str, int]]:
        return [gateway.address for gateway in self.gateways.values()]

    def start(self) -> None:
        for node in NODES:
            self.start_broker(node)
        topic = self.kafka.create(TOPIC, PARTITIONS)
        self.topic_id = topic.id
        for gateway in self.gateways.values():
            gateway.start()

    def start_clients(self) -> None:
        for number, (style, partition) in enumerate(PRODUCERS, 1):
            self._begin_to_write(f"{style.value}-{number}", style, partition)
        self._newcomer = asyncio.ensure_future(self._begin_later(len(PRODUCERS) + 1))
        for number, (by_id, partition, begins) in enumerate(CONSUMERS, 1):
            name = f"consumer-{number}"
            late_s = 0.0 if begins is Which.EARLIEST else self.chance.uniform(0.0, LATEST_S)
            if name not in self.without:
                consumer = self.reader(Consumer, name, partition, by_id=by_id, begins=begins)
                self.loop.call_later(late_s, self._begin, consumer)

    async def _begin_later(self, number: int) -> None:
        """A producer that is not seeded at B0: it begins in the write pause, or in the suffix."""
        after, within_s = self.chance.choice(NEWCOMERS)
        style = self.chance.choice((Style.LIBRDKAFKA, Style.JAVA))
        late_s = self.chance.uniform(0.0, within_s)
        await self.around.milestones.wait(after)
        await asyncio.sleep(late_s)
        if not any(producer.stopping for producer in self.producers):
            self._begin_to_write(f"{style.value}-{number}", style, 0)

    def _begin_to_write(self, name: str, style: Style, partition: int) -> None:
        if name in self.without:
            return
        producer = Producer(
            self.loop, name, self.addresses(), TOPIC, style, self.history, self.kafka.names,
            every_s=self.chance.choice((0.15, 0.25, 0.4)), by_id=style is Style.JAVA,
            partition=self.partition, number=partition,
        )  # fmt: skip
        self.producers.append(producer)
        self.clients.append(name)
        Process(self.loop, name).spawn(producer.run(), name)

    def begin_to_write(self, name: str) -> None:
        """A producer that no suffix knows, as its name says: it writes to the first partition."""
        if not any(producer.stopping for producer in self.producers):
            self.around.milestones.reach(f"{name} begins")
            self._begin_to_write(name, Style(name.partition("-")[0]), 0)

    def begin_to_write_to(self, name: str, number: int) -> None:
        """To another partition than the first."""
        if not any(producer.stopping for producer in self.producers):
            self._begin_to_write(name, Style(name.partition("-")[0]), number)

    def begin_to_read(self, name: str, number: int = 0, begins: Which = Which.LATEST) -> None:
        if name not in self.without:
            self._begin(self.reader(Consumer, name, number, by_id=False, begins=begins))

    def read_bucket(self, at_each_commit: bool) -> None:
        if self._reading is not None:
            self._reading.cancel()
        reading = self._read_at_commits() if at_each_commit else None
        self._reading = None if reading is None else asyncio.ensure_future(reading)

    async def _read_at_commits(self) -> None:
        while True:
            await self.around.milestones.next("gateway commit_file done")
            self._look()

    def reader(
        self, kind: type[R], name: str, number: int, at: Addresses | None = None, **given: Any
    ) -> R:
        """Not yet begun. ``at``: who is asked first; gateways, as a rule."""
        return kind(
            self.loop, name, self.addresses() if at is None else at, TOPIC, self.history,
            self.kafka.names, partition=self.partition, number=number, **given,
        )  # fmt: skip

    def _begin(self, consumer: Consumer) -> Process:
        self.clients.append(consumer.name)
        process = Process(self.loop, consumer.name)
        process.spawn(consumer.run(), consumer.name)
        return process

    async def play(self, faults: Sequence[Fault]) -> None:
        if any(fault.kind in (GROWS, GROWS_PAST) for fault in faults):
            self.growth.expect()
        await self.around.plane.attest_cluster("simulated", "operator", "brokers are closed")
        self.start()
        await asyncio.sleep(1.0)
        self.start_clients()
        self.around.milestones.reach("clients")
        self.worker.start()
        self.loop.call_later(1.5, self.driver.start)
        playing = [asyncio.ensure_future(self._play(fault)) for fault in faults]
        await self._load()
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        self.history.note(f"the load ends; {len(faults) - self.begun} faults were not begun")
        await self._come_to_rest()

    async def _load(self) -> None:
        """Until everything that was begun for the topic has ended, no fault is due or under way,
        and clients have gone on for a moment."""
        latest = LOAD_S if self.ends_at is None else self.ends_at
        settled = 0.0
        while settled < SETTLED_S and self.loop.time() < latest:
            await asyncio.sleep(min(LOOK_S, latest - self.loop.time()))
            self._look()
            over = self.is_over() and not self._under_way
            settled = settled + LOOK_S if over else 0.0

    async def _play(self, fault: Fault) -> None:
        milestones = self.around.milestones
        await milestones.wait(fault.after, fault.nth)
        self._under_way += 1
        try:
            if fault.at:  # else before anything else goes on
                await asyncio.sleep(fault.at)
            self.history.note(str(fault))
            self.begun += 1
            self._look()
            began = self.loop.time()
            fault.begin(self)
            if fault.lasts or fault.until:
                self.disturbed += fault.who != "worker"
                try:
                    await self._until_over(fault)
                finally:
                    self.disturbed -= fault.who != "worker"
                    self.history.note(f"end of {fault}")
                    fault.end(self)
            self.faults.append((began, self.loop.time()))
        finally:
            self._under_way -= 1

    async def _until_over(self, fault: Fault) -> None:
        if not fault.until:
            await asyncio.sleep(fault.lasts)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(UNTIL_S):
                await self.around.milestones.next(fault.until)
                await asyncio.sleep(fault.lasts)

    async def _come_to_rest(self) -> None:
        """No faults any more: everything that was begun has to end, and is read."""
        try:
            async with asyncio.timeout(CALM_S):
                while not self.is_over():  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                await asyncio.sleep(1.0)
                for producer in self.producers:
                    producer.stopping = True
                while any(producer.busy for producer in self.producers):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
        except TimeoutError:
            busy = [producer.name for producer in self.producers if producer.busy]
            self._unrest(f"busy are {busy}; {self.driver.stage}")
        self._give_up()
        for by_id in (False, True):
            read = [(n, self.addresses()) for n in range(PARTITIONS)] + self.growth.read_at()
            await asyncio.gather(*(self._read_to_the_end(n, by_id, at) for n, at in read))
            self.kafka.move_leader((self.topic_id, 0))
            await asyncio.sleep(0.5)

    def _give_up(self) -> None:
        for producer in self.producers:
            producer.stopping = True
            producer.give_up()
        self.growth.give_up()

    @property
    def is_halted(self) -> bool:
        """Whether it was found that Postgres lacks commits, or that nobody can say whether it does:
        nobody is served until an operator has compared, and accepted it."""
        return self.around.primary is not None and self.around.plane.history.halted is not None

    @property
    def is_disturbed(self) -> bool:
        """Whether a fault is due or under way."""
        return self._under_way > 0

    def is_over(self) -> bool:
        """Whether what was begun for the topic has ended, and everybody is served."""
        ended = self.driver.ended.is_set() and not self.growth.is_under_way
        return ended and not self.is_halted

    @property
    def operations(self) -> list[Operation]:
        """What is judged."""
        return self.growth.promised(self.history.operations)

    def end(self) -> list[Violation]:
        """What the world itself has to say, at the end of the run."""
        self.around.coverage.at_boundaries(
            self.history.operations,
            {
                self.partition(log.topic_id, log.partition): at
                for log, at in self.around.plane.set_at.items()
            },
            self.faults,
        )
        for producer in self.producers:
            producer.tell_elsewhere()
        self._look()
        return [*self.found, *self.bucket.told(self.operations)]

    def _look(self) -> None:
        """At the bucket, but while it may rightly tell what a standby has not got."""
        if self.around.plane.is_settled:
            self.found += [v for v in self.bucket.judge() if v not in self.found]

    async def _read_to_the_end(self, number: int, by_id: bool, at: Addresses) -> None:
        how = "id" if by_id else "name"
        last = self.reader(Consumer, f"last-{number}-{how}", number, at, by_id=by_id, hurries=True)
        if not await self._has_read(last):
            self._unrest(f"{last.name} did not come to the end: at {last.position}")
            return
        prober = self.reader(Prober, f"prober-{number}-{how}", number, at, by_id=by_id)
        partition = self.partition(self.topic_id, number)
        sent = [o for o in self.history.operations if isinstance(o, Produce)
                and o.partition == partition]  # fmt: skip
        prober.positions = self._positions(number, last.position, sent)
        prober.times = tuple(self.chance.choice(sent).invoked for _ in range(PROBES if sent else 0))
        if not await self._has_read(prober):
            text = f"{prober.name} was shown nothing at {prober.position} of {last.position}"
            self.found.append(Violation(Kind.LOST, partition, text))

    async def _has_read(self, reader: Consumer) -> bool:
        """Whether it comes to the end of what it was to read."""
        process = self._begin(reader)
        try:
            async with asyncio.timeout(CALM_S):
                await reader.reached.wait()
        except TimeoutError:
            return False
        finally:
            process.kill()
        return True

    def _positions(self, number: int, end: int, sent: Sequence[Produce]) -> tuple[int, ...]:
        """From which a consumer may read a log that ends at ``end``: its front, its end, B0, both
        sides of it, the midst of batches, of the newest one that has one, too, and chance ones."""
        midst = [p.base_offset + 1 for p in sent if p.base_offset is not None and p.values[1:]]
        found = {0, end, *midst[-1:], *self.chance.sample(midst, min(2, len(midst)))}
        found |= {self.chance.randint(0, end) for _ in range(PROBES)}
        for partition in self.around.plane.topics.partitions():
            if partition.log == TopicIdPartition(self.topic_id, number) and partition.boundary >= 0:
                found |= {partition.boundary + beside for beside in (-1, 0, 1)}
        return tuple(sorted(place for place in found if 0 <= place <= end))

    def _unrest(self, why: str) -> None:
        text = f"not at rest {CALM_S:.0f} s after the last fault: {why}"
        self.history.note(text)
        self.found.append(Violation(Kind.STUCK, None, text))


@dataclass(frozen=True)
class Family:
    """Schedules of one kind, and the world in which they are played."""

    name: str
    schedule: Callable[[int], list[Fault]]
    world: Callable[[NetworkedLoop, int, Path, frozenset[str], float | None], World]
    bounds: Bounds = BOUNDS
    around: Callable[[], AbstractContextManager[None]] = nullcontext


MIGRATION = Family("migration", schedule, World)


def _unread(metric: object, *_: object) -> None:
    """Nobody reads a run's metrics, and a gauge with a function would keep the run for as long as
    it lives."""


INSTEAD: tuple[tuple[Any, str, Any], ...] = (
    (listener, "_bound", BoundSocket),
    (listener, "Acceptor", NetworkAcceptor),
    (Counter, "inc", _unread),
    (Gauge, "inc", _unread),
    (Gauge, "dec", _unread),
    (Gauge, "set", _unread),
    (Gauge, "set_function", _unread),
    (Histogram, "observe", _unread),
    (_serialize, "uvarint", int),
    (writers, "uvarint", int),
    (writers, "i16", int),
    (writers, "i32", int),
)
"""What a run has in the place of the machine's sockets, of metrics, and of kio's own look at each
number before it is packed, which looks again."""


@uncollected()
def simulate(
    seed: int,
    faults: Sequence[Fault] | None = None,
    planted: Any = None,
    family: Family = MIGRATION,
    without: frozenset[str] = frozenset(),
    ends_at: float | None = None,
) -> Result:
    """One run. ``faults`` instead of those of the seed; ``planted``: a context manager that breaks
    something; ``without``: names of clients that are not started; ``ends_at``: the second at which
    the load ends, if not as usual."""
    chosen = tuple(family.schedule(seed) if faults is None else faults)
    home = Path(tempfile.mkdtemp(prefix="tideline-simulation-"))
    before = structlog.get_config()
    loop = NetworkedLoop(seed)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        stack.callback(lambda: structlog.configure(**before))
        unplanned = Unplanned(loop)
        structlog.configure(processors=[unplanned.processor], cache_logger_on_first_use=False)
        stack.enter_context(deterministic(loop, seed))
        for owner, name, instead in INSTEAD:
            stack.enter_context(patch.object(owner, name, instead))
        if planted is not None:
            stack.enter_context(planted)
        stack.enter_context(family.around())
        short_scan = any(fault.kind == SCAN_STOPS for fault in chosen)
        stack.enter_context(turned(seed, any(map(older_than_tracking, chosen)), short_scan))
        world = family.world(loop, seed, home, without, ends_at)
        stack.enter_context(patch.object(lease, "ID_HELD", Operator(world)))
        stack.callback(loop.finish)
        stack.enter_context(world.around.coverage.counting())
        stack.enter_context(world.driver.temporal.in_place())
        loop.run_until_complete(world.play(chosen))
        said = world.end()
        operations = world.operations
        broken = [*judge(operations, family.bounds), *said, *unplanned.found]
        return Result(
            seed,
            chosen,
            broken,
            operations,
            list(world.history.events),
            world.driver.crossed,
            loop.time(),
            family,
            without,
            ends_at,
            len(chosen) - world.begun,
            dict(+world.around.coverage.counts),
        )
