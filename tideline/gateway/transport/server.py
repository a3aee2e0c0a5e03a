"""The listening side of a gateway: accepts clients, watches them and the broker, drains at the
end."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable

import structlog

from tideline.background import cancel_and_wait, keep
from tideline.errors import TidelineError, UsageError
from tideline.gateway.context import ConnectionRegistry, Passing, Rules
from tideline.gateway.metrics import BROKER_UP, LISTENING
from tideline.gateway.room import Room
from tideline.gateway.transport.addresses import NodeAddresses, ResponseRewriter
from tideline.gateway.transport.admission import Door
from tideline.gateway.transport.broker import Broker
from tideline.gateway.transport.certificates import ListenerCertificate, listener_tls
from tideline.gateway.transport.hand_over import hand_over
from tideline.gateway.transport.handshakes import Handshakes
from tideline.gateway.transport.listener import Listener
from tideline.gateway.transport.login import stranger_frame_bytes
from tideline.gateway.transport.native import NativeTransport
from tideline.gateway.transport.serving import MakesTransport, ServedConnection
from tideline.kafka.client import KafkaConnection
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.security import KafkaSecurity
from tideline.kafka.wire import Limits
from tideline.settings import GatewaySettings

IDLE_S = 600.0
"""Kafka's own ``connections.max.idle.ms``: nothing asked for so long, nothing owed."""
SWEEP_S = 15.0
WRITE_STALL_S = 30.0
"""A client that takes none of its answers for so long is disconnected."""
CLOSE_GRACE_S = 10.0
"""How long a connection that is closed may take to send what was written."""
PARTIAL_FRAME_S = 30.0
"""A client that has sent a part of a request and then nothing for so long is disconnected."""
HELD_MUTED_S = 60.0
"""What a muted client has sent is held no longer: more than a Kafka client waits for an answer."""
DRAIN_S = 10.0
"""How long a shutdown waits for answers that are owed."""
PROBE_S = 2.0
PROBE_AGAIN_S = 0.05
"""After a connection to the broker has ended it is asked this soon whether it is there."""
PROBE_TIMEOUT_MS = 3_000

AWAY = (
    "the paired broker does not answer: connections are refused until it does. "
    "Start the broker, or correct TIDELINE_GATEWAY_BROKER"
)

log = structlog.get_logger()
WhyUnfit = Callable[[KafkaConnection], Awaitable[tuple[str, str] | None]]
"""What an operator is told if nobody may be joined to the broker of a connection, as it is not the
paired one or too old, and the reason; ``None``: it is fit. Raises :class:`KafkaUnavailable`."""


class GatewayServer:
    """Serves clients on ``gateway_listen`` until it is stopped.

    What always holds: while the paired broker does not answer, or is unfit or another one,
    no connection is accepted, so that clients hear at once, as from a dead broker, that they have
    to ask another one; and one that a client has is kept for as long as it is not owed an answer.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        rules: Rules,
        connections: ConnectionRegistry,
        room: Room | None = None,
        nodes: NodeAddresses | None = None,
        passing: Passing | None = None,
        why_unfit: WhyUnfit | None = None,
        makes_transport: MakesTransport = NativeTransport,
    ) -> None:
        """``nodes``: what clients are told of where each node is, if others may stand in.
        ``why_unfit``: asked with each look at the broker; ``None``: whoever answers is right.
        ``passing``: what the transport may let pass without asking; ``None``: whatever no rule is
        due for, ever. ``makes_transport``: what has the sockets of clients and brokers; another one
        where they are no sockets of the kernel. Raises
        :class:`~tideline.kafka.wire.LibraryMissing`."""
        self._settings = settings
        self._security = KafkaSecurity.of(settings)
        self._rules = rules
        self._connections = connections
        self._room = room or Room(settings.gateway_memory_max_bytes)
        nodes = nodes or NodeAddresses(settings.gateway_peers)
        self._rewriter = ResponseRewriter(nodes, rules)
        self._door = Door(settings, login_required=settings.gateway_security_protocol.is_sasl)
        self._tls = listener_tls(settings)
        self._handshakes = Handshakes(settings)
        self._listener = self.listener(*settings.gateway_listen, self._accept)
        self._certificate = (
            ListenerCertificate(self._tls, self._encrypt_with) if self._tls is not None else None
        )
        self._why_unfit = why_unfit
        self._broker_up: bool | None = None
        self._told: str | None = None
        """What was logged of the broker last."""
        self._probe_due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        limits = Limits(
            max_frame_bytes=settings.gateway_max_frame_bytes,
            max_answer_bytes=settings.gateway_max_answer_bytes,
            in_flight=settings.gateway_max_inflight_per_connection,
            first_frame_bytes=settings.gateway_first_frame_max_bytes,
            stranger_frame_bytes=stranger_frame_bytes(settings),
            sweep_s=SWEEP_S,
            stall_s=WRITE_STALL_S,
            grace_s=CLOSE_GRACE_S,
            half_frame_s=PARTIAL_FRAME_S,
            muted_s=HELD_MUTED_S,
            idle_s=IDLE_S,
        )
        self._transport = makes_transport(
            limits, rules, self._rewriter, self._room, passing, self._security
        )
        if self._tls is not None:
            self._transport.encrypt_clients(self._tls.context, self._tls.files)
        self.served_out = True
        """No client is left, and none can come."""

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, or will once the broker answers."""
        return self._listener.address

    @property
    def listening(self) -> bool:
        """Whether connections are accepted."""
        return self._listener.listening

    async def start(self) -> None:
        """Begin to accept clients, at once if the broker answers. Raises ``OSError`` if the address
        is taken."""
        self.served_out = False
        self._transport.start()
        await self._listener.bind()
        await self._look_at_broker()
        self._tasks = [keep(self._watch_broker(), "watch-broker")]
        if self._certificate is not None:
            self._tasks.append(keep(self._certificate.watch(), "watch-certificate"))

    def listener(
        self,
        host: str,
        port: int,
        accept: Callable[[], ServedConnection],
        *,
        name: str = "gateway",
        note: Callable[[float], None] = LISTENING.set,
    ) -> Listener:
        """An address of this gateway, with its certificate; see :class:`Listener`."""
        handshakes = self._handshakes if self._tls is not None else None
        return Listener(host, port, accept, handshakes=handshakes, name=name, note=note)

    def _encrypt_with(self, tls: ssl.SSLContext) -> None:
        assert self._tls is not None
        try:
            self._transport.encrypt_clients(tls, self._tls.files)
        except UsageError as error:  # they have changed again, which is looked at next
            log.error("certificate refused, the old one stays in use", reason=str(error))

    def _accept(self) -> ServedConnection:
        paired = Broker(self._settings.gateway_broker_id, self._settings.gateway_broker)
        return self.connection_to(paired, self._probe_due.set)

    def connection_to(self, broker: Broker, broker_is_gone: Callable[[], None]) -> ServedConnection:
        """What serves one client that is joined to ``broker``."""
        return self._transport.connection(
            self._settings,
            self._rules,
            self._rewriter,
            self._connections,
            self._door,
            broker_is_gone,
            broker,
        )

    def connections_to(self, node: int) -> list[ServedConnection]:
        """The open ones that are joined to the broker ``node``."""
        return [connection for connection in self._own() if connection.broker_id == node]

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Accept nobody, answer what has arrived within ``drain_s``, and hand the clients over.
        When it returns no client is left, and none can come: what one forwarded from then on no
        barrier would wait for."""
        self._listener.close()
        self._door.shut()
        for task in self._tasks:
            task.cancel()
        connections = self._own()
        try:
            owed = await hand_over(connections, drain_s, "the gateway stops")
        finally:
            for connection in self._own():
                connection.close("the gateway stops")
            await self._transport.close()
        self.served_out = True
        await cancel_and_wait(*self._tasks)
        log.info("gateway stopped", connections=len(connections), unanswered=owed)

    def _own(self) -> list[ServedConnection]:
        return [c for c in self._connections if isinstance(c, ServedConnection)]

    async def _watch_broker(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_S):
                    await self._probe_due.wait()
                await asyncio.sleep(PROBE_AGAIN_S)  # a broker that ends cuts every connection
            self._probe_due.clear()
            await self._look_at_broker()

    async def _look_at_broker(self) -> None:
        host, port = self._settings.gateway_broker
        broker = f"{host}:{port}"
        problem = await self._broker_problem(host, port)
        if problem is not None and self._broker_up and not _is_refusal(problem[1]):
            # Slow is not dead: nobody is refused for one probe that did not end in time.
            problem = await self._broker_problem(host, port)
        self._broker_up = up = problem is None
        BROKER_UP.set(int(up))
        said, reason = problem or ("broker answers", "")
        if said != self._told:
            self._told = said
            if up:
                log.info(said, broker=broker)
            else:
                log.error(said, broker=broker, reason=reason)
        if up and not self._listener.listening:
            await self._listener.listen()
        elif not up and self._listener.listening:
            self._listener.refuse()

    async def _broker_problem(self, host: str, port: int) -> tuple[str, str] | None:
        """What an operator is told, and the reason; ``None``: it answers."""
        try:
            connection = await KafkaConnection.open(
                host,
                port,
                client_id="tideline-gateway-probe",
                timeout_ms=PROBE_TIMEOUT_MS,
                security=self._security,
            )
        except (KafkaUnavailable, KafkaError) as error:
            return AWAY, str(error)
        try:
            return await self._why_unfit(connection) if self._why_unfit is not None else None
        except TidelineError as error:  # a version that it does not know, too
            return AWAY, str(error)
        finally:
            with contextlib.suppress(KafkaUnavailable):
                connection.close()


def _is_refusal(reason: str) -> bool:
    return "refused" in reason.lower()
