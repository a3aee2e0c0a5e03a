"""What one gateway believes at this moment, for an operator who compares two: ``/state``, which
`tideline gateway show` reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from tideline.control_plane.model import TrackedTopic
from tideline.domain.ids import TopicIdPartition
from tideline.gateway.assembly import Parts
from tideline.gateway.context import ConnectionRegistry
from tideline.gateway.room import KINDS

TOPICS_SHOWN = 1_000
"""At most, when none is named."""


def beliefs(
    parts: Parts,
    connections: ConnectionRegistry,
    stand_ins: Callable[[], Mapping[str, object]],
    topic: str | None = None,
) -> Mapping[str, object]:
    """On the event loop. Without a name: the process, and how many partitions of each topic take
    which route; with one: each of its partitions. ``topic`` is null if it is not tracked here."""
    tracking, lease = parts.tracking, parts.lease
    said: dict[str, object] = {
        "lease": tracking.lease.value,
        "incarnation": str(lease.incarnation),
        "stopped": tracking.stopped,
        "connections": len(connections),
        **stand_ins(),
        **parts.leaders.zones.believed(),
        "held_bytes": {kind: parts.room.held(kind) for kind in KINDS},
        "reads_clients": not parts.room.full,
    }
    if topic is not None:
        found = tracking.topic_by_name(topic)
        return said | {"topic": None if found is None else _whole(parts, found)}
    known = sorted(tracking.topics(), key=lambda one: one.name)
    shown = {one.name: _short(parts, one) for one in known[:TOPICS_SHOWN]}
    return said | {"topics": shown, "topics_left_out": len(known) - len(shown)}


def _short(parts: Parts, topic: TrackedTopic) -> Mapping[str, object]:
    routes = Counter(
        parts.tracking.partition(topic.topic_id, number).kind.value for number in topic.partitions
    )
    return {"id": str(topic.topic_id), "status": topic.status.value, "partitions": dict(routes)}


def _whole(parts: Parts, topic: TrackedTopic) -> Mapping[str, object]:
    rows = []
    for number in sorted(topic.partitions):
        route = parts.tracking.partition(topic.topic_id, number)
        known = -1
        if topic.topic_id is not None:
            known = parts.watermarks.known(TopicIdPartition(topic.topic_id, number))
        rows.append(
            {
                "partition": number,
                "route": route.kind.value,
                "generation": route.generation,
                "b0": route.boundary,
                "prefix_gone": route.prefix_gone,
                "ready": route.ready,
                "high_watermark": known,
            }
        )
    return {
        "name": topic.name,
        "id": str(topic.topic_id),
        "status": topic.status.value,
        "partitions": rows,
    }
