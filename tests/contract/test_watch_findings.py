"""What the worker's watches find stays on record, with when it was seen and when it ended."""

from __future__ import annotations

from uuid import uuid4

from tests.contract.scenes import Scene
from tideline.domain.watched import Finding, FindingKind

TAIL = Finding(FindingKind.TAIL, "0", {"log_ends": {"1": 12}, "offsets": 2})
DRIFT = Finding(FindingKind.CONFIG, "cleanup.policy", {"in_kafka": "compact"})


async def test_a_finding_keeps_when_it_was_first_seen_and_ends_when_a_look_misses_it(
    scene: Scene,
) -> None:
    name, (log,) = await scene.diskless_topic()
    await scene.plane.record_findings(log.topic_id, [TAIL, DRIFT])
    drift, tail = await scene.plane.findings(name)
    assert (drift.kind, drift.subject, drift.detail) == (DRIFT.kind, DRIFT.subject, DRIFT.detail)
    assert (tail.topic, tail.topic_id, tail.ended_at) == (name, log.topic_id, None)
    longer = Finding(FindingKind.TAIL, "0", {"log_ends": {"1": 13}, "offsets": 3})
    await scene.plane.record_findings(log.topic_id, [longer])
    ended, goes_on = await scene.plane.findings(name)
    assert ended.ended_at is not None
    assert ended.detail == DRIFT.detail
    assert goes_on.detail == longer.detail
    assert goes_on.first_seen_at == tail.first_seen_at
    assert goes_on.last_seen_at > tail.last_seen_at
    await scene.plane.record_findings(log.topic_id, [DRIFT])
    again, over = await scene.plane.findings(name)
    assert again.ended_at is None
    assert again.first_seen_at == drift.first_seen_at
    assert over.ended_at is not None


async def test_findings_are_those_of_live_topics(scene: Scene) -> None:
    name, (log,) = await scene.diskless_topic()
    other, (another,) = await scene.diskless_topic()
    await scene.plane.record_findings(log.topic_id, [TAIL])
    await scene.plane.record_findings(another.topic_id, [DRIFT])
    await scene.plane.record_findings(uuid4(), [TAIL])
    assert {f.topic for f in await scene.plane.findings()} >= {name, other}
    await scene.plane.delete_topic(log.topic_id)
    await scene.plane.record_findings(log.topic_id, [DRIFT])
    assert await scene.plane.findings(name) == []
    assert [f.subject for f in await scene.plane.findings(other)] == ["cleanup.policy"]
