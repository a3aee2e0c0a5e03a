"""Names of things: a partition by topic name, and by topic id.

A topic that is deleted and created again under its name is another topic: everything that is
durable is keyed by the topic id (KIP-516), never by the name alone (schedules.md, 19).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition by name. ``partition`` counts from 0."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class TopicIdPartition:
    """A partition by topic id, the durable key."""

    topic_id: UUID
    partition: int

    def __hash__(self) -> int:
        # Of the id's number: UUID's own is a call of Python's, and a produce looks many up.
        return hash((self.topic_id.int, self.partition))

    def __str__(self) -> str:
        return f"{topic_id_to_base64(self.topic_id)}-{self.partition}"


def topic_id_to_base64(topic_id: UUID) -> str:
    """Kafka's own spelling of an id: URL-safe base64 of the 16 bytes, without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def topic_id_from_base64(text: str) -> UUID:
    """Inverse of :func:`topic_id_to_base64`. Raises ``ValueError`` for anything else."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return UUID(bytes=raw)
