"""Which faults a seed chooses.

Themes take turns: each is several faults that go together, around one moment of the migration, so
that what is hard to come to by chance is come to every so many seeds. Chance adds others.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.faults import (
    ABORT,
    ALL,
    AT_ONCE,
    BEGINS,
    CLIENTS,
    CLOSED,
    CLOSING,
    COMMITS,
    COPY,
    END_READ,
    GOES_ON_WITH_B0,
    GROWS,
    GROWS_PAST,
    HANGING_B0,
    LEADERS,
    MILESTONES,
    NARROW,
    PERSISTS,
    PROMOTE,
    PROMOTE_BEHIND,
    PUT_BACK,
    READ_BUCKET,
    READS,
    RESET,
    RESTART,
    SCAN_STOPS,
    STOP,
    STOPPED_DOUBLE,
    THROTTLE,
    TROUBLED,
    TURNED_DOWN,
    UNTRACKED,
    UPLOADS,
    Fault,
)
from tests.simulation.postgres import ANY, FIRST_PUT

STANDS_IN_FROM = 1_000_000
"""From this seed on gateways stand in for each other: those below are recorded without."""


def pace_of(seed: int) -> float:
    """How slow every message is: in a slow world more happens in between."""
    return random.Random(f"pace {seed}").choice((1.0, 1.0, 4.0, 15.0))


def schedule(seed: int) -> list[Fault]:
    """The theme whose turn it is, and up to four faults more around the steps of the migration."""
    chance = random.Random(f"faults {seed}")
    theme = THEMES[(seed - 1) % len(THEMES)]
    if theme is _promoted_behind and seed >= STANDS_IN_FROM:
        theme = _tracked_behind
    found = theme(chance)
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
        Fault("cut", RESTART, near(chance, 0.2), 6.5, LEADERS, "postgres"),
        _still_until_b0(chance, f"{RESTART} > quiesce"),
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


def _untracked(chance: random.Random) -> list[Fault]:
    """The leader's gateway hears nothing of the migration from before it begins, and stands still
    while B0 is looked for: else the log would never come to rest."""
    begins = round(chance.uniform(0.9, 1.4), 3)
    return [
        Fault("cut", "clients", begins, round(chance.uniform(5.5, 7.5), 3), LEADERS, "postgres"),
        _still_until_b0(chance, "quiesce"),
    ]


def _at_another_place(chance: random.Random) -> list[Fault]:
    """The leader's gateway is stopped and its id goes on over another directory, until the topic
    has migrated; then it is started where it was, cut off from Postgres."""
    starts = round(chance.uniform(0.1, 1.0), 3)
    return [
        Fault(STOP, "clients", near(chance, 0.2), 0.0, LEADERS),
        Fault("double for ever", "clients", near(chance, 0.5), 0.0, LEADERS),
        Fault("start", "crossed", starts, 0.0, LEADERS),
        Fault("Postgres fails", "crossed", starts, 6.0, LEADERS),
    ]


def _moved_early(chance: random.Random) -> list[Fault]:
    """Leadership moves early in the write pause, beside something that stands still."""
    after = chance.choice(("quiesce", "roll", "seed"))
    who = chance.choice(("worker", LEADERS, "broker2"))
    return [
        Fault("move the leader", after, near(chance, 0.003), 0.0),
        Fault("freeze", after, near(chance, 0.003), beyond_a_lease(chance), who),
    ]


def _passed_before(chance: random.Random) -> list[Fault]:
    """What the leader's gateway had passed to Kafka before it tracked the topic comes there when
    B0 is about to be set."""
    late = chance.choice((PERSISTS, "B0", "crossed"))
    begins, lasts = round(chance.uniform(1.2, 1.5), 3), near(chance, 0.002)
    return [Fault("cut one way", "clients", begins, lasts, LEADERS, "broker2", until=late)]


def _replaced(chance: random.Random) -> list[Fault]:
    """Another process has the id of the leader's gateway before the topic is tracked, and the one
    before goes on with classic traffic, cut off from Postgres."""
    begins = round(chance.uniform(0.05, 0.3), 3)
    return [
        Fault("cut", "clients", begins, 6.5, LEADERS, "postgres"),
        Fault("double", "clients", round(begins + 0.05, 3), 6.4, LEADERS),
        _still_until_b0(chance, "quiesce"),
    ]


def _still_until_b0(chance: random.Random, after: str) -> Fault:
    """The leader's gateway, so that the log comes to rest."""
    still = chance.choice(("freeze", "suspend the machine of"))
    return Fault(still, after, 0.0, near(chance, 0.005), LEADERS, until="B0")


def _unheard(chance: random.Random) -> list[Fault]:
    """The leader's gateway does not hear of the closing, and Postgres begins late with B0: it goes
    on appending while the log's end is read, and after."""
    lasts = round(chance.uniform(10.0, 14.0), 3)
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
        Fault("cut", RESTART, near(chance, 0.3), 6.5, LEADERS, "postgres"),
        _still_until_b0(chance, f"{RESTART} > quiesce"),
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
    late = chance.choice(("roll ended", END_READ, PERSISTS, PERSISTS, "B0", "crossed"))
    after, at = chance.choice(((CLOSING, 0.0), (CLOSED, 0.0), (CLOSED, 0.004)))
    found = _held_back(chance, chance.choice(("track ended", "quiesce")), late)
    if chance.random() < 0.6:
        found.append(Fault("cut", after, at, beyond_a_lease(chance), LEADERS, "postgres"))
    else:
        kind = chance.choice(("suspend the machine of", "freeze"))
        woken = near(chance, chance.choice((0.001, 0.05)))
        found.append(Fault(kind, after, at, woken, LEADERS, until=chance.choice((late, "B0"))))
    return [*found, *_b0_late(chance)]


def _held_back(chance: random.Random, after: str, late: str) -> list[Fault]:
    """What the leader's gateway sends to its broker comes there ``late``."""
    lasts = near(chance, chance.choice((0.0005, 0.002, 0.01)))
    return [Fault("cut one way", after, 0.0, lasts, LEADERS, "broker2", until=late)]


def _b0_late(chance: random.Random) -> list[Fault]:
    """Postgres begins with B0 up to 2 s late."""
    lasts = round(chance.uniform(2.0, 18.0), 3)
    return [Fault("Postgres persists late for", "quiesce", 0.0, lasts, "worker")]


def _in_flight(chance: random.Random) -> list[Fault]:
    """Produces are in flight to Kafka when the generation is closed, and are appended, or
    answered, late."""
    late = chance.choice((PERSISTS, PERSISTS, END_READ, "B0"))
    found = _held_back(chance, chance.choice((CLOSING, "quiesce", "track ended")), late)
    if chance.random() < 0.2:
        found = [replace(found[0], who="broker2", other=LEADERS)]
    return [*found, *_b0_late(chance)]


def _behind_the_end(chance: random.Random) -> list[Fault]:
    """Appends come between the look at the log's end and the look at its producers: of a gateway
    that is fenced, or that has yet to acknowledge the closing."""
    late = chance.choice(("roll ended", "roll ended", "seed"))
    lasts = near(chance, chance.choice((0.0, 0.0005)))
    held = Fault("cut one way", "track ended", 0.0, lasts, LEADERS, "broker2", until=late)
    if chance.random() < 0.5:
        return [held]
    return [held, Fault("cut", CLOSED, 0.0, 6.0, LEADERS, "postgres")]


def _read_late_append(chance: random.Random) -> list[Fault]:
    """A fenced gateway's append comes behind the last look at the log's end, and consumers read
    while B0 is not set: there, or at the broker that leads by then."""
    found = [
        *_held_back(chance, "track ended", PERSISTS),
        Fault("cut", CLOSED, 0.0, 6.0, LEADERS, "postgres"),
        Fault("Postgres persists late for", "quiesce", 0.0, round(chance.uniform(12.0, 18.0), 3),
              "worker"),
    ]  # fmt: skip
    if chance.random() < 0.5:
        found.append(Fault("move the leader", PERSISTS, near(chance, 0.2), 0.0))
    return found


def _unreplicated(chance: random.Random) -> list[Fault]:
    """Replicas lag behind the leader when the generation is closed."""
    after = chance.choice((CLOSING, "quiesce", "track ended"))
    lasts = round(chance.uniform(0.3, 2.8), 3)
    kind, followers = chance.choice(("freeze", "cut one way")), ("broker1", "broker3")
    if kind == "freeze":
        return [Fault(kind, after, 0.0, lasts, who) for who in followers]
    return [Fault(kind, after, 0.0, lasts, "broker2", who) for who in followers]


def _woken_past_b0(chance: random.Random) -> list[Fault]:
    """The leader's machine stands still from the closing until B0 is set: its clock says that the
    lease is valid, and what clients had sent it goes to Kafka."""
    after, at = chance.choice(((CLOSING, 0.0), (CLOSED, 0.0), ("quiesce", 0.001)))
    lasts = near(chance, chance.choice((0.001, 0.01, 0.3)))
    return [Fault("suspend the machine of", after, near(chance, at), lasts, LEADERS, until="B0")]


def _woken_unaware(chance: random.Random) -> list[Fault]:
    """The same, and nothing that Postgres says comes to it for a while after it has woken."""
    after, at = chance.choice(((CLOSING, 0.0), (CLOSED, 0.0), ("quiesce", 0.001)))
    begins = near(chance, at)
    lasts = near(chance, chance.choice((0.001, 0.01)))
    return [
        Fault("cut one way", after, begins, round(chance.uniform(0.5, 2.0), 3), "postgres",
              LEADERS, until="B0"),
        Fault("suspend the machine of", after, begins, lasts, LEADERS, until="B0"),
    ]  # fmt: skip


def _late_worker(chance: random.Random) -> list[Fault]:
    """The worker stands still for longer than a hold, when it is about to set B0."""
    after = chance.choice(("roll ended", END_READ, PERSISTS))
    kind = chance.choice(("freeze", "suspend the machine of"))
    return [Fault(kind, after, 0.0, round(chance.uniform(6.6, 9.0), 3), "worker")]


def _zombie_b0(chance: random.Random) -> list[Fault]:
    """Postgres does what it was asked for, to set B0, when the hold is over and another closing, or
    another round, is in force."""
    hangs, at = Fault(HANGING_B0, "seed", 0.0, 12.0, "worker"), near(chance, 0.005)
    if chance.random() < 0.5:
        return [hangs, Fault(GOES_ON_WITH_B0, "quiesce ended", at, 0.0, "worker", nth=2)]
    again = chance.choice((f"{RESTART} > quiesce ended", f"{RESTART} > seed"))
    return [
        hangs,
        Fault(ABORT, "seed", near(chance, 0.3), 0.0),
        Fault(GOES_ON_WITH_B0, again, at, 0.0, "worker"),
    ]


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
    """A question that was read before the closing is answered after the log's end was read and the
    leader's gateway has appended behind it: its lease has lapsed by the closing, and its clock,
    which stood still for a while, says that it is valid."""
    begins, answered = near(chance, 0.02), near(chance, chance.choice((0.03, 0.1)))
    return [
        Fault("renewals fail for", "track", 0.0, 6.5, LEADERS),
        Fault("suspend the machine of", "track", begins, round(chance.uniform(2.6, 3.2), 3),
              LEADERS),
        Fault("confirmations are answered late to", "track ended", 0.0, answered, LEADERS,
              until=END_READ),
        Fault("cut one way", "track ended", near(chance, 0.012), near(chance, 0.001), LEADERS,
              "broker2", until=END_READ),
        *_b0_late(chance),
    ]  # fmt: skip


def _fenced_and_asking(chance: random.Random) -> list[Fault]:
    """The machine of the leader's gateway stands still until the log's end was read, and does not
    hear that it is fenced, since its renewals fail: it asks of what came to its broker late."""
    late = chance.choice((END_READ, PERSISTS))
    return [
        Fault("renewals fail for", "quiesce", 0.0, 6.5, LEADERS),
        *_held_back(chance, chance.choice(("quiesce", "track ended")), late),
        Fault("suspend the machine of", "quiesce", near(chance, 0.05), near(chance, 0.02), LEADERS,
              until=PERSISTS),
        *_b0_late(chance),
    ]  # fmt: skip


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


def _by_its_snapshot_alone(chance: random.Random) -> list[Fault]:
    return _by_its_snapshot(chance, LEADERS)


def _by_its_snapshot(chance: random.Random, who: str) -> list[Fault]:
    """It starts over its own disk, while Postgres is away from it for longer than a start waits."""
    after = chance.choice(("quiesce", CLOSED, "roll ended", "B0", "crossed"))
    at = near(chance, chance.choice((0.0, 0.01, 0.1)))
    return [
        Fault("kill", after, at, near(chance, 0.2), who),
        Fault("Postgres fails", after, at, beyond_a_lease(chance), who),
    ]


def _learns_late(chance: random.Random) -> list[Fault]:
    """The leader's gateway starts over a disk of before the tracking, is registered, and hears late
    what is tracked."""
    after = chance.choice((CLOSED, "B0", "crossed"))
    at = near(chance, chance.choice((0.0, 0.05)))
    slow = round(chance.uniform(1.0, 3.0), 3)
    return [
        Fault(COPY, "clients", near(chance, 0.1), 0.0, LEADERS),
        Fault(PUT_BACK, after, at, near(chance, 0.2), LEADERS),
        Fault("what is tracked is answered late to", after, at, slow, LEADERS),
    ]


def _refused_start(chance: random.Random) -> list[Fault]:
    """The leader's gateway starts over a disk of before the tracking, is refused, and then Postgres
    is away for longer than a start waits; clients come to it then."""
    after = chance.choice((CLOSED, "B0", "crossed"))
    at = near(chance, 0.01)
    refused = round(chance.uniform(0.5, 1.0), 3)
    return [
        Fault(COPY, "clients", near(chance, 0.1), 0.0, LEADERS),
        Fault(PUT_BACK, after, at, 0.2, LEADERS),
        Fault("Postgres refuses", after, at, refused, LEADERS),
        Fault("Postgres fails", after, round(at + refused, 4), 11.0, LEADERS),
        *(Fault("freeze", after, 8.6, 2.5, who) for who in ALL if who != LEADERS),
        *(Fault(RESET, after, served, 0.0, ANY) for served in (8.7, 9.3)),
    ]


def _stand_in(chance: random.Random) -> list[Fault]:
    """The leader's gateway stops before the topic is tracked, and is back for the barrier; what
    those that stand in for it had sent to its broker by then comes there late."""
    late = chance.choice((PERSISTS, "B0", "crossed"))
    begins, lasts = round(chance.uniform(1.2, 1.45), 3), near(chance, 0.002)
    return [
        Fault(STOP, "clients", near(chance, 0.06), round(chance.uniform(2.0, 2.6), 3), LEADERS),
        *_from_stand_ins("clients", begins, lasts, late),
    ]


def _stand_in_of_tracked(chance: random.Random) -> list[Fault]:
    """The leader's gateway stops when it has acknowledged the topic; what those that stand in for
    it send to its broker before the pause comes there when the log's end was read."""
    late = chance.choice((PERSISTS, PERSISTS, END_READ, "B0"))
    held, lasts = round(chance.uniform(3.0, 3.8), 3), near(chance, 0.002)
    begins = round(held - chance.uniform(0.1, 0.4), 3)
    slow = "Postgres is slow with acknowledgements of tracking by"
    return [
        Fault(slow, "track", 0.0, held, "gateway3"),
        Fault(STOP, "track", near(chance, 0.3), 8.0, LEADERS),
        *_from_stand_ins("track", begins, lasts, late),
    ]


def _from_stand_ins(after: str, at: float, lasts: float, late: str) -> list[Fault]:
    """What stand-ins of the leader's gateway send to its broker comes there ``late``."""
    return [
        Fault("cut one way", after, at, lasts, who, "broker2", until=late)
        for who in ("gateway1", "gateway3")
    ]


def _long_pause(chance: random.Random) -> list[Fault]:
    """The pause lasts for longer than parked produces are waited for."""
    after = chance.choice((CLOSED, "roll ended", END_READ))
    return [Fault("freeze", after, 0.0, round(chance.uniform(3.0, 5.6), 3), "worker")]


def _sent_and_fenced(chance: random.Random) -> list[Fault]:
    """A commit is done whose outcome the gateway does not hear before its incarnation ends."""
    who = chance.choice((LEADERS, LEADERS, "gateway3"))
    at = f"B0 > {who} commit_file"
    return [
        Fault("cut one way", at, 0.0, beyond_a_lease(chance), "postgres", who,
              nth=chance.choice((1, 2, 5)))
    ]  # fmt: skip


def _commit_long_unknown(chance: random.Random) -> list[Fault]:
    """The outcome of commits is not known for longer than two seconds, while the lease goes on."""
    kind = chance.choice(("commits are done, and fail, for", "commits are answered late to"))
    return [Fault(kind, f"B0 > {LEADERS} commit_file", 0.0, round(chance.uniform(2.1, 3.5), 3),
                  LEADERS, nth=chance.choice((1, 2, 4)))]  # fmt: skip


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


def _away_for_long(chance: random.Random) -> list[Fault]:
    """A producer is cut off for longer than the migration lasts, with batches under way."""
    who = chance.choice(("librdkafka-1", "java-2", "plain-3", "librdkafka-4"))
    after = chance.choice(("track", "track ended", "quiesce", CLOSED))
    return [Fault("cut off", after, near(chance, 0.01), round(chance.uniform(9.0, 14.0), 3), who)]


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


def _promoted_behind(chance: random.Random) -> list[Fault]:
    """A standby that lacks the last commit of a gateway, and little more, takes over when clients
    have been told of it, and somebody else leads then: the gateway lives, is away, or is gone with
    the primary."""
    commit, nth = f"crossed > {LEADERS} commit_file", chance.choice((2, 5, 12))
    done, lacks = f"{commit} done", near(chance, chance.choice((0.03, 0.03, 0.1, 0.3)))
    found = [
        Fault(PROMOTE_BEHIND, commit, 0.0, lacks, nth=nth, until=f"{LEADERS} commit_file done"),
        Fault("move the leader", done, round(lacks + near(chance, 0.05), 4), 0.0, nth=nth),
    ]
    gone = ("kill", "kill and lose the disk of")
    if kind := chance.choice(("", "cut", "freeze", *gone, *gone)):
        begins, other = round(lacks - near(chance, 0.002), 4), "postgres" if kind == "cut" else ""
        found.append(Fault(kind, done, begins, beyond_a_lease(chance), LEADERS, other, nth))
    return found


def _tracked_behind(chance: random.Random) -> list[Fault]:
    """A standby takes over that lacks that gateways track the topic, or all of the topic."""
    after = chance.choice(("worker begin_migration", "track", "worker activate_topic"))
    return [Fault(PROMOTE_BEHIND, after, 0.0, near(chance, chance.choice((0.1, 0.3, 0.3, 1.0))))]


def _tiered(chance: random.Random) -> list[Fault]:
    """Retention takes the local segments of what producers have written last."""
    after = chance.choice(("track", "track ended", "quiesce", CLOSED, "roll ended"))
    return [
        Fault("local segments go", after, near(chance, 0.002), 0.0),
        Fault("local segments go", "quiesce", near(chance, 0.05), 0.0),
    ]


def _throttled(chance: random.Random) -> list[Fault]:
    """The worker's fetches are over their quota while it looks for producers: before the write
    pause, or in it."""
    after = chance.choice(("track", "track ended", "quiesce", "roll ended"))
    return [Fault(THROTTLE, after, near(chance, 0.001), near(chance, 1.0), "worker")]


def _behind_a_zombie(chance: random.Random) -> list[Fault]:
    """A broker that is cut off from the write pause on goes on as the leader for its gateway, and
    lacks what the next leader appends until a second closing; consumers that have read of that come
    to its gateway alone. No producer does: what such a broker refuses of a batch whose forerunners
    it lacks is Kafka's own word."""
    begins, lasts = near(chance, 0.002), round(chance.uniform(15.0, 17.0), 3)
    away = [("broker2", who) for who in ("broker1", "broker3", "controller", "worker")]
    producers = ("librdkafka-1", "java-2", "plain-3", "librdkafka-5", "java-5")
    away += [(who, LEADERS) for who in producers]
    found = [Fault("cut", "quiesce", begins, lasts, *link) for link in away]
    found.append(Fault(RESET, "quiesce", round(begins + 0.01, 4), 0.0, LEADERS))
    found.append(Fault("move the leader", "quiesce", round(begins + 0.02, 4), 0.0))
    for client in ("consumer-1", "consumer-2"):
        for gateway in ("gateway1", "gateway3"):
            found.append(Fault("cut", "quiesce", 0.0, 4.0, client, gateway, 2, "crossed"))
            found.append(Fault(RESET, "quiesce", 0.0, 0.0, gateway, client, 2))
    return found


def _not_found(chance: random.Random) -> list[Fault]:
    """Producers hear nothing more from before the scan for producers until B0 is set, and what they
    have written last lies further back than the scan goes."""
    at, lasts = near(chance, 0.05), near(chance, 0.1)
    who = chance.choice((("librdkafka-1",), ("java-2",), ("librdkafka-1", "java-2")))
    return [
        Fault(SCAN_STOPS, "clients", 0.0, 0.0),
        *(Fault("cut one way", "track", at, lasts, LEADERS, one, until="crossed") for one in who),
    ]


TAKEN_OVER = "twin2 register_gateway done"
"""The second process of the leader's gateway has its id."""
NEWCOMERS = ("java-6", "librdkafka-7", "java-8")
"""Producers that begin by a fault."""


def _newcomers(after: str, at: float, apart: float) -> list[Fault]:
    """Producers that no suffix knows begin, one after the other."""
    return [
        Fault(BEGINS, after, round(at + apart * number, 4), 0.0, name)
        for number, name in enumerate(NEWCOMERS)
    ]


def _first_put_of(name: str) -> str:
    return f"{name} begins > gateway {FIRST_PUT}"


def _first_put_late(chance: random.Random) -> list[Fault]:
    """The object with the first batch of a producer is put for longer than those behind it."""
    return [
        *_newcomers("crossed", near(chance, 0.3), near(chance, 1.5)),
        *(Fault("one upload hangs for", _first_put_of(name), 0.0,
                round(chance.uniform(0.4, 1.2), 3), ANY) for name in NEWCOMERS),
    ]  # fmt: skip


def _first_put_refused(chance: random.Random) -> list[Fault]:
    """The object with the first batch of a producer is stored, and refused, soon or when others are
    stored behind it, and the producer hears of it late."""
    found = _newcomers("crossed", near(chance, 0.3), near(chance, 1.5))
    for name in NEWCOMERS:
        after, lasts = _first_put_of(name), near(chance, chance.choice((0.05, 0.5)))
        found.append(Fault(TURNED_DOWN, after, 0.0, lasts, ANY))
        found.append(Fault("cut one way", after, 0.0, round(lasts + 0.7, 4), LEADERS, name))
    return [*found, Fault(READ_BUCKET, "crossed", 0.0, 6.0)]


def _late_when_parked(chance: random.Random) -> list[Fault]:
    """Producers begin in the pause, and B0 is set when their first batches have waited for too
    long, and the others have not; they hear of it late. Others begin when it is about to be set."""
    lasts = round(chance.uniform(4.05, 4.5), 3)
    found = _newcomers("roll ended", 0.0, near(chance, 0.2))
    cuts = [Fault("cut one way", "roll ended", near(chance, 1.5), lasts, LEADERS, fault.who)
            for fault in found]  # fmt: skip
    just_before = [
        Fault(BEGINS, "roll ended", round(lasts - chance.uniform(0.0, 0.3), 3), 0.0, name)
        for name in ("java-9", "librdkafka-10", "java-11")
    ]
    return [*found, *cuts, *just_before, Fault("freeze", "roll ended", 0.0, lasts, "worker")]


def _twice_in_a_new_epoch(chance: random.Random) -> list[Fault]:
    """Producers that rather lose than wait give up what they have sent, and begin a new epoch, and
    soon another one."""
    lasts = 3.6
    apart = lasts + chance.uniform(0.2, 0.5)
    hangs = [
        Fault("commits hang for", "crossed", round(0.4 + apart * number, 3), lasts, ANY)
        for number in range(3)
    ]
    return [*_newcomers("crossed", 0.0, near(chance, 0.05)), *hangs]


def _fenced_with_commits(chance: random.Random) -> list[Fault]:
    """The leader's gateway is fenced, and soon another incarnation, while it has not heard that
    objects of the one before were committed."""
    return _fenced_and_back(chance, "commits are done, and fail, for")


def _fenced_with_uploads(chance: random.Random) -> list[Fault]:
    """The same, while objects of the incarnation before are put; and then it is killed."""
    killed = Fault("kill", TAKEN_OVER, near(chance, 2.5), 0.3, LEADERS)
    return [*_fenced_and_back(chance, "uploads hang for"), killed]


def _fenced_and_back(chance: random.Random, kind: str) -> list[Fault]:
    at = near(chance, 0.8)
    begins, goes_on = round(at + chance.uniform(1.0, 1.8), 3), near(chance, 0.8)
    return [
        Fault("renewals fail for", "crossed", at, near(chance, 0.3), LEADERS, until=TAKEN_OVER),
        Fault(STOPPED_DOUBLE, "crossed", round(at + 0.02, 4), near(chance, 0.05), LEADERS,
              until=TAKEN_OVER),
        Fault(kind, "crossed", begins, goes_on, LEADERS, until=TAKEN_OVER),
    ]  # fmt: skip


def _stored_twice(chance: random.Random) -> list[Fault]:
    """Objects are stored, and put again under another key."""
    return [
        *(Fault("one upload is stored, and fails, for", f"crossed > {LEADERS} put", 0.0, 0.5,
                LEADERS, nth=nth) for nth in chance.sample(range(1, 20), 4)),
        Fault(READ_BUCKET, "crossed", 0.0, 5.0),
    ]  # fmt: skip


def _refused_and_stored(chance: random.Random) -> list[Fault]:
    """Objects are stored, and refused, when others are stored behind them."""
    return [
        *(Fault(TURNED_DOWN, f"crossed > {LEADERS} put", 0.0, round(chance.uniform(0.3, 0.9), 3),
                LEADERS, nth=nth) for nth in (1, 8, 15, 22)),
        Fault(READ_BUCKET, "crossed", 0.0, 6.0),
    ]  # fmt: skip


def _shorter_log(chance: random.Random) -> list[Fault]:
    """Consumers read far of a tracked topic; then a replica leads that was cut off, and soon the
    first leader again, by that shorter log, behind whose end its gateway appends when it is fenced:
    consumers read on while B0 is not set."""
    slow = "Postgres is slow with acknowledgements of tracking by"
    back, held = round(chance.uniform(4.9, 5.2), 3), round(chance.uniform(5.2, 5.4), 3)
    return [
        Fault("cut", "clients", 0.1, 4.5, "broker2", "broker1", until="track"),
        Fault(slow, "track", 0.0, held, "gateway3"),
        Fault("elect an unclean leader", "track", 4.4, 0.0, "1"),
        Fault("elect an unclean leader", "track", back, 0.0, "2"),
        *(Fault("cut off", "track", 4.3, 3.0, who) for who in ("librdkafka-1", "plain-3")),
        *_held_back(chance, "track ended", PERSISTS),
        Fault("cut", CLOSED, 0.0, 6.0, LEADERS, "postgres"),
        Fault("Postgres persists late for", "quiesce", 0.0, round(chance.uniform(12.0, 18.0), 3),
              "worker"),
    ]  # fmt: skip


def _begun_behind_late_append(chance: random.Random) -> list[Fault]:
    """Consumers begin at the end as it is told when a fenced gateway's append lies behind the last
    look at the log's end, and B0 is not set."""
    return [
        *_held_back(chance, "track ended", PERSISTS),
        Fault("cut", CLOSED, 0.0, 6.0, LEADERS, "postgres"),
        Fault("Postgres persists late for", "quiesce", 0.0, round(chance.uniform(15.0, 18.0), 3),
              "worker"),
        *(Fault(READS, PERSISTS, near(chance, at), 0.0, f"consumer-{number}")
          for number, at in enumerate((0.1, 0.4, 0.8), 5)),
    ]  # fmt: skip


def _grown(chance: random.Random) -> list[Fault]:
    """Partitions are added: at a broker itself, where somebody writes to it, or nobody does, before
    the topic is tracked or while it migrates; and through a gateway, then, too, or when it has."""
    early = (UNTRACKED, "worker begin_migration", "track")
    after = chance.choice((*early, "track ended", "quiesce", "crossed"))
    at = near(chance, 1.0 if after == UNTRACKED else 0.01)
    batches = str(chance.choice((0, 1, 4, 4)))
    broker = f"broker{chance.choice((1, 2, 3))}"
    found = [
        Fault(GROWS_PAST, after, at, 0.0, broker, batches),
        Fault(GROWS, "crossed", round(chance.uniform(5.0, 7.0), 3), 0.0, chance.choice(ALL)),
    ]
    if chance.random() < 0.4:
        found.append(
            Fault(GROWS, chance.choice(early), near(chance, 0.01), 0.0, chance.choice(ALL))
        )
    return found


THEMES = (
    _unheard,
    _untracked,
    _woken_unaware,
    _read_late_append,
    _late_append,
    _suspended_leader,
    _cut_off_leader,
    _back_in_time,
    _twins,
    _in_flight,
    _behind_the_end,
    _passed_before,
    _started_again,
    _moved,
    _zombie_b0,
    _uploads_fail,
    _unanswered,
    _question_over_closing,
    _another_disk,
    _commit_unheard,
    _late_worker,
    _woken_past_b0,
    _closed_twice,
    _unreplicated,
    _fenced_with_objects,
    _replaced,
    _at_another_place,
    _by_its_snapshot_alone,
    _stand_in,
    _moved_early,
    _long_pause,
    _aborted,
    _learns_late,
    _commits_fail,
    _two_for_long,
    _unclean_before,
    _sent_and_fenced,
    _read_and_not_written,
    _refused_start,
    _in_the_pause,
    _commit_long_unknown,
    _at_b0,
    _cut_off_clients,
    _away_for_long,
    _machines,
    _tiered,
    _promoted,
    _throttled,
    _behind_a_zombie,
    _not_found,
    _stand_in_of_tracked,
    _fenced_and_asking,
    _first_put_late,
    _first_put_refused,
    _late_when_parked,
    _twice_in_a_new_epoch,
    _fenced_with_commits,
    _fenced_with_uploads,
    _stored_twice,
    _refused_and_stored,
    _shorter_log,
    _begun_behind_late_append,
    _promoted_behind,
    _grown,
)
"""In the order of their turns."""


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
            if who in gateways and chance.random() < 0.3:
                kind = STOP
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
