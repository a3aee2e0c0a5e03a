"""Turns requests that gateways wrote to Postgres into workflows.

A user's ``diskless.enable=true`` is accepted by a gateway, which does not talk to Temporal: it
writes a row. The row is taken only after the workflow is started or joined, so a request is never
lost, and starting it twice changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import structlog

from tideline.background import cancel_and_wait, keep
from tideline.control_plane import REQUESTS_CHANNEL, ControlPlane
from tideline.control_plane.model import MigrationRequest
from tideline.domain.messages import TopicMigrationInput, TopicRef
from tideline.domain.migration_input import InvalidMigrationInput, parse_options
from tideline.errors import TidelineError, UnreachableError

log = structlog.get_logger()

POLL_S = 3.0
"""A notification may be lost; the table is not."""


Start = Callable[[TopicRef, TopicMigrationInput], Awaitable[Any]]
CurrentId = Callable[[str], Awaitable[UUID | None]]


class RequestDispatcher:
    """Takes requests until it is cancelled. ``current_id`` tells a topic's id in Kafka now."""

    def __init__(self, store: ControlPlane, start: Start, current_id: CurrentId) -> None:
        self._store, self._start, self._current_id = store, start, current_id
        self._heard = asyncio.Event()

    async def run(self) -> None:
        """Listen and poll."""
        listening = keep(self._listen(), "listen-for-requests")
        try:
            while True:
                try:
                    await self.take_all()
                except TidelineError as error:
                    log.warning("requests_wait", why=str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._heard.wait()
                self._heard.clear()
        finally:
            await cancel_and_wait(listening)

    async def take_all(self) -> None:
        """Everything that is pending now. One that cannot be started holds up no other."""
        for request in await self._store.pending_requests():
            try:
                await self._take(request)
            except UnreachableError as error:
                log.warning("request_waits", topic=request.topic, why=str(error))

    async def _take(self, request: MigrationRequest) -> None:
        about = {"topic": request.topic, "topic_id": str(request.topic_id)}
        if await self._current_id(request.topic) != request.topic_id:
            log.warning("request_dropped", why="the topic was deleted or created again", **about)
        else:
            try:
                options = parse_options(request.options)
            except InvalidMigrationInput as error:
                log.error("request_dropped", why=str(error), **about)
            else:
                given = TopicMigrationInput(request.topic, options, request.requested_by)
                ref = TopicRef(request.topic, request.topic_id.hex, 0)
                await self._start(ref, given)
                log.info("request_taken", workflow=ref.workflow_id, **about)
        await self._store.request_taken(request.topic_id)

    async def _listen(self) -> None:
        while True:
            try:
                async for _ in self._store.listen([REQUESTS_CHANNEL]):
                    self._heard.set()
            except UnreachableError as error:
                log.warning("requests_not_heard", why=str(error))
            await asyncio.sleep(POLL_S)
