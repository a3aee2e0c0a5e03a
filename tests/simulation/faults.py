"""Faults, and how a seed chooses them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.simulation.clients import Style

if TYPE_CHECKING:
    from tests.simulation.run import World


MILESTONES = ("clients", "track", "quiesce", "roll", "seed", "crossed")
RESTART = "restart"
"""What a fault's time counts from: the clients' start, the steps of the migration, and that an
aborted one was let go, where a schedule has an abort."""
ABORT = "abort and start again"


UNTIL_S = 6.5


@dataclass(frozen=True)
class Fault:
    """``kind``, ``at`` seconds after the milestone ``after`` is reached for the ``nth`` time
    (:mod:`tests.simulation.milestones`), for ``lasts``; 0 for what happens at once. With ``until``
    it lasts so long after that is reached next, and :data:`UNTIL_S` at most in all."""

    kind: str
    after: str
    at: float
    lasts: float
    who: str = ""
    other: str = ""
    nth: int = 1
    until: str = ""

    def __str__(self) -> str:
        names = " ".join(filter(None, (self.who, self.other)))
        times = f" for time {self.nth}" if self.nth > 1 else ""
        lasts = f" for {self.lasts:.3f} s" if self.lasts else ""
        if self.until:
            lasts = f" until {self.lasts:.3f} s after {self.until}"
        return f"{self.at:.3f} s after {self.after}{times}: {self.kind} {names}{lasts}"

    def begin(self, world: World) -> None:
        KINDS[self.kind][0](world, self)

    def end(self, world: World) -> None:
        KINDS[self.kind][1](world, self)


def _nothing(world: World, fault: Fault) -> None:
    """It happened at once."""


def _cut(world: World, fault: Fault) -> None:
    world.network.cut(fault.who, fault.other)
    world.network.cut(fault.other, fault.who)


def _heal(world: World, fault: Fault) -> None:
    world.network.heal(fault.who, fault.other)
    world.network.heal(fault.other, fault.who)


def _cut_one_way(world: World, fault: Fault) -> None:
    world.network.cut(fault.who, fault.other)


def _heal_one_way(world: World, fault: Fault) -> None:
    world.network.heal(fault.who, fault.other)


def _slow(world: World, fault: Fault) -> None:
    world.network.link(fault.who, fault.other).slow = 200.0 / world.network.pace


def _fast(world: World, fault: Fault) -> None:
    world.network.link(fault.who, fault.other).slow = 1.0


def _kill(world: World, fault: Fault) -> None:
    world.process(fault.who).kill()


def _start(world: World, fault: Fault) -> None:
    if fault.who == "worker":
        world.worker.start()
    elif fault.who.startswith("broker"):
        world.start_broker(int(fault.who[6:]))
    else:
        world.gateways[int(fault.who[7:])].start()


def _lose(world: World, fault: Fault) -> None:
    world.gateways[int(fault.who[7:])].kill(lose_disk=True)


def _freeze(world: World, fault: Fault) -> None:
    world.process(fault.who).freeze()


def _thaw(world: World, fault: Fault) -> None:
    world.process(fault.who).thaw()


def _suspended(world: World, fault: Fault) -> None:
    process = world.process(fault.who)
    process.clock_lag += fault.lasts
    process.thaw()


def _double(world: World, fault: Fault) -> None:
    world.doubles[int(fault.who[7:])].start()


def _undouble(world: World, fault: Fault) -> None:
    world.doubles[int(fault.who[7:])].kill(lose_disk=True)


def _move(world: World, fault: Fault) -> None:
    world.kafka.move_leader((world.topic_id, 0))


def _abort(world: World, fault: Fault) -> None:
    world.driver.abort()


def _wall(world: World, fault: Fault) -> None:
    world.process(fault.who).wall_ahead += 7_200.0


def _stall(world: World, fault: Fault) -> None:
    world.around.stalls[fault.who, STALLED[fault.kind]] = fault.lasts


def _begin_late(world: World, fault: Fault) -> None:
    """Each call waits for a tenth of the fault, as behind a lock."""
    world.around.stalls[fault.who, STALLED[fault.kind]] = fault.lasts / 10


def _go_on(world: World, fault: Fault) -> None:
    world.around.stalls.pop((fault.who, STALLED[fault.kind]), None)


def _reset(world: World, fault: Fault) -> None:
    for name in world.clients:
        world.network.reset(name, fault.who)


def _double_for_ever(world: World, fault: Fault) -> None:
    world.left.add(int(fault.who[7:]))
    world.doubles[int(fault.who[7:])].start()


def _unclean(world: World, fault: Fault) -> None:
    world.elect_unclean(int(fault.who or 0))


KINDS: dict[str, tuple[Callable[[World, Fault], None], Callable[[World, Fault], None]]] = {
    "cut": (_cut, _heal),
    "cut one way": (_cut_one_way, _heal_one_way),
    "slow": (_slow, _fast),
    "kill": (_kill, _start),
    "kill and lose the disk of": (_lose, _start),
    "freeze": (_freeze, _thaw),
    "suspend the machine of": (_freeze, _suspended),
    "double": (_double, _undouble),
    "move the leader": (_move, _nothing),
    ABORT: (_abort, _nothing),
    "wall clock jumps at": (_wall, _nothing),
    "Postgres is slow with acknowledgements of tracking by": (_stall, _go_on),
    "Postgres' notifications are late for": (_stall, _go_on),
    "Postgres persists late for": (_begin_late, _go_on),
    "reset clients' connections to": (_reset, _nothing),
    "double for ever": (_double_for_ever, _nothing),
    "elect an unclean leader": (_unclean, _nothing),
}
STALLED = {
    "Postgres is slow with acknowledgements of tracking by": "acknowledge_tracking",
    "Postgres' notifications are late for": "listen",
    "Postgres persists late for": "initialize_diskless_migration",
}
PRODUCERS = (
    (Style.LIBRDKAFKA, 0),
    (Style.JAVA, 0),
    (Style.PLAIN, 0),
    (Style.LIBRDKAFKA, 1),
)
"""How each behaves, and the partition that it writes to."""


AT_ONCE = (
    "move the leader",
    ABORT,
    "wall clock jumps at",
    "reset clients' connections to",
)


def pace_of(seed: int) -> float:
    """How slow every message is: in a slow world more happens in between."""
    return random.Random(f"pace {seed}").choice((1.0, 1.0, 4.0, 15.0))


LEADERS = "gateway2"
"""The gateway beside the partition's first leader."""


def schedule(seed: int) -> list[Fault]:
    """Up to six faults around the steps of the migration, some of them chosen to go together."""
    chance = random.Random(f"faults {seed}")
    chosen = chance.choice(THEMES)
    found = chosen(chance) if chance.random() < 0.7 else []
    found += [any_fault(chance) for _ in range(chance.choice((0, 0, 1, 2, 3)))]
    return later(chance, found)


def later(chance: random.Random, faults: list[Fault]) -> list[Fault]:
    """Of the faults of a schedule with an abort some count from the new start."""
    if all(fault.kind != ABORT for fault in faults):
        return faults
    return [
        replace(fault, after=RESTART)
        if fault.kind != ABORT and fault.after in MILESTONES and chance.random() < 0.25
        else fault
        for fault in faults
    ]


def near(chance: random.Random, at: float) -> float:
    return round(at * chance.uniform(0.5, 1.5), 4)


def beyond_a_lease(chance: random.Random) -> float:
    """Longer than a lease."""
    return round(chance.uniform(2.8, 5.5), 3)


def _suspended_leader(chance: random.Random) -> list[Fault]:
    after, at = chance.choice((("quiesce", 0.001), ("quiesce", 0.01), ("roll", 0.001)))
    kind = chance.choice(("suspend the machine of", "suspend the machine of", "freeze"))
    begins, lasts = near(chance, at), beyond_a_lease(chance)
    found = [Fault(kind, after, begins, lasts, LEADERS)]
    if chance.random() < 0.7:  # Postgres is away when it wakes
        found.append(Fault("cut", after, begins, round(lasts + 1.5, 3), LEADERS, "postgres"))
    return found


def _cut_off_leader(chance: random.Random) -> list[Fault]:
    """It hears nothing of Postgres, and its requests reach the broker late."""
    after, at = chance.choice((("track", 0.2), ("quiesce", 0.001), ("quiesce", 0.02)))
    begins, lasts = near(chance, at), beyond_a_lease(chance)
    late = round(max(0.3, lasts + chance.uniform(-1.5, 1.5)), 3)
    pause = near(chance, 0.3)
    return [
        Fault("cut", after, begins, lasts, LEADERS, "postgres"),
        Fault("cut one way", after, round(begins + pause, 4), late, LEADERS, "broker2"),
    ]


def _back_in_time(chance: random.Random) -> list[Fault]:
    """Its lease comes back between the worker's look and the fence."""
    begins = near(chance, 0.003)
    return [
        Fault("cut", "quiesce", begins, round(chance.uniform(2.3, 3.3), 3), LEADERS, "postgres"),
        Fault("slow", "quiesce", begins, 6.0, "worker", "postgres"),
        Fault("slow", "quiesce", begins, 6.0, LEADERS, "broker2"),
    ]


def _twins(chance: random.Random) -> list[Fault]:
    after = chance.choice(("track", "quiesce", "quiesce"))
    begins, lasts = near(chance, 0.01), beyond_a_lease(chance)
    return [
        Fault("cut", after, begins, lasts, LEADERS, "postgres"),
        Fault("double", after, round(begins + 0.02, 4), 6.0, LEADERS),
    ]


def _started_again(chance: random.Random) -> list[Fault]:
    """An abort and a new start, while an acknowledgement of the first round is on its way."""
    slow = "Postgres is slow with acknowledgements of tracking by"
    return [
        Fault(slow, "track", 0.0, round(chance.uniform(1.0, 3.0), 3), LEADERS),
        Fault(ABORT, "track", near(chance, 0.2), 0.0),
        Fault("cut", RESTART, near(chance, 0.2), 5.5, LEADERS, "postgres"),
    ]


def _moved(chance: random.Random) -> list[Fault]:
    """Leadership goes to a broker whose gateway parked and does not hear of B0, after consumers
    have read past it: what they are told of leader epochs and ends is Kafka's word."""
    begins, moved = near(chance, 0.005), round(chance.uniform(0.5, 1.5), 3)
    after = chance.choice(("roll", "roll", "quiesce"))
    return [
        Fault("cut", after, begins, beyond_a_lease(chance) + 1.0, "gateway3", "postgres"),
        Fault("cut", after, begins, beyond_a_lease(chance) + 1.0, "gateway1", "postgres"),
        Fault("move the leader", "crossed", moved, 0.0),
        Fault("reset clients' connections to", "crossed", round(moved + 0.3, 3), 0.0, LEADERS),
    ]


def _unaware_or_moved(chance: random.Random) -> list[Fault]:
    """The leader's gateway hears nothing of the migration's beginning; or leadership moves early in
    the write pause, beside something that stands still."""
    if chance.random() < 0.5:
        begins = round(chance.uniform(0.9, 1.4), 3)
        return [Fault("cut", "clients", begins, round(chance.uniform(4.0, 6.5), 3), LEADERS,
                      "postgres")]  # fmt: skip
    after = chance.choice(("quiesce", "roll", "seed"))
    who = chance.choice(("worker", LEADERS, "broker2"))
    return [
        Fault("move the leader", after, near(chance, 0.003), 0.0),
        Fault("freeze", after, near(chance, 0.003), beyond_a_lease(chance), who),
    ]


def _unheard(chance: random.Random) -> list[Fault]:
    """The leader's gateway does not hear of the closing, and Postgres begins late with B0: it goes
    on appending while the log's end is read, and after."""
    lasts = round(chance.uniform(2.0, 6.0), 3)
    return [
        Fault("Postgres' notifications are late for", "track", 0.0, 5.0, LEADERS),
        Fault("Postgres persists late for", "quiesce", 0.0, lasts, "worker"),
    ]


def _unanswered(chance: random.Random) -> list[Fault]:
    """Producers lose their connections with answers on the way, and send again, to the suffix."""
    steps = ("track", "quiesce", "roll", "seed")
    found = [
        Fault(
            "reset clients' connections to", chance.choice(steps),
            near(chance, chance.choice((0.0, 0.004, 0.02))), 0.0, LEADERS,
        )
        for _ in range(3)
    ]  # fmt: skip
    if chance.random() < 0.5:
        lasts = round(chance.uniform(5.1, 6.0), 3)
        who = chance.choice(("librdkafka-1", "java-2"))
        found.append(Fault("cut one way", "track", near(chance, 0.05), lasts, LEADERS, who))
    return found


def _commit_unheard(chance: random.Random) -> list[Fault]:
    """Commits succeed and are asked for again: their answers do not come."""
    who = chance.choice((LEADERS, LEADERS, "gateway3"))
    begins = near(chance, chance.choice((0.1, 0.5, 1.0)))
    lasts = round(chance.uniform(2.2, 4.0), 3)
    return [Fault("cut one way", "crossed", begins, lasts, "postgres", who)]


def _aborted(chance: random.Random) -> list[Fault]:
    """An abort before the first B0, and a new start that the leader's gateway hears nothing of."""
    slow = "Postgres is slow with acknowledgements of tracking by"
    held = round(chance.uniform(0.3, 0.6), 3)
    return [
        Fault(slow, "track", 0.0, held, chance.choice(("gateway1", "gateway3"))),
        Fault(ABORT, "track", near(chance, 0.15), 0.0),
        Fault("cut", RESTART, near(chance, 0.3), 6.0, LEADERS, "postgres"),
    ]


def _two_for_long(chance: random.Random) -> list[Fault]:
    """A second process of one id, which nobody ends."""
    who = chance.choice(("gateway1", "gateway2", "gateway3"))
    return [Fault("double for ever", "clients", near(chance, 0.5), 0.0, who)]


def _unclean_before(chance: random.Random) -> list[Fault]:
    """A replica that was cut off leads: what Kafka lost is not promised, the rest is."""
    away, after = chance.choice((1, 3)), chance.choice(("track", "quiesce", "roll"))
    return [
        Fault("cut", "clients", 0.3, round(chance.uniform(4.0, 6.0), 3), "broker2",
              f"broker{away}"),
        Fault("elect an unclean leader", after, near(chance, chance.choice((0.01, 1.0))), 0.0,
              str(away)),
    ]  # fmt: skip


THEMES = (
    _suspended_leader,
    _cut_off_leader,
    _back_in_time,
    _twins,
    _started_again,
    _moved,
    _unaware_or_moved,
    _unheard,
    _unanswered,
    _commit_unheard,
    _aborted,
    _two_for_long,
    _unclean_before,
)


def any_fault(chance: random.Random) -> Fault:
    gateways = [f"gateway{n}" for n in (1, 2, 3)]
    brokers = [f"broker{n}" for n in (1, 2, 3)]
    kind = chance.choice(
        (
            "cut", "cut", "cut", "cut one way", "slow", "kill", "kill and lose the disk of",
            "freeze", "freeze", "suspend the machine of", "double", "move the leader",
            "move the leader", ABORT, "wall clock jumps at",
        )
    )  # fmt: skip
    who = other = ""
    match kind:
        case "cut" | "cut one way" | "slow":
            who = chance.choice([*gateways, *gateways, *brokers, "worker"])
            near = {
                "g": ["postgres", "postgres", "postgres", f"broker{who[-1]}", "s3"],
                "b": [other for other in [*brokers, "controller"] if other != who],
                "w": ["postgres", *brokers],
            }
            other = chance.choice(near[who[0]])
            if chance.random() < 0.3:
                who, other = other, who
        case "kill":
            who = chance.choice([*gateways, *brokers, "worker"])
        case "freeze" | "suspend the machine of":
            who = chance.choice([*gateways, *gateways, *brokers, "worker", "worker"])
        case "kill and lose the disk of" | "double":
            who = chance.choice(gateways)
        case "wall clock jumps at":
            who = chance.choice([*gateways, "postgres", "worker"])
    after = chance.choice(MILESTONES)
    at = chance.choice((0.0, 0.002, 0.01, 0.05, 0.3, 1.5)) * chance.uniform(0.5, 1.5)
    lasts = chance.choice((0.05, 0.4, 1.5, 3.0, 5.0)) * chance.uniform(0.7, 1.3)
    if kind in AT_ONCE:
        lasts = 0.0
    return Fault(kind, after, round(at, 4), round(lasts, 3), who, other)
