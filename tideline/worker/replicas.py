"""How the replicas of diskless topics lie over the racks, told for ever; moved only where a setting
allows it (docs/replicas.md)."""

from __future__ import annotations

import asyncio
import time

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from tideline.errors import TidelineError
from tideline.migration.replicas import ReplicaKeeper, ReplicaReport

log = structlog.get_logger()

LOOK_EVERY_S = 60.0


class ReplicaGauges:
    """What the newest look found: the seed's controller metrics (003, "Observability"), with dots
    as underscores."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._factor = Gauge(
            "kafka_controller_diskless_effective_rf",
            "Replicas of a diskless topic's partition that has fewest",
            ["topic"],
            registry=registry,
        )
        self._rack_aware = Gauge(
            "kafka_controller_diskless_rack_aware",
            "1 if a diskless partition has exactly one replica in each rack, else 0",
            ["topic", "partition"],
            registry=registry,
        )
        self._single = Gauge(
            "kafka_controller_diskless_rf1_topics_total",
            "Diskless topics that have a partition with one replica although there are more racks",
            registry=registry,
        )
        self._looked = Gauge(
            "inkless_replicas_last_look_timestamp_seconds",
            "When the replicas of all diskless topics were last looked at",
            registry=registry,
        )

    def update(self, found: ReplicaReport, now_s: float) -> None:
        self._factor.clear()
        self._rack_aware.clear()
        factors: dict[str, int] = {}
        for each in found.partitions:
            placed = each.partition
            here = len(placed.replicas)
            factors[placed.topic] = min(factors.get(placed.topic, here), here)
            self._rack_aware.labels(placed.topic, placed.partition).set(each.rack_aware)
        for topic, factor in factors.items():
            self._factor.labels(topic).set(factor)
        self._single.set(found.single_topics)
        self._looked.set(now_s)


class ReplicaWatch:
    """One per worker. Several see the same, and would begin the same moves."""

    def __init__(
        self, keeper: ReplicaKeeper, at_once: int, gauges: ReplicaGauges | None = None
    ) -> None:
        """``at_once``: partitions of the cluster that may be reassigned before no other is begun;
        0: nothing is moved."""
        self._keeper, self._at_once = keeper, at_once
        self._gauges = gauges or ReplicaGauges()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.look()
            except TidelineError as error:
                log.warning("replicas_not_looked_at", reason=str(error))
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> ReplicaReport:
        """Look once, and begin what may be moved. Raises when Postgres or Kafka does not answer."""
        found = await self._keeper.look(whole=False)
        self._gauges.update(found, time.time())
        if self._at_once and any(each.target is not None for each in found.partitions):
            # Brokers are weighed by all that they hold, which is asked for only now.
            whole = await self._keeper.look(whole=True)
            begun = await self._keeper.begin(whole, self._at_once)
            for partition, replicas in begun.moved.items():
                log.info("replicas_move", partition=str(partition), replicas=list(replicas))
            for partition, code in begun.refused.items():
                log.warning("replicas_not_moved", partition=str(partition), reason=code)
        return found
