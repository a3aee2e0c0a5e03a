"""``tideline stack``: the embedded stack on this machine."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tideline.cli.output import console, echo, echo_json, line
from tideline.errors import UsageError
from tideline.stack import ALL_PARTS, Stack
from tideline.stack.progress import live_progress
from tideline.stack.stack import ProgramStatus
from tideline.stack.startup import tail

app = typer.Typer(
    help="Postgres, S3, Temporal, Kafka, gateways and worker on this machine's loopback.",
    no_args_is_help=True,
)

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", envvar="TIDELINE_HOME", help="Where the stack keeps its files."),
]
OutputOption = Annotated[str, typer.Option("-o", "--output", help="table or json")]


@app.command()
def up(
    home: HomeOption = None,
    brokers: Annotated[
        int | None, typer.Option(help="Number of brokers, fixed at the first start (default: 3).")
    ] = None,
    racks: Annotated[
        int | None,
        typer.Option(help="Racks that the brokers go round (default: one for each broker)."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help=f"Leave out a part: {', '.join(ALL_PARTS)}.")
    ] = None,
    secure: Annotated[
        bool | None,
        typer.Option(
            "--secure", help="TLS, logins and rights; fixed at the first start.", show_default=False
        ),
    ] = None,
    airflow: Annotated[
        bool, typer.Option("--airflow", help="Airflow, too, with the DAGs in it.")
    ] = False,
) -> None:
    """Start what does not run yet, and show what is where."""
    left_out = without or []
    if unknown := sorted(set(left_out) - set(ALL_PARTS)):
        raise UsageError(
            f"--without {unknown[0]}: no such part. Choose among: {', '.join(ALL_PARTS)}."
        )
    screen = console()
    since = time.monotonic()
    with live_progress(screen) as progress:
        stack = Stack.up(
            home,
            brokers=brokers,
            parts=[
                *(part for part in ALL_PARTS if part not in left_out),
                *(["airflow"] if airflow else []),
            ],
            progress=progress,
            racks=racks,
            secure=secure,
        )
    if stack.was_running:
        screen.print(f"The stack in {stack.home} was running already.")
    else:
        screen.print(f"The stack is up after {time.monotonic() - since:.1f} s in {stack.home}.")
    endpoints = stack.endpoints
    screen.print(f"Kafka clients bootstrap to {endpoints.gateway_bootstrap}", soft_wrap=True)
    if stack.kafka_login().protocol.is_sasl:
        screen.print(f"with {stack.home / 'client.properties'}", soft_wrap=True)
    screen.print(f"Temporal UI: {endpoints.temporal_ui}", soft_wrap=True)
    for row in stack.status() if airflow else ():
        if row.info.name == "airflow-api":
            screen.print(f"Airflow UI: {row.where}", soft_wrap=True)


@app.command()
def down(
    home: HomeOption = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove its data, logs and credentials, too.")
    ] = False,
) -> None:
    """Stop every process of the stack; its data stays."""
    screen = console()
    with screen.status("stopping"):
        stopped = Stack.purge(home) if purge else Stack.take_down(home)
    if stopped.programs:
        screen.print(f"Stopped {', '.join(stopped.programs)}.", soft_wrap=True)
    if stopped.leftovers:
        names = ", ".join(stopped.leftovers)
        screen.print(f"Ended what was left over without supervision: {names}.", soft_wrap=True)
    if not stopped.programs and not stopped.leftovers:
        screen.print("Nothing was running.")
    screen.print(f"No process of this stack is left ({stopped.seconds:.1f} s).")
    if purge:
        screen.print("Its files are removed.")


@app.command()
def status(home: HomeOption = None, output: OutputOption = "table") -> None:
    """What runs, where, and since when."""
    stack = Stack.attach(home)
    rows = stack.status()
    if output == "json":
        echo_json({"home": str(stack.home), "programs": [_json(row) for row in rows]})
        return
    if output != "table":
        raise UsageError(f"-o {output}: choose table or json")
    table = Table("program", "state", "pid", "since", "where", box=None, pad_edge=False)
    for row in rows:
        info = row.info
        table.add_row(
            info.name,
            line(info.state.lower(), "green" if info.is_up else "red"),
            str(info.pid or ""),
            _duration(info.uptime_s) if info.pid else "",
            row.where,
        )
    screen = console()
    screen.print(table)
    screen.print(f"Logs are in {stack.home / 'logs'}; read one: tideline stack logs NAME")


@app.command()
def logs(
    name: Annotated[str, typer.Argument(help="A program, for example kafka-1.")],
    home: HomeOption = None,
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, max=10_000)] = 100,
    follow: Annotated[bool, typer.Option("-f", "--follow")] = False,
) -> None:
    """The end of a program's log, of a stack that runs or ran."""
    path = Stack.attach(home, running=False).log_path(name)
    if follow:
        subprocess.run(["tail", f"--lines={lines}", "-F", str(path)], check=False)
        return
    for said in tail(path, lines, limit_bytes=lines * 2_000):
        echo(said)


def _json(row: ProgramStatus) -> dict[str, object]:
    return {
        "name": row.info.name,
        "state": row.info.state.lower(),
        "pid": row.info.pid,
        "uptime_s": row.info.uptime_s,
        "where": row.where,
        "log": str(row.log),
    }


def _duration(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )
