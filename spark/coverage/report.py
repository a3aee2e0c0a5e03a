"""What people and machines read of a coverage run: the reason and the remedies of each partition,
and a dated report, Parquet for machines, Markdown for people."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark.common.record_rows import OffsetRange, VerdictRow
from spark.common.rows import to_batch
from spark.coverage.judge import CoverageVerdict
from tideline.control_plane.tiering_model import PartitionRow
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import ObjectStoreSettings

ROWS_PER_FILE = 50_000
NOT_IN_DETAIL = (
    "log_id", "complete", "objects_seen_at", "objects_digest", "merged_digest", "judged_by",
)  # fmt: skip
"""Kept in columns of their own, or for the next run."""
SHOWN = 100
"""Partitions that the result and the Markdown name; the Parquet has all of them."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Why a range is not covered, and what helps."""

    why: str
    what: str


REMEDIES: Mapping[str, Remedy] = {
    "bad_objects": Remedy(
        "objects of its segments are missing or short",
        "restore the objects under their keys (bucket versioning, backup, another region); if a "
        "replica still has these offsets locally they can be copied again, otherwise delete the "
        "records up to the end of the gap",
    ),
    "copying": Remedy(
        "their copy to remote storage began and has not finished",
        "wait for the leader's next try; if it stays so, look for failed copies in the leader's "
        "log and at its remote copy lag",
    ),
    "being_deleted": Remedy(
        "the brokers are deleting their segments",
        "wait until the log start has passed them; if it does not move, the deletion began "
        "without retention having asked for it",
    ),
    "other_lineage": Remedy(
        "the segments there were copied by a deposed leader, at other leader epochs",
        "un-freeze remote copying so that the present leader copies its own records; "
        "if it has them no longer, delete the records up to the end of the gap",
    ),
    "starts_late": Remedy(
        "remote storage begins above the log start",
        "wait for the log start to follow (retention); otherwise delete the records up to the "
        "first offset that remote storage has",
    ),
    "absent": Remedy(
        "no segment with these offsets was ever registered",
        "check that remote copying of the topic is on and healthy; if no replica has these "
        "offsets locally they are lost: delete the records up to the end of the gap",
    ),
}
ROLL = Remedy(
    "a replica has not rolled to B0",
    "wait for it to catch up and roll; if its high watermark stays behind, a change of leader "
    "heals it",
)


@dataclass(frozen=True, slots=True)
class ReportRow:
    """What the Parquet files say of a partition beside its verdict."""

    topic: str
    topic_id: str
    partition: int
    state: str
    generation: int
    boundary: int
    tiering_complete_before: bool
    observed_at: datetime
    reason: str
    remedies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    row: PartitionRow
    verdict: CoverageVerdict
    observed_at: int
    """ms; when the observation began."""

    @property
    def complete(self) -> bool:
        return self.verdict.complete

    @property
    def name(self) -> str:
        return f"{self.row.topic}-{self.row.partition}"


@dataclass(frozen=True, slots=True)
class CoverageRun:
    run_id: str
    started_at: datetime
    judged: Sequence[Judged]
    unobserved: Sequence[tuple[PartitionRow, str]]

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
            "segments": sum(v.segments for v in verdicts),
            "missing_offsets": sum(v.missing_offsets for v in verdicts),
            "bad_segments": sum(v.broken_count for v in verdicts),
            "orphaned_segments": sum(v.orphan_count for v in verdicts),
            "objects_listed": sum(self._listed(one) for one in self.judged),
            "merged_segments": sum(v.merged_segments for v in verdicts),
            "bad_merged_segments": sum(v.merged_broken_count for v in verdicts),
            "metadata_anomalies": sum(v.anomalies for v in verdicts),
        }

    def _listed(self, one: Judged) -> bool:
        return one.verdict.objects_seen_at >= one.observed_at

    @property
    def oldest_look(self) -> int | None:
        """ms; since when objects have not been listed, at the worst. ``None``: all were listed."""
        old = [j.verdict.objects_seen_at for j in self.judged if not self._listed(j)]
        return min(old, default=None)

    def not_covered(self) -> list[Judged]:
        """Most missing offsets first."""
        found = [one for one in self.judged if not one.complete]
        return sorted(found, key=lambda one: (-one.verdict.missing_offsets, one.name))

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
        some = judged[start : start + ROWS_PER_FILE]
        identity = to_batch(ReportRow, [_row(one) for one in some])
        verdicts = to_batch(CoverageVerdict, [one.verdict for one in some])
        verdicts = verdicts.drop_columns(["judged_by"])
        columns = [*identity.columns, *verdicts.columns]
        table = pa.Table.from_arrays(
            columns, schema=pa.schema([*identity.schema, *verdicts.schema])
        )
        file = io.BytesIO()
        pq.write_table(table, file, compression="zstd")
        yield file.getvalue()


def _row(one: Judged) -> ReportRow:
    row = one.row
    return ReportRow(
        topic=row.topic,
        topic_id=str(row.topic_id),
        partition=row.partition,
        state=row.state,
        generation=row.generation,
        boundary=row.boundary,
        tiering_complete_before=row.tiering_complete,
        observed_at=_time(one.observed_at),
        reason=reason(one.verdict),
        remedies=tuple(remedies(one.verdict)),
    )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def record_rows(run: CoverageRun) -> Iterator[VerdictRow]:
    """Every partition, for the table ``coverage_verdicts``."""
    for one in run.judged:
        row, verdict = one.row, one.verdict
        yield VerdictRow(
            row.topic, str(row.topic_id), row.partition, row.state, row.generation, row.boundary,
            _time(one.observed_at), verdict.complete, row.tiering_complete, reason(verdict),
            tuple(remedies(verdict)), verdict.wanted_start, verdict.wanted_end,
            verdict.missing_offsets,
            tuple(OffsetRange(gap.start, gap.end, gap.cause) for gap in verdict.gaps),
            verdict.segments, verdict.broken_count, verdict.orphan_count, verdict.merged_segments,
            verdict.merged_broken_count, verdict.anomalies,
        )  # fmt: skip
    for row, why in run.unobserved:
        yield VerdictRow(
            row.topic, str(row.topic_id), row.partition, row.state, row.generation, row.boundary,
            None, None, row.tiering_complete, why, (), None, None, None, (),
            None, None, None, None, None, None,
        )  # fmt: skip


def markdown(run: CoverageRun) -> str:
    """The short report."""
    counts = run.counts()
    lines = [
        f"# Coverage, {run.started_at:%Y-%m-%d %H:%M:%S} UTC",
        "",
        f"Run {run.run_id}: {counts['partitions']} partitions, {counts['covered']} covered, "
        f"{counts['not_covered']} not covered, {counts['unobserved']} not looked at. "
        f"{counts['segments']} segments; {counts['bad_segments']} with missing or short objects; "
        f"{counts['orphaned_segments']} in the bucket that nothing refers to. "
        f"The objects of {counts['objects_listed']} partitions were listed{_of_others(run)}.",
    ]
    if missing := run.not_covered():
        lines += ["", "## Not covered", ""]
        for one in missing[:SHOWN]:
            lines.append(f"- **{one.name}** (B0 {one.row.boundary}): {reason(one.verdict)}")
            lines += [f"  - {remedy}" for remedy in remedies(one.verdict)]
        if len(missing) > SHOWN:
            lines.append(f"- and {len(missing) - SHOWN} more: see the Parquet files")
    if suffix := [one for one in run.judged if one.verdict.merged_gap_count]:
        lines += ["", "## Merged segments of the suffix that cannot be read", ""]
        for one in suffix[:SHOWN]:
            ranges = ", ".join(f"[{g.start}, {g.end})" for g in one.verdict.merged_gaps[:3])
            lines.append(f"- **{one.name}**: {ranges}; restore their objects")
    if run.unobserved:
        lines += ["", "## Not looked at (the last verdict stays)", ""]
        lines += [f"- {row.topic}-{row.partition}: {why}" for row, why in run.unobserved[:SHOWN]]
    return "\n".join(lines) + "\n"


def _of_others(run: CoverageRun) -> str:
    if run.oldest_look is None:
        return ""
    since = datetime.fromtimestamp(run.oldest_look / 1000, UTC)
    return f"; those of the others were last seen at {since:%Y-%m-%d %H:%M:%S} UTC or later"


def reason(verdict: CoverageVerdict) -> str:
    """One line: complete, or which offsets are missing and why."""
    if verdict.complete:
        if verdict.wanted_start >= verdict.wanted_end:
            return "the prefix is empty"
        return f"{verdict.segments} segments cover [{_range(verdict)})"
    if verdict.held_back:
        return f"remote storage has every offset of [{_range(verdict)}), but {verdict.held_back}"
    shown = "; ".join(
        f"[{gap.start}, {gap.end}): {REMEDIES[gap.cause].why}" for gap in verdict.gaps[:3]
    )
    more = verdict.gap_count - min(3, len(verdict.gaps))
    rest = f"; and {more} more ranges" if more > 0 else ""
    return f"offsets {shown}{rest}"


def remedies(verdict: CoverageVerdict) -> list[str]:
    """What to do, one line for each cause, most urgent first."""
    if verdict.held_back:
        return [ROLL.what]
    causes: Sequence[str] = list(dict.fromkeys(gap.cause for gap in verdict.gaps))
    return [REMEDIES[cause].what for cause in causes]


def detail(verdict: CoverageVerdict) -> dict[str, Any]:
    """What is kept in Postgres with the verdict."""
    kept = {
        name: value
        for name, value in asdict(verdict).items()
        if name not in NOT_IN_DETAIL and value not in ((), None)
    }
    return kept | {"remedies": remedies(verdict)}


def _range(verdict: CoverageVerdict) -> str:
    return f"{verdict.wanted_start}, {verdict.wanted_end}"
