"""``tideline cluster``: who attests that clients reach the brokers only through gateways."""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from tideline.cli.output import Format, FormatOption, console, echo, echo_json, run
from tideline.cli.writing import changing_services
from tideline.control_plane import ControlPlane
from tideline.control_plane.model import ClusterAttestation
from tideline.errors import UsageError
from tideline.migration.connections import open_services
from tideline.settings import WorkerSettings, load

app = typer.Typer(help="The attestation that the brokers are closed to clients.")
ByOption = Annotated[
    str | None, typer.Option("--by", help="Who says so (default: the user of this machine).")
]


@app.command()
def attest(
    reason: Annotated[
        str, typer.Option(help="How it was made sure that clients cannot reach the brokers.")
    ],
    by: ByOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Attest that clients reach this cluster's brokers only through gateways.

    Without it no topic may migrate: what a client writes into a broker directly from B0 on is
    acknowledged by Kafka and served to nobody.
    """
    who = by or getpass.getuser()
    _given("--reason", reason)
    cluster_id, found = run(
        _with_plane(lambda plane, cluster: plane.attest_cluster(cluster, who, reason), changes=True)
    )
    _show(cluster_id, found, output)


@app.command()
def show(output: FormatOption = Format.TABLE) -> None:
    """Who attests it, and everything that was attested and withdrawn before."""

    async def nothing(plane: ControlPlane, cluster_id: str) -> None:
        """Only look."""

    _show(*run(_with_plane(nothing)), output)


@app.command()
def withdraw(
    reason: Annotated[str, typer.Option(help="Why the attestation does not hold any more.")],
    by: ByOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Withdraw the attestation: no further migration begins; those that have begun go on."""
    who = by or getpass.getuser()
    _given("--reason", reason)
    cluster_id, found = run(
        _with_plane(
            lambda plane, cluster: plane.withdraw_attestation(cluster, who, reason), changes=True
        )
    )
    _show(cluster_id, found, output)


def _given(option: str, value: str) -> None:
    if not value.strip():
        raise UsageError(f"{option} is empty: it is kept as the record of what was made sure")


async def _with_plane(
    change: Callable[[ControlPlane, str], Awaitable[None]], *, changes: bool = False
) -> tuple[str, list[ClusterAttestation]]:
    """The cluster's id, and its attestations after the change, newest first."""
    opened = changing_services() if changes else open_services(load(WorkerSettings))
    async with opened as services:
        cluster_id = await services.cluster.cluster_id()
        await change(services.control_plane, cluster_id)
        return cluster_id, await services.control_plane.attestations(cluster_id)


def _show(cluster_id: str, found: list[ClusterAttestation], output: Format) -> None:
    closed = any(one.in_force for one in found)
    if output is Format.JSON:
        rows = [asdict(one) for one in found]
        echo_json({"cluster_id": cluster_id, "attested": closed, "attestations": rows})
        return
    state = "attested to be closed to clients" if closed else "not attested: no topic may migrate"
    echo(f"Kafka cluster {cluster_id}: {state}")
    if not found:
        return
    table = Table("attested by", "at", "reason", "withdrawn", box=None, pad_edge=False)
    for one in found:
        withdrawn = (
            ""
            if one.withdrawn_at is None
            else f"{one.withdrawn_at:%Y-%m-%d %H:%M} by {one.withdrawn_by}: {one.withdrawn_reason}"
        )
        table.add_row(one.attested_by, f"{one.attested_at:%Y-%m-%d %H:%M}", one.reason, withdrawn)
    console().print(table)
