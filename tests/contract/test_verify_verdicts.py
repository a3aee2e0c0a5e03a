"""The last verdict of a verification is kept with its topic, and told to status and metrics."""

from __future__ import annotations

from uuid import UUID, uuid4

from tests.contract.conftest import Database
from tests.contract.scenes import PostgresScene
from tests.contract.tiering import jobs
from tideline.control_plane.jobs import JobsControlPlane
from tideline.migration.overview import KeptStatuses


def record(plane: JobsControlPlane, topic_id: UUID, run_id: UUID, differences: int) -> None:
    detail = [{"partition": 0, "offset": 7, "what": "gone"}] if differences else []
    plane.record_verify_verdict(
        topic_id, run_id, sample=0.5, ranges=3, records=10, byte_count=100,
        differences=differences, detail=detail,
    )  # fmt: skip


async def test_a_verdict_replaces_the_one_before_and_goes_with_its_topic(
    postgres_scene: PostgresScene, database: Database
) -> None:
    name, (log,) = await postgres_scene.diskless_topic()
    first, second = uuid4(), uuid4()
    kept = KeptStatuses(postgres_scene.plane)
    await kept.look()
    with jobs(database) as plane:
        assert plane.verify_verdicts(name) == []
        record(plane, log.topic_id, first, 1)
        (told,) = await postgres_scene.plane.verify_verdicts(name)
        assert (told.topic, told.run_id, told.differences) == (name, first, 1)
        assert told.detail == [{"partition": 0, "offset": 7, "what": "gone"}]
        record(plane, log.topic_id, second, 0)
        (again,) = plane.verify_verdicts(name)
        assert (again.run_id, again.differences, again.detail) == (second, 0, [])
        assert name in await kept.look()
        assert kept.told[name].verdict == again
        assert again.verified_at > told.verified_at
        record(plane, uuid4(), first, 0)
        assert [v.topic for v in plane.verify_verdicts()] == [name]
        await postgres_scene.plane.delete_topic(log.topic_id)
        assert plane.verify_verdicts() == []
