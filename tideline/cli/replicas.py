"""``tideline replicas``: whether diskless partitions have one replica in each rack, and moving
them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from tideline import control_plane
from tideline.cli.output import Format, FormatOption, console, echo, echo_json, run, topic_name
from tideline.cli.writing import APPLICATION, changing_plane
from tideline.domain.ids import TopicPartition
from tideline.domain.replica_spread import Assessment
from tideline.errors import ExitCode, RefusedError, UsageError
from tideline.kafka.client import KafkaCluster
from tideline.migration.replicas import Normalised, ReplicaKeeper, ReplicaReport, not_diskless
from tideline.settings import WorkerSettings, load

app = typer.Typer(
    help="Replicas of diskless partitions, one in each rack.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
TopicArgument = Annotated[str | None, typer.Argument(help="Only this topic.")]
AT_ONCE = 10


@app.command()
def report(
    topic: TopicArgument = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also partitions with one replica in each rack.")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Partitions whose replicas are not one in each rack, and what `normalise` would do."""
    name = topic_name(topic) if topic else None
    found = run(_look())
    partitions = _asked_for(found, name)
    shown = [a for a in partitions if everything or not a.rack_aware]
    if output is Format.JSON:
        echo_json(
            {
                "racks": found.racks,
                "moving": found.moving,
                "single_topics": found.single_topics,
                "even": sum(a.rack_aware for a in partitions),
                "partitions": [as_json(a) for a in shown],
            }
        )
        return
    screen = console()
    if shown:
        screen.print(report_table(shown))
    even = sum(a.rack_aware for a in partitions)
    screen.print(
        f"{even} of {len(partitions)} diskless partitions have one replica in each of "
        f"{len(found.racks)} racks ({', '.join(found.racks)}); {found.moving} partitions of the "
        "cluster are being reassigned.",
        markup=False,
    )


@app.command()
def normalise(
    topic: TopicArgument = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would move; change nothing.")
    ] = False,
    run_now: Annotated[bool, typer.Option("--run", help="Move it, and wait until it is.")] = False,
    at_once: Annotated[
        int, typer.Option(help="Partitions of the cluster that are reassigned at once.", min=1)
    ] = AT_ONCE,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait; what has begun goes on (exit code 5).")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Give ready diskless partitions a replica in each rack that has none. Ctrl-C pauses: what has
    begun goes on, and a later run continues."""
    name = topic_name(topic) if topic else None
    if dry_run == run_now:
        raise UsageError(
            "`tideline replicas normalise` moves replicas: say --dry-run to see which, or --run "
            "to do it"
        )
    if dry_run:
        due = [a for a in _asked_for(run(_look()), name) if a.target is not None]
        _show(output, {TopicPartition(a.partition.topic, a.partition.partition): a.target or ()
                       for a in due}, {}, "would get")  # fmt: skip
        return
    done = run(_normalise(name, at_once, timeout, output))
    _show(output, done.moved, done.refused, "got")
    if done.refused:
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def cancel(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    output: FormatOption = Format.TABLE,
) -> None:
    """Take back the reassignments of TOPIC that are under way, whoever began them."""
    name = topic_name(topic)
    partitions = run(_cancel(name))
    if output is Format.JSON:
        echo_json({"topic": name, "cancelled": partitions})
    else:
        echo(f"{name}: {len(partitions)} reassignments are taken back.")


async def _look() -> ReplicaReport:
    settings = load(WorkerSettings)
    async with (
        control_plane.connect(settings, application_name=APPLICATION) as plane,
        KafkaCluster.of(settings, APPLICATION) as cluster,
    ):
        return await _keeper(settings, plane, cluster).look(whole=True)


async def _normalise(
    topic: str | None, at_once: int, timeout: float | None, output: Format
) -> Normalised:
    def told(begun: Mapping[TopicPartition, Sequence[int]]) -> None:
        if output is Format.TABLE:
            for partition, replicas in begun.items():
                echo(f"{partition} is moving to {_nodes(replicas)}")

    async with changing_plane() as (plane, cluster):
        keeper = _keeper(load(WorkerSettings), plane, cluster)
        if topic is not None:
            _asked_for(await keeper.look(whole=False), topic)
        try:
            async with asyncio.timeout(timeout):
                return await keeper.normalise(topic, at_once, told)
        except TimeoutError:
            echo(
                f"error: not all replicas are where they should be after {timeout:g} s; what has "
                "begun goes on. `tideline replicas report` shows what is left",
                err=True,
            )
            raise typer.Exit(ExitCode.TIMED_OUT) from None


async def _cancel(topic: str) -> list[int]:
    async with changing_plane() as (plane, cluster):
        return await _keeper(load(WorkerSettings), plane, cluster).take_back(topic)


def _keeper(
    settings: WorkerSettings, plane: control_plane.ControlPlane, cluster: KafkaCluster
) -> ReplicaKeeper:
    return ReplicaKeeper(plane, cluster, settings.kafka_request_timeout_ms)


def _asked_for(found: ReplicaReport, topic: str | None) -> list[Assessment]:
    partitions = found.of(topic)
    if topic is not None and not partitions:
        raise RefusedError(not_diskless(topic))
    return partitions


def _show(
    output: Format,
    moved: Mapping[TopicPartition, Sequence[int]],
    refused: Mapping[TopicPartition, str],
    verb: str,
) -> None:
    if output is Format.JSON:
        echo_json(
            {
                "moved": [
                    {"topic": p.topic, "partition": p.partition, "replicas": list(replicas)}
                    for p, replicas in moved.items()
                ],
                "refused": [
                    {"topic": p.topic, "partition": p.partition, "error": error}
                    for p, error in refused.items()
                ],
            }
        )
        return
    for partition, replicas in moved.items():
        echo(f"{partition} {verb} replicas {_nodes(replicas)}")
    for partition, error in refused.items():
        echo(f"{partition} was refused by Kafka: {error}", err=True)
    if not moved and not refused:
        echo("No replica is to be moved.")


# What an operator sees. Pure.


def as_json(found: Assessment) -> dict[str, Any]:
    """A partition for programs."""
    placed = found.partition
    return {
        "topic": placed.topic,
        "partition": placed.partition,
        "replicas": list(placed.replicas),
        "in_sync": sorted(placed.in_sync),
        "leader": placed.leader,
        "spread": found.spread.value,
        "missing_racks": list(found.missing),
        "moving": placed.moving,
        "target": None if found.target is None else list(found.target),
        "why_not": found.why_not,
    }


def report_table(found: Sequence[Assessment]) -> Table:
    table = Table(
        "partition", "replicas", "in sync", "leader", "spread", "without a replica", "next",
        box=None, pad_edge=False,
    )  # fmt: skip
    for each in found:
        placed = each.partition
        table.add_row(
            f"{placed.topic}-{placed.partition}",
            _nodes(placed.replicas),
            _nodes(sorted(placed.in_sync)),
            "none" if placed.leader < 0 else str(placed.leader),
            each.spread.value,
            ", ".join(each.missing),
            each.why_not if each.target is None else f"normalise: {_nodes(each.target)}",
        )
    return table


def _nodes(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))
