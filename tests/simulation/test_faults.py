"""Faults come at the moment that their milestone names, and runs come to what they are aimed at."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tests.history.operations import Away, Outcome, Produce, Truncated
from tests.history.violations import Kind
from tests.simulation import promotion
from tests.simulation.coverage import FROM_SNAPSHOT, OLDER, missing, summary
from tests.simulation.faults import (
    ALL,
    CLOSED,
    COPY,
    GROWS,
    GROWS_PAST,
    KINDS,
    LEADERS,
    MILESTONES,
    NARROW,
    PROMOTE,
    PROMOTE_BEHIND,
    PUT_BACK,
    RESTART,
    UNTRACKED,
    Fault,
)
from tests.simulation.gateways import Gateway
from tests.simulation.loop import VirtualLoop
from tests.simulation.milestones import Milestones
from tests.simulation.postgres import ANY
from tests.simulation.run import Result, simulate
from tests.simulation.schedules import schedule
from tests.simulation.shrink import kinds_of

SEED = 7
OLDER_DISK = [
    Fault(COPY, "track ended", 0.1, 0.0, LEADERS),
    Fault(PUT_BACK, "crossed", 0.1, 0.2, LEADERS),
]
AIMED = [
    ("WAL object failed", [Fault("uploads fail for", "B0 > gateway put", 0.0, 3.5, ANY)]),
    ("WAL object failed", [Fault("uploads are refused for", "B0 > gateway put", 0.0, 0.3, ANY)]),
    ("closing repeated", [Fault("cut one way", CLOSED, 0.0, 2.5, "postgres", "worker")]),
    (OLDER, OLDER_DISK),
    ("gateway fenced", [Fault("freeze", "quiesce", 0.0, 4.5, "gateway3")]),
    ("parked", [Fault(PROMOTE, CLOSED, 0.0, 0.0)]),
]


@pytest.mark.parametrize(("place", "faults"), AIMED)
def test_a_fault_brings_a_run_to_its_place_and_breaks_nothing(
    place: str, faults: list[Fault]
) -> None:
    result = simulate(SEED, faults)
    assert not result.violations, result.text()
    assert result.not_begun == 0, result.text()
    assert result.reached.get(place), result.reached


def test_a_disk_that_is_lost_leaves_its_inode_to_nobody(tmp_path: Path) -> None:
    world: Any = SimpleNamespace(home=tmp_path, loop=VirtualLoop())
    gateway, inodes = Gateway(world, "gateway1", 1, ""), set()
    for _ in range(9):
        gateway.home.mkdir()
        lock = gateway.home / "gateway.lock"
        lock.touch()
        inodes.add(lock.stat().st_ino)
        gateway.kill(lose_disk=True)
    assert len(inodes) == 9


LACKS = Fault(PROMOTE_BEHIND, f"crossed > {LEADERS} commit_file", 0.0, 0.3)
"""A standby lacks commits that were answered."""
GOES_BACK, ACCEPTS = 4, SEED
"""Seeds whose operator does so."""


def test_a_standby_that_lacks_nothing_that_was_told_halts_nothing() -> None:
    result = simulate(SEED, [replace(LACKS, after="clients")])
    assert not result.violations, result.text()
    assert result.not_begun == 0, result.text()
    assert not any("the history is halted" in event for event in result.events)


@pytest.mark.parametrize(
    ("seed", "done"), [(GOES_BACK, "goes back to the primary"), (ACCEPTS, "accepts what")]
)
def test_a_run_goes_on_when_an_operator_has_compared(seed: int, done: str) -> None:
    result = simulate(seed, [LACKS])
    assert not result.violations, result.text()
    assert result.not_begun == 0, result.text()
    (at,) = [event.split()[0] for event in result.events if f"an operator {done}" in event]
    told = [one.answered for one in result.operations if isinstance(one, Produce)
            and one.outcome is Outcome.ACKNOWLEDGED]  # fmt: skip
    assert max(filter(None, told)) > float(at) + 1.0
    assert any(isinstance(one, Truncated) for one in result.operations) == (seed == ACCEPTS)


@pytest.mark.parametrize(
    ("seed", "since", "lacks"),
    [
        (127, "track", 0.3),
        (21, "track", 0.3),
        (9, "track", 0.3),
        (21, "worker begin_migration", 0.3),
        (9, "worker begin_migration", 0.3),
    ],
)
def test_a_topic_whose_tracking_a_standby_lacks_is_tracked_again(
    seed: int, since: str, lacks: float
) -> None:
    """That gateways have acknowledged it, or all of it. Nobody has to abort its migration."""
    result = simulate(seed, [Fault(PROMOTE_BEHIND, since, 0.0, lacks)])
    assert not result.violations, result.text()
    assert result.not_begun == 0, result.text()
    ended = [event for event in result.events if "the migration ended" in event]
    assert len(ended) == 1, ended
    assert "hybrid" in ended[0]


def test_what_is_lost_and_was_not_accepted_is_seen() -> None:
    unsaid = patch.object(promotion, "Truncated", lambda _, __, at: Away("nobody", at, at))
    assert Kind.DIFFERENT in kinds_of(simulate(ACCEPTS, [LACKS], unsaid))


@pytest.mark.parametrize(("batches", "written"), [("4", {0, 1, 2}), ("0", {0, 1, 2, 3})])
def test_a_topic_grows_over_a_partition_that_holds_nothing_alone(
    batches: str, written: set[int]
) -> None:
    past = Fault(GROWS_PAST, "crossed", 0.0, 0.0, "broker1", batches)
    result = simulate(SEED, [past, Fault(GROWS, "crossed", 3.0, 0.0, LEADERS)])
    assert not result.violations, result.text()
    assert result.not_begun == 0, result.text()
    sent = [one for one in result.operations if isinstance(one, Produce)]
    assert {o.partition.number for o in sent if o.outcome is Outcome.ACKNOWLEDGED} == written


@pytest.mark.parametrize(
    ("kind", "who", "after", "at"),
    [
        (GROWS_PAST, "broker1", UNTRACKED, 0.5),
        (GROWS, LEADERS, UNTRACKED, 0.5),
        (GROWS_PAST, "broker1", "worker begin_migration", 0.0),
    ],
)
def test_a_topic_that_grows_before_it_is_tracked_migrates_with_what_is_new(
    kind: str, who: str, after: str, at: float
) -> None:
    result = simulate(SEED, [Fault(kind, after, at, 0.0, who, "4")])
    assert not result.violations, result.text()
    assert result.not_begun == 0, result.text()
    assert any("B0 of partition 2 = " in event for event in result.events), result.text()
    begun = sum(event.endswith("track begins") for event in result.events)
    assert begun == (1 if after == UNTRACKED else 2), result.text()
    assert any(isinstance(one, Produce) and one.outcome is Outcome.ACKNOWLEDGED
               and one.partition.number == 2 for one in result.operations)  # fmt: skip


def test_the_load_lasts_until_a_late_migration_has_ended_and_its_faults_are_over() -> None:
    late = [Fault("cut", "clients", 0.9, 6.0, gateway, "postgres") for gateway in ALL]
    result = simulate(SEED, [*late, Fault("move the leader", "B0", 2.0, 0.0)])
    assert not result.violations, result.text()
    assert result.not_begun == 0, result.text()


def test_a_fault_whose_milestone_does_not_come_is_counted() -> None:
    result = simulate(SEED, [Fault("move the leader", RESTART, 0.0, 0.0)])
    assert result.not_begun == 1


def test_milestones_of_a_new_start_are_for_schedules_with_an_abort() -> None:
    chosen = [schedule(seed) for seed in range(1000)]
    late = [faults for faults in chosen if any(fault.after == RESTART for fault in faults)]
    assert late
    assert all(any("abort" in fault.kind for fault in faults) for faults in late)
    assert {fault.kind for faults in chosen for fault in faults} <= KINDS.keys()
    assert {fault.after for faults in chosen for fault in faults} > {*MILESTONES, *NARROW}


def test_half_of_the_schedules_lose_answers_at_b0() -> None:
    lost = sum(
        any("reset" in fault.kind and fault.after == "B0" for fault in schedule(seed))
        for seed in range(1000)
    )
    assert lost > 450


async def _reached_after(path: str, nth: int, happened: list[str]) -> int:
    """After how many of ``happened`` whoever waits goes on."""
    milestones = Milestones()
    waiting = asyncio.ensure_future(milestones.wait(path, nth))
    for number, name in enumerate(happened):
        await asyncio.sleep(0)
        if waiting.done():
            return number
        milestones.reach(*reversed(name.split(" ", 1)))
        await asyncio.sleep(0)
    await waiting
    return len(happened)


def test_a_milestone_is_the_nth_time_that_something_happens_after_something_else() -> None:
    puts = ["gateway1 put", "gateway2 put", "gateway1 put", "gateway2 put"]
    for path, nth, count in (
        ("gateway2 put", 1, 2),
        ("gateway put", 3, 3),
        ("gateway2 put > gateway put", 1, 3),
        ("gateway1 put > gateway2 put", 2, 4),
    ):
        assert asyncio.run(_reached_after(path, nth, puts)) == count, path


def _result(**reached: int) -> Result:
    return Result(SEED, (), [], [], [], True, 0.0, reached=reached)


def test_what_no_run_came_to_is_named() -> None:
    results = [_result(**{OLDER: 2}), _result(**{OLDER: 1, FROM_SNAPSHOT: 1})]
    lines = summary(results).splitlines()
    assert f"      3 in     2 runs: {OLDER}" in lines
    assert "never reached: WAL object failed" in lines
    assert OLDER not in missing({OLDER: 1})
