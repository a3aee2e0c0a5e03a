"""Which history a control plane keeps, and what is refused of it, on both planes."""

from __future__ import annotations

import pytest

from tests.contract.scenes import PostgresScene, Scene
from tideline.control_plane.errors import InvalidInput, WrongCluster
from tideline.domain.history import disagreement


@pytest.fixture
def fresh(scene: Scene) -> Scene:
    """No cluster is bound, nothing is halted."""
    if isinstance(scene, PostgresScene):
        scene.sql("UPDATE installation SET cluster_id = NULL, halted = NULL")
    return scene


async def test_who_has_seen_a_beat_finds_it_again(fresh: Scene) -> None:
    first = await fresh.plane.identity()
    assert first.knows is None
    assert await fresh.plane.beat_history() == first.beat + 1
    later = await fresh.plane.identity(first)
    assert later.knows is True
    assert (later.beat, disagreement(first, later)) == (first.beat + 1, None)
    assert (await fresh.plane.identity(later)).token == later.token


async def test_the_first_cluster_is_the_only_one(fresh: Scene) -> None:
    await fresh.plane.bind_cluster("one")
    await fresh.plane.bind_cluster("one")
    with pytest.raises(WrongCluster, match="cluster one, the brokers are of cluster two"):
        await fresh.plane.bind_cluster("two")
    with pytest.raises(InvalidInput):
        await fresh.plane.bind_cluster("")
    assert (await fresh.plane.identity()).cluster_id == "one"


async def test_a_halted_history_ends_with_another_one(fresh: Scene) -> None:
    seen = await fresh.plane.identity()
    await fresh.plane.halt_history(seen.history_id, "a renewal is gone")
    await fresh.plane.halt_history(seen.history_id, "more is gone")
    halted = await fresh.plane.identity(seen)
    assert "a renewal is gone" in str(disagreement(seen, halted))
    with pytest.raises(InvalidInput):
        await fresh.plane.begin_history("", "compared")
    with pytest.raises(InvalidInput):
        await fresh.plane.begin_history("ada", "")
    begun = await fresh.plane.begin_history("ada", "compared: nothing is missing")
    now = await fresh.plane.identity(seen)
    assert (now.history_id, now.halted) == (begun, None)
    assert now.installation_id == seen.installation_id
    assert f"history {begun}" in str(disagreement(seen, now))
    await fresh.plane.halt_history(seen.history_id, "a renewal is gone")
    assert (await fresh.plane.identity()).halted is None, "what is missing of the one before"


async def test_keys_that_nobody_registered_are_told(fresh: Scene) -> None:
    process = await fresh.gateway()
    await fresh.plane.register_object_keys(process.gateway_id, process.incarnation, ["wal/mine"])
    assert await fresh.plane.unknown_keys(["wal/mine", "wal/other"]) == ["wal/other"]
