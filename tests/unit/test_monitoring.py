"""The dashboard and the alerts ask only for what gateways and workers export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from tideline.cli.runs import HANGS_MS
from tideline.control_plane.job_model import VERIFY, JobRow
from tideline.control_plane.model import RequestState
from tideline.domain.migration import MigrationState, Phase
from tideline.domain.request_handling import RouteKind
from tideline.gateway import metrics
from tideline.worker.attendance import AttendanceGauges
from tideline.worker.gateway_metrics import GatewayGauges
from tideline.worker.identity import IdentityMetrics
from tideline.worker.job_metrics import JobGauges
from tideline.worker.metrics import (
    VERDICTS,
    CoverageGauges,
    GcGauges,
    MigrationGauges,
    TieringGauges,
    TieringLagGauges,
    TieringTotals,
    VerifyGauges,
)
from tideline.worker.replicas import ReplicaGauges
from tideline.worker.watches import WatchGauges
from workflows.topic_state import Stage

DASHBOARD = Path("infra/dashboards/tideline.json")
ALERTS = Path("infra/alerts/tideline.rules.yml")
DOCUMENTS = (DASHBOARD, ALERTS)
OURS = ("inkless_", "kafka_controller_diskless_", "kafka_server_diskless_")
SEEDS = (
    "inkless.migration.topics.state",
    "inkless.migration.topic.progress",
    "inkless.hybrid.tiered.reads",
    "inkless.hybrid.local.reads",
    "inkless.hybrid.diskless.reads",
    "inkless.tiering.batches.split",
    "inkless.tiering.segments.created",
    "inkless.tiering.batches.pending.split",
    "inkless.tiering.batches.pending.merge",
    "inkless.tiering.eligible.bytes",
    "inkless.tiering.split.latency",
    "inkless.tiering.merge.latency",
    "inkless.tiered.high.offset",
    "inkless.diskless.start.offset",
    "inkless.tiering.lag.bytes",
    "kafka.controller.diskless.effective_rf",
    "kafka.controller.diskless.rack_aware",
    "kafka.controller.diskless.rf1_topics_total",
    "kafka.server.diskless.transformer.fallback_total",
    "kafka.server.diskless.transformer.offline_replicas_routed_around",
)
"""The metrics of seeds 002 (4.8.1) and 003 ("Observability")."""
OF_TEMPORAL = (
    "temporal_workflow_task_execution_failed_total",
    "temporal_activity_schedule_to_start_latency_seconds_bucket",
    "temporal_workflow_task_schedule_to_start_latency_seconds_bucket",
    "temporal_worker_task_slots_available",
)
"""Series of the core of Temporal's SDK."""
OF_PROMETHEUS = {"", "_total", "_seconds_bucket"}
"""What Prometheus' conventions add to a name, by the kind of metric."""
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}


def exported() -> set[str]:
    """Every series name under which Prometheus scrapes our metrics."""
    assert metrics.__name__
    worker = CollectorRegistry()
    MigrationGauges(worker)
    CoverageGauges(worker)
    GcGauges(worker)
    JobGauges(worker).update([])
    VerifyGauges(worker)
    TieringGauges(worker)
    TieringLagGauges(worker)
    TieringTotals(worker)
    IdentityMetrics(worker)
    WatchGauges(worker)
    GatewayGauges(worker)
    AttendanceGauges(worker)
    ReplicaGauges(worker)
    return {
        metric.name + suffix
        for registry in (REGISTRY, worker)
        for metric in registry.collect()
        if metric.name.startswith(OURS)
        for suffix in SUFFIXES[metric.type]
    }


def named(document: Path) -> set[str]:
    return set(re.findall(rf"\b(?:{'|'.join(OURS)})[a-z0-9_]+", document.read_text()))


def alerts() -> Iterator[str]:
    return iter(re.split(r"\n\s+- alert: ", ALERTS.read_text())[1:])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_metric_that_is_asked_for_is_exported(document: Path) -> None:
    assert named(document), "nothing is asked for"
    assert named(document) - exported() == set()


def test_metrics_of_the_seeds_have_the_seeds_names() -> None:
    names = exported()
    for seed in SEEDS:
        name = seed.replace(".", "_")
        assert {name + ending for ending in OF_PROMETHEUS} & names, seed


def test_every_metric_is_shown() -> None:
    shown = named(DASHBOARD)
    hidden = {
        name for name in exported() if name not in shown and not name.endswith(("_sum", "_count"))
    }
    assert hidden == set()


def test_what_is_asked_of_temporals_sdk_is_an_alert_and_a_panel() -> None:
    """A contract test asks a worker's page for each of them."""
    asked = [set(re.findall(r"\btemporal_[a-z_]+", d.read_text())) for d in DOCUMENTS]
    assert asked == [set(OF_TEMPORAL)] * 2


def test_labels_have_values_that_exist() -> None:
    text = ALERTS.read_text()
    assert set(re.findall(r'route="(\w+)"', text)) <= {kind.value for kind in RouteKind}
    assert set(re.findall(r'verdict="(\w+)"', text)) <= set(VERDICTS.values())
    assert set(re.findall(r'phase!?="(\w+)"', text)) <= {phase.value for phase in Phase}
    [stages] = re.findall(r'stage!~"([\w|]+)"', text)
    assert set(stages.split("|")) <= {stage.value for stage in Stage}
    states = "|".join(re.findall(r'state=~?"([a-z_|]+)"', text)).split("|")
    assert set(states) <= {state.value for state in RequestState}


def test_every_alert_says_how_bad_it_is_what_it_is_and_what_to_do() -> None:
    names = []
    for alert in alerts():
        names.append(alert.split("\n", 1)[0])
        for key in ("expr:", "severity:", "summary:", "remedy:"):
            assert key in alert, f"{names[-1]} lacks {key}"
    assert len(names) == len(set(names))


def test_the_panels_of_the_dashboard_are_distinct_and_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))


def test_a_job_that_never_runs_is_an_alert_once_there_is_a_topic_that_needs_it() -> None:
    (alert,) = (a for a in alerts() if a.startswith("TidelineJobDoesNotSucceed\n"))
    registry = CollectorRegistry()
    JobGauges(registry).update([job_row("gc", succeeded_ms=5_000)])
    found = of_jobs(registry, "inkless_job_last_success_timestamp_seconds")
    assert found == {"coverage": 0, "gc": 5, "merge": 0, "retention": 0, "split": 0, "verify": 0}
    assert f'(inkless_job_last_success_timestamp_seconds{{job!="{VERIFY}"}}) > 6 * 3600' in alert
    (states,) = re.findall(r'inkless_migration_topics_state\{state=~"([A-Z_|]+)"\}', alert)
    assert set(states.split("|")) == {MigrationState.HYBRID, MigrationState.DISKLESS_ONLY}


def test_a_topic_with_a_boundary_that_was_never_verified_is_an_alert_of_its_own() -> None:
    (never,) = (a for a in alerts() if a.startswith("TidelineNeverVerified\n"))
    registry = CollectorRegistry()
    MigrationGauges(registry), VerifyGauges(registry)
    known = {metric.name for metric in registry.collect()}
    with_one, without = re.findall(r"max by \(topic\) \((\w+)\)", never)
    assert {with_one, without} <= known
    assert "unless on (topic)" in never


def job_row(job: str, **ms: int | None) -> JobRow:
    known = {"began_ms": 1_000, "ended_ms": 6_000, "succeeded_ms": None, "failed_ms": None} | ms
    unknown = {"records_overdue_ms": None, "records_lost": 0}
    return JobRow(job, UUID(int=1), **unknown | known, error=None, now_ms=65_000)


def of_jobs(registry: CollectorRegistry, name: str) -> dict[str, float]:
    return {
        sample.labels["job"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == name
    }


def test_a_job_that_fails_and_one_that_does_not_end_are_told_apart() -> None:
    registry = CollectorRegistry()
    gauges = JobGauges(registry)
    gauges.update(
        [
            job_row("gc", succeeded_ms=5_000, failed_ms=6_000),
            job_row("merge", ended_ms=None, succeeded_ms=5_000),
        ]
    )
    failed = of_jobs(registry, "inkless_job_last_failure_timestamp_seconds")
    succeeded = of_jobs(registry, "inkless_job_last_success_timestamp_seconds")
    assert [job for job in failed if failed[job] > succeeded[job]] == ["gc"]
    unfinished = of_jobs(registry, "inkless_job_unfinished_seconds")
    assert {job for job, seconds in unfinished.items() if seconds} == {"merge"}
    assert unfinished["merge"] == 64
    assert of_jobs(registry, "inkless_job_last_success_age_seconds") == {"gc": 60, "merge": 60}
    assert of_jobs(registry, "inkless_job_last_attempt_timestamp_seconds")["gc"] == 1
    gauges.update([])
    assert of_jobs(registry, "inkless_job_last_success_age_seconds") == {}
    (fails,) = (a for a in alerts() if a.startswith("TidelineJobFails\n"))
    assert (
        "max by (job) (inkless_job_last_failure_timestamp_seconds) > "
        "max by (job) (inkless_job_last_success_timestamp_seconds)" in fails
    )
    (hangs,) = (a for a in alerts() if a.startswith("TidelineJobDoesNotEnd\n"))
    assert f"inkless_job_unfinished_seconds) > {HANGS_MS // 3_600_000} * 3600" in hangs


def test_rows_that_wait_too_long_and_rows_that_are_lost_are_alerts() -> None:
    """Whether they wait is what the run that ended last saw: it may have told what others left."""
    registry = CollectorRegistry()
    gauges = JobGauges(registry)
    late = job_row("gc", records_overdue_ms=5_000, records_lost=7)
    gauges.update([late, job_row("merge", ended_ms=5_999)])
    assert registry.get_sample_value("inkless_job_records_overdue_seconds") == 60
    assert of_jobs(registry, "inkless_job_records_lost_rows")["gc"] == 7
    gauges.update([late, job_row("merge", ended_ms=6_001)])
    assert registry.get_sample_value("inkless_job_records_overdue_seconds") == 0
    (waits,) = (a for a in alerts() if a.startswith("TidelineRecordsNotTold\n"))
    assert "max(inkless_job_records_overdue_seconds) > 6 * 3600" in waits
    (lost,) = (a for a in alerts() if a.startswith("TidelineRecordsLost\n"))
    assert "delta(inkless_job_records_lost_rows[1h])" in lost
