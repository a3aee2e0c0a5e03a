"""How processes outside of Temporal reach its workflows: connect, start or join, steer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, TypeVar, cast
from urllib.parse import quote
from uuid import UUID

from temporalio.api.enums.v1 import IndexedValueType, TaskQueueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    CountWorkflowExecutionsRequest,
    DescribeTaskQueueRequest,
)
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode

from tideline.domain import failures
from tideline.domain.messages import (
    SEARCH_ATTRIBUTES,
    TOPIC_WORKFLOW,
    WAITING_MEMO,
    Query,
    SearchAttribute,
    TopicMigrationInput,
    TopicMigrationStatus,
    TopicOutcome,
    TopicRef,
)
from tideline.domain.migration_input import to_json
from tideline.domain.options import MigrationOptions
from tideline.domain.tiered_storage_change import (
    TIERED_STORAGE_WORKFLOW,
    TieredStorageInput,
    TieredStorageOutcome,
    TieredStorageQuery,
    TieredStorageStatus,
    TieredStorageUpdate,
)
from tideline.domain.tiered_storage_change import to_json as change_to_json
from tideline.errors import RefusedError, TidelineError, UnreachableError, UsageError
from tideline.settings import TemporalSettings

_TYPES = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
}

R = TypeVar("R")
_LOOK_FOR = timedelta(seconds=5)
_ANSWER_SOON = timedelta(seconds=2)
_UPDATED_WITHIN = timedelta(seconds=90)
"""An abort that Postgres does not answer is tried for about ten seconds per round."""
_MOMENT, _ASK_AGAIN_S = timedelta(seconds=60), 0.2
"""How long an update is asked again that the workflow cannot take yet, and how often."""
_STARTS = 10
"""How often a workflow is looked for and started, when each ends before it can be joined."""
_POLLS_WITHIN = timedelta(seconds=90)
"""A long poll lasts a minute."""


_NOTHING_LEFT = frozenset(
    {
        WorkflowExecutionStatus.RUNNING,
        WorkflowExecutionStatus.CONTINUED_AS_NEW,
        WorkflowExecutionStatus.COMPLETED,
    }
)


_OUTAGES = frozenset(
    {
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.CANCELLED,
        RPCStatusCode.ABORTED,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.UNKNOWN,
        RPCStatusCode.INTERNAL,
    }
)
"""With any other status Temporal has answered, and refuses."""


class TemporalUnavailable(UnreachableError):
    """Temporal did not answer. Trying again may help."""


class NoSuchMigration(RefusedError):
    """No workflow runs for the topic."""


class NotYet(RefusedError):
    """The workflow that runs cannot take the update in this moment. Trying again helps."""


class AnotherWorkflowRuns(RefusedError):
    """Something else is being done to the topic, under the same workflow id."""


class MigrationFailed(TidelineError):
    """The workflow has ended without reaching its goal; the message is its own."""


async def connect(settings: TemporalSettings, runtime: Runtime | None = None) -> Client:
    """One attempt. Raises :class:`TemporalUnavailable` with the address."""
    options = connect_options(settings)
    try:
        return await Client.connect(**options, runtime=runtime)
    except (RPCError, RuntimeError) as error:
        why = str(error).partition(": tonic")[0]
        raise TemporalUnavailable(
            f"Temporal at {options['target_host']} does not answer: {why}"
        ) from error


def connect_options(settings: TemporalSettings) -> ClientConnectConfig:
    """Where to, and how protected: TLS, API key and headers by the SDK's own configuration
    (``TEMPORAL_…`` variables, or its file), address and namespace by ours where they are set.

    A profile that names another address than ours is for another server, which its key must not be
    shown to. Raises :class:`UsageError` for a configuration that cannot be read.
    """
    try:
        found = ClientConfig.load_client_connect_config()
    except RuntimeError as error:
        raise UsageError(f"the configuration of Temporal's SDK (TEMPORAL_…): {error}") from None
    address = settings.temporal_address
    ours = "temporal_address" in settings.model_fields_set
    if ours and found.get("target_host", address) != address:
        found = {}
    named = "temporal_namespace" in settings.model_fields_set
    if ours or "target_host" not in found:
        found["target_host"] = address
    if named or "namespace" not in found:
        found["namespace"] = settings.temporal_namespace
    return found


async def prepare(client: Client) -> list[str]:
    """Add the search attributes that the namespace does not have; their names. Needs Temporal's
    rights to read the namespace and, to add, its Admin's. Raises :class:`RefusedError` when one
    has another type, or when this may not be done."""
    with temporal_errors():
        known = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
        missing = {}
        for name, kind in SEARCH_ATTRIBUTES.items():
            if name not in known.custom_attributes:
                missing[name] = _TYPES[kind]
            elif known.custom_attributes[name] != _TYPES[kind]:
                raise RefusedError(
                    f"search attribute {name} of namespace {client.namespace} is not of type "
                    f"{kind}: remove it, then `tideline temporal prepare`"
                )
        if missing:
            await client.operator_service.add_search_attributes(
                AddSearchAttributesRequest(search_attributes=missing, namespace=client.namespace)
            )
    return sorted(missing)


async def need_search_attributes(client: Client) -> None:
    """What the worker does at its start: as :func:`prepare` where it may. Where it may not, or
    there is no operator service, everything has to be there already, by what a list of workflows
    takes in its query. Raises :class:`RefusedError` that names what is missing and the command."""
    try:
        await prepare(client)
    except RefusedError as refused:
        if not isinstance(refused.__cause__, RPCError):
            raise
        if missing := [
            name for name in SEARCH_ATTRIBUTES if not await knows_search_attribute(client, name)
        ]:
            raise RefusedError(
                f"namespace {client.namespace} has not the search attributes "
                f"{', '.join(missing)}, and this worker may not add them ({refused}): let somebody "
                "with an operator's rights run `tideline temporal prepare`"
            ) from refused


async def knows_search_attribute(client: Client, name: str) -> bool:
    """Whether the namespace has the search attribute; asks by the workflow service alone."""
    request = CountWorkflowExecutionsRequest(
        namespace=client.namespace, query=f"{name} IS NOT NULL"
    )
    with temporal_errors():
        try:
            await client.workflow_service.count_workflow_executions(request, timeout=_LOOK_FOR)
        except RPCError as error:
            if error.status is RPCStatusCode.INVALID_ARGUMENT:
                return False
            raise
    return True


def identity_prefix(cluster_id: str) -> str:
    """With which the identities of a Kafka cluster's workers begin."""
    return f"tideline/{cluster_id}/"


async def refuse_other_workers(client: Client, task_queue: str, cluster_id: str) -> None:
    """Raises :class:`RefusedError` while workers of another Kafka cluster poll ``task_queue``: each
    would take the other's tasks."""
    for who in await pollers(client, task_queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW):
        if who.startswith("tideline/") and not who.startswith(identity_prefix(cluster_id)):
            raise RefusedError(
                f"task queue {task_queue} of namespace {client.namespace} is polled by {who}, a "
                f"worker of another Kafka cluster than {cluster_id}: give each installation a "
                "TIDELINE_TEMPORAL_TASK_QUEUE or TIDELINE_TEMPORAL_NAMESPACE of its own; one that "
                f"has ended is forgotten after {_POLLS_WITHIN.seconds} s"
            )


async def workers_polling(client: Client, task_queue: str) -> int:
    """How many processes ask ``task_queue`` for workflow tasks."""
    return len(await pollers(client, task_queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW))


async def pollers(client: Client, task_queue: str, kind: TaskQueueType.ValueType) -> list[str]:
    """The identities that ask ``task_queue`` for tasks of that kind. Temporal remembers those that
    have ended for five minutes; one that lives asks again within :data:`_POLLS_WITHIN`."""
    with temporal_errors():
        found = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=client.namespace,
                task_queue=TaskQueue(name=task_queue),
                task_queue_type=kind,
            ),
            timeout=_LOOK_FOR,
        )
    since = datetime.now(UTC) - _POLLS_WITHIN
    return [p.identity for p in found.pollers if p.last_access_time.ToDatetime(UTC) > since]


async def start_or_join(
    client: Client, task_queue: str, ref: TopicRef, given: TopicMigrationInput
) -> WorkflowHandle[Any, TopicOutcome]:
    """The one workflow of the topic's migration: started now, or found running.

    Raises :class:`AnotherWorkflowRuns` while tiered storage of the topic is being switched.
    """
    for _ in range(_STARTS):
        with temporal_errors():
            handle: WorkflowHandle[Any, TopicOutcome] = await client.start_workflow(
                TOPIC_WORKFLOW,
                to_json(given),
                id=ref.workflow_id,
                task_queue=task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                result_type=TopicOutcome,
                static_summary=f"topic {ref.topic}",
                static_details=f"Moves {ref.topic} from tiered to diskless storage, in place.",
            )
        newest = await _newest(handle)
        if newest is None:
            # It was just started or joined, and is lost: the next attempt begins anew.
            raise TemporalUnavailable(f"Temporal knows no workflow {ref.workflow_id} any more")
        if newest.workflow_type == TOPIC_WORKFLOW:
            return handle
        if _runs(newest):
            raise _another(newest, ref.topic)
    raise _ended_each_time(ref.topic)


async def start_or_redirect(
    client: Client, task_queue: str, ref: TopicRef, given: TieredStorageInput
) -> WorkflowHandle[Any, TieredStorageOutcome]:
    """The workflow that switches the topic's tiered storage: given this target while it runs,
    started otherwise, also when it ends before it hears of the target.

    Raises :class:`AnotherWorkflowRuns` while the topic migrates, and :class:`RefusedError` when
    the workflow that runs refuses the target.
    """
    handle: WorkflowHandle[Any, TieredStorageOutcome] = client.get_workflow_handle(
        ref.workflow_id, result_type=TieredStorageOutcome
    )
    for _ in range(_STARTS):
        newest = await _newest(handle)
        if newest is None or not _runs(newest):
            given = await with_what_is_held(client, ref, given)
            with suppress(WorkflowAlreadyStartedError):
                return await _start_change(client, task_queue, ref, given)
        elif newest.workflow_type != TIERED_STORAGE_WORKFLOW:
            raise _another(newest, ref.topic)
        else:
            with suppress(NoSuchMigration):  # it ended first
                await update(handle, TieredStorageUpdate.TARGET, given, TieredStorageStatus)
                return handle
    raise _ended_each_time(ref.topic)


async def with_what_is_held(
    client: Client, ref: TopicRef, given: TieredStorageInput
) -> TieredStorageInput:
    """With the user's local retention, where :func:`unfinished_change` has left it held."""
    left = await unfinished_change(client, ref)
    return given if left is None else replace(given, before_hold=left.before_hold)


async def update(
    handle: WorkflowHandle[Any, Any],
    name: str,
    given: object,
    answer: type[R],
    *,
    nothing: str = "no such workflow runs",
) -> R:
    """One update of a workflow, asked again for as long as :data:`_MOMENT` while the workflow says
    that it cannot take it yet.

    Raises :class:`NoSuchMigration` with ``nothing`` when none runs, or when it ended before it had
    taken the update; :class:`RefusedError` when it refuses.
    """
    patience = monotonic() + _MOMENT.total_seconds()
    while True:
        try:
            with temporal_errors(nothing):
                return cast(
                    R,
                    await handle.execute_update(
                        name,
                        given,
                        result_type=answer,
                        rpc_timeout=_UPDATED_WITHIN,
                    ),
                )
        except NotYet:
            if monotonic() > patience:
                raise
            await asyncio.sleep(_ASK_AGAIN_S)


async def _start_change(
    client: Client, task_queue: str, ref: TopicRef, given: TieredStorageInput
) -> WorkflowHandle[Any, TieredStorageOutcome]:
    with temporal_errors():
        return await client.start_workflow(
            TIERED_STORAGE_WORKFLOW,
            change_to_json(given),
            id=ref.workflow_id,
            task_queue=task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            result_type=TieredStorageOutcome,
            static_summary=f"tiered storage of {ref.topic}",
            static_details=f"Brings tiered storage of topic {ref.topic} to {given.target}.",
        )


async def unfinished_change(client: Client, ref: TopicRef) -> TieredStorageInput | None:
    """What would finish the topic's newest switch of tiered storage, which has ended (terminated,
    failed, timed out) and left local retention held; ``None``: it has not, or it runs.

    A worker has to run: it is asked of the run that has ended.
    """
    handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(ref.workflow_id)
    with temporal_errors():
        try:
            newest = await handle.describe(rpc_timeout=_LOOK_FOR)
            if newest.workflow_type != TIERED_STORAGE_WORKFLOW or newest.status in _NOTHING_LEFT:
                return None
            ended = client.get_workflow_handle(ref.workflow_id, run_id=newest.run_id)
            found: TieredStorageInput | None = await ended.query(
                TieredStorageQuery.UNFINISHED.value,
                result_type=cast(type, TieredStorageInput | None),
                rpc_timeout=_LOOK_FOR,
            )
            return found
        except RPCError as error:
            # None was ever started, or it ended before it did anything.
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION):
                return None
            raise


async def resume_change(
    client: Client, task_queue: str, ref: TopicRef, given: TieredStorageInput
) -> WorkflowHandle[Any, TieredStorageOutcome]:
    """Start what :func:`unfinished_change` has found. Raises :class:`AnotherWorkflowRuns` when
    anything runs on the topic, a switch included."""
    try:
        return await _start_change(client, task_queue, ref, given)
    except WorkflowAlreadyStartedError as error:
        raise _running(ref.topic) from error


async def refuse_running(client: Client, ref: TopicRef) -> None:
    """Raises :class:`AnotherWorkflowRuns` while a workflow of the topic runs."""
    newest = await _newest(client.get_workflow_handle(ref.workflow_id))
    if newest is not None and _runs(newest):
        raise _running(ref.topic)


def _running(topic: str) -> AnotherWorkflowRuns:
    return AnotherWorkflowRuns(
        f"a workflow of {topic!r} runs: `tideline tiered-storage show {topic}`, "
        f"`tideline status {topic}`. Nothing was changed"
    )


async def result_of(handle: WorkflowHandle[Any, R]) -> R:
    """What the workflow ends with. Raises what Temporal says as errors of ours."""
    with temporal_errors():
        return await handle.result()


async def _newest(handle: WorkflowHandle[Any, Any]) -> WorkflowExecutionDescription | None:
    """The newest run under the workflow's id; ``None``: Temporal knows none."""
    try:
        with temporal_errors():
            return await handle.describe(rpc_timeout=_LOOK_FOR)
    except NoSuchMigration:
        return None


def _runs(described: WorkflowExecutionDescription) -> bool:
    return described.status is WorkflowExecutionStatus.RUNNING


def _another(newest: WorkflowExecutionDescription, topic: str) -> AnotherWorkflowRuns:
    """Migrations and switches of tiered storage share the topic's workflow id."""
    doing = (
        f"tiered storage of {topic!r} is being switched: `tideline tiered-storage show {topic}`"
        if newest.workflow_type == TIERED_STORAGE_WORKFLOW
        else f"{topic!r} migrates: `tideline status {topic}`; `tideline abort` ends it before B0"
    )
    return AnotherWorkflowRuns(f"{doing}. Only one of them runs at a time; nothing was changed")


def _ended_each_time(topic: str) -> TemporalUnavailable:
    return TemporalUnavailable(
        f"workflows of {topic!r} ended {_STARTS} times before they could be joined"
    )


async def tiered_storage_status(
    client: Client, topic: str, topic_id: UUID
) -> TieredStorageStatus | None:
    """Of the workflow that switches the topic's tiered storage; ``None``: none runs."""
    ref = TopicRef(topic, topic_id.hex, 0)
    handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(ref.workflow_id)
    try:
        with temporal_errors():
            found = await handle.describe(rpc_timeout=_LOOK_FOR)
            running = found.status is WorkflowExecutionStatus.RUNNING
            if not running or found.workflow_type != TIERED_STORAGE_WORKFLOW:
                return None
            status: TieredStorageStatus = await handle.query(
                Query.STATUS.value, result_type=TieredStorageStatus, rpc_timeout=_ANSWER_SOON
            )
            return status
    except NoSuchMigration:
        return None


async def options_in_force(handle: WorkflowHandle[Any, TopicOutcome]) -> MigrationOptions | None:
    """Those that the topic's workflow runs with; ``None`` when it has not begun, has ended or does
    not answer soon."""
    try:
        with temporal_errors():
            status: TopicMigrationStatus = await handle.query(
                Query.STATUS.value, result_type=TopicMigrationStatus, rpc_timeout=_ANSWER_SOON
            )
    except TidelineError:
        return None
    return status.options


def handle_of(client: Client, topic: str, topic_id: UUID) -> WorkflowHandle[Any, TopicOutcome]:
    """The workflow of the topic's migration, whether it runs or not."""
    ref = TopicRef(topic, topic_id.hex, 0)
    return client.get_workflow_handle(ref.workflow_id, result_type=TopicOutcome)


async def outcome_of(client: Client, ref: TopicRef) -> TopicOutcome | None:
    """How the topic's migration ended; ``None`` while it runs.

    Raises :class:`MigrationFailed` with the workflow's own reason when it was refused or ended
    from outside, :class:`NoSuchMigration` when Temporal knows none, :class:`TemporalUnavailable`.
    """
    handle: WorkflowHandle[Any, TopicOutcome] = client.get_workflow_handle(
        ref.workflow_id, result_type=TopicOutcome
    )
    with temporal_errors(f"Temporal knows no workflow {ref.workflow_id}"):
        description = await handle.describe(rpc_timeout=_LOOK_FOR)
        if description.workflow_type != TOPIC_WORKFLOW:
            # Its id is that of the newest workflow, which switches tiered storage.
            raise NoSuchMigration(f"{ref.workflow_id} is no migration any more")
        status = description.status
        if status in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW):
            return None
        return await handle.result(rpc_timeout=_LOOK_FOR)


@dataclass(frozen=True, slots=True)
class RunningTopic:
    """A topic's workflow that runs, by what Temporal's index has of it."""

    workflow_id: str
    topic: str
    stage: str
    """Empty while the name is being resolved."""
    waiting_reason: str
    waits: str = ""
    """A :class:`tideline.domain.waits.Waits`: the kind of the reason."""


async def running_topics(client: Client, topic: str | None = None) -> list[RunningTopic]:
    """Every topic's workflow that runs, or that of ``topic``, perhaps a moment late. Starts under
    other ids, which only follow, are none.

    Raises :class:`TemporalUnavailable`, :class:`RefusedError` when they may not be listed.
    """
    wanted = f"WorkflowType = '{TOPIC_WORKFLOW}' AND ExecutionStatus = 'Running'"
    if topic is not None:
        wanted += f" AND TidelineTopic = '{topic}'"
    found = []
    with temporal_errors():
        async for execution in client.list_workflows(wanted, rpc_timeout=_LOOK_FOR):
            parts = execution.id.split("/")
            if len(parts) != 4 or parts[:2] != ["tideline", "topic"]:
                continue
            known = {pair.key.name: pair.value for pair in execution.typed_search_attributes}
            name = str(known.get(SearchAttribute.TOPIC, parts[2]))  # an id may have a part of it
            stage = str(known.get(SearchAttribute.PHASE, ""))
            waits = str(known.get(SearchAttribute.WAITS, ""))
            reason = str((await execution.memo()).get(WAITING_MEMO, ""))
            found.append(RunningTopic(execution.id, name, stage, reason, waits))
    return found


@contextmanager
def temporal_errors(not_found: str = "no such workflow runs") -> Iterator[None]:
    """Errors of Temporal's client as ones that a person can read."""
    try:
        yield
    except (WorkflowUpdateFailedError, WorkflowFailureError) as error:
        cause = error.cause
        message = cause.message if isinstance(cause, ApplicationError) else str(cause)
        if isinstance(error, WorkflowUpdateFailedError):
            match getattr(cause, "type", None):
                case failures.WAITING:
                    raise NotYet(message) from error
                case "AcceptedUpdateCompletedWorkflow":  # Temporal's own
                    raise NoSuchMigration(not_found) from error
            raise RefusedError(message) from error
        raise MigrationFailed(f"the migration has ended: {message}") from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise TemporalUnavailable(
            "the workflow has not answered in time: is the worker running?"
        ) from error
    except WorkflowQueryFailedError as error:
        raise MigrationFailed(f"the workflow did not answer: {error}") from error
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise NoSuchMigration(not_found) from error
        raise _as_ours(error) from error


def _as_ours(error: RPCError) -> TidelineError:
    """Whether Temporal is away, or refuses."""
    if error.status in _OUTAGES:
        return TemporalUnavailable(f"Temporal: {error.message}")
    return RefusedError(f"Temporal refuses: {error.message}")


def workflow_url(settings: TemporalSettings, workflow_id: str) -> str | None:
    """The workflow's address in the Temporal UI, if the settings name one."""
    if settings.temporal_ui is None:
        return None
    base = settings.temporal_ui.rstrip("/")
    namespace = quote(settings.temporal_namespace, safe="")
    return f"{base}/namespaces/{namespace}/workflows/{quote(workflow_id, safe='')}"
