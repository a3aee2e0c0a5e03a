"""Faults, and how a seed chooses them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.simulation.clients import Style
from tests.simulation.coverage import LOST, OLDER
from tests.simulation.postgres import ANY, How, Trouble

if TYPE_CHECKING:
    from tests.simulation.run import World


MILESTONES = ("clients", "track", "quiesce", "roll", "seed", "crossed")
RESTART = "restart"
"""What a fault's time counts from: the clients' start, the steps of the migration, and that an
aborted one was let go, where a schedule has an abort."""
CLOSING, CLOSED = "worker close_generation", "worker close_generation done"
END_READ = "seed > end read"
NARROW = (
    CLOSING, CLOSED, "roll ended", END_READ, "B0", "quiesce > gateway parked",
    "quiesce > gateway confirm_partitions", "quiesce > gateway confirm_partitions done",
    "worker fence_gateway done", "B0 > gateway put", "B0 > gateway commit_file",
    "B0 > gateway put done", "B0 > gateway commit_file done", "clients > gateway start",
)  # fmt: skip
"""Milestones that last milliseconds: the closing is asked for and done, the end of the log is known
and has been read once more for B0, B0 is set and nobody knows, produces are parked, a question is
asked and answered after the closing, a gateway is fenced, objects are put and committed, a gateway
starts."""
ABORT = "abort and start again"
COPY, PUT_BACK = "copy the disk of", "put the older disk back of"
PROMOTE = "promote a standby of Postgres"
RESET = "reset clients' connections to"
UNTIL_S = 6.5
"""How long a fault lasts at most whose end is a milestone."""


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


def _suspend(world: World, fault: Fault) -> None:
    process = world.process(fault.who)
    world.suspended[process] = world.loop.time()
    process.freeze()


def _resume(world: World, fault: Fault) -> None:
    """Its clock stood still. One that was killed meanwhile is another process by now."""
    process = world.process(fault.who)
    if (since := world.suspended.pop(process, None)) is not None:
        process.clock_lag += world.loop.time() - since
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
    world.around.servers["postgres"].stalls[fault.who, STALLED[fault.kind]] = fault.lasts


def _begin_late(world: World, fault: Fault) -> None:
    """Each call waits for a tenth of the fault, as behind a lock."""
    world.around.servers["postgres"].stalls[fault.who, STALLED[fault.kind]] = fault.lasts / 10


def _go_on(world: World, fault: Fault) -> None:
    world.around.servers["postgres"].stalls.pop((fault.who, STALLED[fault.kind]), None)


def _trouble(world: World, fault: Fault) -> None:
    server, call, how = TROUBLED[fault.kind]
    _end_trouble(world, fault)
    world.around.servers[server].troubles[fault.who, call] = Trouble(how)


def _end_trouble(world: World, fault: Fault) -> None:
    server, call, _ = TROUBLED[fault.kind]
    if trouble := world.around.servers[server].troubles.pop((fault.who, call), None):
        trouble.over.set()


def _reset(world: World, fault: Fault) -> None:
    for gateway in ALL if fault.who == ANY else (fault.who,):
        for name in world.clients:
            world.network.reset(name, gateway)


def _links(world: World, fault: Fault) -> list[Fault]:
    """The cut of each link between the clients and the gateways."""
    names = world.clients if fault.who == CLIENTS else [fault.who]
    return [replace(fault, who=name, other=gateway) for name in names for gateway in ALL]


def _cut_off(world: World, fault: Fault) -> None:
    for link in _links(world, fault):
        _cut(world, link)


def _let_back(world: World, fault: Fault) -> None:
    for link in _links(world, fault):
        _heal(world, link)


def _copy(world: World, fault: Fault) -> None:
    world.gateways[int(fault.who[7:])].copy_disk()


def _start_over_older(world: World, fault: Fault) -> None:
    if world.gateways[int(fault.who[7:])].put_copy_back():
        world.around.coverage.note(OLDER, fault.who)
    _start(world, fault)


def _start_over_none(world: World, fault: Fault) -> None:
    world.around.coverage.note(LOST, fault.who)
    _start(world, fault)


def _wall_back(world: World, fault: Fault) -> None:
    world.process(fault.who).wall_ahead -= 7_200.0


def _promote(world: World, fault: Fault) -> None:
    world.around.promote()
    world.worker.promoted()


def _tier(world: World, fault: Fault) -> None:
    """Most of what is replicated goes from local disks: it is in remote storage alone."""
    world.kafka.let_local_go((world.topic_id, 0), 0.8)


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
    "kill and lose the disk of": (_lose, _start_over_none),
    COPY: (_copy, _nothing),
    PUT_BACK: (_kill, _start_over_older),
    "freeze": (_freeze, _thaw),
    "suspend the machine of": (_suspend, _resume),
    "double": (_double, _undouble),
    "move the leader": (_move, _nothing),
    ABORT: (_abort, _nothing),
    "wall clock jumps at": (_wall, _nothing),
    "wall clock goes back at": (_wall_back, _nothing),
    "local segments go": (_tier, _nothing),
    PROMOTE: (_promote, _nothing),
    "cut off": (_cut_off, _let_back),
    "Postgres is slow with acknowledgements of tracking by": (_stall, _go_on),
    "Postgres' notifications are late for": (_stall, _go_on),
    "Postgres persists late for": (_begin_late, _go_on),
    RESET: (_reset, _nothing),
    "double for ever": (_double_for_ever, _nothing),
    "elect an unclean leader": (_unclean, _nothing),
}
TROUBLED = {
    "commits fail for": ("postgres", "commit_file", How.FAILS),
    "commits hang for": ("postgres", "commit_file", How.HANGS),
    "commits are answered late to": ("postgres", "commit_file", How.LATE),
    "commits are done, and fail, for": ("postgres", "commit_file", How.UNHEARD),
    "confirmations are answered late to": ("postgres", "confirm_partitions", How.LATE),
    "keys are not registered for": ("postgres", "register_object_keys", How.FAILS),
    "Postgres refuses": ("postgres", "", How.REFUSES),
    "Postgres fails": ("postgres", "", How.FAILS),
    "uploads fail for": ("s3", "put", How.FAILS),
    "uploads are refused for": ("s3", "put", How.REFUSES),
    "uploads hang for": ("s3", "put", How.HANGS),
    "uploads are stored, and answered late, for": ("s3", "put", How.LATE),
    "uploads are stored, and fail, for": ("s3", "put", How.UNHEARD),
}
"""The server, its call (empty: all), and what becomes of it; of one gateway or of each."""
KINDS |= dict.fromkeys(TROUBLED, (_trouble, _end_trouble))
UPLOADS = tuple(kind for kind, (_, call, _) in TROUBLED.items() if call == "put")
COMMITS = tuple(kind for kind, (_, call, _) in TROUBLED.items() if call == "commit_file")
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
    PROMOTE,
    "move the leader",
    ABORT,
    "wall clock jumps at",
    "wall clock goes back at",
    RESET,
)


def pace_of(seed: int) -> float:
    """How slow every message is: in a slow world more happens in between."""
    return random.Random(f"pace {seed}").choice((1.0, 1.0, 4.0, 15.0))


ALL = ("gateway1", "gateway2", "gateway3")
CLIENTS = "clients"
LEADERS = "gateway2"
"""The gateway beside the partition's first leader."""


def schedule(seed: int) -> list[Fault]:
    """Up to six faults around the steps of the migration, some of them chosen to go together."""
    chance = random.Random(f"faults {seed}")
    chosen = chance.choice(THEMES)
    found = chosen(chance) if chance.random() < 0.8 else []
    if chance.random() < 0.5:
        at = near(chance, chance.choice((0.0, 0.001, 0.004)))
        found.append(Fault(RESET, "B0", at, 0.0, chance.choice((ANY, LEADERS))))
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


def _late_append(chance: random.Random) -> list[Fault]:
    """The leader's gateway is fenced with appends on their way to the broker, which come between
    two looks at the log's end, between the last one and B0, or when B0 is known."""
    late = chance.choice(("roll ended", "seed", END_READ, END_READ, "B0", "crossed"))
    lasts = near(chance, chance.choice((0.0005, 0.002, 0.01)))
    before = chance.choice(("track ended", "track ended", "quiesce"))
    after, at = chance.choice(((CLOSING, 0.0), (CLOSED, 0.0), (CLOSED, 0.004)))
    found = [Fault("cut one way", before, 0.0, lasts, LEADERS, "broker2", until=late)]
    if chance.random() < 0.4:
        found.append(Fault("cut", after, at, beyond_a_lease(chance), LEADERS, "postgres"))
    else:
        kind = chance.choice(("suspend the machine of", "freeze"))
        woken = near(chance, chance.choice((0.001, 0.05)))
        found.append(Fault(kind, after, at, woken, LEADERS, until=chance.choice((late, "B0"))))
    if chance.random() < 0.5:
        slow = "Postgres persists late for"
        found.append(Fault(slow, "quiesce", 0.0, round(chance.uniform(0.2, 3.0), 3), "worker"))
    return found


def _woken_past_b0(chance: random.Random) -> list[Fault]:
    """The leader's machine stands still from the closing until B0 is set: its clock says that the
    lease is valid, and what clients had sent it goes to Kafka."""
    after, at = chance.choice(((CLOSING, 0.0), (CLOSED, 0.0), ("quiesce", 0.001)))
    lasts = near(chance, chance.choice((0.001, 0.01, 0.3)))
    return [Fault("suspend the machine of", after, near(chance, at), lasts, LEADERS, until="B0")]


def _read_and_not_written(chance: random.Random) -> list[Fault]:
    """Between the last look at the log's end and B0."""
    after, lasts = chance.choice((END_READ, "roll ended")), round(chance.uniform(0.05, 1.8), 3)
    found = [
        chance.choice(
            (
                Fault("cut one way", after, 0.0, lasts, "worker", "postgres"),
                Fault("freeze", after, 0.0, lasts, "worker"),
                Fault("suspend the machine of", after, 0.0, beyond_a_lease(chance), "worker"),
                Fault("kill", after, 0.0, lasts, "worker"),
            )
        ),
        chance.choice(
            (
                Fault("move the leader", after, near(chance, 0.002), 0.0),
                Fault("kill", after, near(chance, 0.002), lasts, LEADERS),
                Fault("freeze", after, near(chance, 0.002), lasts, "broker2"),
                Fault(RESET, after, near(chance, 0.002), 0.0, ANY),
            )
        ),
    ]
    return found


def _question_over_closing(chance: random.Random) -> list[Fault]:
    """A question that was read before the closing is answered after B0 was read from the log's
    end."""
    asked = chance.choice(("quiesce > gateway2 confirm_partitions done", CLOSING))
    late = "confirmations are answered late to"
    found = [Fault(late, asked, 0.0, near(chance, 0.005), LEADERS, until=chance.choice(
        ("roll ended", END_READ, "B0", "crossed")))]  # fmt: skip
    if chance.random() < 0.5:
        found.append(Fault("suspend the machine of", CLOSED, near(chance, 0.002),
                           near(chance, 0.01), LEADERS, until="B0"))  # fmt: skip
    if chance.random() < 0.7:
        found.append(Fault("cut one way", CLOSING, 0.0, near(chance, 0.002), LEADERS, "broker2",
                           until=chance.choice(("roll ended", END_READ, "B0"))))  # fmt: skip
    return found


def _closed_twice(chance: random.Random) -> list[Fault]:
    """The worker does not hear that it has closed the generation, and closes it again."""
    found = [Fault("cut one way", CLOSED, 0.0, round(chance.uniform(2.1, 3.5), 3), "postgres",
                   "worker")]  # fmt: skip
    who = chance.choice(ALL)
    again = chance.choice((
        Fault("kill", CLOSED, near(chance, 0.5), 0.2, who),
        Fault("kill and lose the disk of", CLOSED, near(chance, 0.5), 0.2, who),
        Fault("cut", CLOSED, near(chance, 0.3), beyond_a_lease(chance), who, "postgres"),
        Fault("move the leader", CLOSED, near(chance, 1.0), 0.0),
    ))  # fmt: skip
    return [*found, again]


def _fenced_with_objects(chance: random.Random) -> list[Fault]:
    """A gateway's id goes to another process while it has objects on their way."""
    who = chance.choice((LEADERS, LEADERS, "gateway3"))
    kind = chance.choice(
        ("uploads hang for", "uploads are stored, and answered late, for", "uploads fail for")
    )
    after = f"B0 > {who} {chance.choice(('put', 'commit_file'))}"
    begins, lasts = near(chance, 0.01), beyond_a_lease(chance)
    found = [
        Fault("cut", after, begins, lasts, who, "postgres", nth=chance.choice((1, 2, 4))),
        Fault("double", after, round(begins + 0.02, 4), 6.0, who),
    ]
    if chance.random() < 0.6:
        found.append(Fault(kind, after, round(begins + 0.01, 4), round(lasts + 0.5, 3), who))
    return found


def _in_the_pause(chance: random.Random) -> list[Fault]:
    """Something happens to a gateway that has parked produces."""
    who = chance.choice((LEADERS, LEADERS, "gateway3"))
    after, at = f"quiesce > {who} parked", near(chance, chance.choice((0.0, 0.003)))
    lasts = chance.choice((near(chance, 0.3), beyond_a_lease(chance)))
    kind = chance.choice(("kill", "kill and lose the disk of", "freeze", "suspend the machine of"))
    return [
        chance.choice((
            Fault(kind, after, at, lasts, who),
            Fault("cut", after, at, lasts, who, "postgres"),
            Fault(RESET, after, at, 0.0, who),
            Fault(ABORT, after, at, 0.0),
            Fault("freeze", after, at, lasts, "worker"),
        )),
        Fault("Postgres persists late for", "quiesce", 0.0, near(chance, 3.0), "worker"),
    ]  # fmt: skip


def _at_b0(chance: random.Random) -> list[Fault]:
    """B0 is set, and whoever is to hear of it does not, or is gone."""
    at, lasts = near(chance, chance.choice((0.0, 0.0, 0.001))), beyond_a_lease(chance)
    found = [
        Fault("cut one way", "B0", at, lasts, "postgres", who)
        for who in chance.sample((*ALL, "worker"), chance.choice((1, 2)))
    ]
    who = chance.choice(ALL)
    found.append(
        chance.choice((
            Fault("kill", "B0", at, near(chance, 0.5), who),
            Fault("kill and lose the disk of", "B0", at, near(chance, 0.5), who),
            Fault("kill", "B0", at, lasts, "worker"),
            Fault("suspend the machine of", "B0", at, lasts, who),
            Fault("move the leader", "B0", near(chance, 0.002), 0.0),
            Fault("kill", "B0", at, lasts, "broker2"),
        ))
    )  # fmt: skip
    return found


def older_than_tracking(fault: Fault) -> bool:
    """A gateway that starts over such a disk, and waits for Postgres in vain, passes the topic
    through (docs/simulation.md): Postgres is never away for so long then."""
    return fault.kind == COPY and fault.after in ("clients", "track")


def _another_disk(chance: random.Random) -> list[Fault]:
    """A gateway starts over a disk of an earlier moment, or none, while Postgres is there, away, or
    refuses it."""
    who = chance.choice((LEADERS, LEADERS, "gateway3"))
    if chance.random() < 0.3:
        return _by_its_snapshot(chance, who)
    copied, at = chance.choice(
        (("clients", 0.1), ("track", 0.05), ("track ended", 0.01), ("quiesce", 0.002))
    )
    copy = Fault(COPY, copied, near(chance, at), 0.0, who)
    kind = chance.choice((PUT_BACK, PUT_BACK, PUT_BACK, "kill and lose the disk of"))
    after = chance.choice(("quiesce", CLOSED, "roll ended", "B0", "crossed"))
    at = near(chance, chance.choice((0.0, 0.01, 0.1)))
    found = [copy, Fault(kind, after, at, near(chance, 0.2), who)]
    if chance.random() < 0.6:
        how = ["Postgres refuses"]
        if not older_than_tracking(copy):
            how = ["Postgres fails", "Postgres fails", "Postgres refuses"]
        found.append(Fault(chance.choice(how), after, at, beyond_a_lease(chance), who))
        if found[-1].kind == "Postgres fails" and chance.random() < 0.7:
            ends = round(at + found[-1].lasts, 4)
            found.append(Fault("Postgres refuses", after, ends, near(chance, 0.5), who))
    return found


def _by_its_snapshot(chance: random.Random, who: str) -> list[Fault]:
    """It starts over its own disk, while Postgres is away from it for longer than a start waits."""
    after = chance.choice(("quiesce", CLOSED, "roll ended", "B0", "crossed"))
    at = near(chance, chance.choice((0.0, 0.01, 0.1)))
    return [
        Fault("kill", after, at, near(chance, 0.2), who),
        Fault("Postgres fails", after, at, beyond_a_lease(chance), who),
    ]


def _uploads_fail(chance: random.Random) -> list[Fault]:
    """Of the first objects behind B0, some, for a moment or for longer than a producer waits."""
    return _in_the_suffix(chance, "put", UPLOADS)


def _commits_fail(chance: random.Random) -> list[Fault]:
    return _in_the_suffix(chance, "commit_file", COMMITS)


def _in_the_suffix(chance: random.Random, call: str, kinds: tuple[str, ...]) -> list[Fault]:
    found = []
    for _ in range(chance.choice((1, 2))):
        who = chance.choice((LEADERS, LEADERS, "gateway3", ANY, ANY))
        lasts = chance.choice((near(chance, 0.05), near(chance, 0.8), near(chance, 3.5)))
        nth = chance.choice((1, 1, 2, 3, 6))
        found.append(Fault(chance.choice(kinds), f"B0 > {who} {call}", 0.0, lasts, who, nth=nth))
    if chance.random() < 0.3:
        found.append(Fault("keys are not registered for", "crossed", near(chance, 0.1),
                           near(chance, 1.5), ANY))  # fmt: skip
    if chance.random() < 0.3:
        found.append(Fault("kill", f"B0 > gateway {call} done", 0.0, 0.5, LEADERS))
    return found


def _cut_off_clients(chance: random.Random) -> list[Fault]:
    """Producers are cut off from before the pause until after B0, and send again what lies below
    it, or what was never appended."""
    who = chance.choice((CLIENTS, "librdkafka-1", "java-2", "librdkafka-4"))
    after = chance.choice(("track", "quiesce", CLOSING))
    lasts = chance.choice((0.01, 0.5, 2.0))
    found = [Fault("cut off", after, near(chance, 0.002), near(chance, lasts), who,
                   until="crossed")]  # fmt: skip
    if chance.random() < 0.5:
        found.append(Fault("move the leader", "crossed", near(chance, 0.3), 0.0))
    return found


def _machines(chance: random.Random) -> list[Fault]:
    """Machines stand still, and clocks step."""
    everybody = (*ALL, "broker1", "broker2", "broker3", "worker", "postgres", "s3", "controller")
    found = [
        Fault("suspend the machine of", chance.choice(NARROW), near(chance, 0.002),
              chance.choice((near(chance, 0.5), beyond_a_lease(chance))), chance.choice(everybody))
        for _ in range(2)
    ]  # fmt: skip
    clocks = ("wall clock jumps at", "wall clock goes back at")
    found.append(Fault(chance.choice(clocks), chance.choice(NARROW), near(chance, 0.002), 0.0,
                       chance.choice((*ALL, "worker", "postgres", "s3"))))  # fmt: skip
    return found


def _promoted(chance: random.Random) -> list[Fault]:
    """A standby of Postgres takes over at a narrow moment, with a gateway that is away."""
    after = chance.choice((*NARROW, "track", "quiesce", "seed"))
    found = [Fault(PROMOTE, after, near(chance, chance.choice((0.0, 0.002))), 0.0)]
    who, lasts = chance.choice(ALL), beyond_a_lease(chance)
    kind = chance.choice(("kill", "kill and lose the disk of", "freeze", "suspend the machine of"))
    if chance.random() < 0.6:
        found.append(Fault(kind, after, near(chance, 0.01), lasts, who))
    return found


def _tiered(chance: random.Random) -> list[Fault]:
    """Retention takes the local segments of what producers have written last."""
    after = chance.choice(("track", "track ended", "quiesce", CLOSED, "roll ended"))
    return [
        Fault("local segments go", after, near(chance, 0.002), 0.0),
        Fault("local segments go", "quiesce", near(chance, 0.05), 0.0),
    ]


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
    _late_append,
    _late_append,
    _woken_past_b0,
    _woken_past_b0,
    _woken_past_b0,
    _read_and_not_written,
    _question_over_closing,
    _question_over_closing,
    _closed_twice,
    _closed_twice,
    _fenced_with_objects,
    _fenced_with_objects,
    _in_the_pause,
    _at_b0,
    _another_disk,
    _another_disk,
    _another_disk,
    _uploads_fail,
    _uploads_fail,
    _commits_fail,
    _cut_off_clients,
    _machines,
    _tiered,
    _promoted,
)


def any_fault(chance: random.Random) -> Fault:
    gateways = [f"gateway{n}" for n in (1, 2, 3)]
    brokers = [f"broker{n}" for n in (1, 2, 3)]
    kind = chance.choice(
        (
            "cut", "cut", "cut", "cut one way", "slow", "kill", "kill and lose the disk of",
            "freeze", "freeze", "suspend the machine of", "double", "move the leader",
            "move the leader", ABORT, "wall clock jumps at", "wall clock goes back at", RESET,
            "cut off", *UPLOADS, *COMMITS,
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
        case "wall clock jumps at" | "wall clock goes back at":
            who = chance.choice([*gateways, "postgres", "worker"])
        case "cut off":
            who = chance.choice((CLIENTS, "librdkafka-1", "java-2", "plain-3", "librdkafka-4"))
        case _ if kind in TROUBLED or kind == RESET:
            who = chance.choice((*gateways, ANY))
    after = chance.choice(chance.choice((MILESTONES, NARROW)))
    at = chance.choice((0.0, 0.002, 0.01, 0.05, 0.3, 1.5)) * chance.uniform(0.5, 1.5)
    lasts = chance.choice((0.05, 0.4, 1.5, 3.0, 5.0)) * chance.uniform(0.7, 1.3)
    if kind in AT_ONCE:
        lasts = 0.0
    return Fault(kind, after, round(at, 4), round(lasts, 3), who, other)
