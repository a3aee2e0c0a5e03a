"""What stands under a topic's name, here and in Kafka, and forgetting a topic that is gone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import LiveTopic
from tideline.errors import RefusedError, UnreachableError, UsageError
from tideline.kafka.topic_identity import Presence, TopicIdentity


class Verdict(StrEnum):
    """What is to be said of a name."""

    SAME = "same"
    """Kafka has the tracked topic under the name."""
    NOT_TRACKED = "not tracked"
    UNBORN = "being created"
    """Tracked by its name alone: its creation in Kafka has not ended."""
    GONE = "gone"
    """Kafka does not have the tracked topic any more; the worker buries it."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NameCheck:
    """A name, what is tracked under it, and what Kafka has."""

    topic: str
    verdict: Verdict
    tracked_id: UUID | None
    tracked_status: str | None
    kafka_id: UUID | None
    """As one broker says."""
    why: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A topic that an operator had buried."""

    topic: str
    topic_id: UUID
    by: str
    why: str
    at: datetime


async def check_name(plane: ControlPlane, identity: TopicIdentity, topic: str) -> NameCheck:
    """Raises :class:`UnreachableError` when Postgres does not answer, or no broker does."""
    live = await _live(plane, topic)
    kafka_id = (await identity.ids_of([topic])).get(topic)
    if live is None:
        why = "no gateway tracks the name: it is Kafka's alone"
        return NameCheck(topic, Verdict.NOT_TRACKED, None, None, kafka_id, why, "nothing")
    if live.topic_id is None:
        why = f"its creation began at {live.created_at.isoformat()} and has not ended"
        then = "create it again; the worker completes it or frees the name after ten minutes"
        status = live.status.value
        return NameCheck(topic, Verdict.UNBORN, None, status, kafka_id, why, then)
    found = await identity.find(live.topic_id)
    if found.presence is Presence.GONE:
        verdict = Verdict.GONE
        then = (
            "the worker buries it within two minutes; if no worker runs: tideline topic forget "
            f"{topic} --id {live.topic_id} --reason WHY"
        )
    elif found.presence is Presence.UNKNOWN or kafka_id != live.topic_id:
        verdict, then = Verdict.UNKNOWN, "bring every broker back, then check again"
    else:
        verdict, then = Verdict.SAME, "nothing"
    return NameCheck(topic, verdict, live.topic_id, live.status.value, kafka_id, found.why, then)


async def forget(
    plane: ControlPlane, identity: TopicIdentity, topic: str, topic_id: UUID, by: str, reason: str
) -> Forgotten:
    """Bury a topic that Kafka does not have any more.

    Raises :class:`UsageError` without a reason, :class:`RefusedError` if the name does not stand
    for the id or Kafka still has it, :class:`UnreachableError` if that cannot be established.
    """
    if not reason.strip():
        raise UsageError("--reason is empty: say why the topic is to be forgotten")
    live = await _live(plane, topic)
    if live is None or live.topic_id != topic_id:
        has = "is not tracked" if live is None else f"is tracked with topic id {live.topic_id}"
        raise RefusedError(
            f"topic {topic!r} {has}, not with {topic_id}: see `tideline topic check {topic}`"
        )
    found = await identity.find(topic_id)
    if found.presence is Presence.PRESENT:
        raise RefusedError(
            f"topic {topic!r} ({topic_id}) is not forgotten: {found.why}, and its records can be "
            "kept. Delete it in Kafka, through a gateway, if nobody needs them"
        )
    if found.presence is Presence.UNKNOWN:
        raise UnreachableError(
            f"whether Kafka has topic {topic!r} ({topic_id}) cannot be established: {found.why}. "
            "Nothing is forgotten on a partial answer: bring every broker back, then try again"
        )
    why = f"{reason.strip()} ({found.why})"
    await plane.delete_topic(topic_id, by, why)
    for tombstone in await plane.deleted_topics(_EVER_MS, _MANY):
        if tombstone.topic_id == topic_id:
            return Forgotten(
                topic, topic_id, tombstone.deleted_by, tombstone.deleted_why, tombstone.deleted_at
            )
    raise RefusedError(f"topic {topic!r} ({topic_id}) has no tombstone: it was not tracked")


_EVER_MS = 60_000
_MANY = 1_000
"""The tombstone was written a moment ago."""


async def _live(plane: ControlPlane, topic: str) -> LiveTopic | None:
    return next((t for t in await plane.live_topics() if t.name == topic), None)
