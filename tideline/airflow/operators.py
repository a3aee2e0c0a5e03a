"""Operators of a migration: check a topic, migrate it, ask a person whether to go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tideline.airflow.temporal.link import keep_link
from tideline.airflow.temporal.operators import TemporalWorkflowOperator
from tideline.airflow.trigger import ENDED, LEFT, SILENT, TopicMigrationTrigger
from tideline.domain.messages import TOPIC_WORKFLOW
from tideline.errors import TidelineError, is_outage
from tideline.settings import WorkerSettings, load

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tideline.airflow.temporal.following import WorkflowRun
    from tideline.domain.preflight import PreflightReport


PASSING = frozenset(
    {"gateways_alive", "no_reassignment", "replicas_in_sync", "tiered_storage_healthy"}
)
"""Checks whose refusal may pass by itself, as after an outage of a broker, a gateway or S3."""


class TopicPreflightOperator(BaseOperator):
    """Every check of the topic's migration; changes nothing.

    Fails with topic, check and remedy. It is tried again when a part does not answer or what
    refuses may pass by itself (:data:`PASSING`), and fails for good at any other refusal.
    """

    template_fields: Sequence[str] = ("topic", "options", "plan")

    def __init__(
        self,
        *,
        topic: str,
        options: Mapping[str, Any] | None = None,
        plan: str = "",
        patience_minutes: int | None = None,
        **kwargs: Any,
    ) -> None:
        """``options`` are those of ``tideline migrate``; ``plan`` keeps what became of the topic,
        see :mod:`tideline.airflow.plans`. ``patience_minutes``: of :class:`TopicMigrationOperator`,
        which is given the same of each topic of a batch."""
        super().__init__(**kwargs)
        self.topic = topic
        self.options = options
        self.plan = plan

    def execute(self, context: Context) -> dict[str, str]:
        from tideline.airflow import migrations

        try:
            given = migrations.migration_input(self.topic, self.options, "airflow")
            report = asyncio.run(migrations.check(given))
        except TidelineError as error:
            raise failed(self.topic, error) from error
        for result in report.checks:
            self.log.info("%s: %s: %s", result.name, result.verdict, result.found)
        if not report.accepted:
            refusal = refused(report)
            if isinstance(refusal, AirflowFailException):
                tell(self, context, "refused", str(refusal))
            raise refusal
        return {result.name: str(result.verdict) for result in report.checks}


class TopicMigrationOperator(TemporalWorkflowOperator):
    """Starts the topic's migration, or joins the one that runs, and waits for its end.

    It is the workflow that every other trigger meets at, by Tideline's settings of Temporal. The
    wait is in the triggerer; a retry joins again, but starts nothing that was aborted after the
    run began. Returns the workflow's result: topic, topic id, outcome, B0 by partition.
    """

    template_fields: Sequence[str] = ("topic", "options", "plan", "patience_minutes")

    def __init__(
        self,
        *,
        topic: str,
        options: Mapping[str, Any] | None = None,
        plan: str = "",
        patience_minutes: int | None = None,
        abort_when_killed: bool = False,
        **kwargs: Any,
    ) -> None:
        """``options`` are those of ``tideline migrate``; ``plan`` keeps what became of the topic,
        see :mod:`tideline.airflow.plans`; ``patience_minutes``: the task succeeds without the
        migration's end when that has not come for so long, and the migration goes on;
        ``abort_when_killed``: see :class:`TopicMigrationTrigger`."""
        super().__init__(workflow=TOPIC_WORKFLOW, task_queue="", **kwargs)
        self.topic = topic
        self.options = options
        self.plan = plan
        self.patience_minutes = patience_minutes
        self.abort_when_killed = abort_when_killed

    def execute(self, context: Context) -> None:
        from tideline.airflow import migrations, plans

        run_id, since = context["run_id"], context["dag_run"].start_date
        try:
            given = migrations.migration_input(self.topic, self.options, f"airflow: {run_id}")
            if since is not None:
                asyncio.run(plans.begin(self.topic, self.plan, run_id, since))
            started = asyncio.run(migrations.start_or_join(given))
            url = migrations.target().link(started.workflow_id, started.run_id)
        except TidelineError as error:
            raise failed(self.topic, error) from error
        self.log.info("%s migrates: %s", self.topic, url or started.workflow_id)
        keep_link(context, url)
        self.defer(trigger=self.trigger(started), method_name="ended")

    def trigger(self, run: WorkflowRun) -> TopicMigrationTrigger:
        patience = self.patience_minutes
        return TopicMigrationTrigger(
            run.workflow_id,
            run.run_id,
            self.topic,
            self.abort_when_killed,
            leave_at=None if patience is None else time.time() + 60 * int(patience),
        )

    def ended(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Called with what the trigger saw."""
        if event["status"] == SILENT:
            raise AirflowException(
                f"{self.topic}: {event['message']}. The migration goes on; the next try joins it"
            )
        if event["status"] == LEFT:
            tell(self, context, "left_behind", event["message"])
            self.log.warning("%s: %s", self.topic, event["message"])
            return {"topic": self.topic, "outcome": "left_behind", "reason": event["message"]}
        if event["status"] != ENDED:
            tell(self, context, "failed", event["message"])
            raise AirflowFailException(f"{self.topic}: {event['message']}")
        outcome: dict[str, Any] = event["outcome"]
        if outcome["outcome"] != "hybrid":
            tell(self, context, "aborted", outcome["reason"])
            why = f": {outcome['reason']}" if outcome["reason"] else ""
            raise AirflowFailException(
                f"{self.topic}: the migration was {outcome['outcome']}{why}. The topic is as it "
                "was; clear this task to migrate it again"
            )
        tell(self, context, "done", "")
        self.log.info("%s is hybrid. B0 by partition: %s", self.topic, outcome["boundaries"])
        return outcome


class BatchApproval(ApprovalOperator):
    """Asks a person in the UI before the next batch, if its parameters say so. Holds no slot while
    it waits, for as long as it takes. The answer is kept; while that cannot be written, the person
    is asked again."""

    def __init__(self, *, following: str, **kwargs: Any) -> None:
        """``following``: the task whose value is the parameters of the next batch."""
        # Its base class would take the time limit of all tasks for that of the person.
        super().__init__(**kwargs | {"execution_timeout": None})
        self.following = following

    def execute(self, context: Context) -> Any:
        following = context["ti"].xcom_pull(task_ids=self.following) or {}
        if following.get("approve_each_batch"):
            return super().execute(context)
        return None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        from tideline.airflow import plans

        if "error" not in event:
            following = context["ti"].xcom_pull(task_ids=self.following)
            who = (event.get("responded_by_user") or {}).get("name") or "a person"
            allowed = event["chosen_options"] != [self.REJECT]
            try:
                asyncio.run(plans.decide(following, allowed, who, context["run_id"]))
            except TidelineError as error:
                raise failed("the answer", error) from error
        return super().execute_complete(context, event)


def tell(
    operator: TopicPreflightOperator | TopicMigrationOperator,
    context: Context,
    outcome: str,
    reason: str,
) -> None:
    """Keep the topic's outcome. One that cannot be written is logged only: the plan still knows
    that it started the topic, and starts it no second time."""
    from tideline.airflow import plans
    from tideline.control_plane.model import PlannedOutcome

    if not operator.plan:
        return
    try:
        asyncio.run(
            plans.tell(
                operator.plan,
                [operator.topic],
                PlannedOutcome(outcome),
                reason or "",
                context["run_id"],
            )
        )
    except TidelineError as error:
        operator.log.warning(
            "%s: plan %s was not told that it was %s: %s",
            operator.topic,
            operator.plan,
            outcome,
            error,
        )


def failed(topic: str, error: TidelineError) -> AirflowException:
    """Only what does not answer is worth another try."""
    kind = AirflowException if is_outage(error) else AirflowFailException
    return kind(f"{topic}: {error}")


def refused(report: PreflightReport) -> AirflowException:
    """Names each check that is not passed, what was found, and the remedy."""
    from tideline.domain.preflight import Verdict

    unknown = any(result.verdict is Verdict.UNKNOWN for result in report.checks)
    refusals = {result.name for result in report.checks if result.verdict is Verdict.REFUSED}
    message = f"{report.topic} may not migrate, nothing was changed: {report.refusal()}"
    if unknown:
        from tideline.airflow.migrations import addresses

        message = f"{message}. Asked: {addresses(load(WorkerSettings))}"
    kind = AirflowException if refusals <= PASSING else AirflowFailException
    return kind(message)
