"""Structured logs, set up once per process."""

from __future__ import annotations

import logging
import sys

import structlog

from tideline.domain.foreign_text import in_one_line
from tideline.subject import add_words


def for_a_terminal(
    logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """No value of an event commands the terminal on which it is shown; a traceback keeps its
    lines. JSON escapes all that a terminal might obey."""
    for key, value in event.items():
        if isinstance(value, str):
            lines = value.split("\n") if key == "exception" else [value]
            event[key] = "\n".join(map(in_one_line, lines))
    return event


def configure_logging(component: str, level: str = "INFO") -> None:
    """One JSON object per line on stderr; on a terminal, readable columns."""
    rendering: list[structlog.typing.Processor] = (
        [for_a_terminal, structlog.dev.ConsoleRenderer()]
        if sys.stderr.isatty()
        else [structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_words,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(component=component)
