"""How the worker stands, for ``/health`` and ``/ready``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import structlog
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.client import Client

from tideline import __version__, temporal
from tideline.control_plane.server_probe import probe
from tideline.domain.messages import waits_queue
from tideline.errors import TidelineError
from tideline.pages import Page
from tideline.settings import WorkerSettings

LOOK_EVERY_S = 30.0
AGAIN_AFTER_S = 5.0
"""While something is missing."""
LOOK_LASTS_S = 90.0
"""A look that is older says nothing: the next one hangs, or the event loop does."""
Look = Callable[[], Awaitable[str]]
"""What is missing, or empty."""
log = structlog.get_logger()


@dataclass
class Health:
    """What the worker does at present; written by one thread, read by others."""

    serving: bool = False
    waits_for: str = "starting"
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """By part, at the last look."""
    looked_s: float | None = None
    """When that was, by the monotonic clock."""

    def waiting(self, why: str) -> None:
        """Not serving, for this reason."""
        self.serving, self.waits_for = False, why

    def ready(self) -> None:
        """Workflows and activities are being served."""
        self.serving, self.waits_for = True, ""

    def seen(self, missing: dict[str, str]) -> None:
        """One look at what it needs is over."""
        self.missing, self.looked_s = missing, time.monotonic()

    def health_page(self, query: Mapping[str, str]) -> tuple[bool, Mapping[str, object]]:
        body = {"serving": self.serving, "waits_for": self.waits_for, **self.versions}
        return self.serving, body

    def ready_page(self, query: Mapping[str, str]) -> tuple[bool, Mapping[str, object]]:
        _, body = self.health_page(query)
        missing = self.missing
        if self.looked_s is None or time.monotonic() - self.looked_s > LOOK_LASTS_S:
            missing = {"look": f"none has ended within {LOOK_LASTS_S:g} s"}
        return self.serving and not missing, {**body, "missing": missing}

    def pages(self) -> dict[str, Page]:
        return {"/health": self.health_page, "/ready": self.ready_page}


async def keep_looking(health: Health, looks: Mapping[str, Look]) -> None:
    """Ask again and again for each part. Until cancelled."""
    while True:
        missing = {}
        for part, look in looks.items():
            try:
                why = await look()
            except TidelineError as error:
                why = str(error)
            if why:
                missing[part] = why
        if missing != health.missing:
            log.warning("readiness", missing=missing)
        health.seen(missing)
        await asyncio.sleep(AGAIN_AFTER_S if missing else LOOK_EVERY_S)


def looks_of(settings: WorkerSettings, client: Client, polls_as: str) -> dict[str, Look]:
    """What a worker needs: that Temporal has its pollers, and Postgres this version's schema.
    ``polls_as``: the identity of its pollers."""
    queue = settings.temporal_task_queue
    polled = [
        (queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW),
        (queue, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY),
        (waits_queue(queue), TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY),
    ]

    async def pollers() -> str:
        idle = [
            f"{name} ({TaskQueueType.Name(kind).rpartition('_')[2].lower()} tasks)"
            for name, kind in polled
            if polls_as not in await temporal.pollers(client, name, kind)
        ]
        return f"this worker does not poll {', '.join(idle)}" if idle else ""

    async def postgres() -> str:
        found = await probe(settings, "tideline-worker")
        if found.schema_agrees:
            return ""
        return f"the schema is not that of tideline {__version__}: `tideline db check`"

    return {"temporal": pollers, "postgres": postgres}
