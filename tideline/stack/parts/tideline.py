"""Tideline's own processes: a gateway beside each broker, and the Temporal worker."""

from __future__ import annotations

import sys

from tideline.stack.parts.base import StackPart, StackPlan
from tideline.stack.probes import http_up, kafka_nodes, show
from tideline.stack.processes import Program
from tideline.stack.secured import kafka_nodes as kafka_nodes_of

_PYTHON = {"PYTHONUNBUFFERED": "1"}
GATEWAY_STOP_S = 25
"""Its siblings are told, its clients answered, what it has accepted committed."""


class GatewayPart(StackPart):
    def __init__(self, plan: StackPlan, node: int) -> None:
        super().__init__(plan)
        self.node = node

    @property
    def name(self) -> str:
        return f"gateway-{self.node}"

    @property
    def where(self) -> str:
        return show(self.plan.address(self.name))

    @property
    def needs(self) -> tuple[str, ...]:
        return ("postgres", "s3", f"kafka-{self.node}")

    def program(self) -> Program:
        return Program(
            name=self.name,
            command=(sys.executable, "-m", "tideline.gateway"),
            environment=self.plan.environment(self.name) | _PYTHON,
            log=self.log(),
            stop_wait_s=GATEWAY_STOP_S,
        )

    def prepare(self) -> None:
        (self.plan.home.data / self.name).mkdir(mode=0o700, exist_ok=True)

    def probe(self) -> None:
        """Clients are answered through it."""
        address = self.plan.address(self.name)
        if (secured := self.plan.secured) is not None:
            kafka_nodes_of(address, secured.login("gateway"))
        else:
            kafka_nodes(address)


class WorkerPart(StackPart):
    name = "worker"

    @property
    def where(self) -> str:
        return f"metrics {show(self.plan.address('metrics-worker'))}"

    @property
    def needs(self) -> tuple[str, ...]:
        nodes = range(1, self.plan.state.brokers + 1)
        return ("postgres", "s3", "temporal", *(f"kafka-{node}" for node in nodes))

    def program(self) -> Program:
        return Program(
            name=self.name,
            command=(sys.executable, "-m", "tideline.worker"),
            environment=self.plan.environment(self.name) | _PYTHON,
            log=self.log(),
        )

    def probe(self) -> None:
        http_up(self.plan.address("metrics-worker"), "/metrics")
