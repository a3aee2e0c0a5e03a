"""What ``tideline`` can do, as a table: a command's module is imported when it is asked for.

All modules together cost two seconds of a core: Temporal's client, the wire formats of Kafka and
the SDK of S3 are none of ``tideline --help``, and only some of each command.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tideline.errors import UsageError
from tideline.importing import kept


@dataclass(frozen=True, slots=True)
class Entry:
    """``attribute`` of ``module`` is a Typer application, or a function to make a command of."""

    name: str
    module: str
    attribute: str
    help: str
    """The first paragraph of the command's own."""
    extras: str = ""
    """Of the package, if its requirements are not always installed."""


def _ours(name: str, module: str, attribute: str, help: str, extras: str = "") -> Entry:
    return Entry(name, f"tideline.cli.{module}", attribute, help, extras)


TABLE = (
    _ours("preflight", "preflight", "preflight",
          "Check whether TOPIC may migrate, each check with its remedy, and what it takes."),
    _ours("migrate", "migrate", "migrate",
          "Start the migration of TOPIC, or join the one that runs."),
    _ours("status", "status", "status",
          "Per partition: phase, since when, why it waits, B0, and what comes next."),
    _ours("pause", "steer", "pause",
          "Let no partition of TOPIC begin another phase; a write pause is finished first."),
    _ours("resume", "steer", "resume",
          "Let the migration of TOPIC go on, and try at once what it waits for."),
    _ours("abort", "steer", "abort",
          "Undo the migration of TOPIC, if no partition has its B0 yet. Postgres decides."),
    _ours("configure", "operators", "configure",
          "Change options of the migration of TOPIC that runs, also past the first B0."),
    _ours("complete", "operators", "complete",
          "End the migration of TOPIC behind B0. tieringComplete stays false where it is."),
    _ours("limits", "limits", "app", "How much migrates at once, over all topics."),
    _ours("coverage", "coverage", "coverage",
          "The last verdict on each partition's prefix: which offsets are missing, since when, "
          "and what to do."),
    _ours("verify", "verify", "verify",
          "Read TOPIC from object storage and through the gateways, and compare every record.",
          "jobs"),
    _ours("rebuild", "rebuild", "rebuild",
          "Say what the bucket tells of every log, beside a Postgres if one is named; or write "
          "it there."),
    _ours("doctor", "doctor", "doctor",
          "Look at Postgres, object store, brokers, gateways, Temporal and worker, with the "
          "settings of this command; changes nothing."),
    _ours("retention", "jobs", "retention",
          "Apply retention.ms and retention.bytes over prefix and suffix as one log, or show it.",
          "jobs"),
    _ours("gc", "collection", "app",
          "Delete objects that nothing refers to any more, after a grace, or show them.", "jobs"),
    _ours("jobs", "runs", "jobs",
          "When each periodic job last ended well, and what is wrong with those that did not."),
    _ours("records", "records", "records",
          "Show the Iceberg tables that runs of the jobs tell: where each is, what it has, what "
          "waits.", "jobs"),
    _ours("stack", "stack", "app",
          "Postgres, S3, Temporal, Kafka, gateways and worker on this machine's loopback.",
          "stack"),
    _ours("demo", "demo", "demo",
          "Migrate a live tiered topic on real Kafka and prove that nothing was lost or rewritten.",
          "stack,demo,jobs"),
    _ours("db", "database", "app",
          "The schema in Postgres, which `tideline db migrate` brings up to date."),
    _ours("worker", "worker", "app", "The Temporal worker, which carries migrations out."),
    _ours("temporal", "temporal_namespace", "app",
          "The namespace of the workflows, for whoever has an operator's rights on Temporal."),
    _ours("cluster", "cluster", "app", "The attestation that the brokers are closed to clients."),
    _ours("gateway", "gateway", "app", "One gateway, and those that have registered."),
    _ours("installation", "installation", "app",
          "What belongs to this installation, and its history."),
    _ours("gap", "operators", "gaps", "Log gaps below B0 that nobody can fill."),
    _ours("request", "operators", "requests", "Requests to migrate by config change."),
    _ours("replicas", "replicas", "app", "Replicas of diskless partitions, one in each rack."),
    _ours("topic", "topic", "app", "Names and ids of tracked topics."),
    _ours("export", "export", "app", "Write what Postgres knows in Kafka's own formats."),
    _ours("tiering", "tiering", "app", "Aged diskless data becomes tiered segments."),
    _ours("tiered-storage", "tiered_storage", "app",
          "Make a tiered topic read-only, switch it off, or enable it again (KIP-950)."),
)  # fmt: skip


class Later(TyperCommand):
    """A line of the help; the command itself once somebody uses it."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.name, help=entry.help)
        self.entry = entry

    @cached_property
    def command(self) -> Any:
        """The command. Raises :class:`UsageError` when what it needs is not installed."""
        entry = self.entry
        try:
            with kept():
                found = getattr(importlib.import_module(entry.module), entry.attribute)
        except ModuleNotFoundError as error:
            if not entry.extras:
                raise
            raise UsageError(
                f"`tideline {entry.name}` needs the Python module {error.name}: "
                f"pip install 'tideline[{entry.extras}]'"
            ) from error
        if isinstance(found, typer.Typer):
            return typer.main.get_group(found)
        alone = typer.Typer(add_completion=False)
        alone.command(entry.name)(found)
        return typer.main.get_command(alone)

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """That of the command: what is parsed, shown and invoked from here on is its own."""
        return self.command.make_context(*arguments, **named)


class Commands(TyperGroup):
    """Those of the table."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for entry in TABLE:
            self.add_command(Later(entry))
