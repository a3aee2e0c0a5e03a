"""``make airflow``: one run of each DAG on a small topic of the embedded stack, and where to look.

Needs a running stack with Airflow in it.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from tideline.demo import topic as topics
from tideline.demo.airflow_api import AirflowApi
from tideline.errors import ExitCode, TidelineError
from tideline.stack import Stack

WAVE = "tideline_migration_wave"
JOBS = tuple(f"tideline_{job}" for job in ("coverage", "split", "merge", "retention", "gc"))
PARTITIONS = 2
RECORDS = 3_000
RECORD_BYTES = 1_000
STILL_S = 300.0
"""Longer than any DAG, or task of a run, takes for its next step."""


def main() -> None:
    """Exit code FAILED when a run has failed."""
    console = Console()
    try:
        console.print("One run of each DAG, on a topic made for it:")
        ok = tour(console)
    except TidelineError as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        raise SystemExit(error.exit_code.value) from None
    # Native threads of the Kafka client would hold the process.
    sys.stdout.flush()
    os._exit(ExitCode.OK if ok else ExitCode.FAILED)


def tour(console: Console) -> bool:
    """Whether every run succeeded."""
    stack = Stack.attach()
    api = AirflowApi.of_home(stack.home, stack.endpoints.airflow)
    wanted = {WAVE, *JOBS}
    with console.status("waiting until Airflow has read the DAGs"):
        api.until("the DAGs", lambda: wanted <= set(api.dags()), STILL_S, lambda: set(api.dags()))
    topic = f"airflow-tour-{time.time_ns() // 1_000_000_000}"
    with console.status(f"making topic {topic}"):
        _make_topic(stack, topic)
    table = Table("DAG", "run", "result", "seconds", box=None, pad_edge=False)
    states = []
    for dag, conf in ((WAVE, {"topics": [topic]}), *((dag, dict[str, Any]()) for dag in JOBS)):
        run = api.trigger(dag, **conf)
        with console.status(f"{dag}: {run}"):
            state = api.ended(dag, run, STILL_S)
        if dag == WAVE:
            _produce(stack, topic)
        seconds = f"{float(api.run(dag, run).get('duration') or 0):.0f}"
        table.add_row(dag, run, f"[{'green' if state == 'success' else 'red'}]{state}", seconds)
        states.append(state)
    console.print(table)
    where = next(row.where for row in stack.status() if row.info.name == "airflow-api")
    console.print(f"Airflow UI: {where}", soft_wrap=True)
    return set(states) == {"success"}


def _make_topic(stack: Stack, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": stack.endpoints.gateway_bootstrap})
    topics.create_tiered(admin, topic, PARTITIONS, min(3, stack.brokers))
    _produce(stack, topic)


def _produce(stack: Stack, topic: str) -> None:
    producer = Producer({"bootstrap.servers": stack.endpoints.gateway_bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, bytes(RECORD_BYTES), str(number).encode())
        producer.poll(0)
    if left := producer.flush(60):
        raise TidelineError(f"{left} records of {topic} were not acknowledged within 60 s")


if __name__ == "__main__":
    main()
