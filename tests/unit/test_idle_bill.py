"""The table of docs/performance.md, "Idle installation", as the loops' pauses make it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tideline.control_plane import pool
from tideline.gateway.tracking import sync
from tideline.settings import GatewaySettings, WorkerSettings
from tideline.worker import (
    attendance,
    gateway_metrics,
    health,
    history,
    identity,
    metrics,
    replicas,
    reports,
    requests,
    watches,
)


def default(settings: type[GatewaySettings] | type[WorkerSettings], name: str) -> float:
    """Seconds."""
    return float(settings.model_fields[name].default) / 1000


TURN_S = default(GatewaySettings, "gateway_lease_ms") / 3
ROWS = {
    # what asks: statements of one turn, seconds between two turns
    "gateway: high watermarks": (1, default(GatewaySettings, "suffix_quiet_poll_ms")),
    "gateway: lease": (1, TURN_S),
    "gateway: who else lives": (0, TURN_S),
    "gateway: what is tracked": (1, sync.POLL_S),
    "gateway: listening": (1, pool.HEARTBEAT_S),
    "worker: reports": (2, reports.QUIET_S),
    "worker: history": (3, history.EVERY_S),
    "worker: standbys": (2, default(WorkerSettings, "history_position_ms")),
    "worker: position": (1, default(WorkerSettings, "history_position_ms")),
    "worker: requests": (1, requests.POLL_S),
    "worker: started requests": (1, requests.FOLLOW_EVERY_S),
    "worker: gauges of migrations": (1, metrics.MIGRATION_EVERY_S),
    "worker: gauges of coverage": (1, metrics.COVERAGE_EVERY_S),
    "worker: gauges of tiering": (5, metrics.TIERING_EVERY_S),
    "worker: gauges of the collection": (3, metrics.GC_EVERY_S),
    "worker: gauges of gateways": (1, gateway_metrics.EVERY_S),
    "worker: watches": (2, watches.LOOK_EVERY_S),
    "worker: attendance": (2, attendance.LOOK_EVERY_S),
    "worker: topic ids": (1, identity.EVERY_S),
    "worker: replicas": (2, replicas.LOOK_EVERY_S),
    "worker: readiness": (4, health.LOOK_EVERY_S),
    "worker: two that listen": (2, pool.HEARTBEAT_S),
}
GATEWAYS = 3
CELL = re.compile(r"^\| ([^|]+) \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)


def table() -> dict[str, tuple[int, int]]:
    text = (Path(__file__).parents[2] / "docs/performance.md").read_text()
    part = text[text.index("\n## Idle installation\n") :]
    part = part[: part.find("\n## ", 1) if part.find("\n## ", 1) > 0 else None]
    return {
        name: (int(before.replace(",", "")), int(now.replace(",", "")))
        for name, before, now in CELL.findall(part)
    }


@pytest.mark.parametrize("name", ROWS)
def test_a_row_says_what_its_loop_asks_in_a_minute(name: str) -> None:
    statements, pause_s = ROWS[name]
    assert table()[name][1] == round(statements * 60 / pause_s)


def test_the_whole_is_a_tenth_of_what_it_was_at_most() -> None:
    before, now = table()["three gateways, one worker"]
    assert now * 10 <= before


@pytest.mark.parametrize("column", [0, 1])
def test_the_last_row_is_the_sum_of_three_gateways_and_a_worker(column: int) -> None:
    rows = table()
    whole = rows.pop("three gateways, one worker")[column]
    assert set(rows) == set(ROWS)
    assert whole == sum(
        cells[column] * (GATEWAYS if name.startswith("gateway") else 1)
        for name, cells in rows.items()
    )
