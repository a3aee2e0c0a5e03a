"""Who alone tells the outcomes of a file stays as long as that file is read (decision 0022)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contract.scenes import GatewayProcess, PostgresScene, Scene, batch
from tideline.control_plane.errors import GatewayFenced, ObjectKeyRejected
from tideline.control_plane.model import (
    ANYBODY_TELLS_AFTER_MS,
    BatchToCommit,
    CommittedBatch,
    StreamPlace,
    UntoldCommit,
)


async def put(
    scene: Scene,
    gateway: GatewayProcess,
    key: str,
    *batches: BatchToCommit,
    stream: StreamPlace | None = None,
) -> list[CommittedBatch]:
    """Register the key and commit the object under it."""
    named = (gateway.gateway_id, gateway.incarnation)
    await scene.plane.register_object_keys(*named, [key])
    return await scene.plane.commit_file(*named, key, 1_000, batches, stream)


async def test_a_carrier_stays_as_long_as_what_it_tells_of_is_read(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    await put(scene, gateway, "read", batch(log), stream=StreamPlace(0))
    await put(scene, gateway, "carrier", stream=StreamPlace(1, tells=("read",)))
    assert scene.jobs.claim_dead_files(grace_ms=0) == []
    await scene.plane.delete_records(log, 1)
    assert scene.jobs.prune_batches() == 1
    assert set(scene.jobs.claim_dead_files(grace_ms=0)) == {"read", "carrier"}


async def test_what_is_read_longest_does_not_keep_what_its_gateway_wrote_later(
    scene: Scene,
) -> None:
    """Who holds batches carries nothing: it would need a carrier, and that one another."""
    gateway = await scene.gateway()
    _, (log, other) = await scene.diskless_topic(2)
    await put(scene, gateway, "read", batch(log), stream=StreamPlace(0))
    keys = ["first", "second", "third"]
    for place, (before, key) in enumerate(zip(["read", *keys], keys, strict=False), start=1):
        await put(scene, gateway, key, batch(other), stream=StreamPlace(place, tells=(before,)))
    await scene.plane.delete_records(other, 3)
    assert scene.jobs.prune_batches() == 3
    assert set(scene.jobs.claim_dead_files(grace_ms=0)) == set(keys)
    after = await scene.gateway(gateway.gateway_id)
    untold = await scene.plane.untold_commits(after.gateway_id, after.incarnation, 10)
    assert [commit.object_key for commit in untold] == ["read"]


async def test_only_the_first_carrier_stays(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    await put(scene, gateway, "read", batch(log), stream=StreamPlace(0))
    for place, key in enumerate(("first", "second"), start=1):
        assert await put(scene, gateway, key, stream=StreamPlace(place, tells=("read",))) == []
    assert scene.jobs.claim_dead_files(grace_ms=0) == ["second"]


async def test_an_object_that_only_tells_may_be_committed_again(scene: Scene) -> None:
    """Its outcome was unknown."""
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    await put(scene, gateway, "read", batch(log), stream=StreamPlace(0))
    stream = StreamPlace(1, tells=("read",))
    for _ in range(2):
        found = await scene.plane.commit_file(
            gateway.gateway_id, gateway.incarnation, "read", 1_000, [batch(log)], StreamPlace(0)
        )
        assert found[0].base_offset == 0
    assert await put(scene, gateway, "carrier", stream=stream) == []
    named = (gateway.gateway_id, gateway.incarnation)
    assert await scene.plane.commit_file(*named, "carrier", 1_000, [], stream) == []
    with pytest.raises(ObjectKeyRejected, match="exactly its first input"):
        await scene.plane.commit_file(*named, "carrier", 1_000, [batch(log)], stream)
    assert scene.jobs.claim_dead_files(grace_ms=0) == []


async def test_what_an_ended_incarnation_did_not_tell_is_told_of_it(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    two = [batch(log, records=3), replace(batch(log), byte_offset=7)]
    told = await put(scene, gateway, "a", *two, stream=StreamPlace(0))
    await put(scene, gateway, "tells", stream=StreamPlace(1, tells=("a",)))
    (last,) = await put(scene, gateway, "b", batch(log), stream=StreamPlace(4, withdrawn=(0, 2)))
    await put(scene, gateway, "of no stream", batch(log))
    assert [outcome.base_offset for outcome in told] == [0, 3]
    after = await scene.gateway(gateway.gateway_id)
    named = (after.gateway_id, after.incarnation)
    expected = UntoldCommit(
        gateway.incarnation, 4, "b", (0, 2), (last.error,), (4,), (last.append_time,)
    )
    assert await scene.plane.untold_commits(*named, 10) == [expected]
    await put(scene, after, "c", batch(log), stream=StreamPlace(0))
    assert await scene.plane.untold_commits(*named, 10) == [expected], "its own are not told yet"
    await put(scene, after, "d", stream=StreamPlace(1, tells=("b", "c")))
    assert await scene.plane.untold_commits(*named, 10) == []


async def test_an_ended_incarnation_does_not_ask(scene: Scene) -> None:
    gateway = await scene.gateway()
    assert await scene.fence(gateway)
    with pytest.raises(GatewayFenced):
        await scene.plane.untold_commits(gateway.gateway_id, gateway.incarnation, 10)


async def test_for_a_gateway_that_stays_away_another_one_tells(scene: Scene) -> None:
    """A minute after the commit: until then its own next incarnation may."""
    gateway, other = await scene.gateway(), await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    (told,) = await put(scene, gateway, "read", batch(log), stream=StreamPlace(3))
    named = (other.gateway_id, other.incarnation)
    assert await scene.plane.untold_commits(*named, 10) == []
    scene.age_commits(ANYBODY_TELLS_AFTER_MS - 20_000)
    assert await scene.plane.untold_commits(*named, 10) == []
    scene.age_commits(20_001)
    assert await scene.plane.untold_commits(*named, 10) == [
        UntoldCommit(gateway.incarnation, 3, "read", (), (told.error,), (0,), (told.append_time,))
    ]
    await put(scene, other, "tells", stream=StreamPlace(0, tells=("read",)))
    assert await scene.plane.untold_commits(*named, 10) == []
    assert scene.jobs.claim_dead_files(grace_ms=0) == []


async def test_a_gateway_of_the_version_before_commits_without_a_place(
    postgres_scene: PostgresScene,
) -> None:
    """It gives fifteen parameters, without types, and its objects end without a footer."""
    scene = postgres_scene
    gateway = await scene.gateway()
    _, (log,) = await scene.diskless_topic()
    named = (gateway.gateway_id, gateway.incarnation)
    await scene.plane.register_object_keys(*named, ["old"])
    given = [*named, "old", 1_000, [log.topic_id], [log.partition], [0], [100], [2], [5], [False]]
    given += [[-1], [-1], [-1], [-1]]
    query = f"SELECT error, base_offset FROM commit_file({', '.join(['%s'] * 15)})"
    assert scene.sql(query, *given) == [("NONE", 0)]
    assert scene.sql(query, *given) == [("NONE", 0)], "again: the answer was lost"
    after = await scene.gateway(gateway.gateway_id)
    assert await scene.plane.untold_commits(after.gateway_id, after.incarnation, 10) == []
