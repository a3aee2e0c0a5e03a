"""Who is taken to live, by what is read of the registry and of Kafka's brokers."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from tests.support.waiting import eventually
from tests.unit.gateway.fakes import FakeClock, GatewayPlane, tracked_row, tracked_topic
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.model import GatewayRegistration
from tideline.gateway.tracking.peers import Peers
from tideline.gateway.tracking.view import TrackingView

LEASE_MS = 3_000
LONGER_S = 4.0
"""Than a lease and the margin."""


class Fleet:
    """Gateways 1 (this one), 2 and 3 beside the brokers of these numbers."""

    def __init__(self) -> None:
        self.plane, self.clock = GatewayPlane(), FakeClock()
        self.incarnations: dict[int, UUID] = {}
        tracking = TrackingView(lambda: True)
        tracking.replace_all([tracked_topic(tracked_row(boundary=5, boundary_epoch=1))])
        self.peers = Peers(
            self.plane,  # type: ignore[arg-type]
            tracking,
            node=1,
            rack="a",
            addressed={1, 2, 3},
            poll_s=1.0,
            clock=self.clock,
            renews=lambda: self.renews,
        )
        self.renews = False

    async def register(self, number: int, rack: str | None) -> None:
        self.incarnations[number] = uuid4()
        await self.plane.register_gateway(
            number, number, self.incarnations[number], "g:1", "1", LEASE_MS, rack=rack
        )

    async def renew(self, *numbers: int) -> None:
        for number in numbers:
            await self.plane.renew_lease(number, self.incarnations[number])

    async def silent_for_a_lease(self, *renewing: int) -> None:
        for _ in range(4):
            await self.renew(*renewing)
            self.clock.now += LONGER_S / 4
            await self.peers.look()


@pytest.fixture
async def fleet() -> Fleet:
    made = Fleet()
    for number, rack in ((1, "a"), (2, "b"), (3, None)):
        await made.register(number, rack)
    return made


async def test_nobody_is_known_to_live_before_the_registry_was_read(fleet: Fleet) -> None:
    fleet.peers.brokers_are({1: "a", 2: "b"})
    assert fleet.peers.live == {}
    await fleet.peers.look()
    assert fleet.peers.live == {1: "a", 2: "b"}


async def test_a_gateway_without_a_zone_of_its_own_is_in_that_of_its_broker(fleet: Fleet) -> None:
    await fleet.peers.look()
    assert fleet.peers.live == {1: "a", 2: "b", 3: None}
    fleet.peers.brokers_are({1: "x", 2: "y", 3: "z"})
    assert fleet.peers.live == {1: "a", 2: "b", 3: "z"}


async def test_a_rack_of_this_gateways_own_is_its_zone(fleet: Fleet) -> None:
    fleet.peers.brokers_are({1: "x", 2: "y", 3: "z"})
    assert fleet.peers.zone == "a"


async def test_a_gateway_whose_broker_kafka_does_not_name_is_away(fleet: Fleet) -> None:
    """It accepts no client while its broker does not answer."""
    await fleet.peers.look()
    fleet.peers.brokers_are({1: None, 3: None})
    assert set(fleet.peers.live) == {1, 3}
    fleet.peers.brokers_are({1: None, 2: None, 3: None})
    assert set(fleet.peers.live) == {1, 2, 3}


async def test_a_gateway_without_an_address_for_clients_is_not_named(fleet: Fleet) -> None:
    await fleet.register(4, "d")
    await fleet.peers.look()
    fleet.peers.brokers_are({1: None, 2: None, 3: None, 4: None})
    assert set(fleet.peers.live) == {1, 2, 3}


async def test_who_does_not_renew_for_a_lease_is_away_until_it_does(fleet: Fleet) -> None:
    await fleet.peers.look()
    await fleet.silent_for_a_lease(2)
    assert set(fleet.peers.live) == {1, 2}
    await fleet.renew(3)
    await fleet.peers.look()
    assert set(fleet.peers.live) == {1, 2, 3}


async def test_this_gateway_lives_whatever_its_lease_is(fleet: Fleet) -> None:
    await fleet.peers.look()
    await fleet.silent_for_a_lease()
    assert set(fleet.peers.live) == {1}


async def test_who_is_fenced_or_stopped_is_away_at_once(fleet: Fleet) -> None:
    await fleet.plane.release_gateway(2, fleet.incarnations[2])
    await fleet.plane.fence_gateway(3, fleet.incarnations[3], 0, "lapsed")
    await fleet.peers.look()
    assert set(fleet.peers.live) == {1}
    await fleet.register(2, "b")
    await fleet.peers.look()
    assert fleet.peers.live == {1: "a", 2: "b"}


async def test_while_postgres_is_slow_nobody_dies(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fleet.peers.look()
    answer = fleet.plane.list_gateways

    async def slowly() -> list[GatewayRegistration]:
        fleet.clock.now += LONGER_S
        return await answer()

    monkeypatch.setattr(fleet.plane, "list_gateways", slowly)
    for _ in range(3):
        await fleet.peers.look()
        assert set(fleet.peers.live) == {1, 2, 3}


async def renewed(fleet: Fleet, took_s: float = 0.0) -> None:
    sent = fleet.clock.now
    gateways = await fleet.plane.renew_and_list(1, fleet.incarnations[1])
    fleet.clock.now += took_s
    fleet.peers.told(gateways, sent, fleet.clock.now)


async def test_who_lives_is_told_by_renewals_and_by_nothing_else_while_there_are_any(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.renews, asked = True, 0
    answer = fleet.plane.list_gateways

    async def counted() -> list[GatewayRegistration]:
        nonlocal asked
        asked += 1
        return await answer()

    await renewed(fleet)
    assert set(fleet.peers.live) == {1, 2, 3}
    for _ in range(4):
        await fleet.renew(2)
        fleet.clock.now += LONGER_S / 4
        await renewed(fleet)
    assert set(fleet.peers.live) == {1, 2}
    fleet.peers.poll_s = 0.01
    monkeypatch.setattr(fleet.plane, "list_gateways", counted)
    fleet.peers.start()
    await asyncio.sleep(0.1)
    assert asked == 0
    fleet.renews = False
    await eventually("a look of its own", lambda: asked)
    await fleet.peers.close()


async def test_while_renewals_are_slow_or_fail_nobody_dies(fleet: Fleet) -> None:
    await renewed(fleet)
    for took_s in (LONGER_S, 1.1):
        fleet.clock.now += LONGER_S - took_s
        await renewed(fleet, took_s)
        assert set(fleet.peers.live) == {1, 2, 3}
    fleet.clock.now += LONGER_S
    fleet.peers.untold()
    await renewed(fleet)
    assert set(fleet.peers.live) == {1, 2, 3}


async def test_renewals_that_take_less_than_their_pause_tell_who_is_away(fleet: Fleet) -> None:
    """A standby that is far away makes every commit slow."""
    await renewed(fleet, 0.9)
    for _ in range(5):
        await fleet.renew(2)
        await renewed(fleet, 0.9)
    assert set(fleet.peers.live) == {1, 2}


async def test_while_postgres_is_away_nobody_dies(fleet: Fleet) -> None:
    """Nobody could renew: silence counts from when Postgres answers again."""
    await fleet.peers.look()
    fleet.plane.down = True
    fleet.clock.now += LONGER_S
    with pytest.raises(ControlPlaneUnavailable):
        await fleet.peers.look()
    assert set(fleet.peers.live) == {1, 2, 3}
    fleet.plane.down = False
    fleet.clock.now += LONGER_S
    await fleet.peers.look()
    assert set(fleet.peers.live) == {1, 2, 3}
    await fleet.silent_for_a_lease(3)
    assert set(fleet.peers.live) == {1, 3}
