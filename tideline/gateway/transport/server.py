"""The listening side of a gateway: accepts clients, watches them and the broker, drains at the
end."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from tideline.background import cancel_and_wait, keep
from tideline.gateway.context import ConnectionRegistry, Rules
from tideline.gateway.metrics import BROKER_UP
from tideline.gateway.transport.addresses import ResponseRewriter
from tideline.gateway.transport.connection import GatewayConnection
from tideline.kafka.client import KafkaConnection
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.settings import GatewaySettings

IDLE_S = 600.0
"""Kafka's own ``connections.max.idle.ms``: nothing asked for so long, nothing owed."""
SWEEP_S = 15.0
DRAIN_S = 10.0
"""How long a shutdown waits for answers that are owed."""
PROBE_S = 2.0
PROBE_TIMEOUT_MS = 3_000
BACKLOG = 512

log = structlog.get_logger()


class GatewayServer:
    """Serves clients on ``gateway_listen`` until it is stopped.

    A broker that does not answer does not stop the gateway: clients are disconnected as a dead
    broker would, it is logged with the broker's address, and ``inkless_gateway_broker_up`` is 0.
    """

    def __init__(
        self, settings: GatewaySettings, rules: Rules, connections: ConnectionRegistry
    ) -> None:
        self._settings = settings
        self._rules = rules
        self._connections = connections
        self._rewriter = ResponseRewriter(settings.gateway_peers, rules)
        self._listening: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._listening is not None, "the gateway does not listen yet"
        host, port = self._listening.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def start(self) -> None:
        """Begin to accept clients. Raises ``OSError`` if the address is taken."""
        loop = asyncio.get_running_loop()
        host, port = self._settings.gateway_listen
        self._listening = await loop.create_server(
            self._accept, host, port, backlog=BACKLOG, reuse_address=True
        )
        self._tasks = [keep(self._sweep(), "sweep"), keep(self._watch_broker(), "watch-broker")]
        log.info("gateway listens", address="{}:{}".format(*self.address))

    def _accept(self) -> GatewayConnection:
        return GatewayConnection(self._settings, self._rules, self._rewriter, self._connections)

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Accept nobody, answer what has arrived within ``drain_s``, then close."""
        if self._listening is not None:
            self._listening.close()
        for task in self._tasks:
            task.cancel()
        connections = self._own()
        for connection in connections:
            connection.drain()
        deadline = asyncio.get_running_loop().time() + drain_s
        while asyncio.get_running_loop().time() < deadline:
            if all(connection.is_idle for connection in connections):
                break
            await asyncio.sleep(0.01)
        owed = sum(not connection.is_idle for connection in connections)
        for connection in self._own():
            connection.close("the gateway stops")
        await cancel_and_wait(*self._tasks)
        log.info("gateway stopped", connections=len(connections), unanswered=owed)

    def _own(self) -> list[GatewayConnection]:
        return [c for c in self._connections if isinstance(c, GatewayConnection)]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            before = asyncio.get_running_loop().time() - IDLE_S
            for connection in self._own():
                if connection.is_idle and connection.last_active < before:
                    connection.close(f"idle for {IDLE_S:.0f} s")

    async def _watch_broker(self) -> None:
        host, port = self._settings.gateway_broker
        broker = f"{host}:{port}"
        up: bool | None = None
        while True:
            reason = await self._broker_problem(host, port)
            if (reason is None) is not up:
                up = reason is None
                BROKER_UP.set(int(up))
                if up:
                    log.info("broker answers", broker=broker)
                else:
                    log.error(
                        "the paired broker does not answer: clients are disconnected until it "
                        "does. Start the broker, or correct TIDELINE_GATEWAY_BROKER",
                        broker=broker,
                        reason=reason,
                    )
            await asyncio.sleep(PROBE_S)

    async def _broker_problem(self, host: str, port: int) -> str | None:
        try:
            connection = await KafkaConnection.open(
                host, port, client_id="tideline-gateway-probe", timeout_ms=PROBE_TIMEOUT_MS
            )
        except (KafkaUnavailable, KafkaError) as error:
            return str(error)
        with contextlib.suppress(KafkaUnavailable):
            connection.close()
        return None
