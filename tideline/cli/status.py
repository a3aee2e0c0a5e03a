"""``tideline status``: where every migration stands."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text
from temporalio.client import Client

from tideline import control_plane, temporal
from tideline.cli.output import Format, FormatOption, console, echo_json, run
from tideline.cli.preflight import topic_name
from tideline.cli.status_view import TopicRow, by_topic, topic_row, topic_table
from tideline.control_plane import ControlPlane
from tideline.control_plane.model import PartitionMigrationStatus
from tideline.domain.messages import TOPIC_WORKFLOW, Query, TopicMigrationStatus, TopicRef
from tideline.errors import RefusedError, TidelineError
from tideline.settings import WorkerSettings, load

ANSWER_WITHIN = timedelta(seconds=5)
WATCH_EVERY_S = 1.0
MOST_QUERIES = 20
"""Workflows that are asked at once."""


def status(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Until interrupted.")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Per partition: phase, since when, why it waits, B0, and what comes next."""
    run(_status(topic_name(topic) if topic else None, watch and output is Format.TABLE, output))


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that was asked for, and what could not be learned."""

    topics: list[TopicRow]
    notes: list[str] = field(default_factory=list)


async def _status(topic: str | None, watch: bool, output: Format) -> None:
    settings = load(WorkerSettings)
    async with control_plane.connect(settings, application_name="tideline-cli") as plane:
        sight = Sight(settings, plane)
        overview = await sight.look(topic)
        if output is Format.JSON:
            echo_json({"topics": overview.topics, "notes": overview.notes})
        elif not watch:
            console().print(shown(overview))
        else:
            with Live(shown(overview), console=console(), auto_refresh=False) as live:
                while True:
                    await asyncio.sleep(WATCH_EVERY_S)
                    live.update(shown(await sight.look(topic)), refresh=True)


def shown(overview: Overview) -> Group:
    """Tables, then notes."""
    parts = [topic_table(row) for row in overview.topics]
    links = [Text(f"{row.topic}: {row.workflow_url or row.workflow_id}") for row in overview.topics]
    notes = [Text(f"note: {note}", style="yellow") for note in overview.notes]
    if not parts:
        notes.append(Text("No topic migrates or has migrated."))
    return Group(*parts, *links, *notes)


class Sight:
    """Looks at migrations: Postgres must answer, Temporal should."""

    def __init__(self, settings: WorkerSettings, plane: ControlPlane) -> None:
        self._settings, self._plane = settings, plane
        self._client: Client | None = None
        self._places = asyncio.Semaphore(MOST_QUERIES)

    async def look(self, topic: str | None) -> Overview:
        """``topic``, or all. Raises :class:`RefusedError` when nothing is known of ``topic``."""
        statuses = by_topic(await self._plane.migration_status(topic))
        notes: list[str] = []
        running: dict[str, str] = {}
        try:
            self._client = self._client or await temporal.connect(self._settings)
            running = await self._running(self._client, topic)
        except TidelineError as error:
            notes.append(f"{error}; what only the workflows know is missing")
        rows = await asyncio.gather(
            *(
                self._row(name, statuses.get(name, []), running.get(name), notes)
                for name in sorted(statuses.keys() | running.keys())
            )
        )
        if topic is not None and not rows:
            raise RefusedError(
                f"topic {topic!r} does not migrate and never has. `tideline migrate {topic}` "
                "starts it"
            )
        return Overview(list(rows), notes)

    async def _running(self, client: Client, topic: str | None) -> dict[str, str]:
        """Workflow ids by topic. Also of topics that Postgres does not know yet."""
        wanted = f"WorkflowType = '{TOPIC_WORKFLOW}' AND ExecutionStatus = 'Running'"
        if topic is not None:
            wanted += f" AND TidelineTopic = '{topic}'"
        found: dict[str, str] = {}
        with temporal.temporal_errors():
            async for execution in client.list_workflows(wanted, rpc_timeout=ANSWER_WITHIN):
                parts = execution.id.split("/")
                if len(parts) == 4 and parts[:2] == ["tideline", "topic"]:
                    found[parts[2]] = execution.id
        return found

    async def _row(
        self,
        topic: str,
        statuses: list[PartitionMigrationStatus],
        running: str | None,
        notes: list[str],
    ) -> TopicRow:
        workflow_id = running or TopicRef(topic, statuses[0].log.topic_id.hex, 0).workflow_id
        answer: TopicMigrationStatus | None = None
        if running and self._client is not None:
            async with self._places:
                try:
                    with temporal.temporal_errors():
                        answer = await self._client.get_workflow_handle(running).query(
                            Query.STATUS.value,
                            result_type=TopicMigrationStatus,
                            rpc_timeout=ANSWER_WITHIN,
                        )
                except TidelineError:
                    notes.append(f"the workflow of {topic} did not answer: is the worker running?")
        return topic_row(statuses, answer, workflow_id, self._url(workflow_id))

    def _url(self, workflow_id: str) -> str | None:
        return temporal.workflow_url(self._settings, workflow_id)
