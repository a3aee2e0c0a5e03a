"""Where the tiering of a partition stands, as an operator wants it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.table import Table

from tideline.control_plane.tiering_model import TieringStatusRow
from tideline.domain.migration import UNDEFINED_OFFSET

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class TieringRow:
    """002 §4.8.2 ``TieringStatus`` of one partition. Offsets inclusive, ``None`` while there is
    none; sizes in bytes."""

    topic: str
    partition: int
    state: str
    tiered_high_offset: int | None
    diskless_start_offset: int | None
    """First offset that is read from WAL objects."""
    high_watermark: int | None
    pending_batches: int
    pending_split_files: int
    eligible_bytes: int
    lag_bytes: int
    """Of the suffix, not merged yet."""
    merged_segments: int
    merged_bytes: int
    paused: bool
    requested_at: datetime | None
    failures: int
    parked: bool
    reason: str
    """The newest error of what is parked, or fails and is tried again."""
    next_step: str


def tiering_row(status: TieringStatusRow) -> TieringRow:
    """One partition, with what comes next."""
    return TieringRow(
        topic=status.topic,
        partition=status.partition,
        state=status.state,
        tiered_high_offset=_offset(status.tiered_high_offset),
        diskless_start_offset=_offset(status.diskless_start_offset),
        high_watermark=_offset(status.high_watermark),
        pending_batches=status.pending_batches,
        pending_split_files=status.pending_split_files,
        eligible_bytes=status.eligible_bytes,
        lag_bytes=status.pending_bytes,
        merged_segments=status.merged_segments,
        merged_bytes=status.merged_bytes,
        paused=status.paused,
        requested_at=_time(status.requested_at),
        failures=status.failures,
        parked=status.parked,
        reason=status.parked_reason or "",
        next_step=next_step(status),
    )


def next_step(status: TieringStatusRow) -> str:
    """What happens next, or what the operator has to do."""
    if status.paused:
        return f"`tideline tiering resume {status.topic}`: nothing is tiered until then"
    if status.parked:
        return f"remove the cause, then `tideline tiering resume {status.topic}`"
    if status.failures:
        return "tried again by a later run"
    if status.eligible_bytes:
        return "split by the next run"
    if status.pending_split_files:
        return "merged once it is enough for a segment, or older than segment.ms"
    if status.pending_batches:
        return "split once it is older than local.retention.ms"
    return "nothing"


def tiering_table(rows: Iterable[TieringRow]) -> Table:
    """A line per partition."""
    table = Table(
        "topic", "p", "state", "tiered up to", "WAL from", "high watermark", "segments",
        "not merged", "batches", "split files", "eligible", "trouble", "next",
        box=None, pad_edge=False,
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.topic,
            str(row.partition),
            row.state + (" (paused)" if row.paused else ""),
            _shown(row.tiered_high_offset),
            _shown(row.diskless_start_offset),
            _shown(row.high_watermark),
            f"{row.merged_segments} ({size(row.merged_bytes)})" if row.merged_segments else "",
            size(row.lag_bytes),
            str(row.pending_batches),
            str(row.pending_split_files),
            size(row.eligible_bytes),
            _trouble(row),
            row.next_step,
        )
    return table


def _trouble(row: TieringRow) -> str:
    if not row.failures and not row.parked:
        return ""
    kind = "[red]parked" if row.parked else "[yellow]failing"
    return f"{kind}[/] after {row.failures} failures: {row.reason}"


def size(count: int) -> str:
    """Bytes in the largest unit that keeps a digit before the point."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def _offset(offset: int) -> int | None:
    return None if offset == UNDEFINED_OFFSET else offset


def _shown(offset: int | None) -> str:
    return "" if offset is None else str(offset)


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
