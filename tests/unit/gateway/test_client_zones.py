"""Which zones clients have: racks of brokers and gateways, and what is told of other names."""

from __future__ import annotations

from structlog.testing import capture_logs

from tests.unit.gateway.test_peers import Fleet, fleet
from tideline.gateway.zones import MOST_NOTED, SHOWN_OF_A_NAME, ClientZones

__all__ = ["fleet"]


async def test_a_zone_is_a_rack_of_a_broker_or_of_a_gateway(fleet: Fleet) -> None:
    zones = ClientZones(fleet.peers)
    await fleet.peers.look()
    fleet.peers.brokers_are({3: "z", 4: "w"})
    for zone in ("a", "b", "z", "w"):
        assert zones.of(f"x,diskless_az={zone}-StreamThread-1-producer") == zone
        assert zones.of("x", rack=zone) == zone
    assert zones.of("diskless_az=q") is None
    assert zones.of("diskless_az=b", rack="a") == "a"
    assert zones.of("diskless_az=b", rack="q") == "b"


async def test_a_zone_stays_one_while_its_broker_is_away(fleet: Fleet) -> None:
    zones = ClientZones(fleet.peers)
    fleet.peers.brokers_are({3: "z", 4: "w"})
    fleet.peers.brokers_are({4: "w"})
    assert zones.of("diskless_az=z") == "z"
    fleet.peers.brokers_are({3: "y", 4: "w"})
    assert zones.of("diskless_az=z") is None


async def test_another_name_is_logged_once_and_shown_until_it_is_a_zone(fleet: Fleet) -> None:
    zones = ClientZones(fleet.peers)
    with capture_logs() as logged:
        assert zones.of("diskless_az=q") is None
    assert not logged, "no broker has told its rack yet"
    assert not zones.believed()["no_zones"]
    await fleet.peers.look()
    fleet.peers.brokers_are({3: "z"})
    with capture_logs() as logged:
        for _ in range(3):
            assert zones.of("orders,diskless_az=q,more") is None
            assert zones.of("x", rack="r") is None
    assert [one["named"] for one in logged if one["log_level"] == "warning"] == ["q", "r"]
    assert zones.believed()["no_zones"] == ["q", "r"]
    fleet.peers.brokers_are({3: "q"})
    assert zones.of("orders,diskless_az=q,more") == "q"
    assert zones.of("x", rack="r") is None
    assert zones.believed()["no_zones"] == ["r"]


async def test_clients_that_make_up_names_fill_nothing(fleet: Fleet) -> None:
    zones = ClientZones(fleet.peers)
    fleet.peers.brokers_are({3: "z"})
    with capture_logs() as logged:
        for number in range(2 * MOST_NOTED):
            zones.of(f"diskless_az={number:05}" + "x" * 1_000)
    shown = zones.believed()["no_zones"]
    assert len(shown) == len(logged) == MOST_NOTED
    assert {len(name) for name in shown} == {SHOWN_OF_A_NAME}
