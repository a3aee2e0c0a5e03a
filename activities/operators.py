"""What an operator decides while a migration runs, done and kept in one transaction each."""

from __future__ import annotations

from uuid import UUID

from activities.attempt import typed_failures
from tideline.domain.operator_choices import (
    CompletionOutcome,
    CompletionRequest,
    ConfigurationRecord,
    GapOutcome,
    GapStep,
)
from tideline.migration.connections import WorkerServices
from tideline.migration.gaps import give_up_gap


async def record_configuration(services: WorkerServices, record: ConfigurationRecord) -> None:
    """Keep who changes which options, or pauses, resumes or aborts, and why."""
    ref, decider = record.ref, record.decider
    with typed_failures():
        await services.control_plane.record_configuration(
            ref.topic,
            UUID(ref.topic_id),
            decider.by,
            decider.why,
            record.changed,
            record.action,
            record.partition,
        )


async def force_completion(
    services: WorkerServices, request: CompletionRequest
) -> CompletionOutcome:
    """Fails as Refused while a partition has no B0."""
    by, why = request.decider.by, request.decider.why
    with typed_failures():
        incomplete = await services.control_plane.force_completion(
            UUID(request.ref.topic_id), by, why
        )
    return CompletionOutcome(incomplete)


async def accept_gap(services: WorkerServices, step: GapStep) -> GapOutcome:
    """Fails as Refused, naming who holds a part of the range."""
    with typed_failures():
        return await give_up_gap(services, step.ref, step.request)
