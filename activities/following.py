"""For a start under another id than the topic's own: whoever made it follows the topic's workflow.

The one that follows waits in its workflow. An activity that waited would hold a place that the
migration needs, which it waits for.
"""

from __future__ import annotations

from typing import Any

from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from activities.attempt import failure, typed_failures
from tideline.domain import failures
from tideline.domain.messages import TOPIC_WORKFLOW, Followed, JoinRequest, TopicOutcome, TopicRef
from tideline.migration.connections import WorkerServices
from tideline.temporal import start_or_join


async def follow_topic_migration(services: WorkerServices, request: JoinRequest) -> Followed:
    """One look at the topic's own workflow, which is started or joined first unless ``request``
    says that it was, and Temporal still knows it.

    Fails as Refused when that workflow has failed.
    """
    client = _client(services)
    try:
        if request.joined:
            handle: WorkflowHandle[Any, TopicOutcome] = client.get_workflow_handle(
                request.ref.workflow_id, result_type=TopicOutcome
            )
            try:
                return Followed(await _outcome(handle, request.ref))
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
        return Followed(await _outcome(await _join(services, request), request.ref))
    except RPCError as error:
        raise failure(failures.UNREACHABLE, f"Temporal: {error}") from error


def _client(services: WorkerServices) -> Any:
    if services.temporal is None:
        raise failure(failures.UNREACHABLE, "this worker has no connection to Temporal")
    return services.temporal


async def _join(
    services: WorkerServices, request: JoinRequest
) -> WorkflowHandle[Any, TopicOutcome]:
    with typed_failures():
        return await start_or_join(
            _client(services), services.settings.temporal_task_queue, request.ref, request.given
        )


async def _outcome(handle: WorkflowHandle[Any, TopicOutcome], ref: TopicRef) -> TopicOutcome | None:
    """``None`` while it runs."""
    description = await handle.describe()
    if description.workflow_type != TOPIC_WORKFLOW:
        raise failure(failures.REFUSED, f"{ref.workflow_id} is no migration any more")
    status = description.status
    if status is WorkflowExecutionStatus.COMPLETED:
        return await handle.result()
    if status in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW):
        return None
    ended = status.name if status is not None else "gone"
    raise failure(failures.REFUSED, f"the migration {ref.workflow_id} is {ended}")
