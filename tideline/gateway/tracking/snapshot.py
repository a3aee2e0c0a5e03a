"""What a gateway must still know after a restart while Postgres is away.

What always holds: the file on disk tells the newest set that was written, and it is on disk before
that is acknowledged (schedule 18). Its first line is a whole snapshot (temporary file, fsync,
rename, fsync of the directory); each further line, appended and fsynced, is one topic that has
changed since, or those partitions of one that have. A last line without an end was being written
when the process died, so nobody has been told of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

from tideline.control_plane.model import (
    ConfigOverride,
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.migration import MigrationState
from tideline.domain.snapshot_lines import topics_of
from tideline.domain.topic_configs import TopicLimits
from tideline.errors import UsageError
from tideline.gateway.tracking.durable_file import remove_durably, replace_durably
from tideline.gateway.tracking.rows import Rows

FORMAT = 1
"""The names in the file are those of the models' fields: who renames one raises this."""
FILE_NAME = "tracking.json"
FEW_LINES = 256
"""The file is written anew once more topics and partitions were appended than this, and more than
twice as many as there are."""


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
        self._written: dict[str, TrackedTopic] = {}
        """As the file has them, apart from what a restart does not need."""
        self._appended = 0

    def write(self, identity: PostgresIdentity, topics: Iterable[TrackedTopic]) -> None:
        """Durable when it returns; writes what has changed, and looks at nothing else than that.
        Raises ``OSError``."""
        by_name = {topic.name: topic for topic in topics}
        before = self._written
        changes = [
            change
            for name in by_name.keys() | before.keys()
            if by_name.get(name) is not before.get(name)
            and (change := _change(name, before.get(name), by_name.get(name))) is not None
        ]
        whole = identity != self._identity
        if not changes and not whole:
            self._written = by_name
            return
        appended = self._appended + sum(map(_size, changes))
        # Until it is known to be on disk.
        self._identity = None
        size = sum(1 + len(topic.partitions) for topic in by_name.values())
        if whole or appended > max(FEW_LINES, 2 * size):
            self._write_whole(identity, by_name.values())
            appended = 0
        else:
            self._append(changes)
        self._identity, self._written, self._appended = identity, by_name, appended

    def _write_whole(self, identity: PostgresIdentity, topics: Iterable[TrackedTopic]) -> None:
        document = {
            "format": FORMAT,
            "gateway_id": self._gateway_id,
            "identity": [identity.system_identifier, identity.timeline],
            "topics": [_topic_out(topic) for topic in topics],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(self.path, _line(document))

    def _append(self, changes: Iterable[_Change]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            for change in changes:
                file.write(_line(change))
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """Durable when it returns. Raises ``OSError``."""
        self._identity = None
        remove_durably(self.path)

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
            topics = topics_of(document, map(json.loads, changes))
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


_LIMITS = tuple(field.name for field in fields(TopicLimits))
_ROW_FIELDS = tuple(field.name for field in fields(TrackedPartition))
_Change: TypeAlias = dict[str, Any]
"""One line, as :mod:`tideline.domain.snapshot_lines` has it."""


def _change(name: str, before: TrackedTopic | None, now: TrackedTopic | None) -> _Change | None:
    """What a restart needs of the difference; ``None``: nothing."""
    if now is None:
        return {"name": name, "topic": None}
    if before is None or replace(before, partitions={}) != replace(now, partitions={}):
        return {"name": name, "topic": _topic_out(now)}
    changed = []
    for number in Rows.of(now.partitions).unlike(Rows.of(before.partitions)):
        was, row = before.partitions.get(number), now.partitions.get(number)
        if row is None:
            return {"name": name, "topic": _topic_out(now)}
        if was is None or _durable(was) != _durable(row):
            changed.append(row)
    return {"name": name, "rows": [_row_out(row) for row in changed]} if changed else None


def _size(change: _Change) -> int:
    if "rows" in change:
        return len(change["rows"])
    return 1 + len(change["topic"]["partitions"]) if change["topic"] is not None else 1


def _durable(row: TrackedPartition) -> TrackedPartition:
    """What a restart needs. Offsets that move with every commit are not written for, nor is a
    quiesce: without Postgres there is no lease, and nothing of a pending partition is forwarded."""
    return replace(row, high_watermark=-1, suffix_start=-1, generation=-1, quiesced=False)


def _topic_out(topic: TrackedTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id) if topic.topic_id else None,
        "kind": topic.kind.value,
        "status": topic.status.value,
        **asdict(topic.limits),
        "round": topic.round,
        "partitions": [_row_out(row) for row in topic.partitions.values()],
        "overrides": [asdict(override) for override in topic.overrides.values()],
    }


def _row_out(row: TrackedPartition) -> dict[str, Any]:
    shown = {name: getattr(row, name) for name in _ROW_FIELDS}
    return {**shown, "topic_id": str(row.topic_id), "state": row.state.value}


def _topic_in(entry: dict[str, Any]) -> TrackedTopic:
    rows = [
        TrackedPartition(
            **{**row, "topic_id": UUID(row["topic_id"]), "state": MigrationState(row["state"])}
        )
        for row in entry["partitions"].values()
    ]
    overrides = [ConfigOverride(**row) for row in entry["overrides"]]
    return TrackedTopic(
        name=entry["name"],
        topic_id=UUID(entry["topic_id"]) if entry["topic_id"] else None,
        kind=TrackingKind(entry["kind"]),
        status=TopicStatus(entry["status"]),
        round=entry["round"],
        partitions={row.partition: row for row in rows},
        overrides={override.key: override for override in overrides},
        **{name: entry[name] for name in _LIMITS},
    )
