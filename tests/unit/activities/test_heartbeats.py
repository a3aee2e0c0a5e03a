"""An activity that is busy with one long step is not taken for one whose worker has died."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities import attempt
from activities.registration import bound_activities
from tests.support.waiting import within
from tests.unit.activities.world import TOPIC, World
from tideline.domain.messages import TopicActivity, TopicStep
from tideline.domain.options import MigrationOptions


async def test_an_activity_heartbeats_while_one_step_takes_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reading of remote metadata takes minutes on a large cluster."""
    monkeypatch.setattr(attempt, "HEARTBEAT_EVERY_S", 0.001)
    world.kafka.local_starts = dict.fromkeys((1, 2, 3), 0)
    reading, beats, enough = asyncio.Event(), list[Any](), asyncio.Event()
    segments = world.store.segments

    async def long(*args: Any) -> Any:
        reading.set()
        await enough.wait()
        return await segments(*args)

    def beat(*detail: Any) -> None:
        if reading.is_set():
            beats.append(detail)
            if len(beats) == 3:
                enough.set()

    world.store.segments = long  # type: ignore[method-assign]
    environment = ActivityEnvironment()
    environment.on_heartbeat = beat
    [prove] = [
        bound
        for bound in bound_activities(world.services)
        if bound.__temporal_activity_definition.name  # type: ignore[attr-defined]
        == TopicActivity.PROVE_COVERAGE_FOR_ROLL
    ]
    step = TopicStep(TOPIC, MigrationOptions())
    await within("the end of the activity", environment.run(prove, step))
    assert len(beats) >= 3
