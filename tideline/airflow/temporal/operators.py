"""Operators of Temporal: run a workflow to its end; signal, update or query one."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tideline.airflow.temporal.calls import CALL_TIMEOUT_S, TemporalSilent, connect, readable
from tideline.airflow.temporal.following import (
    ENDED,
    SILENT,
    WorkflowRun,
    event_of,
    follow_all,
)
from tideline.airflow.temporal.hook import TemporalHook
from tideline.airflow.temporal.link import TemporalWorkflowLink, keep_link
from tideline.airflow.temporal.target import Target
from tideline.airflow.temporal.trigger import (
    PATIENCE_S,
    TemporalWorkflowTrigger,
    WhenKilled,
    stop,
)

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger
    from temporalio.client import Client

R = TypeVar("R")
Reuse = Literal["allow_duplicate", "allow_duplicate_failed_only", "reject_duplicate"]
Conflict = Literal["use_existing", "terminate_existing", "fail"]
DEFAULT_ID = "{{ dag.dag_id }}/{{ run_id }}/{{ task.task_id }}/{{ ti.map_index }}"


class TemporalOperator(BaseOperator):
    """What the operators share: one connection for each call, and the button to the UI."""

    operator_extra_links = (TemporalWorkflowLink(),)

    def __init__(
        self, *, temporal_conn_id: str = TemporalHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.temporal_conn_id = temporal_conn_id

    def target(self) -> Target:
        return TemporalHook(self.temporal_conn_id).target()

    def call(
        self,
        target: Target,
        what: str,
        work: Callable[[Client], Awaitable[R]],
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> R:
        """Raises :class:`TemporalSilent`, or :class:`AirflowFailException` when no other try
        helps."""

        async def called() -> R:
            client = await connect(target)
            try:
                async with asyncio.timeout(timeout_s):
                    with readable(target, what):
                        return await work(client)
            except TimeoutError:
                raise TemporalSilent(f"{what}: Temporal at {target.address} is silent") from None

        return asyncio.run(called())


class TemporalWorkflowOperator(TemporalOperator):
    """Starts a workflow, or joins the one that has its id, and waits for its end; returns what it
    returned, as JSON has it. A workflow that fails, fails the task for good; while Temporal is
    silent the task is tried again, and joins."""

    template_fields: Sequence[str] = ("workflow", "arguments", "workflow_id", "task_queue")

    def __init__(
        self,
        *,
        workflow: str,
        task_queue: str,
        arguments: Sequence[Any] = (),
        workflow_id: str = DEFAULT_ID,
        id_reuse_policy: Reuse = "allow_duplicate_failed_only",
        id_conflict_policy: Conflict = "use_existing",
        workflow_timeout: timedelta | None = None,
        deferrable: bool = True,
        when_killed: WhenKilled = "leave",
        patience_s: float = PATIENCE_S,
        **kwargs: Any,
    ) -> None:
        """``workflow``: the name of its type; ``workflow_id``: by default one for each task of each
        run, so that a further try joins; ``id_reuse_policy``: when a workflow of this id that has
        ended may be followed by another, else its result is this task's; ``id_conflict_policy``:
        what becomes of one that runs; ``workflow_timeout``: Temporal ends it after this;
        ``deferrable``: wait in the triggerer, not in a worker's slot; ``when_killed``: what becomes
        of the workflow when the task is killed; ``patience_s``: how long Temporal may be silent."""
        super().__init__(**kwargs)
        self.workflow = workflow
        self.task_queue = task_queue
        self.arguments = arguments
        self.workflow_id = workflow_id
        self.id_reuse_policy = id_reuse_policy
        self.id_conflict_policy = id_conflict_policy
        self.workflow_timeout = workflow_timeout
        self.deferrable = deferrable
        self.when_killed = when_killed
        self.patience_s = patience_s
        self._followed: tuple[Target, WorkflowRun] | None = None

    def execute(self, context: Context) -> Any:
        target = self.target()
        run = self.call(target, self.workflow_id, self._start)
        self.log.info("%s: run %s", run.workflow_id, run.run_id)
        keep_link(context, target.link(run.workflow_id, run.run_id))
        if self.deferrable:
            self.defer(trigger=self.trigger(run), method_name="ended")
        self._followed = target, run
        found = asyncio.run(follow_all(target, [run], self.patience_s))
        return self.ended(context, event_of(found))

    async def _start(self, client: Client) -> WorkflowRun:
        from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
        from temporalio.exceptions import WorkflowAlreadyStartedError

        try:
            handle = await client.start_workflow(
                self.workflow,
                args=list(self.arguments),
                id=self.workflow_id,
                task_queue=self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy[self.id_reuse_policy.upper()],
                id_conflict_policy=WorkflowIDConflictPolicy[self.id_conflict_policy.upper()],
                execution_timeout=self.workflow_timeout,
            )
        except WorkflowAlreadyStartedError as error:
            if self.id_conflict_policy == "fail" and await _runs(client, error.workflow_id):
                raise AirflowFailException(f"{self.workflow_id} runs already") from error
            return WorkflowRun(error.workflow_id, error.run_id or "")
        return WorkflowRun(handle.id, handle.result_run_id or handle.first_execution_run_id or "")

    def trigger(self, run: WorkflowRun) -> BaseTrigger:
        return TemporalWorkflowTrigger(
            [{"workflow_id": run.workflow_id, "run_id": run.run_id}],
            self.temporal_conn_id,
            self.patience_s,
            self.when_killed,
        )

    def ended(self, context: Context, event: dict[str, Any]) -> Any:
        """Called with what the trigger saw."""
        must_have_ended(event)
        return event["workflows"][0]["result"]

    def on_kill(self) -> None:
        if self._followed is None or self.when_killed == "leave":
            return
        target, run = self._followed
        how = self.when_killed

        async def end(client: Client) -> None:
            await stop(run.handle(client), how)

        self.call(target, run.workflow_id, end)


def must_have_ended(event: dict[str, Any]) -> None:
    """Raises what the task fails with: :class:`AirflowException` to be tried again while Temporal
    is silent, :class:`AirflowFailException` when a workflow has failed."""
    if event["status"] == SILENT:
        raise AirflowException(f"{event['message']}. The workflow goes on; the next try joins it")
    if event["status"] != ENDED:
        raise AirflowFailException(event["message"])


async def _runs(client: Client, workflow_id: str) -> bool:
    from temporalio.client import WorkflowExecutionStatus

    found = await client.get_workflow_handle(workflow_id).describe()
    return found.status is WorkflowExecutionStatus.RUNNING


class _ToWorkflow(TemporalOperator):
    """One message to a workflow that was started elsewhere."""

    template_fields: Sequence[str] = ("workflow_id", "run_id", "name", "arguments")

    def __init__(
        self,
        *,
        workflow_id: str,
        name: str,
        arguments: Sequence[Any] = (),
        run_id: str | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        **kwargs: Any,
    ) -> None:
        """``name``: of the signal, update or query; ``run_id``: unset, the newest run;
        ``timeout_s``: for the answer."""
        super().__init__(**kwargs)
        self.workflow_id = workflow_id
        self.name = name
        self.arguments = arguments
        self.run_id = run_id
        self.timeout_s = timeout_s

    def execute(self, context: Context) -> Any:
        target = self.target()
        keep_link(context, target.link(self.workflow_id, self.run_id))
        return self.call(target, f"{self.name} of {self.workflow_id}", self.send, self.timeout_s)

    @abstractmethod
    async def send(self, client: Client) -> Any:
        """What Temporal answers."""


class TemporalSignalOperator(_ToWorkflow):
    """Signals a workflow. Succeeds when Temporal has taken the signal; a further try may send it a
    second time."""

    async def send(self, client: Client) -> None:
        handle = client.get_workflow_handle(self.workflow_id, run_id=self.run_id)
        await handle.signal(self.name, args=list(self.arguments))


class TemporalUpdateOperator(_ToWorkflow):
    """Updates a workflow and returns what the update returned. One that is refused fails the task
    for good. A further try of the task joins the update of the one before."""

    update_id: str | None = None

    def execute(self, context: Context) -> Any:
        ti = context["ti"]
        self.update_id = f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"
        return super().execute(context)

    async def send(self, client: Client) -> Any:
        handle = client.get_workflow_handle(self.workflow_id, run_id=self.run_id)
        return await handle.execute_update(self.name, args=list(self.arguments), id=self.update_id)


class TemporalQueryOperator(_ToWorkflow):
    """Queries a workflow and returns the answer."""

    async def send(self, client: Client) -> Any:
        handle = client.get_workflow_handle(self.workflow_id, run_id=self.run_id)
        return await handle.query(self.name, args=list(self.arguments))
