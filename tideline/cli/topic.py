"""``tideline topic``: which topic a name means, which are deleted, and forgetting one."""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated
from uuid import UUID

import typer
from rich.table import Table

from tideline import control_plane
from tideline.cli.output import Format, FormatOption, age, console, echo, echo_json, run, topic_name
from tideline.cli.writing import changing_plane
from tideline.control_plane import ControlPlane
from tideline.control_plane.model import Tombstone
from tideline.domain.ids import topic_id_from_base64
from tideline.errors import UsageError
from tideline.kafka.client import KafkaCluster
from tideline.kafka.topic_identity import TopicIdentity
from tideline.migration import identity
from tideline.migration.identity import Forgotten, NameCheck
from tideline.settings import WorkerSettings, load

app = typer.Typer(help="Names and ids of tracked topics.", no_args_is_help=True)
NameArgument = Annotated[str, typer.Argument(help="Name of the topic.")]
MOST_SHOWN = 1_000


@app.command()
def check(name: NameArgument, output: FormatOption = Format.TABLE) -> None:
    """Compare the tracked id of NAME with Kafka's, by two whole looks at every broker."""
    found = run(_check(topic_name(name)))
    if output is Format.JSON:
        echo_json(found)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for label, value in asdict(found).items():
        table.add_row(label.replace("_", " "), "" if value is None else str(value))
    console().print(table)


@app.command()
def deleted(
    days: Annotated[int, typer.Option(help="How far back.", min=1)] = 7,
    output: FormatOption = Format.TABLE,
) -> None:
    """Tombstones: topics that are refused for ever, newest first; when, by whom and why."""
    tombstones = run(_deleted(days))
    if output is Format.JSON:
        echo_json({"deleted": tombstones})
        return
    table = Table("topic", "topic id", "deleted", "by", "why", box=None, pad_edge=False)
    for t in tombstones:
        topic_id = "(never had one)" if t.topic_id is None else str(t.topic_id)
        table.add_row(t.name, topic_id, f"{age(t.deleted_at)} ago", t.deleted_by, t.deleted_why)
    console().print(table)


@app.command()
def forget(
    name: NameArgument,
    topic_id: Annotated[
        str, typer.Option("--id", help="The tracked topic id, as `topic check` shows it.")
    ],
    reason: Annotated[str, typer.Option(help="Why; it is kept with the tombstone.")],
    by: Annotated[
        str | None, typer.Option(help="Who decides it (default: the user of this machine).")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Bury a topic that Kafka does not have any more: its id is refused for ever, its name free.

    Refused while a broker knows the id, and while a broker does not answer or lags.
    """
    done = run(_forget(topic_name(name), _id(topic_id), by or getpass.getuser(), reason))
    if output is Format.JSON:
        echo_json(done)
    else:
        echo(f"Topic {done.topic} ({done.topic_id}) is forgotten: {done.by}, {done.why}.")


def _id(text: str) -> UUID:
    """Kafka's own spelling or the usual one."""
    for read in (UUID, topic_id_from_base64):
        try:
            return read(text)
        except ValueError:
            continue
    raise UsageError(f"--id {text!r} is no topic id: take it from `tideline topic check NAME`")


@asynccontextmanager
async def _looking() -> AsyncIterator[tuple[ControlPlane, KafkaCluster]]:
    settings = load(WorkerSettings)
    async with (
        control_plane.connect(settings, application_name="tideline-cli") as plane,
        KafkaCluster.of(settings, "tideline-cli") as cluster,
    ):
        yield plane, cluster


async def _check(name: str) -> NameCheck:
    async with _looking() as (plane, cluster):
        return await identity.check_name(plane, TopicIdentity(cluster), name)


async def _forget(name: str, topic_id: UUID, by: str, reason: str) -> Forgotten:
    async with changing_plane() as (plane, cluster):
        return await identity.forget(plane, TopicIdentity(cluster), name, topic_id, by, reason)


async def _deleted(days: int) -> list[Tombstone]:
    settings = load(WorkerSettings)
    within = int(timedelta(days=days).total_seconds() * 1000)
    async with control_plane.connect(settings, application_name="tideline-cli") as plane:
        return await plane.deleted_topics(within, MOST_SHOWN)
