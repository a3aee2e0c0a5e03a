"""A migration that nobody drives is told apart from one that waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry

from tests.placed_plane import PlacedPlane
from tideline.control_plane.model import (
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.messages import TopicOutcome, TopicRef
from tideline.domain.migration import MigrationState
from tideline.domain.waits import Waits
from tideline.temporal import (
    MigrationFailed,
    NoSuchMigration,
    RunningTopic,
    TemporalUnavailable,
)
from tideline.worker.attendance import Attendance, AttendanceGauges

TOPIC_ID = UUID(int=7)
REF = TopicRef("orders", TOPIC_ID.hex, 0)


@dataclass
class Scene:
    plane: PlacedPlane
    running: list[RunningTopic] = field(default_factory=list)
    ended: TopicOutcome | Exception | None = None
    asked: int = 0
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.attendance = Attendance(
            self.plane, self._list, self._outcome, AttendanceGauges(self.registry)
        )

    def track(self, status: TopicStatus, state: MigrationState, *, ready: bool = False) -> None:
        row = TrackedPartition(TOPIC_ID, 0, state, 1, False, boundary=5, ready=ready)
        self.plane.put(
            TrackedTopic(
                "orders", TOPIC_ID, TrackingKind.MIGRATED, status, "CreateTime", 1_000, {0: row}
            )
        )

    async def _list(self) -> list[RunningTopic]:
        return self.running

    async def _outcome(self, ref: TopicRef) -> TopicOutcome | None:
        assert ref == REF
        self.asked += 1
        if isinstance(self.ended, Exception):
            raise self.ended
        return self.ended

    async def value(self, name: str, **labels: str) -> float | None:
        await self.attendance.look()
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def scene() -> Scene:
    return Scene(PlacedPlane(lambda: 1_000))


@pytest.mark.parametrize("status", [TopicStatus.TRACKING, TopicStatus.ACTIVE, TopicStatus.ABORTED])
@pytest.mark.parametrize(
    "ended",
    [
        MigrationFailed("the migration has ended: Workflow execution terminated"),
        NoSuchMigration("Temporal knows no workflow"),
    ],
)
async def test_a_migration_that_is_not_over_and_whose_workflow_is_gone_is_unattended(
    scene: Scene, status: TopicStatus, ended: Exception
) -> None:
    scene.track(status, MigrationState.MIGRATING)
    scene.ended = ended
    assert await scene.value("inkless_migration_unattended", topic="orders") == 1
    scene.running = [RunningTopic(REF.workflow_id, "orders", "crossing", "")]
    assert await scene.value("inkless_migration_unattended", topic="orders") is None


async def test_a_topic_past_b0_that_is_not_frozen_yet_needs_its_workflow(scene: Scene) -> None:
    scene.track(TopicStatus.ACTIVE, MigrationState.HYBRID)
    scene.ended = MigrationFailed("terminated")
    assert await scene.value("inkless_migration_unattended", topic="orders") == 1


async def test_a_workflow_that_the_index_does_not_show_yet_is_asked_for_itself(
    scene: Scene,
) -> None:
    scene.track(TopicStatus.ACTIVE, MigrationState.MIGRATING)
    assert await scene.value("inkless_migration_unattended", topic="orders") is None
    assert scene.asked == 1


async def test_of_a_topic_that_is_hybrid_nobody_asks(scene: Scene) -> None:
    scene.track(TopicStatus.ACTIVE, MigrationState.HYBRID, ready=True)
    scene.ended = NoSuchMigration("its retention is over")
    assert await scene.value("inkless_migration_unattended", topic="orders") is None
    assert scene.asked == 0


async def test_a_topic_that_waits_is_shown_by_its_stage_and_a_paused_one_is_not(
    scene: Scene,
) -> None:
    waits = RunningTopic(REF.workflow_id, "orders", "rolling", "why", Waits.SEGMENTS)
    paused = RunningTopic("tideline/topic/paused/x", "paused", "crossing", "why", Waits.PAUSED)
    place = RunningTopic("tideline/topic/later/x", "later", "validating", "why", Waits.PLACE)
    scene.running = [waits, paused, place]
    name = "inkless_migration_topic_waiting"
    assert await scene.value(name, topic="orders", stage="rolling") == 1
    assert await scene.value(name, topic="paused", stage="crossing") is None
    assert await scene.value(name, topic="later", stage="validating") is None
    scene.running = []
    assert await scene.value(name, topic="orders", stage="rolling") is None


async def test_requests_are_counted_by_what_became_of_them(scene: Scene) -> None:
    await scene.plane.request_migration("orders", TOPIC_ID, "User:alice", {})
    assert await scene.value("inkless_migration_requests", state="received") == 1
    assert await scene.value("inkless_migration_requests", state="refused") == 0


async def test_what_could_not_be_looked_at_keeps_the_time_of_the_look_before(
    scene: Scene,
) -> None:
    name = "inkless_migration_last_look_timestamp_seconds"
    before = await scene.value(name)
    scene.track(TopicStatus.ACTIVE, MigrationState.MIGRATING)
    scene.ended = TemporalUnavailable("Temporal is away")
    with pytest.raises(TemporalUnavailable):
        await scene.attendance.look()
    assert scene.registry.get_sample_value(name) == before
