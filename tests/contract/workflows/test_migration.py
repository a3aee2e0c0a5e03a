"""A migration from start to hybrid, over a fake world."""

from __future__ import annotations

import pytest
from temporalio.client import Client

from tests.contract.workflows.world import World
from tideline.domain.messages import ConfigStage
from tideline.domain.migration import PHASE_ORDER


async def test_a_topic_named_in_one_field_becomes_hybrid(world: World, client: Client) -> None:
    world.partitions = 3
    async with world.worker(client):
        outcome = await world.run(client)
    assert outcome.outcome == "hybrid"
    assert outcome.boundaries == {"0": 100, "1": 101, "2": 102}


@pytest.mark.usefixtures("one_try")
async def test_each_partition_goes_through_the_seven_phases_in_order(
    world: World, client: Client
) -> None:
    async with world.worker(client):
        await world.run(client)
    assert [name for name in world.order() if name in set(PHASE_ORDER)] == list(PHASE_ORDER)


async def test_configs_are_held_stage_by_stage(world: World, client: Client) -> None:
    async with world.worker(client):
        await world.run(client)
    assert world.stages == [
        ConfigStage.TRACKED,
        ConfigStage.ARMED,
        ConfigStage.CROSSED,
        ConfigStage.ROLLING,
        ConfigStage.FROZEN,
    ]


async def test_a_migration_does_not_end_as_if_what_came_past_the_gateways_did_not_exist(
    world: World, client: Client
) -> None:
    world.grown = "partition 1 (log ends by replica: 1: 4) came past the gateways"
    async with world.worker(client):
        outcome = await world.run(client)
    assert (outcome.outcome, outcome.reason) == ("hybrid", world.grown)
