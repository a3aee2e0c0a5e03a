"""Before anything of a topic changes: one of the places of topics that migrate at once.

Whoever has none looks for those that have one and were not heard of lately: a workflow that was
terminated gives nothing back by itself.
"""

from __future__ import annotations

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.attempt import failure, typed_failures, waiting
from tideline.domain import failures
from tideline.domain.messages import TOPIC_WORKFLOW, PartitionShare, PlaceRequest, TopicRef
from tideline.domain.places import PlaceHolder, waiting_reason
from tideline.migration.connections import WorkerServices

DOUBT_MS = 30_000
"""Whoever has a place and was not heard of for so long is looked for while others wait."""


async def take_place(services: WorkerServices, request: PlaceRequest) -> None:
    """Passes when the topic has its place. Fails as Waiting, with how many come before it."""
    places = services.settings.migration_parallel_topics
    asking = PlaceHolder(request.ref.id, request.ref.topic, request.run)
    with typed_failures():
        found = await services.control_plane.take_migration_place(asking, places, DOUBT_MS)
        gone = [] if found.taken else [h for h in found.doubtful if not await _runs(services, h)]
        for holder in gone:
            await services.control_plane.leave_migration_place(holder.topic_id, holder.run)
        if gone:
            found = await services.control_plane.take_migration_place(asking, places, DOUBT_MS)
    if not found.taken:
        raise waiting(waiting_reason(found.places, found.before))


async def partition_share(services: WorkerServices, request: PlaceRequest) -> PartitionShare:
    """What operators allow of the topic's partitions between validation and B0 now."""
    with typed_failures():
        share = await services.control_plane.migration_share(request.ref.id)
    return PartitionShare(share)


async def leave_place(services: WorkerServices, request: PlaceRequest) -> None:
    """Give the place back, or ask for none any more. Repeats change nothing."""
    with typed_failures():
        await services.control_plane.leave_migration_place(request.ref.id, request.run)


async def _runs(services: WorkerServices, holder: PlaceHolder) -> bool:
    """Whether a migration of the topic runs: a later run than the holder's takes its place over."""
    if services.temporal is None:
        raise failure(failures.UNREACHABLE, "this worker has no connection to Temporal")
    client: Client = services.temporal
    ref = TopicRef(holder.topic, holder.topic_id.hex, 0)
    try:
        found = await client.get_workflow_handle(ref.workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise failure(failures.UNREACHABLE, f"Temporal: {error}") from error
    running = (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)
    return found.workflow_type == TOPIC_WORKFLOW and found.status in running
