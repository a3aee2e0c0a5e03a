"""The scopes that are searched: the tree as it was, each hole without its protection, and as it is.

A hole's `lines` are taken away first, and the scope must hold still: they are other protections
that would hide it. Then its `protection` is taken away, and the hole must be back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.model.state import ALL, AS_IT_WAS, Scope


def budget(**how_often: int) -> tuple[tuple[str, int], ...]:
    return tuple(how_often.items())


SHORT = frozenset(
    {"renew", "unpark", "quiesce_runs_out", "stop", "seal", "show_suffix", "start",
     "start_refused", "validate_position"}
)  # fmt: skip
"""Left out where a schedule is long and does without them."""


@dataclass(frozen=True, slots=True)
class Hole:
    name: str
    protection: str
    scope: Scope
    says: str
    """Part of what the broken invariant says."""
    lines: frozenset[str] = frozenset()

    @property
    def protected(self) -> Scope:
        return replace(self.scope, protections=ALL - self.lines)

    @property
    def open(self) -> Scope:
        return replace(self.scope, protections=ALL - self.lines - {self.protection})


LOST, SHOWN, TWICE = "is not in the suffix", "shown", "is there twice"
ONE, TWINS = (0,), (0, 0)

HOLES = (
    Hole(
        "a second process of one id replaces a living one",
        "registration compares",
        Scope(ids=TWINS, budget=budget(send=1, register=1, close=1, expire=1)),
        LOST,
        lines=frozenset({"confirm"}),
    ),
    Hole(
        "a renewal between the look and the fence",
        "fence compares",
        Scope(ids=ONE, budget=budget(send=1, close=1, expire=1, register=1)),
        LOST,
        lines=frozenset({"confirm"}),
    ),
    Hole(
        "a clock that stood still",
        "confirm",
        Scope(ids=ONE, frozen_clocks=True, budget=budget(send=1, close=1, expire=1)),
        LOST,
    ),
    Hole(
        "an attempt of an aborted run begins again",
        "runs end",
        Scope(ids=ONE, budget=budget(abort=1)),
        "the abort is undone",
    ),
    Hole(
        "an acknowledgement of an older round counts",
        "rounds",
        Scope(ids=ONE, tracked=False, budget=budget(send=1, start=2, abort=1, close=1)),
        LOST,
        lines=frozenset({"drained"}),
    ),
    Hole(
        "a position is validated while B0 is unknown",
        "epochs confirmed",
        Scope(readers=True, budget=budget(send=1, close=1, expire=1)),
        "is told that the log ends at",
    ),
    Hole(
        "a debug consumer moves the ceiling",
        "ceiling by consumers",
        Scope(
            readers=True,
            debug_reader=True,
            budget=budget(send=2, close=1, move=1, crash=1),
            left_out=SHORT | {"ask", "tell"},
        ),
        SHOWN,
        lines=frozenset({"ceiling by epoch"}),
    ),
    Hole(
        "an unclean election is outlived by the ceiling",
        "ceiling by epoch",
        Scope(readers=True, budget=budget(send=2, close=1, unclean=1, crash=1), left_out=SHORT),
        SHOWN,
    ),
    Hole(
        "who registered after the closing is believed",
        "witnesses",
        Scope(ids=ONE, readers=True, budget=budget(send=1, close=1, expire=1, register=1)),
        SHOWN,
    ),
    Hole(
        "a repeated closing makes new witnesses",
        "witnesses stay",
        Scope(ids=ONE, readers=True, budget=budget(send=1, close=1, expire=1, register=1)),
        SHOWN,
    ),
    Hole(
        "a final error of a log that B0 has left behind",
        "final errors gated",
        Scope(budget=budget(send=1, close=1, expire=1)),
        "is refused for good",
    ),
    Hole(
        "a gateway without disk and Postgres serves",
        "fail closed",
        Scope(disk_lost=True, budget=budget(send=1, close=1, crash=1)),
        LOST,
    ),
    Hole(
        "B0 below what was told",
        "highest told",
        Scope(ids=ONE, budget=budget(send=1, close=1, unclean=1)),
        "was told at 0, B0 is 0",
    ),
    Hole(
        "a reset under a suffix that holds records",
        "reset while empty",
        Scope(ids=ONE, budget=budget(send=1, close=1, reset=1)),
        "B0 was reset",
    ),
    Hole(
        "a gateway that serves by rows it read before it registered",
        "loads first",
        Scope(ids=ONE, budget=budget(send=1, close=1, expire=1, register=1)),
        LOST,
        lines=frozenset({"confirm"}),
    ),
    Hole(
        "a fenced gateway that never heard of the topic",
        "tracking by fenced ones",
        Scope(
            tracked=False,
            budget=budget(send=1, start=2, abort=1, close=2, expire=1),
            left_out=SHORT,
        ),
        LOST,
    ),
    Hole(
        "a replaced process that never heard of the topic",
        "tracking by replaced ones",
        Scope(
            ids=TWINS,
            tracked=False,
            budget=budget(send=1, start=1, close=1, expire=1, register=1),
        ),
        LOST,
    ),
    Hole(
        "a retired gateway that is refused serves by its disk",
        "refused ones wait",
        Scope(ids=ONE, tracked=False, budget=budget(send=1, start=1, close=1, crash=1, retire=1)),
        LOST,
    ),
    Hole(
        "who serves by its disk accounts for whoever stands for it",
        "stood for",
        Scope(
            ids=TWINS,
            tracked=False,
            budget=budget(send=1, start=1, close=1, crash=1, register=1),
            left_out=SHORT - {"start"},
        ),
        LOST,
    ),
    Hole(
        "B0 without the producers of the prefix",
        "seeds",
        Scope(producers=True, budget=budget(send=2, lose=1, close=1)),
        TWICE,
    ),
    Hole(
        "a producer that the scan did not reach",
        "seeds without offsets",
        Scope(producers=True, budget=budget(send=2, lose=1, close=1)),
        TWICE,
    ),
    Hole(
        "a late append among the seeds",
        "end read again",
        Scope(ids=ONE, producers=True, budget=budget(send=2, close=1, expire=1, register=1)),
        "is nowhere",
    ),
    Hole(
        "a retired gateway is started, cut off from Postgres",
        "retired ones stay away",
        Scope(ids=ONE, tracked=False, budget=budget(send=1, start=1, close=1, crash=1, retire=1)),
        LOST,
    ),
    Hole(
        "what was accounted for is started again over its disk, cut off from Postgres",
        "gone with its disk",
        Scope(
            ids=TWINS,
            tracked=False,
            budget=budget(send=1, start=1, close=1, crash=1, register=1, attest=1),
            left_out=SHORT - {"start"},
        ),
        LOST,
    ),
    Hole(
        "an older disk is started, cut off from Postgres",
        "older disks ask first",
        Scope(ids=ONE, budget=budget(send=1, close=1, crash=1, put_back=1)),
        LOST,
    ),
    Hole(
        "a gateway that stopped is started, cut off from Postgres, when its id is another's",
        "stopped ones ask first",
        Scope(
            ids=TWINS,
            tracked=False,
            budget=budget(send=1, start=1, close=1, crash=1, register=1),
        ),
        LOST,
    ),
    Hole(
        "a refused gateway that has accounted for its dead is started again, cut off from Postgres",
        "accounted ones ask first",
        Scope(
            ids=TWINS,
            tracked=False,
            budget=budget(send=1, start=1, close=1, crash=2, register=1),
            left_out=SHORT - {"start", "start_refused"},
        ),
        LOST,
    ),
)

AS_IT_WAS_SCOPE = Scope(protections=AS_IT_WAS, budget=budget(send=1, register=1, close=1, expire=1))

AS_IT_IS: dict[str, Scope] = {
    "one gateway, all that can befall it": Scope(
        ids=ONE,
        frozen_clocks=True,
        budget=budget(send=2, register=1, close=1, expire=1, crash=1, move=1),
    ),
    "two gateways, clocks that stand still": Scope(
        frozen_clocks=True, budget=budget(send=2, register=1, close=1, expire=1)
    ),
    "two processes of one id, clocks that stand still": Scope(
        ids=TWINS, frozen_clocks=True, budget=budget(send=2, register=1, close=1, expire=2)
    ),
    "readers at two gateways": Scope(
        readers=True, debug_reader=True, budget=budget(send=1, close=1, expire=1, register=1)
    ),
    "readers, second closing, leader moves": Scope(
        ids=ONE,
        readers=True,
        debug_reader=True,
        frozen_clocks=True,
        budget=budget(send=2, close=2, expire=1, register=1, move=1),
    ),
    "rounds, aborts, one gateway that lapses": Scope(
        ids=ONE,
        tracked=False,
        budget=budget(send=1, start=2, abort=1, close=1, expire=1, register=1),
    ),
    "rounds and aborts at two gateways": Scope(
        tracked=False, budget=budget(send=1, start=2, abort=1, close=1)
    ),
    "two records, reset, two migrations": Scope(
        ids=ONE, readers=True, records=2, budget=budget(send=2, close=2, reset=1, move=1)
    ),
    "restarts with and without disk": Scope(
        disk_lost=True, budget=budget(send=1, close=1, crash=1, register=1)
    ),
    "older disks at two gateways": Scope(
        budget=budget(send=1, close=1, crash=1, put_back=1, register=1)
    ),
    "older disks over rounds and aborts": Scope(
        ids=ONE,
        tracked=False,
        budget=budget(send=1, start=2, abort=1, close=1, crash=1, put_back=1, register=1),
    ),
    "retired gateways that start again": Scope(
        tracked=False, budget=budget(send=1, start=1, close=1, crash=1, retire=1)
    ),
    "refused starts of two processes of one id": Scope(
        ids=TWINS,
        tracked=False,
        budget=budget(send=1, start=1, close=1, crash=2, register=1, attest=1),
    ),
    "answers that are lost at two gateways": Scope(
        producers=True, budget=budget(send=3, lose=2, close=1, expire=1)
    ),
    "answers that are lost, two records, leader moves, reset": Scope(
        ids=ONE,
        producers=True,
        records=2,
        budget=budget(send=3, lose=1, close=2, reset=1, move=1),
    ),
    "unclean elections": Scope(
        ids=ONE, readers=True, records=2, budget=budget(send=2, close=1, unclean=1, crash=1, move=1)
    ),
}
