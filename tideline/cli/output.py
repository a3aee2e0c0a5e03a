"""What every command shares: the ``-o`` option, consoles, running asyncio, opening the parts.

What people read goes out here, and nowhere else in the command line: text may have come from
anybody (:mod:`tideline.domain.foreign_text`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Coroutine
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar
from uuid import UUID

import structlog
import typer
from rich.console import Console
from rich.text import Text

from tideline.domain.foreign_text import in_one_line
from tideline.domain.migration_input import InvalidMigrationInput, parse_migration_input
from tideline.errors import UsageError
from tideline.observability import for_a_terminal

T = TypeVar("T")
WIDE = 240
"""Columns when nobody looks at a terminal: lines must not be broken for a pipe."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[
    Format, typer.Option("-o", "--output", help="table for people, json for programs")
]

ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept with the decision.")]
ByOption = Annotated[
    str | None, typer.Option("--by", help="Who decides; by default the user of this machine.")
]


def moment(ms: int | None) -> datetime | None:
    """Of ms since the epoch."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


class Screen(Console):
    """A string that is printed, or stands in a table, is one line of plain text: no markup, which
    a foreign name may look like. What has a colour is a :func:`line`."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(in_one_line(text), **how)


def console(*, stderr: bool = False) -> Screen:
    """A console that does not wrap when it is piped."""
    stream = sys.stderr if stderr else sys.stdout
    return Screen(
        stderr=stderr,
        width=None if stream.isatty() else WIDE,
        highlight=False,
        markup=False,
        emoji=False,
    )


def line(text: str, style: str = "") -> Text:
    """One line of plain text, or a cell of a table, in a colour."""
    return Text(in_one_line(text), style)


def echo(text: str, *, err: bool = False) -> None:
    """One line on stdout, or on stderr."""
    typer.echo(in_one_line(text), err=err)


def echo_json(value: object) -> None:
    """One JSON document on stdout. What JSON escapes is all that a terminal might obey."""
    typer.echo(json.dumps(value, default=_plain, indent=2))


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    return str(value)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work; logs of the adapters would only disturb its answer."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            for_a_terminal,
            structlog.dev.ConsoleRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    return asyncio.run(work)


def age(since: datetime | None, now: datetime | None = None) -> str:
    """How long ago, in one or two units."""
    if since is None:
        return ""
    seconds = max(0, int(((now or datetime.now(UTC)) - since).total_seconds()))
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def topic_name(topic: str) -> str:
    """``topic`` if Kafka allows such a name. Raises :class:`UsageError`."""
    try:
        return parse_migration_input({"topic": topic}).topic
    except InvalidMigrationInput as error:
        raise UsageError(str(error)) from error
