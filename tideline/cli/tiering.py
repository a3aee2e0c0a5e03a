"""``tideline tiering``: how far aged diskless data has become tiered segments, and steering it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tideline.cli.output import (
    Format,
    FormatOption,
    console,
    echo,
    echo_json,
    line,
    moment,
    topic_name,
)
from tideline.cli.writing import changing_jobs_plane
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.tiering_model import TieringStatusRow
from tideline.domain.migration import UNDEFINED_OFFSET
from tideline.errors import RefusedError, UnreachableError, UsageError
from tideline.kafka.topic_policies import read_tiering_policies, suffix_topics
from tideline.settings import JobsSettings, load

app = typer.Typer(
    help="Aged diskless data becomes tiered segments.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
APPLICATION = "tideline-cli"
TopicArgument = Annotated[str, typer.Argument(help="Name of the topic.")]


@app.command()
def status(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Per partition: what is tiered, what waits, what is parked and why, and what comes next."""
    settings = load(JobsSettings)
    name = topic_name(topic) if topic else None
    notes: list[str] = []
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        found = plane.tiering_status(name, _cutoffs(settings, plane, name, notes))
    rows = [tiering_row(row) for row in sorted(found, key=lambda r: (r.topic, r.partition))]
    if name is not None and not rows:
        raise RefusedError(
            f"topic {name!r} has no diskless data: there is nothing to tier. "
            f"`tideline status {name}` tells where it stands"
        )
    if output is Format.JSON:
        echo_json({"partitions": rows, "notes": notes})
        return
    screen = console()
    if rows:
        screen.print(tiering_table(rows))
    else:
        screen.print("No topic has diskless data.")
    for note in notes:
        screen.print(f"note: {note}", style="yellow")


def _cutoffs(
    settings: JobsSettings, plane: JobsControlPlane, topic: str | None, notes: list[str]
) -> dict[Any, int]:
    """Which batches are old enough is Kafka's to say; without it the rest is still shown."""
    try:
        topics = [t for t in suffix_topics(plane) if topic is None or t.name == topic]
        rules = read_tiering_policies(settings, topics)
    except UnreachableError as error:
        if "kafka" not in type(error).__module__:
            raise
        notes.append(f"{error}; what is eligible is not known")
        return {}
    notes += [f"{name}: {reason}" for name, reason in rules.left_alone.items()]
    return rules.cutoffs(round(time.time() * 1000))


@app.command()
def trigger(
    topic: TopicArgument,
    now: Annotated[
        bool, typer.Option("--now", help="Also run the pipeline here, on this machine's Spark.")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Tier everything that TOPIC has committed until now, whatever its age; un-park what failed."""
    name = topic_name(topic)
    with changing_jobs_plane() as plane:
        plane.request_tiering(name)
    if now:
        raise typer.Exit(_run_here(name))
    _answer(output, name, "requested", f"{name}: the next run tiers all that is committed now.")


def _run_here(topic: str) -> int:
    try:
        from spark.common.entry import launch, run_job
        from spark.tiering import job as tiering
    except ModuleNotFoundError as error:
        raise UsageError(
            f"`--now` needs the Python module {error.name}: pip install 'tideline[jobs]'. The "
            "request stands; the next scheduled run takes it up"
        ) from error
    return int(run_job("tiering", lambda job: tiering.tiering(job, [topic]), launch()))


@app.command()
def pause(topic: TopicArgument, output: FormatOption = Format.TABLE) -> None:
    """Begin no further split or merge of TOPIC; what runs ends. Reading and writing go on."""
    name = topic_name(topic)
    with changing_jobs_plane() as plane:
        plane.pause_tiering(name)
    _answer(output, name, "paused", f"{name}: tiering is paused.")


@app.command()
def resume(topic: TopicArgument, output: FormatOption = Format.TABLE) -> None:
    """Tier TOPIC again; what was parked is tried anew."""
    name = topic_name(topic)
    with changing_jobs_plane() as plane:
        plane.resume_tiering(name)
    _answer(output, name, "resumed", f"{name}: tiering goes on.")


def _answer(output: Format, topic: str, tiering: str, text: str) -> None:
    if output is Format.JSON:
        echo_json({"topic": topic, "tiering": tiering})
    else:
        echo(text)


# What an operator sees. Pure.

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
        requested_at=moment(status.requested_at),
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
    table = Table(
        "topic", "p", "state", "tiered up to", "WAL from", "high watermark", "segments",
        "not merged", "batches", "runs", "eligible", "trouble", "next",
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


def _trouble(row: TieringRow) -> Text | str:
    if not row.failures and not row.parked:
        return ""
    kind = line("parked", "red") if row.parked else line("failing", "yellow")
    return kind.append_text(line(f" after {row.failures} failures: {row.reason}"))


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
