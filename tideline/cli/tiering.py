"""``tideline tiering``: how far aged diskless data has become tiered segments, and steering it."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tideline.cli.output import Format, FormatOption, console, echo_json
from tideline.cli.preflight import topic_name
from tideline.cli.tiering_view import tiering_row, tiering_table
from tideline.control_plane.jobs import JobsControlPlane, connect_jobs
from tideline.errors import RefusedError, UnreachableError, UsageError
from tideline.kafka.topic_policies import read_tiering_policies, suffix_topics
from tideline.settings import JobsSettings, load

app = typer.Typer(
    help="Aged diskless data becomes tiered segments.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
APPLICATION = "tideline-cli"
TopicArgument = Annotated[str, typer.Argument(help="Name of the topic.")]


@app.command()
def status(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Per partition: what is tiered, what waits, what is parked and why, and what comes next."""
    settings = load(JobsSettings)
    name = topic_name(topic) if topic else None
    notes: list[str] = []
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        found = plane.tiering_status(name, _cutoffs(settings, plane, name, notes))
    rows = [tiering_row(row) for row in sorted(found, key=lambda r: (r.topic, r.partition))]
    if name is not None and not rows:
        raise RefusedError(
            f"topic {name!r} has no diskless data: there is nothing to tier. "
            f"`tideline status {name}` tells where it stands"
        )
    if output is Format.JSON:
        echo_json({"partitions": rows, "notes": notes})
        return
    screen = console()
    if rows:
        screen.print(tiering_table(rows))
    else:
        screen.print("No topic has diskless data.")
    for note in notes:
        screen.print(f"note: {note}", style="yellow", markup=False)


def _cutoffs(
    settings: JobsSettings, plane: JobsControlPlane, topic: str | None, notes: list[str]
) -> dict[Any, int]:
    """Which batches are old enough is Kafka's to say; without it the rest is still shown."""
    try:
        topics = [t for t in suffix_topics(plane) if topic is None or t.name == topic]
        rules = read_tiering_policies(settings, topics)
    except UnreachableError as error:
        if "kafka" not in type(error).__module__:
            raise
        notes.append(f"{error}; what is eligible is not known")
        return {}
    notes += [f"{name}: {reason}" for name, reason in rules.left_alone.items()]
    return rules.cutoffs(round(time.time() * 1000))


@app.command()
def trigger(
    topic: TopicArgument,
    now: Annotated[
        bool, typer.Option("--now", help="Also run the pipeline here, on this machine's Spark.")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Tier everything that TOPIC has committed until now, whatever its age; un-park what failed."""
    settings, name = load(JobsSettings), topic_name(topic)
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        plane.request_tiering(name)
    if now:
        raise typer.Exit(_run_here(name))
    _tell(output, name, "requested", f"{name}: the next run tiers all that is committed now.")


def _run_here(topic: str) -> int:
    try:
        from spark.common.entry import launch, run_job
        from spark.tiering import job as tiering
    except ModuleNotFoundError as error:
        raise UsageError(
            f"`--now` needs the Python module {error.name}: pip install 'tideline[jobs]'. The "
            "request stands; the next scheduled run takes it up"
        ) from error
    return int(run_job("tiering", lambda job: tiering.work(job, (topic,)), launch()))


@app.command()
def pause(topic: TopicArgument, output: FormatOption = Format.TABLE) -> None:
    """Begin no further split or merge of TOPIC; what runs ends. Reading and writing go on."""
    settings, name = load(JobsSettings), topic_name(topic)
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        plane.pause_tiering(name)
    _tell(output, name, "paused", f"{name}: tiering is paused.")


@app.command()
def resume(topic: TopicArgument, output: FormatOption = Format.TABLE) -> None:
    """Tier TOPIC again; what was parked is tried anew."""
    settings, name = load(JobsSettings), topic_name(topic)
    with connect_jobs(settings, application_name=APPLICATION) as plane:
        plane.resume_tiering(name)
    _tell(output, name, "resumed", f"{name}: tiering goes on.")


def _tell(output: Format, topic: str, tiering: str, text: str) -> None:
    if output is Format.JSON:
        echo_json({"topic": topic, "tiering": tiering})
    else:
        typer.echo(text)
