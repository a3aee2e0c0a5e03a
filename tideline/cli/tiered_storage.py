"""``tideline tiered-storage``: switch a topic's tiered storage off and on, and look at it."""

from __future__ import annotations

import asyncio
import getpass
from dataclasses import asdict, replace
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.table import Table
from temporalio.client import Client, WorkflowHandle

from tideline import temporal
from tideline.cli.output import Format, FormatOption, console, echo, echo_json, run, topic_name
from tideline.cli.writing import changing_services
from tideline.domain.messages import TopicRef
from tideline.domain.tiered_storage import NOT_WITHOUT_DELETING, LocalRetention, Target
from tideline.domain.tiered_storage_change import (
    BIGGEST,
    COLLECT_AFTER_S,
    LONGEST_GRACE_S,
    TieredStorageInput,
    TieredStorageOutcome,
    TieredStorageStatus,
)
from tideline.errors import ExitCode, RefusedError, TidelineError, UsageError
from tideline.migration.connections import open_services
from tideline.migration.tiered_storage import PartitionTiering, TopicTiering, look, review
from tideline.settings import WorkerSettings, load

LOOK_EVERY_S = 1.0
app = typer.Typer(
    help="Make a tiered topic read-only, switch it off, or enable it again (KIP-950).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
TopicArgument = Annotated[str, typer.Argument(help="Name of the topic.")]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Show what it waits for until it is done.")
]
TimeoutOption = Annotated[
    float | None, typer.Option(help="Seconds to --wait; the workflow goes on.", min=0)
]
CollectOption = Annotated[
    int,
    typer.Option(
        help="Seconds after which what Kafka has not deleted is collected.",
        min=0,
        max=LONGEST_GRACE_S,
    ),
]
LOCAL_HELP = "To have at the end (default: the topic's own)."


@app.command("read-only")
def read_only(
    topic: TopicArgument,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Upload nothing more of TOPIC; what is tiered stays readable and expires by retention.

    Local retention becomes the topic's whole retention: Kafka takes no other one.
    """
    _switch(topic, Target.READ_ONLY, wait=wait, timeout=timeout, output=output)


@app.command()
def disable(
    topic: TopicArgument,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep what is tiered: the same as read-only.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete what is tiered, from the log too.")
    ] = False,
    collect_after_s: CollectOption = COLLECT_AFTER_S,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Switch tiered storage of TOPIC off, and keep or delete what is tiered."""
    if keep and delete:
        raise UsageError("--keep and --delete: choose one of them")
    if not (keep or delete):
        raise RefusedError(
            f"{topic!r}: choose `--keep` or `--delete`; Kafka would say: {NOT_WITHOUT_DELETING}"
        )
    target = Target.READ_ONLY if keep else Target.DISABLED
    about = {"collect_after_s": collect_after_s}
    _switch(topic, target, wait=wait, timeout=timeout, output=output, **about)


@app.command()
def enable(
    topic: TopicArgument,
    local_retention_ms: Annotated[
        int | None, typer.Option(help=LOCAL_HELP, min=-2, max=BIGGEST)
    ] = None,
    local_retention_bytes: Annotated[
        int | None, typer.Option(help=LOCAL_HELP, min=-2, max=BIGGEST)
    ] = None,
    collect_after_s: CollectOption = COLLECT_AFTER_S,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Enable tiered storage of TOPIC again, or make one safe that was enabled by hand.

    Local retention is held until all that Kafka takes for tiered is, or has expired.
    """
    _switch(
        topic,
        Target.ENABLED,
        wait=wait,
        timeout=timeout,
        output=output,
        local_retention_ms=local_retention_ms,
        local_retention_bytes=local_retention_bytes,
        collect_after_s=collect_after_s,
    )


@app.command()
def resume(
    topic: TopicArgument,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Finish a switch of TOPIC that was terminated while it held local retention.

    It goes to the same target, and gives back the local retention that the topic had before. Any
    other command of this kind gives it back, too, on the way to its own target. Refused while a
    workflow of TOPIC runs.
    """
    run(_resume(topic_name(topic), wait=wait, timeout=timeout, output=output))


@app.command()
def show(topic: TopicArgument, output: FormatOption = Format.TABLE) -> None:
    """The state of TOPIC's tiered storage, what is where, and what a switch waits for."""
    found, running, left = run(_look(topic_name(topic)))
    if output is Format.JSON:
        unfinished = None if left is None else asdict(left)
        echo_json(
            {
                **asdict(found),
                "proven": found.proven,
                "switch": running,
                "unfinished": unfinished,
            }
        )
        return
    screen = console()
    screen.print(topic_table(found))
    for key, value in found.configs.items():
        screen.print(f"{key}={value}")
    for partition in found.partitions:
        if partition.not_proven:
            why = f"note: partition {partition.partition}: {partition.not_proven}"
            screen.print(why, style="yellow")
    if running is not None:
        screen.print(_line(running))
    elif left is not None:
        screen.print(_left(left), style="yellow")
    elif not found.proven:
        screen.print(
            f"note: local retention is not held: run `tideline tiered-storage enable {topic}`",
            style="yellow",
            markup=False,
        )


def topic_table(found: TopicTiering) -> Table:
    table = Table(
        "partition", "log start", "local start", "log end", "highest tiered", "segments", "bytes",
        "objects", title=f"{found.topic}: {found.state}", title_justify="left", box=None,
        pad_edge=False,
    )  # fmt: skip
    for p in found.partitions:
        table.add_row(*_cells(p))
    return table


def _cells(p: PartitionTiering) -> tuple[str, ...]:
    tiered = "" if p.highest_tiered < 0 else p.highest_tiered
    row = (p.partition, p.log_start, p.local_start, p.log_end, tiered, p.segments, p.remote_bytes)
    return tuple(map(str, (*row, p.objects)))


def _left(left: TieredStorageInput) -> str:
    before = (left.before_hold or LocalRetention()).configs().items()
    users = ", ".join(f"{key}={'(not set)' if value is None else value}" for key, value in before)
    return (
        f"note: a switch to {left.target} has ended before it was done, and has left local "
        f"retention held; before it was {users}. `tideline tiered-storage resume {left.topic}` "
        "goes on with it"
    )


async def _look(
    topic: str,
) -> tuple[TopicTiering, TieredStorageStatus | None, TieredStorageInput | None]:
    settings = load(WorkerSettings)
    async with open_services(settings) as services:
        found = await look(services, topic)
    running, left = None, None
    try:
        client = await temporal.connect(settings)
        running = await temporal.tiered_storage_status(client, topic, UUID(found.topic_id))
        ref = TopicRef(topic, UUID(found.topic_id).hex, len(found.partitions))
        left = await temporal.unfinished_change(client, ref)
    except TidelineError as error:
        echo(f"note: whether a switch runs is not known: {error}", err=True)
    return found, running, left


def _switch(
    topic: str, target: Target, *, wait: bool, timeout: float | None, output: Format, **about: Any
) -> None:
    given = TieredStorageInput(topic_name(topic), target.value, requested_by=_caller(), **about)
    run(_start(given, wait=wait, timeout=timeout, output=output))


def _caller() -> str:
    return f"cli: {getpass.getuser()}"


async def _start(
    given: TieredStorageInput, *, wait: bool, timeout: float | None, output: Format
) -> None:
    async with changing_services() as services:
        settings = services.settings
        client = await temporal.connect(settings)
        found = await look(services, given.topic)
        ref = TopicRef(given.topic, UUID(found.topic_id).hex, len(found.partitions))
        given = await temporal.with_what_is_held(client, ref, given)
        await review(services, ref, given)
    queue = settings.temporal_task_queue
    handle = await temporal.start_or_redirect(client, queue, ref, given)
    await _tell(settings, client, handle, ref, given, wait=wait, timeout=timeout, output=output)


async def _resume(topic: str, *, wait: bool, timeout: float | None, output: Format) -> None:
    async with changing_services() as services:
        settings = services.settings
        client = await temporal.connect(settings)
        found = await look(services, topic)
        ref = TopicRef(topic, UUID(found.topic_id).hex, len(found.partitions))
        await temporal.refuse_running(client, ref)
        given = await temporal.unfinished_change(client, ref)
        if given is None:
            echo(f"{topic}: no switch has left local retention held; nothing to finish")
            return
        given = replace(given, requested_by=_caller())
        await review(services, ref, given)
    handle = await temporal.resume_change(client, settings.temporal_task_queue, ref, given)
    await _tell(settings, client, handle, ref, given, wait=wait, timeout=timeout, output=output)


async def _tell(
    settings: WorkerSettings,
    client: Client,
    handle: WorkflowHandle[Any, TieredStorageOutcome],
    ref: TopicRef,
    given: TieredStorageInput,
    *,
    wait: bool,
    timeout: float | None,
    output: Format,
) -> None:
    url = temporal.workflow_url(settings, handle.id)
    about = {"topic": given.topic, "target": given.target, "workflow_id": handle.id}
    if output is Format.TABLE:
        echo(f"{given.topic} becomes {given.target}: {url or handle.id}")
    elif not wait:
        echo_json({**about, "workflow_url": url})
    if wait:
        outcome = await _follow(client, handle, ref, timeout)
        if output is Format.JSON:
            echo_json({**asdict(outcome), "workflow_id": handle.id, "workflow_url": url})
        else:
            echo(_said(outcome))
        if outcome.state != given.target:
            raise typer.Exit(ExitCode.FAILED)


async def _follow(
    client: Client,
    handle: WorkflowHandle[Any, TieredStorageOutcome],
    ref: TopicRef,
    timeout: float | None,
) -> TieredStorageOutcome:
    """Say on stderr what it waits for. Exits with TIMED_OUT at ``timeout`` seconds."""
    loop = asyncio.get_running_loop()
    result = asyncio.ensure_future(temporal.result_of(handle))
    ends, said = None if timeout is None else loop.time() + timeout, ""
    while not result.done():
        if ends is not None and loop.time() > ends:
            result.cancel()
            echo(
                f"error: {ref.topic!r} is not there after {timeout:g} s; the workflow goes on. "
                f"`tideline tiered-storage show {ref.topic}` shows what it waits for",
                err=True,
            )
            raise typer.Exit(ExitCode.TIMED_OUT)
        try:
            topic_id = UUID(ref.topic_id)
            status = await temporal.tiered_storage_status(client, ref.topic, topic_id)
        except TidelineError as error:
            echo(str(error), err=True)
        else:
            if status is not None and (line := _line(status)) != said:
                said = line
                echo(line, err=True)
        await asyncio.wait([result], timeout=LOOK_EVERY_S)
    return result.result()


def _line(status: TieredStorageStatus) -> str:
    why = f": {status.waiting_reason}" if status.waiting_reason else ""
    held = "; local retention is held" if status.holds_local_retention else ""
    return f"to {status.target}: {status.step}{held}{why}"


def _said(outcome: TieredStorageOutcome) -> str:
    text = f"{outcome.topic} is {outcome.state}, it was {outcome.was}."
    if outcome.collected:
        text += f" {outcome.collected} objects that Kafka had left behind were collected."
    return f"{text} {outcome.note}".rstrip()
