"""A gateway says whether it is ready and healthy, and why not."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.ports import free_port
from tests.support.waiting import HANGS_S, eventually
from tideline import pages
from tideline.background import cancel_and_wait, spawn
from tideline.domain.answers import LeaseState
from tideline.errors import UnreachableError
from tideline.gateway.standing import STUCK_S, Standing
from tideline.pages import MOST_KEPT


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def standing(clock: Clock) -> Standing:
    return Standing(1, clock)


def serves(
    standing: Standing,
    listening: bool = True,
    lease: LeaseState = LeaseState.HELD,
    stopped: str | None = None,
) -> list[str]:
    standing.serves(lambda: listening, lambda: lease, lambda: stopped, lambda topic: {"of": topic})
    return standing.why_not_ready()


def test_one_that_starts_or_stops_is_not_ready_and_needs_no_restart(standing: Standing) -> None:
    assert standing.why_not_ready() == ["starting: it reads what is tracked"]
    assert serves(standing) == []
    standing.stops()
    assert standing.why_not_ready() == ["stopping"]
    assert standing.why_not_healthy() == []


def test_every_reason_is_told(standing: Standing) -> None:
    away, lapsed = serves(standing, listening=False, lease=LeaseState.LAPSED)
    assert "broker does not answer" in away
    assert "lease is not held" in lapsed
    (why,) = serves(standing, lease=LeaseState.STOPPED, stopped="it was rolled back")
    assert "it was rolled back" in why


async def test_an_event_loop_that_does_not_turn_needs_a_restart(
    standing: Standing, clock: Clock
) -> None:
    serves(standing)
    clock.now += STUCK_S + 1
    assert standing.why_not_healthy() == [f"the event loop has not turned for {STUCK_S + 1:.0f} s"]
    turning = spawn(standing.turn(), "standing")
    try:
        await eventually("the beat", lambda: not standing.why_not_healthy())
    finally:
        await cancel_and_wait(turning)


@pytest.fixture
def address(standing: Standing) -> Iterator[str]:
    where = ("127.0.0.1", free_port())
    stop = pages.serve(where, standing.pages())
    yield f"http://{where[0]}:{where[1]}"
    stop()


def test_probes_are_answered_over_http(address: str, standing: Standing) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{address}/ready", timeout=HANGS_S)
    assert refused.value.code == 503
    assert json.loads(refused.value.read())["why"] == ["starting: it reads what is tracked"]
    serves(standing)
    for path, name in (("/ready", "ready"), ("/health", "healthy")):
        with urllib.request.urlopen(f"{address}{path}", timeout=HANGS_S) as answer:
            said = json.loads(answer.read())
        assert (said[name], said["why"], said["gateway"]) == (True, [], 1)
    with urllib.request.urlopen(f"{address}/metrics", timeout=HANGS_S) as answer:
        assert b"inkless_gateway_loop_lateness_seconds" in answer.read()


async def test_what_is_believed_is_asked_on_the_event_loop(standing: Standing) -> None:
    state = standing.pages()["/state"]
    well, said = await asyncio.to_thread(state, {})
    assert (well, said["why"]) == (False, ["starting: it reads what is tracked"])
    turning = spawn(standing.turn(), "standing")
    try:
        serves(standing, lease=LeaseState.LAPSED)
        await asyncio.sleep(0)
        well, said = await asyncio.to_thread(state, {"topic": "orders"})
        assert (well, said["of"], said["ready"]) == (True, "orders", False)
    finally:
        await cancel_and_wait(turning)


async def test_the_loop_is_asked_for_a_state_once_a_second_and_for_few_topics_in_it(
    standing: Standing, clock: Clock
) -> None:
    asked: list[str | None] = []

    def state(topic: str | None) -> dict[str, object]:
        asked.append(topic)
        return {"of": topic}

    standing.serves(lambda: True, lambda: LeaseState.HELD, lambda: None, state)
    turning, page = spawn(standing.turn(), "standing"), standing.pages()["/state"]
    try:
        await asyncio.sleep(0)
        for _ in range(3):
            assert (await asyncio.to_thread(page, {}))[1]["of"] is None
        assert asked == [None]
        answers = [await asyncio.to_thread(page, {"topic": str(n)}) for n in range(MOST_KEPT)]
        assert [well for well, _ in answers] == [True] * (MOST_KEPT - 1) + [False]
        assert "ask again" in str(answers[-1][1]["why"])
        clock.now += 1
        assert (await asyncio.to_thread(page, {}))[0]
        assert asked == [None, *map(str, range(MOST_KEPT - 1)), None]
    finally:
        await cancel_and_wait(turning)


@pytest.mark.parametrize("address", ["127.0.0.1:metrics", "no host:9404", "another server"])
def test_an_address_that_is_none_or_not_a_gateways_is_named(address: str) -> None:
    """Another server: one that does not speak HTTP, as a wrong port mostly is."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"N\0\0\0 what is this\r\n\r\n")

        if address == "another server":
            address = f"127.0.0.1:{server.getsockname()[1]}"
            threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(UnreachableError, match="name its TIDELINE_METRICS_ADDRESS"):
            pages.read_state(address)
