"""The acknowledgement of a closed generation, and the ack gate as it is used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from tests.support.waiting import lasts_async, within
from tests.unit.gateway.fakes import (
    LOG,
    TOPIC,
    FakeClock,
    GatewayPlane,
    tracked_row,
    tracked_topic,
    until,
)
from tideline.background import watching
from tideline.control_plane.errors import ControlPlaneFailure
from tideline.control_plane.model import TrackedPartition
from tideline.domain.ids import TopicIdPartition, TopicPartition
from tideline.domain.read_ceiling import UNKNOWN_CEILING
from tideline.gateway.tracking import quiesce
from tideline.gateway.tracking.confirm import Confirmations
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.quiesce import Fences, IncarnationFenced, QuiesceKeeper
from tideline.gateway.tracking.view import TrackingView


class Bench:
    """Fences and keeper of one gateway; the test moves the rows."""

    def __init__(self) -> None:
        self.plane = GatewayPlane()
        self.clock = FakeClock()
        self.lease = Lease(
            self.plane,
            gateway_id=1,
            broker_id=1,
            address="here:1",
            version="0",
            duration_ms=3000,
            clock=self.clock,
        )
        self.tracking = TrackingView(self.lease.valid)
        self.confirmations = Confirmations(self.plane, self.lease)
        self.fences = Fences(self.tracking, self.lease, self.confirmations)
        self.high_watermark: int | None = 50
        self.drained = asyncio.Event()
        self.drained.set()
        self.asked_to_drain: list[UUID] = []
        self.reloaded: list[TopicIdPartition] = []
        self.keeper = QuiesceKeeper(
            self.plane,
            self.tracking,
            self.lease,
            self.fences,
            high_watermark=self._ask,
            reload=self._reload,
            drained=self._until_drained,
        )

    async def _ask(self, at: TopicPartition) -> int | None:
        assert at == TopicPartition(TOPIC, 0)
        return self.high_watermark

    async def _until_drained(self, topic_id: UUID) -> None:
        self.asked_to_drain.append(topic_id)
        await self.drained.wait()

    async def _reload(self, at: TopicIdPartition) -> None:
        self.reloaded.append(at)

    def show(self, row: TrackedPartition) -> None:
        self.plane.put(tracked_topic(row))
        self.tracking.replace_all([tracked_topic(row)])

    def ceiling(self) -> int:
        return self.fences.ceiling_of(LOG, self.tracking.partition(LOG.topic_id, 0))


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(quiesce, "RETRY_S", 0.01)
    monkeypatch.setattr(quiesce, "VOID_CHECK_S", 0.01)
    monkeypatch.setattr(quiesce, "CEILING_PATIENCE_S", 30.0)
    made = Bench()
    await made.lease.renew()
    made.show(tracked_row(generation=1))
    yield made
    await made.keeper.close()


async def test_a_closed_generation_is_acknowledged_with_what_was_told_and_seen(
    bench: Bench,
) -> None:
    """Schedules 2 and 14: SQL refuses a B0 below the highest acknowledged offset."""
    bench.fences.forwarded(LOG)
    bench.fences.answered(LOG, acknowledged=49)
    bench.show(tracked_row(generation=2, quiesced=True))
    await until(lambda: bench.plane.quiesce_acks)
    (ack,) = bench.plane.quiesce_acks
    assert (ack["generation"], ack["highest"], ack["ceiling"]) == (2, 49, 50)
    assert bench.ceiling() == 50


async def test_it_is_not_acknowledged_while_a_forwarded_produce_is_unanswered(
    bench: Bench,
) -> None:
    """Schedules 5 and 6."""
    bench.fences.forwarded(LOG)
    bench.show(tracked_row(generation=2, quiesced=True))
    await lasts_async("the answer is waited for", lambda: not bench.plane.quiesce_acks, 0.05)
    bench.fences.answered(LOG, acknowledged=60)
    await until(lambda: bench.plane.quiesce_acks)
    assert bench.plane.quiesce_acks[0]["highest"] == 60


async def test_it_is_not_acknowledged_before_what_was_forwarded_untracked_is_done(
    bench: Bench,
) -> None:
    """Schedule 27: no fence counts what reached Kafka before the topic was tracked."""
    bench.drained.clear()
    bench.show(tracked_row(generation=2, quiesced=True))
    await lasts_async("the drain is waited for", lambda: not bench.plane.quiesce_acks, 0.05)
    bench.drained.set()
    await until(lambda: bench.plane.quiesce_acks)
    assert bench.asked_to_drain == [LOG.topic_id]


async def test_what_was_confirmed_before_the_acknowledgement_and_is_heard_after_it_is_not_shown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedule 2: from its acknowledgement on a gateway shows nothing higher than what it said."""
    monkeypatch.setattr(quiesce, "READ_PATIENCE_S", 600.0)
    await bench.fences.observe(LOG, 50, 3)
    confirm, asked, heard = bench.plane.confirm_partitions, asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any) -> Any:
        standing = await confirm(*args)
        asked.set()
        await heard.wait()
        return standing

    monkeypatch.setattr(bench.plane, "confirm_partitions", slowly)
    reading = asyncio.create_task(bench.fences.observe(LOG, 60, 3))
    await within("the question", asked.wait())
    bench.show(tracked_row(generation=2, quiesced=True))
    await until(lambda: bench.plane.quiesce_acks)
    heard.set()
    await within("the read", reading)
    assert bench.plane.quiesce_acks[0]["ceiling"] == 50
    assert bench.ceiling() == 50


async def test_it_is_repeated_until_postgres_answers(bench: Bench) -> None:
    bench.plane.down = True
    bench.show(tracked_row(generation=2, quiesced=True))
    await lasts_async("Postgres is waited for", lambda: not bench.plane.quiesce_acks, 0.03)
    bench.plane.down = False
    await until(lambda: bench.plane.quiesce_acks)


async def test_what_postgres_cannot_do_now_ends_no_gateway_and_is_acknowledged_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: every gateway of the cluster would end, and again at each start."""

    refused = 0

    async def full(*args: object, **kwargs: object) -> None:
        nonlocal refused
        refused += 1
        raise ControlPlaneFailure("53100: no space left on device")

    with watching() as watch:
        with monkeypatch.context() as patched:
            patched.setattr(bench.plane, "acknowledge_quiesce", full)
            bench.show(tracked_row(generation=2, quiesced=True))
            await until(lambda: refused >= 3)
        await until(lambda: bench.plane.quiesce_acks)
        stop = asyncio.Event()
        stop.set()
        await watch.until(stop)


async def test_what_postgres_can_never_do_holds_no_quiesce_past_its_deadline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot acknowledge asks whether it is over, all the same: perhaps nobody else does."""

    async def never(*args: object, **kwargs: object) -> None:
        raise ControlPlaneFailure("42501: permission denied")

    asked = asyncio.Event()

    async def ask(log: TopicIdPartition) -> bool:
        asked.set()
        return False

    monkeypatch.setattr(bench.plane, "acknowledge_quiesce", never)
    monkeypatch.setattr(bench.plane, "void_expired_quiesce", ask)
    bench.show(tracked_row(generation=2, quiesced=True))
    await within("the question whether the quiesce is over", asked.wait())


async def test_a_broker_that_does_not_say_its_high_watermark_does_not_hold_it_up(
    bench: Bench,
) -> None:
    bench.high_watermark = None
    bench.show(tracked_row(generation=2, quiesced=True))
    await until(lambda: bench.plane.quiesce_acks)
    assert bench.plane.quiesce_acks[0]["ceiling"] == 0


async def test_each_generation_is_acknowledged_by_itself(bench: Bench) -> None:
    for generation in (2, 3):
        bench.show(tracked_row(generation=generation, quiesced=True))
        await until(lambda: bench.plane.quiesce_acks)
    await until(lambda: len(bench.plane.quiesce_acks) == 2)
    assert [ack["generation"] for ack in bench.plane.quiesce_acks] == [2, 3]


async def test_a_quiesce_past_its_deadline_is_ended(bench: Bench) -> None:
    """Schedule 13: the worker died; the database decides that the deadline has passed."""
    bench.show(tracked_row(generation=2, quiesced=True))
    await until(lambda: bench.plane.quiesce_acks)
    await lasts_async("the deadline is waited for", lambda: not bench.reloaded, 0.03)
    bench.plane.partition(LOG).deadline_ms = 0
    await until(lambda: bench.reloaded == [LOG] or len(bench.reloaded) > 0)
    bench.show(tracked_row(generation=2, quiesced=False))
    await bench.fences.observe(LOG, 60, 3)
    assert bench.ceiling() == 60


async def test_a_fenced_gateway_acknowledges_anew_as_another_incarnation(bench: Bench) -> None:
    """Schedule 1."""
    bench.show(tracked_row(generation=2, quiesced=True))
    await until(lambda: bench.plane.quiesce_acks)
    first = bench.lease.incarnation
    bench.plane.fence(first)
    await bench.lease.renew()
    await bench.lease.renew()
    await until(lambda: len(bench.plane.quiesce_acks) == 2)
    assert bench.plane.quiesce_acks[1]["incarnation"] != first


async def test_a_gateway_that_was_fenced_in_a_quiesce_shows_no_more_than_before(
    bench: Bench,
) -> None:
    """Schedule 2: the barrier went on without it, B0 = 50 is read, and a late append follows."""
    await bench.fences.observe(LOG, 50, 3)
    bench.fences.forwarded(LOG)
    bench.show(tracked_row(generation=2, quiesced=True))
    await asyncio.sleep(0)
    bench.plane.fence(bench.lease.incarnation)
    bench.high_watermark = 51
    await bench.lease.renew()
    await bench.lease.renew()
    bench.fences.answered(LOG)
    assert bench.lease.valid()
    assert bench.ceiling() == 50
    await until(lambda: bench.plane.quiesce_acks)
    assert bench.plane.quiesce_acks[0]["ceiling"] == 50
    bench.show(tracked_row(generation=2, quiesced=False))
    await bench.fences.observe(LOG, 51, 3)
    assert bench.ceiling() == 51


async def test_a_gateway_that_registers_into_a_quiesce_shows_nothing_that_it_has_not_seen(
    bench: Bench,
) -> None:
    """Schedule 2: what it learns while it registers may be the moment before B0."""
    bench.clock.now += 10
    bench.high_watermark = 51
    bench.show(tracked_row(generation=2, quiesced=True))
    await bench.lease.renew()
    await until(lambda: bench.plane.quiesce_acks)
    assert bench.ceiling() == UNKNOWN_CEILING


async def test_an_acknowledgement_waits_for_the_lease_and_is_told_when_it_is_back(
    bench: Bench,
) -> None:
    ticket = bench.fences.forwarded(LOG)
    bench.clock.now += 10
    passing = asyncio.create_task(bench.fences.pass_gate(LOG, ticket, 42, 60.0))
    await lasts_async("the lease is waited for", lambda: not passing.done(), 0.02)
    await bench.lease.renew()
    assert await within("the decision at the gate", passing)


async def test_an_acknowledgement_that_waits_is_dropped_as_soon_as_its_incarnation_is_fenced(
    bench: Bench,
) -> None:
    """Schedule 1: not only when another incarnation has a lease."""
    ticket = bench.fences.forwarded(LOG)
    bench.clock.now += 10
    waiting = asyncio.create_task(bench.fences.pass_gate(LOG, ticket, 42, 60.0))
    await asyncio.sleep(0)
    bench.lease.end_incarnation("lapsed")
    with pytest.raises(IncarnationFenced):
        await within("the decision at the gate", waiting)


async def test_the_acknowledgement_of_a_fenced_incarnation_is_dropped(bench: Bench) -> None:
    """Schedule 1: forward, pause, fence, wake, renew; then Kafka's answer is there."""
    ticket = bench.fences.forwarded(LOG)
    bench.plane.fence(bench.lease.incarnation)
    await bench.lease.renew()
    await bench.lease.renew()
    assert bench.lease.valid()
    with pytest.raises(IncarnationFenced):
        await bench.fences.pass_gate(LOG, ticket, 42, 60.0)


@pytest.mark.parametrize(("last_offset", "told"), [(99, True), (100, False)])
async def test_what_waits_is_decided_by_the_boundary(
    bench: Bench, last_offset: int, told: bool
) -> None:
    """Schedules 1 and 6."""
    ticket = bench.fences.forwarded(LOG)
    bench.clock.now += 10
    passing = asyncio.create_task(bench.fences.pass_gate(LOG, ticket, last_offset, 60.0))
    await asyncio.sleep(0)
    bench.show(tracked_row(generation=2, boundary=100, boundary_epoch=1))
    assert await within("the decision at the gate", passing) is told


async def test_waiting_at_the_gate_is_bounded(bench: Bench) -> None:
    ticket = bench.fences.forwarded(LOG)
    bench.clock.now += 10
    with pytest.raises(TimeoutError):
        await bench.fences.pass_gate(LOG, ticket, 42, 0.02)


async def test_a_closing_that_is_seen_before_the_new_incarnation_is_registered_is_acknowledged(
    bench: Bench,
) -> None:
    bench.plane.fence(bench.lease.incarnation)
    await bench.lease.renew()
    assert not bench.lease.registered
    bench.show(tracked_row(generation=2, quiesced=True))
    await asyncio.sleep(0)
    assert not bench.plane.quiesce_acks
    await bench.lease.renew()
    await until(lambda: bench.plane.quiesce_acks)


async def test_what_was_acknowledged_before_a_displacement_is_said_in_the_quiesce(
    bench: Bench,
) -> None:
    """It may have been one broker that lagged."""
    bench.fences.forwarded(LOG)
    bench.fences.answered(LOG, acknowledged=49)
    bench.tracking.displace({LOG.topic_id})
    bench.tracking.displace(set())
    bench.show(tracked_row(generation=2, quiesced=True))
    await until(lambda: bench.plane.quiesce_acks)
    assert bench.plane.quiesce_acks[0]["highest"] == 49


async def test_a_reader_does_not_make_the_fence_of_a_topic_that_was_let_go_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.fences.of(LOG)

    async def let_go(_: TopicIdPartition) -> bool:
        bench.tracking.replace_all([])
        return False

    monkeypatch.setattr(bench.fences, "confirmed", let_go)
    await bench.fences.observe(LOG, 10, 1)
    bench.ceiling()
    assert len(bench.fences) == 0
