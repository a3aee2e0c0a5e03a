"""What a phase observed, kept in Postgres while it runs and when it ends, however it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from temporalio.exceptions import ApplicationError

from activities.failing import translate
from activities.services import WorkerServices
from tideline.domain import failures
from tideline.domain.migration import Phase, PhaseStatus
from tideline.domain.plan import PhaseInput
from tideline.errors import FencedError, TidelineError


@dataclass(slots=True)
class PhaseEvidence:
    """Filled by the phase; its values must be JSON."""

    services: WorkerServices
    given: PhaseInput
    phase: Phase
    generation: int
    in_background: bool
    seen: dict[str, Any] = field(default_factory=dict)
    _shown: str | None = None

    async def record(self, status: PhaseStatus, reason: str | None = None) -> None:
        """Write what was seen so far. Refused (and raised) when a newer generation exists."""
        seen = dict(self.seen)
        generation = self.generation

        async def write() -> None:
            await self.services.control_plane.record_phase(
                self.given.ref.log, generation, self.phase, status, seen, reason
            )

        if self.in_background:
            self.services.evidence.submit(self.given.ref.log, write)
        else:
            await write()

    async def waiting(self, reason: str) -> None:
        """Show why the phase waits; written once for each different reason."""
        if reason != self._shown:
            self._shown = reason
            await self.record(PhaseStatus.WAITING, reason)


@asynccontextmanager
async def phase_evidence(
    services: WorkerServices, given: PhaseInput, phase: Phase, *, in_background: bool = False
) -> AsyncIterator[PhaseEvidence]:
    """Record ``phase`` as running, then as done, waiting or failed.

    ``in_background``: inside the write pause evidence must not cost a round trip. Errors of the
    adapters leave as typed ones.
    """
    before_quiesce = phase in (Phase.VALIDATE, Phase.DRAIN_TRANSACTIONS)
    generation = 0 if before_quiesce else given.generation
    evidence = PhaseEvidence(services, given, phase, generation, in_background)
    try:
        # The quiesce has no generation of its own yet; it records itself once it has.
        if before_quiesce or generation:
            await evidence.record(PhaseStatus.RUNNING)
    except TidelineError as error:
        raise translate(error) from error
    try:
        yield evidence
        await evidence.record(PhaseStatus.DONE)
    except (ApplicationError, TidelineError) as error:
        typed = error if isinstance(error, ApplicationError) else translate(error)
        kept = typed.type in (failures.WAITING, failures.UNREACHABLE)
        if not (before_quiesce or evidence.generation):
            raise typed from error
        try:
            await evidence.record(
                PhaseStatus.WAITING if kept else PhaseStatus.FAILED, typed.message
            )
        except FencedError:
            pass  # A newer attempt exists and keeps its own evidence.
        except TidelineError:
            pass  # Postgres is what failed: the error that is on its way says so.
        raise typed from error
