"""A commit to a quiet log wakes who waits for it at another gateway, long before its slow poll."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.scenes import GatewayProcess, Scene, batch
from tests.support.waiting import HANGS_S, within
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.domain.ids import TopicIdPartition
from tideline.gateway.fetch.from_suffix import HighWatermarks
from tideline.gateway.produce.news import CommitNews
from tideline.gateway.tracking.lease import Lease
from tideline.gateway.tracking.snapshot import SnapshotFile
from tideline.gateway.tracking.sync import TrackingSync
from tideline.gateway.tracking.view import TrackingView

READER = 2
SLOW_S = 30.0
SOON_S = 5.0
"""Of a starved machine; on one that is not it takes some ms."""


class Reading:
    """What of another gateway learns that a log has moved."""

    def __init__(self, scene: Scene, directory: Path, quiet_s: float) -> None:
        tracking = TrackingView(lambda: True)
        self.lease = Lease(
            scene.plane, gateway_id=READER, broker_id=READER, address="here:2", version="0",
            duration_ms=300_000,
        )  # fmt: skip
        self.sync = TrackingSync(
            scene.plane, tracking, self.lease, SnapshotFile(directory, READER), drain=self._drained
        )
        self.watermarks = HighWatermarks(scene.plane, tracking, poll_s=0.05, quiet_s=quiet_s)
        self.sync.heard.add(self.watermarks.hear)

    async def _drained(self) -> None: ...


@asynccontextmanager
async def reading(scene: Scene, directory: Path, quiet_s: float) -> AsyncIterator[HighWatermarks]:
    one = Reading(scene, directory, quiet_s)
    await one.sync.start()
    try:
        yield one.watermarks
    finally:
        await one.watermarks.close()
        await one.sync.close()


class Writing:
    """A gateway that commits, and tells of it."""

    def __init__(self, scene: Scene, process: GatewayProcess) -> None:
        self._scene, self._process = scene, process
        self._news = CommitNews(scene.plane)

    async def commit(self, log: TopicIdPartition) -> None:
        begun = asyncio.get_running_loop().time()
        await self._scene.commit(self._process, batch(log))
        self._news.committed([log], begun)


@pytest.fixture
def asked(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> list[dict[TopicIdPartition, int]]:
    """What was answered to each poll."""
    answers: list[dict[TopicIdPartition, int]] = []
    ask = scene.plane.high_watermarks

    async def recorded(*arguments: Any) -> dict[TopicIdPartition, int]:
        answers.append(await ask(*arguments))
        return answers[-1]

    monkeypatch.setattr(scene.plane, "high_watermarks", recorded)
    return answers


async def quiet(asked: list[dict[TopicIdPartition, int]]) -> None:
    """Until polls are slow."""
    before = -1
    while before != len(asked) or not asked:
        before = len(asked)
        await asyncio.sleep(0.5)


async def test_a_long_poll_elsewhere_is_woken_by_the_notification(
    scene: Scene, tmp_path: Path, asked: list[dict[TopicIdPartition, int]]
) -> None:
    writer = Writing(scene, await scene.gateway(1))
    _, (log,) = await scene.diskless_topic()
    async with reading(scene, tmp_path, SLOW_S) as watermarks:
        waiting = asyncio.create_task(watermarks.wait({log: 0}, HANGS_S))
        await quiet(asked)
        polls = len(asked)
        await writer.commit(log)
        assert await within("the news", waiting, SOON_S)
        assert [found for found in asked[polls:] if found] == [{log: 1}]
        # Sooner than that it is quiet again: who has seen the one before asks often for a while.
        waiting = asyncio.create_task(watermarks.wait({log: 1}, HANGS_S))
        await writer.commit(log)
        assert await within("what follows", waiting, SOON_S)


async def test_a_commit_whose_notification_is_lost_is_found_by_the_slow_poll(
    scene: Scene,
    tmp_path: Path,
    asked: list[dict[TopicIdPartition, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lost() -> None:
        raise ControlPlaneUnavailable("the connection broke")

    monkeypatch.setattr(scene.plane, "tell_of_commits", lost)
    writer = Writing(scene, await scene.gateway(1))
    _, (log,) = await scene.diskless_topic()
    async with reading(scene, tmp_path, 2.0) as watermarks:
        waiting = asyncio.create_task(watermarks.wait({log: 0}, HANGS_S))
        await quiet(asked)
        polls = len(asked)
        await writer.commit(log)
        assert await within("the slow poll", waiting, 2.0 + SOON_S)
        assert len(asked) - polls <= 2
