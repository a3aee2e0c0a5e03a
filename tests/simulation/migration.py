"""The worker and the topic's migration: the real workflows over the real activities.

Four activities are answered at once, since what they look at is not in a run: the preflight of the
topic, its configs, the coverage of its prefix, and readiness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from temporalio.common import RawValue
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError

from activities.registration import ACTIVITIES
from activities.topic import tell_of_growth
from tests.simulation.broker_wire import PORT, host_of
from tests.simulation.durable import CHILDREN, Run, Temporal
from tests.simulation.faults import RESTART
from tests.simulation.gateways import Surroundings
from tests.simulation.kafka import Kafka, Refused
from tests.simulation.loop import Process
from tests.simulation.milestones import Milestones
from tests.simulation.promotion import Promotions
from tideline.control_plane.lease_observer import LeaseObserver
from tideline.domain import failures
from tideline.domain.ids import TopicIdPartition
from tideline.domain.messages import (
    PARTITION_WORKFLOW,
    Followed,
    GrowthFound,
    JoinRequest,
    PhaseInput,
    ReadinessFound,
    ReadinessRequest,
    TopicActivity,
    TopicOutcome,
    TopicRef,
    TopicStep,
)
from tideline.domain.migration import Phase
from tideline.domain.operator_choices import Decider
from tideline.kafka import log_reader
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.log_reader import LogReader, TailScanner
from tideline.kafka.observer import KafkaObserver, OffsetAnswer, OffsetSpec
from tideline.kafka.topic_observer import ActiveProducer, ConfigEntry
from tideline.migration.connections import AckListener, WorkerServices, monotonic_ms
from workflows.partition_migration import PartitionMigration
from workflows.topic_migration import TopicMigration

HOLD_MS = 6_000
AGAIN_S = 0.5
PLACES = 1
"""Of topics that migrate at once: a place that is not given back is missed."""
STEPS = {
    TopicActivity.AWAIT_TRACKING: "track",
    Phase.QUIESCE: "quiesce",
    Phase.ROLL_AND_FLUSH: "roll",
    Phase.SEED_AND_PERSIST: "seed",
}
"""The milestones that the first attempt of an activity reaches, of partition 0 where it has one."""
CHILDREN[PARTITION_WORKFLOW] = PartitionMigration


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

    async def configs_of(
        self, topics: Iterable[str], keys: Iterable[str]
    ) -> dict[str, list[dict[str, ConfigEntry]]]:
        return {topic: await self.configs_by_broker(topic) for topic in topics}

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


class Observer(KafkaObserver):
    """Counts partitions as the controller has them."""

    def __init__(self, cluster: KafkaCluster, kafka: Kafka, milestones: Milestones) -> None:
        super().__init__(cluster, 2_000)
        self._kafka, self._milestones = kafka, milestones

    async def offset(self, topic: str, partition: int, spec: int, **how: Any) -> OffsetAnswer:
        answer = await super().offset(topic, partition, spec, **how)
        if partition == 0 and spec == OffsetSpec.LATEST and self._milestones.reach("end read"):
            await asyncio.sleep(0)
        return answer

    async def partition_count(self, topic_id: UUID) -> int:
        return sum(key[0] == topic_id for key in self._kafka.views)


class Worker:
    """A worker process: its services live as long as it does."""

    def __init__(self, world: Surroundings, kafka: Kafka, name: str) -> None:
        self._world, self._kafka, self.name = world, kafka, name
        self.process = Process(world.loop, name)
        self._serving: WorkerServices | None = None
        self.on_start: Callable[[Process, WorkerServices], None] = lambda process, services: None
        """What else its process does."""
        self.plane_is_promoted = False

    def promoted(self) -> None:
        """Postgres was: from now on gateways that stay away are looked for in the bucket."""
        if not self.plane_is_promoted and (serving := self.serving()) is not None:
            self._look_for_absent(serving[1])
        self.plane_is_promoted = True

    def _look_for_absent(self, services: WorkerServices) -> None:
        check = Promotions(services.control_plane, self._world.objects)
        self.process.spawn(check.keep(), "promotions")

    def start(self) -> None:
        if not self.process.alive:
            self.process = Process(self._world.loop, self.name)

        async def run() -> None:
            services = self._services()
            self.process.spawn(services.acks.run(), "acks")
            self.process.spawn(services.leases.run(), "leases")
            self.on_start(self.process, services)
            self._serving = services
            if self.plane_is_promoted:
                self._look_for_absent(services)

        self._serving = None
        self.process.spawn(run(), self.name)

    def serving(self) -> tuple[Process, WorkerServices] | None:
        """The process and its services, while it lives."""
        if self._serving is None or not self.process.alive:
            return None
        return self.process, self._serving

    def _services(self) -> WorkerServices:
        plane = self._world.plane_for(self.process)
        nodes = sorted(self._kafka.brokers)
        addresses = [(host_of(n), PORT) for n in nodes]
        cluster = KafkaCluster(addresses, client_id=self.name, timeout_ms=2_000)
        reader = LogReader(cluster, 2_000)
        model = cast(Any, TopicsModel(self._kafka))
        return WorkerServices(
            settings=cast(
                Any,
                SimpleNamespace(temporal_task_queue="simulated", migration_parallel_topics=PLACES),
            ),
            control_plane=plane,
            observer=Observer(cluster, self._kafka, self._world.milestones),
            topics=model,
            admin=model,
            deletion=model,
            reader=reader,
            tails=TailScanner(
                reader,
                KafkaObserver(cluster, 2_000),
                max_back_bytes=log_reader.MAX_BACK_BYTES,
            ),
            remote_log=model,
            inventory=model,
            acks=AckListener(plane),
            leases=LeaseObserver(plane, monotonic_ms),
            cluster=cluster,
            wait_bound_ms=4_000,
        )


class Driver:
    """Whoever wants the topic migrated: starts its workflow, and again after an abort."""

    def __init__(self, world: Surroundings, worker: Worker, topic: str) -> None:
        self._history, self._plane, self._topic = world.history, world.plane, topic
        steps: dict[str, Run] = {
            **{str(name): run for name, run in ACTIVITIES.items()},
            TopicActivity.VALIDATE_TOPIC: _at_once,
            TopicActivity.RECONCILE_CONFIGS: _at_once,
            TopicActivity.PROVE_COVERAGE_FOR_ROLL: _at_once,
            TopicActivity.FOLLOW_TOPIC_MIGRATION: self._follow,
            Phase.READINESS: _at_once,
            TopicActivity.AWAIT_READINESS: _all_ready,
            TopicActivity.TELL_OF_GROWTH: self._tell_of_growth,
        }
        self.temporal = Temporal(world.loop, steps, worker.serving, self._began, self._succeeded)
        self.topic_grows = False
        """Only then brokers are asked whether it has: the question moves what comes after it."""
        self._running, self._triggers = "", 0
        self._followed: dict[str, asyncio.Task[TopicOutcome]] = {}
        self.final = {failures.UNKNOWN_TOPIC, failures.TOPIC_CHANGED}
        """Failures after which it is not asked for again."""
        self._given = RawValue(
            PayloadConverter.default.to_payload(
                {"topic": topic, "options": {"quiesce_hold_ms": HOLD_MS}}
            )
        )
        self.crossed = False
        self.ended = asyncio.Event()
        self.milestones = world.milestones

    @property
    def stage(self) -> str:
        """What the workflows say of themselves."""
        running = sorted(self.temporal.executions.items())
        return "; ".join(f"{id}: {found.instance.status()}" for id, found in running)

    def start(self) -> None:
        self.temporal.process.spawn(self._migrate(), "driver")

    async def _migrate(self) -> None:
        while not self.ended.is_set():
            self._triggers += 1
            try:
                outcome: TopicOutcome = await self.temporal.execute(
                    TopicMigration, self._given, f"trigger-{self._triggers}"
                )
            except ApplicationError as error:
                self._history.note(f"the migration ended: {error.type}: {error.message}")
                if error.type in self.final:
                    self.ended.set()
                await asyncio.sleep(AGAIN_S)
                continue
            self._history.note(f"the migration ended: {outcome.outcome} {outcome.boundaries}")
            if outcome.outcome != "aborted":
                self.ended.set()
                return
            self.milestones.reach(RESTART)
            await asyncio.sleep(AGAIN_S)

    async def _tell_of_growth(self, services: Any, step: TopicStep) -> GrowthFound:
        if not self.topic_grows:
            return GrowthFound()
        found = await tell_of_growth(services, step)
        self._history.note(f"the worker tells of growth: {found.reason or 'none is left'}")
        return found

    async def _follow(self, services: Any, request: JoinRequest) -> Followed:
        """Runs where workflows run, as the server would start and watch it."""
        id = request.ref.workflow_id
        if id not in self._followed or self._followed[id].done():
            canonical = self._canonical(request.ref)
            self._followed[id] = self.temporal.process.spawn(canonical, "topic workflow")
        return Followed(await asyncio.shield(self._followed[id]))

    async def _canonical(self, ref: TopicRef) -> TopicOutcome:
        id = self._running = ref.workflow_id
        while id in self.temporal.executions:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        outcome: TopicOutcome = await self.temporal.execute(TopicMigration, self._given, id)
        return outcome

    def abort(self) -> None:
        """What an operator asks for now; refused where nothing runs."""

        async def ask() -> None:
            try:
                decision = await self.temporal.update(
                    self._running, "abort", Decider("ada", "called off")
                )
            except (ApplicationError, KeyError) as error:
                self._history.note(f"abort refused: {error}")
            else:
                self._history.note(f"abort {'won' if decision.won else 'lost'}")

        self.temporal.process.spawn(ask(), "abort")

    def _began(self, name: str, given: Any) -> None:
        if name in STEPS and not (isinstance(given, PhaseInput) and given.ref.partition):
            self._history.note(f"{STEPS[name]} begins")
            self.milestones.reach(STEPS[name])

    def _succeeded(self, name: str, given: Any) -> None:
        if name in STEPS and not (isinstance(given, PhaseInput) and given.ref.partition):
            self.milestones.reach(f"{STEPS[name]} ended")
        if name == TopicActivity.AWAIT_TRACKING:
            self._history.note("tracked by every gateway")
        if name == Phase.SEED_AND_PERSIST:
            at: TopicIdPartition = given.ref.log
            self._history.note(
                f"B0 of partition {at.partition} = {given.boundary} at epoch {given.leader_epoch}, "
                f"generation {given.generation}"
            )
            if at.partition == 0:
                self.crossed = True
                self.milestones.reach("crossed")


async def _all_ready(services: Any, request: ReadinessRequest) -> ReadinessFound:
    return ReadinessFound(ready=request.partitions)


async def _at_once(services: Any, given: Any) -> None:
    """Nothing to do in a run."""
