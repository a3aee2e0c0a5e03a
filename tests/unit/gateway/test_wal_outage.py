"""A commit whose outcome is not known, and Postgres away for longer than anybody is patient."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.simulation.loop import VirtualLoop, deterministic
from tests.unit.gateway.fakes import LOG
from tests.unit.gateway.wal_bench import Bench, tells_when_asked
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.gateway.produce.appends import AppendFailed

AWAY_S = 30.0


@contextmanager
def virtual() -> Iterator[VirtualLoop]:
    """Time is what the loop says, for everybody who asks."""
    loop = VirtualLoop()
    with deterministic(loop, 1):
        try:
            yield loop
        finally:
            loop.finish()
            loop.close()


async def told(bench: Bench) -> tuple[int, list[int]]:
    """A producer without idempotence sends a record, and again what fails: its attempts, and the
    offsets that it was told."""
    attempts = 0
    while True:
        attempts += 1
        try:
            committed: Any = await bench.append()
        except AppendFailed:
            await asyncio.sleep(0.1)
        else:
            return attempts, [committed.base_offset]


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
def test_a_commit_of_unknown_outcome_is_asked_about_for_as_long_as_postgres_is_away(
    monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """Whether it was done or not before Postgres went away: who gave it up, and told its producer
    to send again, would have the record twice."""
    tells_when_asked(monkeypatch)

    async def play() -> tuple[int, list[int], float]:
        bench, loop = Bench(), asyncio.get_running_loop()
        if done:
            bench.plane.lose_answers = 1
        commit = bench.plane.commit_file

        async def then_away(*arguments: Any, **named: Any) -> Any:
            """The first one; nobody finds Postgres again before it is back."""
            del bench.plane.commit_file
            loop.call_later(AWAY_S, setattr, bench.plane, "down", False)
            try:
                if not done:
                    raise ControlPlaneUnavailable("the connection broke before the commit")
                return await commit(*arguments, **named)
            finally:
                bench.plane.down = True

        bench.plane.commit_file = then_away  # type: ignore[method-assign]
        attempts, offsets = await told(bench)
        assert bench.plane.suffix(LOG).high_watermark == 101, "the record is there once"
        assert len(bench.plane.commits) == 1
        await bench.writer.close(0.0)
        return attempts, offsets, loop.time()

    with virtual() as loop:
        attempts, offsets, waited = loop.run_until_complete(play())
    assert (attempts, offsets) == (1, [100])
    assert waited >= AWAY_S
