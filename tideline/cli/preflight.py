"""``tideline preflight``: may the topic migrate, and what would it take? Changes nothing."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from tideline.cli.output import Format, FormatOption, console, echo_json, line, run, topic_name
from tideline.domain.estimate import Basis, MigrationEstimate, Range, Source, Span
from tideline.domain.options import MigrationOptions
from tideline.domain.preflight import PreflightReport, Verdict
from tideline.errors import ExitCode
from tideline.migration.connections import WorkerServices, open_services
from tideline.migration.estimate import estimate_migration
from tideline.migration.preflight import run_preflight
from tideline.settings import WorkerSettings, load

COLOURS = {
    Verdict.PASSED: "green",
    Verdict.WARNING: "yellow",
    Verdict.REFUSED: "red",
    Verdict.UNKNOWN: "red",
}


def preflight(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    output: FormatOption = Format.TABLE,
) -> None:
    """Check whether TOPIC may migrate, each check with its remedy, and what it takes."""
    report, effort = run(_check(topic_name(topic), MigrationOptions()))
    show(report, output, effort)
    raise typer.Exit(ExitCode.OK if report.accepted else ExitCode.REFUSED)


async def _check(
    topic: str, options: MigrationOptions
) -> tuple[PreflightReport, MigrationEstimate | None]:
    async with open_services(load(WorkerSettings)) as services:
        return await check(services, topic, options)


async def check(
    services: WorkerServices, topic: str, options: MigrationOptions
) -> tuple[PreflightReport, MigrationEstimate | None]:
    """Every check, and the estimate; says meanwhile that it looks."""
    with console(stderr=True).status(line(f"checking {topic}")):
        report = await run_preflight(services, topic, options)
        return report, await estimate_migration(services, report, options)


def show(report: PreflightReport, output: Format, effort: MigrationEstimate | None = None) -> None:
    """The checks, refusals first in the eye by their colour, and what the migration takes."""
    if output is Format.JSON:
        echo_json(
            {
                "topic": report.topic,
                "topic_id": report.topic_id,
                "partitions": report.partitions,
                "accepted": report.accepted,
                "checks": report.checks,
                "estimate": effort,
            }
        )
        return
    table = Table("check", "verdict", "found", "remedy", box=None, pad_edge=False)
    for check in report.checks:
        remedy = "" if check.verdict is Verdict.PASSED else check.remedy
        colour = COLOURS[check.verdict]
        table.add_row(check.name, line(check.verdict, colour), check.found, remedy)
    screen = console()
    screen.print(table)
    if report.accepted:
        screen.print(f"{report.topic} may migrate ({report.partitions} partitions).")
    else:
        refused = line(f"{report.topic} may not migrate.", "red")
        screen.print(refused.append_text(line(" Nothing was changed.")))
    if effort is not None:
        screen.print()
        screen.print(effort_table(effort))


def effort_table(effort: MigrationEstimate) -> Table:
    """One line a figure. Ranges: from the median to the 90th percentile."""
    table = Table("estimate", "", "by", box=None, pad_edge=False)
    basis = {found.step: _basis(found) for found in effort.based_on}
    never = "never: a limit is 0"
    pause = effort.write_pause_ms
    rows = [
        (
            f"until all {effort.partitions} partitions have B0, {effort.at_once} at once",
            _seconds(effort.to_boundaries_s, never),
            basis[Span.CROSSING],
        ),
        ("until the topic is hybrid", _seconds(effort.to_ready_s, never), basis[Span.TIERING]),
        (
            "write pause of a partition",
            f"{pause.p50:.0f} to {pause.p90:.0f} ms",
            basis[Span.WRITE_PAUSE],
        ),
        ("requests to brokers", f"about {effort.kafka_requests:,}", "if nothing is tried again"),
        ("requests to the object store", f"about {effort.object_store_requests:,}", "the same"),
        (
            "rows in Postgres",
            f"about {effort.rows_added:,} added, {effort.rows_changed:,} changed",
            "the same",
        ),
        (
            "Temporal",
            f"{effort.workflows:,} workflows, about {effort.history_events:,} events",
            "the same",
        ),
    ]
    for row in rows:
        table.add_row(*row)
    for left_out in effort.left_out:
        table.add_row("not counted", left_out)
    return table


def _basis(found: Basis) -> str:
    if found.source is Source.DOCUMENTED:
        return f"{found.step}: documented, not observed here"
    what = "topic" if found.step == Span.TIERING else "partition"
    return f"{found.step}: observed here, {found.samples} {what}{'s' * (found.samples != 1)}"


def _seconds(found: Range | None, otherwise: str) -> str:
    return otherwise if found is None else f"{found.p50:,.1f} to {found.p90:,.1f} s"
