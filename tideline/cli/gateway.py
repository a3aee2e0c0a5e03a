"""``tideline gateway``: who speaks for Kafka, and striking one off."""

from __future__ import annotations

import asyncio
import getpass
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.table import Table
from rich.text import Text

from tideline import control_plane
from tideline.cli.output import Format, FormatOption, age, console, echo, echo_json, line, run
from tideline.cli.writing import changing_plane
from tideline.control_plane.model import UNACCOUNTED, GatewayRegistration, unaccounted_reason
from tideline.domain.stand_in import stand_ins_of
from tideline.errors import UsageError
from tideline.pages import read_state
from tideline.settings import WorkerSettings, load

app = typer.Typer(help="One gateway, and those that have registered.", no_args_is_help=True)
WATCH_FOR = 1.5
"""Of a lease: a gateway renews about three times in one."""


@app.command("run")
def run_gateway() -> None:
    """Serve as the gateway beside one broker until SIGTERM or SIGINT.

    Its settings are GatewaySettings' in docs/settings.md.
    """
    from tideline.gateway.__main__ import main

    raise typer.Exit(main())


@app.command("list")
def list_gateways(output: FormatOption = Format.TABLE) -> None:
    """Every gateway ever registered, whether it renews its lease now, and what may still run."""
    gateways, alive = run(_observe())
    rows = [
        {
            "gateway_id": g.gateway_id,
            "broker_id": g.broker_id,
            "status": g.status,
            "renews_its_lease": g.incarnation in alive,
            "lease_ms": g.lease_ms,
            "address": g.address,
            "rack": g.rack,
            "version": g.version,
            "incarnation": g.incarnation,
            "registered_at": g.registered_at,
            "serving": g.serving,
            "stand_ins": g.stand_ins,
        }
        for g in gateways
    ]
    if output is Format.JSON:
        echo_json({"gateways": rows})
        return
    table = Table(
        "gateway", "broker", "status", "lease", "serves", "address", "stands in for", "version",
        "registered", box=None, pad_edge=False,
    )  # fmt: skip
    for g in gateways:
        lease: Text | str = (
            "" if g.status in ("retired", UNACCOUNTED) else line("not renewed", "red")
        )
        table.add_row(
            str(g.gateway_id),
            str(g.broker_id),
            g.status,
            line("renewed", "green") if g.incarnation in alive else lease,
            _serves(g),
            g.address,
            ", ".join(map(str, sorted(stand_ins_of(g.stand_ins)))) or "-",
            g.version,
            f"{age(g.registered_at)} ago",
        )
    console().print(table)
    for g in gateways:
        if g.status == UNACCOUNTED:
            echo(unaccounted_reason(g))


def _serves(gateway: GatewayRegistration) -> Text | str:
    """Whether it accepts connections, as it said itself."""
    if gateway.status != "active":
        return ""
    return line("yes", "green") if gateway.serving else line("no", "red")


async def _observe() -> tuple[list[GatewayRegistration], set[UUID]]:
    """The registrations and what was replaced and may still run; which of them renewed while they
    were watched."""
    settings = load(WorkerSettings)
    async with control_plane.connect(settings, application_name="tideline-cli") as plane:
        first = await plane.list_gateways()
        active = [g for g in first if g.status == "active"]
        if active:
            with console(stderr=True).status("watching the leases"):
                await asyncio.sleep(max(g.lease_ms for g in active) / 1000 / 3 * WATCH_FOR)
        before: dict[int, Any] = {g.gateway_id: (g.incarnation, g.renewals) for g in active}
        now = await plane.list_gateways()
        unaccounted = await plane.unaccounted_incarnations()
    alive = {
        g.incarnation
        for g in now
        if g.status == "active" and before.get(g.gateway_id) != (g.incarnation, g.renewals)
    }
    return [*now, *unaccounted], alive


@app.command()
def show(
    address: Annotated[
        str, typer.Argument(help="host:port of its TIDELINE_METRICS_ADDRESS, as it is reached.")
    ],
    topic: Annotated[str | None, typer.Option(help="Each partition of this topic.")] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """What one gateway believes now: why it is not ready, its lease, what is tracked and how each
    partition is routed there. Asks the gateway itself, nobody else."""
    found = read_state(address, topic)
    if output is Format.JSON:
        echo_json(found)
        return
    topics, one = found.pop("topics", {}), found.pop("topic", None)
    for name, value in found.items():
        echo(f"{name}: {_plain(value)}")
    if topic is not None and one is None:
        echo(f"topic {topic}: not tracked here")
        return
    rows = one["partitions"] if one else [{"topic": name, **row} for name, row in topics.items()]
    if rows:
        table = Table(*rows[0], box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(_plain(value) for value in row.values()))
        console().print(table)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)


@app.command()
def retire(
    gateway_id: Annotated[int, typer.Argument(help="The gateway's number.", min=0)],
    cut_off: Annotated[
        bool,
        typer.Option(
            "--cut-off",
            help="Attest that no client reaches this gateway and that it reaches no broker.",
        ),
    ] = False,
    attested_by: Annotated[
        str | None, typer.Option(help="Who attests it (default: the user of this machine).")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Strike a gateway off every barrier. It can never register again under this number."""
    if not cut_off:
        raise UsageError(
            f"retiring gateway {gateway_id} is safe only if it is cut off: a gateway that still "
            "serves clients would acknowledge records that the migration does not see. Make sure, "
            "then add --cut-off"
        )
    by = attested_by or getpass.getuser()
    run(_retire(gateway_id, by))
    if output is Format.JSON:
        echo_json({"gateway_id": gateway_id, "status": "retired", "attested_by": by})
    else:
        echo(f"Gateway {gateway_id} is retired; {by} attested that it is cut off.")


async def _retire(gateway_id: int, attested_by: str) -> None:
    async with changing_plane() as (plane, _):
        await plane.retire_gateway(gateway_id, attested_by)


@app.command()
def account(
    gateway_id: Annotated[int, typer.Argument(help="The gateway's number.", min=0)],
    incarnations: Annotated[
        list[UUID], typer.Argument(help="Incarnations, as `tideline gateway list` shows them.")
    ],
    gone: Annotated[
        bool, typer.Option("--gone", help="Attest that their processes do not run any more.")
    ] = False,
    attested_by: Annotated[
        str | None, typer.Option(help="Who attests it (default: the user of this machine).")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Say that replaced incarnations of a gateway are gone. The gateway itself goes on."""
    named = ", ".join(map(str, incarnations))
    if not gone:
        raise UsageError(
            f"accounting for {named} is safe only if the process is gone: one that still runs, cut "
            "off from Postgres, would acknowledge records of topics that it never heard of. Make "
            "sure, then add --gone"
        )
    by = attested_by or getpass.getuser()
    run(_account(gateway_id, incarnations, by))
    if output is Format.JSON:
        echo_json({"gateway_id": gateway_id, "incarnations": incarnations, "attested_by": by})
    else:
        echo(f"Gateway {gateway_id}: {by} attested that {named} is gone.")


async def _account(gateway_id: int, incarnations: list[UUID], attested_by: str) -> None:
    async with changing_plane() as (plane, _):
        await plane.attest_incarnations_gone(gateway_id, incarnations, attested_by)
