"""``tideline configure``, ``complete``, ``gap accept`` and ``request``: decisions of an operator,
each kept with who decided it and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import typer

from tideline import control_plane, temporal
from tideline.cli.output import (
    ByOption,
    Format,
    FormatOption,
    ReasonOption,
    echo,
    echo_json,
    run,
    topic_name,
)
from tideline.cli.steer import TopicArgument, decider_of, update
from tideline.cli.writing import changing_plane, changing_services
from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_gap import in_words
from tideline.domain.messages import TopicRef, Update
from tideline.domain.migration_input import InvalidMigrationInput, parse_options
from tideline.domain.operator_choices import (
    CompletionOutcome,
    ConfigureOutcome,
    ConfigureRequest,
    Decider,
    GapOutcome,
    GapRequest,
)
from tideline.domain.options import OPTIONS
from tideline.errors import RefusedError, UsageError
from tideline.migration.connections import open_services
from tideline.migration.gaps import LogGap, find_gap, give_up_gap
from tideline.migration.gaps import keep_gap as keep_copies
from tideline.migration.overview import find_topic
from tideline.object_store.inventory import KeptSegments
from tideline.settings import WorkerSettings, load

gaps = typer.Typer(help="Log gaps below B0 that nobody can fill.", no_args_is_help=True)
requests = typer.Typer(help="Requests to migrate by config change.", no_args_is_help=True)


def configure(
    topic: TopicArgument,
    reason: ReasonOption,
    option: Annotated[list[str], typer.Option("--option", help="NAME=VALUE, as often as needed.")],
    by: ByOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Change options of the migration of TOPIC that runs, also past the first B0."""
    options = _parsed(option)
    given = ConfigureRequest(options, decider_of(by, reason))
    outcome = run(update(topic_name(topic), Update.CONFIGURE, ConfigureOutcome, given))
    if output is Format.JSON:
        echo_json(asdict(outcome))
        return
    for name, (before, after) in outcome.changed.items():
        echo(f"{topic}: {name} is {after} now, it was {before}.")
    if not outcome.changed:
        echo(f"{topic} runs with these options already.")


def _parsed(pairs: list[str]) -> dict[str, Any]:
    """Values as their option's type. Raises :class:`UsageError` with option, rule and remedy."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in OPTIONS:
            raise UsageError(f"--option {pair!r}: write NAME=VALUE; names are {', '.join(OPTIONS)}")
        known = OPTIONS[name]
        if known.is_number and value.lstrip("-").isdigit():
            options[name] = int(value)
        elif known.type is bool and value in ("true", "false"):
            options[name] = value == "true"
        else:
            options[name] = value
    try:
        parse_options(options)
    except InvalidMigrationInput as error:
        raise UsageError(str(error)) from error
    return options


def complete(
    topic: TopicArgument,
    reason: ReasonOption,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Freeze and seal although a prefix is not whole in remote storage."
        ),
    ] = False,
    by: ByOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """End the migration of TOPIC behind B0. tieringComplete stays false where it is."""
    if not force:
        raise UsageError(
            f"the migration of {topic!r} completes by itself when every prefix is whole in remote "
            "storage. To freeze copying and seal the classic log before, add --force"
        )
    decider = decider_of(by, reason)
    outcome = run(update(topic_name(topic), Update.COMPLETE, CompletionOutcome, decider))
    if output is Format.JSON:
        echo_json(asdict(outcome))
    elif outcome.incomplete:
        left = ", ".join(map(str, outcome.incomplete))
        echo(
            f"{topic} is being frozen and sealed; the prefix of partition {left} stays incomplete. "
            f"`tideline migrate {topic}` takes that back and completes it"
        )
    else:
        echo(f"Every prefix of {topic} is complete: there is nothing to force.")


@gaps.command("show")
def show_gaps(topic: TopicArgument, output: FormatOption = Format.TABLE) -> None:
    """Log gaps of TOPIC as they are now, and which remote segments hold what of them."""
    found = run(_gaps(topic_name(topic)))
    if output is Format.JSON:
        echo_json({"topic": topic, "gaps": [asdict(gap) for gap in found]})
        return
    for gap in found:
        echo(
            f"{topic}-{gap.partition}: log ends {gap.log_ends}, not answering "
            f"{sorted(gap.silent)}; {in_words(gap.parts)}"
        )
    if not found:
        echo(f"{topic} has no log gap: of each partition a replica reaches B0.")


@gaps.command("keep")
def keep_gap(
    topic: TopicArgument,
    partition: Annotated[int, typer.Argument(help="Number of the partition.", min=0)],
    output: FormatOption = Format.TABLE,
) -> None:
    """Copy the segments that hold a part of a log gap to where no broker deletes them."""
    kept = run(_keep(topic_name(topic), partition))
    if output is Format.JSON:
        echo_json(asdict(kept))
    else:
        echo(
            f"{topic}-{partition}: {kept.segments} segments ({kept.objects} objects, {kept.bytes} "
            f"bytes; {kept.copied} objects are new) are kept under {kept.address}"
        )


async def _gaps(topic: str) -> list[LogGap]:
    settings = load(WorkerSettings)
    async with open_services(settings) as services:
        tracked = await services.control_plane.tracked_topic(topic)
        if tracked is None or tracked.topic_id is None:
            raise RefusedError(f"{topic} is not tracked: `tideline status {topic}` says what it is")
        logs = [TopicIdPartition(tracked.topic_id, n) for n in sorted(tracked.partitions)]
        found = [await find_gap(services, topic, log) for log in logs]
    return [gap for gap in found if gap is not None]


async def _keep(topic: str, partition: int) -> KeptSegments:
    settings = load(WorkerSettings)
    topic_id, _ = await find_topic(settings, topic)
    async with changing_services() as services:
        return await keep_copies(services, topic, TopicIdPartition(topic_id, partition))


@gaps.command("accept")
def accept_gap(
    topic: TopicArgument,
    partition: Annotated[int, typer.Argument(help="Number of the partition.", min=0)],
    first: Annotated[int, typer.Option("--from", help="First lost offset.", min=0)],
    end: Annotated[int, typer.Option("--to", help="First offset behind it: B0.", min=1)],
    reason: ReasonOption,
    by: ByOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Give up offsets [from, to) that no replica holds, and no remote segment that was not kept.
    For ever."""
    if first >= end:
        raise UsageError(f"--from {first} --to {end}: the range is empty; --to is behind it")
    decider = decider_of(by, reason)
    outcome = run(_accept_gap(topic_name(topic), partition, first, end, decider))
    if output is Format.JSON:
        echo_json(asdict(outcome))
    else:
        echo(
            f"{topic}-{partition}: offsets {first} to {end - 1} are given up; {decider.by} "
            "decided it. Whoever reads up to them goes on at B0"
        )


async def _accept_gap(
    topic: str, partition: int, first: int, end: int, decider: Decider
) -> GapOutcome:
    """By the migration if one runs, so that it goes on at once; else here."""
    settings = load(WorkerSettings)
    topic_id, _ = await find_topic(settings, topic)
    request = GapRequest(partition, first, end, decider)
    try:
        return await update(topic, Update.ACCEPT_GAP, GapOutcome, request)
    except temporal.NoSuchMigration:
        async with changing_services() as services:
            return await give_up_gap(services, TopicRef(topic, topic_id.hex, 0), request)


@requests.command("list")
def list_requests(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """What became of each topic's newest request."""
    found = run(_requests(topic))
    if output is Format.JSON:
        echo_json({"requests": found})
        return
    for request in found:
        echo(f"{request.topic}: {request.summary()}")
    if not found:
        echo("Nobody has asked for a migration by a config change.")


@requests.command("call-off")
def call_off(
    topic: TopicArgument,
    reason: ReasonOption,
    by: ByOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Do not start what was asked for and is still being tried."""
    name, decider = topic_name(topic), decider_of(by, reason)
    topic_id = run(_call_off(name, decider))
    if output is Format.JSON:
        echo_json({"topic": name, "topic_id": topic_id, "state": "called_off"})
    else:
        echo(f"The request to migrate {name} is called off.")


async def _requests(topic: str | None) -> list[Any]:
    settings = load(WorkerSettings)
    async with control_plane.connect(settings, application_name="tideline-cli") as plane:
        return list(await plane.list_requests(topic))


async def _call_off(topic: str, decider: Decider) -> UUID:
    async with changing_plane() as (plane, _):
        found = await plane.list_requests(topic)
        if not found:
            raise RefusedError(f"nobody has asked for a migration of {topic!r} by a config change")
        newest = found[-1]
        await plane.call_off_request(newest.topic_id, decider.by, decider.why)
        return newest.topic_id
