"""``tideline installation``: whether Kafka, Postgres and the buckets belong together."""

from __future__ import annotations

import asyncio
import getpass
from dataclasses import asdict
from typing import Annotated

import typer

from tideline import control_plane, ownership
from tideline.cli.output import Format, FormatOption, echo, echo_json, run
from tideline.domain.history import ServerIdentity, WrongHistory, disagreement
from tideline.errors import ExitCode, UsageError
from tideline.kafka.client import KafkaCluster
from tideline.object_store.client import ObjectStoreClient
from tideline.settings import WorkerSettings, load

app = typer.Typer(help="What belongs to this installation, and its history.", no_args_is_help=True)
APPLICATION = "tideline-cli"


@app.command()
def show(output: FormatOption = Format.TABLE) -> None:
    """What Kafka, Postgres and both buckets say of themselves, and whether they agree.

    Ends with 4 (refused) when they do not. Changes nothing.
    """
    found = run(_look(load(WorkerSettings)))
    if output is Format.JSON:
        echo_json(found)
    else:
        for name, value in found.items():
            echo(f"{name}: {value if value is not None else '(none)'}")
    raise typer.Exit(ExitCode.REFUSED if found["disagreement"] else ExitCode.OK)


@app.command()
def adopt(
    reason: Annotated[
        str, typer.Option(help="What was compared, and why this Postgres is the right one.")
    ],
    by: Annotated[
        str | None, typer.Option("--by", help="Who decides it (default: the user of this machine).")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Go on with this Postgres as it is, under a new history: commits that it lacks are given up.

    Both owner objects are written anew. Gateways and workers that knew the history before stop
    until they are started again. Compare first: docs/failures.md.
    """
    if not reason.strip():
        raise UsageError("--reason is empty: it is kept as the record of what was compared")
    now = run(_adopt(load(WorkerSettings), by or getpass.getuser(), reason))
    if output is Format.JSON:
        echo_json(asdict(now))
    else:
        echo(f"History {now.history_id} begins. Start the gateways and the worker again.")


async def _look(settings: WorkerSettings) -> dict[str, object]:
    store = ObjectStoreClient(settings)
    async with (
        control_plane.connect(settings, application_name=APPLICATION) as plane,
        _kafka(settings) as cluster,
    ):
        cluster_id = await cluster.cluster_id()
        problem: str | None = None
        position: ServerIdentity | None = None
        try:
            position = await asyncio.to_thread(ownership.fleet_position, store, settings)
        except WrongHistory as error:
            problem = str(error)
        now = await plane.identity(position)
        if position is not None:
            problem = problem or disagreement(position, now)
        owners: dict[str, object] = {}
        for place in ownership.places(settings):
            owners[f"owner of {place}"] = await asyncio.to_thread(ownership.owner_of, store, place)
        try:
            await asyncio.to_thread(ownership.must_own, store, settings, now, cluster_id)
        except WrongHistory as error:
            problem = problem or str(error)
    return {
        "kafka cluster": cluster_id,
        **{f"postgres {name}": value for name, value in asdict(now).items() if name != "token"},
        "fleet has seen": None if position is None else f"{position}, beat {position.beat}",
        **owners,
        "disagreement": problem,
    }


async def _adopt(settings: WorkerSettings, by: str, reason: str) -> ServerIdentity:
    store = ObjectStoreClient(settings)
    async with (
        control_plane.connect(settings, application_name=APPLICATION) as plane,
        _kafka(settings) as cluster,
    ):
        cluster_id = await cluster.cluster_id()
        return await ownership.adopt(plane, store, settings, cluster_id, begun_by=by, reason=reason)


def _kafka(settings: WorkerSettings) -> KafkaCluster:
    return KafkaCluster.of(settings, APPLICATION)
