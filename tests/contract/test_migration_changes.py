"""What has changed of migrations: the same as reading everything, for a fraction of it."""

from __future__ import annotations

import random
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.contract.conftest import Database
from tests.contract.scenes import GatewayProcess, PostgresScene, Scene, batch
from tideline.control_plane.model import (
    MigrationChanges,
    PartitionMigrationStatus,
    ReadinessLook,
    RequestState,
    TopicState,
    TrackingKind,
    summarize,
)
from tideline.control_plane.told_model import Told, told_by_topic
from tideline.domain.migration import MigrationState, Phase, PhaseStatus
from tideline.domain.watched import Finding, FindingKind
from tideline.migration.overview import KeptStatuses, by_topic
from tideline.worker.metrics import MigrationGauges


def bare(status: PartitionMigrationStatus) -> PartitionMigrationStatus:
    return replace(status, phases=tuple(replace(phase, evidence={}) for phase in status.phases))


class Looker:
    """Looks as the worker's gauges and as ``tideline status --watch`` do."""

    def __init__(self, scene: Scene) -> None:
        self._plane = scene.plane
        self._registry = CollectorRegistry()
        self._gauges = MigrationGauges(self._registry)
        self._kept = KeptStatuses(scene.plane)
        self.since: str | None = None

    async def look(self) -> MigrationChanges:
        """At both, which must show what a whole reading would."""
        changes = await self._plane.migration_changes(self.since)
        self._gauges.update(changes)
        self.since = changes.upto
        await self._kept.look()
        statuses = await self._plane.migration_status()
        at_once = CollectorRegistry()
        everything = MigrationChanges("", True, topics=tuple(summarize(statuses)))
        MigrationGauges(at_once).update(everything)
        assert series(self._registry) == series(at_once)
        assert self._kept.topics == by_topic(map(bare, statuses))
        assert whenever_seen(self._kept.told) == whenever_seen(await self._told())
        await self._states(statuses)
        return changes

    async def _told(self) -> dict[str, Told]:
        return told_by_topic(
            await self._plane.list_requests(),
            await self._plane.list_operator_actions(),
            await self._plane.verify_verdicts(),
            await self._plane.findings(),
        )

    async def _states(self, statuses: list[PartitionMigrationStatus]) -> None:
        states = [TopicState(s.topic, s.state, s.partitions) for s in summarize(statuses)]
        assert await self._plane.topic_states() == states
        for state in MigrationState:
            found = await self._plane.topic_states(state)
            assert found == [one for one in states if one.state is state]

    async def names(self) -> set[str]:
        """What is told, of what is not told twice."""
        await self.look()
        return set((await self.look()).names)


def whenever_seen(told: dict[str, Told]) -> dict[str, Told]:
    """Of findings it is no change that they were seen once more."""
    ever = datetime.fromtimestamp(0, UTC)
    return {
        name: replace(of, findings=tuple(replace(f, last_seen_at=ever) for f in of.findings))
        for name, of in told.items()
    }


def series(registry: CollectorRegistry) -> set[str]:
    return set(generate_latest(registry).decode().splitlines())


class Fleet:
    """Topics that anything may happen to."""

    def __init__(self, scene: Scene, gateway: GatewayProcess, chance: random.Random) -> None:
        self.scene, self.plane, self.gateway, self.chance = scene, scene.plane, gateway, chance
        self.names: list[str] = []
        """That have been given, to topics that may be gone."""

    async def step(self) -> None:
        statuses = await self.plane.migration_status()
        happens = self.chance.choice(
            [self._begin, self._bear, self._record, self._record, self._record, self._record,
             self._cross, self._commit, self._commit, self._abort, self._delete, self._grow,
             self._move, self._ready, self._forget, self._ask, self._settle, self._decide,
             self._find]
        )  # fmt: skip
        await happens(statuses)

    def _one(
        self, statuses: list[PartitionMigrationStatus], *states: MigrationState
    ) -> PartitionMigrationStatus | None:
        wanted = [one for one in statuses if one.state in states]
        return self.chance.choice(wanted) if wanted else None

    async def _begin(self, _: object) -> None:
        name, _logs = await self.scene.migrating_topic([self.gateway], self.chance.randint(1, 3))
        self.names.append(name)

    async def _bear(self, statuses: list[PartitionMigrationStatus]) -> None:
        free = sorted(set(self.names) - {one.topic for one in statuses})
        again = self.chance.choice([*free, None])
        name, _ = await self.scene.diskless_topic(self.chance.randint(1, 3), again)
        self.names.append(name)

    async def _record(self, statuses: list[PartitionMigrationStatus]) -> None:
        if one := self._one(statuses, MigrationState.MIGRATING, MigrationState.HYBRID):
            phase, status = self.chance.choice(list(Phase)), self.chance.choice(list(PhaseStatus))
            waits = status is PhaseStatus.WAITING
            reason = self.chance.choice(["a replica lags", "a transaction"]) if waits else None
            evidence = {"looked": self.chance.randint(0, 9)}
            await self.plane.record_phase(one.log, one.generation, phase, status, evidence, reason)

    async def _cross(self, _: object) -> None:
        await self.scene.hybrid_log(self.gateway, self.chance.choice([0, 10]))

    async def _commit(self, statuses: list[PartitionMigrationStatus]) -> None:
        if one := self._one(statuses, MigrationState.HYBRID, MigrationState.DISKLESS_ONLY):
            await self.scene.commit(self.gateway, batch(one.log))

    async def _abort(self, statuses: list[PartitionMigrationStatus]) -> None:
        one = self._one(statuses, MigrationState.MIGRATING)
        if one and all(s.boundary < 0 for s in statuses if s.topic == one.topic):
            await self.plane.abort_migration(one.log.topic_id)
            await self.plane.stop_tracking(one.topic)
            if self.chance.random() < 0.5:
                partitions = sum(s.topic == one.topic for s in statuses)
                about = (one.topic, one.log.topic_id, TrackingKind.MIGRATED, partitions)
                await self.plane.begin_tracking(*about, "CreateTime", 1_048_588)

    async def _delete(self, statuses: list[PartitionMigrationStatus]) -> None:
        if one := self._one(statuses, *MigrationState):
            await self.plane.delete_topic(one.log.topic_id)

    async def _grow(self, statuses: list[PartitionMigrationStatus]) -> None:
        if one := self._one(statuses, MigrationState.DISKLESS_ONLY):
            partitions = sum(s.topic == one.topic for s in statuses)
            await self.plane.add_partitions(one.topic, one.log.topic_id, partitions, partitions + 1)

    async def _move(self, statuses: list[PartitionMigrationStatus]) -> None:
        if one := self._one(statuses, MigrationState.MIGRATING):
            await self.plane.next_generation(one.log)

    async def _ready(self, statuses: list[PartitionMigrationStatus]) -> None:
        if one := self._one(statuses, MigrationState.HYBRID):
            complete = self.chance.random() < 0.5
            look = ReadinessLook(one.log.partition, one.generation, complete, "segments")
            await self.plane.record_readiness(one.log.topic_id, [look])

    async def _ask(self, statuses: list[PartitionMigrationStatus]) -> None:
        one = self._one(statuses, *MigrationState)
        topic, topic_id = (one.topic, one.log.topic_id) if one else ("not-tracked", uuid4())
        await self.plane.request_migration(topic, topic_id, "ann", {})

    async def _settle(self, _: object) -> None:
        if known := await self.plane.list_requests():
            one, state = self.chance.choice(known), self.chance.choice(list(RequestState))
            await self.plane.settle_request(one.topic_id, one.requested_at, state, "so it is")

    async def _decide(self, statuses: list[PartitionMigrationStatus]) -> None:
        if one := self._one(statuses, *MigrationState):
            await self.plane.record_configuration(
                one.topic, one.log.topic_id, "ada", "it takes too long", {"waits": [1, 2]}
            )

    async def _find(self, statuses: list[PartitionMigrationStatus]) -> None:
        if one := self._one(statuses, MigrationState.HYBRID, MigrationState.DISKLESS_ONLY):
            kinds = self.chance.sample(list(FindingKind), self.chance.randint(0, 2))
            offsets = {"offsets": self.chance.randint(1, 2)}
            found = [Finding(kind, "0", offsets) for kind in kinds]
            await self.plane.record_findings(one.log.topic_id, found)

    async def _forget(self, _: object) -> None:
        if self.chance.random() < 0.2:
            self.scene.jobs.forget_tracking_changes(0)


@pytest.mark.parametrize("number", range(4))
async def test_whatever_happens_changes_show_what_a_whole_reading_shows(
    scene: Scene, number: int
) -> None:
    chance = random.Random(number)
    fleet, looker = Fleet(scene, await scene.gateway(), chance), Looker(scene)
    for _ in range(150):
        await fleet.step()
        if chance.random() < 0.6:
            await looker.look()
    await looker.look()


async def test_only_what_has_changed_is_told(scene: Scene) -> None:
    gateway = await scene.gateway()
    names = [(await scene.migrating_topic([gateway]))[0] for _ in range(3)]
    name, (log,) = await scene.migrating_topic([gateway])
    looker = Looker(scene)
    assert {topic.topic for topic in (await looker.look()).topics} == {*names, name}
    await looker.look()
    await scene.plane.record_phase(log, 0, Phase.VALIDATE, PhaseStatus.RUNNING, {})
    changes = await looker.look()
    assert (changes.whole, changes.names) == (False, {name})
    assert [topic.topic for topic in changes.topics] == [name]


async def test_a_topic_that_is_deleted_takes_its_series_along(scene: Scene) -> None:
    name, (log,) = await scene.diskless_topic()
    looker = Looker(scene)
    await looker.look()
    await scene.plane.delete_topic(log.topic_id)
    changes = await looker.look()
    assert name in changes.names
    assert changes.topics == ()


async def test_looking_again_at_what_waits_is_no_change(scene: Scene) -> None:
    """Only the evidence is another one: nothing that a status or a gauge shows."""
    _, (log,) = await scene.migrating_topic([await scene.gateway()])
    waits = (log, 0, Phase.VALIDATE, PhaseStatus.WAITING)
    await scene.plane.record_phase(*waits, {"looked": 1}, "a replica lags")
    looker = Looker(scene)
    await looker.names()
    await scene.plane.record_phase(*waits, {"looked": 2}, "a replica lags")
    assert (await looker.look()).names == set()
    await scene.plane.record_phase(*waits, {"looked": 2}, "two replicas lag")
    assert (await looker.look()).names != set()


async def test_a_commit_moves_the_high_watermark_and_nothing_else(scene: Scene) -> None:
    gateway = await scene.gateway()
    name, (log, _) = await scene.diskless_topic(2)
    looker = Looker(scene)
    await looker.names()
    since = (await scene.plane.migration_status_changes(None)).upto
    await scene.commit(gateway, batch(log))
    changes = await scene.plane.migration_status_changes(since)
    assert (changes.names, changes.partitions) == (set(), ())
    moved = [(one.topic, one.partition, one.high_watermark) for one in changes.moved]
    assert moved == [(name, 0, 1)]
    assert (await looker.look()).names == set()


async def test_a_place_of_another_history_is_answered_with_everything(scene: Scene) -> None:
    name, _ = await scene.diskless_topic()
    here = (await scene.plane.migration_changes(None)).upto
    past_it = here.partition(":")[0] + f":{2**40}"
    other = here.replace(str((await scene.plane.identity()).history_id), str(UUID(int=77)))
    for since in (past_it, other, "no place at all"):
        for changes in (
            await scene.plane.migration_changes(since),
            await scene.plane.migration_status_changes(since),
        ):
            assert changes.whole
        assert [one.topic for one in changes.partitions] == [name]
    await scene.plane.begin_history("a test", "commits are missing")
    assert (await scene.plane.migration_changes(here)).whole


async def test_changes_that_were_forgotten_are_answered_with_everything(scene: Scene) -> None:
    looker = Looker(scene)
    await looker.look()
    before = looker.since
    name, _ = await scene.diskless_topic()
    await looker.look()
    scene.jobs.forget_tracking_changes(0)
    changes = await scene.plane.migration_changes(before)
    assert changes.whole
    assert [topic.topic for topic in changes.topics] == [name]
    await looker.look()
    assert not (await looker.look()).whole


async def test_gateways_are_not_told_of_phases(scene: Scene) -> None:
    """No route depends on one."""
    name, (log,) = await scene.migrating_topic([await scene.gateway()])
    looker = Looker(scene)
    await looker.names()
    since = await scene.plane.tracked_changes_begin()
    await scene.plane.record_phase(log, 0, Phase.VALIDATE, PhaseStatus.RUNNING, {})
    assert (await scene.plane.tracked_changes(since)).names == set()
    assert (await looker.look()).names == {name}


async def test_what_commits_late_and_out_of_order_is_told_by_the_next_look(
    postgres_scene: PostgresScene, database: Database
) -> None:
    gateway = await postgres_scene.gateway()
    logs = [await postgres_scene.migrating_topic([gateway]) for _ in range(6)]
    chance, looker = random.Random(5), Looker(postgres_scene)
    await looker.look()
    with ExitStack() as stack:
        writing = []
        for name, (log,) in logs[:5]:
            slow = stack.enter_context(psycopg.connect(database.dsn))
            about = [log.topic_id, "validate", "waiting", "{}", "a replica lags"]
            slow.execute("SELECT tideline.record_phase(%s, 0, 0, %s, %s, %s, %s)", about)
            writing.append((name, slow))
            await looker.look()
        # A later transaction that is done before: its number is past those of the slow ones.
        _, (other,) = logs[5]
        await postgres_scene.plane.record_phase(other, 0, Phase.VALIDATE, PhaseStatus.DONE, {})
        await looker.look()
        chance.shuffle(writing)
        for name, slow in writing:
            assert name not in (await looker.look()).names
            slow.commit()
            assert name in (await looker.look()).names
    assert await looker.names() == set()


async def test_a_transaction_notes_a_topic_once_however_many_partitions_it_moves(
    postgres_scene: PostgresScene,
) -> None:
    gateway = await postgres_scene.gateway()
    name, logs = await postgres_scene.migrating_topic([gateway], 20)
    for log in logs:
        generation = await postgres_scene.quiesce(log, [gateway], 9)
        await postgres_scene.persist(log, 10, generation)
    noted = "SELECT count(*) FROM tracking_changes WHERE name = %s AND NOT routed"
    before = postgres_scene.sql(noted, name)[0][0]
    looks = [ReadinessLook(n, 1, False, "a replica has not rolled") for n in range(20)]
    assert len(await postgres_scene.plane.record_readiness(logs[0].topic_id, looks)) == 20
    assert postgres_scene.sql(noted, name)[0][0] == int(str(before)) + 1


async def test_a_finding_that_is_only_seen_again_is_no_change(scene: Scene) -> None:
    name, (log,) = await scene.diskless_topic()
    tail = Finding(FindingKind.TAIL, "0", {"offsets": 2})
    looker = Looker(scene)
    await looker.look()
    await scene.plane.record_findings(log.topic_id, [tail])
    assert (await looker.look()).names == {name}
    await looker.look()
    await scene.plane.record_findings(log.topic_id, [tail])
    assert (await looker.look()).names == set()
    await scene.plane.record_findings(log.topic_id, [])
    assert (await looker.look()).names == {name}


async def test_of_what_is_told_only_that_of_topics_that_have_changed_is_read(scene: Scene) -> None:
    for name in ("orders", "payments"):
        await scene.plane.request_migration(name, uuid4(), "ann", {})
    kept, asked = KeptStatuses(scene.plane), []
    await kept.look()
    await kept.look()
    read = scene.plane.told

    async def noted(topics: Collection[str] | None = None) -> dict[str, Told]:
        asked.append(topics)
        return await read(topics)

    scene.plane.told = noted  # type: ignore[method-assign]
    try:
        await kept.look()
        request = kept.told["orders"].request
        assert request is not None
        settled = (request.topic_id, request.requested_at, RequestState.REFUSED, "compacted")
        assert await scene.plane.settle_request(*settled)
        assert "orders" in await kept.look()
    finally:
        del scene.plane.told
    assert asked == [{"orders"}]
    assert [of.request and of.request.state for of in kept.told.values()] == ["received", "refused"]


async def test_topics_of_a_state_are_found_by_the_index_on_it(
    postgres_scene: PostgresScene, database: Database
) -> None:
    await postgres_scene.tracking_topic(partitions=2_000)
    postgres_scene.sql("ANALYZE logs")
    scans = "SELECT pg_stat_get_xact_numscans('tideline.logs_by_state'::regclass)"
    with psycopg.connect(database.dsn) as connection:
        connection.execute("SELECT * FROM tideline.topic_states('HYBRID')")
        assert connection.execute(scans).fetchone() == (1,)
