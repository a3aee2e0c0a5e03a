"""A collection beside those who empty files and those who commit late."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.contract.scenes import batch
from tests.contract.test_tiering_races import Race, race, result
from tests.contract.tiering import ALL_OLD, Tiered
from tideline.control_plane.errors import ObjectKeyRejected

__all__ = ["race"]


async def test_two_that_take_the_last_two_batches_of_a_file_leave_it_to_be_found(
    tiered: Tiered, race: Race
) -> None:
    """Neither sees an empty file, and the collector looks between their commits."""
    one, two = await tiered.diskless(files=0), await tiered.diskless(files=0)
    shared = [batch(one), replace(batch(two), byte_offset=100)]
    await tiered.scene.commit(tiered.gateway, *shared)
    tiered.plane.delete_records(one.topic_id, 0, 1)
    tiered.worker.split(two.topic_id, cutoff=ALL_OLD)
    race.hold("prune_batches", 100)
    assert tiered.worker.merge(two) is not None
    assert tiered.plane.claim_dead_files(0) == [], "a batch of the other log is there still"
    assert tiered.scene.sql("SELECT count(*) FROM lessened_files") == [(0,)]
    race.held.commit()
    assert len(tiered.plane.claim_dead_files(0)) == 1


async def test_a_commit_that_comes_while_its_key_is_forgotten_is_refused(
    tiered: Tiered, race: Race
) -> None:
    log = await tiered.diskless(files=0)
    gateway = tiered.gateway
    await tiered.scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["k"])
    race.hold("forget_uncommitted_keys", 0, 100)
    loop = asyncio.get_running_loop()

    def commit() -> object:
        late = tiered.scene.commit(gateway, batch(log), key="k")
        return result(asyncio.run_coroutine_threadsafe(late, loop))

    waiting = await asyncio.to_thread(race.start, commit)
    race.held.commit()
    with pytest.raises(ObjectKeyRejected, match="not registered"):
        await asyncio.wrap_future(waiting)


async def test_a_key_that_is_being_committed_is_not_forgotten(tiered: Tiered, race: Race) -> None:
    log = await tiered.diskless(files=0)
    gateway = tiered.gateway
    await tiered.scene.plane.register_object_keys(gateway.gateway_id, gateway.incarnation, ["k"])
    race.held.execute("UPDATE tideline.wal_files SET registered_at = registered_at")
    assert tiered.plane.forget_uncommitted_keys(0) == 0, "it is locked: the next run looks again"
    race.held.rollback()
    await tiered.scene.commit(gateway, batch(log), key="k")
    assert tiered.plane.forget_uncommitted_keys(0) == 0
    assert await tiered.read(log) == [("wal", 0, 0)]
