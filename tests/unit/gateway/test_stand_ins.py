"""A gateway that stands in for others: whom it accepts, what it carries, how it gives them back."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from tests.ports import free_ports
from tests.support.waiting import within
from tests.unit.gateway.fakes import FakeClock, GatewayPlane, until
from tests.unit.gateway.gateway_under_test import Client, gateway_settings
from tests.unit.gateway.test_paired_broker import described
from tests.unit.gateway.test_transport import HEARTBEAT, frame
from tests.unit.kafka.fake_broker import FakeBroker, api_versions
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.domain.stand_in import as_registered
from tideline.gateway.context import ApiKey, ConnectionRegistry, RequestContext, Rule, always
from tideline.gateway.messages import messages
from tideline.gateway.stand_ins import StandIns
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.peers import Peers
from tideline.gateway.tracking.presence import Presence
from tideline.gateway.tracking.view import TrackingView
from tideline.gateway.transport.addresses import NodeAddresses
from tideline.gateway.transport.listener import Listener
from tideline.gateway.transport.server import GatewayServer
from tideline.kafka.client import KafkaCluster
from tideline.kafka.protocol import RequestHeader, decode_response, encode_response

SLOW = 13
LEASE_MS = 3_000
OWN = "a cluster"


class Kafka:
    """Brokers 1 and 2, which echo what they do not know."""

    def __init__(self) -> None:
        self.brokers = {node: FakeBroker(self._answer_of(node)) for node in (1, 2)}
        self.cluster = {1: OWN, 2: OWN}
        """What each says that its cluster is."""
        self.held: asyncio.Event | None = None
        self.level: int | None = None
        """The metadata.version that both support; ``None``: they do not say."""

    def _answer_of(self, node: int) -> Any:
        async def answer(header: RequestHeader, request: bytes) -> bytes:
            if header.api_key == ApiKey.API_VERSIONS:
                return api_versions(header, self.level)
            if header.api_key in (ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER):
                return encode_response(self._cluster(header, node), header.correlation_id)
            if header.api_key == ApiKey.DESCRIBE_CONFIGS:
                return described(header, request, node)
            if header.api_key == SLOW and self.held is not None:
                await self.held.wait()
            return header.correlation_id.to_bytes(4, "big") + b"broker %d" % node

        return answer

    def _cluster(self, header: RequestHeader, node: int) -> Any:
        api = messages(header.api_key, header.api_version)
        is_metadata = header.api_key == ApiKey.METADATA
        name, key = (
            ("MetadataResponseBroker", "node_id")
            if is_metadata
            else ("DescribeClusterBroker", "broker_id")
        )
        brokers = tuple(
            api.response_part(name, **{key: n}, host=b.address[0], port=b.address[1], rack=None)
            for n, b in self.brokers.items()
        )
        common = {
            "throttle_time": timedelta(0),
            "brokers": brokers,
            "cluster_id": self.cluster[node],
            "controller_id": 1,
            "cluster_authorized_operations": -1,
            "error_code": ErrorCode.none,
        }
        if is_metadata:
            return api.response(**common, topics=())
        return api.response(**common, error_message=None)


class Scene:
    """Gateway 1 under test, and the registration of gateway 2."""

    def __init__(self, kafka: Kafka, ports: list[int], rules: Any) -> None:
        self.kafka, self.clock, self.plane = kafka, FakeClock(), GatewayPlane()
        self.own, self.other, self.stand_in, self.elsewhere = (("127.0.0.1", p) for p in ports)
        broker = "{}:{}".format(*kafka.brokers[1].address)
        self.settings = gateway_settings(
            broker,
            gateway_listen="{}:{}".format(*self.own),
            gateway_advertised="{}:{}".format(*self.own),
            gateway_peers="1={}:{},2={}:{}".format(*self.own, *self.other),
            gateway_stand_in="1=127.0.0.1:1,2={}:{}".format(*self.stand_in),
        )
        self.cluster = KafkaCluster([kafka.brokers[1].address], timeout_ms=60_000)
        self.connections = ConnectionRegistry()
        plane: Any = self.plane
        self.lease = Lease(
            plane,
            gateway_id=1,
            broker_id=1,
            address="here:1",
            version="1",
            duration_ms=LEASE_MS,
            clock=self.clock,
            stand_ins=as_registered(self.settings.stands_in_at),
        )
        self.peers = Peers(
            plane,
            TrackingView(lambda: True),
            node=1,
            rack=None,
            addressed={1, 2},
            poll_s=0.01,
            clock=self.clock,
            always=True,
            serving=lambda: self.lease.serving,
        )
        self.presence = Presence(self.lease, self.peers, 1)
        nodes = NodeAddresses(self.settings.gateway_peers)
        self.server = GatewayServer(self.settings, rules, self.connections, nodes=nodes)
        self.stand_ins = StandIns(self.settings, self.server, nodes, self.peers, self.cluster)
        self.incarnation: UUID = uuid4()

    @property
    def place(self) -> Listener:
        """Where gateway 1 stands in for gateway 2."""
        return self.stand_ins._places[2].listener

    async def other_registers(self, serving: bool) -> None:
        self.incarnation = uuid4()
        places = as_registered({1: self.elsewhere})
        await self.plane.register_gateway(
            2, 2, self.incarnation, "g:2", "1", LEASE_MS, stand_ins=places, serving=serving
        )
        await self.look()

    async def other_serves(self, serving: bool) -> None:
        await self.plane.note_serving(2, self.incarnation, serving)
        await self.look()

    async def look(self) -> None:
        await self.peers.look()
        await self.stand_ins.look()

    async def connect(self, address: tuple[str, int]) -> Client:
        return Client(*await asyncio.open_connection(*address))

    async def told(self, node: int, client_id: bytes = b"c") -> tuple[str, int]:
        """The address that a client of gateway 1 is told for a node."""
        client = await self.connect(self.own)
        request = (
            b"\x00\x03\x00\x08\x00\x00\x00\x07"
            + len(client_id).to_bytes(2, "big")
            + client_id
            + b"\x00\x00\x00\x00\x00\x00\x00"
        )
        await client.send(request)
        answer: Any = decode_response(await client.receive(), ApiKey.METADATA, 8)
        client.close()
        return {int(b.node_id): (b.host, int(b.port)) for b in answer.brokers}[node]

    async def refuses(self, address: tuple[str, int]) -> bool:
        try:
            (await self.connect(address)).close()
        except ConnectionRefusedError:
            return True
        return False


@asynccontextmanager
async def made(rules: Any = None) -> AsyncIterator[Scene]:
    kafka = Kafka()
    async with kafka.brokers[1], kafka.brokers[2]:
        scene = Scene(kafka, free_ports(4), rules or {})
        await scene.stand_ins.take()
        scene.stand_ins.start()
        await scene.server.start()
        await scene.lease.renew()
        scene.presence.follow(lambda: scene.server.listening)
        await until(lambda: scene.plane.gateways.registered[1].serving)
        try:
            yield scene
        finally:
            await scene.presence.leave()
            await scene.stand_ins.close()
            await scene.server.stop(0.2)
            scene.cluster.close()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with made() as one:
        yield one


async def heartbeat(client: Client, correlation: int = 1) -> bytes:
    await client.send(frame(correlation, HEARTBEAT))
    return (await client.receive())[4:]


async def test_nobody_is_accepted_for_a_gateway_that_serves(scene: Scene) -> None:
    await scene.other_registers(serving=True)
    assert await scene.refuses(scene.stand_in)
    assert await scene.told(2) == scene.other
    assert scene.stand_ins.believed() == {"away": [], "stands_in": []}


async def test_the_broker_of_a_gateway_that_stops_is_reached_through_its_sibling(
    scene: Scene,
) -> None:
    await scene.other_registers(serving=True)
    await scene.other_serves(False)
    assert await scene.told(2) == scene.stand_in
    client = await scene.connect(await scene.told(2))
    assert await heartbeat(client) == b"broker 2"
    assert [connection.broker_id for connection in scene.connections] == [2]
    assert scene.connections.brokers == (2,)
    assert scene.stand_ins.believed() == {
        "away": ["node 2: clients are told {}:{}".format(*scene.stand_in)],
        "stands_in": ["for node 2: accepting, 1 connections"],
    }
    client.close()


async def test_a_gateway_that_was_killed_is_stood_in_for_when_its_lease_is_gone(
    scene: Scene,
) -> None:
    await scene.other_registers(serving=True)
    for _ in range(3):
        scene.clock.now += 1.0
        await scene.look()
    assert await scene.refuses(scene.stand_in)
    scene.clock.now += 1.0
    await scene.look()
    assert await scene.told(2) == scene.stand_in
    assert not await scene.refuses(scene.stand_in)


async def test_nobody_is_accepted_for_a_broker_that_does_not_answer(scene: Scene) -> None:
    await scene.kafka.brokers[2].stop()
    await scene.other_registers(serving=False)
    assert await scene.refuses(scene.stand_in)
    await scene.kafka.brokers[2].start_again()
    await scene.look()
    assert not await scene.refuses(scene.stand_in)
    await scene.kafka.brokers[2].stop()
    await scene.look()
    await scene.look()
    assert await scene.refuses(scene.stand_in)


async def test_nobody_is_accepted_for_a_broker_that_is_too_old(scene: Scene) -> None:
    """Its own gateway accepts nobody for that reason, and so is away."""
    scene.kafka.level = 21
    await scene.other_registers(serving=False)
    assert await scene.refuses(scene.stand_in)
    scene.kafka.level = 29
    await scene.look()
    assert not await scene.refuses(scene.stand_in)


def taken(*_: object) -> None:
    """Whoever asks for an address hears that somebody else has it."""
    raise OSError(errno.EADDRINUSE, "address in use")


async def test_an_address_that_was_lost_costs_nobody_else_and_is_taken_when_it_is_free(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr("tideline.gateway.transport.listener._bound", taken)
        scene.place.refuse()
        await scene.other_registers(serving=False)
        await scene.look()
        assert scene.stand_ins.believed()["stands_in"] == [
            "for node 2: not here, its address cannot be had"
        ]
    told = [line["event"] for line in logs if "address_lost" in line["event"]]
    assert len(told) == 1
    assert await scene.refuses(scene.stand_in)
    assert not await scene.refuses(scene.own)
    await scene.look()
    assert not await scene.refuses(scene.stand_in)


async def test_an_address_that_was_lost_is_held_again_while_nobody_is_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("tideline.gateway.transport.listener._bound", taken)
        scene.place.refuse()
        await scene.other_registers(serving=True)
        assert not scene.place.is_held
    await scene.look()
    assert scene.place.is_held
    assert scene.stand_ins.believed()["stands_in"] == []


async def test_nobody_is_accepted_for_a_broker_of_another_cluster(scene: Scene) -> None:
    scene.kafka.cluster[2] = "somebody else's"
    await scene.other_registers(serving=False)
    assert await scene.refuses(scene.stand_in)


async def test_without_postgres_the_last_known_set_holds(scene: Scene) -> None:
    await scene.other_registers(serving=False)
    scene.plane.down = True
    client = await scene.connect(scene.stand_in)
    for _ in range(4):
        scene.clock.now += LEASE_MS / 1000
        with pytest.raises(ControlPlaneUnavailable):
            await scene.look()
        await scene.stand_ins.look()
    assert await heartbeat(client) == b"broker 2"
    assert await scene.told(2) == scene.stand_in
    client.close()


async def test_a_drain_waits_for_what_was_forwarded_to_a_broker_that_is_stood_in_for() -> None:
    """No topic counts as tracked before what was under way to whichever broker is done."""
    async with made() as scene:
        scene.kafka.held = asyncio.Event()
        await scene.other_registers(serving=False)
        client = await scene.connect(scene.stand_in)
        await client.send(frame(1, SLOW))
        await scene.kafka.brokers[2].until_received(1)
        await until(lambda: any(h.api_key == SLOW for h in scene.kafka.brokers[2].received))
        drained = asyncio.ensure_future(scene.connections.drain())
        assert await heartbeat(await scene.connect(scene.own)) == b"broker 1"
        assert not drained.done()
        scene.kafka.held.set()
        await within("the drain", drained)
        client.close()


async def test_a_handler_sees_whose_connection_it_serves() -> None:
    async def handler(context: RequestContext) -> bytes:
        return context.header.correlation_id.to_bytes(4, "big") + b"%d" % (
            context.connection.broker_id
        )

    async with made({SLOW: Rule(handler, always)}) as scene:
        await scene.other_registers(serving=False)
        for address, node in ((scene.own, b"1"), (scene.stand_in, b"2")):
            client = await scene.connect(address)
            await client.send(frame(1, SLOW))
            assert (await client.receive())[4:] == node
            client.close()


async def test_a_gateway_that_is_back_has_its_clients_back_when_nothing_is_owed_to_them() -> None:
    async with made() as scene:
        scene.kafka.held = asyncio.Event()
        await scene.other_registers(serving=False)
        idle, busy = await scene.connect(scene.stand_in), await scene.connect(scene.stand_in)
        assert await heartbeat(idle) == b"broker 2"
        await busy.send(frame(1, SLOW))
        await until(lambda: any(h.api_key == SLOW for h in scene.kafka.brokers[2].received))
        await scene.other_serves(True)
        assert await scene.told(2) == scene.other
        await scene.stand_ins.look()
        await scene.stand_ins.look()
        assert await heartbeat(idle) == b"broker 2", "not before every gateway names it"
        await scene.look()
        await idle.disconnected()
        scene.kafka.held.set()
        assert (await busy.receive())[4:] == b"broker 2"
        await busy.disconnected()
        idle.close()
        busy.close()
        await until(lambda: len(scene.connections) == 0)


async def test_who_was_told_of_it_just_before_is_served_and_handed_over_and_later_nobody_is_taken(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.other_registers(serving=True)
    for _ in range(2):
        await scene.other_serves(False)
        address = await scene.told(2)
        await scene.other_serves(True)
        late = await scene.connect(address)
        assert await heartbeat(late) == b"broker 2"
        await scene.look()
        await late.disconnected()
        late.close()
        with monkeypatch.context() as over:
            over.setattr("tideline.gateway.stand_ins.LINGERS_S", 0.0)
            await scene.other_serves(False)
            await scene.other_serves(True)
            assert await scene.refuses(address)


async def test_nobody_is_taken_late_for_a_broker_that_does_not_answer(scene: Scene) -> None:
    await scene.other_registers(serving=False)
    assert not await scene.refuses(scene.stand_in)
    await scene.other_serves(True)
    await scene.kafka.brokers[2].stop()
    await scene.look()
    await scene.look()
    assert await scene.refuses(scene.stand_in)


async def test_who_stops_says_so_first_and_leaves_when_the_others_have_heard(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.other_registers(serving=True)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert scene.plane.gateways.registered[1].serving is False
        assert scene.plane.gateways.is_active(1, scene.lease.incarnation), "barriers wait for it"

    monkeypatch.setattr("tideline.gateway.tracking.presence.asyncio.sleep", sleep)
    await scene.presence.leave()
    monkeypatch.undo()
    assert max(slept) >= scene.peers.poll_s
    await scene.look()
    assert await scene.told(1) == scene.elsewhere


async def test_a_gateway_that_has_just_begun_does_not_lead_its_own_clients_away(
    scene: Scene,
) -> None:
    """The registry was read a moment before it began, and is read again a third of a lease later;
    at the other place nobody may listen."""
    await scene.presence.close()
    await scene.lease.tell_serving(False)
    await scene.other_registers(serving=True)
    assert await scene.told(1) == scene.elsewhere
    await scene.lease.tell_serving(True)
    await until(lambda: scene.stand_ins.believed()["away"] == [])
    assert await scene.told(1) == scene.own


async def test_who_registers_anew_says_again_whether_it_serves(scene: Scene) -> None:
    before = scene.lease.incarnation
    assert scene.plane.gateways.fence(1, before, 0, "it slept")
    await scene.lease.renew()
    await scene.lease.renew()
    assert scene.lease.incarnation != before
    assert scene.plane.gateways.registered[1].incarnation == scene.lease.incarnation
    await until(lambda: scene.plane.gateways.registered[1].serving)
