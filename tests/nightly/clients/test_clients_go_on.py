"""Stock clients whose gateways leave and come back, one after the other. Their brokers are the mock
cluster of librdkafka, which needs no stack; with real ones:
``nightly/faults/test_rolling_gateways.py``."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from kio.schema.api_versions.v0.request import ApiVersionsRequest

from tests.ports import free_ports
from tests.support.waiting import HANGS_S, WITHIN_S, eventually, joined
from tests.unit.gateway.fakes import GatewayPlane, until
from tests.unit.gateway.gateway_under_test import gateway_settings
from tideline.background import cancel_and_wait, keep
from tideline.domain.stand_in import as_registered
from tideline.gateway.context import ApiKey, ConnectionRegistry, RequestContext, Rule, always
from tideline.gateway.messages import messages
from tideline.gateway.stand_ins import StandIns, _Place
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.peers import Peers
from tideline.gateway.tracking.presence import Presence
from tideline.gateway.tracking.view import TrackingView
from tideline.gateway.transport.addresses import NodeAddresses
from tideline.gateway.transport.server import GatewayServer
from tideline.kafka.client import KafkaCluster, Node

NODES = (1, 2, 3)
TOPIC = "orders"
LEASE_MS = 900
PAUSE_S = 0.02
"""Between two pieces of work: clients leave the core to those that they wait for."""


class Fleet:
    """Three gateways before the brokers of a mock cluster."""

    def __init__(self, brokers: dict[int, tuple[str, int]]) -> None:
        self.brokers, self.plane = brokers, GatewayPlane()
        ports = free_ports(len(NODES) * (len(NODES) + 1))
        self.own = {n: ports.pop() for n in NODES}
        self.stand_in = {n: {o: ports.pop() for o in NODES if o != n} for n in NODES}
        self.running: dict[int, Gateway] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.own.values())

    async def start(self, node: int) -> None:
        self.running[node] = await Gateway.started(self, node)

    def carried(self, node: int) -> int:
        return sum(len(g.server.connections_to(node)) for n, g in self.running.items() if n != node)


class Gateway:
    """What :mod:`tideline.gateway.__main__` puts together, of what no topic concerns."""

    def __init__(self, fleet: Fleet, node: int) -> None:
        self.fleet, self.node = fleet, node
        address = f"127.0.0.1:{fleet.own[node]}"
        settings = gateway_settings(
            "{}:{}".format(*fleet.brokers[node]),
            gateway_id=str(node),
            gateway_broker_id=str(node),
            gateway_listen=address,
            gateway_advertised=address,
            gateway_peers=",".join(f"{n}=127.0.0.1:{p}" for n, p in fleet.own.items()),
            gateway_stand_in=",".join(
                f"{n}=127.0.0.1:{p}" for n, p in fleet.stand_in[node].items()
            ),
        )
        plane: Any = fleet.plane
        self.cluster = KafkaCluster([settings.gateway_broker], timeout_ms=2_000)
        self.lease = Lease(
            plane,
            gateway_id=node,
            broker_id=node,
            address=address,
            version="1",
            duration_ms=LEASE_MS,
            stand_ins=as_registered(settings.stands_in_at),
        )
        self.peers = Peers(
            plane,
            TrackingView(lambda: True),
            node=node,
            rack=None,
            addressed=NODES,
            poll_s=LEASE_MS / 3000,
            always=True,
            serving=lambda: self.lease.serving,
        )
        self.presence = Presence(self.lease, self.peers, node)
        nodes = NodeAddresses(settings.gateway_peers, node, stood_in_for=True)
        passed = {key: Rule(versions, never) for key in ApiKey}
        rules = {**passed, ApiKey.API_VERSIONS: Rule(versions, always)}
        self.server = GatewayServer(settings, rules, ConnectionRegistry(), nodes=nodes)
        nodes.accepts = lambda: self.server.listening
        self.stand_ins = StandIns(settings, self.server, nodes, self.peers, self.cluster)
        self.renewing: asyncio.Task[None] | None = None

    @classmethod
    async def started(cls, fleet: Fleet, node: int) -> Gateway:
        made = cls(fleet, node)

        async def registered() -> bool:
            with suppress(Exception):  # of one that was killed: its lease has to lapse
                await made.lease.renew()
            return made.lease.registered

        await eventually("the lease", registered)
        made.renewing = keep(made.lease.keep(_nothing), "lease")
        made.peers.start()
        await made.stand_ins.take()
        made.stand_ins.start()
        await made.server.start()
        made.presence.follow(lambda: made.server.listening)
        return made

    async def stop(self) -> None:
        """As SIGTERM does."""
        await self.presence.leave()
        await self.stand_ins.close()
        await self.server.stop(5)
        await self.lease.release()
        await self._end()

    async def kill(self) -> None:
        """Nobody is told anything."""
        await self.presence.close()
        await cancel_and_wait(*filter(None, [self.renewing]))
        await self.stand_ins.close()
        self.server._listener.close()
        for connection in self.server._own():
            connection.close("killed")
        await self.server.stop(0)
        await self._end()

    async def _end(self) -> None:
        await cancel_and_wait(*filter(None, [self.renewing]))
        await self.peers.close()
        self.cluster.close()


async def versions(context: RequestContext) -> bytes:
    """The mock cluster knows no version that its own clients ask in."""
    known: Any = await context.forward_message(ApiVersionsRequest())
    api = messages(ApiKey.API_VERSIONS, context.header.api_version)
    keys = tuple(
        api.response_part(
            "ApiVersion", api_key=k.api_key, min_version=k.min_version, max_version=k.max_version
        )
        for k in known.api_keys
    )
    return context.respond(
        api.response(
            error_code=known.error_code,
            api_keys=keys,
            throttle_time=timedelta(0),
            supported_features=(),
            finalized_features=(),
            finalized_features_epoch=-1,
            zk_migration_ready=False,
        )
    )


def never() -> bool:
    """It is offered, and passes."""
    return False


async def _nothing() -> None:
    """No topic is tracked."""


@asynccontextmanager
async def fleet_of(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    async def answers(*_: object) -> bool:
        return True  # the mock cluster knows no DescribeCluster

    async def nodes(_: KafkaCluster) -> dict[int, Node]:
        return {n: Node(n, *at, None) for n, at in fleet.brokers.items()}  # its Metadata is odd

    monkeypatch.setattr(_Place, "_answers", answers)
    monkeypatch.setattr(KafkaCluster, "nodes", nodes)
    mock = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": len(NODES)})
    told = await asyncio.to_thread(mock.list_topics, timeout=HANGS_S)
    fleet = Fleet({b.id: (b.host, b.port) for b in told.brokers.values()})
    for node in NODES:
        await fleet.start(node)
    try:
        yield fleet
    finally:
        for gateway in fleet.running.values():
            await gateway.kill()


class Client:
    """Works in a thread until it is stopped; when each piece of work was done."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.done: list[float] = []
        self.wrong: list[str] = []
        self._work, self._stopping = work, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._work()
            except Exception as error:
                self.wrong.append(repr(error))
                return
            self.done.append(time.monotonic())
            self._stopping.wait(PAUSE_S)

    async def goes_on(self, pieces: int = 3) -> None:
        count = len(self.done)
        await until(lambda: self.wrong or len(self.done) >= count + pieces, "it to go on", WITHIN_S)
        assert self.wrong == []

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.to_thread(joined, self._thread, WITHIN_S)


def transactions(bootstrap: str) -> Callable[[], None]:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "txn"})
    producer.init_transactions(HANGS_S)
    number = 0

    def one() -> None:
        nonlocal number
        producer.begin_transaction()
        for partition in range(4):
            producer.produce(TOPIC, b"%d" % number, partition=partition)
        producer.commit_transaction(HANGS_S)
        number += 1

    return one


def commits(bootstrap: str) -> Callable[[], None]:
    """A member of a group: its coordinator takes its offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "group",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])

    def one() -> None:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            consumer.commit(message, asynchronous=False)

    return one


def plain(bootstrap: str) -> Callable[[], None]:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    failed: list[KafkaError] = []

    def told(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    def one() -> None:
        for partition in range(4):
            producer.produce(TOPIC, b"v", partition=partition, on_delivery=told)
        assert producer.flush(HANGS_S) == 0
        assert failed == []

    return one


@pytest.mark.parametrize("leaves", ["stopped", "killed"])
async def test_clients_go_on_while_each_gateway_leaves_and_when_it_is_back(
    leaves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet_of(monkeypatch) as fleet:
        made = [await asyncio.to_thread(kind, fleet.bootstrap) for kind in (transactions, plain)]
        clients = [Client(work) for work in made]
        for client in clients:
            await client.goes_on()
        clients.append(Client(await asyncio.to_thread(commits, fleet.bootstrap)))
        carried = 0
        for node in NODES:
            gateway = fleet.running.pop(node)
            await (gateway.stop() if leaves == "stopped" else gateway.kill())
            for client in clients:
                await client.goes_on()
            carried += fleet.carried(node)
            await fleet.start(node)
            await until(lambda n=node: not fleet.carried(n), "its clients to be back", WITHIN_S)
            for client in clients:
                await client.goes_on()
        assert carried
        for client in clients:
            await client.stop()
            assert client.wrong == []
        gaps = [max(b - a for a, b in pairwise(c.done)) for c in clients]
        print("longest gap, s:", [round(gap, 1) for gap in gaps])
