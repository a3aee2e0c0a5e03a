"""``tideline temporal``: what the worker needs of its namespace, made by whoever may."""

from __future__ import annotations

import typer

from tideline import temporal
from tideline.cli.output import Format, FormatOption, echo, echo_json, run
from tideline.settings import TemporalSettings, load

app = typer.Typer(
    help="The namespace of the workflows, for whoever has an operator's rights on Temporal.",
    no_args_is_help=True,
)


@app.callback()
def namespace() -> None:
    """The namespace of the workflows, for whoever has an operator's rights on Temporal."""


@app.command()
def prepare(output: FormatOption = Format.TABLE) -> None:
    """Add the search attributes that the namespace lacks, so that the worker needs no such right.

    May be repeated. Its settings are TemporalSettings' in docs/settings.md.
    """
    added = run(_prepare(load(TemporalSettings)))
    if output is Format.JSON:
        echo_json({"added": added})
        return
    for name in added:
        echo(f"added search attribute {name}")
    echo("The namespace has the search attributes of this version.")


async def _prepare(settings: TemporalSettings) -> list[str]:
    return await temporal.prepare(await temporal.connect(settings))
