"""``tideline preflight``: may the topic migrate? Changes nothing."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import typer
from rich.table import Table

from tideline.cli.output import Format, FormatOption, console, echo_json, run
from tideline.domain.migration_input import InvalidMigrationInput, parse_migration_input
from tideline.domain.options import MigrationOptions
from tideline.domain.preflight import PreflightReport, Verdict
from tideline.errors import ExitCode, UsageError
from tideline.migration.connections import WorkerServices, open_services
from tideline.migration.preflight import run_preflight
from tideline.settings import WorkerSettings, load

COLOURS = {
    Verdict.PASSED: "green",
    Verdict.WARNING: "yellow",
    Verdict.REFUSED: "red",
    Verdict.UNKNOWN: "red",
}
POLL_S = 0.1


def preflight(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    output: FormatOption = Format.TABLE,
) -> None:
    """Check whether TOPIC may migrate: each check with its verdict and remedy."""
    report = run(_check(topic_name(topic), MigrationOptions()))
    show(report, output)
    raise typer.Exit(ExitCode.OK if report.accepted else ExitCode.REFUSED)


def topic_name(topic: str) -> str:
    """``topic`` if Kafka allows such a name. Raises :class:`UsageError`."""
    try:
        return parse_migration_input({"topic": topic}).topic
    except InvalidMigrationInput as error:
        raise UsageError(str(error)) from error


async def _check(topic: str, options: MigrationOptions) -> PreflightReport:
    async with open_services(load(WorkerSettings)) as services:
        return await check(services, topic, options)


async def check(services: WorkerServices, topic: str, options: MigrationOptions) -> PreflightReport:
    """Watch the gateways' leases just long enough to tell who is alive, then run every check."""
    with console(stderr=True).status(f"checking {topic}"):
        await _watch_leases(services)
        return await run_preflight(services, topic, options)


async def _watch_leases(services: WorkerServices) -> None:
    """Until every active gateway has renewed its lease, or the longest lease has passed."""
    first = {
        g.gateway_id: (g.incarnation, g.renewals)
        for g in await services.leases.read()
        if g.status == "active"
    }
    leases = [g.lease_ms for g in await services.leases.read() if g.gateway_id in first]
    deadline = time.monotonic() + max(leases, default=0) / 1000 * 1.2
    while time.monotonic() < deadline:
        now = {g.gateway_id: (g.incarnation, g.renewals) for g in await services.leases.read()}
        if all(now.get(gateway) != seen for gateway, seen in first.items()):
            return
        await asyncio.sleep(POLL_S)


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
