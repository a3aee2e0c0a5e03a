"""Schedules 24 to 28, played by the real parts of gateways over each control plane.

Leases, view, ack gate, read ceiling, quiesce keeper and the questions between them are those that a
gateway is built of; the test plays Kafka, the worker and the clocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from tests.contract.scenes import GatewayProcess, Scene
from tests.support.waiting import HANGS_S, WITHIN_S, eventually, within
from tests.unit.gateway.fakes import FakeClock, until
from tideline.control_plane.errors import GatewayIdHeld
from tideline.domain.ids import TopicIdPartition, TopicPartition
from tideline.gateway.tracking import quiesce
from tideline.gateway.tracking.confirm import Confirmations
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.quiesce import Fences, IncarnationFenced, QuiesceKeeper
from tideline.gateway.tracking.view import TrackingView

LEASE_MS = 3_000
TOLD_WITHIN_S, NOT_TOLD_FOR_S = 20.0, 0.4


@dataclass
class GatewayParts:
    """What one gateway process is made of, but for its sockets."""

    scene: Scene
    gateway_id: int = 1
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        plane = self.scene.plane
        self.lease = Lease(
            plane,
            gateway_id=self.gateway_id,
            broker_id=1,
            address=f"gateway-{id(self)}:1",
            version="1",
            duration_ms=LEASE_MS,
            clock=self.clock,
        )
        self.tracking = TrackingView(self.lease.valid)
        self.confirmations = Confirmations(plane, self.lease)
        self.fences = Fences(self.tracking, self.lease, self.confirmations)
        self.drained = asyncio.Event()
        self.drained.set()
        self.keeper = QuiesceKeeper(
            plane,
            self.tracking,
            self.lease,
            self.fences,
            high_watermark=self._nobody_reads,
            reload=self._reload,
            drained=self._until_drained,
        )

    async def _nobody_reads(self, at: TopicPartition) -> int | None:
        return None

    async def _until_drained(self, topic_id: UUID) -> None:
        await self.drained.wait()

    async def _reload(self, at: TopicIdPartition) -> None:
        await self.hear()

    async def hear(self) -> None:
        """Learn what Postgres says, which a gateway that is cut off does not."""
        self.tracking.replace_all(await self.scene.plane.tracked_topics())

    async def start(self) -> None:
        await self.lease.renew(self.hear)

    @property
    def process(self) -> GatewayProcess:
        return GatewayProcess(self.gateway_id, self.lease.incarnation)

    async def tells(self, log: TopicIdPartition, offset: int, patience_s: float = HANGS_S) -> bool:
        """Forward a produce that Kafka appends at ``offset``; whether its producer is told."""
        ticket = self.fences.forwarded(log)
        told = False
        try:
            passes = self.fences.pass_gate(log, ticket, offset, patience_s)
            told = await within("the answer to be relayed or not", passes, TOLD_WITHIN_S)
        except (TimeoutError, IncarnationFenced):
            pass
        finally:
            self.fences.answered(log, offset if told else -1)
        return told

    async def close(self) -> None:
        await self.keeper.close()
        await self.confirmations.close()


@pytest.fixture
async def gateway(scene: Scene) -> AsyncIterator[GatewayParts]:
    made = GatewayParts(scene)
    await made.start()
    yield made
    await made.close()


async def migrating(scene: Scene, gateway: GatewayParts) -> TopicIdPartition:
    """A partition that the gateway tracks, knows, and may write to Kafka."""
    _, (log,) = await scene.migrating_topic([gateway.process])
    await gateway.hear()
    return log


async def test_an_append_is_told_while_nothing_is_closed(
    scene: Scene, gateway: GatewayParts
) -> None:
    log = await migrating(scene, gateway)
    assert await gateway.tells(log, 99)


async def test_a_process_whose_id_was_taken_over_tells_nothing_at_the_boundary(
    scene: Scene, gateway: GatewayParts
) -> None:
    """Schedule 24: cut off from Postgres, its clock has it that its lease is valid."""
    log = await migrating(scene, gateway)
    successor = await scene.gateway(gateway.gateway_id)
    generation = await scene.quiesce(log, [successor])
    await scene.persist(log, 100, generation)
    assert gateway.lease.valid()
    assert not await gateway.tells(log, 100, NOT_TOLD_FOR_S)


async def test_of_two_live_processes_the_first_keeps_the_id_and_the_other_waits(
    scene: Scene, gateway: GatewayParts
) -> None:
    """Schedule 24: they would fence each other for ever."""
    second = GatewayParts(scene, gateway.gateway_id)
    for _ in range(5):
        with pytest.raises(GatewayIdHeld):
            await second.start()
        second.clock.now += LEASE_MS / 1000
        await gateway.lease.renew()
    assert gateway.lease.valid()
    assert not second.lease.valid()


async def test_the_id_of_a_process_that_died_is_taken_over_when_its_lease_has_lapsed(
    scene: Scene, gateway: GatewayParts
) -> None:
    second = GatewayParts(scene, gateway.gateway_id)
    for _ in range(2):
        with pytest.raises(GatewayIdHeld):
            await second.start()
        second.clock.now += LEASE_MS / 1000 + 0.6
    await second.start()
    assert second.lease.valid()


async def test_the_id_of_a_process_that_stopped_is_free_at_once(
    scene: Scene, gateway: GatewayParts
) -> None:
    await gateway.lease.release()
    second = GatewayParts(scene, gateway.gateway_id)
    await second.start()
    assert second.lease.valid()


async def test_a_renewal_between_the_look_and_the_fence_keeps_the_gateway_in_the_barrier(
    scene: Scene, gateway: GatewayParts
) -> None:
    """Schedule 25: the worker paused after it had found the lease lapsed."""
    log = await migrating(scene, gateway)
    generation = await scene.plane.next_generation(log)
    await scene.plane.close_generation(log, generation, 60_000)
    (entry,) = await scene.plane.quiesce_barrier(log, generation)
    await gateway.lease.renew()
    assert not await scene.plane.fence_gateway(
        gateway.gateway_id, entry.gateway.incarnation, entry.gateway.renewals, "lapsed"
    )
    (entry,) = await scene.plane.quiesce_barrier(log, generation)
    assert not entry.acknowledged
    assert await gateway.tells(log, 99)


async def test_a_gateway_whose_clock_stood_still_tells_nothing_at_the_boundary(
    scene: Scene, gateway: GatewayParts
) -> None:
    """Schedule 26: the hypervisor paused it; on resume its lease looks valid."""
    log = await migrating(scene, gateway)
    generation = await scene.plane.next_generation(log)
    await scene.plane.close_generation(log, generation, 60_000)
    assert await scene.fence(gateway.process)
    await scene.persist(log, 100, generation)
    assert gateway.tracking.lease_valid()
    assert not await gateway.tells(log, 100, NOT_TOLD_FOR_S)


async def test_an_append_in_flight_at_the_closing_is_told_at_once_and_before_the_acknowledgement(
    scene: Scene, gateway: GatewayParts
) -> None:
    """The pause costs its producers no retry: B0 waits for this gateway's acknowledgement."""
    log = await migrating(scene, gateway)
    ticket = gateway.fences.forwarded(log)
    generation = await scene.plane.next_generation(log)
    await scene.plane.close_generation(log, generation, 60_000)
    await gateway.hear()
    assert await within("the gate", gateway.fences.pass_gate(log, ticket, 99, HANGS_S), 5)
    (entry,) = await scene.plane.quiesce_barrier(log, generation)
    assert not entry.acknowledged
    gateway.fences.answered(log, 99)
    await until_acknowledged(scene, log, generation)
    (entry,) = await scene.plane.quiesce_barrier(log, generation)
    assert entry.highest_acknowledged_offset == 99


async def until_acknowledged(scene: Scene, log: TopicIdPartition, generation: int) -> None:
    async def acknowledged() -> bool:
        entries = await scene.plane.quiesce_barrier(log, generation)
        return all(entry.acknowledged for entry in entries)

    await eventually("all acknowledgements", acknowledged, WITHIN_S)


async def test_a_quiesce_waits_for_what_was_forwarded_before_the_topic_was_tracked(
    scene: Scene, gateway: GatewayParts
) -> None:
    """Schedule 27: in a round that the gateway has not drained, an ungated append may be under way
    that would be told after the log end was read."""
    gateway.drained.clear()
    log = await migrating(scene, gateway)
    generation = await scene.plane.next_generation(log)
    await scene.plane.close_generation(log, generation, 60_000)
    await gateway.hear()
    await asyncio.sleep(0.05)
    (entry,) = await scene.plane.quiesce_barrier(log, generation)
    assert not entry.acknowledged
    gateway.drained.set()
    await until_acknowledged(scene, log, generation)


async def test_what_a_frozen_gateway_reads_past_the_boundary_is_not_shown(
    scene: Scene, gateway: GatewayParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedules 2 and 26."""
    monkeypatch.setattr(quiesce, "READ_PATIENCE_S", HANGS_S)
    log = await migrating(scene, gateway)
    await within("a confirmed read", gateway.fences.observe(log, 90, 3), TOLD_WITHIN_S)
    generation = await scene.plane.next_generation(log)
    await scene.plane.close_generation(log, generation, 60_000)
    assert await scene.fence(gateway.process)
    await scene.persist(log, 100, generation)
    await within("a read", gateway.fences.observe(log, 101, 3), TOLD_WITHIN_S)
    route = gateway.tracking.partition(log.topic_id, log.partition)
    assert gateway.fences.ceiling_of(log, route) == 90
    assert not await gateway.fences.confirmed(log)


async def test_fences_of_topics_that_were_let_go_are_forgotten(
    scene: Scene, gateway: GatewayParts
) -> None:
    log = await migrating(scene, gateway)
    assert await gateway.tells(log, 5)
    assert len(gateway.fences) == 1
    await scene.plane.abort_migration(log.topic_id)
    (topic,) = await scene.plane.tracked_topics()
    await scene.plane.stop_tracking(topic.name)
    await gateway.hear()
    await until(lambda: len(gateway.fences) == 0)
