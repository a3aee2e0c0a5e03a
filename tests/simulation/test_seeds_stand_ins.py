"""Seeds in which gateways stand in for each other: no promise is broken by whoever carries it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.run import simulate
from tests.simulation.schedules import STANDS_IN_FROM
from tests.simulation.shrink import shrink
from tests.simulation.story import story
from tideline.gateway.transport.server import GatewayServer

carried: set[int] = set()
"""Seeds in which a stand-in has accepted a client."""


@pytest.mark.parametrize("seed", [STANDS_IN_FROM + n for n in (5, 6, 11)])
def test_no_schedule_breaks_a_promise(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    accept = GatewayServer.connection_to

    def noted(server: GatewayServer, broker: Any, broker_is_gone: Any) -> Any:
        if broker.address != server._settings.gateway_broker:
            carried.add(seed)
        return accept(server, broker, broker_is_gone)

    monkeypatch.setattr(GatewayServer, "connection_to", noted)
    result = simulate(seed)
    assert not result.violations, story(shrink(result))


def test_the_seeds_had_stand_ins_that_carried_clients() -> None:
    assert carried
