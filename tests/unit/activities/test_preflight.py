"""A gateway is alive if its lease is renewed while the preflight looks."""

from __future__ import annotations

from tests.unit.activities.world import World, gateway
from tideline.migration.preflight import _gateways, _watched


async def test_a_gateway_that_renews_while_it_is_watched_is_alive(world: World) -> None:
    read = world.plane.list_gateways

    async def renewing() -> list:  # type: ignore[type-arg]
        for known in await read():
            await world.plane.renew_lease(known.gateway_id, known.incarnation)
        return await read()

    world.plane.register(gateway(1))
    world.plane.list_gateways = renewing  # type: ignore[method-assign]
    (alive,) = _gateways(world.services, await _watched(world.services))
    assert alive.silent_ms <= alive.lease_ms


async def test_a_gateway_that_does_not_renew_is_found_out_by_a_process_that_just_started(
    world: World,
) -> None:
    world.plane.register(gateway(1))
    (silent,) = _gateways(world.services, await _watched(world.services))
    assert silent.silent_ms > silent.lease_ms


async def test_fenced_and_retired_gateways_are_not_waited_for(world: World) -> None:
    world.plane.register(gateway(1, status="fenced"), gateway(2, status="retired"))
    assert len(await _watched(world.services)) == 2
