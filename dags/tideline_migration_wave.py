"""A migration wave: many topics, batch after batch."""

from __future__ import annotations

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, task

from tideline.airflow import wave_tasks, wiring
from tideline.airflow.operators import (
    BatchApproval,
    TopicMigrationOperator,
    TopicPreflightOperator,
)
from tideline.airflow.wave import PLAN_VARIABLE, schemas

DOC = f"""
Migrates a list of topics, `batch_size` at once. Each run of this DAG is **one batch**; it starts
the next one when all of its topics are hybrid. `check` runs every check of every topic of the batch
before any of them starts; `migrate` starts the topic's workflow, or joins it, and waits in the
triggerer.

* **Start**: trigger it with `topics`. Or set the Variable `{PLAN_VARIABLE}` to the same as JSON
  (`["orders", "payments"]`): the wave starts when coverage is found complete the next time. A plan
  starts each topic once, and nothing that was aborted or rejected; it halts at the first topic that
  does not become hybrid and at a rejected batch, until a person asks anew. A change of the Variable
  ends the wave of what it said before.
* **Pause between batches**: pause the DAG. Topics that migrate go on; no further batch starts until
  it is unpaused. Or set `approve_each_batch`: a person decides in *Required Actions*.
* **A check failed?** The batch has not started. The task's last line names topic, check and remedy:
  repair it, clear the task, and the wave goes on from there.
* **A topic is stuck?** The others of its batch go on; the next batch waits, unless
  `patience_minutes` says for how long. Then the topic is left behind: its migration goes on by
  itself, see `tideline status`.
* **A migration failed or was aborted?** The other topics of its batch go on to their end; no
  further batch starts. Clear the task when the run has ended to try again.
* **Stop one topic**: `tideline abort TOPIC`. Marking a task only ends Airflow's wait.
"""

settings = wiring.settings()

with DAG(
    "tideline_migration_wave",
    description="Migrates a list of topics from tiered to hybrid, batch after batch",
    doc_md=DOC,
    schedule=[wiring.COVERAGE_COMPLETE],
    params={
        name: Param(**schema)
        for name, schema in schemas(settings.migration_parallel_topics).items()
    },
    tags=["tideline", "temporal", "migration"],
    **wiring.of_wave(settings),
):
    topics = task(wave_tasks.batch)()
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
    following = task.short_circuit(wave_tasks.next_batch)()
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
