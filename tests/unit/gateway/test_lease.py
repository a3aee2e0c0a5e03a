"""Incarnations, leases and the clock that they are counted on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.support.waiting import within
from tests.unit.gateway.fakes import FakeClock, GatewayPlane
from tideline.background import cancel_and_wait
from tideline.control_plane.errors import ControlPlaneUnavailable, GatewayIdHeld
from tideline.control_plane.model import GatewayRegistration
from tideline.gateway.tracking.lease import Lease, boot_clock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def plane() -> GatewayPlane:
    return GatewayPlane()


@pytest.fixture
def lease(clock: FakeClock, plane: GatewayPlane) -> Lease:
    return Lease(
        plane,
        gateway_id=1,
        broker_id=1,
        address="127.0.0.1:1",
        version="0",
        duration_ms=3000,
        clock=clock,
    )


async def test_it_is_valid_from_its_registration_on_for_its_duration(
    lease: Lease, clock: FakeClock
) -> None:
    assert not lease.valid()
    await lease.renew()
    assert lease.valid()
    clock.now += 2.9
    assert lease.valid()
    clock.now += 0.2
    assert not lease.valid()


async def test_it_is_counted_from_before_the_renewal_was_sent(
    lease: Lease, clock: FakeClock, plane: GatewayPlane
) -> None:
    """Schedule 15: a slow answer must not make it longer than a waiter sees."""
    await lease.renew()
    answer = plane.renew_and_list
    told = list[object]()

    async def slow(*arguments: object) -> list[GatewayRegistration]:
        clock.now += 2.0
        return await answer(*arguments)  # type: ignore[arg-type]

    plane.renew_and_list = slow  # type: ignore[method-assign, assignment]
    lease.told.add(lambda *given: told.append(given))
    sent = clock.now
    await lease.renew()
    assert told == [(await plane.list_gateways(), sent, sent + 2.0)]
    clock.now += 1.5
    assert not lease.valid()


async def test_a_machine_that_was_suspended_wakes_without_a_lease(
    lease: Lease, clock: FakeClock
) -> None:
    """Schedule 15."""
    await lease.renew()
    clock.now += 3600
    assert not lease.valid()


def test_the_clock_runs_on_while_the_machine_is_suspended() -> None:
    assert boot_clock() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=1)


async def test_a_fenced_incarnation_drops_what_is_pending_and_registers_as_another_one(
    lease: Lease, plane: GatewayPlane
) -> None:
    """Schedule 1."""
    happened: list[str] = []

    def dropped() -> None:
        assert not lease.valid()
        happened.append("dropped")

    async def learnt() -> None:
        assert not lease.valid(), "nothing is served before everything was read anew"
        happened.append("learnt")

    lease.fenced.add(dropped)
    await lease.renew(learnt)
    first = lease.incarnation
    plane.fence(first)
    await lease.renew(learnt)
    assert not lease.valid()
    await lease.renew(learnt)
    assert lease.valid()
    assert lease.incarnation != first
    assert happened == ["learnt", "dropped", "learnt"]


async def test_without_postgres_it_lapses_and_comes_back_as_the_same_incarnation(
    lease: Lease, clock: FakeClock, plane: GatewayPlane
) -> None:
    gained: list[bool] = []
    lease.gained.add(lambda: gained.append(lease.valid()))
    await lease.renew()
    incarnation = lease.incarnation
    plane.down = True
    clock.now += 10
    with pytest.raises(ControlPlaneUnavailable):
        await lease.renew()
    assert not lease.valid()
    plane.down = False
    await lease.renew()
    assert lease.valid()
    assert lease.incarnation == incarnation
    assert gained == [True, True]


async def test_a_registration_that_could_not_learn_is_repeated(
    lease: Lease, plane: GatewayPlane
) -> None:
    async def cannot_learn() -> None:
        raise ControlPlaneUnavailable("gone again")

    with pytest.raises(ControlPlaneUnavailable):
        await lease.renew(cannot_learn)
    assert not lease.registered
    assert not lease.valid()


def another_process(plane: GatewayPlane, clock: FakeClock) -> Lease:
    return Lease(
        plane,
        gateway_id=1,
        broker_id=1,
        address="elsewhere:1",
        version="0",
        duration_ms=3000,
        clock=clock,
    )


async def test_who_waits_for_its_id_says_so_while_the_holder_lives(
    lease: Lease, plane: GatewayPlane, clock: FakeClock
) -> None:
    """Schedule 24: two processes of one id."""
    await lease.renew()
    other = another_process(plane, clock)
    for _ in range(2):
        with pytest.raises(GatewayIdHeld):
            await other.renew()
        await lease.renew()
    with pytest.raises(GatewayIdHeld):
        await other.renew()
    assert REGISTRY.get_sample_value("inkless_gateway_id_held") == 1
    await lease.release()
    await other.renew()
    assert REGISTRY.get_sample_value("inkless_gateway_id_held") == 0


async def test_who_waits_for_the_id_of_a_dead_process_raises_no_alarm(
    lease: Lease, plane: GatewayPlane, clock: FakeClock
) -> None:
    await lease.renew()
    other = another_process(plane, clock)
    for _ in range(3):
        with pytest.raises(GatewayIdHeld):
            await other.renew()
        clock.now += 1.0
    assert REGISTRY.get_sample_value("inkless_gateway_id_held") == 0


async def test_a_holder_that_moves_again_is_watched_anew(
    lease: Lease, plane: GatewayPlane, clock: FakeClock
) -> None:
    await lease.renew()
    other = another_process(plane, clock)
    for _ in range(2):
        with pytest.raises(GatewayIdHeld):
            await other.renew()
        clock.now += 3.6
    await lease.renew()
    with pytest.raises(GatewayIdHeld):
        await other.renew()
    assert lease.valid()


async def test_a_stop_without_postgres_leaves_the_lease_to_lapse(
    lease: Lease, plane: GatewayPlane
) -> None:
    await lease.renew()
    plane.down = True
    await lease.release()
    assert not lease.valid()


async def test_a_registration_whose_answer_was_lost_and_that_was_fenced_is_followed_by_another(
    lease: Lease, plane: GatewayPlane
) -> None:
    """An incarnation that has ended is refused for ever: the process registers as another one."""
    register = plane.register_gateway

    async def loses_its_answer(*arguments: Any, **named: Any) -> None:
        await register(*arguments, **named)
        raise ControlPlaneUnavailable("no answer")

    plane.register_gateway = loses_its_answer  # type: ignore[method-assign]
    with pytest.raises(ControlPlaneUnavailable):
        await lease.renew()
    plane.register_gateway = register  # type: ignore[method-assign]
    first = lease.incarnation
    plane.fence(first)
    await lease.renew()
    assert (lease.registered, lease.valid()) == (False, False)
    assert lease.incarnation != first
    await lease.renew()
    assert lease.valid()


async def test_a_renewal_that_is_not_answered_is_told(lease: Lease, plane: GatewayPlane) -> None:
    """Whoever knows what Postgres alone knows else can say it then."""
    told = asyncio.Event()
    lease.missed.add(told.set)
    plane.down = True

    async def nothing() -> None:
        """There is nothing to learn."""

    keeping = asyncio.ensure_future(lease.keep(nothing))
    await within("what is told", told.wait())
    await cancel_and_wait(keeping)
