"""Faults: what each does to a run, and when it begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from tests.simulation.coverage import LOST, OLDER
from tests.simulation.postgres import ANY, How, Trouble

if TYPE_CHECKING:
    from tests.simulation.run import World


MILESTONES = ("clients", "track", "quiesce", "roll", "seed", "crossed")
UNTRACKED = "clients"
"""For a second and a half, and until every gateway tracks the topic."""
RESTART = "restart"
"""What a fault's time counts from: the clients' start, the steps of the migration, and that an
aborted one was let go, where a schedule has an abort."""
CLOSING, CLOSED = "worker close_generation", "worker close_generation done"
END_READ = "seed > end read"
PERSISTS = "worker initialize_diskless_migration"
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
HANGING_B0, GOES_ON_WITH_B0 = "Postgres hangs with B0 for", "Postgres goes on with B0 for"
STOP = "stop"
PROMOTE = "promote a standby of Postgres"
PROMOTE_BEHIND = "promote a standby of Postgres that has received nothing"
"""For as long as the fault lasts: what was committed meanwhile is gone."""
RESET = "reset clients' connections to"
SCAN_STOPS = "the scan for producers stops early"
"""From the run's beginning on: a constant of it, which a schedule turns (``constants.py``)."""
GROWS = "a client adds a partition through"
GROWS_PAST = "a client adds a partition, and writes so many batches to it, at"
"""At a broker itself, past the gateways; ``other``: how many."""
THROTTLE = "brokers throttle the fetches of"
THROTTLED_S = 0.2
"""How long a client is told to wait by a fetch that is over its quota."""
BEGINS = "a producer begins to write:"
"""Its name says how it behaves: no suffix knows it."""
READS = "a consumer begins at the end:"
"""At the end as it is told then."""
READ_BUCKET = "the bucket is read at each commit for"
TURNED_DOWN = "one upload is stored, and refused after"
STOPPED_DOUBLE = "double, and stop,"
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
        for client in world.clients:
            world.history.comes_back(client)


def _stop(world: World, fault: Fault) -> None:
    """Until somebody starts it again there may be no leader for clients to go to: how long they
    wait for it is not judged."""
    world.gateways[int(fault.who[7:])].stop()
    if not fault.lasts:
        for client in world.clients:
            world.history.leaves(client)


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
    troubles = world.around.servers[server].troubles
    if before := troubles.pop((fault.who, call), None):
        before.over.set()
    troubles[fault.who, call] = Trouble(how, 1 if fault.kind in OF_ONE_CALL else inf)


def _end_trouble(world: World, fault: Fault) -> None:
    """Unless another one has taken its place."""
    server, call, how = TROUBLED[fault.kind]
    troubles = world.around.servers[server].troubles
    if (trouble := troubles.get((fault.who, call))) and trouble.how is how:
        del troubles[fault.who, call]
        trouble.over.set()


def _go_on_with_b0(world: World, fault: Fault) -> None:
    """What hangs is done now, the first call first."""
    _end_trouble(world, replace(fault, kind=HANGING_B0))


def _reset(world: World, fault: Fault) -> None:
    """Of ``other`` alone, where it names a client."""
    for gateway in ALL if fault.who == ANY else (fault.who,):
        for name in (fault.other,) if fault.other else world.clients:
            world.network.reset(name, gateway)


def _clients(world: World, fault: Fault) -> list[str]:
    return list(world.clients) if fault.who == CLIENTS else [fault.who]


def _cut_off(world: World, fault: Fault) -> None:
    for client in _clients(world, fault):
        world.history.leaves(client)
        for gateway in ALL:
            _cut(world, replace(fault, who=client, other=gateway))


def _let_back(world: World, fault: Fault) -> None:
    for client in _clients(world, fault):
        for gateway in ALL:
            _heal(world, replace(fault, who=client, other=gateway))
        world.history.comes_back(client)


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
    world.promote()


def _fall_behind(world: World, fault: Fault) -> None:
    world.around.fall_behind()


def _grow(world: World, fault: Fault) -> None:
    world.growth.begin(fault)


def _tier(world: World, fault: Fault) -> None:
    """Most of what is replicated goes from local disks: it is in remote storage alone."""
    world.kafka.let_local_go((world.topic_id, 0), 0.8)


def _throttle(world: World, fault: Fault) -> None:
    """Each broker counts by itself: all of them at once, as where the quota is far too low."""
    for broker in world.kafka.brokers.values():
        broker.throttled[fault.who] = THROTTLED_S


def _unthrottle(world: World, fault: Fault) -> None:
    for broker in world.kafka.brokers.values():
        broker.throttled.pop(fault.who, None)


def _undouble_gently(world: World, fault: Fault) -> None:
    """As SIGTERM does: its id is free at once."""
    world.doubles[int(fault.who[7:])].stop()


def _begin_to_write(world: World, fault: Fault) -> None:
    world.begin_to_write(fault.who)


def _begin_to_read(world: World, fault: Fault) -> None:
    world.begin_to_read(fault.who)


def _read_bucket(world: World, fault: Fault) -> None:
    world.read_bucket(True)


def _leave_bucket(world: World, fault: Fault) -> None:
    world.read_bucket(False)


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
    STOP: (_stop, _start),
    "start": (_start, _nothing),
    "kill and lose the disk of": (_lose, _start_over_none),
    COPY: (_copy, _nothing),
    PUT_BACK: (_kill, _start_over_older),
    "freeze": (_freeze, _thaw),
    "suspend the machine of": (_suspend, _resume),
    "double": (_double, _undouble),
    STOPPED_DOUBLE: (_double, _undouble_gently),
    BEGINS: (_begin_to_write, _nothing),
    READS: (_begin_to_read, _nothing),
    READ_BUCKET: (_read_bucket, _leave_bucket),
    "move the leader": (_move, _nothing),
    ABORT: (_abort, _nothing),
    "wall clock jumps at": (_wall, _nothing),
    "wall clock goes back at": (_wall_back, _nothing),
    "local segments go": (_tier, _nothing),
    PROMOTE: (_promote, _nothing),
    GROWS: (_grow, _nothing),
    GROWS_PAST: (_grow, _nothing),
    PROMOTE_BEHIND: (_fall_behind, _promote),
    "cut off": (_cut_off, _let_back),
    "Postgres is slow with acknowledgements of tracking by": (_stall, _go_on),
    "Postgres' notifications are late for": (_stall, _go_on),
    "Postgres persists late for": (_begin_late, _go_on),
    GOES_ON_WITH_B0: (_go_on_with_b0, _nothing),
    RESET: (_reset, _nothing),
    SCAN_STOPS: (_nothing, _nothing),
    THROTTLE: (_throttle, _unthrottle),
    "double for ever": (_double_for_ever, _nothing),
    "elect an unclean leader": (_unclean, _nothing),
}
TROUBLED = {
    "commits fail for": ("postgres", "commit_file", How.FAILS),
    "commits hang for": ("postgres", "commit_file", How.HANGS),
    "commits are answered late to": ("postgres", "commit_file", How.LATE),
    "commits are done, and fail, for": ("postgres", "commit_file", How.UNHEARD),
    "confirmations are answered late to": ("postgres", "confirm_partitions", How.LATE),
    "renewals fail for": ("postgres", "renew_and_list", How.FAILS),
    "keys are not registered for": ("postgres", "register_object_keys", How.FAILS),
    "Postgres refuses": ("postgres", "", How.REFUSES),
    "Postgres fails": ("postgres", "", How.FAILS),
    "what is tracked is answered late to": ("postgres", "tracked_topics", How.LATE),
    HANGING_B0: ("postgres", "initialize_diskless_migration", How.HANGS),
    "one upload hangs for": ("s3", "put", How.HANGS),
    "one upload fails for": ("s3", "put", How.FAILS),
    TURNED_DOWN: ("s3", "put", How.TURNED_DOWN),
    "one upload is stored, and fails, for": ("s3", "put", How.UNHEARD),
    "uploads fail for": ("s3", "put", How.FAILS),
    "uploads are refused for": ("s3", "put", How.REFUSES),
    "uploads hang for": ("s3", "put", How.HANGS),
    "uploads are stored, and answered late, for": ("s3", "put", How.LATE),
    "uploads are stored, and fail, for": ("s3", "put", How.UNHEARD),
}
"""The server, its call (empty: all), and what becomes of it; of one gateway or of each."""
OF_ONE_CALL = tuple(kind for kind in TROUBLED if kind.startswith("one upload "))
KINDS |= dict.fromkeys(TROUBLED, (_trouble, _end_trouble))
UPLOADS = tuple(kind for kind, (_, call, _) in TROUBLED.items() if call == "put")
COMMITS = tuple(kind for kind, (_, call, _) in TROUBLED.items() if call == "commit_file")
STALLED = {
    "Postgres is slow with acknowledgements of tracking by": "acknowledge_tracking",
    "Postgres' notifications are late for": "listen",
    "Postgres persists late for": "initialize_diskless_migration",
}
AT_ONCE = (
    PROMOTE,
    "move the leader",
    ABORT,
    "wall clock jumps at",
    "wall clock goes back at",
    RESET,
    BEGINS,
    READS,
    GROWS,
    GROWS_PAST,
)
ALL = ("gateway1", "gateway2", "gateway3")
CLIENTS = "clients"
LEADERS = "gateway2"
"""The gateway beside the partition's first leader."""
