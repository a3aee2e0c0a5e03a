"""Faults, and how a seed chooses them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.run import World


MILESTONES = ("clients", "track", "quiesce", "roll", "seed", "crossed", "restart")
"""What a fault's time counts from: the clients' start, the steps of the migration, and that an
aborted one was let go."""


@dataclass(frozen=True)
class Fault:
    """``kind``, ``at`` seconds after the milestone ``after`` is first reached, for ``lasts``; 0 for
    what happens at once."""

    kind: str
    after: str
    at: float
    lasts: float
    who: str = ""
    other: str = ""

    def __str__(self) -> str:
        names = " ".join(filter(None, (self.who, self.other)))
        lasts = f" for {self.lasts:.3f} s" if self.lasts else ""
        return f"{self.at:.3f} s after {self.after}: {self.kind} {names}{lasts}"

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
        world.start_worker()
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
    world.doubles[int(fault.who[7:])].kill()


def _move(world: World, fault: Fault) -> None:
    world.kafka.move_leader((world.topic_id, 0))


def _abort(world: World, fault: Fault) -> None:
    world.driver.abort_asked = True


def _wall(world: World, fault: Fault) -> None:
    world.process(fault.who).wall_ahead += 7_200.0


def _stall(world: World, fault: Fault) -> None:
    world.around.stalls[fault.who, "acknowledge_tracking"] = fault.lasts


def _go_on(world: World, fault: Fault) -> None:
    world.around.stalls.pop((fault.who, "acknowledge_tracking"), None)


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
    "abort and start again": (_abort, _nothing),
    "wall clock jumps at": (_wall, _nothing),
    "Postgres is slow with acknowledgements of tracking by": (_stall, _go_on),
}


AT_ONCE = ("move the leader", "abort and start again", "wall clock jumps at")


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
    return [*found, *(_one(chance) for _ in range(chance.choice((0, 0, 1, 2, 3))))]


def _near(chance: random.Random, at: float) -> float:
    return round(at * chance.uniform(0.5, 1.5), 4)


def _long(chance: random.Random) -> float:
    """Longer than a lease."""
    return round(chance.uniform(2.8, 5.5), 3)


def _suspended_leader(chance: random.Random) -> list[Fault]:
    after, at = chance.choice((("quiesce", 0.001), ("quiesce", 0.01), ("roll", 0.001)))
    kind = chance.choice(("suspend the machine of", "suspend the machine of", "freeze"))
    begins, lasts = _near(chance, at), _long(chance)
    found = [Fault(kind, after, begins, lasts, LEADERS)]
    if chance.random() < 0.7:  # Postgres is away when it wakes
        found.append(Fault("cut", after, begins, round(lasts + 1.5, 3), LEADERS, "postgres"))
    return found


def _cut_off_leader(chance: random.Random) -> list[Fault]:
    """It hears nothing of Postgres, and its requests reach the broker late."""
    after, at = chance.choice((("track", 0.2), ("quiesce", 0.001), ("quiesce", 0.02)))
    begins, lasts = _near(chance, at), _long(chance)
    late = round(max(0.3, lasts + chance.uniform(-1.5, 1.5)), 3)
    pause = _near(chance, 0.3)
    return [
        Fault("cut", after, begins, lasts, LEADERS, "postgres"),
        Fault("cut one way", after, round(begins + pause, 4), late, LEADERS, "broker2"),
    ]


def _back_in_time(chance: random.Random) -> list[Fault]:
    """Its lease comes back between the worker's look and the fence."""
    begins = _near(chance, 0.003)
    return [
        Fault("cut", "quiesce", begins, round(chance.uniform(2.3, 3.3), 3), LEADERS, "postgres"),
        Fault("slow", "quiesce", begins, 6.0, "worker", "postgres"),
        Fault("slow", "quiesce", begins, 6.0, LEADERS, "broker2"),
    ]


def _twins(chance: random.Random) -> list[Fault]:
    after = chance.choice(("track", "quiesce", "quiesce"))
    begins, lasts = _near(chance, 0.01), _long(chance)
    return [
        Fault("cut", after, begins, lasts, LEADERS, "postgres"),
        Fault("double", after, round(begins + 0.02, 4), 6.0, LEADERS),
    ]


def _started_again(chance: random.Random) -> list[Fault]:
    """An abort and a new start, while an acknowledgement of the first round is on its way."""
    slow = "Postgres is slow with acknowledgements of tracking by"
    return [
        Fault(slow, "track", 0.0, round(chance.uniform(1.0, 3.0), 3), LEADERS),
        Fault("abort and start again", "track", _near(chance, 0.2), 0.0),
        Fault("cut", "restart", _near(chance, 0.2), 5.5, LEADERS, "postgres"),
    ]


def _moved(chance: random.Random) -> list[Fault]:
    """Leadership goes to a broker whose gateway does not know B0."""
    begins = _near(chance, 0.005)
    return [
        Fault("cut", "quiesce", begins, _long(chance), "gateway3", "postgres"),
        Fault("cut", "quiesce", begins, _long(chance), "gateway1", "postgres"),
        Fault("move the leader", "crossed", _near(chance, chance.choice((0.05, 0.5))), 0.0),
    ]


def _moved_early(chance: random.Random) -> list[Fault]:
    after = chance.choice(("quiesce", "roll", "seed"))
    who = chance.choice(("worker", LEADERS, "broker2"))
    return [
        Fault("move the leader", after, _near(chance, 0.003), 0.0),
        Fault("freeze", after, _near(chance, 0.003), _long(chance), who),
    ]


THEMES = (
    _suspended_leader,
    _cut_off_leader,
    _back_in_time,
    _twins,
    _started_again,
    _moved,
    _moved_early,
)


def _one(chance: random.Random) -> Fault:
    gateways = [f"gateway{n}" for n in (1, 2, 3)]
    brokers = [f"broker{n}" for n in (1, 2, 3)]
    kind = chance.choice(
        (
            "cut", "cut", "cut", "cut one way", "slow", "kill", "kill and lose the disk of",
            "freeze", "freeze", "suspend the machine of", "double", "move the leader",
            "move the leader", "abort and start again", "wall clock jumps at",
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
