"""What the model remembers: one partition, its log in Kafka, two gateway processes, the control
plane's rows, the worker, and what clients were told.

Records are numbers from 0; the producer is idempotent and sends a record again until it is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

UNSET = -1
LOST_BY_KAFKA = -2
"""An unclean election lost a told record, and whoever told it is over: nobody can know of it."""

CLASSIC, PENDING, QUIESCING, SUFFIX, NOTHING = "C", "P", "Q", "S", "N"
"""What a gateway knows of the partition (tideline.domain.request_handling.RouteKind); NOTHING:
neither Postgres nor a snapshot told it anything."""

VALID, FROZEN, LAPSED = 2, 1, 0
"""A lease: valid; lapsed for everybody but the process, whose clock stood still; lapsed."""

ACTIVE, FENCED, RELEASED = "A", "F", "R"

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
    incarnation: int = 0
    """0: it has not registered."""
    lease: int = LAPSED
    kind: str = CLASSIC
    number: int = 0
    """Of the route: the round (PENDING), the generation (QUIESCING), B0 (SUFFIX)."""
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
    sealed: bool = False
    registered: tuple[tuple[int, str], ...] = ()
    """By gateway id: incarnation and status."""
    replaced: frozenset[int] = frozenset()
    """Incarnations that another process registered over: they may live, cut off from Postgres."""
    watched: frozenset[int] = frozenset()
    """Incarnations whose renewals stood still for a lease and a margin when looked at."""


class Worker(NamedTuple):
    at: str = "idle"
    """"idle", "barrier" (passed) or "read" (the log end, at an epoch)."""
    generation: int = 0
    log_end: int = UNSET
    epoch: int = 0


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
    """By record: the offset that the producer was told, UNSET, LOST_BY_KAFKA, or ``lost_at``."""
    shown: tuple[int, ...]
    """What consumers were shown, from offset 0 on."""
    wrong: str
    """What was told that no state shows, such as a truncation; "" if nothing."""
    operator_aborted: bool
    left: tuple[int, ...]
    """How often each of BUDGETS may still happen."""


BUDGETS = (
    "send", "register", "crash", "expire", "move", "unclean", "close", "abort", "start", "reset",
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
    }
)

NOT_BUILT: frozenset[str] = frozenset()
"""Known to be missing in the tree."""

AS_IT_IS = PROTECTIONS - NOT_BUILT

AS_IT_WAS = PROTECTIONS - {
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
    left_out: frozenset[str] = frozenset()
    """Names of transitions that this scope does without, to stay small."""
    protections: frozenset[str] = AS_IT_IS

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
        else Process(kind=kind if scope.tracked else NOTHING, number=number)
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
