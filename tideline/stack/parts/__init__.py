"""Which parts there are, and in which order they are started."""

from __future__ import annotations

from collections.abc import Collection

from tideline.stack.parts.airflow import COMPONENTS, Airflow
from tideline.stack.parts.base import StackPart, StackPlan
from tideline.stack.parts.kafka import Kafka
from tideline.stack.parts.postgres import Postgres
from tideline.stack.parts.s3 import S3
from tideline.stack.parts.temporal import Temporal
from tideline.stack.parts.tideline import GatewayPart, WorkerPart

ALL_PARTS = ("postgres", "s3", "temporal", "kafka", "gateway", "worker")
"""Kinds of parts that are started by default, in this order."""

ON_REQUEST = ("airflow",)
"""Kinds of parts that are started when they are asked for."""

KINDS = (*ALL_PARTS, *ON_REQUEST)


def parts_of(plan: StackPlan, kinds: Collection[str]) -> list[StackPart]:
    """The parts of the chosen kinds, in the order in which they are started."""
    nodes = range(1, plan.state.brokers + 1)
    every: dict[str, list[StackPart]] = {
        "postgres": [Postgres(plan)],
        "s3": [S3(plan)],
        "temporal": [Temporal(plan)],
        "kafka": [Kafka(plan, node) for node in nodes],
        "gateway": [GatewayPart(plan, node) for node in nodes],
        "worker": [WorkerPart(plan)],
        "airflow": [Airflow(plan, component) for component in COMPONENTS],
    }
    return [part for kind in KINDS if kind in kinds for part in every[kind]]
