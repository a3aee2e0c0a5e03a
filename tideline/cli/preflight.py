"""``tideline preflight``: may the topic migrate? Changes nothing."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from tideline.cli.output import Format, FormatOption, console, echo_json, run, topic_name
from tideline.domain.options import MigrationOptions
from tideline.domain.preflight import PreflightReport, Verdict
from tideline.errors import ExitCode
from tideline.migration.connections import WorkerServices, open_services
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
    """Check whether TOPIC may migrate: each check with its verdict and remedy."""
    report = run(_check(topic_name(topic), MigrationOptions()))
    show(report, output)
    raise typer.Exit(ExitCode.OK if report.accepted else ExitCode.REFUSED)


async def _check(topic: str, options: MigrationOptions) -> PreflightReport:
    async with open_services(load(WorkerSettings)) as services:
        return await check(services, topic, options)


async def check(services: WorkerServices, topic: str, options: MigrationOptions) -> PreflightReport:
    """Every check; says meanwhile that it looks."""
    with console(stderr=True).status(f"checking {topic}"):
        return await run_preflight(services, topic, options)


def show(report: PreflightReport, output: Format) -> None:
    """The checks, refusals first in the eye by their colour."""
    if output is Format.JSON:
        echo_json(
            {
                "topic": report.topic,
                "topic_id": report.topic_id,
                "partitions": report.partitions,
                "accepted": report.accepted,
                "checks": report.checks,
            }
        )
        return
    table = Table("check", "verdict", "found", "remedy", box=None, pad_edge=False)
    for check in report.checks:
        remedy = "" if check.verdict is Verdict.PASSED else check.remedy
        colour = COLOURS[check.verdict]
        table.add_row(check.name, f"[{colour}]{check.verdict}[/]", check.found, remedy)
    screen = console()
    screen.print(table)
    if report.accepted:
        screen.print(f"{report.topic} may migrate ({report.partitions} partitions).")
    else:
        screen.print(f"[red]{report.topic} may not migrate.[/] Nothing was changed.")
