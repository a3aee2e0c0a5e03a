"""Several gateways, each of them fenced at times, and a bucket that is collected: who loses
Postgres at any moment finds nothing anywhere but where Postgres had it (decision 0022)."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
import uvloop
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tenacity import stop_after_attempt, wait_none

from tests.unit.gateway.fakes import LOG
from tests.unit.gateway.wal_bench import OTHER, Bench, goes_on
from tideline.control_plane.errors import ControlPlaneFailure
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_state import KnownProducers
from tideline.domain.rebuild import rebuild
from tideline.domain.wal_producers import SURELY_KEPT_MS
from tideline.domain.wal_tail import END_WITHIN_MS
from tideline.gateway.produce import teller, wal
from tideline.object_store import ObjectStoreUnavailable

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
"""Their timers of no delay come in another order: schedules of the one are not the other's."""


class Faults:
    """One of so many calls fails, before or after it has been done."""

    def __init__(self, random: Random, bench: Bench) -> None:
        self.random, self.store, self.commit = random, 0.0, 0.0
        self._put, self._commit = bench.store.put, bench.plane.commit_file
        bench.store.put = self.put  # type: ignore[method-assign]
        bench.plane.commit_file = self.commit_file  # type: ignore[method-assign]

    async def put(self, key: str, body: bytes) -> None:
        await self._turns(6)
        fails, late = self.random.random() < self.store, self.random.random() < 0.5
        if not fails or late:
            await self._put(key, body)
        if fails:
            raise ObjectStoreUnavailable("in this test")

    async def commit_file(self, *args: Any, **named: Any) -> Any:
        await self._turns(4)
        fails, late = self.random.random() < self.commit, self.random.random() < 0.5
        answer = None
        if not fails or late:
            answer = await self._commit(*args, **named)
        if fails:
            raise ControlPlaneFailure("in this test")
        return answer

    async def _turns(self, most: int) -> None:
        for _ in range(self.random.randrange(most)):
            await asyncio.sleep(0)


def collect(bench: Bench, log: TopicIdPartition, kept: int = 0) -> None:
    """Retention, which keeps so many offsets, and the collection behind it, which comes when all
    is told, and after a grace that is longer than anything is placed at an end; orphans stay."""
    files = bench.plane.files.by_key.values()
    if any(f.carried_by is None for f in files if f.outcomes):
        return
    partition, suffix = bench.plane.partition(log), bench.plane.suffix(log)
    if suffix.high_watermark - kept > suffix.start:
        partition.delete_records(suffix.high_watermark - kept)
    bench.plane.append_time += END_WITHIN_MS + 1
    bench.plane.prune_batches()
    for key in bench.plane.claim_dead_files(0):
        bench.store.objects.pop(key, None)


def forget_producers(bench: Bench, benches: list[Bench]) -> None:
    """Those that are idle, as ``expire_producers`` does. A commit that outlives it would be one
    whose gateway has lost its lease."""
    if all(one.writer.unfinished_bytes == 0 for one in benches):
        bench.plane.append_time += SURELY_KEPT_MS + 1
        for log in (LOG, OTHER):
            producers = bench.plane.suffix(log).producers
            before = bench.plane.append_time - SURELY_KEPT_MS
            for idle in [n for n, entry in producers.items() if entry.updated_at < before]:
                del producers[idle]


def judge(bench: Bench) -> None:
    """As if Postgres and all gateways were lost in this moment."""
    suffixes = {log: bench.plane.suffix(log) for log in (LOG, OTHER)}
    start = {log: suffix.start for log, suffix in suffixes.items()}
    born = {log for log, suffix in suffixes.items() if suffix.start == suffix.boundary}
    found = rebuild(bench.streams(), start, dict.fromkeys(born, KnownProducers(are_all=True)))
    assert not found.contradictions
    for log in (LOG, OTHER):
        suffix = bench.plane.suffix(log)
        truth = {
            (b.base_offset, b.object_key, b.byte_offset)
            for b in suffix.batches
            if b.base_offset >= start[log]
        }
        assert not {key for _, key, _ in truth} & set(found.never_committed)
        rows = found.logs[log].batches if log in found.logs else ()
        inside = {
            (b.base_offset, b.object_key, b.footer.byte_offset)
            for b in rows
            if start[log] <= b.base_offset < suffix.high_watermark
        }
        assert inside <= truth
        opened = {o.wal_object.key for o in found.open_objects if o.log == log}
        assert {key for _, key, _ in truth - inside} <= opened


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 40),
    gateways=st.integers(1, 3),
    fenced=st.booleans(),
    unheard=st.booleans(),
    attempts=st.integers(1, 3),
    forgetful=st.booleans(),
    loop=st.sampled_from(sorted(LOOPS)),
)
@example(
    seed=1918,
    steps=24,
    gateways=1,
    fenced=False,
    unheard=True,
    attempts=2,
    forgetful=False,
    loop="uvloop",
)
@example(
    seed=376,
    steps=31,
    gateways=3,
    fenced=False,
    unheard=True,
    attempts=1,
    forgetful=True,
    loop="asyncio",
)
@example(
    seed=666,
    steps=35,
    gateways=1,
    fenced=True,
    unheard=True,
    attempts=3,
    forgetful=True,
    loop="asyncio",
)
@example(
    seed=5215,
    steps=27,
    gateways=1,
    fenced=False,
    unheard=False,
    attempts=3,
    forgetful=True,
    loop="asyncio",
)
@example(
    seed=1964,
    steps=37,
    gateways=3,
    fenced=True,
    unheard=True,
    attempts=3,
    forgetful=False,
    loop="uvloop",
)
def test_a_bucket_of_any_moment_and_of_several_streams_misplaces_nothing(
    seed: int,
    steps: int,
    gateways: int,
    fenced: bool,
    unheard: bool,
    attempts: int,
    forgetful: bool,
    loop: str,
) -> None:
    """The examples have failed: a batch was sent again whose first copy had been collected; one
    came long after a commit of which nobody knew, when its producer was forgotten (for certain in
    test_tail.py: what is stated has moved this schedule); and an upload lasted while what told of
    a commit before it, of which nobody knew, was collected, with other outcomes or without any, or
    the later one of two attempts to store what was committed before."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        patch.setattr(teller, "TELL_AFTER_S", 0.0)
        patch.setattr(teller, "TELL_WITHIN_S", 0.001)
        patch.setattr(wal, "_FAST_RETRY", wait_none())
        patch.setattr(wal, "stop_after_delay", lambda _: stop_after_attempt(attempts))
        kinds = {"fenced": fenced, "unheard": unheard, "forgetful": forgetful}
        runner.run(play(Random(seed), steps, gateways, **kinds))


async def play(
    random: Random, steps: int, gateways: int, *, fenced: bool, unheard: bool, forgetful: bool
) -> None:
    first = Bench(buffer_max_bytes=1 << 20, patience_s=60.0)
    faults = Faults(random, first)
    benches = [first]
    benches += [
        Bench(first, gateway_id=number, buffer_max_bytes=1 << 20, patience_s=60.0)
        for number in range(2, gateways + 1)
    ]
    sequences: dict[tuple[TopicIdPartition, int], int] = {}
    outcomes: list[asyncio.Future[object]] = []
    actions = ["append"] * 8 + ["again", "lose", "store", "commit", "fence", "collect", "turn"]
    actions += (["resend"] * 5 + ["sweep"] * 3 + ["forget"]) * forgetful

    def append(bench: Bench, log: TopicIdPartition, producer: int, *, again: bool = False) -> None:
        number = sequences.get((log, producer), 0)
        number -= again and number > 0
        sequences[log, producer] = number + 1
        outcomes.append(
            bench.append(
                number if producer >= 0 else -1,
                log=log,
                producer=producer,
                source=random.choice("ab"),
                records=random.choice([1, 1, 2]) if producer < 0 else 1,
                payload=random.choice([50, 950]),
            )
        )
        outcomes[-1].add_done_callback(lambda done: done.cancelled() or done.exception())

    for _ in range(steps):
        bench = random.choice(benches)
        match random.choice(actions):
            case "append" | "again" as what:
                log, producer = random.choice([LOG, OTHER]), random.choice([-1, -1, 7, 8])
                append(bench, log, producer, again=what == "again")
            case "resend":
                log = random.choice([LOG, OTHER])
                append(bench, log, random.choice([7, 8]), again=True)
                append(bench, log, -1)
            case "lose":
                bench.plane.lose_answers = 1
            case "store":
                faults.store = random.choice([0.0, 0.5, 1.0])
            case "commit" if unheard:
                faults.commit = random.choice([0.0, 0.5])
            case "fence" if fenced:
                goes_on(bench)
            case "collect":
                collect(first, random.choice([LOG, OTHER]))
            case "sweep":
                for log in (LOG, OTHER):
                    collect(first, log, kept=random.choice([0, 0, 1, 3]))
            case "forget":
                forget_producers(first, benches)
        for _ in range(random.choice([0, 1, 3, 10])):
            await asyncio.sleep(0)
            judge(first)
    faults.store = faults.commit = 0.0
    for bench in benches:
        await bench.writer.close(1.0)
    judge(first)
    await asyncio.gather(*outcomes, return_exceptions=True)
