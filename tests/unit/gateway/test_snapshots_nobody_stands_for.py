"""A snapshot is served from only while an incarnation that its directory names stands for it at the
tracking barrier: else a topic migrates that nobody here has heard of (schedule 18)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.waiting import lasts_async, within
from tests.unit.gateway.fakes import TOPIC, GatewayPlane, tracked_row, tracked_topic, until
from tests.unit.gateway.test_tracking_sync import Bench
from tideline.gateway.tracking import sync as tracking_sync
from tideline.gateway.tracking.lease import NotNoted
from tideline.gateway.tracking.state_directory import StateDirectory


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking_sync, "START_PATIENCE_S", 0.05)
    monkeypatch.setattr(tracking_sync, "RETRY_S", 0.01)


class Place(Bench):
    """A process of gateway 1, over the state directory of one place."""

    def __init__(self, plane: GatewayPlane, directory: Path) -> None:
        super().__init__(plane, directory)
        self.directory = self.lease._directory = StateDirectory.hold(directory, 1)

    async def die(self) -> None:
        await self.sync.close()
        self.directory.release()

    async def stop(self) -> None:
        """In the order of a gateway that is told to."""
        await self.lease.release()
        await self.die()


async def served(place: Place) -> Place:
    await place.sync.start()
    await place.sync._write_if_changed()
    return place


async def migrate(plane: GatewayPlane, by: Place) -> None:
    """A topic that only ``by`` has heard of crosses B0."""
    plane.put(tracked_topic(tracked_row()))
    await until(lambda: by.acknowledged)
    barrier = await plane.tracking_barrier(TOPIC)
    assert all(entry.acknowledged for entry in barrier), barrier
    plane.put_row(tracked_row(boundary=40, boundary_epoch=3))


async def serves_nothing(plane: GatewayPlane, directory: Path) -> None:
    """Of a start that is cut off from Postgres."""
    plane.down = True
    again = Place(plane, directory)
    starting = asyncio.create_task(again.sync.start())
    await lasts_async("it waits for Postgres", lambda: not starting.done(), 0.3)
    starting.cancel()
    await again.die()


async def test_who_was_refused_and_accounted_for_its_dead_serves_nothing_alone_later(
    tmp_path: Path,
) -> None:
    plane = GatewayPlane()
    here = await served(Place(plane, tmp_path / "here"))
    await here.die()
    plane.fence(here.lease.incarnation)
    there = await served(Place(plane, tmp_path / "there"))
    assert await plane.unaccounted_incarnations() != []
    refused = Place(plane, tmp_path / "here")
    starting = asyncio.create_task(refused.sync.start())
    await until(lambda: refused.sync._refused and not plane.gateways.unaccounted())
    starting.cancel()
    await refused.die()
    await migrate(plane, by=there)
    await serves_nothing(plane, tmp_path / "here")
    await there.die()


async def test_who_waited_for_its_own_dead_alone_keeps_its_snapshot(tmp_path: Path) -> None:
    """Its dead still stand for it: nobody else has the id."""
    plane = GatewayPlane()
    here = await served(Place(plane, tmp_path))
    await here.die()
    refused = Place(plane, tmp_path)
    starting = asyncio.create_task(refused.sync.start())
    await until(lambda: refused.lease.waits_for_its_dead)
    starting.cancel()
    await refused.die()
    plane.down = True
    again = Place(plane, tmp_path)
    await within("the start", again.sync.start())
    await again.die()


async def test_who_cannot_remove_its_snapshot_accounts_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = GatewayPlane()
    here = await served(Place(plane, tmp_path / "here"))
    await here.die()
    plane.fence(here.lease.incarnation)
    there = await served(Place(plane, tmp_path / "there"))
    refused = Place(plane, tmp_path / "here")

    def is_full() -> None:
        raise OSError("read-only")

    monkeypatch.setattr(refused.sync._snapshot, "remove", is_full)
    for _ in range(2):
        with pytest.raises(NotNoted, match="could not be removed"):
            await refused.lease.renew()
    assert [g.incarnation for g in plane.gateways.unaccounted()] == [here.lease.incarnation]
    await refused.die()
    await there.die()


async def test_who_was_stopped_asks_before_it_serves_again(tmp_path: Path) -> None:
    """The id went on at another place, and what migrated there was passed through here."""
    plane = GatewayPlane()
    here = await served(Place(plane, tmp_path / "here"))
    await here.stop()
    there = await served(Place(plane, tmp_path / "there"))
    await migrate(plane, by=there)
    await serves_nothing(plane, tmp_path / "here")
    await there.die()


async def test_a_topic_that_is_heard_of_while_the_process_stops_does_not_bring_its_snapshot_back(
    tmp_path: Path,
) -> None:
    plane = GatewayPlane()
    here = await served(Place(plane, tmp_path / "here"))
    await here.lease.release()
    plane.put(tracked_topic(tracked_row()))
    await here.sync.reload()
    await here.sync._write_if_changed()
    await here.die()
    await serves_nothing(plane, tmp_path / "here")


async def test_who_is_stopped_while_postgres_is_away_goes_on_by_its_snapshot(
    tmp_path: Path,
) -> None:
    """Nobody was told that it is gone: barriers wait for it."""
    plane = GatewayPlane()
    here = await served(Place(plane, tmp_path))
    plane.down = True
    await here.stop()
    again = Place(plane, tmp_path)
    await within("the start", again.sync.start())
    plane.down = False
    assert await plane.unaccounted_incarnations() == []
    assert [g.incarnation for g in plane.gateways.registered.values()] == [here.lease.incarnation]
    await again.die()
