"""The view of tracked topics, how it is kept, and what is acknowledged when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.waiting import WITHIN_S, lasts_async, set_within, within
from tests.unit.gateway.fakes import (
    LOG,
    TOPIC,
    TOPIC_ID,
    FakeClock,
    GatewayPlane,
    tracked_row,
    tracked_topic,
    until,
)
from tests.unit.gateway.tracked_bench import leased
from tideline.background import BackgroundTaskEnded, watching
from tideline.control_plane.errors import ControlPlaneUnavailable, UnknownToThisVersion
from tideline.control_plane.model import TopicStatus, TrackedTopic
from tideline.domain.history import WrongHistory
from tideline.domain.ids import TopicIdPartition
from tideline.domain.request_handling import RouteKind
from tideline.gateway.tracking import sync as tracking_sync
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.postgres_watch import NotEstablished
from tideline.gateway.tracking.snapshot import PostgresIdentity, SnapshotFile
from tideline.gateway.tracking.sync import TrackingSync
from tideline.gateway.tracking.view import TrackingView

ANOTHER_ID = UUID(int=0xDEF)


class Bench:
    """One gateway's tracking over a control plane in memory."""

    def __init__(self, plane: GatewayPlane, directory: Path) -> None:
        self.plane = plane
        self.clock = FakeClock()
        self.lease = Lease(
            plane,
            gateway_id=1,
            broker_id=1,
            address="here:1",
            version="0",
            duration_ms=300_000,
            clock=self.clock,
        )
        self.tracking = TrackingView(self.lease.valid)
        self.file = SnapshotFile(directory, 1)
        self.drained = 0
        self.drain: Callable[[], Awaitable[None]] = self._drain
        self.sync = TrackingSync(
            plane, self.tracking, self.lease, self.file, drain=lambda: self.drain(), poll_s=0.05
        )

    async def _drain(self) -> None:
        self.drained += 1

    def kind(self, log: TopicIdPartition = LOG) -> RouteKind:
        return self.tracking.partition(log.topic_id, log.partition).kind

    @property
    def acknowledged(self) -> list[str]:
        return [name for _, name in self.plane.tracking_acks]


@pytest.fixture
def plane() -> GatewayPlane:
    return GatewayPlane()


@pytest.fixture
async def bench(plane: GatewayPlane, tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(plane, tmp_path)
    yield made
    await made.sync.close()


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking_sync, "START_PATIENCE_S", 0.05)
    monkeypatch.setattr(tracking_sync, "RETRY_S", 0.01)


async def test_nothing_is_tracked_to_begin_with(bench: Bench) -> None:
    await bench.sync.start()
    assert bench.tracking.is_empty
    assert bench.kind() is RouteKind.CLASSIC


async def test_a_hint_is_enough_to_learn_of_a_quiesce_and_of_a_boundary(
    bench: Bench, plane: GatewayPlane
) -> None:
    plane.put(tracked_topic())
    bench.sync._poll_s = 60.0
    await bench.sync.start()
    assert bench.kind() is RouteKind.PENDING
    plane.put_row(tracked_row(generation=2, quiesced=True))
    await until(lambda: bench.kind() is RouteKind.QUIESCING)
    plane.put_row(tracked_row(generation=2, boundary=40, boundary_epoch=3))
    await until(lambda: bench.kind() is RouteKind.SUFFIX)
    assert bench.tracking.partition(TOPIC_ID, 0).boundary == 40


async def test_news_of_a_row_that_only_a_newer_version_knows_costs_no_other_its_news(
    bench: Bench, plane: GatewayPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions side by side."""

    async def unknown(topic_id: UUID, number: int) -> object:
        raise UnknownToThisVersion("tracked_partition answered 'COMPACTING'")

    plane.put(tracked_topic())
    bench.sync._poll_s = 60.0
    with watching() as watch:
        await bench.sync.start()
        monkeypatch.setattr(plane, "tracked_partition", unknown)
        plane.put_row(tracked_row(generation=2, boundary=40, boundary_epoch=3))
        await until(lambda: bench.kind() is RouteKind.SUFFIX)
        stop = asyncio.Event()
        stop.set()
        await watch.until(stop)


async def test_a_row_that_this_version_does_not_understand_ends_the_process_with_the_reason(
    bench: Bench, plane: GatewayPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tasks of a gateway end by it one after the other, unsaid, until its restart."""

    async def unknown(*_: object) -> list[object]:
        raise ValueError("'PAUSED' is not a valid MigrationState")

    with watching() as watch:
        await bench.sync.start()
        for name in ("tracked_topics", "tracked_changes"):
            monkeypatch.setattr(plane, name, unknown, raising=False)
        with pytest.raises(BackgroundTaskEnded, match=r"tracking-\w+ ended by ValueError"):
            await within("a task of the gateway to end", watch.until(asyncio.Event()))


async def test_a_poll_is_one_statement_until_a_topic_changes(
    bench: Bench, plane: GatewayPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And learns of every deletion."""
    asked = list[str]()

    def counted(name: str) -> None:
        call = getattr(plane, name)

        async def count(*given: object) -> object:
            asked.append(name)
            return await call(*given)

        monkeypatch.setattr(plane, name, count)

    plane.put(tracked_topic(tracked_row(boundary=40, boundary_epoch=3)))
    await bench.sync.learn_anew()
    for name in ("tracked_changes", "deleted_topics", "identity", "tracked_topics"):
        counted(name)
    await bench.sync.reload()
    plane.put_row(tracked_row(boundary=41, boundary_epoch=3))
    await bench.sync.reload()
    assert bench.tracking.partition(TOPIC_ID, 0).boundary == 41
    assert asked == ["tracked_changes"] * 2
    await plane.delete_topic(TOPIC_ID)
    await bench.sync.reload()
    assert asked[2:] == ["tracked_changes", "deleted_topics", "identity"]
    assert bench.kind() is RouteKind.DELETED


async def test_polling_finds_what_no_hint_told(bench: Bench, plane: GatewayPlane) -> None:
    await bench.sync.start()
    plane.put(tracked_topic())
    await until(lambda: bench.kind() is RouteKind.PENDING)


async def test_what_no_hint_told_is_found_within_three_seconds(tmp_path: Path) -> None:
    """As gateways are put together; it is what docs/differences.md says of a B0 that is unset."""
    async with leased(tmp_path) as made:
        assert 0 < made.parts.sync._poll_s <= 3


async def test_a_topic_is_acknowledged_after_the_drain_and_after_the_snapshot(
    bench: Bench, plane: GatewayPlane
) -> None:
    """Schedules 6, 9 and 18."""
    order: list[str] = []
    drained = asyncio.Event()
    acknowledge, write = plane.acknowledge_tracking, bench.file.write

    async def drain() -> None:
        order.append("draining")
        await drained.wait()
        order.append("drained")

    async def acknowledged(*arguments: object) -> None:
        order.append("acknowledged")
        await acknowledge(*arguments)  # type: ignore[arg-type]

    bench.drain = drain
    plane.acknowledge_tracking = acknowledged  # type: ignore[method-assign, assignment]
    await bench.sync.start()
    plane.put(tracked_topic(status=TopicStatus.TRACKING))
    await until(lambda: order == ["draining"])
    await lasts_async("the drain is waited for", lambda: not plane.tracking_acks, 0.1)
    written: list[bool] = []
    bench.file.write = lambda *a: (written.append(not plane.tracking_acks), write(*a))  # type: ignore[method-assign, func-returns-value]
    drained.set()
    await until(lambda: plane.tracking_acks)
    assert order[:3] == ["draining", "drained", "acknowledged"]
    found = bench.file.read()
    assert found is not None
    assert [topic.name for topic in found.topics] == [TOPIC]
    assert all(written)


async def test_a_snapshot_that_cannot_be_written_holds_the_acknowledgement_back(
    bench: Bench, plane: GatewayPlane
) -> None:
    """Schedule 18."""
    await bench.sync.start()
    write = bench.file.write

    def no_space(*_: object) -> None:
        raise OSError("no space left on device")

    bench.file.write = no_space  # type: ignore[method-assign, assignment]
    plane.put(tracked_topic(status=TopicStatus.TRACKING))
    await until(lambda: bench.kind() is RouteKind.PENDING)
    await lasts_async("the snapshot is waited for", lambda: not plane.tracking_acks, 0.1)
    bench.file.write = write  # type: ignore[method-assign]
    await until(lambda: plane.tracking_acks)


async def test_snapshots_that_take_long_are_written_less_often_and_the_last_change_is_among_them(
    bench: Bench, plane: GatewayPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write is of all partitions of a topic, each of which changes some times."""
    monkeypatch.setattr(tracking_sync, "RESTS_AT_MOST_S", 0.05)
    plane.put(tracked_topic())
    await bench.sync.start()
    await until(lambda: bench.tracking.topics() and bench.acknowledged)
    write, writes, boundaries = bench.file.write, 0, 200
    all_have_come = threading.Event()

    def slow(identity: PostgresIdentity, topics: Iterable[TrackedTopic]) -> None:
        nonlocal writes
        writes += 1
        set_within("all changes", all_have_come, WITHIN_S)
        write(identity, topics)

    bench.file.write = slow  # type: ignore[method-assign]
    for boundary in range(1, boundaries + 1):
        plane.put_row(tracked_row(generation=boundary, boundary=boundary, boundary_epoch=3))
        await until(lambda: bench.tracking.partition(TOPIC_ID, 0).boundary == boundary)  # noqa: B023
    assert writes == 1
    all_have_come.set()
    await until(lambda: _kept(bench) == boundaries)
    assert writes < boundaries / 5


def _kept(bench: Bench) -> int:
    snapshot = bench.file.read()
    assert snapshot is not None
    return snapshot.topics[0].partitions[0].boundary


async def test_the_version_grows_when_a_topic_joins_so_that_fetch_sessions_are_looked_at(
    bench: Bench, plane: GatewayPlane
) -> None:
    """Schedule 9."""
    await bench.sync.start()
    before = bench.tracking.version
    plane.put(tracked_topic())
    await until(lambda: bench.tracking.version > before)
    joined = bench.tracking.version
    plane.put_row(tracked_row(generation=2, quiesced=True))
    await until(lambda: bench.kind() is RouteKind.QUIESCING)
    assert bench.tracking.version == joined


async def test_a_restart_without_postgres_goes_on_from_the_snapshot_and_without_a_lease(
    plane: GatewayPlane, tmp_path: Path
) -> None:
    """Schedule 18."""
    plane.put(tracked_topic(tracked_row(boundary=40, boundary_epoch=3)))
    first = Bench(plane, tmp_path)
    await first.sync.start()
    await until(lambda: plane.tracking_acks)
    await first.sync.close()
    plane.fence(first.lease.incarnation)
    plane.down = True
    second = Bench(plane, tmp_path)
    await second.sync.start()
    assert second.kind() is RouteKind.SUFFIX
    assert not second.tracking.lease_valid()
    plane.down = False
    await until(second.tracking.lease_valid)
    await second.sync.close()


async def test_with_neither_postgres_nor_a_snapshot_the_start_waits(
    bench: Bench, plane: GatewayPlane
) -> None:
    """Schedule 18: it would pass a diskless topic through."""
    plane.down = True
    plane.put(tracked_topic())
    starting = asyncio.create_task(bench.sync.start())
    await lasts_async("the start waits", lambda: not starting.done(), 0.15)
    plane.down = False
    await within("the start", starting)
    assert bench.kind() is RouteKind.PENDING


async def test_another_postgres_stops_tracked_traffic_and_changes_nothing(
    bench: Bench, plane: GatewayPlane
) -> None:
    """Schedule 16: a standby that missed the commit of B0 says that B0 is unset."""
    plane.put(tracked_topic(tracked_row(boundary=40, boundary_epoch=3)))
    missed = await plane.beat_history()
    await bench.sync.start()
    plane.server = ("7001", 2)
    token = plane.history.beats.pop(missed)
    plane.put(tracked_topic(tracked_row(generation=1)))
    await until(lambda: bench.tracking.stopped)
    assert "timeline 2" in str(bench.tracking.stopped)
    assert not bench.tracking.lease_valid()
    assert bench.kind() is RouteKind.SUFFIX
    renewals = plane.gateways.registered[1].renewals
    await lasts_async(
        "who stopped renews nothing",
        lambda: plane.gateways.registered[1].renewals == renewals,
        0.15,
    )
    plane.server = ("7001", 1)
    plane.history.beats[missed] = token
    plane.put(tracked_topic(tracked_row(boundary=40, boundary_epoch=3)))
    await until(lambda: bench.tracking.stopped is None)
    assert bench.tracking.lease_valid()


async def test_a_promotion_that_lost_nothing_is_gone_along_with(
    bench: Bench, plane: GatewayPlane
) -> None:
    plane.put(tracked_topic())
    await plane.beat_history()
    await bench.sync.start()
    plane.server = ("7001", 2)
    plane.put(tracked_topic(tracked_row(boundary=40, boundary_epoch=3)))
    await until(lambda: bench.kind() is RouteKind.SUFFIX)
    assert bench.tracking.stopped is None
    plane.server = ("7001", 1)
    await until(lambda: bench.tracking.stopped)
    assert "timeline 2 was seen already" in str(bench.tracking.stopped)


async def test_a_rollback_that_keeps_system_and_timeline_is_noticed(
    bench: Bench, plane: GatewayPlane
) -> None:
    """A snapshot of the volume; by now it has a beat of that number again, with another token."""
    plane.put(tracked_topic())
    taken_back = await plane.beat_history()
    await bench.sync.start()
    plane.history.beats.pop(taken_back)
    assert await plane.beat_history() == taken_back
    await until(lambda: bench.tracking.stopped)
    assert f"beat {taken_back}" in str(bench.tracking.stopped)


async def test_a_gateway_whose_connections_are_all_refused_stops_until_one_is_not(
    bench: Bench, plane: GatewayPlane
) -> None:
    """A Postgres that is restored under it has broken every connection of before."""
    plane.put(tracked_topic(tracked_row(boundary=40, boundary_epoch=3)))
    await bench.sync.start()
    plane.refused = "timeline 1 has not got beat 7"
    await until(lambda: bench.tracking.stopped)
    assert plane.refused in str(bench.tracking.stopped)
    assert not bench.tracking.lease_valid()
    assert bench.kind() is RouteKind.SUFFIX
    plane.refused = ""
    await until(lambda: bench.tracking.stopped is None)
    assert bench.tracking.lease_valid()


async def test_who_belongs_elsewhere_is_refused_at_the_start_and_stopped_later(
    plane: GatewayPlane, tmp_path: Path
) -> None:
    """Later: the gateway has started from its snapshot, while Postgres was away."""
    plane.put(tracked_topic(tracked_row(boundary=40, boundary_epoch=3)))
    before = Bench(plane, tmp_path)
    await before.sync.start()
    await until(lambda: plane.tracking_acks)
    await before.sync.close()
    plane.fence(before.lease.incarnation)

    async def elsewhere() -> None:
        if plane.down:
            raise ControlPlaneUnavailable("away")
        raise WrongHistory("the bucket belongs to another")

    for away in (False, True):
        plane.down = away
        bench = Bench(plane, tmp_path)
        bench.sync._postgres._establish = elsewhere
        if not away:
            with pytest.raises(NotEstablished, match="belongs to another"):
                await bench.sync.start()
            continue
        await bench.sync.start()
        plane.down = False
        await until(lambda bench=bench: bench.tracking.stopped)
        assert not bench.lease.valid()
        await bench.sync.close()


async def test_a_renewal_that_is_gone_halts_the_history_for_everybody(
    bench: Bench, plane: GatewayPlane
) -> None:
    """Younger than the newest beat, so that only this gateway can miss it."""
    plane.put(tracked_topic())
    await bench.sync.start()
    await bench.lease.renew()
    await bench.lease.renew()
    known = plane.gateways.registered[1]
    plane.gateways.registered[1] = replace(known, renewals=known.renewals - 1)
    await bench.lease.renew()
    assert not bench.lease.valid()
    await until(lambda: plane.history.halted)
    assert "was acknowledged" in str(plane.history.halted)
    assert bench.tracking.stopped is not None
    await plane.begin_history("ada", "compared: nothing else is missing")
    goes_on = "the history goes on that an operator has begun, whoever is not started again yet"
    await lasts_async(goes_on, lambda: plane.history.halted is None, 0.3)


async def test_the_pin_outlives_a_restart(
    plane: GatewayPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedule 16."""
    monkeypatch.setattr(tracking_sync, "START_PATIENCE_S", 60.0)
    plane.put(tracked_topic())
    first = Bench(plane, tmp_path)
    await first.sync.start()
    await until(lambda: plane.tracking_acks)
    await first.sync.close()
    plane.fence(first.lease.incarnation)
    plane.server = ("9009", 1)
    plane.topics.rows.clear()
    second = Bench(plane, tmp_path)
    await second.sync.start()
    assert second.tracking.stopped is not None
    await second.sync.close()


async def test_a_new_incarnation_acknowledges_anew_without_another_drain(
    bench: Bench, plane: GatewayPlane
) -> None:
    """Schedule 1: it never stopped tracking the topic."""
    plane.put(tracked_topic())
    await bench.sync.start()
    await until(lambda: plane.tracking_acks)
    drained = bench.drained
    plane.fence(bench.lease.incarnation)
    await bench.lease.renew()
    await bench.lease.renew()
    await until(lambda: (bench.lease.incarnation, TOPIC) in plane.tracking_acks)
    assert bench.drained == drained


async def test_a_lease_that_comes_back_acknowledges_what_waited_for_it(
    bench: Bench, plane: GatewayPlane
) -> None:
    bench.sync._poll_s = 60.0
    await bench.sync.start()
    await lasts_async("nothing is tracked", lambda: not plane.tracking_acks, 0.05)
    bench.clock.now += 1_000
    plane.put(tracked_topic())
    await bench.sync.reload()
    await lasts_async("the lease is waited for", lambda: not plane.tracking_acks, 0.05)
    await bench.lease.renew()
    await until(lambda: plane.tracking_acks == [(bench.lease.incarnation, TOPIC)])


async def test_an_acknowledgement_that_a_promoted_standby_may_lack_is_given_again(
    bench: Bench, plane: GatewayPlane
) -> None:
    """Nothing changes there that the gateway would hear of."""
    plane.put(tracked_topic(status=TopicStatus.TRACKING))
    await bench.sync.start()
    await until(lambda: plane.tracking_acks)
    await lasts_async("once", lambda: len(plane.tracking_acks) == 1, 0.2)
    system, timeline = plane.server
    plane.server = (system, timeline + 1)
    await until(lambda: len(plane.tracking_acks) == 2)
    assert bench.drained == 1


async def test_a_topic_that_was_let_go_of_passes_again(bench: Bench, plane: GatewayPlane) -> None:
    plane.put(tracked_topic())
    await bench.sync.start()
    plane.topics.rows.clear()
    await until(lambda: bench.tracking.is_empty)
    assert bench.kind() is RouteKind.CLASSIC


def test_a_topic_that_is_created_again_under_its_name_is_another_one() -> None:
    """Schedule 19."""
    tracking = TrackingView(lambda: True)
    old = tracked_topic(tracked_row(boundary=40, boundary_epoch=3))
    tracking.replace_all([old])
    tracking.replace_all([replace(old, status=TopicStatus.DELETED)])
    assert tracking.topic_by_name(TOPIC) is None
    assert tracking.partition(TOPIC_ID, 0).kind is RouteKind.DELETED
    tracking.replace_all([tracked_topic(topic_id=ANOTHER_ID)])
    assert tracking.partition(TOPIC_ID, 0).kind is RouteKind.DELETED
    assert tracking.partition(ANOTHER_ID, 0).kind is RouteKind.PENDING


def test_a_partition_without_a_row_and_a_topic_without_an_id_fail_closed() -> None:
    """Schedule 22."""
    tracking = TrackingView(lambda: True)
    tracking.replace_all([tracked_topic(), tracked_topic(name="creating", topic_id=None)])
    assert tracking.partition(TOPIC_ID, 7).kind is RouteKind.UNKNOWN
    creating = tracking.topic_by_name("creating")
    assert creating is not None
    assert tracking.partition(creating.topic_id, 0).kind is RouteKind.UNKNOWN


async def test_a_new_round_is_drained_and_acknowledged_anew(
    bench: Bench, plane: GatewayPlane
) -> None:
    """Schedule 27: between the rounds the topic was a classic one, and nothing gated it."""
    plane.put(tracked_topic())
    await bench.sync.start()
    await until(lambda: plane.tracking_acks)
    await bench.sync.until_drained(TOPIC_ID)
    drained = bench.drained
    held = asyncio.Event()

    async def drain() -> None:
        bench.drained += 1
        await held.wait()

    bench.drain = drain
    plane.put(replace(tracked_topic(), round=2))
    await bench.sync.reload()
    waiting = asyncio.create_task(bench.sync.until_drained(TOPIC_ID))
    await until(lambda: bench.drained == drained + 1)
    assert not waiting.done()
    assert len(plane.tracking_acks) == 1
    held.set()
    await within("the drain", waiting)
    await until(lambda: len(plane.tracking_acks) == 2)
