"""What a look at all migrations costs: `python -m benchmarks.looks --topics 1000 --partitions 10`.

A Postgres of its own with generated rows of hybrid topics. Between two looks one phase of some
partitions moves, each of another topic, and as many get a commit's high watermark. Read by turns:
what has changed since the last look, by the worker's gauges and by `tideline status --watch`; then,
in as many rounds, everything. The workflows, of which the latter asks for what runs, are not there.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import io
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg
from prometheus_client import CollectorRegistry
from rich.console import Console

from benchmarks.throwaway import throwaway
from tideline.cli.status import on_screen, overview_tables
from tideline.control_plane import ControlPlane, connect
from tideline.control_plane.migrate import apply
from tideline.control_plane.model import MigrationChanges, RequestState
from tideline.demo.run import machine
from tideline.domain.migration import MigrationState
from tideline.migration.overview import KeptStatuses, Overview, TopicRow, by_topic, topic_row
from tideline.settings import ControlPlaneSettings
from tideline.worker.metrics import MigrationGauges

EVIDENCE = 64
"""Digests of 32 characters: 2 kB a phase, which nothing compresses."""
LINES = 50
FILL = """
INSERT INTO topics (name, topic_id, kind, status, timestamp_type, max_message_bytes)
    SELECT 'topic-' || lpad(t::text, 6, '0'), gen_random_uuid(), 'migrated', 'active',
           'CreateTime', 1048588
    FROM generate_series(1, {topics}) AS t;
INSERT INTO logs (topic_id, partition, topic_name, migration_state, log_start_offset,
        suffix_start, high_watermark, diskless_log_start_offset, diskless_log_start_epoch,
        generation)
    SELECT topic_id, p, name, 'HYBRID', 0, 1000, 2000, 1000, 3, 1
    FROM topics, generate_series(0, {partitions} - 1) AS p;
INSERT INTO migration_phases (log_id, phase, status, generation, ended_at, evidence)
    SELECT log_id, phase, 'done', 1, clock_timestamp(), jsonb_build_object('seen',
        (SELECT string_agg(md5(random()::text || log_id || phase || n), '')
            FROM generate_series(1, {evidence}) AS n))
    FROM logs, unnest(ARRAY['validate', 'drain_transactions', 'quiesce', 'roll_and_flush',
        'seed_and_persist', 'zombie_cleanup', 'readiness']) AS phase;
INSERT INTO migration_requests (topic_id, topic, requested_by, options, taken_at, state)
    SELECT topic_id, name, 'User:bench', '{{}}', clock_timestamp(),
           CASE WHEN name > 'topic-' || lpad(({topics} - {changing})::text, 6, '0')
                THEN 'started' ELSE 'done' END
    FROM topics;
UPDATE logs SET migration_state = 'MIGRATING', diskless_log_start_offset = -1,
        diskless_log_start_epoch = -1, suffix_start = -1, high_watermark = -1
    WHERE topic_name IN (SELECT topic FROM migration_requests WHERE state = 'started');
"""
CHANGE = """
WITH moved AS (
    UPDATE migration_phases AS m SET status = 'done', ended_at = clock_timestamp()
    FROM logs AS l
    WHERE m.log_id = l.log_id AND m.phase = 'readiness' AND l.partition = 0
        AND l.topic_name = ANY (%(phases)s)
)
UPDATE logs SET high_watermark = high_watermark + 10
    WHERE partition = 1 AND topic_name = ANY (%(commits)s)
"""


@dataclass
class Way:
    """Of each look: rows that came, ms until they were read, ms from then until they were shown,
    and ms of CPU that the asking process took for both."""

    rows: list[int] = field(default_factory=list)
    read_ms: list[float] = field(default_factory=list)
    shown_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    async def look(
        self, read: Callable[[], Awaitable[tuple[int, Any]]], show: Callable[[Any], object]
    ) -> None:
        gc.collect()  # What other ways have left is not this one's.
        cpu, began = time.process_time(), time.perf_counter()
        rows, found = await read()
        then = time.perf_counter()
        show(found)
        self.rows.append(rows)
        self.read_ms.append((then - began) * 1000)
        self.shown_ms.append((time.perf_counter() - then) * 1000)
        self.cpu_ms.append((time.process_time() - cpu) * 1000)


class Gauges:
    """The worker's."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._gauges = MigrationGauges(CollectorRegistry())
        self._since: str | None = None

    async def everything(self) -> tuple[int, MigrationChanges]:
        found = await self._plane.migration_summary()
        return len(found), MigrationChanges("", True, topics=tuple(found))

    async def changes(self) -> tuple[int, MigrationChanges]:
        found = await self._plane.migration_changes(self._since)
        self._since = found.upto
        return 1 + len(found.names) + len(found.topics), found

    def show(self, found: MigrationChanges) -> None:
        self._gauges.update(found)


class Listing:
    """`tideline status --state MIGRATING`, and requests whose migrations run as the worker's
    dispatcher follows them."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def by_state_of_all(self) -> tuple[int, list[str]]:
        found = await self._plane.migration_summary()
        return len(found), [s.topic for s in found if s.state is MigrationState.MIGRATING]

    async def by_state(self) -> tuple[int, list[str]]:
        found = await self._plane.topic_states(MigrationState.MIGRATING)
        return len(found), [one.topic for one in found]

    async def requests_of_all(self) -> tuple[int, list[str]]:
        found = await self._plane.list_requests()
        return len(found), [r.topic for r in found if r.state is RequestState.STARTED]

    async def requests(self) -> tuple[int, list[str]]:
        found = await self._plane.started_requests()
        return len(found), [r.topic for r in found]


class Watch:
    """An operator's terminal."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane, self._kept = plane, KeptStatuses(plane)
        self._rows: dict[str, TopicRow] = {}
        self._terminal = Console(file=io.StringIO(), width=160, height=LINES)

    async def everything(self) -> tuple[int, list[TopicRow]]:
        found = await self._plane.migration_status()
        rows = [topic_row(statuses, None, name, None) for name, statuses in by_topic(found).items()]
        return len(found), rows

    async def changes(self) -> tuple[int, list[TopicRow]]:
        changed = await self._kept.look()
        for name in changed:
            self._rows[name] = topic_row(self._kept.topics[name], None, name, None)
        return sum(len(self._kept.topics[name]) for name in changed), [
            self._rows[name] for name in sorted(self._rows)
        ]

    def lay_out(self, rows: list[TopicRow]) -> None:
        self._terminal.render_lines(overview_tables(Overview(rows)))

    def lay_out_screen(self, rows: list[TopicRow]) -> None:
        self._terminal.render_lines(overview_tables(on_screen(Overview(rows), LINES)))


async def measure(
    dsn: str, topics: int, changing: int, rounds: int, laid_out: int
) -> dict[str, Way]:
    """The last ``laid_out`` rounds lay everything out, which takes long."""
    ways: dict[str, Way] = defaultdict(Way)
    async with AsyncExitStack() as stack:
        settings = ControlPlaneSettings.model_validate({"postgres_dsn": dsn})
        plane = await stack.enter_async_context(connect(settings, application_name="looks"))
        writer = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        writer.execute("SET search_path = tideline")
        names = [f"topic-{number + 1:06}" for number in range(topics)]
        gauges, watch = Gauges(plane), Watch(plane)
        await gauges.changes()
        await watch.changes()
        for number in range(rounds):
            first = number * 2 * changing
            some = [names[(first + n) % topics] for n in range(2 * changing)]
            writer.execute(CHANGE, {"phases": some[:changing], "commits": some[changing:]})
            await ways["gauges, what changed"].look(gauges.changes, gauges.show)
            await ways["status --watch, what changed"].look(watch.changes, watch.lay_out_screen)
        listing, shown = Listing(plane), list
        for _ in range(rounds):
            await ways["status --state, what is in it"].look(listing.by_state, shown)
            await ways["status --state, everything"].look(listing.by_state_of_all, shown)
            await ways["dispatcher, what runs"].look(listing.requests, shown)
            await ways["dispatcher, everything"].look(listing.requests_of_all, shown)
        for number in range(rounds):
            await ways["gauges, everything"].look(gauges.everything, gauges.show)
            whole = watch.lay_out if number >= rounds - laid_out else lambda _: None
            await ways["status --watch, everything"].look(watch.everything, whole)
        del ways["status --watch, everything"].shown_ms[: rounds - laid_out]
        del ways["status --watch, everything"].cpu_ms[: rounds - laid_out]
    return dict(ways)


def to_markdown(ways: dict[str, Way], topics: int, partitions: int, changing: int) -> str:
    lines = [
        f"{topics} topics of {partitions} partitions; between two looks a phase of {changing} "
        f"partitions moves, and {changing} high watermarks. Machine: {machine()}, load average "
        f"{os.getloadavg()[0]:.1f}.",
        "",
        "| look | rows | read, ms | shown, ms | CPU of the process, ms |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, way in ways.items():
        rows = f"{statistics.median(way.rows):,.0f}"
        spreads = " | ".join(map(_spread, (way.read_ms, way.shown_ms, way.cpu_ms)))
        lines.append(f"| {name} | {rows} | {spreads} |")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.1f} ({min(values):,.1f} to {max(values):,.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--changing", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--laid-out", type=int, default=3, help="rounds that show everything")
    asked = parser.parse_args()
    with throwaway({"shared_buffers": "1GB"}) as server:
        server.start(fsync="off")
        apply(server.dsn)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("SET search_path = tideline")
            # No triggers: one transaction with all topics is nothing that happens.
            connection.execute("SET session_replication_role = replica")
            filling = FILL.format(
                topics=asked.topics,
                partitions=asked.partitions,
                evidence=EVIDENCE,
                changing=asked.changing,
            )
            connection.execute(filling.encode())
            connection.execute("VACUUM ANALYZE")
        found = asyncio.run(
            measure(server.dsn, asked.topics, asked.changing, asked.rounds, asked.laid_out)
        )
    print(to_markdown(found, asked.topics, asked.partitions, asked.changing))


if __name__ == "__main__":
    main()
