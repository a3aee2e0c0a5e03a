"""The command ``tideline``. Each command is in a module of its subject; errors end here."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tideline import __version__
from tideline.cli.commands import Commands
from tideline.domain.foreign_text import in_one_line
from tideline.errors import ExitCode, TidelineError
from tideline.settings_files import CONTEXT

app = typer.Typer(
    name="tideline",
    cls=Commands,
    help="Moves Apache Kafka topics from tiered to diskless storage, in place.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
        typer.echo(f"error: {in_one_line(str(error))}", err=True)
        code = error.exit_code.value
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else ExitCode.FAILED.value
    sys.stdout.flush()
    sys.stderr.flush()
    # Native threads of Temporal's client may crash the interpreter's own teardown.
    os._exit(code)
