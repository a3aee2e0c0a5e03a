"""What Postgres knows of gateways that no gateway can export itself: who may still run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from uuid import UUID

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import GatewayRegistration, unaccounted_reason
from tideline.errors import TidelineError

EVERY_S = 15.0


class GatewayGauges:
    """Replaced incarnations, by gateway, that hold the next migrations back."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._unaccounted = Gauge(
            "inkless_gateway_unaccounted_incarnations",
            "Replaced incarnations that may still run, where there are any: no topic is tracked "
            "before they are accounted for",
            ["gateway"],
            registry=registry,
        )
        self._known: set[UUID] = set()

    def update(self, unaccounted: Iterable[GatewayRegistration]) -> list[GatewayRegistration]:
        """Those that the update before had not."""
        rows = list(unaccounted)
        self._unaccounted.clear()
        for gateway, count in Counter(row.gateway_id for row in rows).items():
            self._unaccounted.labels(str(gateway)).set(count)
        known, self._known = self._known, {row.incarnation for row in rows}
        return [row for row in rows if row.incarnation not in known]


async def keep_gateway_metrics(plane: ControlPlane) -> None:
    """Until cancelled."""
    gauges, log = GatewayGauges(), structlog.get_logger()
    while True:
        try:
            for row in gauges.update(await plane.unaccounted_incarnations()):
                log.warning("incarnation_unaccounted", what=unaccounted_reason(row))
        except TidelineError as error:
            log.warning("gateway gauges are stale", reason=str(error))
        await asyncio.sleep(EVERY_S)
