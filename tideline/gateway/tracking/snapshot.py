"""What a gateway must still know after a restart while Postgres is away.

What always holds: the file on disk tells the newest set that was written, and it is on disk before
that is acknowledged (schedule 18). Its first line is a whole snapshot (temporary file, fsync,
rename, fsync of the directory); each further line, appended and fsynced, is one topic that has
changed since. A last line without an end was being written when the process died, so nobody has
been told of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
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
from tideline.gateway.tracking.durable_file import replace_durably

FORMAT = 3
"""The names in the file are those of the models' fields: who renames one raises this."""
FILE_NAME = "tracking.json"
FEW_LINES = 256
"""The file is written anew once it has more changes than this, and more than twice as many as there
are topics."""


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
        self._identity: PostgresIdentity | None = None
        """Of what this process has written; ``None``: the next write is a whole one."""
        self._known: dict[str, TrackedTopic] = {}
        self._lines = 0

    def write(self, identity: PostgresIdentity, topics: Iterable[TrackedTopic]) -> None:
        """Durable when it returns; writes what has changed. Raises ``OSError``."""
        by_name = {topic.name: topic for topic in topics}
        known = {name: _durable(topic) for name, topic in by_name.items()}
        changed = [
            n for n in known.keys() | self._known.keys() if known.get(n) != self._known.get(n)
        ]
        whole = identity != self._identity
        if not changed and not whole:
            return
        lines = self._lines + len(changed)
        # Until it is known to be on disk.
        self._identity = None
        if whole or lines > max(FEW_LINES, 2 * len(known)):
            self._write_whole(identity, by_name.values())
            lines = 0
        else:
            self._append({name: by_name.get(name) for name in changed})
        self._identity, self._known, self._lines = identity, known, lines

    def _write_whole(self, identity: PostgresIdentity, topics: Iterable[TrackedTopic]) -> None:
        document = {
            "format": FORMAT,
            "gateway_id": self._gateway_id,
            "identity": [identity.system_identifier, identity.timeline],
            "topics": [_topic_out(topic) for topic in topics],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(self.path, _line(document))

    def _append(self, changed: Mapping[str, TrackedTopic | None]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            for name, topic in changed.items():
                shown = None if topic is None else _topic_out(topic)
                file.write(_line({"name": name, "topic": shown}))
            file.flush()
            os.fsync(file.fileno())

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
            whole, *changes = _lines(text)
            document = json.loads(whole)
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']}, this version reads {FORMAT}")
            if document["gateway_id"] != self._gateway_id:
                raise ValueError(f"it belongs to gateway {document['gateway_id']}")
            system_identifier, timeline = document["identity"]
            topics = {entry["name"]: entry for entry in document["topics"]}
            for change in map(json.loads, changes):
                topics.pop(change["name"], None)
                if change["topic"] is not None:
                    topics[change["name"]] = change["topic"]
            return Snapshot(
                PostgresIdentity(str(system_identifier), int(timeline)),
                tuple(map(_topic_in, topics.values())),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.path} is not a snapshot of gateway {self._gateway_id}: {error!r}. Give "
                "each gateway its own TIDELINE_GATEWAY_STATE_DIR; if the file is damaged, remove "
                "it while Postgres is reachable."
            ) from error


def _line(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":")) + "\n"


def _lines(text: str) -> list[str]:
    """The lines that have an end."""
    *lines, _ = text.split("\n")
    return lines


def _durable(topic: TrackedTopic) -> TrackedTopic:
    """What a restart needs. Offsets that move with every commit are not written for, nor is a
    quiesce: without Postgres there is no lease, and nothing of a pending partition is forwarded."""
    rows = {
        number: replace(row, high_watermark=-1, suffix_start=-1, generation=-1, quiesced=False)
        for number, row in topic.partitions.items()
    }
    return replace(topic, partitions=rows)


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
