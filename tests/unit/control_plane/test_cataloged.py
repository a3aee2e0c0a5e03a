"""No fact counts in Postgres before it is in the bucket, and the bucket alone tells the same."""

from __future__ import annotations

import asyncio
import inspect
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.contract.scenes import CLUSTER, batch, seed
from tests.unit.control_plane.catalog_world import CatalogedScene
from tideline.control_plane import ControlPlane, catalog_keeper
from tideline.control_plane.calls import TOLD, facts_of
from tideline.control_plane.catalog_keeper import keep_catalog, tell_missing
from tideline.control_plane.catalog_writer import CatalogUnavailable
from tideline.control_plane.cataloged import CatalogedControlPlane
from tideline.control_plane.cataloged_jobs import CatalogedJobs
from tideline.control_plane.errors import (
    AbortRefused,
    BoundaryBelowAcknowledged,
    OffsetOutOfRange,
    ResetRefused,
)
from tideline.control_plane.jobs import JobsControlPlane
from tideline.control_plane.model import BoundaryToPersist, TrackingKind
from tideline.domain.catalog import (
    AcceptedGap,
    Boundary,
    MigrationAborted,
    Topic,
    TopicDeleted,
)
from tideline.domain.ids import TopicIdPartition
from tideline.errors import TidelineError
from tideline.settings import GatewaySettings, JobsSettings, ObjectStoreSettings, WorkerSettings

ROOT = Path(__file__).resolve().parents[3]
AWAY = repeat(True)


@pytest.fixture
def scene() -> CatalogedScene:
    return CatalogedScene()


@pytest.mark.parametrize("interface", [ControlPlane, JobsControlPlane])
def test_every_call_says_whether_the_catalog_tells_it(interface: type) -> None:
    methods = {name for name, _ in inspect.getmembers(interface, inspect.isfunction)}
    assert facts_of(interface).keys() == {name for name in methods if not name.startswith("_")}


@pytest.mark.parametrize(
    ("interface", "cataloged", "looked_at"),
    [
        (ControlPlane, CatalogedControlPlane, {"identity", "begin_history"}),
        (JobsControlPlane, CatalogedJobs, set()),
    ],
)
def test_every_call_that_creates_a_fact_has_its_record_made(
    interface: type, cataloged: type, looked_at: set[str]
) -> None:
    """``looked_at``: for the history that records belong to."""
    facts = facts_of(interface)
    made = {name for name in vars(cataloged) if name in facts}
    assert made == {name for name, fact in facts.items() if fact == TOLD} | looked_at


def test_a_call_that_says_nothing_of_facts_cannot_be_made() -> None:
    with pytest.raises(AttributeError, match="a_new_call is not known"):
        _ = CatalogedScene().cataloged.a_new_call


def test_no_process_opens_a_control_plane_without_its_catalog() -> None:
    """The gauges of the worker read with the jobs' calls, and a job that has ended notes it, which
    creates no fact; nothing else is made by hand."""
    made = {"PostgresControlPlane(": set[str](), "JobsControlPlane(": set[str]()}
    for path in chain.from_iterable(
        (ROOT / part).rglob("*.py") for part in ("tideline", "spark", "activities", "workflows")
    ):
        text = path.read_text().replace("class PostgresControlPlane(", "")
        text = text.replace("class JobsControlPlane(", "")
        for call, where in made.items():
            if call in text:
                where.add(str(path.relative_to(ROOT)))
    assert made["PostgresControlPlane("] == {"tideline/control_plane/connecting.py"}
    assert made["JobsControlPlane("] == {
        "tideline/worker/metrics.py",
        "tideline/airflow/work.py",
        "spark/common/attempts.py",
    }
    for settings in (GatewaySettings, WorkerSettings, JobsSettings):
        assert issubclass(settings, ObjectStoreSettings)


async def test_the_boundary_is_told_with_its_seeds_and_epoch(scene: CatalogedScene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10, [seed()])
    facts = await scene.facts(log)
    assert facts.boundary == Boundary(log.topic_id, 0, 1, 3, 10, (seed(),), 0, -1, -1)
    assert facts.undecided == ()
    await scene.persist(log, 10, 1, epoch=8, seeds=[seed()])
    facts = await scene.facts(log)
    assert facts.boundary is not None
    assert facts.boundary.leader_epoch == 3


async def test_no_boundary_is_set_while_the_bucket_is_away(scene: CatalogedScene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    generation = await scene.quiesce(log, [gateway], 9)
    scene.bucket.fails = AWAY
    with pytest.raises(CatalogUnavailable, match="boundary of topic id"):
        await scene.persist(log, 10, generation)
    assert await scene.memory.get_diskless_log_start_offset(log) == -1


async def test_a_boundary_whose_last_word_was_lost_is_undecided_until_it_is_said_again(
    scene: CatalogedScene,
) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    generation = await scene.quiesce(log, [gateway], 9)
    scene.bucket.fails = iter([False, True])
    with pytest.raises(CatalogUnavailable):
        await scene.persist(log, 10, generation, seeds=[seed()])
    assert await scene.memory.get_diskless_log_start_offset(log) == 10
    facts = await scene.facts(log)
    assert facts.boundary is None
    assert [record.kind for record in facts.undecided] == ["boundary"]
    await scene.persist(log, 10, generation, epoch=8, seeds=[seed()])
    facts = await scene.facts(log)
    assert facts.boundary is not None
    assert (facts.boundary.boundary, facts.undecided) == (10, ())
    assert facts.boundary.leader_epoch == 3, "Postgres has that of the first call"


async def test_a_record_that_a_store_has_cut_off_is_put_again(scene: CatalogedScene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway)
    whole = dict(scene.bucket.objects)
    for key, body in whole.items():
        if "/boundary/" in key:
            scene.bucket.objects[key] = body[:20]
    await scene.persist(log, 10, 1)
    assert scene.bucket.objects == whole


async def test_a_boundary_that_postgres_refuses_never_counts(scene: CatalogedScene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    generation = await scene.quiesce(log, [gateway], 20)
    with pytest.raises(BoundaryBelowAcknowledged):
        await scene.persist(log, 10, generation)
    assert (await scene.facts(log)).boundary is None
    await scene.persist(log, 21, generation)
    facts = await scene.facts(log)
    assert facts.boundary is not None
    assert facts.boundary.boundary == 21


async def test_a_reset_and_a_new_boundary_are_told_and_a_refused_reset_is_not(
    scene: CatalogedScene,
) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway)
    await scene.plane.reset_boundary(log, 1, 3)
    assert (await scene.facts(log)).boundary is None
    await scene.persist(log, 12, await scene.quiesce(log, [gateway], 11))
    await scene.commit(gateway, batch(log))
    with pytest.raises(ResetRefused):
        await scene.plane.reset_boundary(log, 2, 3)
    facts = await scene.facts(log)
    assert facts.boundary is not None
    assert facts.boundary.boundary == 12
    assert [record.kind for record in facts.undecided] == ["boundary-reset"]


async def test_an_abort_is_told_and_a_refused_one_does_not_count(scene: CatalogedScene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    await scene.plane.next_generation(log)
    await scene.plane.abort_migration(log.topic_id)
    assert scene.told(MigrationAborted) == [MigrationAborted(log.topic_id, ((0, 1),))]
    crossed = await scene.hybrid_log(gateway)
    with pytest.raises(AbortRefused):
        await scene.plane.abort_migration(crossed.topic_id)
    assert (await scene.facts(crossed)).boundary is not None


async def test_starts_are_told_as_they_become(scene: CatalogedScene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway)
    await scene.commit(gateway, batch(log, records=5), batch(log, records=5))
    with pytest.raises(OffsetOutOfRange):
        await scene.plane.delete_records(log, 99)
    assert await scene.plane.delete_records(log, 12) == 12
    assert await scene.plane.delete_records(log, 11) == 12
    await scene.plane.advance_prefix_start(log, 4)
    facts = await scene.facts(log)
    assert (facts.suffix_start, facts.announced_start, facts.prefix_start) == (12, 12, 4)
    scene.bucket.fails = iter([False, True])
    with pytest.raises(CatalogUnavailable):
        await scene.plane.delete_records(log, -1)
    facts = await scene.facts(log)
    assert (facts.suffix_start, facts.announced_start) == (12, 20)
    assert await scene.plane.delete_records(log, -1) == 20
    assert (await scene.facts(log)).suffix_start == 20


async def test_topics_born_diskless_and_added_partitions_are_told(scene: CatalogedScene) -> None:
    topic_id = uuid4()
    about: dict[str, Any] = {"timestamp_type": "LogAppendTime", "max_message_bytes": 900}
    kind = TrackingKind.BORN_DISKLESS
    await scene.plane.begin_tracking("new", None, kind, 2, **about)
    assert scene.bucket.objects == {}
    await scene.plane.complete_creation("new", topic_id, 2)
    await scene.plane.update_topic_limits(topic_id, max_message_bytes=800)
    await scene.plane.add_partitions("new", topic_id, 2, 3)
    found = (await scene.catalog()).topics[topic_id]
    assert (found.name, found.born_diskless, found.partitions) == ("new", True, 3)
    assert found.limits == {"timestamp_type": "LogAppendTime", "max_message_bytes": 800}
    about = (topic_id, "max.message.bytes")
    assert await scene.plane.follow_default_limit(*about, "800", "1000")
    assert not await scene.plane.follow_default_limit(*about, "800", "1200")
    found = (await scene.catalog()).topics[topic_id]
    assert found.limits == {"timestamp_type": "LogAppendTime", "max_message_bytes": 1_000}
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway)
    (migrated,) = [t for t in await scene.memory.tracked_topics() if t.topic_id == log.topic_id]
    await scene.plane.add_partitions(migrated.name, log.topic_id, 1, 2)
    facts = await scene.facts(TopicIdPartition(log.topic_id, 1))
    assert facts.boundary is not None
    assert facts.boundary.boundary == 0


async def test_a_deletion_is_told_first_and_for_good(scene: CatalogedScene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway)
    scene.bucket.fails = AWAY
    with pytest.raises(CatalogUnavailable):
        await scene.plane.delete_topic(log.topic_id)
    assert await scene.memory.tracked_partition(log.topic_id, 0) is not None
    scene.bucket.fails = iter(())
    await scene.plane.delete_topic(log.topic_id, "gateway", "a client deleted it")
    assert scene.told(TopicDeleted) == [
        TopicDeleted(log.topic_id, "gateway", "a client deleted it")
    ]
    assert log.topic_id in (await scene.catalog()).deleted


async def test_held_configs_are_told_as_postgres_has_them(scene: CatalogedScene) -> None:
    gateway = await scene.gateway()
    topic_id = (await scene.hybrid_log(gateway)).topic_id
    await scene.plane.override_config(topic_id, "retention.ms", "-1", "5")
    await scene.plane.override_config(topic_id, "retention.ms", "-1", "-1")
    held = (await scene.catalog()).topics[topic_id].held["retention.ms"]
    assert (held.override_value, held.user_value) == ("-1", "5")
    assert await scene.plane.update_user_config(topic_id, "retention.ms", "6")
    assert not await scene.plane.update_user_config(topic_id, "segment.ms", "6")
    assert (await scene.catalog()).topics[topic_id].held["retention.ms"].user_value == "6"
    assert not await scene.plane.release_config(topic_id, "retention.ms", "5")
    assert await scene.plane.release_config(topic_id, "retention.ms", "6")
    assert (await scene.catalog()).topics[topic_id].held == {}


async def test_an_accepted_gap_is_told(scene: CatalogedScene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway)
    await scene.plane.accept_gap(log, 1, 3, 8, 10, "ops", "the disk is gone", {})
    assert scene.told(AcceptedGap) == [AcceptedGap(log.topic_id, 0, 1, 3, 8, 10)]
    assert (await scene.facts(log)).accepted_gap_from == 8


async def test_what_was_there_before_the_catalog_is_told_by_its_keeper(
    scene: CatalogedScene,
) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10, [seed()])
    (migrating,) = (await scene.migrating_topic([gateway]))[1]
    await scene.plane.override_config(log.topic_id, "retention.ms", "-1", "5")
    await scene.commit(gateway, batch(log, records=5))
    await scene.plane.delete_records(log, 12)
    born = (await scene.diskless_topic(2))[1][1]
    gone = (await scene.diskless_topic())[1][0]
    await scene.plane.delete_topic(gone.topic_id)
    before = await scene.catalog()
    assert await tell_missing(scene.cataloged) > 0
    whole = await scene.catalog()
    assert whole.logs == before.logs
    scene.bucket.objects.clear()
    assert await tell_missing(scene.cataloged) > 0
    assert await tell_missing(scene.cataloged) == 0
    told = await scene.catalog()
    assert told.contradictions == []
    boundary = told.logs[log].boundary
    assert boundary is not None
    assert (boundary.boundary, boundary.seeds, told.logs[log].suffix_start) == (10, None, 12)
    assert told.logs[migrating].boundary is None
    assert told.logs[born] == whole.logs[born]
    assert told.topics[log.topic_id].held.keys() == {"retention.ms"}
    assert told.deleted.keys() == {gone.topic_id}


async def test_a_new_history_has_a_catalog_of_its_own(scene: CatalogedScene) -> None:
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway)
    await scene.plane.begin_history("ops", "restored, and compared")
    assert (await scene.catalog()).logs == {}
    await tell_missing(scene.cataloged)
    assert (await scene.facts(log)).boundary is not None


async def test_the_write_pause_waits_for_one_put_before_b0(scene: CatalogedScene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    generation = await scene.quiesce(log, [gateway], 9)
    seen: list[int] = []
    ask = scene.memory.initialize_diskless_migration

    async def asked(boundary: BoundaryToPersist) -> None:
        seen.append(scene.bucket.puts)
        await ask(boundary)

    scene.memory.initialize_diskless_migration = asked  # type: ignore[method-assign]
    before = scene.bucket.puts
    await scene.persist(log, 10, generation)
    assert seen == [before + 1]


async def test_a_topic_that_postgres_refuses_to_track_has_not_counted(
    scene: CatalogedScene,
) -> None:
    with pytest.raises(TidelineError):
        await scene.plane.begin_migration("t", uuid4(), 1, "CreateTime", 900, CLUSTER)
    assert scene.told(Topic) == []
    assert len(scene.told(Topic, counted=False)) == 1


async def test_the_keeper_goes_on_when_the_bucket_was_away(
    scene: CatalogedScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await scene.hybrid_log(await scene.gateway())
    scene.bucket.objects.clear()
    scene.bucket.fails = iter([True])
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await keep_catalog(scene.plane)
    assert pauses == [catalog_keeper.AGAIN_S, catalog_keeper.EVERY_S]
    assert (await scene.facts(log)).boundary is not None
