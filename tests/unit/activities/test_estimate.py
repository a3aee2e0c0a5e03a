"""The requests that an estimate counts are those that the activities make; and what it goes by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from activities.drain_transactions import drain_transactions
from activities.quiesce import quiesce
from activities.roll_and_flush import roll_and_flush
from activities.seed_and_persist import seed_and_persist
from activities.validate import validate_partition
from activities.zombie_cleanup import zombie_cleanup
from tests.unit.activities.world import REF, TOPIC, TOPIC_ID, FakeKafka, World, gateway
from tests.whole_migration import migrate
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.model import BarrierEntry
from tideline.domain.estimate import (
    KAFKA_OF_PARTITION,
    KAFKA_OF_PREFLIGHT,
    KAFKA_OF_TIERED_PARTITION,
    LISTINGS_OF_PARTITION,
    Basis,
    BrokerIntervals,
    MigrationEstimate,
    Span,
    TopicScale,
    kafka_requests,
)
from tideline.domain.messages import PhaseInput
from tideline.domain.migration import Phase
from tideline.domain.options import MigrationOptions
from tideline.domain.preflight import PreflightReport
from tideline.domain.topic_configs import LOCAL_RETENTION_BYTES, ConfigChange
from tideline.kafka.errors import KafkaUnavailable
from tideline.kafka.observer import TopicLayout
from tideline.migration.estimate import COPY, RETENTION_CHECK, estimate_migration
from tideline.migration.preflight import _claimed_not_there, _transactional_ids

T = TypeVar("T")
BROKERS = REPLICAS = 3
SCALE = TopicScale(1, REPLICAS, BROKERS, gateways=1, segments=1)
COSTS: dict[str, int] = {
    "topic": 1, "partition": 1, "offset": 1, "offsets": 1, "on_replicas": REPLICAS,
    "log_end": REPLICAS + 2, "lineage": 1, "producers": 1, "open_transactions": BROKERS,
    "reassigning": 1, "fetch": 1, "configs": 1, "configs_by_broker": BROKERS, "configs_of": BROKERS,
    "cluster_id": 1, "alter_configs": 1, "transactional_ids": 0, "partition_count": 2 + 2 * BROKERS,
}  # fmt: skip
"""Requests of one call, as the adapters in tideline/kafka make them."""


class Counted:
    """Passes calls on and counts the requests behind them."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._kafka, name)
        if not callable(found):
            return found

        def call(*args: Any, **more: Any) -> Any:
            self.asked[name] += COSTS[name]
            return found(*args, **more)

        return call

    @property
    def requests(self) -> int:
        return self.asked.total()


@pytest.fixture
def counted(world: World) -> Counted:
    found = Counted(world.kafka)
    services = world.services
    services.observer = services.topics = services.admin = cast(Any, found)
    services.reader = services.cluster = cast(Any, found)
    world.plane.at_barrier(BarrierEntry(gateway(1), True, highest_acknowledged_offset=41))
    world.kafka.local_starts = dict.fromkeys(world.kafka.ends, 0)
    world.store.once = {5: 99}
    return found


async def test_each_phase_asks_brokers_as_often_as_the_estimate_says(
    world: World, counted: Counted
) -> None:
    asked: dict[str, int] = {}

    async def count(step: str, call: Awaitable[T]) -> T:
        before = counted.requests
        answer = await call
        asked[step] = counted.requests - before
        return answer

    services, given = world.services, PhaseInput(REF, MigrationOptions(quiesce_hold_ms=800))
    await count("preflight", _transactional_ids(services, layout(world), lambda: None))
    await count(Phase.VALIDATE, validate_partition(services, given))
    await count(Phase.DRAIN_TRANSACTIONS, drain_transactions(services, given))
    closed = await count(Phase.QUIESCE, quiesce(services, given))
    given = replace(given, generation=closed.generation)
    end = await count(Phase.ROLL_AND_FLUSH, roll_and_flush(services, given))
    given = replace(given, boundary=end.boundary, leader_epoch=end.leader_epoch)
    await count(Phase.SEED_AND_PERSIST, seed_and_persist(services, given))
    await count(Phase.ZOMBIE_CLEANUP, zombie_cleanup(services, given))
    assert asked.pop(Phase.QUIESCE) == 0
    assert asked == {step: some.of(SCALE) for step, some in KAFKA_OF_PARTITION.items()}


async def test_what_is_proven_of_remote_storage_costs_what_the_estimate_says(
    world: World, counted: Counted
) -> None:
    await _claimed_not_there(
        world.services, layout(world), {"remote.storage.enable": "true"}, lambda: None
    )
    assert counted.requests == KAFKA_OF_TIERED_PARTITION["preflight"].of(SCALE)
    assert len(world.store.listed) == 1


async def test_a_whole_migration_asks_brokers_and_bucket_no_more_than_the_estimate_says(
    world: World, counted: Counted
) -> None:
    """The estimate has the preflight, which is not walked here, beside it."""
    services, alter_configs = world.services, world.kafka.alter_configs

    async def roll(topic: str, changes: tuple[ConfigChange, ...]) -> None:
        await alter_configs(topic, changes)
        if world.kafka.own_configs.get(LOCAL_RETENTION_BYTES) == "0":
            world.kafka.local_starts = dict.fromkeys(world.kafka.ends, 100)

    world.kafka.alter_configs = roll  # type: ignore[method-assign]
    services.settings = cast(Any, SimpleNamespace(migration_parallel_topics=5))

    async def tracked() -> None:
        (known,) = await services.control_plane.list_gateways()
        await services.control_plane.acknowledge_tracking(
            known.gateway_id, known.incarnation, "orders"
        )

    await migrate(services, TOPIC, MigrationOptions(quiesce_hold_ms=800), tracked)
    not_walked = KAFKA_OF_PREFLIGHT.of(SCALE) + sum(
        some["preflight"].of(SCALE) for some in (KAFKA_OF_PARTITION, KAFKA_OF_TIERED_PARTITION)
    )
    readings = 1
    left = kafka_requests(SCALE, 0) - not_walked - readings - counted.requests
    # Its one partition has one leader: the others are not asked where its log begins.
    assert left == BROKERS - 1
    assert len(world.store.listed) == LISTINGS_OF_PARTITION - 2


def layout(world: World) -> TopicLayout:
    return TopicLayout("orders", TOPIC_ID, False, {0: world.kafka.layout})


# What an estimate goes by


async def estimated(world: World) -> MigrationEstimate:
    world.services.settings = cast(Any, SimpleNamespace(migration_parallel_topics=5))
    report = PreflightReport("orders", TOPIC_ID.hex, 1, (), SCALE)
    found = await estimate_migration(world.services, report, MigrationOptions())
    assert found is not None
    return found


def tiering(found: MigrationEstimate) -> Basis:
    return next(basis for basis in found.based_on if basis.step == Span.TIERING)


async def test_brokers_that_roll_more_often_have_a_topic_ready_sooner(world: World) -> None:
    kafkas = tiering(await estimated(world))
    world.kafka.broker_configs |= {RETENTION_CHECK: "1000", COPY: "500"}
    own = tiering(await estimated(world))
    assert (own.p50_s, own.p90_s) == (2.5, 13.5)
    assert own.p90_s < kafkas.p90_s
    assert kafkas.range == BrokerIntervals().tiering()


async def test_a_limit_that_operators_have_set_counts(world: World) -> None:
    await world.plane.set_migration_limits(None, 0, "ann", "an incident")
    assert (await estimated(world)).to_boundaries_s is None


async def test_what_does_not_answer_leaves_what_is_documented(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> Any:
        raise ControlPlaneUnavailable("Postgres is away")

    async def silent(*_: Any) -> Any:
        raise KafkaUnavailable("no broker answers")

    known = await estimated(world)
    for name in ("phase_durations", "migration_limits", "migration_summary"):
        monkeypatch.setattr(world.plane, name, away)
    for name in ("nodes", "topic", "broker_config"):
        monkeypatch.setattr(world.kafka, name, silent)
    found = await estimated(world)
    assert found.to_ready_s == known.to_ready_s
    assert "could not be read: Postgres is away" in found.left_out[0]


async def test_of_a_topic_that_does_not_exist_nothing_is_looked_up(world: World) -> None:
    report = PreflightReport("orders", "", 0, ())
    assert await estimate_migration(world.services, report, MigrationOptions()) is None
