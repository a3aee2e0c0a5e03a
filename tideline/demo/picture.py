"""One picture of where each offset range of a topic lives, moment by moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tideline.domain.tiering import LogBounds, Place, Placement, placements

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
            lines.append(f"{head}  {moment.name:<{label}}  {_line(placements(log), scale)}")
    lines.append("")
    lines.extend(
        f"rows of batches in Postgres, {moment.name:<{label}}  {moment.rows}" for moment in moments
    )
    return lines


def _line(ranges: Sequence[Placement], scale: float) -> str:
    if not ranges:
        return "empty"
    pieces = [str(ranges[0].start)]
    for placed in ranges:
        bar = MARKS[placed.place] * max(1, round(placed.offsets * scale))
        pieces.append(f"{bar} {placed.end}")
    return " ".join(pieces)
