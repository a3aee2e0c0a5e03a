"""What a phase observed, kept in Postgres while it runs and when it ends, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from temporalio.exceptions import ApplicationError

from activities.failing import translate
from activities.services import WorkerServices
from tideline.domain import failures
from tideline.domain.migration import Phase, PhaseStatus, phase_rule
from tideline.domain.plan import PhaseInput
from tideline.errors import TidelineError


@dataclass(slots=True)
class PhaseEvidence:
    """Filled by the phase; its values must be JSON."""

    services: WorkerServices
    given: PhaseInput
    phase: Phase
    generation: int
    paused: bool
    """Producers wait meanwhile: what is written at the end is written in the background."""
    seen: dict[str, Any] = field(default_factory=dict)
    _beginning: asyncio.Task[None] | None = None
    _shown: str | None = None

    async def record(self, status: PhaseStatus, reason: str | None = None) -> None:
        """Write what was seen so far. Refused (and raised) when a newer generation exists."""
        await self._write(status, reason)()

    def _write(
        self, status: PhaseStatus, reason: str | None
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        seen, generation = dict(self.seen), self.generation

        async def write() -> None:
            await self.services.control_plane.record_phase(
                self.given.ref.log, generation, self.phase, status, seen, reason
            )

        return write

    async def waiting(self, reason: str) -> None:
        """Show why the phase waits; written once for each different reason."""
        if reason != self._shown:
            self._shown = reason
            await self.record(PhaseStatus.WAITING, reason)

    def begin(self) -> None:
        """Write that the phase runs, while it makes its observations."""
        self._beginning = asyncio.create_task(self._write(PhaseStatus.RUNNING, None)())

    async def begun(self) -> None:
        """Before the phase's decisive act: what it began stands in Postgres, and no newer
        generation does."""
        if self._beginning is not None:
            await self._beginning

    async def end(self, status: PhaseStatus, reason: str | None = None) -> None:
        """Write how the phase ended."""
        if self._beginning is not None:
            await asyncio.wait([self._beginning])
            # Its failure, if any, is the caller's by begun(); here only the order matters.
            self._beginning.exception()
        if self.paused:
            self.services.evidence.submit(self.given.ref.log, self._write(status, reason))
        else:
            await self.record(status, reason)


@asynccontextmanager
async def phase_evidence(
    services: WorkerServices, given: PhaseInput, phase: Phase
) -> AsyncIterator[PhaseEvidence]:
    """Record ``phase`` as running, then as done, waiting or failed.

    Inside the write pause the first record is written beside the phase's observations and the
    last one in the background. Errors of the adapters leave as typed ones.
    """
    paused = phase_rule(phase).inside_write_pause
    before_quiesce = phase in (Phase.VALIDATE, Phase.DRAIN_TRANSACTIONS)
    generation = 0 if before_quiesce else given.generation
    evidence = PhaseEvidence(services, given, phase, generation, paused)
    try:
        if paused and phase is not Phase.QUIESCE:
            evidence.begin()
        elif phase is not Phase.QUIESCE:
            await evidence.record(PhaseStatus.RUNNING)
        # The quiesce records itself: it has no generation of its own yet.
        yield evidence
        await evidence.begun()
        await evidence.end(PhaseStatus.DONE)
    except (ApplicationError, TidelineError) as error:
        typed = error if isinstance(error, ApplicationError) else translate(error)
        kept = typed.type in (failures.WAITING, failures.UNREACHABLE)
        if before_quiesce or evidence.generation:
            # If a newer attempt exists it keeps its own evidence; if Postgres is away, the error
            # that is on its way says so.
            with suppress(TidelineError):
                await evidence.end(
                    PhaseStatus.WAITING if kept else PhaseStatus.FAILED, typed.message
                )
        if typed is error:
            # An error that is its own cause could not be encoded for the workflow.
            raise
        raise typed from error
