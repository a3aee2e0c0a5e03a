"""What the activities of one worker process share: connections, cached observations, watches.

One of each per process, because the write pause is spent on round trips: everything that can be
open, known or listening before the pause is.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from tideline import control_plane as control_plane_package
from tideline.background import cancel_and_wait, keep, spawn
from tideline.control_plane import ACKS_CHANNEL, ControlPlane
from tideline.control_plane.lease_observer import LeaseObserver
from tideline.domain.history import HistoryWatch
from tideline.domain.ids import TopicIdPartition
from tideline.errors import TidelineError, UnreachableError
from tideline.kafka.admin import KafkaAdmin, RecordDeletion
from tideline.kafka.client import KafkaCluster
from tideline.kafka.log_reader import LogReader, TailScanner
from tideline.kafka.observer import KafkaObserver, PartitionLayout
from tideline.kafka.remote_log_reader import RemoteLogFollower
from tideline.kafka.topic_observer import TopicObserver
from tideline.object_store.inventory import SegmentInventory
from tideline.settings import WorkerSettings

if TYPE_CHECKING:
    from temporalio.client import Client

log = structlog.get_logger()

LISTEN_AGAIN_S = 0.5
MAX_CACHED = 10_000
"""Partitions whose cached observations are kept; the oldest go first."""


def monotonic_ms() -> float:
    """This process's suspend-proof clock: it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


@dataclass(slots=True)
class CachedObservation:
    """What is known of a partition before its write pause, checked again inside it."""

    layout: PartitionLayout
    scanned_end: int
    """The high watermark up to which ``max_timestamp`` is known."""
    tiered: bool
    """Every broker shows the topic with tiered storage."""
    max_timestamp: int = -1
    """ms; largest record timestamp seen so far, with the offset of its record."""
    max_timestamp_offset: int = -1
    at_ms: float = field(default_factory=monotonic_ms)
    """When it was observed, by :func:`monotonic_ms`."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Everything of a partition below ``end`` (exclusive) that Kafka takes for tiered is."""

    end: int
    rests_on: Mapping[UUID, int]
    """The remote segments that have it, and the last offset (inclusive) of each."""


@dataclass(frozen=True, slots=True)
class _Kept:
    proof: Proof
    run: str | None
    at_ms: float


class ProofsForRoll:
    """What was proven to be in remote storage not long ago, by partition, for one run of a
    workflow: an attempt that ran out of time goes on where it was, and the write of the configs
    does not prove it all again. Another run proves for itself: between two runs nobody watches, and
    tiered storage may have been turned off and on."""

    LAST_MS = 45 * 60_000.0
    """Longer than two attempts at proving a large topic: its first proofs must count when its last
    one is made, or it would never be proven as a whole."""

    def __init__(self, clock_ms: Callable[[], float]) -> None:
        self._clock_ms = clock_ms
        self._proven: dict[TopicIdPartition, _Kept] = {}

    def keep(self, key: TopicIdPartition, run: str | None, proof: Proof) -> None:
        """``run``: who has proven it of ``key``, of a workflow; ``None`` outside of Temporal."""
        now = self._clock_ms()
        self._proven = {k: v for k, v in self._proven.items() if now - v.at_ms < self.LAST_MS}
        self._proven[key] = _Kept(proof, run, now)

    def of(self, key: TopicIdPartition, run: str | None) -> Proof | None:
        """What ``run`` has proven not long ago."""
        found = self._proven.get(key)
        if found is None or found.run != run or self._clock_ms() - found.at_ms >= self.LAST_MS:
            return None
        return found.proof

    def forget(self, key: TopicIdPartition) -> None:
        """Tiered storage was switched, or segments are gone: it is to be proven anew."""
        self._proven.pop(key, None)


class AckListener:
    """Wakes waiters when a gateway acknowledges. A hint only: every waiter polls as well."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._events: dict[str, dict[asyncio.Event, None]] = defaultdict(dict)

    async def run(self) -> None:
        """Listen until cancelled, over lost connections."""
        while True:
            try:
                async for _, payload in self._control_plane.listen([ACKS_CHANNEL]):
                    for event in self._events.get(payload, ()):
                        event.set()
            except UnreachableError as error:
                log.warning("acknowledgements_not_heard", why=str(error))
                await asyncio.sleep(LISTEN_AGAIN_S)

    @asynccontextmanager
    async def subscribe(self, payload: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever ``payload`` is notified."""
        event = asyncio.Event()
        self._events[payload][event] = None
        try:
            yield event
        finally:
            del self._events[payload][event]
            if not self._events[payload]:
                del self._events[payload]


class EvidenceQueue:
    """Writes evidence in the background, in order per partition, so that the write pause does not
    wait for it. Bounded by what the phases themselves submit: a few writes per partition."""

    def __init__(self) -> None:
        self._last: dict[TopicIdPartition, asyncio.Task[None]] = {}

    def submit(self, key: TopicIdPartition, write: Callable[[], Awaitable[None]]) -> None:
        """Write after everything submitted before for ``key``."""
        previous = self._last.get(key)

        async def run() -> None:
            if previous is not None:
                await asyncio.wait([previous])
            try:
                await write()
            except TidelineError as error:
                log.warning("evidence_not_recorded", partition=str(key), why=str(error))
            finally:
                if self._last.get(key) is asyncio.current_task():
                    del self._last[key]

        self._last[key] = spawn(run(), f"evidence-{key}")

    async def flush(self, key: TopicIdPartition | None = None) -> None:
        """Wait for what was submitted for ``key``, or for everything."""
        tasks = list(self._last.values()) if key is None else [self._last.get(key)]
        for task in tasks:
            if task is not None:
                await asyncio.wait([task])


class PauseSlots:
    """How many partitions are inside their write pause at once, in this worker process.

    Purely about time: pauses that overlap share the same cores, gateways and Postgres, so four at
    once last four times as long as four in turn. A partition waits *before* its generation is
    closed, while its producers go on. Nothing depends on it for correctness: a slot ends by itself
    with the quiesce's hold, and a wait that lasts too long goes on without one.
    """

    def __init__(self, clock_ms: Callable[[], float], slots: int = 1) -> None:
        self._clock_ms = clock_ms
        self._slots = slots
        self._ends: dict[TopicIdPartition, float] = {}
        self._freed = asyncio.Condition()

    async def enter(self, key: TopicIdPartition, hold_ms: float, bound_ms: float) -> None:
        """Take a slot for at most ``hold_ms``; after ``bound_ms`` go on without a free one."""
        gives_up = self._clock_ms() + bound_ms
        async with self._freed:
            while not self._free_for(key) and (now := self._clock_ms()) < gives_up:
                until = min(gives_up, *self._ends.values())
                try:
                    async with asyncio.timeout(max(until - now, 1) / 1000):
                        await self._freed.wait()
                except TimeoutError:
                    continue
            self._ends[key] = self._clock_ms() + hold_ms

    def _free_for(self, key: TopicIdPartition) -> bool:
        now = self._clock_ms()
        self._ends = {holder: end for holder, end in self._ends.items() if end > now}
        return key in self._ends or len(self._ends) < self._slots

    async def leave(self, key: TopicIdPartition) -> None:
        """The pause of ``key`` is over, or given up."""
        async with self._freed:
            if self._ends.pop(key, None) is not None:
                self._freed.notify(1)

    @asynccontextmanager
    async def left_on_failure(self, key: TopicIdPartition) -> AsyncIterator[None]:
        """A step of the pause that fails ends it: the attempt begins anew outside."""
        try:
            yield
        except BaseException:
            await self.leave(key)
            raise


@dataclass(slots=True)
class WorkerServices:
    """Everything an activity may touch."""

    settings: WorkerSettings
    control_plane: ControlPlane
    observer: KafkaObserver
    topics: TopicObserver
    admin: KafkaAdmin
    deletion: RecordDeletion
    reader: LogReader
    tails: TailScanner
    remote_log: RemoteLogFollower
    inventory: SegmentInventory
    acks: AckListener
    leases: LeaseObserver
    cluster: KafkaCluster
    temporal: Client | None = None
    cluster_id: str = ""
    """Of the brokers, as the worker has found it at its start."""
    wait_bound_ms: float = 10_000
    """How long one attempt waits inside an activity before it fails with its reason and is
    retried."""
    pauses: PauseSlots = field(default_factory=lambda: PauseSlots(monotonic_ms))
    evidence: EvidenceQueue = field(default_factory=EvidenceQueue)
    cached: dict[TopicIdPartition, CachedObservation] = field(default_factory=dict)
    unready: dict[TopicIdPartition, str] = field(default_factory=dict)
    """Why a partition was not ready, as Postgres has it from this process."""
    proofs: ProofsForRoll = field(default_factory=lambda: ProofsForRoll(monotonic_ms))

    def cache(self, key: TopicIdPartition, observation: CachedObservation) -> None:
        """Remember ``observation`` for the pause of ``key``."""
        self.cached.pop(key, None)
        self.cached[key] = observation
        while len(self.cached) > MAX_CACHED:
            del self.cached[next(iter(self.cached))]

    def remember_unready(self, key: TopicIdPartition, why: str) -> None:
        """Postgres was told so."""
        self.unready[key] = why
        while len(self.unready) > MAX_CACHED:
            del self.unready[next(iter(self.unready))]

    def forget(self, key: TopicIdPartition) -> None:
        """The partition has crossed or its migration has ended."""
        self.cached.pop(key, None)
        self.tails.forget(key)


@asynccontextmanager
async def open_services(
    settings: WorkerSettings,
    temporal: Client | None = None,
    history: HistoryWatch | None = None,
    *,
    at_once: bool = False,
) -> AsyncIterator[WorkerServices]:
    """Connect to Postgres and Kafka, and start the watches; stops and closes all at the end.
    ``history``: every connection to Postgres is compared with what was seen in it. ``at_once``: as
    of :func:`tideline.control_plane.connect`.

    Raises an :class:`UnreachableError` that names the part that does not answer.
    """
    async with AsyncExitStack() as stack:
        control_plane = await stack.enter_async_context(
            control_plane_package.connect(
                settings, application_name="tideline-worker", history=history, at_once=at_once
            )
        )
        cluster = await stack.enter_async_context(KafkaCluster.of(settings, "tideline-worker"))
        services = assemble(settings, control_plane, cluster, temporal)
        stack.push_async_callback(cancel_and_wait, keep(services.acks.run(), "acknowledgements"))
        stack.push_async_callback(cancel_and_wait, keep(services.leases.run(), "leases"))
        stack.push_async_callback(services.evidence.flush)
        yield services


def assemble(
    settings: WorkerSettings,
    control_plane: ControlPlane,
    cluster: KafkaCluster,
    temporal: Client | None = None,
) -> WorkerServices:
    """The services over given connections; starts nothing."""
    timeout_ms = settings.kafka_request_timeout_ms
    reader, observer = LogReader(cluster, timeout_ms), KafkaObserver(cluster, timeout_ms)
    return WorkerServices(
        settings=settings,
        control_plane=control_plane,
        observer=observer,
        topics=TopicObserver(cluster, timeout_ms),
        admin=KafkaAdmin(cluster, timeout_ms),
        deletion=RecordDeletion(cluster, timeout_ms),
        reader=reader,
        tails=TailScanner(reader, observer),
        remote_log=RemoteLogFollower(cluster, timeout_ms),
        inventory=SegmentInventory(settings),
        acks=AckListener(control_plane),
        leases=LeaseObserver(control_plane, monotonic_ms),
        cluster=cluster,
        temporal=temporal,
    )
