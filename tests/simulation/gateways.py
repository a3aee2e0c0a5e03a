"""A gateway process as :mod:`tideline.gateway.__main__` builds it, without signals and S3."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from tests.simulation.asyncio_transport import AsyncioTransport
from tests.simulation.broker_wire import PORT, host_of
from tests.simulation.bucket import footer_of
from tests.simulation.clients import History, timestamp_ms
from tests.simulation.coverage import Coverage
from tests.simulation.loop import Process
from tests.simulation.milestones import Milestones
from tests.simulation.network import NetworkedLoop
from tests.simulation.postgres import Remote, RemotePlane, RemoteStore, Server
from tests.simulation.promotion import Owners
from tests.unit.gateway.gateway_under_test import gateway_settings
from tideline.background import BackgroundTaskEnded, spawn, watching
from tideline.control_plane.memory import MemoryControlPlane
from tideline.control_plane.model import BoundaryToPersist
from tideline.domain.authorization import Verdict
from tideline.domain.history import HistoryWatch
from tideline.domain.ids import TopicIdPartition
from tideline.domain.wal_tail import log_of
from tideline.gateway.assembly import Parts, build_parts, build_rules
from tideline.gateway.context import ConnectionRegistry, RequestContext
from tideline.gateway.quotas import ClientQuotas
from tideline.gateway.rights import Judged, TopicRights
from tideline.gateway.stand_ins import StandIns
from tideline.gateway.tracking.presence import Presence
from tideline.gateway.tracking.state_directory import NAMES_NAME, StateDirectory
from tideline.gateway.transactions import OpenTransactions
from tideline.gateway.transport.addresses import NodeAddresses
from tideline.gateway.transport.server import GatewayServer
from tideline.kafka.client import KafkaCluster

LEASE_MS = "2000"
START_AGAIN_S = 0.3
_settings = lru_cache(maxsize=64)(gateway_settings)
"""To check them takes a fiftieth of a run."""


@lru_cache(maxsize=256)
def _setting(name: str, value: str) -> object:
    """One setting, as it is read."""
    return getattr(_settings("broker:1", **{name: value}), name)


class AllAllowed(TopicRights):
    """What clients may do is not simulated: a question more would move every recorded schedule."""

    async def judge(self, context: RequestContext, topics: Iterable[str]) -> Judged:
        return Judged(dict.fromkeys(topics, Verdict.ALLOWED))

    def known_to_allow(self, context: RequestContext, topics: Iterable[str]) -> bool:
        return True


class NoQuotas(ClientQuotas):
    """Nor are quotas."""

    def start(self) -> None:
        pass


NO_ROWS = ("now_ms", "milestones", "set_at", "closed_at", "grown_at", "_listeners")
"""Of a plane in memory: what a standby has not got from its primary."""


class Plane(MemoryControlPlane):
    """Says when B0 is set, before anybody is told, and goes back to what it had."""

    milestones: Milestones

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self.set_at: dict[TopicIdPartition, float] = {}
        """When B0 was set, on the loop's clock."""
        self.closed_at: dict[TopicIdPartition, tuple[int, float]] = {}
        """The newest generation that was closed, and when."""
        self.grown_at: dict[TopicIdPartition, float] = {}
        """When partitions that were added began diskless, on that clock."""

    async def initialize_diskless_migration(self, boundary: BoundaryToPersist) -> None:
        await super().initialize_diskless_migration(boundary)
        self.set_at.setdefault(boundary.log, asyncio.get_running_loop().time())
        if boundary.log.partition == 0 and self.milestones.reach("B0"):
            await asyncio.sleep(0)

    async def close_generation(self, log: TopicIdPartition, generation: int, hold_ms: int) -> None:
        await super().close_generation(log, generation, hold_ms)
        if generation > self.closed_at.get(log, (-1, 0.0))[0]:
            self.closed_at[log] = generation, asyncio.get_running_loop().time()

    async def add_partitions(self, name: str, topic_id: UUID, first: int, total: int) -> None:
        await super().add_partitions(name, topic_id, first, total)
        for number in range(first, total):
            log = TopicIdPartition(topic_id, number)
            self.grown_at.setdefault(log, asyncio.get_running_loop().time())

    @property
    def is_settled(self) -> bool:
        """Whether it is known that nothing was lost by a promotion, or an operator accepted it."""
        return self._is_settled()

    def rows(self) -> dict[str, Any]:
        return {name: rows for name, rows in vars(self).items() if name not in NO_ROWS}

    def copied(self) -> dict[str, Any]:
        """All that is committed now, as a standby has it."""
        return deepcopy(self.rows(), {id(self): self})

    def go_back(self, rows: dict[str, Any]) -> None:
        vars(self).update(rows)


class Surroundings:
    """What every process of one run shares."""

    def __init__(self, loop: NetworkedLoop, home: Path, history: History) -> None:
        self.loop, self.home, self.history = loop, home, history
        self.postgres = Process(loop, "postgres")
        self.s3 = Process(loop, "s3")
        self.milestones = Milestones()
        self.coverage = Coverage(self.milestones)
        self.servers = {
            "postgres": Server(self.postgres, self.milestones),
            "s3": Server(self.s3, self.milestones),
        }
        self.plane = Plane(lambda: timestamp_ms(loop.time() + self.postgres.wall_ahead))
        self.objects: dict[str, bytes] = {}
        self.plane.milestones = self.milestones
        self.standby: dict[str, Any] | None = None
        """What a standby has that receives nothing any more."""
        self.primary: dict[str, Any] | None = None
        """What was committed when a standby was promoted, until an operator has compared them."""
        self.forked: dict[TopicIdPartition, int] = {}
        """Where the logs ended then of which it has B0."""
        self.owners = Owners()
        self.stands_in = False
        """Whether gateways stand in for each other."""
        self.settings: dict[str, str] = {}
        self.tight: dict[str, int] = {}
        """Of the gateways, beside what a run needs; and what is lower than an operator may set."""

    def fall_behind(self) -> None:
        """A standby receives nothing from now on."""
        self.standby = self.plane.copied()

    def promote(self) -> None:
        """A standby takes over: the one that has fallen behind, or one that has everything."""
        system, timeline = self.plane.server
        self.primary = self.plane.rows()
        if self.standby is not None:
            self.plane.go_back(self.standby)
            self.standby = None
        suffixes = [row for row in self.plane.topics.partitions() if row.suffix is not None]
        self.forked = {row.log: row.high_watermark for row in suffixes}
        self.plane.server = (system, timeline + 1)
        self._serve_anew()

    def demote(self) -> None:
        """The primary is back, and has everything."""
        assert self.primary is not None
        self.plane.go_back(self.primary)
        self._serve_anew()

    def _serve_anew(self) -> None:
        """By another process: connections end, and calls under way have no outcome."""
        before, self.postgres = self.postgres, Process(self.loop, "postgres")
        self.postgres.wall_ahead = before.wall_ahead
        self.servers["postgres"].process = self.postgres
        before.kill()

    def plane_for(self, process: Process, history: HistoryWatch | None = None) -> Any:
        """``history``: what its connections are compared with."""
        remote, server = Remote(self.loop, self.loop.network, process), self.servers["postgres"]
        return RemotePlane(remote, server, self.plane, self.loop.network, history)

    def store_for(self, process: Process) -> RemoteStore:
        remote = Remote(self.loop, self.loop.network, process)
        return RemoteStore(remote, self.servers["s3"], self.objects, self._brings_a_newcomer)

    def _brings_a_newcomer(self, body: bytes) -> bool:
        """Whether an object has batches of a producer that its suffix does not know yet."""
        return any(
            batch.producer_id >= 0
            and (partition := self.plane.topics.partition(log_of(batch))) is not None
            and partition.suffix is not None
            and batch.producer_id not in partition.suffix.producers
            for batch in footer_of(body).batches
        )


class Gateway:
    """One gateway beside one broker; ``name`` is its host, ``number`` its id and the broker's."""

    def __init__(self, world: Surroundings, name: str, number: int, peers: str) -> None:
        self._world, self.name, self.number, self._peers = world, name, number, peers
        self.home, self._copy = world.home / name, world.home / f"copy of {name}"
        self.process = Process(world.loop, name)
        self.parts: Parts | None = None
        self._lost = 0
        self._told_to_stop = asyncio.Event()

    @property
    def address(self) -> tuple[str, int]:
        return self.name, PORT

    def start(self) -> None:
        if self._told_to_stop.is_set():  # and has not ended yet
            self.process.kill()
        if not self.process.alive:
            self.process = Process(self._world.loop, self.name)
        self._told_to_stop = asyncio.Event()
        self.process.spawn(self._supervised(), self.name)
        self._world.milestones.reach("start", self.name)

    def stop(self) -> None:
        """As SIGTERM does: it ends what is under way, and releases its lease."""
        self.process.call(self._told_to_stop.set)

    def kill(self, *, lose_disk: bool = False) -> None:
        self.process.kill()
        if lose_disk:
            self._lose_disk()

    def copy_disk(self) -> None:
        """Keep its state directory as it is now, instead of an earlier copy."""
        self._forget_copy()
        if self.home.exists():
            shutil.copytree(self.home, self._copy)

    def put_copy_back(self) -> bool:
        """Whether there was a copy to put in the place of the disk of a process that is dead."""
        if not self._copy.exists():
            return False
        self._lose_disk()
        shutil.copytree(self._copy, self.home)
        return True

    def _lose_disk(self) -> None:
        """Kept aside until the run ends: another directory whose lock got the inode of this one's,
        as the file system pleases, would take this one's incarnations for proven to be dead."""
        self._attest_gone()
        if self.home.exists():
            self._lost += 1
            self.home.rename(self.home.with_name(f"lost {self._lost} of {self.name}"))

    def _forget_copy(self) -> None:
        shutil.rmtree(self._copy, ignore_errors=True)

    def _attest_gone(self) -> None:
        """What an operator says, who knows that it was killed: nobody else can without its disk."""
        names = self.home / NAMES_NAME
        if names.exists():
            for name in json.loads(names.read_text())["incarnations"]:
                self._world.plane.gateways.accounted.setdefault(UUID(name), "gone, seen by us")

    async def _supervised(self) -> None:
        """Its supervisor starts it again, in the same process of the simulation, when it ends."""
        while True:
            try:
                await self._serve()
                self._world.loop.call_soon(self.process.kill)
                return
            except (BackgroundTaskEnded, OSError) as error:
                self._world.history.note(f"{self.name} ended by itself: {error}")
                await asyncio.sleep(START_AGAIN_S)

    def _stand_in(self) -> str:
        nodes = [int(entry.partition("=")[0]) for entry in self._peers.split(",")]
        return ",".join(f"{node}={self.name}:{PORT + node}" for node in nodes)

    async def _serve(self) -> None:
        broker = f"{host_of(self.number)}:{PORT}"
        settings = _settings(
            broker,
            gateway_id=str(self.number),
            gateway_broker_id=str(self.number),
            gateway_listen=f"{self.name}:{PORT}",
            gateway_advertised=f"{self.name}:{PORT}",
            gateway_peers=self._peers,
            gateway_lease_ms=LEASE_MS,
            gateway_stand_in=self._stand_in() if self._world.stands_in else "",
        ).model_copy(
            update={name: _setting(name, value) for name, value in self._world.settings.items()}
            | self._world.tight
            | {"gateway_state_dir": self.home}
        )
        directory = StateDirectory.hold(self.home, self.number, patience_s=0)
        self.process.on_kill.append(directory.release)
        with watching() as watch:
            history = HistoryWatch()
            plane = self._world.plane_for(self.process, history)
            cluster = KafkaCluster([settings.gateway_broker], timeout_ms=5_000)
            connections = ConnectionRegistry()
            parts = build_parts(
                settings,
                plane,
                self._world.store_for(self.process),
                cluster,
                connections,
                directory=directory,
                history=history,
                establish=self._world.owners.establish(plane, cluster, history),
            )
            parts = self.parts = replace(
                parts, rights=AllAllowed(), quotas=NoQuotas(cluster, self.number)
            )
            rules = build_rules(
                parts,
                plane,
                cluster,
                cast(Any, OpenTransactions(cluster)),
                patience_s=settings.produce_timeout_ms / 1000,
            )
            peers = parts.leaders.peers
            presence = Presence(parts.lease, peers, self.number)
            nodes = NodeAddresses(settings.gateway_peers)
            server = GatewayServer(
                settings, rules, connections, parts.room, nodes, makes_transport=AsyncioTransport
            )
            stand_ins = StandIns(settings, server, nodes, peers, cluster)
            await stand_ins.take()
            await spawn(parts.start(), "start")
            stand_ins.start()
            await server.start()
            if self._world.stands_in:
                presence.follow(lambda: server.listening)
            try:
                await watch.until(self._told_to_stop)
            finally:
                await presence.close()
                await stand_ins.close()
                await server.stop(0.1)
                await parts.close(0.1)
                cluster.close()
                directory.release()
