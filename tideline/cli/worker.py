"""``tideline worker``: the Temporal worker."""

from __future__ import annotations

import typer

app = typer.Typer(help="The Temporal worker, which carries migrations out.", no_args_is_help=True)


@app.callback()
def worker() -> None:
    """The Temporal worker, which carries migrations out."""


@app.command("run")
def run_worker() -> None:
    """Carry migrations out until SIGTERM or SIGINT.

    Its settings are WorkerSettings' in docs/settings.md.
    """
    from tideline.worker.__main__ import main

    raise typer.Exit(main())
