"""``tideline migrate``: start a topic's migration, or join the one that runs."""

from __future__ import annotations

import asyncio
import getpass
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.live import Live
from temporalio.client import WorkflowHandle

from tideline import temporal
from tideline.cli import preflight as preflight_command
from tideline.cli.output import Format, FormatOption, console, echo, echo_json, run
from tideline.cli.status import overview_tables
from tideline.cli.writing import must_own
from tideline.domain.messages import TopicMigrationInput, TopicOutcome, TopicRef
from tideline.domain.migration_input import InvalidMigrationInput, parse_migration_input
from tideline.domain.operator_choices import differing_options, joined_with_other_options
from tideline.domain.options import OPTIONS, Durability, OpenTransactionsPolicy
from tideline.errors import ExitCode, RefusedError, TidelineError, UsageError
from tideline.migration.connections import WorkerServices, open_services
from tideline.migration.overview import Overviews
from tideline.migration.preflight import run_preflight
from tideline.settings import WorkerSettings, load

REFRESH_EVERY_S = 0.5


def _option(name: str) -> Any:
    """A row of the table of options on the command line."""
    option = OPTIONS[name]
    default = True if option.type is bool else str(option.default)
    return typer.Option(*filter(None, [option.flag]), help=option.help, show_default=default)


def migrate(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only the checks; change nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show the progress until the topic is hybrid.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds to --wait; the migration goes on.", min=0)
    ] = None,
    durability: Annotated[Durability | None, _option("durability")] = None,
    open_transactions: Annotated[
        OpenTransactionsPolicy | None, _option("open_transactions")
    ] = None,
    drain_deadline_ms: Annotated[int | None, _option("drain_deadline_ms")] = None,
    quiesce_hold_ms: Annotated[int | None, _option("quiesce_hold_ms")] = None,
    segment_wait_ms: Annotated[int | None, _option("segment_wait_ms")] = None,
    parallel_partitions: Annotated[int | None, _option("parallel_partitions")] = None,
    first_partitions: Annotated[int | None, _option("first_partitions")] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Start the migration of TOPIC, or join the one that runs."""
    options = {name: context.params[name] for name in OPTIONS}
    try:
        given = parse_migration_input(
            {"topic": topic, "options": options, "requested_by": f"cli: {getpass.getuser()}"}
        )
    except InvalidMigrationInput as error:
        raise UsageError(str(error)) from error
    run(_migrate(given, dry_run=dry_run, wait=wait, timeout=timeout, output=output))


async def _migrate(
    given: TopicMigrationInput, *, dry_run: bool, wait: bool, timeout: float | None, output: Format
) -> None:
    settings = load(WorkerSettings)
    async with open_services(settings) as services:
        if dry_run:
            report, effort = await preflight_command.check(services, given.topic, given.options)
            preflight_command.show(report, output, effort)
            raise typer.Exit(ExitCode.OK if report.accepted else ExitCode.REFUSED)
        # First: preflight would find gateways that do not live in this Postgres, and advise to
        # retire them.
        await must_own(services)
        report = await run_preflight(services, given.topic, given.options)
        if not report.accepted:
            if output is Format.JSON:
                preflight_command.show(report, output)
            raise RefusedError(
                f"{given.topic!r} may not migrate, nothing was changed: {report.refusal()}"
            )
        ref = TopicRef(given.topic, UUID(report.topic_id).hex, report.partitions)
        client = await temporal.connect(settings)
        handle = await temporal.start_or_join(client, settings.temporal_task_queue, ref, given)
        url = temporal.workflow_url(settings, handle.id)
        running = await temporal.options_in_force(handle) or given.options
        others = differing_options(running, given.options)
        if said := joined_with_other_options(given.topic, others):
            echo(said, err=True)
        if output is Format.TABLE:
            echo(f"{given.topic} migrates: {url or handle.id}")
        elif not wait:
            echo_json(
                {
                    "topic": given.topic,
                    "workflow_id": handle.id,
                    "workflow_url": url,
                    "other_options": others,
                }
            )
        if wait:
            outcome = await _follow(settings, services, handle, given.topic, timeout, output)
            _answer(outcome, handle.id, url, output)


async def _follow(
    settings: WorkerSettings,
    services: WorkerServices,
    handle: WorkflowHandle[Any, TopicOutcome],
    topic: str,
    timeout: float | None,
    output: Format,
) -> TopicOutcome:
    """Show the progress until the workflow ends. Exits with TIMED_OUT at ``timeout`` seconds."""
    overviews = Overviews(settings, services.control_plane)
    result = asyncio.ensure_future(temporal.result_of(handle))
    screen = console(stderr=output is Format.JSON)
    ends = None if timeout is None else asyncio.get_running_loop().time() + timeout
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        while not result.done():
            if ends is not None and asyncio.get_running_loop().time() > ends:
                result.cancel()
                echo(
                    f"error: {topic!r} is not hybrid after {timeout:g} s; the migration goes on. "
                    f"`tideline status {topic}` shows what it waits for",
                    err=True,
                )
                raise typer.Exit(ExitCode.TIMED_OUT)
            if screen.is_terminal:
                try:
                    live.update(overview_tables(await overviews.observe(topic)), refresh=True)
                except TidelineError as error:
                    live.update(str(error), refresh=True)
            await asyncio.wait([result], timeout=REFRESH_EVERY_S)
    return result.result()


def _answer(outcome: TopicOutcome, workflow_id: str, url: str | None, output: Format) -> None:
    if output is Format.JSON:
        echo_json({**asdict(outcome), "workflow_id": workflow_id, "workflow_url": url})
    elif outcome.outcome == "hybrid":
        boundaries = ", ".join(f"{p}: {b0}" for p, b0 in outcome.boundaries.items())
        echo(f"{outcome.topic} is hybrid. B0 by partition: {boundaries}")
        if outcome.reason:
            echo(outcome.reason, err=True)
    else:
        echo(f"{outcome.topic}: {outcome.outcome} {outcome.reason}".rstrip())
    if outcome.outcome != "hybrid":
        raise typer.Exit(ExitCode.FAILED)
