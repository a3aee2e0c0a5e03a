"""Where every migration stands, look by look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract.scenes import MemoryScene, batch
from tideline import temporal
from tideline.domain.messages import TopicMigrationStatus
from tideline.domain.migration import Phase, PhaseStatus
from tideline.errors import UnreachableError
from tideline.migration import overview
from tideline.migration.overview import Overview, Overviews
from tideline.settings import WorkerSettings
from tideline.temporal import RunningTopic


@pytest.fixture
def scene() -> MemoryScene:
    return MemoryScene()


@pytest.fixture
def overviews(scene: MemoryScene, monkeypatch: pytest.MonkeyPatch) -> Overviews:
    async def away(_: object) -> None:
        raise UnreachableError("Temporal is away")

    monkeypatch.setattr(temporal, "connect", away)
    settings: Any = WorkerSettings.model_construct(temporal_ui=None)
    return Overviews(settings, scene.plane)


async def test_each_look_shows_what_a_first_look_would(
    scene: MemoryScene, overviews: Overviews
) -> None:
    async def look() -> Overview:
        seen = await overviews.observe(None)
        anew = Overviews(overviews._settings, scene.plane)
        assert seen == await anew.observe(None)
        return seen

    gateway = await scene.gateway()
    assert (await look()).topics == []
    _, (log,) = await scene.migrating_topic([gateway])
    name, (born, _other) = await scene.diskless_topic(2)
    assert len((await look()).topics) == 2
    await scene.plane.record_phase(log, 0, Phase.VALIDATE, PhaseStatus.WAITING, {}, "a replica")
    (row,) = [one for one in (await look()).topics if one.topic != name]
    assert row.partitions[0].waiting_reason == "a replica"
    await scene.commit(gateway, batch(born))
    (row,) = [one for one in (await look()).topics if one.topic == name]
    assert [one.high_watermark for one in row.partitions] == [1, 0]
    await scene.plane.delete_topic(born.topic_id)
    assert name not in [one.topic for one in (await look()).topics]


async def test_a_topic_that_has_not_changed_is_not_looked_through_again(
    scene: MemoryScene, overviews: Overviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_through: list[str] = []
    whole = overview.topic_row

    def counted(statuses: Any, *about: Any) -> Any:
        looked_through.append(statuses[0].topic)
        return whole(statuses, *about)

    monkeypatch.setattr(overview, "topic_row", counted)
    gateway = await scene.gateway()
    for _ in range(3):
        await scene.migrating_topic([gateway])
    name, (log,) = await scene.migrating_topic([gateway])
    await overviews.observe(None)
    assert len(looked_through) == 4
    await overviews.observe(None)
    await scene.plane.record_phase(log, 0, Phase.VALIDATE, PhaseStatus.RUNNING, {})
    await overviews.observe(None)
    assert looked_through[4:] == [name]


async def test_of_a_named_topic_no_other_is_read(scene: MemoryScene, overviews: Overviews) -> None:
    await scene.diskless_topic()
    name, _ = await scene.diskless_topic()
    asked: list[str | None] = []
    read = scene.plane.migration_status

    async def counted(topic: str | None = None) -> Any:
        asked.append(topic)
        return await read(topic)

    scene.plane.migration_status = counted  # type: ignore[method-assign]
    assert [row.topic for row in (await overviews.observe(name)).topics] == [name]
    assert asked == [name]


class Workflows:
    """Temporal with workflows that run; each has a status, and is counted when it is asked."""

    def __init__(self) -> None:
        self.running: list[RunningTopic] = []
        self.asked: list[str] = []
        self.away = False

    async def list(self, _client: object, _topic: str | None = None) -> list[RunningTopic]:
        return self.running

    def get_workflow_handle(self, workflow_id: str) -> Any:
        async def query(*_: object, **__: object) -> TopicMigrationStatus:
            self.asked.append(workflow_id.split("/")[2])
            if self.away:
                raise UnreachableError("no answer")
            stage = f"look {len(self.asked)}"
            return TopicMigrationStatus(self.asked[-1], "", stage, "", "", False, "")

        return SimpleNamespace(query=query)


async def test_a_workflow_is_asked_again_when_there_is_news_of_it_or_after_a_while(
    scene: MemoryScene, overviews: Overviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflows, now = Workflows(), [0.0]

    async def connected(_: object) -> Workflows:
        return workflows

    monkeypatch.setattr(temporal, "connect", connected)
    monkeypatch.setattr(temporal, "running_topics", workflows.list)
    monkeypatch.setattr(overview, "time", SimpleNamespace(monotonic=lambda: now[0]))
    gateway = await scene.gateway()
    (busy, (log,)), (quiet, _) = [await scene.migrating_topic([gateway]) for _ in range(2)]

    def listed(name: str, reason: str) -> RunningTopic:
        return RunningTopic(f"tideline/topic/{name}/7", name, "crossing", reason)

    async def asked() -> list[str]:
        workflows.asked.clear()
        await overviews.observe(None)
        return sorted(workflows.asked)

    workflows.running = [listed(busy, ""), listed(quiet, "")]
    assert await asked() == sorted([busy, quiet])
    assert await asked() == []
    await scene.plane.record_phase(log, 0, Phase.VALIDATE, PhaseStatus.RUNNING, {})
    assert await asked() == [busy]
    workflows.running = [listed(busy, ""), listed(quiet, "a replica lags")]
    assert await asked() == [quiet]
    now[0] += overview.ANSWER_LASTS_S
    assert await asked() == sorted([busy, quiet])
    now[0] += overview.ANSWER_LASTS_S
    workflows.away = True
    # Without an answer there is nothing to keep.
    assert await asked() == await asked() == sorted([busy, quiet])
