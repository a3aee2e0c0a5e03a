"""Schedule 24: a process that was cut off before a topic was tracked passes it through for ever."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tests.contract.scenes import GatewayProcess, Scene
from tests.contract.test_fencing_rules import register
from tideline.control_plane.errors import InvalidInput, TrackingIncomplete, UnknownGateway


async def replaced(scene: Scene) -> tuple[GatewayProcess, GatewayProcess]:
    """Two processes of one id: the second has watched the first one's lease lapse, no more."""
    first = await scene.gateway()
    second = GatewayProcess(first.gateway_id)
    await register(scene, second, await scene.reading(first.gateway_id))
    return first, second


async def tracked_by(scene: Scene, process: GatewayProcess) -> str:
    name, _ = await scene.tracking_topic()
    await scene.plane.acknowledge_tracking(process.gateway_id, process.incarnation, name)
    return name


async def unaccounted(scene: Scene) -> list[UUID]:
    return [g.incarnation for g in await scene.plane.unaccounted_incarnations()]


async def test_who_was_replaced_and_may_still_run_holds_a_new_topic_back(scene: Scene) -> None:
    first, second = await replaced(scene)
    name = await tracked_by(scene, second)
    entries = await scene.plane.tracking_barrier(name)
    assert [(e.gateway.incarnation, e.gateway.status, e.acknowledged) for e in entries] == [
        (second.incarnation, "active", True),
        (first.incarnation, "unaccounted", False),
    ]
    assert entries[1].gateway.address == "127.0.0.1:9"
    with pytest.raises(TrackingIncomplete, match="unaccounted at 127"):
        await scene.plane.activate_topic(name)
    await scene.plane.account_incarnations(first.gateway_id, [first.incarnation], "dead")
    await scene.plane.activate_topic(name)
    assert await unaccounted(scene) == []


async def test_what_it_acknowledged_before_does_not_count_for_it_either(scene: Scene) -> None:
    first = await scene.gateway()
    name = await tracked_by(scene, first)
    second = GatewayProcess(first.gateway_id)
    await register(scene, second, await scene.reading(first.gateway_id))
    assert [e.acknowledged for e in await scene.plane.tracking_barrier(name)] == [False, False]


async def test_an_operator_says_which_incarnations_are_gone(scene: Scene) -> None:
    first, second = await replaced(scene)
    name = await tracked_by(scene, second)
    with pytest.raises(InvalidInput, match="nobody attests"):
        await scene.plane.attest_incarnations_gone(first.gateway_id, [first.incarnation], "")
    for unknown in (second.incarnation, uuid4()):
        with pytest.raises(UnknownGateway, match="has ended"):
            await scene.plane.attest_incarnations_gone(first.gateway_id, [unknown], "ann")
    await scene.plane.attest_incarnations_gone(first.gateway_id, [first.incarnation], "ann")
    await scene.plane.activate_topic(name)


async def test_one_word_accounts_for_nobody_else(scene: Scene) -> None:
    """What ends after the operator looked is not what was looked at."""
    first, second = await replaced(scene)
    third = GatewayProcess(first.gateway_id)
    await register(scene, third, await scene.reading(first.gateway_id))
    await scene.plane.attest_incarnations_gone(first.gateway_id, [first.incarnation], "ann")
    await scene.plane.account_incarnations(99, [second.incarnation], "of another gateway")
    await scene.plane.account_incarnations(third.gateway_id, [third.incarnation], "still active")
    assert await unaccounted(scene) == [second.incarnation]
    fourth = GatewayProcess(first.gateway_id)
    await register(scene, fourth, await scene.reading(first.gateway_id))
    assert await unaccounted(scene) == [second.incarnation, third.incarnation]


async def test_who_was_fenced_stands_for_itself_until_it_is_replaced(scene: Scene) -> None:
    gateway = await scene.gateway()
    name = await tracked_by(scene, gateway)
    await scene.fence(gateway)
    assert await unaccounted(scene) == []
    await scene.plane.activate_topic(name)
    await register(scene, GatewayProcess(gateway.gateway_id))
    assert await unaccounted(scene) == [gateway.incarnation]


async def test_who_stops_is_accounted_for_even_when_it_was_replaced_before(scene: Scene) -> None:
    stops = await scene.gateway()
    await scene.plane.release_gateway(stops.gateway_id, stops.incarnation)
    await register(scene, GatewayProcess(stops.gateway_id))
    first, _ = await replaced(scene)
    assert await unaccounted(scene) == [first.incarnation]
    await scene.plane.release_gateway(first.gateway_id, first.incarnation)
    assert await unaccounted(scene) == []


async def test_who_retires_an_id_says_so_of_everything_that_ran_under_it(scene: Scene) -> None:
    first, _ = await replaced(scene)
    await scene.plane.retire_gateway(first.gateway_id, "ann")
    assert await unaccounted(scene) == []
    name, _ = await scene.tracking_topic()
    await scene.plane.activate_topic(name)


async def test_a_quiesce_does_not_wait_for_who_was_replaced(scene: Scene) -> None:
    """Whoever tracks the topic tells nothing that Postgres did not confirm."""
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    successor = GatewayProcess(gateway.gateway_id)
    await register(scene, successor, await scene.reading(gateway.gateway_id))
    generation = await scene.quiesce(log, [successor])
    await scene.persist(log, 10, generation)
