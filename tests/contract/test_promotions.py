"""After a promotion nothing is committed before it is known that nothing is missing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.contract.conftest import PASSWORDS, Database, PostgresServer, a_server
from tests.contract.scenes import GatewayProcess, PostgresScene, Scene, batch
from tests.support.waiting import eventually
from tests.unit.rebuild.buckets import Bucket, Stream, footer_batch
from tideline.control_plane import ControlPlane, connect, pool
from tideline.control_plane.errors import ControlPlaneUnavailable, TimelineUnsettled
from tideline.control_plane.migrate import apply, provision_roles
from tideline.control_plane.model import (
    CommittedBatch,
    FindBatchesRequest,
    ListOffsetsKind,
    StoredObject,
    StreamPlace,
)
from tideline.domain.history import WITNESS_S, HistoryWatch, WrongHistory
from tideline.domain.ids import TopicIdPartition
from tideline.errors import TidelineError
from tideline.settings import ObjectStoreSettings
from tideline.worker.promotion import PromotionCheck

SETTINGS = ObjectStoreSettings(s3_bucket="wal", s3_tiered_bucket="tiered")


async def renew(scene: Scene, process: GatewayProcess) -> None:
    await scene.plane.renew_lease(process.gateway_id, process.incarnation)


async def commit_at(
    scene: Scene, process: GatewayProcess, log: TopicIdPartition, sequence: int
) -> str:
    """One record, at this place of the process's stream; its key."""
    key = f"wal/{uuid4().hex}"
    await scene.plane.register_object_keys(process.gateway_id, process.incarnation, [key])
    await scene.plane.commit_file(
        process.gateway_id, process.incarnation, key, 1_000, [batch(log)], StreamPlace(sequence)
    )
    return key


async def is_held(scene: Scene, process: GatewayProcess, log: TopicIdPartition) -> None:
    with pytest.raises(TimelineUnsettled):
        await scene.commit(process, batch(log))


async def test_nothing_is_committed_before_every_gateway_that_was_active_has_renewed(
    scene: Scene,
) -> None:
    """Also one that has never committed anything may have, by what is lost."""
    one, other = await scene.gateway(), await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    await scene.commit(other, batch(log))
    scene.promote()
    assert not (await scene.plane.identity()).settled
    await renew(scene, other)
    await is_held(scene, other, log)
    assert [g.gateway_id for g in await scene.plane.unheard_gateways()] == [one.gateway_id]
    await renew(scene, one)
    (committed,) = await scene.commit(other, batch(log))
    assert committed.base_offset == 1
    assert (await scene.plane.identity()).settled
    assert not await scene.plane.unheard_gateways()


async def test_clients_are_shown_nothing_of_a_suffix_that_may_lack_its_end(scene: Scene) -> None:
    """A consumer past the end would hear that its offset is out of range."""
    process = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    await scene.commit(process, batch(log))
    scene.promote()
    asked: list[Callable[[], Awaitable[Any]]] = [
        lambda: scene.plane.find_batches([FindBatchesRequest(log, 5, 1_000)]),
        lambda: scene.plane.list_offsets(log, ListOffsetsKind.LATEST),
        lambda: scene.plane.high_watermarks([log]),
        lambda: scene.plane.confirm_partitions(process.gateway_id, process.incarnation, [log]),
    ]
    for ask in asked:
        with pytest.raises(TimelineUnsettled):
            await ask()
    await renew(scene, process)
    for ask in asked:
        assert await ask()


async def test_no_boundary_is_set_on_a_timeline_that_is_not_settled(scene: Scene) -> None:
    process = await scene.gateway()
    _, (log,) = await scene.migrating_topic([process])
    generation = await scene.quiesce(log, [process], 9)
    scene.promote()
    with pytest.raises(TimelineUnsettled):
        await scene.persist(log, 10, generation)
    with pytest.raises(TimelineUnsettled):
        await scene.plane.set_diskless_log_start_offset(log, 10, 3)
    await renew(scene, process)
    await scene.persist(log, 10, generation)


async def test_who_is_waited_for_is_neither_replaced_nor_fenced_nor_retired(scene: Scene) -> None:
    """What it may have committed is looked for under its incarnation."""
    process = await scene.gateway()
    beat = (await scene.plane.identity()).beat
    scene.promote()
    assert not await scene.fence(process)
    with pytest.raises(TimelineUnsettled):
        await scene.gateway(process.gateway_id)
    with pytest.raises(TimelineUnsettled):
        await scene.gateway()
    with pytest.raises(TimelineUnsettled):
        await scene.plane.retire_gateway(process.gateway_id, "ada")
    assert await scene.plane.beat_history() == beat
    await renew(scene, process)
    assert await scene.fence(process)
    assert await scene.plane.beat_history() == beat + 1


async def test_where_nobody_was_active_the_first_registration_goes_on(scene: Scene) -> None:
    process = await scene.gateway()
    await scene.plane.release_gateway(process.gateway_id, process.incarnation)
    scene.promote()
    later = await scene.gateway(process.gateway_id)
    _, (log,) = await scene.diskless_topic()
    assert await scene.commit(later, batch(log))


async def look_for(
    scene: Scene, gone: GatewayProcess, *stored: tuple[str, UUID, int]
) -> str | None:
    timeline = (await scene.plane.identity()).timeline
    found = [StoredObject(*one) for one in stored]
    return await scene.plane.settle_for_absent(timeline, [gone.incarnation], found)


async def test_an_object_that_is_registered_and_not_committed_halts_the_history(
    scene: Scene,
) -> None:
    gone, other = await scene.gateway(), await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    last = await commit_at(scene, gone, log, 3)
    await scene.plane.register_object_keys(gone.gateway_id, gone.incarnation, ["wal/lost"])
    scene.promote()
    await renew(scene, other)
    (unheard,) = await scene.plane.unheard_gateways()
    assert (unheard.incarnation, unheard.keys) == (gone.incarnation, ("wal/lost",))
    stored = [(last, gone.incarnation, 3), ("wal/lost", gone.incarnation, 4)]
    why = await look_for(scene, gone, *stored)
    assert "wal/lost" in str(why)
    assert (await scene.plane.identity()).halted == why
    await is_held(scene, other, log)
    await renew(scene, gone)
    await is_held(scene, other, log)
    await scene.plane.begin_history("ada", "compared with what producers were told")
    assert await scene.commit(other, batch(log))


async def test_an_object_of_a_process_that_nobody_here_knows_halts_the_history(
    scene: Scene,
) -> None:
    """It has registered on the primary that is gone, with its keys."""
    gone = await scene.gateway()
    scene.promote()
    assert "wal/new" in str(await look_for(scene, gone, ("wal/new", uuid4(), 0)))


async def test_what_was_never_told_is_no_loss(scene: Scene) -> None:
    """A later object of its stream is committed, its incarnation has ended, or its gateway has
    shown what it committed last."""
    over, gone, other = await scene.gateway(), await scene.gateway(), await scene.gateway()
    assert await scene.fence(over)
    _, (log,) = await scene.diskless_topic()
    await commit_at(scene, gone, log, 3)
    scene.promote()
    await renew(scene, other)
    stored = [
        ("wal/another-attempt", gone.incarnation, 3),
        ("wal/of-a-fenced-one", over.incarnation, 9),
        ("wal/under-way", other.incarnation, 9),
    ]
    assert await look_for(scene, gone, *stored) is None
    assert await scene.commit(other, batch(log))
    assert (await scene.plane.identity()).settled


@dataclass
class Fleet:
    """Two gateways of a primary with two standbys, each a pool with what it has seen."""

    primary: PostgresServer
    waited_for: PostgresServer
    left_behind: PostgresServer
    held: AsyncExitStack
    bucket: Bucket
    gateways: list[GatewayProcess]
    histories: list[HistoryWatch]
    log: TopicIdPartition

    async def plane(self, server: PostgresServer, number: int) -> ControlPlane:
        settings = Database(server.dsn).settings(postgres_connect_timeout_ms=1_000)
        connecting = connect(
            settings, application_name=f"gateway-{number}", history=self.histories[number]
        )
        return await self.held.enter_async_context(connecting)

    async def renews(self, plane: ControlPlane, number: int) -> bool:
        """Once it is answered, or refused for good."""
        process = self.gateways[number]

        async def answered() -> bool:
            with suppress(TidelineError):
                return bool(await plane.renew_lease(process.gateway_id, process.incarnation))
            return False

        return await eventually("the gateway to renew", answered)

    async def commit(self, plane: ControlPlane, number: int) -> CommittedBatch:
        process = self.gateways[number]
        history = (await plane.identity()).history_id
        stream = Stream(self.bucket, process.gateway_id, process.incarnation, history)
        key = stream.store(footer_batch(self.log.topic_id, 0, 5), key=f"wal/{uuid4().hex}")
        await plane.register_object_keys(process.gateway_id, process.incarnation, [key])
        (committed,) = await plane.commit_file(
            process.gateway_id, process.incarnation, key, 1_000, [batch(self.log, records=5)],
            StreamPlace(1),
        )  # fmt: skip
        return committed

    def promote(self, server: PostgresServer) -> None:
        self.primary.kill()
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            assert admin.execute("SELECT pg_promote()").fetchone() == (True,)

    def followers(self) -> list[tuple[object, ...]]:
        query = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
        with psycopg.connect(self.primary.dsn) as admin:
            return admin.execute(query.encode()).fetchall()


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """``ANY 1``, which takes whichever standby answers."""
    with ExitStack() as servers:
        primary, one, other = (
            servers.enter_context(a_server("tideline-contract-")) for _ in range(3)
        )
        primary.start(wal_keep_size="512MB")
        apply(primary.dsn)
        provision_roles(primary.dsn, PASSWORDS)
        for standby in (one, other):
            standby.follow(primary)
            standby.start()
        with psycopg.connect(primary.dsn, autocommit=True) as admin:
            # Behind the copies, which do not get it: nobody stands by when one is the primary.
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
            admin.execute("SELECT pg_reload_conf()")
        async with AsyncExitStack() as held:
            settings = Database(primary.dsn).settings()
            plane = await held.enter_async_context(connect(settings, application_name="scene"))
            scene = PostgresScene(plane, primary.dsn)
            gateways = [await scene.gateway(), await scene.gateway()]
            _, (log,) = await scene.diskless_topic()
            histories = [HistoryWatch(), HistoryWatch()]
            found = Fleet(primary, one, other, held, Bucket(), gateways, histories, log)
            scene.jobs.close()
            for history in histories:
                history.judge(None, await plane.identity())
            yield found


async def told_by_one_that_waited_for_one(fleet: Fleet) -> CommittedBatch:
    """The second standby is cut off, and gateway 0 commits."""
    await follow(fleet, 2)
    with psycopg.connect(fleet.left_behind.dsn, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET primary_conninfo = ''")
        admin.execute("SELECT pg_reload_conf()")
    await follow(fleet, 1)
    return await fleet.commit(await fleet.plane(fleet.primary, 0), 0)


async def follow(fleet: Fleet, standbys: int) -> None:
    async def they_do() -> bool:
        return fleet.followers() == [("quorum",)] * standbys

    await eventually(f"{standbys} standbys to follow", they_do)


async def test_preflight_names_candidates_of_which_not_all_are_waited_for(fleet: Fleet) -> None:
    await follow(fleet, 2)
    found = await (await fleet.plane(fleet.primary, 0)).check_synchronous_commit()
    assert len(found.not_waited_for) == 2
    assert not found.waits_for_standby


async def test_a_gateway_that_is_lost_with_the_primary_halts_what_lacks_its_commit(
    fleet: Fleet,
) -> None:
    """The standby was not waited for, and is behind by less than a beat: nobody who lives has seen
    what it lacks. What was told would be told again, for other records."""
    told = await told_by_one_that_waited_for_one(fleet)
    fleet.promote(fleet.left_behind)
    plane = await fleet.plane(fleet.left_behind, 1)
    await fleet.renews(plane, 1)
    with pytest.raises(TimelineUnsettled):
        await fleet.commit(plane, 1)
    with pytest.raises(WrongHistory, match=r"has not got the commit of 1 objects"):
        await looked_for(fleet, plane)
    assert (await plane.identity()).halted
    with pytest.raises(TidelineError):
        await fleet.commit(plane, 1)
    assert told.base_offset == 0


@pytest.mark.parametrize("away_s", [0.0, WITNESS_S + 1], ids=["at once", "later"])
async def test_a_gateway_that_lives_is_heard_before_another_one_commits(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, away_s: float
) -> None:
    """The key of its last commit is lost with the commit. Later it might have been collected: then
    the bucket tells."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(pool, "clock_s", lambda: clock.now)
    await told_by_one_that_waited_for_one(fleet)
    fleet.promote(fleet.left_behind)
    clock.now += away_s
    plane = await fleet.plane(fleet.left_behind, 1)
    await fleet.renews(plane, 1)
    with pytest.raises(TimelineUnsettled):
        await fleet.commit(plane, 1)
    alive, process = await fleet.plane(fleet.left_behind, 0), fleet.gateways[0]
    if away_s:
        with pytest.raises(ControlPlaneUnavailable):
            await alive.renew_lease(process.gateway_id, process.incarnation)
        with pytest.raises(WrongHistory):
            await looked_for(fleet, plane)
    else:
        await until_refused(lambda: alive.renew_lease(process.gateway_id, process.incarnation))
    assert (await plane.identity()).halted
    with pytest.raises(TidelineError):
        await fleet.commit(plane, 1)


async def until_refused(call: Callable[[], Awaitable[object]]) -> None:
    """Until that is known each call fails in another way."""

    async def refused() -> bool:
        with pytest.raises(TidelineError) as failed:
            await call()
        return isinstance(failed.value, WrongHistory)

    await eventually("the one that misses its commit to say so", refused)


async def looked_for(fleet: Fleet, plane: ControlPlane) -> None:
    """As the worker looks into the bucket for who stays away."""
    store: Any = fleet.bucket
    check = PromotionCheck(plane, store, SETTINGS)
    await check.look()
    assert not (await plane.identity()).halted, "it may only need seconds to connect"
    check = PromotionCheck(plane, store, SETTINGS, clock=iter(range(0, 9_000, 1_000)).__next__)
    await check.look()
    await check.look()


async def test_the_promotion_of_a_standby_that_was_waited_for_goes_on_by_itself(
    fleet: Fleet,
) -> None:
    told = await told_by_one_that_waited_for_one(fleet)
    fleet.promote(fleet.waited_for)
    planes = [await fleet.plane(fleet.waited_for, number) for number in (0, 1)]
    for number, plane in enumerate(planes):
        await fleet.renews(plane, number)
    again = await fleet.commit(planes[1], 1)
    assert again.base_offset == told.base_offset + 5
    assert (await planes[1].identity()).halted is None
