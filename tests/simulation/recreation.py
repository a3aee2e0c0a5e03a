"""The topic is deleted and created again under its name while clients go on.

A family of schedules of its own: those of the migration alone stay what they were. The history
tells topics apart by id; what was told of the old one may go with it and is never in the new one,
what was told of the new one is there, from offset 0 on.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from tests.history.operations import Deleted, Fetch
from tests.history.violations import Bounds, Kind, Violation
from tests.simulation.admin_client import Admin, Plan
from tests.simulation.faults import KINDS, LEADERS, Fault
from tests.simulation.kafka import Topic
from tests.simulation.loop import WALL_START_S, Process
from tests.simulation.network import NetworkedLoop
from tests.simulation.run import PARTITIONS, TOPIC, Family, World
from tests.simulation.schedules import any_fault, beyond_a_lease, later, near
from tideline.control_plane import REPORTS_CHANNEL
from tideline.domain import failures
from tideline.kafka.topic_identity import TopicIdentity
from tideline.kafka.topic_observer import TopicObserver
from tideline.migration.connections import WorkerServices
from tideline.worker import identity
from tideline.worker.reports import ReportKeeper
from tideline.worker.requests import POLL_S

STEPS = ("delete", "gone", "create", "made", "told", "seen")
"""More milestones: the admin client asks for the deletion, Kafka has done it, the client asks for
the creation, Kafka has done it, the client is told so, it sees the new topic."""
LEAVES = "the admin client leaves"
ANEW = "the topic is made anew at Kafka, past the gateways"
REFUSED_WITHIN_S = 6.5
"""Within 6 s gateways refuse a name that means another topic in Kafka (docs/failures.md)."""
BOUNDS = Bounds(stale=inf, answer=45.0, progress=45.0, sent=0.0, dense=True)
"""Nobody is served while there is no topic, which is the admin client's affair."""
LOOK_S = 4.0
"""Between the looks of the worker's reconciler, which takes a minute otherwise."""


def plan_of(seed: int) -> Plan:
    """When the topic is deleted, and what takes its place."""
    chance = random.Random(f"plan {seed}")
    after = chance.choice(("clients", "track", "quiesce", "roll", "seed", "crossed", "crossed"))
    at = chance.choice((0.0, 0.005, 0.05, 0.5, 1.5)) * chance.uniform(0.5, 1.5)
    kind = chance.choice(("born", "born", "classic", "migrated"))
    version = chance.choice((5, 6, 6))
    return Plan(
        after,
        round(at, 4),
        chance.randrange(3),
        born_diskless=kind == "born",
        migrated=kind == "migrated",
        by_id=version == 6 and chance.random() < 0.5,
        version=version,
    )


def past_gateways(seed: int) -> bool:
    """Whether the topic is deleted at Kafka itself before the client asks a gateway to."""
    return random.Random(f"past {seed}").random() < 0.25


# -- faults


def _leaves(world: World, fault: Fault) -> None:
    assert isinstance(world, Recreation)
    if world.admin is not None:
        world.admin.leave()


def _stay_away(world: World, fault: Fault) -> None:
    """It comes back by itself."""


def _make_anew(world: World, fault: Fault) -> None:
    """The admin client has nothing left to do."""
    assert isinstance(world, Recreation)
    if TOPIC in world.kafka.topics:
        world.kafka.delete(TOPIC)
        world.kafka.create(TOPIC, PARTITIONS)
        world.loop.create_task(world.until_refused())


KINDS[LEAVES] = (_leaves, _stay_away)
KINDS[ANEW] = (_make_anew, _stay_away)


def _left(chance: random.Random, via: str) -> list[Fault]:
    """The client leaves, at one point or at several."""
    steps = chance.sample(STEPS[:4], chance.choice((1, 1, 2)))
    return [Fault(LEAVES, step, near(chance, chance.choice((0.0, 0.003, 0.05))), 0.0)
            for step in steps]  # fmt: skip


def _killed(chance: random.Random, via: str) -> list[Fault]:
    """The gateway that was asked dies with what it had to tell."""
    step, kind = chance.choice(STEPS[:4]), chance.choice(("kill", "kill and lose the disk of"))
    return [
        Fault(
            kind, step, near(chance, chance.choice((0.0, 0.003, 0.02))), beyond_a_lease(chance), via
        )
    ]


def _away(chance: random.Random, via: str) -> list[Fault]:
    """Postgres is away from the gateway that was asked, or from the leader's."""
    who, step = chance.choice((via, LEADERS)), chance.choice(STEPS[:4])
    found = [Fault("cut", step, near(chance, 0.003), beyond_a_lease(chance), who, "postgres")]
    if chance.random() < 0.5:
        found.append(Fault(LEAVES, step, near(chance, 0.01), 0.0))
    return found


def _unheard(chance: random.Random, via: str) -> list[Fault]:
    """Gateways do not hear of what became of the name."""
    late = "Postgres' notifications are late for"
    who = chance.sample(("gateway1", "gateway2", "gateway3"), chance.choice((1, 2)))
    return [Fault(late, "delete", 0.0, round(chance.uniform(2.0, 5.0), 3), one) for one in who]


def _lagging(chance: random.Random, via: str) -> list[Fault]:
    """A broker does not hear of the deletion, or of the creation."""
    step = chance.choice(STEPS[:4])
    who = f"broker{chance.choice((1, 2, 3))}"
    return [
        Fault("cut one way", step, near(chance, 0.0005), beyond_a_lease(chance), "controller", who)
    ]


def _standing(chance: random.Random, via: str) -> list[Fault]:
    """Somebody stands still meanwhile."""
    who = chance.choice((via, LEADERS, "gateway3", "worker", "broker2"))
    return [
        Fault("freeze", chance.choice(STEPS[:5]), near(chance, 0.003), beyond_a_lease(chance), who)
    ]


def _unaware(chance: random.Random, via: str) -> list[Fault]:
    """Gateways do not hear of the new topic, or of its id alone, and leadership goes to where they
    are when clients have written to it and read of it."""
    late, read = "Postgres' notifications are late for", "what is tracked is answered late to"
    lasts = round(chance.uniform(5.0, 7.0), 3)
    step = chance.choice(("gone", "made"))
    found = []
    for who in ("gateway1", "gateway2", "gateway3"):
        if who != via:
            found.append(Fault(late, step, 0.0, round(lasts + 1.0, 3), who))
            found.append(Fault(read, step, 0.0, lasts, who))
    moved = near(chance, 1.0)
    found += [Fault("move the leader", "made", at, 0.0) for at in (moved, round(moved + 1.0, 4))]
    return found


def _anew(chance: random.Random, via: str) -> list[Fault]:
    """Somebody deletes the topic at Kafka and makes another one there, and the worker does not look
    for a while: who writes by name is to be refused by the gateways alone."""
    at = near(chance, 0.5)
    return [
        Fault(ANEW, "crossed", at, 0.0),
        Fault("freeze", "crossed", at, round(chance.uniform(14.0, 17.0), 3), "worker"),
    ]


THEMES = (_left, _killed, _away, _unheard, _lagging, _standing, _unaware, _anew)
"""In the order of their turns."""


def schedule(seed: int) -> list[Fault]:
    """The theme whose turn it is, and up to four faults more: around the deletion, and around the
    migration."""
    chance = random.Random(f"recreation {seed}")
    via = f"gateway{plan_of(seed).via + 1}"
    found = THEMES[(seed - 1) % len(THEMES)](chance, via)
    found += chance.choice(THEMES)(chance, via) if chance.random() < 0.3 else []
    found += [any_fault(chance) for _ in range(chance.choice((0, 0, 1, 2)))]
    return later(chance, found)


# -- the world


@dataclass
class Reconciling:
    """The worker's comparison of ids and its looks at what gateways report, beside its
    activities."""

    loop: NetworkedLoop

    def run(self, process: Process, services: WorkerServices) -> None:
        plane, ids = services.control_plane, TopicIdentity(services.cluster, 2_000)
        metrics, reported = identity.IdentityMetrics(CollectorRegistry()), asyncio.Event()

        async def listen() -> None:  # as RequestDispatcher does
            while True:
                async for _ in plane.listen([REPORTS_CHANNEL], reported.set):
                    reported.set()
                await asyncio.sleep(POLL_S)

        keeper = ReportKeeper(
            plane,
            ids,
            services.observer,
            TopicObserver(services.cluster, 2_000),
            metrics,
            clock=self.loop.time,
            now=lambda: datetime.fromtimestamp(WALL_START_S + self.loop.time(), UTC),
            heard=reported,
        )
        process.spawn(listen(), "listen-for-reports")
        process.spawn(identity.IdentityReconciler(plane, ids, metrics).run(), "identity")
        process.spawn(keeper.run(), "reports")


class Recreation(World):
    def __init__(self, loop: NetworkedLoop, seed: int, *given: Any) -> None:
        super().__init__(loop, seed, *given)
        self.plan = plan_of(seed)
        self.admin: Admin | None = None
        self.kafka.has_admins = True
        self.kafka.on_change = self._changed
        self.worker.on_start = Reconciling(loop).run
        self._made = 0
        self._anew = False
        """Somebody else makes another topic of the name, and the admin client looks on."""
        if self.plan.born_diskless:  # which nobody migrates
            self.driver.final.add(failures.REFUSED)

    def _changed(self, topic: Topic, is_there: bool) -> None:
        now = self.loop.time()
        self.history.note(f"Kafka {'makes' if is_there else 'deletes'} {topic.id}")
        if is_there:
            self.topic_id = topic.id
            self._made += 1
            if self._made > 1:
                self._reach("made")
            return
        for number in range(topic.partitions):
            self.history.add(Deleted(self.partition(topic.id, number), sys.maxsize, now))
        self._reach("gone")

    def _reach(self, step: str) -> None:
        self.driver.milestones.reach(step)

    def start_clients(self) -> None:
        super().start_clients()
        process = Process(self.loop, "admin")
        self.admin = Admin(
            self.loop, self.addresses(), TOPIC, self.kafka.names, self.plan, PARTITIONS,
            self.history, self._reach,
        )  # fmt: skip
        process.spawn(self._recreate(self.admin), "admin")

    async def play(self, faults: Sequence[Fault]) -> None:
        self._anew = any(fault.kind == ANEW for fault in faults)
        await super().play(faults)

    async def _recreate(self, admin: Admin) -> None:
        if self._anew:
            old, admin.looks_on = self.topic_id, True
            await self.driver.milestones.wait("made")
            await admin.run(old)
        await self.driver.milestones.wait(self.plan.after)
        await asyncio.sleep(self.plan.at)
        self.history.note(str(self.plan))
        if self.plan.migrated:
            self.driver.temporal.process.spawn(self._migrate_again(admin), "again")
        if past_gateways(self.seed):
            self.history.note("somebody deletes the topic at Kafka, past the gateways")
            self.kafka.delete(TOPIC)
        await admin.run(self.topic_id)

    async def _migrate_again(self, admin: Admin) -> None:
        await admin.done.wait()
        await self.driver.ended.wait()
        self.history.note("the new topic is to be migrated")
        self.driver.ended.clear()
        self.driver.start()

    async def until_refused(self) -> None:
        """Until all gateways refuse the name what is told by it may be of the topic before: so long
        as nothing but the worker is disturbed, and that much longer where something is."""
        self.kafka.names.hold = True
        left = REFUSED_WITHIN_S
        while left > 0.0:
            await asyncio.sleep(0.1)
            left = left - 0.1 if self.disturbed == 0 else REFUSED_WITHIN_S
        self.kafka.names.hold = False

    def is_over(self) -> bool:
        if self._anew and self._made < 2:
            return super().is_over()
        return self.admin is not None and self.admin.done.is_set() and super().is_over()

    def end(self) -> list[Violation]:
        return [*super().end(), *begins_at_zero(self)]


def begins_at_zero(world: World) -> list[Violation]:
    """Who reads a topic from its front is shown offset 0 first: nothing is deleted from its front,
    and a new topic begins anew."""
    return [
        Violation(Kind.LOST, fetch.partition, f"the log begins at {fetch.records[0][0]}", (fetch,))
        for fetch in world.history.operations
        if isinstance(fetch, Fetch) and fetch.offset == 0 and fetch.records
        if fetch.records[0][0] != 0
    ]


@contextmanager
def _looking_often() -> Iterator[None]:
    with patch.object(identity, "EVERY_S", LOOK_S):
        yield


RECREATION = Family("recreation", schedule, Recreation, BOUNDS, _looking_often)
