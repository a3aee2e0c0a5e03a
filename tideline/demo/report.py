"""The proof as a value, its Markdown and JSON faces, and one picture of where each offset range of
the topic lives, moment by moment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tideline.demo.ledger import quantile
from tideline.domain.tiering import LogBounds, Place, Placement, placements


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    found: str


@dataclass(frozen=True, slots=True)
class PartitionProof:
    partition: int
    boundary: int
    leader_epoch: int
    state: str
    acknowledged: int
    consumed: int
    pause_ms: float | None
    raw_gap_ms: float | None
    tiered_segments: int
    tiered_bytes: int
    suffix_records: int


@dataclass(slots=True)
class Proof:
    topic: str
    machine: str
    workflow_id: str
    workflow_url: str
    rows: list[PartitionProof]
    checks: list[Check]
    phase_ms: dict[str, list[float]] = field(default_factory=dict)
    """Durations by phase over the partitions; ``quiesce → B0 visible`` among them."""
    storage: dict[str, Any] = field(default_factory=dict)
    steady_latency_ms: float = 0.0
    picture: list[str] = field(default_factory=list)
    """Where each offset range lives, moment by moment."""

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def pauses(self) -> list[float]:
        return [row.pause_ms for row in self.rows if row.pause_ms is not None]

    def raw_gaps(self) -> list[float]:
        return [row.raw_gap_ms for row in self.rows if row.raw_gap_ms is not None]


def spread(values: Sequence[float]) -> str:
    """``p50 / p99 / max`` in ms."""
    if not values:
        return "not observed"
    return f"{quantile(values, 0.5):.0f} / {quantile(values, 0.99):.0f} / {max(values):.0f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def to_markdown(proof: Proof) -> str:
    """A page a person can read from top to bottom."""
    verdict = "every check passed" if proof.ok else "**a check failed**"
    lines = [
        f"# Migration of `{proof.topic}`: {verdict}",
        "",
        f"Machine: {proof.machine}",
        "",
        f"Workflow: `{proof.workflow_id}` ({proof.workflow_url})",
        "",
        "## Checks",
        "",
        *_table(
            ["check", "verdict", "found"],
            [(c.name, "ok" if c.ok else "FAILED", c.found) for c in proof.checks],
        ),
        "",
        "## Write pause (ms, p50 / p99 / max)",
        "",
        *_table(
            ["what", "ms"],
            [
                ("pause at the producer (longest gap - steady latency)", spread(proof.pauses())),
                ("longest gap between acknowledgements, raw", spread(proof.raw_gaps())),
                ("steady produce latency in the suffix, median", f"{proof.steady_latency_ms:.0f}"),
                *((name, spread(values)) for name, values in proof.phase_ms.items()),
            ],
        ),
        "",
        "## Partitions",
        "",
        *_table(
            ["partition", "state", "B0", "epoch", "acked", "consumed", "pause ms", "raw gap ms",
             "tiered segments", "tiered bytes", "suffix records"],
            [
                (
                    r.partition, r.state, r.boundary, r.leader_epoch, r.acknowledged, r.consumed,
                    "-" if r.pause_ms is None else f"{r.pause_ms:.0f}",
                    "-" if r.raw_gap_ms is None else f"{r.raw_gap_ms:.0f}",
                    r.tiered_segments, r.tiered_bytes, r.suffix_records,
                )
                for r in proof.rows
            ],
        ),
        "",
        "## What is where in S3",
        "",
        *_table(["what", "value"], sorted(proof.storage.items())),
        "",
        *(["## Where each offset lives", "", "```", *proof.picture, "```", ""]
          if proof.picture else []),
    ]  # fmt: skip
    return "\n".join(lines)


def write(proof: Proof, directory: Path) -> tuple[Path, Path]:
    """Write ``proof.md`` and ``proof.json``; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    markdown, machine = directory / "proof.md", directory / "proof.json"
    markdown.write_text(to_markdown(proof))
    machine.write_text(json.dumps({**asdict(proof), "ok": proof.ok}, indent=2, default=str) + "\n")
    return markdown, machine


MARKS: Mapping[Place, str] = {
    Place.KAFKA: "▒",
    Place.PREFIX: "▓",
    Place.MERGED: "█",
    Place.WAL: "░",
}
LEGEND = (
    "▒ Kafka's own log   ▓ below B0, Kafka's tiered log   █ merged segments in S3   ░ WAL objects"
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A topic at one time. ``rows``: batches that Postgres holds coordinates of."""

    name: str
    logs: Mapping[int, LogBounds]
    """By partition."""
    rows: int


def draw(moments: Sequence[Moment], width: int = 60) -> list[str]:
    """A line per partition and moment, all on one scale; each range ends with its last offset
    plus one. ``width``: columns of the longest log."""
    ends = [log.high_watermark for moment in moments for log in moment.logs.values()]
    scale = width / max([1, *ends])
    label = max(len(moment.name) for moment in moments)
    lines = [LEGEND, ""]
    for partition in sorted({p for moment in moments for p in moment.logs}):
        for moment in moments:
            if (log := moment.logs.get(partition)) is None:
                continue
            head = f"{partition:>4}" if moment is moments[0] else "    "
            lines.append(f"{head}  {moment.name:<{label}}  {_ranges(placements(log), scale)}")
    lines.append("")
    lines.extend(
        f"rows of batches in Postgres, {moment.name:<{label}}  {moment.rows}" for moment in moments
    )
    return lines


def _ranges(ranges: Sequence[Placement], scale: float) -> str:
    if not ranges:
        return "empty"
    pieces = [str(ranges[0].start)]
    for placed in ranges:
        bar = MARKS[placed.place] * max(1, round(placed.offsets * scale))
        pieces.append(f"{bar} {placed.end}")
    return " ".join(pieces)
