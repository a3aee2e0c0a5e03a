"""What the coverage job asks for and judges, partition by partition."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from spark.common.kafka_logs import ObservedLog
from spark.coverage import job
from spark.coverage.job import covered_log, no_audit_due, wanted_log
from spark.coverage.judge import CoverageVerdict
from spark.coverage.report import Judged, detail, parquet_files
from tests.unit.spark.test_retention_orders import HYBRID
from tideline.control_plane.tiering_model import CoverageLook


@pytest.mark.parametrize(
    ("accepted_gap_from", "end"), [(-1, 100), (80, 80), (0, 0)], ids=["no gap", "a gap", "all"]
)
def test_the_prefix_ends_at_b0_or_where_an_accepted_log_gap_begins(
    accepted_gap_from: int, end: int
) -> None:
    """A replica whose log ends in the gap can roll to its beginning, never to B0."""
    row = replace(HYBRID, accepted_gap_from=accepted_gap_from)
    assert covered_log(row, ObservedLog(row.log_id, 0), None, "").boundary == end
    wanted = wanted_log(row)
    assert (wanted.boundary if wanted else 0) == end


def test_a_partition_without_a_prefix_is_not_asked_for() -> None:
    row = replace(HYBRID, boundary=0)
    assert wanted_log(row) is None
    assert covered_log(row, None, None, "").log_start == 0


def test_what_sets_readiness_asks_every_replica_and_what_keeps_it_does_not() -> None:
    for ready in (True, False):
        wanted = wanted_log(replace(HYBRID, tiering_complete=ready))
        assert wanted is not None
        assert wanted.ask_replicas is not ready


def test_only_what_keeps_readiness_relies_on_an_earlier_look_at_the_same_b0() -> None:
    ready = replace(HYBRID, tiering_complete=True)
    look = CoverageLook(ready.log_id, ready.boundary, 900, b"digest")
    found = ObservedLog(ready.log_id, 0)
    relied_on = covered_log(ready, found, look, "p")
    assert (relied_on.seen_at, relied_on.seen_digest) == (900, b"digest")
    for row, one in (
        (replace(ready, tiering_complete=False), look),
        (ready, replace(look, boundary=ready.boundary + 1)),
        (ready, None),
    ):
        assert covered_log(row, found, one, "p").seen_digest is None


def test_a_report_has_what_was_judged_and_not_by_which_code() -> None:
    verdict = CoverageVerdict(HYBRID.log_id, complete=True, judged_by="code")
    judged = Judged(HYBRID, verdict, 900)
    (body,) = parquet_files([judged])
    columns = pq.read_table(io.BytesIO(body)).column_names
    assert "judged_by" not in columns
    assert {"topic", "complete", "merged_digest"} < {*columns}
    assert "judged_by" not in detail(verdict)


def test_without_a_digest_of_the_code_a_run_goes_on_without_memory_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(job, "DIGEST", "")
    assert job.memory_of(SimpleNamespace(progress=said.append), None) is None  # type: ignore[arg-type]
    assert len(said) == 1


def test_an_audit_is_due_for_a_look_that_is_old_or_of_a_time_to_come() -> None:
    looks = [CoverageLook(at, 10, at, b"digest") for at in (899, 900, 901, 1_000, 1_001)]
    assert list(no_audit_due(looks, now_ms=1_000, audit_ms=100)) == [901, 1_000]
    assert no_audit_due(looks, now_ms=1_000, audit_ms=0) == {}
