"""What the model remembers: one partition, its log in Kafka, two gateway processes, the control
plane's rows, the worker, and what clients were told.

Records are numbers from 0, each the only batch of an idempotent producer of its own, which sends it
again, with the same sequence, until it hears an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

UNSET = -1
LOST_BY_KAFKA = -2
"""An unclean election lost a told record, and whoever told it is over: nobody can know of it."""

STORED = -3
"""Told DUPLICATE_SEQUENCE_NUMBER: it is stored, nobody says where."""

CLASSIC, PENDING, QUIESCING, SUFFIX, NOTHING = "C", "P", "Q", "S", "N"
"""What a gateway knows of the partition (tideline.domain.request_handling.RouteKind); NOTHING:
neither Postgres nor a snapshot told it anything."""

VALID, FROZEN, LAPSED = 2, 1, 0
"""A lease: valid; lapsed for everybody but the process, whose clock stood still; lapsed."""

ACTIVE, FENCED, RELEASED, RETIRED = "A", "F", "R", "X"

SENT, APPENDED, CONFIRMED, REFUSED = "sent", "appended", "confirmed", "refused"


class Produce(NamedTuple):
    """A record that a gateway has forwarded to Kafka and not dealt with."""

    record: int
    stage: str
    offset: int
    incarnation: int
    closed: int
    """Newest generation that the gateway had acknowledged when it forwarded."""
    gated: bool
    """False if the topic was a classic one to the gateway when it forwarded."""


class Process(NamedTuple):
    up: bool = True
    """It serves."""
    waits: bool = False
    """It runs and serves nothing until Postgres lets it in."""
    incarnation: int = 0
    """0: it has not registered."""
    lease: int = LAPSED
    kind: str = CLASSIC
    number: int = 0
    """Of the route: the round (PENDING), the generation (QUIESCING), B0 (SUFFIX)."""
    before: frozenset[int] = frozenset()
    """Incarnations that its disk names: their processes are dead, since it holds its lock."""
    asks_first: str = ""
    """The rule that keeps it from serving by its disk on its own, since no barrier waits for it; of
    PROTECTIONS, or "" if there is none. Over when Postgres lets it in."""
    produce: Produce | None = None
    parked: int = UNSET
    telling_round: int = 0
    """The round of an acknowledgement of tracking that is on its way to Postgres; 0: none."""
    closed: int = UNSET
    highest: int = UNSET
    ceiling: int = UNSET
    ceiling_epoch: int = 0
    frozen_ceiling: bool = False
    fetched: int = UNSET
    """High watermark of an answer of Kafka to a fetch that is not shown yet."""


class Plane(NamedTuple):
    """Rows of Postgres."""

    status: str = "none"
    round: int = 0
    tracked_by: frozenset[int] = frozenset()
    generation: int = 0
    quiesce: str = "open"
    witnesses: frozenset[int] = frozenset()
    acknowledged: frozenset[tuple[int, int]] = frozenset()
    """(incarnation, highest offset it had told) of the closed generation."""
    boundary: int = UNSET
    boundary_epoch: int = 0
    suffix: tuple[int, ...] = ()
    seeds: tuple[tuple[int, int], ...] = ()
    """Records whose producers were taken over at B0, each with its offset or STORED."""
    sealed: bool = False
    registered: tuple[tuple[int, str], ...] = ()
    """By gateway id: incarnation and status."""
    replaced: frozenset[tuple[int, int]] = frozenset()
    """(place in ``registered``, incarnation) that another one registered over and that nobody has
    accounted for: its process may live, cut off from Postgres."""
    watched: frozenset[int] = frozenset()
    """Incarnations whose renewals stood still for a lease and a margin when looked at."""


class Worker(NamedTuple):
    at: str = "idle"
    """"idle", "barrier" (passed), "read" (the log end, at an epoch), "producers" (read, too) or
    "confirmed" (the log still ends there)."""
    generation: int = 0
    log_end: int = UNSET
    epoch: int = 0
    seeds: tuple[tuple[int, int], ...] = ()


class State(NamedTuple):
    log: tuple[int, ...]
    high_watermark: int
    epoch: int
    late: tuple[int, ...]
    """Records in sockets that nobody waits for: Kafka may still append them."""
    processes: tuple[Process, ...]
    plane: Plane
    worker: Worker
    told: tuple[int, ...]
    """By record: the offset that the producer has heard, UNSET, STORED, LOST_BY_KAFKA, or
    ``lost_at``."""
    shown: tuple[int, ...]
    """What consumers were shown, from offset 0 on."""
    wrong: str
    """What was told that no state shows, such as a truncation; "" if nothing."""
    operator_aborted: bool
    left: tuple[int, ...]
    """How often each of BUDGETS may still happen."""


BUDGETS = (
    "send", "register", "crash", "expire", "move", "unclean", "close", "abort", "start", "reset",
    "lose", "put_back", "retire", "attest",
)  # fmt: skip


PROTECTIONS = frozenset(
    {
        "confirm",  # ask Postgres after Kafka's answer, before it is told
        "witnesses",  # only who was active when the generation closed is confirmed while closed
        "witnesses stay",  # a repeated closing makes no new ones
        "fence compares",  # the renewal counter
        "registration compares",  # the same, over another incarnation
        "loads first",  # who registers reads the rows before it serves
        "rounds",  # an acknowledgement of tracking names its round
        "runs end",  # an attempt of an aborted run begins nothing
        "drained",  # a quiesce is acknowledged only when ungated produces are answered, too
        "epochs confirmed",  # OffsetForLeaderEpoch and OFFSET_OUT_OF_RANGE while B0 is unknown
        "ceiling by consumers",  # a debug consumer's ListOffsets does not move it
        "ceiling by epoch",  # it counts for the leader epoch at which it was seen
        "final errors gated",
        "fail closed",  # without disk and Postgres a gateway serves nothing
        "highest told",  # B0 is not at or below what a gateway has told
        "reset while empty",
        "tracking by fenced ones",  # the tracking barrier waits for them
        "tracking by replaced ones",  # and for one whose id another process took over
        "refused ones wait",  # who is refused at its start does not serve from its snapshot
        "stood for",  # who serves unregistered does not account for what was there before
        "accounted ones ask first",  # nor, later, who has accounted for that while it waited
        "seeds",  # the producers' last batches below B0 are taken over
        "seeds without offsets",  # also of one whose batch the scan of the tail did not reach
        "end read again",  # after the producers, before B0 is set
        "stopped ones ask first",  # who released its id serves from no snapshot on its own
    }
)
"""What the code does."""

KEPT_BY_PEOPLE = frozenset(
    {
        "retired ones stay away",  # no retired gateway is started where it reaches brokers alone
        "gone with its disk",  # who accounts for an incarnation has removed its state directory
        "older disks ask first",  # no older state directory is served from before Postgres answers
    }
)
"""What no code can find out while Postgres does not answer."""

ALL = PROTECTIONS | KEPT_BY_PEOPLE

AS_IT_WAS = ALL - {
    "confirm",
    "witnesses",
    "witnesses stay",
    "fence compares",
    "registration compares",
    "rounds",
    "runs end",
    "drained",
    "epochs confirmed",
    "ceiling by consumers",
    "ceiling by epoch",
    "final errors gated",
    "tracking by replaced ones",
}
"""The tree before the change that brought this model."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What may happen, how often, and what protects against it."""

    ids: tuple[int, ...] = (0, 1)
    """The gateway id of each process: twins have the same."""
    tracked: bool = True
    """Whether it starts with the topic tracked by every process that runs."""
    records: int = 1
    budget: tuple[tuple[str, int], ...] = (("send", 2), ("register", 1), ("close", 1))
    frozen_clocks: bool = False
    readers: bool = False
    debug_reader: bool = False
    disk_kept: bool = True
    disk_lost: bool = False
    producers: bool = False
    """Whether the worker reads the producers in steps of their own, and its scan of the log's tail
    may not reach them; else it knows all of them as it reads the log end."""
    left_out: frozenset[str] = frozenset()
    """Names of transitions that this scope does without, to stay small."""
    protections: frozenset[str] = ALL

    def has(self, protection: str) -> bool:
        return protection in self.protections


def initial(scope: Scope) -> State:
    """All processes run. Of twins only the first has registered yet."""
    ids = sorted(set(scope.ids))
    first = [scope.ids.index(gateway) for gateway in ids]
    kind, number = (PENDING, 1) if scope.tracked else (CLASSIC, 0)
    processes = tuple(
        Process(incarnation=1 + at, lease=VALID, kind=kind, number=number)
        if at in first
        else Process(
            up=scope.tracked,
            waits=not scope.tracked,
            kind=kind if scope.tracked else NOTHING,
            number=number,
        )
        for at in range(len(scope.ids))
    )
    incarnations = frozenset(1 + at for at in first)
    plane = Plane(registered=tuple((1 + at, ACTIVE) for at in first))
    if scope.tracked:
        plane = plane._replace(status="active", round=1, tracked_by=incarnations)
    budget = dict(scope.budget)
    return State(
        log=(), high_watermark=0, epoch=0, late=(), processes=processes, plane=plane,
        worker=Worker(), told=(UNSET,) * scope.records, shown=(), wrong="",
        operator_aborted=False, left=tuple(budget.get(name, 0) for name in BUDGETS),
    )  # fmt: skip


def lost_at(offset: int) -> int:
    """Told, lost by Kafka in an unclean election, and its teller still knows (its own inverse)."""
    return -10 - offset


def is_active(plane: Plane, incarnation: int) -> bool:
    return (incarnation, ACTIVE) in plane.registered


def spend(state: State, name: str) -> tuple[int, ...] | None:
    """What is left after one more of it; None if none is left."""
    at = BUDGETS.index(name)
    if not state.left[at]:
        return None
    return (*state.left[:at], state.left[at] - 1, *state.left[at + 1 :])


def with_process(state: State, at: int, process: Process) -> State:
    processes = state.processes
    return state._replace(processes=(*processes[:at], process, *processes[at + 1 :]))
