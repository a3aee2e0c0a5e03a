"""Metrics of the tiering pipeline under the seed's names (002 §4.8.1), from what Postgres knows.

The jobs live only as long as their runs: what they have counted stands in Postgres, and the
worker, which is always there, exports it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import TieringStatusRow
from tideline.domain.tiering_totals import Total, histogram
from tideline.errors import TidelineError
from tideline.kafka.topic_policies import read_tiering_policies, suffix_topics
from tideline.settings import WorkerSettings

INTERVAL_S = 30.0
"""It counts the batches of every partition and asks Kafka for every topic's configs."""

COUNTERS = {
    Total.BATCHES_SPLIT: ("inkless_tiering_batches_split", "Batches split out of WAL files"),
    Total.BATCHES_MERGED: (
        "inkless_tiering_batches_merged",
        "Batches merged into segments: rows that left Postgres",
    ),
    Total.SEGMENTS_CREATED: ("inkless_tiering_segments_created", "Segments made of split files"),
    Total.FAILURES: ("inkless_tiering_failures", "Failed attempts of split and merge"),
}
LATENCIES = {
    Total.SPLIT_LATENCY: ("inkless_tiering_split_latency_seconds", "Splitting one WAL file"),
    Total.MERGE_LATENCY: ("inkless_tiering_merge_latency_seconds", "Merging one segment"),
}


class TieringTotals(Collector):
    """Counters and histograms that the jobs have added up."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._totals: Mapping[str, int] = {}
        registry.register(self)

    def update(self, totals: Mapping[str, int]) -> None:
        """Replace every value."""
        self._totals = dict(totals)

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape."""
        for total, (name, text) in COUNTERS.items():
            yield CounterMetricFamily(name, text, value=self._totals.get(total, 0))
        for total, (name, text) in LATENCIES.items():
            buckets, seconds = histogram(total, self._totals)
            yield HistogramMetricFamily(name, text, buckets=buckets, sum_value=seconds)


class TieringGauges:
    """``inkless.tiering.*`` and ``inkless.tiered.high.offset``, with dots as underscores."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def by_topic(name: str, text: str) -> Gauge:
            return Gauge(name, text, ["topic"], registry=registry)

        self._pending_split = by_topic(
            "inkless_tiering_batches_pending_split", "Batches that wait to be split"
        )
        self._pending_merge = by_topic(
            "inkless_tiering_batches_pending_merge", "Split batches that wait to be merged"
        )
        self._eligible = by_topic(
            "inkless_tiering_eligible_bytes",
            "Bytes that may be split: older than local.retention.ms, or requested",
        )
        self._lag = by_topic(
            "inkless_tiering_lag_bytes", "Bytes of the suffix that are not merged yet"
        )
        self._parked = by_topic(
            "inkless_tiering_parked_partitions", "Partitions with something parked"
        )
        self._paused = by_topic("inkless_tiering_paused", "1 while tiering is paused")
        self._high_offset = Gauge(
            "inkless_tiered_high_offset",
            "Last offset (inclusive) in tiered storage",
            ["topic", "partition"],
            registry=registry,
        )

    def update(self, rows: Iterable[TieringStatusRow]) -> None:
        """Replace every value."""
        sums = (
            (self._pending_split, lambda row: row.pending_batches),
            (self._pending_merge, lambda row: row.pending_split_batches),
            (self._eligible, lambda row: row.eligible_bytes),
            (self._lag, lambda row: row.pending_bytes),
            (self._parked, lambda row: int(row.parked)),
        )
        topics: dict[str, list[TieringStatusRow]] = defaultdict(list)
        for row in rows:
            topics[row.topic].append(row)
        for gauge in (*(gauge for gauge, _ in sums), self._paused, self._high_offset):
            gauge.clear()
        for topic, partitions in topics.items():
            for gauge, value in sums:
                gauge.labels(topic).set(sum(value(row) for row in partitions))
            self._paused.labels(topic).set(partitions[0].paused)
            for row in partitions:
                if row.tiered_high_offset >= 0:
                    high = self._high_offset.labels(topic, str(row.partition))
                    high.set(row.tiered_high_offset)


async def keep_tiering_updated(
    gauges: TieringGauges, totals: TieringTotals, settings: WorkerSettings
) -> None:
    """Update now and then until cancelled; keep the last values while a store is away."""
    log = structlog.get_logger()
    plane = JobsControlPlane(settings, "tideline-worker-tiering")

    def observe() -> tuple[Mapping[str, int], list[TieringStatusRow]]:
        counted = plane.tiering_totals()
        rules = read_tiering_policies(settings, suffix_topics(plane))
        return counted, plane.tiering_status(cutoffs=rules.cutoffs(time.time_ns() // 1_000_000))

    try:
        while True:
            try:
                counted, rows = await asyncio.to_thread(observe)
                totals.update(counted)
                gauges.update(rows)
            except TidelineError as error:
                log.warning("tiering metrics are stale", reason=str(error))
            await asyncio.sleep(INTERVAL_S)
    finally:
        plane.close()
