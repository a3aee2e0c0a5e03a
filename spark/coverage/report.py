"""The dated report of one coverage run: Parquet for machines, Markdown for people."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark.coverage import frames as logic
from spark.coverage.remedies import reason, remedies
from tideline.control_plane.tiering_model import PartitionRow
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import ObjectStoreSettings

ROWS_PER_FILE = 50_000
SHOWN = 100
"""Partitions that the result and the Markdown name; the Parquet has all of them."""
_IDENTITY = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int64()),
        ("state", pa.string()),
        ("generation", pa.int64()),
        ("boundary", pa.int64()),
        ("tiering_complete_before", pa.bool_()),
        ("observed_at", pa.timestamp("ms", "UTC")),
        ("reason", pa.string()),
        ("remedies", pa.list_(pa.string())),
    ]
)
SCHEMA = pa.schema([*_IDENTITY, *logic.ARROW])


@dataclass(frozen=True, slots=True)
class Judged:
    """A partition with its verdict (a row of :data:`spark.coverage.frames.ARROW`)."""

    row: PartitionRow
    verdict: dict[str, Any]
    observed_at: int
    """ms; when the look began."""

    @property
    def complete(self) -> bool:
        return bool(self.verdict["complete"])

    @property
    def name(self) -> str:
        return f"{self.row.topic}-{self.row.partition}"


@dataclass(frozen=True, slots=True)
class CoverageRun:
    """What one run found."""

    run_id: str
    started_at: datetime
    judged: Sequence[Judged]
    unobserved: Sequence[tuple[PartitionRow, str]]
    malformed: int

    def counts(self) -> dict[str, int]:
        """Totals over all partitions."""
        verdicts = [one.verdict for one in self.judged]
        return {
            "partitions": len(self.judged) + len(self.unobserved),
            "covered": sum(one.complete for one in self.judged),
            "not_covered": sum(not one.complete for one in self.judged),
            "unobserved": len(self.unobserved),
            "newly_complete": sum(j.complete and not j.row.tiering_complete for j in self.judged),
            "cleared": sum(not j.complete and j.row.tiering_complete for j in self.judged),
            "segments": sum(v["segments"] for v in verdicts),
            "missing_offsets": sum(v["missing_offsets"] for v in verdicts),
            "bad_segments": sum(v["broken_count"] for v in verdicts),
            "orphaned_segments": sum(v["orphan_count"] for v in verdicts),
            "merged_segments": sum(v["merged_segments"] for v in verdicts),
            "bad_merged_segments": sum(v["merged_broken_count"] for v in verdicts),
            "metadata_anomalies": self.malformed + sum(v["anomalies"] for v in verdicts),
        }

    def not_covered(self) -> list[Judged]:
        """Most missing offsets first."""
        found = [one for one in self.judged if not one.complete]
        return sorted(found, key=lambda one: (-one.verdict["missing_offsets"], one.name))

    def shown(self) -> list[dict[str, Any]]:
        """The partitions that are not covered, for the JSON result."""
        return [
            {
                "topic": one.row.topic,
                "partition": one.row.partition,
                "boundary": one.row.boundary,
                "reason": reason(one.verdict),
                "remedies": remedies(one.verdict),
            }
            for one in self.not_covered()[:SHOWN]
        ]


def publish(settings: ObjectStoreSettings, run: CoverageRun) -> str:
    """Write the report and return its address. Same run, same keys."""
    store, bucket = ObjectStoreClient(settings), settings.s3_bucket
    folder = f"reports/coverage/{run.started_at:%Y-%m-%d}/{run.run_id}"
    for number, body in enumerate(parquet_files(run.judged)):
        store.put(bucket, f"{folder}/partitions-{number:04d}.parquet", body)
    store.put(bucket, f"{folder}/summary.md", markdown(run).encode())
    return f"s3://{bucket}/{folder}/"


def parquet_files(judged: Sequence[Judged]) -> Iterator[bytes]:
    """Every verdict; at least one file."""
    for start in range(0, max(1, len(judged)), ROWS_PER_FILE):
        rows = [_row(one) for one in judged[start : start + ROWS_PER_FILE]]
        file = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file, compression="zstd")
        yield file.getvalue()


def _row(one: Judged) -> dict[str, Any]:
    row = one.row
    return {
        "topic": row.topic,
        "topic_id": str(row.topic_id),
        "partition": row.partition,
        "state": row.state,
        "generation": row.generation,
        "boundary": row.boundary,
        "tiering_complete_before": row.tiering_complete,
        "observed_at": datetime.fromtimestamp(one.observed_at / 1000, UTC),
        "reason": reason(one.verdict),
        "remedies": remedies(one.verdict),
        **one.verdict,
    }


def markdown(run: CoverageRun) -> str:
    """The short report."""
    counts = run.counts()
    lines = [
        f"# Coverage, {run.started_at:%Y-%m-%d %H:%M:%S} UTC",
        "",
        f"Run {run.run_id}: {counts['partitions']} partitions, {counts['covered']} covered, "
        f"{counts['not_covered']} not covered, {counts['unobserved']} not looked at. "
        f"{counts['segments']} segments; {counts['bad_segments']} with missing or short objects; "
        f"{counts['orphaned_segments']} in the bucket that nothing refers to.",
    ]
    if missing := run.not_covered():
        lines += ["", "## Not covered", ""]
        for one in missing[:SHOWN]:
            lines.append(f"- **{one.name}** (B0 {one.row.boundary}): {reason(one.verdict)}")
            lines += [f"  - {remedy}" for remedy in remedies(one.verdict)]
        if len(missing) > SHOWN:
            lines.append(f"- and {len(missing) - SHOWN} more: see the Parquet files")
    if suffix := [one for one in run.judged if one.verdict["merged_gap_count"]]:
        lines += ["", "## Merged segments of the suffix that cannot be read", ""]
        for one in suffix[:SHOWN]:
            ranges = ", ".join(
                f"[{g['start']}, {g['end']})" for g in one.verdict["merged_gaps"][:3]
            )
            lines.append(f"- **{one.name}**: {ranges}; restore their objects")
    if run.unobserved:
        lines += ["", "## Not looked at (the last verdict stays)", ""]
        lines += [f"- {row.topic}-{row.partition}: {why}" for row, why in run.unobserved[:SHOWN]]
    return "\n".join(lines) + "\n"
