"""The worker: the real activities, called in the order of the phases as the workflows call them.

The driver repeats what fails as the table of the phases says (``workflows.phases``): a step of the
write pause that fails lets producers go and begins a new generation; any other is tried again. An
attempt that takes longer than it may is left alone and goes on (a zombie), as Temporal leaves one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from temporalio.exceptions import ApplicationError

from activities.attempt import failure
from activities.drain_transactions import drain_transactions
from activities.quiesce import quiesce
from activities.roll_and_flush import roll_and_flush
from activities.seed_and_persist import seed_and_persist
from activities.topic import (
    abort_migration,
    await_tracking,
    begin_tracking,
    observe_partition,
    reopen_partition,
    resolve_topic,
    stop_tracking,
)
from activities.validate import validate_partition
from activities.zombie_cleanup import zombie_cleanup
from tests.simulation.broker_wire import PORT, host_of
from tests.simulation.faults import MILESTONES
from tests.simulation.gateways import Surroundings
from tests.simulation.kafka import Kafka, Refused
from tests.simulation.loop import Process
from tideline.domain import failures
from tideline.domain.messages import (
    PartitionRef,
    PhaseInput,
    TopicMigrationInput,
    TopicRef,
    TopicStep,
)
from tideline.domain.options import MigrationOptions
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.log_reader import LogReader, TailScanner
from tideline.kafka.observer import KafkaObserver
from tideline.kafka.topic_observer import ActiveProducer, ConfigEntry
from tideline.migration.connections import AckListener, LeaseObserver, WorkerServices

HOLD_MS = 6_000
STEP_S = 20.0
AGAIN_S = 0.5


class TopicsModel:
    """What the cluster says of a topic beside its offsets, and what an operator changes."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    async def configs(self, topic: str) -> dict[str, ConfigEntry]:
        await asyncio.sleep(0.001)
        found = self._kafka.topics.get(topic)
        known = {} if found is None else found.configs
        return {key: ConfigEntry(value, True) for key, value in known.items()}

    async def configs_by_broker(self, topic: str) -> list[dict[str, ConfigEntry]]:
        return [await self.configs(topic)]

    async def reassigning(self, topic: str, partitions: Any) -> frozenset[int]:
        return frozenset()

    async def producers(self, topic: str, partition: int, node: int) -> tuple[Any, ...]:
        await asyncio.sleep(0.001)
        broker = self._kafka.brokers[node]
        try:
            key = broker.key_of(topic, partition)
            broker.view(key)
        except Refused as refused:
            raise KafkaError(refused.code, f"producers of {topic}-{partition}") from None
        last = {b.header.producer_id: b for b in broker.replicas[key].log}
        last.pop(-1, None)
        return tuple(
            ActiveProducer(
                producer_id,
                batch.header.producer_epoch,
                batch.last_sequence,
                batch.header.max_timestamp,
                -1,
                -1,
            )
            for producer_id, batch in last.items()
        )

    async def open_transactions(self) -> tuple[Any, ...]:
        await asyncio.sleep(0.001)
        return ()

    async def reorder_replicas(self, partition: Any, replicas: list[int]) -> None:
        await asyncio.sleep(0.001)

    async def elect_preferred(self, partition: Any) -> None:
        topic = self._kafka.topics[partition.topic]
        self._kafka.move_leader((topic.id, partition.partition))

    async def segments(self, log: Any) -> tuple[Any, ...]:
        return ()

    async def export(self, key: str, data: bytes) -> str:
        return key

    def forget(self, topic_id: UUID) -> None:
        """Nothing of it was kept."""


class Worker:
    """A worker process: its services live as long as it does."""

    def __init__(self, world: Surroundings, kafka: Kafka, name: str) -> None:
        self._world, self._kafka, self.name = world, kafka, name
        self.process = Process(world.loop, name)

    def start(self, work: Callable[[WorkerServices], Awaitable[None]]) -> None:
        """Run ``work`` with services of its own."""
        if not self.process.alive:
            self.process = Process(self._world.loop, self.name)

        async def run() -> None:
            services = self._services()
            self.process.spawn(services.acks.run(), "acks")
            self.process.spawn(services.leases.run(), "leases")
            await work(services)

        self.process.spawn(run(), self.name)

    def _services(self) -> WorkerServices:
        plane = self._world.plane_for(self.process)
        nodes = sorted(self._kafka.brokers)
        cluster = KafkaCluster([(host_of(n), PORT) for n in nodes], timeout_ms=2_000)
        reader = LogReader(cluster, 2_000)
        model = cast(Any, TopicsModel(self._kafka))
        return WorkerServices(
            settings=cast(Any, SimpleNamespace(temporal_task_queue="simulated")),
            control_plane=plane,
            observer=KafkaObserver(cluster, 2_000),
            topics=model,
            admin=model,
            reader=reader,
            tails=TailScanner(reader),
            remote_log=model,
            inventory=model,
            acks=AckListener(plane),
            leases=LeaseObserver(plane),
            cluster=cluster,
            wait_bound_ms=4_000,
        )


class Driver:
    """One topic's migration. Remembers what Temporal would, so that another worker goes on."""

    def __init__(self, world: Surroundings, topic: str) -> None:
        self._history = world.history
        self._topic = topic
        self.options = MigrationOptions(quiesce_hold_ms=HOLD_MS)
        self.ref: TopicRef | None = None
        self.stage = "new"
        self.crossed = self.done = False
        self.abort_asked = False
        self.rounds = 1
        self._given: PhaseInput | None = None
        self.ended = asyncio.Event()
        self.reached = {name: asyncio.Event() for name in MILESTONES}

    async def run(self, services: WorkerServices) -> None:
        while not self.done:
            try:
                await self._next(services)
            except ApplicationError as error:
                self._history.note(f"{self.stage}: {error.type}: {error.message}")
                if error.type in (failures.UNKNOWN_TOPIC, failures.TOPIC_CHANGED):
                    self.done = True
                await asyncio.sleep(AGAIN_S)
        self.ended.set()

    def run_id(self) -> str:
        """What Temporal calls the run: an abort ends it, and a new start begins another one."""
        return f"run-{self.rounds}"

    async def _bounded(self, work: Awaitable[Any]) -> Any:
        """An attempt that is late goes on unseen."""
        attempt = asyncio.ensure_future(work)
        attempt.add_done_callback(lambda done: done.cancelled() or done.exception())
        finished, _ = await asyncio.wait([attempt], timeout=STEP_S)
        if not finished:
            raise failure(failures.UNREACHABLE, "the attempt was given up and goes on")
        return attempt.result()

    async def _next(self, services: WorkerServices) -> None:
        if self.stage == "new":
            self.ref = await self._bounded(
                resolve_topic(services, TopicMigrationInput(self._topic))
            )
            self.stage = "begin"
        assert self.ref is not None
        step = TopicStep(self.ref, self.options)
        partition = PartitionRef(self.ref.topic, self.ref.topic_id, 0)
        if self.abort_asked and self.stage not in ("new", "begin", "cleanup"):
            await self._abort(services, step)
            return
        if self.stage in self.reached:
            self.reached[self.stage].set()
        match self.stage:
            case "begin":
                await self._bounded(begin_tracking(services, step))
                self.stage = "track"
            case "track":
                await self._bounded(await_tracking(services, step))
                self.stage = "drain"
                self._history.note("tracked by every gateway")
            case "drain":
                given = PhaseInput(partition, self.options)
                await self._bounded(validate_partition(services, given))
                await self._bounded(drain_transactions(services, given))
                self.stage = "cross"
            case "cross":
                await self._cross(services, partition)
            case "cleanup":
                assert self._given is not None
                await self._bounded(zombie_cleanup(services, self._given))
                self.done = True

    async def _abort(self, services: WorkerServices, step: TopicStep) -> None:
        self.abort_asked = False
        decision = await self._bounded(abort_migration(services, step))
        self._history.note(f"abort {'won' if decision.won else 'lost'}")
        if decision.won:
            await self._bounded(stop_tracking(services, step))
            self.rounds += 1
            self.stage = "new"
            self.reached["restart"].set()
            await asyncio.sleep(AGAIN_S)

    async def _cross(self, services: WorkerServices, partition: PartitionRef) -> None:
        situation = await self._bounded(observe_partition(services, partition))
        if situation.crossed:
            self._crossed(
                partition, situation.generation, situation.boundary, situation.leader_epoch
            )
            return
        given = PhaseInput(partition, self.options)
        try:
            self.reached["quiesce"].set()
            closed = await self._bounded(quiesce(services, given))
            given = PhaseInput(partition, self.options, closed.generation)
            self.reached["roll"].set()
            end = await self._bounded(roll_and_flush(services, given))
            given = PhaseInput(
                partition, self.options, closed.generation, end.boundary, end.leader_epoch
            )
            self.reached["seed"].set()
            await self._bounded(seed_and_persist(services, given))
        except ApplicationError:
            await self._bounded(reopen_partition(services, given))
            raise
        self._crossed(partition, closed.generation, end.boundary, end.leader_epoch)

    def _crossed(self, partition: PartitionRef, generation: int, boundary: int, epoch: int) -> None:
        self._given = PhaseInput(partition, self.options, generation, boundary, epoch)
        self.crossed, self.stage = True, "cleanup"
        self.reached["crossed"].set()
        self._history.note(f"B0 = {boundary} at epoch {epoch}, generation {generation}")
