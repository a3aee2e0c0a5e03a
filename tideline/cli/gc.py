"""``tideline gc``: delete objects that nothing refers to any more, or show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from spark.gc.job import gc as job
from tideline.cli.jobs import DryRunFlag, RunFlag, choose, finish, run_here
from tideline.cli.output import Format, FormatOption, console, echo_json

KINDS = {"wal": "WAL objects", "split": "split files", "segment": "objects of merged segments"}


def gc(
    dry_run: DryRunFlag = False,
    run: RunFlag = False,
    orphans: Annotated[
        bool, typer.Option(help="Also list the buckets for objects that nothing knows.")
    ] = True,
    output: FormatOption = Format.TABLE,
) -> None:
    """Delete objects that nothing refers to any more, after their grace."""
    outcome = run_here("gc", job(choose(dry_run, run, "gc"), orphans))
    if output is Format.JSON:
        echo_json(outcome.details)
    else:
        show(outcome.details)
    finish(outcome)


def show(details: Mapping[str, Any]) -> None:
    """The result for people."""
    screen = console()
    if details["dry_run"]:
        for kind, name in KINDS.items():
            due, later = details["due"].get(kind, 0), details["later"].get(kind, 0)
            screen.print(f"{name}: {due} would go now, {later} after their grace")
        for entry in details["objects"]:
            if entry["due"]:
                screen.print(f"  {entry['bucket']}: {entry['key']}", markup=False)
    else:
        screen.print(f"WAL objects deleted: {details['wal_objects_deleted']}")
        screen.print(f"split files and segment objects deleted: {details['objects_deleted']}")
        screen.print(f"batch rows pruned: {details['batches_pruned']}")
    if "listed" in details:
        gone = details.get("orphans_deleted", details.get("orphans_due", 0))
        verb = "would go now" if details["dry_run"] else "deleted"
        screen.print(
            f"listed {details['listed']} objects: {details['orphans_found']} are known to nobody, "
            f"{gone} of them {verb}"
        )
        for topic, reason in details["orphans_not_looked_for"].items():
            screen.print(f"not looked at: {topic}: {reason}", markup=False)
        if details["segments_not_judged"]:
            screen.print(f"segments were not judged: {details['segments_not_judged']}")
