"""``tideline retention``: what ``retention.ms`` and ``retention.bytes`` remove, or would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from spark.retention.job import retention as job
from tideline.cli.jobs import DryRunFlag, RunFlag, choose, finish, run_here
from tideline.cli.output import Format, FormatOption, console, echo_json


def retention(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    dry_run: DryRunFlag = False,
    run: RunFlag = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Apply retention.ms and retention.bytes over prefix and suffix as one log."""
    dry = choose(dry_run, run, "retention")
    outcome = run_here("retention", job([topic] if topic else [], dry))
    if output is Format.JSON:
        echo_json(outcome.details)
    else:
        show(outcome.details)
    finish(outcome)


def show(details: Mapping[str, Any]) -> None:
    """The result for people."""
    screen = console()
    removals: Sequence[Mapping[str, Any]] = details["removals"]
    verb = "would go" if details["dry_run"] else "went"
    if removals:
        table = Table(title=f"What {verb}", title_justify="left")
        for column in ("partition", "state", "B0", "log start", "by time", "by size", "bytes"):
            table.add_column(
                column, justify="left" if column in ("partition", "state") else "right"
            )
        table.add_column("where")
        for entry in removals:
            table.add_row(
                f"{entry['topic']}-{entry['partition']}",
                str(entry["state"]),
                "" if entry["boundary"] < 0 else str(entry["boundary"]),
                f"{entry['log_start']} → {entry['new_log_start']}",
                str(entry["by_time"]),
                str(entry["by_size"]),
                str(entry["bytes"]),
                _where(entry),
            )
        screen.print(table)
    else:
        screen.print(f"Nothing {verb}: {details['limited']} partitions are within their limits.")
    for entry in details["held_back"]:
        screen.print(f"held back: {entry['topic']}-{entry['partition']}: {entry['reason']}")
    for name, reason in details["left_alone"].items():
        screen.print(f"left alone: {name}: {reason}", markup=False)
    for entry in details["problems"]:
        screen.print(
            f"problem: {entry['topic']}-{entry['partition']}: {entry['problem']}", markup=False
        )


def _where(entry: Mapping[str, Any]) -> str:
    parts = []
    if entry["prefix_before"] is not None:
        parts.append(f"Kafka below {entry['prefix_before']}")
    if entry["suffix_before"] is not None:
        parts.append(f"suffix below {entry['suffix_before']}")
    if entry["kafka_moved_its_start"] and not parts:
        parts.append("Kafka has moved its start: noted")
    return ", ".join(parts)
