"""Writes into Kafka what Postgres holds of a topic's configs, where another value came to be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

import structlog

from tideline.control_plane import ControlPlane
from tideline.control_plane.model import TopicStatus
from tideline.domain.topic_configs import ConfigChange
from tideline.kafka.admin import KafkaAdmin
from tideline.kafka.observer import KafkaObserver

log = structlog.get_logger()


class HeldInKafka:
    """One per process. ``statuses``: of the topics whose configs it writes."""

    def __init__(
        self,
        control_plane: ControlPlane,
        admin: KafkaAdmin,
        observer: KafkaObserver,
        statuses: Collection[TopicStatus],
    ) -> None:
        self._plane, self._admin, self._observer = control_plane, admin, observer
        self._statuses = statuses

    async def held(self, name: str, topic_id: UUID, keys: Collection[str]) -> dict[str, str | None]:
        """What Postgres says now that Tideline holds, of ``keys``."""
        topic = await self._plane.tracked_topic(name)
        if topic is None or topic.topic_id != topic_id or topic.status not in self._statuses:
            return {}
        return {k: o.override_value for k, o in topic.overrides.items() if k in keys}

    async def write_held(
        self,
        name: str,
        topic_id: UUID,
        held: dict[str, str | None],
        otherwise: Mapping[str, str | None],
    ) -> None:
        """Until Postgres still says the same after the write. ``otherwise``: of what is let go of
        meanwhile."""
        wanted = dict(held)
        while True:
            # Kafka alters by name only.
            await self._observer.topic(name, topic_id=topic_id)
            changes = [ConfigChange(key, value) for key, value in sorted(wanted.items())]
            await self._admin.alter_configs(name, changes)
            log.warning("configs.put_back", topic=name, configs=wanted)
            now = await self.held(name, topic_id, held.keys())
            if now == held:
                return
            wanted = now | {key: otherwise.get(key) for key in held.keys() - now.keys()}
            held = now
