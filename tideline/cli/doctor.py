"""``tideline doctor``: what a migration needs, looked at as a whole."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.table import Table

from tideline.cli.output import Format, FormatOption, console, echo_json, line, run
from tideline.errors import ExitCode
from tideline.migration.doctor import Verdict, examine
from tideline.settings import WorkerSettings, load

STYLE = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "red"}


def doctor(output: FormatOption = Format.TABLE) -> None:
    """Look at Postgres, object store, brokers, gateways, Temporal and worker, with the settings of
    this command; changes nothing.

    Exit code 1 when a check has failed; warnings alone end with 0.
    """
    found = run(examine(load(WorkerSettings)))
    failed = any(one.verdict is Verdict.FAILED for one in found)
    if output is Format.JSON:
        echo_json({"ok": not failed, "checks": [asdict(one) for one in found]})
    else:
        table = Table("check", "verdict", "found", "remedy", box=None, pad_edge=False)
        for one in found:
            style = STYLE[one.verdict]
            table.add_row(one.check, line(one.verdict, style), one.found, one.remedy)
        console().print(table)
    if failed:
        raise typer.Exit(ExitCode.FAILED)
