"""The command ``tideline``. Each command is in a module of its subject; errors end here."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from tideline import __version__
from tideline.cli import (
    cluster,
    coverage,
    database,
    doctor,
    export,
    gateway,
    installation,
    migrate,
    operators,
    preflight,
    rebuild,
    replicas,
    status,
    steer,
    tiered_storage,
    tiering,
    topic,
    worker,
)
from tideline.errors import ExitCode, TidelineError, UsageError
from tideline.settings_files import CONTEXT

PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
"""Options and ``--help`` belong to the command behind."""


@dataclass(frozen=True, slots=True)
class OptionalCommand:
    """``module:attribute`` is a Typer application, or a function to make one of."""

    name: str
    module: str
    attribute: str
    extras: str
    help: str

    def add_to(self, app: typer.Typer) -> None:
        app.command(self.name, context_settings=dict(PASS_ON), help=self.help)(self._run)

    def _run(self, context: typer.Context) -> None:
        command = self._load()
        command(args=context.args, prog_name=f"tideline {self.name}")

    def _load(self) -> typer.Typer:
        try:
            found = getattr(importlib.import_module(self.module), self.attribute)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"`tideline {self.name}` needs the Python module {error.name}: "
                f"pip install 'tideline[{self.extras}]'"
            ) from error
        if isinstance(found, typer.Typer):
            found.pretty_exceptions_enable = False
            return found
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command()(found)
        return alone


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
app.command()(operators.configure)
app.command()(operators.complete)
app.command()(coverage.coverage)
app.command()(rebuild.rebuild)
app.command()(doctor.doctor)
app.add_typer(database.app, name="db")
app.add_typer(worker.app, name="worker")
app.add_typer(cluster.app, name="cluster")
app.add_typer(gateway.app, name="gateway")
app.add_typer(installation.app, name="installation")
app.add_typer(operators.gaps, name="gap")
app.add_typer(operators.requests, name="request")
app.add_typer(replicas.app, name="replicas")
app.add_typer(topic.app, name="topic")
app.add_typer(export.app, name="export")
app.add_typer(tiering.app, name="tiering")
app.add_typer(tiered_storage.app, name="tiered-storage")
OptionalCommand(
    "retention",
    "tideline.cli.jobs",
    "retention",
    "jobs",
    "Apply retention.ms and retention.bytes over prefix and suffix as one log, or show it.",
).add_to(app)
OptionalCommand(
    "gc",
    "tideline.cli.collection",
    "app",
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


def _choose_context(name: str | None) -> None:
    if name:
        os.environ[CONTEXT] = name


@app.callback()
def root(
    context: Annotated[
        str | None,
        typer.Option(
            callback=_choose_context,
            is_eager=True,
            help=f"Of the settings file that TIDELINE_CONFIG names; else {CONTEXT}.",
        ),
    ] = None,
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
