"""A migration wave: many topics, batch after batch."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, Variable, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tideline.airflow import plans, wiring
from tideline.airflow.operators import (
    BatchApproval,
    TopicMigrationOperator,
    TopicPreflightOperator,
)
from tideline.airflow.wave import PLAN_VARIABLE, Wave, read_wave, schemas
from tideline.errors import RefusedError, UsageError

DOC = f"""
Migrates a list of topics, `batch_size` at once. Each run of this DAG is **one batch**; it starts
the next one when all of its topics are hybrid. `check` runs every check of every topic of the batch
before any of them starts; `migrate` starts the topic's workflow, or joins it, and waits in the
triggerer.

* **Start**: trigger it with `topics`. Or set the Variable `{PLAN_VARIABLE}` to the same as JSON
  (`["orders", "payments"]`): the wave starts when coverage is found complete the next time. A plan
  starts each topic once, and nothing that was aborted; it halts at the first topic that does not
  become hybrid and at a rejected batch, until a person asks anew.
* **Pause between batches**: pause the DAG. Topics that migrate go on; no further batch starts until
  it is unpaused. Or set `approve_each_batch`: a person decides in *Required Actions*.
* **A check failed?** The batch has not started. The task's last line names topic, check and remedy:
  repair it, clear the task, and the wave goes on from there.
* **A migration failed or was aborted?** The other topics of its batch go on to their end; no
  further batch starts. Clear the task when the run has ended to try again.
* **Stop one topic**: `tideline abort TOPIC`. Marking a task only ends Airflow's wait.
"""

settings = wiring.settings()
BATCH = settings.migration_parallel_topics


def the_wave() -> Wave:
    """Of this run."""
    params: dict[str, Any] = dict(get_current_context()["params"])
    planned = None
    if not params.get("topics"):
        planned = Variable.get(PLAN_VARIABLE, default=None, deserialize_json=True)
    try:
        wave = read_wave(params, planned, BATCH)
    except UsageError as error:
        raise AirflowFailException(str(error)) from error
    if wave is None:
        raise AirflowSkipException(
            f"no topics were given and the Variable {PLAN_VARIABLE} plans none: nothing to do"
        )
    return wave


with DAG(
    "tideline_migration_wave",
    description="Migrates a list of topics from tiered to hybrid, batch after batch",
    doc_md=DOC,
    schedule=[wiring.COVERAGE_COMPLETE],
    catchup=False,
    max_active_runs=1,
    default_args=wiring.default_args(settings),
    deadline=wiring.deadline(settings),
    params={name: Param(**schema) for name, schema in schemas(BATCH).items()},
    tags=["tideline", "temporal", "migration"],
):

    @task
    def batch() -> list[dict[str, Any]]:
        """The topics of this batch, each with its options."""
        wave = the_wave()
        try:
            chosen = plans.next_batch(wave, get_current_context()["run_id"])
        except RefusedError as error:
            raise AirflowSkipException(str(error)) from error
        if not chosen:
            raise AirflowSkipException("nothing is left to migrate")
        return chosen

    @task.short_circuit
    def next_batch() -> dict[str, Any] | None:
        """The parameters of the next batch; nothing after the last one ends the wave."""
        context = get_current_context()
        last = context["ti"].xcom_pull(task_ids="batch")[-1]["topic"]
        wave, begun = the_wave(), context["dag_run"].start_date
        if last not in wave.topics:
            raise AirflowFailException(f"the Variable {PLAN_VARIABLE} was changed meanwhile")
        return wave.rest(context["run_id"], plans.milliseconds(begun), last)

    topics = batch()
    check = TopicPreflightOperator.partial(
        task_id="check",
        map_index_template="{{ task.topic }}",
        max_active_tis_per_dagrun=2,
    ).expand_kwargs(topics)
    migrate = TopicMigrationOperator.partial(
        task_id="migrate",
        map_index_template="{{ task.topic }}",
        pool=wiring.MIGRATIONS_POOL,
    ).expand_kwargs(topics)
    following = next_batch()
    approve = BatchApproval(
        task_id="approve",
        following="next_batch",
        subject="Migrate the next batch of {{ (params.wave or run_id) }}?",
        body="Batch {{ params.batch }} is hybrid. Next: "
        "{{ ti.xcom_pull(task_ids='next_batch')['topics'] | join(', ') | truncate(2000) }}",
    )
    start_next = TriggerDagRunOperator(
        task_id="start_next",
        trigger_dag_id="tideline_migration_wave",
        trigger_run_id="{{ params.wave or run_id }}__batch_{{ params.batch + 1 }}",
        conf=following,
        skip_when_already_exists=True,
    )
    topics >> check >> migrate >> following >> approve >> start_next
