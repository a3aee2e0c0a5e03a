"""What gateways say of Kafka, until the worker has asked the brokers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from tideline.control_plane.errors import InvalidInput, UnknownTopic
from tideline.control_plane.memory.topics import Topic
from tideline.control_plane.model import LiveTopic, OpenBirth, TopicStatus, TrackingKind

GATEWAY = "gateway"
"""In Postgres the login role of each; here one speaks for all."""
MAX_PARTITIONS, MOST_ASKED = 1_000_000, 1_000
WAITS_AT_MOST = timedelta(minutes=10)
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class AskedBirth:
    partitions: int
    timestamp_type: str
    max_message_bytes: int
    timestamp_before_max_ms: int | None
    timestamp_after_max_ms: int | None
    given_max_message_bytes: str | None
    asked_at: datetime
    refused: str | None = None


@dataclass(slots=True)
class Reports:
    now: Callable[[], datetime]
    births: dict[str, AskedBirth] = field(default_factory=dict)
    deletions: dict[UUID, datetime] = field(default_factory=dict)

    def ask(
        self,
        name: str,
        partitions: int,
        timestamp_type: str,
        max_message_bytes: int,
        before: int | None,
        after: int | None,
        given: str | None,
    ) -> str | None:
        if not _NAME.fullmatch(name) or not 1 <= partitions <= MAX_PARTITIONS:
            raise InvalidInput(f"Kafka has no topic {name!r} of {partitions} partitions")
        if len(self.births.keys() - {name}) >= MOST_ASKED:
            raise InvalidInput(f"{GATEWAY} asks for {MOST_ASKED} topics already")
        known = self.births.get(name)
        if known is not None and (known.refused is not None or self._is_old(known)):
            del self.births[name]
        if known is None or known.refused is None:
            limits = (timestamp_type, max_message_bytes, before, after, given)
            self.births.setdefault(name, AskedBirth(partitions, *limits, self.now()))
            return None
        return known.refused

    def asked(self, name: str) -> AskedBirth:
        """Raises ``UnknownTopic``."""
        found = self.births.get(name)
        if found is None or found.refused is not None:
            raise UnknownTopic(f"no gateway asks for a topic {name}")
        return found

    def refuse(self, name: str, why: str) -> None:
        if name in self.births:
            self.births[name] = replace(self.births[name], refused=why)

    def open_births(
        self, live: Iterable[LiveTopic], tracked: Callable[[str], Topic | None]
    ) -> list[OpenBirth]:
        asked = {
            name: birth
            for name, birth in self.births.items()
            if birth.refused is None and not self._is_old(birth)
        }
        begun = {
            topic.name: topic
            for topic in live
            if topic.name in asked
            or (topic.status is TopicStatus.TRACKING and topic.kind is TrackingKind.BORN_DISKLESS)
        }
        return [
            _open(name, asked.get(name), begun.get(name), tracked(name))
            for name in sorted(asked.keys() | begun.keys())[:MOST_ASKED]
        ]

    def _is_old(self, birth: AskedBirth) -> bool:
        return self.now() - birth.asked_at > WAITS_AT_MOST


def _open(
    name: str, asked: AskedBirth | None, begun: LiveTopic | None, topic: Topic | None
) -> OpenBirth:
    limits = asked or topic
    assert limits is not None
    return OpenBirth(
        name=name,
        wanted=asked is not None,
        partitions=asked.partitions if asked else None,
        timestamp_type=limits.timestamp_type,
        max_message_bytes=limits.max_message_bytes,
        timestamp_before_max_ms=asked.timestamp_before_max_ms if asked else None,
        timestamp_after_max_ms=asked.timestamp_after_max_ms if asked else None,
        given_max_message_bytes=asked.given_max_message_bytes if asked else None,
        topic_key=begun.topic_key if begun else None,
        topic_id=begun.topic_id if begun else None,
        kind=begun.kind if begun else None,
        status=begun.status if begun else None,
    )
