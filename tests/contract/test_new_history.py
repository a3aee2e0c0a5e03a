"""A history that an operator has begun: what was handed out before is void, whoever holds it."""

from __future__ import annotations

import pytest

from tests.contract.conftest import Scene
from tests.contract.tiering import Tiered, Worker
from tideline.control_plane.errors import QuiesceNotClosed, StaleClaim, StaleGeneration

BECAUSE = ("an operator", "restored from the backup of last night")


async def test_an_attempt_of_a_state_that_is_gone_persists_no_boundary(scene: Scene) -> None:
    """It may hold any generation that was given since the backup, and this Postgres would give the
    same number to somebody else."""
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    lost = 3 + await scene.quiesce(log, [gateway])
    await scene.plane.begin_history(*BECAUSE)
    for generation in (lost - 3, lost):
        with pytest.raises(StaleGeneration):
            await scene.persist(log, 10, generation)
    assert await scene.plane.next_generation(log) > lost
    generation = await scene.quiesce(log, [gateway])
    await scene.persist(log, 10, generation)


async def test_a_quiesce_that_was_acknowledged_before_counts_no_more(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (log,) = await scene.migrating_topic([gateway])
    await scene.quiesce(log, [gateway])
    await scene.plane.begin_history(*BECAUSE)
    row = await scene.plane.tracked_partition(log.topic_id, log.partition)
    assert row is not None
    assert not row.quiesced
    with pytest.raises(QuiesceNotClosed):
        await scene.persist(log, 10, row.generation)


async def test_who_splits_or_merges_with_an_older_token_is_refused(tiered: Tiered) -> None:
    log = await tiered.diskless()
    (file, *_) = tiered.worker.claim({log.topic_id: 2**62})
    await tiered.scene.plane.begin_history(*BECAUSE)
    other = Worker(tiered.plane)
    tiered.plane.release_claim(tiered.worker.worker, file.file_id, file.token)
    (again, *_) = (f for f in other.claim({log.topic_id: 2**62}) if f.file_id == file.file_id)
    assert again.token > file.token + 1_000_000
    with pytest.raises(StaleClaim):
        tiered.worker.finish(file)
