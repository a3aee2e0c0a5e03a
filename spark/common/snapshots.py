"""Folds of the metadata topic's partitions, kept in the bucket between runs.

One object for each partition and end offset, written at once, never changed:
``<prefix>state/remote-log/<cluster id>/<topic id>/<partition>/<when>-<end>-<random>.parquet``. A
run goes on from one only if all of this holds, else it reads the partition from its start, and says
why:

- its bytes are those that were written (a digest over everything in it), by the same rules;
- it is of this cluster, of this topic by its id, and of a topic with as many partitions;
- the log still starts where it started then: a fresh fold would not see what has expired;
- it does not end past the log's end;
- the last record that it has seen is still there: at its offset, with its bytes, written in the
  same leader epoch. An epoch has one leader, which only appends, and followers take over what it
  has: so with the same record of the same epoch everything before it is the same, too. A log that
  lost records (an unclean election, a topic cut short) and grew again has a later epoch there;
- its first reading from the start is not too long ago, nor at a time that is to come.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from spark.common.kept_fold import KeptFold, Key, PackedLog, batch_of, logs_of
from spark.common.packing import EPOCH, WHOLE
from tideline.domain.ids import topic_id_to_base64
from tideline.object_store.client import (
    ObjectStoreClient,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
)

KEPT = 3
"""Snapshots of one partition that are left for runs that read them now; older ones go."""
RULES = hashlib.sha256(f"2 {WHOLE.descr} {EPOCH.descr}".encode()).hexdigest()[:16]
"""Changes with what a fold keeps and how it lies in memory. The number counts changes of the fold
itself (``spark/common/fold.py``)."""
_HEADER = b"tideline"
Seen = Mapping[str, tuple[str, Mapping[int, int]]]
"""By topic id (base64) where its snapshots lie, and up to where (exclusive) they have seen each
partition."""
_NAME = re.compile(r"(\d+)/\d{15}-\d{20}-[0-9a-f]{32}\.parquet")
"""Below the prefix of an identity: partition, when it was written (ms), end offset."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose metadata it is."""

    cluster_id: str
    topic_id: UUID
    partitions: int

    def prefix(self, root: str) -> str:
        """Below which snapshots of all partitions lie."""
        return f"{self.of_cluster(root)}{topic_id_to_base64(self.topic_id)}/"

    def of_cluster(self, root: str) -> str:
        """Below which those of all topics that were its metadata lie."""
        return f"{root}state/remote-log/{self.cluster_id}/"


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The newest record that a fold has seen. ``digest``: of its value and time."""

    offset: int
    leader_epoch: int
    digest: str

    @classmethod
    def of(
        cls, offset: int, leader_epoch: int, timestamp_ms: int, value: bytes | None
    ) -> LastRecord:
        content = repr((timestamp_ms, value)).encode()
        return cls(offset, leader_epoch, hashlib.sha256(content).hexdigest())


class Unusable(Exception):
    """Why a snapshot is not gone on from."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The fold of records ``[start, end)``."""

    identity: Identity
    start: int
    end: int
    last: LastRecord
    whole_at: int
    """ms; when the partition was last read from its start."""
    fold: KeptFold

    def header(self) -> dict[str, Any]:
        return {
            "rules": RULES,
            "cluster_id": self.identity.cluster_id,
            "topic_id": str(self.identity.topic_id),
            "partitions": self.identity.partitions,
            "place": self.fold.place,
            "upto": self.fold.upto,
            "start": self.start,
            "end": self.end,
            "last": asdict(self.last),
            "whole_at": self.whole_at,
        }

    def to_parquet(self) -> bytes:
        header = self.header()
        header["digest"] = _digest(header, self.fold.logs)
        batch = batch_of(sorted(self.fold.logs.items())).drop_columns(["form"])
        table = pa.Table.from_batches([batch]).replace_schema_metadata(
            {_HEADER: json.dumps(header).encode()}
        )
        file = io.BytesIO()
        pq.write_table(table, file, compression="zstd")
        return file.getvalue()

    @classmethod
    def from_parquet(cls, body: bytes) -> Snapshot:
        """Raises :class:`Unusable` for anything but what :meth:`to_parquet` made by these rules."""
        try:
            table = pq.read_table(io.BytesIO(body))
            header = json.loads(table.schema.metadata[_HEADER])
            if header["rules"] != RULES:
                raise Unusable("it was made by other rules")
            digest, logs = header.pop("digest"), dict(logs_of(table))
            if digest != _digest(header, logs):
                raise Unusable("its bytes are not those that were written")
            return cls(
                Identity(header["cluster_id"], UUID(header["topic_id"]), header["partitions"]),
                header["start"],
                header["end"],
                LastRecord(**header["last"]),
                header["whole_at"],
                KeptFold(header["place"], header["upto"], logs),
            )
        except (pa.ArrowException, ValueError, TypeError, KeyError, OSError) as error:
            raise Unusable(f"it cannot be read: {error}") from error

    def check(
        self, identity: Identity, place: int, start: int, end: int, whole_since: int, now_ms: int
    ) -> None:
        """Whether a run over ``[start, end)`` may go on from it, but for its last record. Raises
        :class:`Unusable`."""
        if (self.identity, self.fold.place) != (identity, place):
            raise Unusable("it is of another cluster, topic or partition, or of other partitions")
        if self.start != start:
            raise Unusable(f"the log starts at {start}, it began at {self.start}")
        if self.end > end or not self.start <= self.last.offset < self.end:
            raise Unusable(f"the log ends at {end}, it has seen {self.end}")
        if self.whole_at < whole_since:
            raise Unusable("the log was last read from its start too long ago")
        if self.whole_at > now_ms:
            # It would be young for as long as the clock of its run was ahead.
            raise Unusable("the log was last read from its start at a time that is to come")


def _digest(header: Mapping[str, Any], logs: Mapping[Key, PackedLog]) -> str:
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for (topic_id, partition), log in sorted(logs.items()):
        sizes = f"{partition} {len(log.records)} {len(log.epochs)} ".encode()
        for piece in (topic_id, sizes, log.records, log.epochs):
            found.update(piece)
    return found.hexdigest()


@dataclass(frozen=True)
class SnapshotStore:
    """Snapshots of one topic's partitions. ``root``: the prefix of the installation."""

    store: ObjectStoreClient
    bucket: str
    root: str
    identity: Identity

    def newest(self, keys: Sequence[str]) -> Iterator[Snapshot | Unusable]:
        """The snapshots under ``keys``, or why there is none that can be read."""
        for key in keys:
            try:
                yield Snapshot.from_parquet(self.store.get(self.bucket, key))
            except (ObjectStoreRefused, ObjectStoreUnavailable) as error:
                yield Unusable(str(error))
            except Unusable as why:
                yield why

    def keys(self) -> dict[int, list[str]]:
        """By partition the keys of its snapshots, the newest first. Whatever else lies there is
        nobody's."""
        prefix = self.identity.prefix(self.root)
        found: dict[int, list[str]] = {}
        for entry in self.store.list_objects(self.bucket, prefix):
            if name := _NAME.fullmatch(entry.key.removeprefix(prefix)):
                found.setdefault(int(name[1]), []).append(entry.key)
        return {place: sorted(keys, reverse=True) for place, keys in found.items()}

    def seen(self) -> Seen:
        """What was read before, of every topic that was this cluster's metadata."""
        prefix = self.identity.of_cluster(self.root)
        found: dict[str, tuple[str, dict[int, int]]] = {}
        for entry in self.store.list_objects(self.bucket, prefix):
            topic_id, _, rest = entry.key.removeprefix(prefix).partition("/")
            if name := _NAME.fullmatch(rest):
                _, ends = found.setdefault(topic_id, (f"{prefix}{topic_id}/", {}))
                ends[int(name[1])] = max(ends.get(int(name[1]), 0), self.end_of(entry.key))
        return found

    @staticmethod
    def end_of(key: str) -> int:
        """Up to where (exclusive) the snapshot under ``key`` has seen its partition."""
        return int(key.rpartition("/")[2].split("-")[1])

    @staticmethod
    def written_at(key: str) -> int:
        """ms, by the clock of the run that wrote it."""
        return int(key.rpartition("/")[2].split("-")[0])

    def write(self, snapshot: Snapshot, now_ms: int, known: Sequence[str]) -> None:
        """Keep ``snapshot``, and no more than :data:`KEPT` of its partition. ``known``: keys of
        those that were there. One of a time that is to come is no newer one: it goes first."""
        folder = f"{self.identity.prefix(self.root)}{snapshot.fold.place:05d}"
        key = f"{folder}/{now_ms:015d}-{snapshot.end:020d}-{uuid4().hex}.parquet"
        self.store.put(self.bucket, key, snapshot.to_parquet())
        newest = sorted(known, key=lambda k: (self.written_at(k) <= now_ms, k), reverse=True)
        if superseded := newest[KEPT - 1 :]:
            self.store.delete(self.bucket, superseded)
