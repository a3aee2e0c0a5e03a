"""Counters of the tiering pipeline that outlive the jobs: names, and the shape of a histogram."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

LATENCY_BOUNDS_MS = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
"""Upper bounds (inclusive): a small WAL file takes some 50 ms, a segment of 1 GiB minutes."""
_COUNT, _SUM, _LE = "count", "sum_ms", "le_"


class Total(StrEnum):
    """What is counted. A latency is a family of counters, :func:`latency_buckets`."""

    FILES_SPLIT = "files.split"
    """WAL files; a file may be split more than once."""
    RUNS_SPLIT = "runs.split"
    BATCHES_SPLIT = "batches.split"
    BYTES_SPLIT = "bytes.split"
    SEGMENTS_CREATED = "segments.created"
    BATCHES_MERGED = "batches.merged"
    RECORDS_MERGED = "records.merged"
    BYTES_MERGED = "bytes.merged"
    """These are noted in the transaction of the work itself; the others by the run."""
    FAILURES = "failures"
    SPLIT_LATENCY = "split.latency"
    """Of one WAL file."""
    MERGE_LATENCY = "merge.latency"
    """Of one segment."""


def latency_buckets(total: Total, elapsed_ms: int) -> dict[str, int]:
    """What one observation adds, by counter. Buckets are not cumulative here: one of them grows,
    and one that is longer than every bound only shows in the count."""
    found = {f"{total}.{_COUNT}": 1, f"{total}.{_SUM}": elapsed_ms}
    bound = next((bound for bound in LATENCY_BOUNDS_MS if elapsed_ms <= bound), None)
    if bound is not None:
        found[f"{total}.{_LE}{bound}"] = 1
    return found


def histogram(total: Total, totals: Mapping[str, int]) -> tuple[list[tuple[str, float]], float]:
    """(bound in seconds as Prometheus spells it, observations up to it) for each bound and
    ``+Inf``, and the sum in seconds."""
    buckets: list[tuple[str, float]] = []
    seen = 0
    for bound in LATENCY_BOUNDS_MS:
        seen += totals.get(f"{total}.{_LE}{bound}", 0)
        buckets.append((str(bound / 1000), seen))
    buckets.append(("+Inf", totals.get(f"{total}.{_COUNT}", 0)))
    return buckets, totals.get(f"{total}.{_SUM}", 0) / 1000
