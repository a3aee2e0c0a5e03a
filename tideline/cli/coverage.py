"""``tideline coverage``: does remote storage hold the prefix of every migrated partition?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tideline.cli.output import (
    Format,
    FormatOption,
    age,
    console,
    echo_json,
    line,
    moment,
    topic_name,
)
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.tiering_model import CoverageStatusRow
from tideline.errors import RefusedError
from tideline.settings import JobsSettings, load


def coverage(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Look now, on this machine's Spark, then show.")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """The last verdict on each partition's prefix: which offsets are missing, since when, and
    what to do."""
    name = topic_name(topic) if topic else None
    if run:
        _run(name)
    with connect_jobs(load(JobsSettings), application_name="tideline-cli") as plane:
        found = plane.coverage_status(name)
    if name is not None and not found:
        raise RefusedError(
            f"topic {name!r} has no prefix below a B0: nothing of it is to be covered. "
            f"`tideline status {name}` tells where it stands"
        )
    if output is Format.JSON:
        echo_json({"partitions": [as_json(row) for row in found]})
        return
    screen = console()
    if not found:
        screen.print("No partition has a prefix below a B0.")
        return
    screen.print(coverage_table(found))
    for said in advice(found):
        screen.print(said)


def _run(topic: str | None) -> None:
    try:
        from spark.coverage.job import coverage as job
    except ModuleNotFoundError as error:
        from tideline.errors import UsageError

        raise UsageError(
            f"`tideline coverage --run` needs the Python module {error.name}: "
            "pip install 'tideline[jobs]'"
        ) from error
    from tideline.cli.jobs import finish, run_here

    topics = [topic] if topic else []
    finish(run_here("coverage", lambda started: job(started, topics, audit=True), whole=not topics))


def as_json(row: CoverageStatusRow) -> dict[str, Any]:
    """A row for programs; times as text."""
    times = ("observed_at", "since", "objects_seen_at")
    return asdict(row) | {name: moment(getattr(row, name)) for name in times}


def coverage_table(rows: Iterable[CoverageStatusRow]) -> Table:
    table = Table(
        "partition", "B0", "any replica may serve", "verdict", "since", "last looked at",
        "objects listed",
        box=None, pad_edge=False,
    )  # fmt: skip
    for row in rows:
        table.add_row(
            f"{row.topic}-{row.partition}",
            str(row.boundary),
            line("yes", "green") if row.tiering_complete else line("no", "red"),
            _verdict(row),
            age(moment(row.since)),
            age(moment(row.observed_at)),
            age(moment(row.objects_seen_at)),
        )
    return table


def _verdict(row: CoverageStatusRow) -> Text | str:
    if row.complete is None:
        return "no run has looked yet"
    return line("covered", "green") if row.complete else line("not covered", "red")


def advice(rows: Iterable[CoverageStatusRow]) -> list[str]:
    """What is missing and what to do, for the partitions that are not covered; then merged
    segments of the suffix that cannot be read."""
    lines = []
    for row in rows:
        name = f"{row.topic}-{row.partition}"
        if row.complete is False:
            lines.append(f"{name}: {row.reason}")
            lines += [f"  remedy: {remedy}" for remedy in row.detail.get("remedies", ())]
        for gap in row.detail.get("merged_gaps", ()):
            lines.append(
                f"{name}: merged segments of [{gap['start']}, {gap['end']}) cannot be read: "
                "restore their objects"
            )
    return lines
