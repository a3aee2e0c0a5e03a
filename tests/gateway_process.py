"""A gateway inside the test's own process, on an event loop and a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tideline.gateway.context import ConnectionRegistry, GatewayServices
from tideline.gateway.handlers.transactions import OpenTransactions
from tideline.gateway.interception import Rules
from tideline.gateway.server import GatewayServer
from tideline.gateway.tracking import Tracking
from tideline.kafka.client import KafkaCluster
from tideline.settings import GatewaySettings

R = TypeVar("R")
NOWHERE = "127.0.0.1:1"
"""An address where nothing listens."""


def gateway_settings(broker: str, state: Path | str = "/tmp", **changes: str) -> GatewaySettings:
    """Settings of a gateway with Postgres and S3 out of reach."""
    values = {
        "gateway_id": "1",
        "gateway_broker_id": "1",
        "gateway_listen": "127.0.0.1:19599",
        "gateway_advertised": "127.0.0.1:19599",
        "gateway_broker": broker,
        "gateway_peers": "1=127.0.0.1:19599",
        "gateway_state_dir": str(state),
        "postgres_dsn": f"host=127.0.0.1 port={NOWHERE.rpartition(':')[2]}",
        "s3_endpoint": f"http://{NOWHERE}",
        **changes,
    }
    return GatewaySettings.of({f"TIDELINE_{k.upper()}": v for k, v in values.items()})


class GatewayThread:
    """Runs a :class:`GatewayServer` while the test's clients, which block, are at work."""

    def __init__(
        self,
        settings: GatewaySettings,
        rules: Rules,
        tracking: Tracking | None = None,
        control_plane: Any = None,
        tracked: Any = None,
    ) -> None:
        self._settings = settings
        self._rules = rules
        self.tracking = tracking or Tracking(lambda: True)
        self._control_plane = control_plane
        self._tracked = tracked
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.server: GatewayServer

    @property
    def bootstrap(self) -> str:
        return "{}:{}".format(*self.server.address)

    def call(self, work: Callable[[], Awaitable[R]]) -> R:
        """Run something on the gateway's loop."""

        async def run() -> R:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def __enter__(self) -> Self:
        self._thread.start()
        self.call(self._start)
        return self

    async def _start(self) -> None:
        cluster = KafkaCluster([self._settings.gateway_broker], timeout_ms=5_000)
        self.services = GatewayServices(
            settings=self._settings,
            tracking=self.tracking,
            control_plane=self._control_plane,
            cluster=cluster,
            connections=ConnectionRegistry(),
            transactions=OpenTransactions(cluster, self._settings.gateway_broker_id),
            tracked=self._tracked,
        )
        self.server = GatewayServer(self.services, self._rules)
        await self.server.start()

    async def _stop(self) -> None:
        await self.server.stop(1.0)
        self.services.cluster.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.call(self._stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
