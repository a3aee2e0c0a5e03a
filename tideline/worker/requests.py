"""Turns requests that gateways wrote to Postgres into workflows.

A user's ``diskless.enable=true`` is accepted by a gateway, which does not talk to Temporal: it
writes a row. The row says what became of the request, to the end of its migration: one that cannot
be started is tried again at a time that is shown, one that is refused is kept with its reason.
Starting it twice changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any
from uuid import UUID

import structlog

from tideline.background import cancel_and_wait, keep
from tideline.control_plane import REPORTS_CHANNEL, REQUESTS_CHANNEL, ControlPlane
from tideline.control_plane.model import MigrationRequest, RequestState, TopicStatus
from tideline.domain.messages import TopicMigrationInput, TopicOutcome, TopicRef
from tideline.domain.migration_input import InvalidMigrationInput, parse_options
from tideline.errors import RefusedError, TidelineError, UnreachableError
from tideline.temporal import MigrationFailed, NoSuchMigration, RunningTopic

log = structlog.get_logger()

POLL_S = 3.0
"""A notification may be lost; the table is not."""
FIRST_RETRY_MS, LONGEST_RETRY_MS = 3_000, 600_000
FOLLOW_EVERY_S = 15.0
"""How often the workflows of started requests are asked whether they have ended."""


Start = Callable[[TopicRef, TopicMigrationInput], Awaitable[Any]]
CurrentId = Callable[[str], Awaitable[UUID | None]]
Outcome = Callable[[TopicRef], Awaitable[TopicOutcome | None]]
Running = Callable[[], Awaitable[Iterable[RunningTopic]]]


class RequestDispatcher:
    """Takes requests until it is cancelled.

    ``current_id`` tells a topic's id in Kafka now; ``outcome`` how its migration ended, ``None``
    while it runs (see :func:`tideline.temporal.outcome_of`). ``running`` lists the topics'
    workflows that run, perhaps a moment late.
    """

    def __init__(
        self,
        store: ControlPlane,
        start: Start,
        current_id: CurrentId,
        outcome: Outcome,
        running: Running,
        reported: asyncio.Event | None = None,
    ) -> None:
        """``reported``: set at notifications for :class:`tideline.worker.reports.ReportKeeper`,
        which the same connection listens for."""
        self._store, self._start = store, start
        self._current_id, self._outcome, self._running = current_id, outcome, running
        self._heard, self._reported = asyncio.Event(), reported or asyncio.Event()
        self._follow_at = 0.0

    async def run(self) -> None:
        """Listen and poll."""
        listening = keep(self._listen(), "listen-for-requests")
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    await self.take_all()
                    if loop.time() >= self._follow_at:
                        self._follow_at = loop.time() + FOLLOW_EVERY_S
                        await self.follow_all()
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
                state, reason = await self._take(request)
            except TidelineError as error:
                state, reason = RequestState.RETRYING, str(error)
            delay = min(FIRST_RETRY_MS * 2 ** min(request.tries, 20), LONGEST_RETRY_MS)
            await self._settle(request, state, reason, delay)

    async def follow_all(self) -> None:
        """See which of the started ones have ended. Those that run by Temporal's index are not
        asked for one by one; one that has just ended is seen the next time."""
        started = await self._store.started_requests()
        if not started:
            return
        running = {one.workflow_id for one in await self._running()}
        for request in started:
            if _ref(request).workflow_id in running:
                continue
            try:
                ended = await self._ending(request)
            except (UnreachableError, RefusedError) as error:
                log.warning("request_not_followed", topic=request.topic, why=str(error))
                continue
            if ended is not None:
                await self._settle(request, *ended)

    async def _take(self, request: MigrationRequest) -> tuple[RequestState, str]:
        if await self._current_id(request.topic) != request.topic_id:
            return RequestState.REFUSED, "the topic was deleted or created again"
        try:
            options = parse_options(request.options)
        except InvalidMigrationInput as error:
            return RequestState.REFUSED, str(error)
        given = TopicMigrationInput(request.topic, options, request.requested_by)
        await self._start(_ref(request), given)
        return RequestState.STARTED, ""

    async def _ending(self, request: MigrationRequest) -> tuple[RequestState, str] | None:
        try:
            outcome = await self._outcome(_ref(request))
        except NoSuchMigration:
            if await self._is_unfinished(request):
                # Temporal was set up anew or restored: nobody drives the migration.
                return RequestState.RETRYING, (
                    "Temporal does not know its workflow, and the migration is not over: it is "
                    "started again and goes on with what Postgres knows"
                )
            return RequestState.DONE, "Temporal does not know its workflow any more"
        except MigrationFailed as error:
            return RequestState.REFUSED, str(error)
        if outcome is None:
            return None
        ended = "the migration was aborted" if outcome.outcome == "aborted" else outcome.reason
        return RequestState.DONE, ended

    async def _is_unfinished(self, request: MigrationRequest) -> bool:
        """Of a topic that is not tracked, or was aborted, there is nothing to go on with."""
        topic = await self._store.tracked_topic(request.topic)
        if topic is None or topic.topic_id != request.topic_id:
            return False
        return topic.status is not TopicStatus.ABORTED and topic.migration_unfinished

    async def _settle(
        self, request: MigrationRequest, state: RequestState, reason: str, delay_ms: int = 0
    ) -> None:
        settle = self._store.settle_request
        if await settle(request.topic_id, request.requested_at, state, reason, delay_ms):
            level = log.info if state in (RequestState.STARTED, RequestState.DONE) else log.warning
            about = {"topic": request.topic, "topic_id": str(request.topic_id)}
            level("migration_request", state=state.value, why=reason, **about)

    async def _listen(self) -> None:
        while True:
            try:
                channels = [REQUESTS_CHANNEL, REPORTS_CHANNEL]
                async for channel, _ in self._store.listen(channels, self._reported.set):
                    (self._heard if channel == REQUESTS_CHANNEL else self._reported).set()
            except UnreachableError as error:
                log.warning("requests_not_heard", why=str(error))
            await asyncio.sleep(POLL_S)


def _ref(request: MigrationRequest) -> TopicRef:
    return TopicRef(request.topic, request.topic_id.hex, 0)
