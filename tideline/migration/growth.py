"""Partitions that came past the gateways to a diskless topic get their rows."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import TrackedTopic
from tideline.domain.grown import NewLog, first_in_the_way
from tideline.errors import RefusedError

log = structlog.get_logger()


async def take_in(
    plane: ControlPlane, topic: TrackedTopic, logs: Sequence[NewLog]
) -> Sequence[NewLog]:
    """Give rows to ``logs``, partitions of ``topic`` that Postgres does not know, up to the first
    that is not known to be empty; those that are left.

    All of them while a partition of the topic has no B0, which Postgres says. What is appended to a
    log after it was looked at is a tail past B0 = 0, which the worker's watch finds and keeps.
    Raises ``ControlPlaneUnavailable``.
    """
    first, in_the_way = len(topic.partitions), first_in_the_way(logs)
    total = first + len(logs) if in_the_way is None else in_the_way.partition
    if topic.topic_id is None or total == first:
        return logs
    try:
        await plane.add_partitions(topic.name, topic.topic_id, first, total)
    except RefusedError as error:
        log.info("partitions.not_taken_in", topic=topic.name, why=str(error))
        return logs
    log.warning("partitions.taken_in", topic=topic.name, first=first, end=total)
    return [new for new in logs if new.partition >= total]
