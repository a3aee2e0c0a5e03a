"""``tideline limits``: how much migrates at once, over all topics and triggers."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from typing import Annotated

import typer

from tideline import control_plane
from tideline.cli.output import ByOption, Format, FormatOption, ReasonOption, echo, echo_json, run
from tideline.cli.writing import changing_plane
from tideline.control_plane.model import MigrationLimits
from tideline.errors import UsageError
from tideline.settings import WorkerSettings, load

app = typer.Typer(help="How much migrates at once, over all topics.", no_args_is_help=True)


@app.command()
def show(output: FormatOption = Format.TABLE) -> None:
    """What holds now, who set it, and why."""
    run(_show(output))


@app.command("set")
def set_(
    reason: ReasonOption,
    topics: Annotated[
        int | None, typer.Option(min=0, help="Topics that migrate at once; 0: no further one.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=0, help="Partitions of all topics between validation and B0; 0: no further one."
        ),
    ] = None,
    by: ByOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Set both limits: one that is left out is as the settings and options say.

    Migrations that run go by it within half a minute; what has begun goes on.
    """
    if not reason.strip():
        raise UsageError("--reason is empty: it is kept with the decision")
    run(_set(topics, partitions, by or getpass.getuser(), reason))
    run(_show(output))


async def _set(topics: int | None, partitions: int | None, by: str, reason: str) -> None:
    async with changing_plane() as (plane, _):
        await plane.set_migration_limits(topics, partitions, by, reason)


async def _show(output: Format) -> None:
    settings = load(WorkerSettings)
    async with control_plane.connect(settings, application_name="tideline-cli") as plane:
        found = await plane.migration_limits()
    if output is Format.JSON:
        echo_json({"limits": None if found is None else asdict(found)})
    else:
        for said in in_words(found, settings.migration_parallel_topics):
            echo(said)


def in_words(found: MigrationLimits | None, setting: int) -> list[str]:
    """Two lines, and who has set them. ``setting``: topics at once where nobody has said."""
    topics = None if found is None else found.topics
    partitions = None if found is None else found.partitions
    lines = [
        f"topics that migrate at once: {topics}"
        if topics is not None
        else f"topics that migrate at once: {setting}, as this command's settings say",
        f"partitions between validation and B0, of all topics: {partitions}"
        if partitions is not None
        else "partitions between validation and B0: as the options of each topic say",
    ]
    if found is not None:
        lines.append(
            f"set by {found.set_by} at {found.set_at:%Y-%m-%d %H:%M:%S %Z}: {found.reason}"
        )
    return lines
