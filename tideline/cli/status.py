"""``tideline status``: where every migration stands."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tideline import control_plane
from tideline.cli.output import Format, FormatOption, age, console, echo_json, line, run, topic_name
from tideline.control_plane.table_model import VerifyVerdict
from tideline.domain.migration import PHASE_ORDER, MigrationState
from tideline.migration.by_state import TopicInState, topics_in_state
from tideline.migration.overview import Overview, Overviews, TopicRow
from tideline.settings import WorkerSettings, load

WATCH_EVERY_S = 1.0
VERDICT_LASTS = timedelta(days=1)
"""Of a verification; then it is stale."""


def status(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Until interrupted.")] = False,
    state: Annotated[
        MigrationState | None,
        typer.Option(
            help="List the topics in this state; TIERED_ONLY: also those that never migrated."
        ),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Per partition: phase, since when, why it waits, B0, and what comes next."""
    if state is not None:
        if topic or watch:
            raise typer.BadParameter("--state lists topics: neither a topic nor --watch with it")
        run(_by_state(state, output))
        return
    run(_status(topic_name(topic) if topic else None, watch and output is Format.TABLE, output))


async def _status(topic: str | None, watch: bool, output: Format) -> None:
    settings = load(WorkerSettings)
    async with control_plane.connect(settings, application_name="tideline-cli") as plane:
        overviews = Overviews(settings, plane)
        overview = await overviews.observe(topic)
        if output is Format.JSON:
            echo_json({"topics": overview.topics, "notes": overview.notes})
        elif not watch:
            console().print(overview_tables(overview))
        else:
            await _watch(overviews, topic, overview)


async def _watch(overviews: Overviews, topic: str | None, overview: Overview) -> None:
    """Until cancelled; what was seen last stays on the terminal, whole."""
    with Live(console=console(), auto_refresh=False) as live:
        try:
            while True:
                seen = on_screen(overview, live.console.height)
                live.update(overview_tables(seen), refresh=True)
                await asyncio.sleep(WATCH_EVERY_S)
                overview = await overviews.observe(topic)
        finally:
            live.update(overview_tables(overview))


def on_screen(overview: Overview, lines: int) -> Overview:
    """What fills so many lines, if there is more: tables of a thousand topics take seconds to lay
    out."""
    for number, row in enumerate(overview.topics, 1):
        # A title and a line for each partition, at least.
        lines -= 1 + len(row.partitions)
        if lines < 0:
            return replace(overview, topics=overview.topics[:number])
    return overview


async def _by_state(state: MigrationState, output: Format) -> None:
    settings = load(WorkerSettings)
    async with control_plane.connect(settings, application_name="tideline-cli") as plane:
        found = await topics_in_state(settings, plane, state)
    if output is Format.JSON:
        echo_json({"state": state, "topics": found})
    else:
        console().print(state_table(state, found))


def state_table(state: MigrationState, topics: list[TopicInState]) -> Table | Text:
    """Topics in one state, or that there are none."""
    if not topics:
        return line(f"No topic is {state}.")
    table = Table("topic", "state", "partitions", "tracked", box=None, pad_edge=False)
    for one in topics:
        table.add_row(one.topic, one.state, str(one.partitions), "yes" if one.tracked else "no")
    return table


def overview_tables(overview: Overview) -> Group:
    parts = [topic_table(row) for row in overview.topics]
    links = [line(f"{row.topic}: {row.workflow_url or row.workflow_id}") for row in overview.topics]
    links += [said for row in overview.topics for said in _decided(row)]
    notes = [line(f"note: {note}", "yellow") for note in overview.notes]
    if not parts:
        notes.append(line("No topic migrates or has migrated."))
    return Group(*parts, *links, *notes)


def _decided(row: TopicRow) -> list[Text]:
    """What was asked for by a config change, and what operators decided."""
    said = [] if row.request is None else [f"request: {row.request.summary()}"]
    said += [action.summary() for action in row.actions]
    said += [] if row.verified is None else [verified(row.verified)]
    return [line(f"{row.topic}: {one}") for one in said]


def verified(verdict: VerifyVerdict, now: datetime | None = None) -> str:
    """The last verification in a line; one of more than a day ago is stale."""
    found = "no difference" if verdict.differences == 0 else f"{verdict.differences} differences"
    if verdict.detail:
        first = verdict.detail[0]
        found += f", the first in partition {first['partition']} at offset {first['offset']}"
    share = "" if verdict.sample >= 1 else f", a sample of {verdict.sample:.0%}"
    old = (now or datetime.now(UTC)) - verdict.verified_at > VERDICT_LASTS
    return (
        f"verified {age(verdict.verified_at, now)} ago: {found} in {verdict.records} records"
        f"{share}{', stale' if old else ''}"
    )


def topic_table(row: TopicRow, now: datetime | None = None) -> Table:
    title = f"{row.topic}: {row.stage}{', paused' if row.paused else ''}"
    if row.waiting_reason:
        title += f"; waits: {row.waiting_reason}"
    table = Table(
        "partition", "phase", "", "since", "B0", "high watermark", "waits because", "next",
        title=title, title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    for p in row.partitions:
        bar = "■" * p.phases_done + "□" * (len(PHASE_ORDER) - p.phases_done)
        table.add_row(
            str(p.partition),
            f"{p.phase} ({p.phase_status})" if p.phase_status else p.phase,
            bar,
            age(p.since, now),
            "" if p.boundary is None else str(p.boundary),
            "" if p.high_watermark is None else str(p.high_watermark),
            p.waiting_reason,
            p.next_step,
        )
    return table
