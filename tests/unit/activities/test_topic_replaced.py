"""A phase that would look at another topic of the name fails with both ids, and changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from temporalio.exceptions import ApplicationError

from activities.configs import reconcile_configs
from activities.drain_transactions import drain_transactions
from activities.readiness import readiness
from activities.roll_and_flush import roll_and_flush
from activities.topic import begin_tracking
from activities.validate import validate_partition
from activities.zombie_cleanup import zombie_cleanup
from tests.unit.activities.world import TOPIC, World
from tests.unit.kafka.fake_cluster import fake_kafka
from tideline.domain import failures
from tideline.domain.messages import ConfigStep, TopicStep
from tideline.domain.migration import Phase
from tideline.domain.options import MigrationOptions
from tideline.domain.topic_configs import ConfigStage
from tideline.kafka import topic_identity
from tideline.kafka.errors import KafkaError, KafkaUnavailable, TopicReplaced
from tideline.kafka.observer import KafkaObserver

ANOTHER = UUID(int=2)
PHASES: dict[Phase, Callable[[Any, Any], Awaitable[object]]] = {
    Phase.VALIDATE: validate_partition,
    Phase.DRAIN_TRANSACTIONS: drain_transactions,
    Phase.ROLL_AND_FLUSH: roll_and_flush,
    Phase.ZOMBIE_CLEANUP: zombie_cleanup,
    Phase.READINESS: readiness,
}


@pytest.mark.parametrize("phase", PHASES)
async def test_every_look_of_a_phase_compares_the_topic_id(world: World, phase: Phase) -> None:
    world.kafka.topic_id = ANOTHER
    with pytest.raises(ApplicationError) as raised:
        await PHASES[phase](world.services, world.given())
    assert (raised.value.type, raised.value.non_retryable) == (failures.TOPIC_CHANGED, True)
    assert str(ANOTHER) in raised.value.message
    assert world.kafka.done == []


async def test_a_topic_that_is_gone_before_it_was_tracked_is_not_tracked(world: World) -> None:
    """Deleted right after the trigger: nobody would ever say that it is back."""
    world.kafka.topic_id = ANOTHER
    before = deepcopy(world.plane.topics.rows)
    with pytest.raises(ApplicationError) as raised:
        await begin_tracking(world.services, TopicStep(TOPIC, MigrationOptions()))
    assert (raised.value.type, raised.value.non_retryable) == (failures.TOPIC_CHANGED, True)
    assert world.plane.topics.rows == before


@pytest.mark.parametrize("stage", [ConfigStage.TRACKED, ConfigStage.RESTORED])
async def test_configs_of_a_topic_that_is_gone_are_not_waited_for(
    world: World, stage: ConfigStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(topic: str) -> Any:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"configs of {topic!r}")

    world.kafka.topic_id = ANOTHER
    monkeypatch.setattr(world.services.topics, "configs_by_broker", unknown)
    with pytest.raises(ApplicationError) as raised:
        await reconcile_configs(
            world.services, ConfigStep(replace(TOPIC), MigrationOptions(), stage)
        )
    assert raised.value.type == failures.TOPIC_CHANGED


async def test_a_replaced_topic_is_told_with_both_ids_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_identity, "BETWEEN_LOOKS_S", 0.0)
    async with fake_kafka() as kafka, kafka.client() as cluster:
        old = kafka.controller.create("orders")
        kafka.controller.delete("orders")
        with pytest.raises(TopicReplaced, match="does not exist") as gone:
            await KafkaObserver(cluster).partition("orders", 0, topic_id=old)
        new = kafka.controller.create("orders")
        with pytest.raises(TopicReplaced) as replaced:
            await KafkaObserver(cluster).partition("orders", 0, topic_id=old)
    assert str(old) in str(gone.value)
    for said in (str(old), str(new), "tideline topic check orders"):
        assert said in str(replaced.value)


async def test_a_broker_that_lags_does_not_end_a_migration() -> None:
    """It shows the topic that had the name before."""
    async with fake_kafka() as kafka, kafka.client() as cluster:
        kafka.controller.create("orders")
        before = kafka.controller.offset
        kafka.controller.delete("orders")
        new = kafka.controller.create("orders")
        kafka.nodes[0].frozen_at, kafka.nodes[0].claims_to_follow = before, True
        with pytest.raises(KafkaUnavailable, match="a broker knows topic id"):
            await KafkaObserver(cluster).partition("orders", 0, topic_id=new)
