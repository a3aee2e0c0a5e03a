"""A suffix that lacks batches, by a defect or an old backup: neither read over nor built over."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.contract.scenes import Scene, batch
from tests.contract.tiering import ALL_OLD, Tiered, segment_of
from tideline.control_plane.errors import TieringMismatch
from tideline.control_plane.memory.suffix import Suffix
from tideline.control_plane.model import FindBatchesRequest
from tideline.domain.ids import TopicIdPartition

ALL = 1 << 30
UNUSED = TopicIdPartition(UUID(int=1), 0)


async def suffix_of_five(scene: Scene) -> TopicIdPartition:
    """B0 is 10; batches of five records end at 14, 19, 24, 29 and 34."""
    gateway = await scene.gateway()
    log = await scene.hybrid_log(gateway, 10)
    await scene.commit(gateway, *[batch(log, records=5) for _ in range(5)])
    return log


async def read(
    scene: Scene, log: TopicIdPartition, offset: int, max_bytes: int = ALL
) -> tuple[str, list[int]]:
    (found,) = await scene.plane.find_batches([FindBatchesRequest(log, offset, max_bytes)])
    return found.error, [b.base_offset for b in found.batches]


async def test_a_read_ends_before_a_hole_and_is_an_error_inside_it(scene: Scene) -> None:
    log = await suffix_of_five(scene)
    scene.lose(log, 20, 29)
    assert await read(scene, log, 10) == ("NONE", [10, 15])
    assert await read(scene, log, 19, 1) == ("NONE", [15])
    for offset in (20, 24, 29):
        assert await read(scene, log, offset) == ("SUFFIX_HOLE", [])
        assert await read(scene, log, offset, 1) == ("SUFFIX_HOLE", [])
    assert await read(scene, log, 30) == ("NONE", [30])
    assert await read(scene, log, 35) == ("NONE", []), "the end of the log is no hole"


async def test_a_tail_that_is_gone_is_no_empty_answer(scene: Scene) -> None:
    log = await suffix_of_five(scene)
    scene.lose(log, 30, 34)
    assert await read(scene, log, 25) == ("NONE", [25])
    assert await read(scene, log, 30) == ("SUFFIX_HOLE", [])
    assert await read(scene, log, 34) == ("SUFFIX_HOLE", [])


async def test_a_hole_answers_for_its_own_partition(scene: Scene) -> None:
    gateway = await scene.gateway()
    _, (whole, broken) = await scene.diskless_topic(2)
    await scene.commit(gateway, batch(whole, records=5), batch(broken, records=5))
    scene.lose(broken, 0, 4)
    first, second, third = await scene.plane.find_batches(
        [FindBatchesRequest(log, 2, ALL) for log in (whole, broken, whole)]
    )
    assert (first.error, first.batches) == (third.error, third.batches)
    assert [b.base_offset for b in first.batches] == [0]
    assert (second.error, second.batches, second.segment) == ("SUFFIX_HOLE", (), None)
    assert second.high_watermark == 5


async def test_what_is_below_the_suffixs_start_is_no_hole(scene: Scene) -> None:
    """What a deletion has passed and pruning removed is out of range, and deleting records up to
    the end of a hole is the way out of one."""
    log = await suffix_of_five(scene)
    assert await scene.plane.delete_records(log, 17) == 17
    assert scene.jobs.prune_batches() == 1
    assert await read(scene, log, 16) == ("OFFSET_OUT_OF_RANGE", [])
    assert await read(scene, log, 17) == ("NONE", [15, 20, 25, 30])
    scene.lose(log, 20, 24)
    assert await read(scene, log, 22) == ("SUFFIX_HOLE", [])
    assert await scene.plane.delete_records(log, 25) == 25
    assert await read(scene, log, 22) == ("OFFSET_OUT_OF_RANGE", [])
    assert await read(scene, log, 25) == ("NONE", [25, 30])


@pytest.mark.parametrize(("lost", "planned"), [(0, None), (1, (0, 0)), (3, (0, 2))])
async def test_a_segment_is_planned_up_to_a_hole_and_never_behind_it(
    tiered: Tiered, lost: int, planned: tuple[int, int] | None
) -> None:
    log = await tiered.diskless(3, 2)
    tiered.worker.split(log.topic_id)
    tiered.scene.lose(log, lost, lost)
    candidates = tiered.plane.merge_candidates()
    plan = tiered.worker.begin(log)
    if planned is None:
        assert (candidates, plan) == ([], None)
    else:
        assert plan is not None
        assert (plan.base_offset, plan.last_offset) == planned


async def test_a_segment_whose_range_got_a_hole_is_not_registered(tiered: Tiered) -> None:
    log = await tiered.diskless(3, 2)
    tiered.worker.split(log.topic_id)
    plan = tiered.worker.begun(log)
    tiered.scene.lose(log, 2, 2)
    with pytest.raises(TieringMismatch, match="has gaps"):
        tiered.plane.finish_merge(log, plan.token, segment_of(plan))
    tiered.scene.lose(log, 0, 1)
    with pytest.raises(TieringMismatch, match="its first batch at 3"):
        tiered.plane.finish_merge(log, plan.token, segment_of(plan))


async def test_a_hole_between_segments_and_batches_is_an_error(tiered: Tiered) -> None:
    log = await tiered.diskless(3, 2)
    tiered.worker.split(log.topic_id)
    assert tiered.worker.merge(log, max_batches=2) is not None
    tiered.scene.lose(log, 2, 3)
    (merged, lost, behind) = await tiered.scene.plane.find_batches(
        [FindBatchesRequest(log, offset, ALL) for offset in (1, 2, 4)]
    )
    assert merged.segment is not None
    assert (lost.error, lost.batches, lost.segment) == ("SUFFIX_HOLE", (), None)
    assert [b.base_offset for b in behind.batches] == [4, 5]
    assert tiered.worker.begin(log) is None


async def test_retention_stops_at_a_hole(tiered: Tiered) -> None:
    log = await tiered.diskless(3, 2)
    ((log_id,),) = tiered.scene.sql("SELECT log_id FROM logs")
    tiered.scene.lose(log, 2, 2)
    ((before,),) = tiered.scene.sql(
        "SELECT before_offset FROM retention_wal_cut(%s, '{0}', %s, '{0}', 100)",
        [log_id],
        [ALL_OLD],
    )
    assert before == 2


def test_the_model_builds_no_segment_over_a_hole_either() -> None:
    suffix = Suffix(0)
    for base in range(4):
        suffix.append(batch(UNUSED), f"k{base}", 1)
    suffix.split = {0, 1, 2, 3}
    assert [b.base_offset for b in suffix.mergeable()] == [0, 1, 2, 3]
    del suffix.batches[1]
    assert [b.base_offset for b in suffix.mergeable()] == [0]
    del suffix.batches[0]
    assert suffix.mergeable() == []
