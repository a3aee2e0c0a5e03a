"""``tideline pause``, ``resume`` and ``abort``: updates of the topic's workflow."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from socket import gethostname
from typing import Annotated, Any, TypeVar

import typer

from tideline import temporal
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
from tideline.domain.messages import AbortDecision, PauseOutcome, Update
from tideline.domain.migration_input import InvalidMigrationInput
from tideline.domain.operator_choices import DECIDER, Decider
from tideline.errors import RefusedError, UsageError
from tideline.migration.overview import find_topic
from tideline.settings import WorkerSettings, load

R = TypeVar("R")

TopicArgument = Annotated[str, typer.Argument(help="Name of the topic.")]


def pause(
    topic: TopicArgument,
    reason: ReasonOption,
    by: ByOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Let no partition of TOPIC begin another phase; a write pause is finished first."""
    outcome = run(update(topic_name(topic), Update.PAUSE, PauseOutcome, decider_of(by, reason)))
    _answer(output, outcome, f"{topic} is paused: {outcome.explanation}.")


def resume(
    topic: TopicArgument,
    reason: ReasonOption,
    by: ByOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Let the migration of TOPIC go on, and try at once what it waits for."""
    outcome = run(update(topic_name(topic), Update.RESUME, PauseOutcome, decider_of(by, reason)))
    _answer(output, outcome, f"{topic} {outcome.explanation}.")


def abort(
    topic: TopicArgument,
    reason: ReasonOption,
    by: ByOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Undo the migration of TOPIC, if no partition has its B0 yet. Postgres decides."""
    decision = run(update(topic_name(topic), Update.ABORT, AbortDecision, decider_of(by, reason)))
    if not decision.won:
        if output is Format.JSON:
            echo_json(asdict(decision))
        raise RefusedError(
            f"the abort of {topic!r} was refused: {decision.reason}. From B0 on a migration only "
            "goes forward"
        )
    _answer(
        output,
        decision,
        f"The migration of {topic} is aborted; its configs are being restored "
        f"(`tideline status {topic}`).",
    )


def _answer(output: Format, outcome: Any, text: str) -> None:
    if output is Format.JSON:
        echo_json(asdict(outcome))
    else:
        echo(text)


def decider_of(by: str | None, reason: str) -> Decider:
    """Whoever gives the command, unless it names another. Raises :class:`UsageError`."""
    try:
        return DECIDER.read({"by": by or f"{getpass.getuser()}@{gethostname()}", "why": reason})
    except InvalidMigrationInput as error:
        raise UsageError(f"--by and --reason: {error}") from error


async def update(topic: str, name: Update, answer: type[R], given: object) -> R:
    """One update of the topic's workflow. Raises ``NoSuchMigration`` when none runs."""
    settings = load(WorkerSettings)
    topic_id, boundaries = await find_topic(settings, topic)
    client = await temporal.connect(settings)
    handle = temporal.handle_of(client, topic, topic_id)
    nothing = (
        f"no migration of {topic!r} runs: there is nothing to {name}"
        f"{', and B0 is set: it stays' if boundaries else ''}. `tideline status {topic}` tells more"
    )
    return await temporal.update(handle, name, given, answer, nothing=nothing)
