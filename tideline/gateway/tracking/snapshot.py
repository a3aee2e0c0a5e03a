"""What a gateway must still know after a restart while Postgres is away.

What always holds: the file on disk is a whole snapshot, the newest that was written, and it is
on disk before that is acknowledged (schedule 18): temporary file, fsync, rename, fsync of
the directory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from tideline.control_plane.model import (
    ConfigOverride,
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.migration import MigrationState
from tideline.errors import UsageError

FORMAT = 2
"""The names in the file are those of the models' fields: who renames one raises this."""
FILE_NAME = "tracking.json"


@dataclass(frozen=True, slots=True)
class PostgresIdentity:
    """Which Postgres it was: a standby that missed commits has another timeline (schedule 16)."""

    system_identifier: str
    timeline: int

    def __str__(self) -> str:
        return f"system {self.system_identifier}, timeline {self.timeline}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    identity: PostgresIdentity
    topics: tuple[TrackedTopic, ...]


class SnapshotFile:
    """The snapshot in the gateway's state directory."""

    def __init__(self, directory: Path, gateway_id: int) -> None:
        self.path = directory / FILE_NAME
        self._gateway_id = gateway_id

    def write(self, identity: PostgresIdentity, topics: Iterable[TrackedTopic]) -> None:
        """Durable when it returns. Raises ``OSError``."""
        document = {
            "format": FORMAT,
            "gateway_id": self._gateway_id,
            "identity": [identity.system_identifier, identity.timeline],
            "topics": [_topic_out(topic) for topic in topics],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(document, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def read(self) -> Snapshot | None:
        """The snapshot, or ``None`` if none was ever written.

        Raises :class:`UsageError` for a file that is not a snapshot of this gateway: guessing
        would pass a diskless topic through.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']}, this version reads {FORMAT}")
            if document["gateway_id"] != self._gateway_id:
                raise ValueError(f"it belongs to gateway {document['gateway_id']}")
            system_identifier, timeline = document["identity"]
            return Snapshot(
                PostgresIdentity(str(system_identifier), int(timeline)),
                tuple(_topic_in(entry) for entry in document["topics"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.path} is not a snapshot of gateway {self._gateway_id}: {error!r}. Give "
                "each gateway its own TIDELINE_GATEWAY_STATE_DIR; if the file is damaged, remove "
                "it while Postgres is reachable."
            ) from error


def _topic_out(topic: TrackedTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id) if topic.topic_id else None,
        "kind": topic.kind.value,
        "status": topic.status.value,
        "timestamp_type": topic.timestamp_type,
        "max_message_bytes": topic.max_message_bytes,
        "round": topic.round,
        "partitions": [
            {**asdict(row), "topic_id": str(row.topic_id), "state": row.state.value}
            for row in topic.partitions.values()
        ],
        "overrides": [asdict(override) for override in topic.overrides.values()],
    }


def _topic_in(entry: dict[str, Any]) -> TrackedTopic:
    rows = [
        TrackedPartition(
            **{**row, "topic_id": UUID(row["topic_id"]), "state": MigrationState(row["state"])}
        )
        for row in entry["partitions"]
    ]
    overrides = [ConfigOverride(**row) for row in entry["overrides"]]
    return TrackedTopic(
        name=entry["name"],
        topic_id=UUID(entry["topic_id"]) if entry["topic_id"] else None,
        kind=TrackingKind(entry["kind"]),
        status=TopicStatus(entry["status"]),
        timestamp_type=entry["timestamp_type"],
        max_message_bytes=entry["max_message_bytes"],
        round=entry.get("round", 1),
        partitions={row.partition: row for row in rows},
        overrides={override.key: override for override in overrides},
    )
