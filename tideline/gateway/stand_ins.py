"""Standing in for gateways that are away, and telling clients who does.

For each other gateway there is an address of this one's. It accepts connections only while that
gateway is away and its broker answers, and joins them to that broker; everything else of them is as
of any connection here: the same handlers, lease, fences and registry, so a barrier that waits for
this process waits for what it forwards to whichever broker (docs/gateway.md, "A gateway that is
away"). When the other gateway serves again everybody is handed over at a moment when nothing is
owed to him, and soon nobody is accepted any more.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

import structlog
from kio.schema.describe_cluster.v0.request import DescribeClusterRequest
from kio.schema.describe_cluster.v0.response import DescribeClusterResponse

from tideline.background import cancel_and_wait, keep, spawn
from tideline.domain.stand_in import Fleet, Sibling, away, stand_in_for
from tideline.errors import TidelineError
from tideline.gateway.metrics import HANDED_BACK, LOST_PLACES, STAND_IN_CONNECTIONS, STANDING_IN
from tideline.gateway.paired_broker import why_not_supported
from tideline.gateway.tracking.peers import Peers
from tideline.gateway.transport.addresses import Address, NodeAddresses
from tideline.gateway.transport.broker import Broker
from tideline.gateway.transport.hand_over import hand_over
from tideline.gateway.transport.server import GatewayServer
from tideline.gateway.transport.serving import ServedConnection
from tideline.kafka.client import KafkaCluster, Node
from tideline.settings import GatewaySettings

log = structlog.get_logger()
PROBE_TIMEOUT_MS = 3_000
SILENT_LOOKS = 2
"""A broker that did not answer so often in a row is down: slow is not dead."""
HAND_BACK_S = 30.0
"""Within this every client is handed over to a gateway that is back; a produce may be parked for
most of it."""
LINGERS_S = 10.0
"""So long a gateway that is back is still stood in for: clients that were told the address just
before come there, librdkafka's as late as this (``reconnect.backoff.max.ms``)."""


class StandIns:
    """Follows the registry for as long as the process serves."""

    def __init__(
        self,
        settings: GatewaySettings,
        server: GatewayServer,
        nodes: NodeAddresses,
        peers: Peers,
        cluster: KafkaCluster,
    ) -> None:
        self._own = settings.gateway_broker_id
        self._addressed = frozenset(settings.gateway_peers)
        self._nodes, self._peers, self._cluster = nodes, peers, cluster
        self._due = asyncio.Event()
        self._places = {
            node: _Place(node, listen, server, cluster, self._due.set)
            for node, listen in settings.stands_in.items()
        }
        self._taken: list[int] = []
        """For whom nobody is stood in here: the address is somebody else's."""
        self._brokers: Mapping[int, Node] = {}
        self._told: tuple[frozenset[int], Fleet] | None = None
        """Who is away, and the fleet that clients are told an address of for them."""
        self._tasks: list[asyncio.Task[None]] = []

    async def take(self) -> frozenset[int]:
        """Take the addresses, refusing connections; the nodes for which there is one. Where it is
        somebody else's this gateway stands in for nobody, and serves its own clients all the same:
        it is not to be registered as a stand-in there. Raises ``OSError`` for what passes, as a
        network that is not there yet."""
        for node, place in tuple(self._places.items()):
            try:
                await place.listener.bind()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                log.error(
                    "stand_ins.address_taken: nobody is stood in for there. Free the address, or "
                    "choose another one in TIDELINE_GATEWAY_STAND_IN, and restart this gateway",
                    node=node,
                    address="{}:{}".format(*place.listener.address),
                    reason=str(error),
                )
                LOST_PLACES.labels(str(node)).set(1)
                self._taken.append(node)
                del self._places[node]
        return frozenset(self._places)

    def start(self) -> None:
        """Follow the registry from now on."""
        if self._peers.always:
            self._peers.looked.add(self._due.set)
            self._tasks = [keep(self._follow(), "stand-ins")]

    async def close(self) -> None:
        """Accept nobody any more; connections stay the server's to end."""
        await cancel_and_wait(*self._tasks)
        for place in self._places.values():
            await place.close()

    async def _follow(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self.look()

    async def look(self) -> None:
        """Settle by what the registry told last: who is away, who is told for whom, and which of
        the addresses here accept."""
        fleet = self._peers.fleet
        missing = away(fleet, self._addressed, self._addressed)
        if missing:
            try:
                self._brokers = await self._cluster.nodes()
            except TidelineError as error:
                log.warning("stand_ins.brokers_not_known", error=str(error))
        gone = away(fleet, self._brokers, missing)
        self._tell(gone, {node: self._in_its_zone(node, fleet) for node in fleet})
        await asyncio.gather(
            *(
                place.settle(
                    self._brokers.get(node) if node in gone else None,
                    None if node in missing else self._peers.readings,
                )
                for node, place in self._places.items()
            )
        )

    def _in_its_zone(self, node: int, fleet: Fleet) -> Sibling:
        sibling, broker = fleet[node], self._brokers.get(node)
        return replace(sibling, zone=sibling.zone or (broker.rack if broker else None))

    def _tell(self, gone: frozenset[int], fleet: Fleet) -> None:
        if (gone, fleet) == self._told:
            return
        before, self._told = self._told, (gone, fleet)
        if before is None or before[0] != gone:
            log.info("stand_ins.away", nodes=sorted(gone))
        self._nodes.stand_in(partial(self._told_in, gone, fleet) if gone else None)

    def _told_in(
        self, gone: frozenset[int], fleet: Fleet, zone: str | None
    ) -> Mapping[int, Address]:
        found = {node: stand_in_for(node, fleet, self._brokers, zone) for node in gone}
        return {node: address for node, address in found.items() if address is not None}

    def believed(self) -> Mapping[str, object]:
        """For an operator: whom clients without a zone are told for each node that is away, and
        what is carried here."""
        gone, fleet = self._told or (frozenset(), {})
        told = self._told_in(gone, fleet, None)
        return {
            "away": [
                f"node {node}: "
                + ("clients are told {}:{}".format(*at) if (at := told.get(node)) else "nobody")
                for node in sorted(gone)
            ],
            "stands_in": [
                f"for node {node}: {place.believed()}"
                for node, place in self._places.items()
                if place.listener.listening or place.connections() or place.lost
            ]
            + [f"for node {node}: not here, its address is taken" for node in self._taken],
        }


class _Place:
    """Where this gateway stands in for one other."""

    def __init__(
        self,
        node: int,
        listen: Address,
        server: GatewayServer,
        cluster: KafkaCluster,
        broker_is_gone: Callable[[], None],
    ) -> None:
        self._broker_is_gone = broker_is_gone
        self._node, self._server, self._cluster = node, server, cluster
        self._stood_in_for: Node | None = None
        """Its broker, as Kafka named it last while this gateway was to stand in."""
        self._lingers_until: float | None = None
        """On the loop's clock; ``None``: its gateway is away."""
        self._silent = 0
        """Times in a row that the broker did not answer."""
        self.lost = False
        """Whether the address could not be had when it was wanted last."""
        self._back_since: int | None = None
        """The reading of the registry that its gateway serves in since, and in each later one."""
        self._handing_back: asyncio.Task[None] | None = None
        self.listener = server.listener(
            *listen,
            self._accept,
            name=f"stand-in for node {node}",
            note=STANDING_IN.labels(str(node)).set,
        )
        STAND_IN_CONNECTIONS.labels(str(node)).set_function(lambda: len(self.connections()))

    def connections(self) -> list[ServedConnection]:
        return self._server.connections_to(self._node)

    def believed(self) -> str:
        if self.lost:
            return "not here, its address cannot be had"
        accepts = "accepting" if self.listener.listening else "refusing"
        return f"{accepts}, {len(self.connections())} connections"

    def _accept(self) -> ServedConnection:
        found = self._stood_in_for
        assert found is not None  # it listens
        broker = Broker(self._node, (found.host, found.port))
        return self._server.connection_to(broker, self._broker_is_gone)

    async def settle(self, broker: Node | None, back_in: int | None) -> None:
        """``broker``: as Kafka names it, if this gateway is to stand in for its gateway now.
        ``back_in``: the reading of the registry in which that one serves, and has its clients back
        with the next one; ``None``: it is away."""
        if not self.listener.is_held:
            await self._have(self.listener.bind)
        lingers = self._lingers(back_in)
        if broker is None and lingers:
            broker = self._stood_in_for
        if broker is not None and await self._answers(broker):
            self._stood_in_for = broker
            self._silent = 0
            if not self.listener.listening:
                await self._have(self.listener.listen)
        else:
            self._silent += 1
            if self.listener.listening and (broker is None or self._silent >= SILENT_LOOKS):
                self.listener.refuse()
        if back_in is None or self._back_since is None:
            self._back_since = back_in
            return
        # Not at once: every other gateway has to name the one that is back, or its clients return.
        # They read the registry as often; a look that something else has caused says nothing of it.
        if back_in > self._back_since and self._handing_back is None and self.connections():
            self._handing_back = spawn(self._hand_back(), "hand-back")
            self._handing_back.add_done_callback(self._handed_back)

    async def _have(self, address: Callable[[], Awaitable[None]]) -> None:
        """What this gateway does for others never ends what it does for its own clients."""
        try:
            await address()
        except OSError as error:
            if not self.lost:
                log.error(
                    "stand_ins.address_lost: nobody is accepted there until it is free again",
                    node=self._node,
                    address="{}:{}".format(*self.listener.address),
                    reason=str(error),
                )
        self.lost = not self.listener.is_held
        LOST_PLACES.labels(str(self._node)).set(int(self.lost))

    def _lingers(self, back_in: int | None) -> bool:
        """Whether clients that know no better are still taken."""
        if back_in is None:
            self._lingers_until = None
            return False
        now = asyncio.get_running_loop().time()
        if self._lingers_until is None:
            self._lingers_until = now + LINGERS_S
        return self.listener.listening and now < self._lingers_until

    async def _answers(self, broker: Node) -> bool:
        """Whether the broker answers, of a release that is supported, and is of the cluster of the
        paired one."""
        try:
            connection = await self._cluster.node(broker.node_id)
            if (why := await why_not_supported(connection)) is not None:
                log.error("stand_ins.broker_not_supported", node=self._node, why=why)
                return False
            told = await connection.send(
                DescribeClusterRequest(include_cluster_authorized_operations=False),
                timeout_ms=PROBE_TIMEOUT_MS,
            )
            expected = await self._cluster.cluster_id()
        except TidelineError as error:
            log.info("stand_ins.broker_does_not_answer", node=self._node, why=str(error))
            return False
        assert isinstance(told, DescribeClusterResponse)
        if told.cluster_id != expected:
            log.error(
                "stand_ins.another_cluster", node=self._node, found=told.cluster_id, own=expected
            )
        return told.cluster_id == expected

    async def _hand_back(self) -> None:
        connections = self.connections()
        unanswered = await hand_over(connections, HAND_BACK_S, "its own gateway is back")
        HANDED_BACK.labels(str(self._node)).inc(len(connections))
        log.info(
            "stand_ins.handed_back",
            node=self._node,
            connections=len(connections),
            unanswered=unanswered,
        )

    def _handed_back(self, _: asyncio.Task[None]) -> None:
        self._handing_back = None

    async def close(self) -> None:
        self.listener.close()
        if self._handing_back is not None:
            await cancel_and_wait(self._handing_back)
