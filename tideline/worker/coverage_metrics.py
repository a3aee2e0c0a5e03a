"""Gauges of the coverage job, from the verdicts that Postgres keeps."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import CoverageStatusRow
from tideline.errors import TidelineError
from tideline.settings import WorkerSettings

INTERVAL_S = 15.0
VERDICTS = {True: "covered", False: "not_covered", None: "not_looked_at"}


class CoverageGauges:
    """``inkless_coverage_*``."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._partitions = Gauge(
            "inkless_coverage_partitions",
            "Partitions with a prefix below B0, by the last verdict on it",
            ["verdict"],
            registry=registry,
        )
        self._missing = Gauge(
            "inkless_coverage_missing_offsets",
            "Offsets below B0 that remote storage does not have, where there are any",
            ["topic", "partition"],
            registry=registry,
        )
        self._age = Gauge(
            "inkless_coverage_last_report_age_seconds",
            "Since the newest and since the oldest verdict; absent before the first",
            ["which"],
            registry=registry,
        )

    def update(self, rows: Iterable[CoverageStatusRow], now_ms: int) -> None:
        """Replace every value."""
        counts: Counter[bool | None] = Counter()
        looks = []
        self._missing.clear()
        self._age.clear()
        for row in rows:
            counts[row.complete] += 1
            if row.observed_at is not None:
                looks.append(row.observed_at)
            if row.complete is False:
                missing = row.detail.get("missing_offsets", 0)
                self._missing.labels(row.topic, str(row.partition)).set(missing)
        for verdict, name in VERDICTS.items():
            self._partitions.labels(name).set(counts[verdict])
        if looks:
            self._age.labels("newest").set((now_ms - max(looks)) / 1000)
            self._age.labels("oldest").set((now_ms - min(looks)) / 1000)


async def keep_coverage_updated(gauges: CoverageGauges, settings: WorkerSettings) -> None:
    """Update now and then until cancelled; keep the last values while Postgres is away."""
    log = structlog.get_logger()
    plane = JobsControlPlane(settings, "tideline-worker-coverage")
    try:
        while True:
            try:
                rows = await asyncio.to_thread(plane.coverage_status)
                gauges.update(rows, time.time_ns() // 1_000_000)
            except TidelineError as error:
                log.warning("coverage gauges are stale", reason=str(error))
            await asyncio.sleep(INTERVAL_S)
    finally:
        plane.close()
