"""The command ``tideline``. Each command is in its own module; errors end here."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tideline import __version__
from tideline.cli import coverage, export, gateway, migrate, preflight, status, steer, tiering
from tideline.cli.optional import OptionalCommand
from tideline.errors import ExitCode, TidelineError

app = typer.Typer(
    name="tideline",
    help="Moves Apache Kafka topics from tiered to diskless storage, in place.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(preflight.preflight)
app.command()(migrate.migrate)
app.command()(status.status)
app.command()(steer.pause)
app.command()(steer.resume)
app.command()(steer.abort)
app.command()(coverage.coverage)
app.add_typer(gateway.app, name="gateway")
app.add_typer(export.app, name="export")
app.add_typer(tiering.app, name="tiering")
OptionalCommand(
    "retention",
    "tideline.cli.retention",
    "retention",
    "jobs",
    "Apply retention.ms and retention.bytes over prefix and suffix as one log, or show it.",
).add_to(app)
OptionalCommand(
    "gc",
    "tideline.cli.gc",
    "gc",
    "jobs",
    "Delete objects that nothing refers to any more, after a grace, or show them.",
).add_to(app)
OptionalCommand(
    "stack",
    "tideline.cli.stack",
    "app",
    "stack",
    "Postgres, S3, Temporal, Kafka, gateways and worker on this machine.",
).add_to(app)
OptionalCommand(
    "demo",
    "tideline.cli.demo",
    "demo",
    "stack,demo,jobs",
    "Migrate a live tiered topic on real Kafka and prove that nothing was lost.",
).add_to(app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Moves Apache Kafka topics from tiered to diskless storage, in place."""


def main() -> None:
    """Entry point. An error that a person can act on has no traceback; exit codes: docs/cli.md."""
    try:
        app()
        code = ExitCode.OK.value
    except TidelineError as error:
        typer.echo(f"error: {error}", err=True)
        code = error.exit_code.value
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else ExitCode.FAILED.value
    sys.stdout.flush()
    sys.stderr.flush()
    # Native threads of Temporal's client may crash the interpreter's own teardown.
    os._exit(code)
