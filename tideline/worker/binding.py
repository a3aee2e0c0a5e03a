"""Whose tasks a worker takes: those of its Kafka cluster.

A namespace and a task queue may by mistake be those of another installation, whose Postgres would
answer that a topic was deleted, and end its migration past B0. The cluster's id names the
installation: Postgres is bound to it for good, and it stays when Postgres is lost and rebuilt.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from tideline.temporal import identity_prefix


def identity(cluster_id: str) -> str:
    """How this process polls: others see whose it is."""
    return f"{identity_prefix(cluster_id)}{os.getpid()}@{socket.gethostname()}"


class OwnTasks(Interceptor):
    """Refuses activities about topics of another Kafka cluster; trying again helps once the right
    worker polls."""

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _OwnActivities(next, self.cluster_id)


class _OwnActivities(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, cluster_id: str) -> None:
        super().__init__(next)
        self._cluster_id = cluster_id

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        for given in input.args:
            asked = getattr(getattr(given, "ref", given), "cluster_id", "")
            if asked not in ("", self._cluster_id):
                raise ApplicationError(
                    f"a topic of Kafka cluster {asked} came to a worker of cluster "
                    f"{self._cluster_id}: give each installation a TIDELINE_TEMPORAL_TASK_QUEUE or "
                    "TIDELINE_TEMPORAL_NAMESPACE of its own",
                    type="AnotherInstallation",
                )
        return await super().execute_activity(input)
