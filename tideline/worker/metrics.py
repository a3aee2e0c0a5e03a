"""Metrics of migrations, coverage and tiering under the seeds' names (002 §4.8.1), from what
Postgres knows.

Dots of the names are underscores. The jobs live only as long as their runs: what they have counted
stands in Postgres, and the worker, which is always there, exports it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from uuid import UUID

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tideline.control_plane import ControlPlane
from tideline.control_plane.garbage_model import GcRunRow
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.model import MigrationChanges, TopicMigrationSummary
from tideline.control_plane.table_model import VerifyVerdict
from tideline.control_plane.tiering_model import (
    CoverageStatusRow,
    OldestUnsplit,
    TieringStatusRow,
)
from tideline.domain.migration import PHASES, MigrationState
from tideline.domain.tiering import TieringConfig
from tideline.domain.tiering_totals import Total, histogram
from tideline.errors import TidelineError
from tideline.kafka.client import KafkaCluster
from tideline.kafka.topic_policies import TieringPolicies, read_tiering_policies, suffix_topics
from tideline.migration.by_state import tiered_topics
from tideline.settings import WorkerSettings
from tideline.worker.job_metrics import JobGauges

UPDATED = Gauge(
    "inkless_worker_gauges_updated_timestamp_seconds",
    "When the worker last read from Postgres and Kafka what these gauges show",
    ["gauges"],
)
MIGRATION_EVERY_S = 5.0
TIERED_EVERY_S = 60.0
"""It asks every broker for a config of every topic of the cluster."""
COVERAGE_EVERY_S = 15.0
TIERING_EVERY_S = 30.0
"""It asks Kafka for every topic's configs and Postgres for the oldest batch of every partition."""
COUNTING_RESTS = 9
"""Counting the batches of every partition takes longer the more there are: it rests so many times
as long as it took. What tells that there are too many does not count them."""

GC_EVERY_S = 60.0
GC_RUNS = 100
"""Newest runs among which the last one that was done is looked for."""


async def keep_migration_metrics(plane: ControlPlane, gauges: MigrationGauges) -> None:
    """Until cancelled."""
    since: str | None = None

    async def update() -> None:
        nonlocal since
        changes = await plane.migration_changes(since)
        await asyncio.to_thread(gauges.update, changes)
        since = changes.upto

    await _keep_updated("migration gauges", MIGRATION_EVERY_S, update)


async def keep_tiered_topics(
    gauges: MigrationGauges, cluster: KafkaCluster, timeout_ms: int
) -> None:
    """Until cancelled: Postgres knows nothing of a topic that was never to migrate."""

    async def update() -> None:
        gauges.update_tiered(await tiered_topics(cluster, timeout_ms))

    await _keep_updated("tiered topics", TIERED_EVERY_S, update)


async def keep_coverage_metrics(settings: WorkerSettings) -> None:
    """Until cancelled."""
    gauges = CoverageGauges()
    with closing(JobsControlPlane(settings, "tideline-worker-coverage")) as plane:

        async def update() -> None:
            await asyncio.to_thread(lambda: gauges.update(plane.coverage_status(), _now_ms()))

        await _keep_updated("coverage gauges", COVERAGE_EVERY_S, update)


async def keep_tiering_metrics(settings: WorkerSettings) -> None:
    """Until cancelled."""
    gauges, lag, totals = TieringGauges(), TieringLagGauges(), TieringTotals()
    with closing(JobsControlPlane(settings, "tideline-worker-tiering")) as plane:
        counting = Rested(COUNTING_RESTS)

        def observe_lag() -> TieringPolicies:
            now = _now_ms()
            rules = read_tiering_policies(settings, suffix_topics(plane))
            oldest = plane.oldest_unsplit(rules.cutoffs(now))
            lag.update(rules.configs, oldest, plane.estimate_batch_rows(), now)
            totals.update(plane.tiering_totals())
            return rules

        def count(rules: TieringPolicies) -> None:
            with counting.work():
                gauges.update(plane.tiering_status(cutoffs=rules.cutoffs(_now_ms())))

        async def update() -> None:
            rules = await asyncio.to_thread(observe_lag)
            if counting.due:
                await asyncio.to_thread(count, rules)

        await _keep_updated("tiering metrics", TIERING_EVERY_S, update)


async def keep_gc_metrics(settings: WorkerSettings) -> None:
    """Until cancelled."""
    gauges, jobs, verdicts = GcGauges(), JobGauges(), VerifyGauges()
    with closing(JobsControlPlane(settings, "tideline-worker-gc")) as plane:

        def observe() -> None:
            gauges.update(plane.gc_runs(GC_RUNS))
            jobs.update(plane.known_jobs())
            verdicts.update(plane.verify_verdicts())

        async def update() -> None:
            await asyncio.to_thread(observe)

        await _keep_updated("gauges of the collection", GC_EVERY_S, update)


class Rested:
    """Work that is due again when it has rested ``times`` as long as it took, failed or not."""

    def __init__(self, times: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._times, self._clock = times, clock
        self._due_at = clock()

    @property
    def due(self) -> bool:
        return self._clock() >= self._due_at

    @contextmanager
    def work(self) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            self._due_at = ended + self._times * (ended - began)


async def _keep_updated(what: str, every_s: float, update: Callable[[], Awaitable[None]]) -> None:
    """The last values stay while a store is away."""
    log = structlog.get_logger()
    UPDATED.labels(what).set(time.time())
    while True:
        try:
            await update()
            UPDATED.labels(what).set(time.time())
        except TidelineError as error:
            log.warning(f"{what} are stale", reason=str(error))
        await asyncio.sleep(every_s)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class MigrationGauges:
    """``inkless.migration.*``, with dots as underscores."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._states = Gauge(
            "inkless_migration_topics_state",
            "Topics by the least advanced state of their partitions; TIERED_ONLY: with tiered "
            "storage and not migrating, and those whose migration was aborted",
            ["state"],
            registry=registry,
        )
        self._progress = Gauge(
            "inkless_migration_topic_progress",
            "Phases that are done, over all partitions, in percent",
            ["topic"],
            registry=registry,
        )
        self._waiting = Gauge(
            "inkless_migration_partitions_waiting",
            "Partitions whose current phase waits, by phase",
            ["topic", "phase"],
            registry=registry,
        )
        self._since = Gauge(
            "inkless_migration_phase_since_timestamp_seconds",
            "When the partition that has been in this phase for longest entered it, where one is",
            ["topic", "phase"],
            registry=registry,
        )
        self._boundary = Gauge(
            "inkless_migration_boundary",
            "B0: the first offset of the suffix, which never moves",
            ["topic", "partition"],
            registry=registry,
        )
        self._tiered: frozenset[str] | None = None
        """Kafka's topics with tiered storage, tracked or not; ``None``: it was not asked yet."""
        self._shown: dict[str, TopicMigrationSummary] = {}
        self._counts: Counter[MigrationState] = Counter()

    def update(self, changes: MigrationChanges) -> None:
        """Only what has changed is touched: series are many."""
        now = {topic.topic: topic for topic in changes.topics}
        for name in {*(self._shown if changes.whole else changes.names), *now}:
            before, after = self._shown.pop(name, None), now.get(name)
            old = {} if before is None else self._series(before)
            new = {} if after is None else self._series(after)
            for gauge, labels in old.keys() - new.keys():
                gauge.remove(*labels)
            for (gauge, labels), value in new.items():
                if old.get((gauge, labels)) != value:
                    gauge.labels(*labels).set(value)
            if before is not None:
                self._counts[before.state] -= 1
            if after is not None:
                self._counts[after.state] += 1
                self._shown[name] = after
        self._show_states()

    def update_tiered(self, topics: Iterable[str]) -> None:
        """``topics``: all of Kafka's that have tiered storage."""
        self._tiered = frozenset(topics)
        self._show_states()

    def _show_states(self) -> None:
        for state in MigrationState:
            if state is not MigrationState.TIERED_ONLY:
                self._states.labels(state).set(self._counts[state])
            elif self._tiered is not None:
                alone = len(self._tiered - self._shown.keys())
                self._states.labels(state).set(self._counts[state] + alone)

    def _series(self, topic: TopicMigrationSummary) -> dict[tuple[Gauge, tuple[str, ...]], float]:
        name, to_do = topic.topic, len(PHASES) * topic.partitions
        series: dict[tuple[Gauge, tuple[str, ...]], float] = {
            (self._progress, (name,)): 100.0 * topic.phases_done / to_do
        }
        for gauge, values in (
            (self._waiting, topic.waiting),
            (self._since, topic.since_s),
            (self._boundary, topic.boundaries),
        ):
            series |= {(gauge, (name, of)): float(value) for of, value in values.items()}
        return series


class VerifyGauges:
    """What verification found of each topic that was looked at."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._verified = Gauge(
            "inkless_verify_last_verdict_timestamp_seconds",
            "When the topic in object storage was last compared with what gateways serve",
            ["topic"],
            registry=registry,
        )
        self._differences = Gauge(
            "inkless_verify_differences",
            "Differences that the last comparison has found, in its sample",
            ["topic"],
            registry=registry,
        )

    def update(self, verdicts: Iterable[VerifyVerdict]) -> None:
        self._verified.clear()
        self._differences.clear()
        for one in verdicts:
            self._verified.labels(one.topic).set(one.verified_at.timestamp())
            self._differences.labels(one.topic).set(one.differences)


class GcGauges:
    """``inkless_gc_*``, from the newest runs of the collection."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=registry)

        self._done = gauge(
            "inkless_gc_last_done_timestamp_seconds", "When the last run was done; 0: never"
        )
        self._held = gauge(
            "inkless_gc_held_objects",
            "Objects that the newest run was held for and nobody has allowed; 0: it was not held",
        )
        self._deleted = gauge(
            "inkless_gc_deleted_objects", "Objects that the last run that was done has deleted"
        )
        self._orphans = gauge(
            "inkless_gc_orphans", "Objects that are reported as orphans, young reports included"
        )

    def update(self, newest_first: Sequence[GcRunRow]) -> None:
        judged = [row for row in newest_first if row.state != "running"]
        done = next((row for row in judged if row.state == "done"), None)
        held = bool(judged) and judged[0].state == "held" and judged[0].allowed_by is None
        self._held.set(judged[0].due_objects if held else 0)
        self._done.set((done.ended_ms or 0) / 1000 if done else 0)
        self._deleted.set(done.deleted_objects if done else 0)
        self._orphans.set(newest_first[0].orphans if newest_first else 0)


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
        counts: Counter[bool | None] = Counter()
        observed = []
        self._missing.clear()
        self._age.clear()
        for row in rows:
            counts[row.complete] += 1
            if row.observed_at is not None:
                observed.append(row.observed_at)
            if row.complete is False:
                missing = row.detail.get("missing_offsets", 0)
                self._missing.labels(row.topic, str(row.partition)).set(missing)
        for verdict, name in VERDICTS.items():
            self._partitions.labels(name).set(counts[verdict])
        if observed:
            self._age.labels("newest").set((now_ms - max(observed)) / 1000)
            self._age.labels("oldest").set((now_ms - min(observed)) / 1000)


COUNTERS = {
    Total.BATCHES_SPLIT: ("inkless_tiering_batches_split", "Batches split out of WAL files"),
    Total.BATCHES_MERGED: (
        "inkless_tiering_batches_merged",
        "Batches merged into segments: rows that left Postgres",
    ),
    Total.SEGMENTS_CREATED: ("inkless_tiering_segments_created", "Segments made of recorded runs"),
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
        self._totals = dict(totals)

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape."""
        for total, (name, text) in COUNTERS.items():
            yield CounterMetricFamily(name, text, value=self._totals.get(total, 0))
        for total, (name, text) in LATENCIES.items():
            buckets, seconds = histogram(total, self._totals)
            yield HistogramMetricFamily(name, text, buckets=buckets, sum_value=seconds)


class TieringLagGauges:
    """Whether tiering keeps up, of figures that cost the same however many batches there are."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._overdue = Gauge(
            "inkless_tiering_overdue_seconds",
            "For how long the oldest batch that is not split could have been; 0: none could",
            ["topic"],
            registry=registry,
        )
        self._rows = Gauge(
            "inkless_tiering_batch_rows",
            "Batches with a row in Postgres, as its statistics have it",
            registry=registry,
        )

    def update(
        self,
        configs: Mapping[UUID, TieringConfig],
        oldest: Iterable[OldestUnsplit],
        rows: int,
        now_ms: int,
    ) -> None:
        overdue: dict[str, int] = {}
        for row in oldest:
            late = configs[row.topic_id].overdue_ms(row.max_timestamp, row.append_time, now_ms)
            overdue[row.topic] = max(overdue.get(row.topic, 0), late)
        self._overdue.clear()
        for topic, late in overdue.items():
            self._overdue.labels(topic).set(late / 1000)
        self._rows.set(rows)


class TieringGauges:
    """``inkless.tiering.*`` and the offsets that tiering moves (``inkless.tiered.high.offset``,
    ``inkless.diskless.start.offset``), with dots as underscores."""

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
        self._diskless_start = Gauge(
            "inkless_diskless_start_offset",
            "First offset that only WAL objects hold: the suffix's start, and the end of what is "
            "merged once there is something",
            ["topic", "partition"],
            registry=registry,
        )
        self._high_offset = Gauge(
            "inkless_tiered_high_offset",
            "Last offset (inclusive) that tiered storage holds, with all before it; of a prefix "
            "that is not ready, as the last coverage run found it",
            ["topic", "partition"],
            registry=registry,
        )

    def update(self, rows: Iterable[TieringStatusRow]) -> None:
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
        offsets = (self._diskless_start, self._high_offset)
        for gauge in (*(gauge for gauge, _ in sums), self._paused, *offsets):
            gauge.clear()
        for topic, partitions in topics.items():
            for gauge, value in sums:
                gauge.labels(topic).set(sum(value(row) for row in partitions))
            self._paused.labels(topic).set(partitions[0].paused)
            for row in partitions:
                start = self._diskless_start.labels(topic, str(row.partition))
                start.set(row.diskless_start_offset)
                if row.tiered_high_offset >= 0:
                    high = self._high_offset.labels(topic, str(row.partition))
                    high.set(row.tiered_high_offset)
