"""What a gateway says of itself to the others, and that nothing that is fenced goes by it."""

from __future__ import annotations

import pytest

from tests.contract.scenes import GatewayProcess, Scene
from tideline.control_plane.errors import GatewayFenced

STAND_INS = "2=gateway-1:9502,3=gateway-1:9503"


async def test_where_a_gateway_stands_in_and_whether_it_serves_is_read_by_all(scene: Scene) -> None:
    process = GatewayProcess(1)
    await scene.plane.register_gateway(
        1, 1, process.incarnation, "g:1", "1", 3_000, stand_ins=STAND_INS, serving=False
    )
    (found,) = await scene.plane.list_gateways()
    assert (found.stand_ins, found.serving) == (STAND_INS, False)
    await scene.plane.note_serving(1, process.incarnation, True)
    (found,) = await scene.plane.list_gateways()
    assert (found.stand_ins, found.serving) == (STAND_INS, True)
    await scene.gateway(1)
    (found,) = await scene.plane.list_gateways()
    assert (found.stand_ins, found.serving) == (None, True), "the next process says it anew"


async def test_an_incarnation_that_is_over_says_nothing(scene: Scene) -> None:
    process = await scene.gateway()
    await scene.fence(process)
    with pytest.raises(GatewayFenced):
        await scene.plane.note_serving(process.gateway_id, process.incarnation, True)


async def test_barriers_wait_for_a_gateway_that_serves_nobody_until_it_is_released(
    scene: Scene,
) -> None:
    """It may have been stood in for long since, and still have produces under way."""
    process = await scene.gateway()
    name, (log,) = await scene.migrating_topic([process])
    await scene.plane.note_serving(process.gateway_id, process.incarnation, False)
    generation = await scene.plane.next_generation(log)
    await scene.plane.close_generation(log, generation, 10_000)
    (entry,) = await scene.plane.quiesce_barrier(log, generation)
    assert not entry.acknowledged
    assert [e.gateway.gateway_id for e in await scene.plane.tracking_barrier(name)] == [
        process.gateway_id
    ]
    await scene.plane.release_gateway(process.gateway_id, process.incarnation)
    assert await scene.plane.quiesce_barrier(log, generation) == []
