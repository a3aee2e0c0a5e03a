"""What the bucket says of topics and logs besides their records: the catalog, so that Postgres can
be rebuilt from it.

An object is one record: a head line with the version, the CRC-32C and the size of the body, then
the body in JSON. Its key is made of what it says, so that the same record is the same object.

What always holds of one that was read:

* ``counted`` is true only when Postgres has answered that it counts.
* One that only was announced may have counted, or never: it was put before Postgres was asked, and
  then refused, or the answer was lost. :mod:`tideline.domain.catalog_fold` keeps the two apart.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar
from uuid import UUID

import crc32c

from tideline.domain.catalog_json import from_plain, to_plain
from tideline.domain.ids import TopicIdPartition, topic_id_to_base64
from tideline.domain.producer_tail import ProducerSeed
from tideline.errors import TidelineError

VERSION = 1
ROOT = "meta/"
"""Under the installation's prefix; then the version and the kind, each a folder."""
ANNOUNCED = ".announced"
"""At the end of the key of what has not counted."""
_HEAD = re.compile(rb"TLMETA (\d{1,9}) ([0-9a-f]{8}) (\d{1,12})\n")
_LONGEST_HEAD = 40


class CatalogError(TidelineError):
    """The bytes are not one whole record of this version."""


class CutRecord(CatalogError):
    """Bytes are missing at its end."""


class DamagedRecord(CatalogError):
    """Its bytes contradict its checksum, or are no record."""

    def __init__(self, what: str) -> None:
        super().__init__(f"damaged catalog record: {what}; restore it from another copy")


class UnknownRecordVersion(CatalogError):
    """A newer version wrote it."""

    def __init__(self, version: int | str) -> None:
        super().__init__(
            f"a catalog record has version {version}, version {VERSION} is known: use the version "
            "of tideline that wrote it, or a newer one"
        )


class UnknownRecordKind(CatalogError):
    """A newer version wrote it."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"a catalog record is of kind {kind!r}, which this version does not know: use the "
            "version of tideline that wrote it, or a newer one"
        )


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic is tracked under this name and id, or has got partitions."""

    kind: ClassVar[str] = "topic"
    topic_id: UUID
    name: str
    born_diskless: bool
    """False: it was created in Kafka and migrates."""
    partitions: int
    """How many it has; those from ``born_from`` on begin diskless, with B0 = 0 at epoch 0."""
    born_from: int


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """Kafka has deleted the topic: for good, whatever else is told of its id."""

    kind: ClassVar[str] = "topic-deleted"
    topic_id: UUID
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class Boundary:
    """B0 of a migrated partition, with what is set together with it."""

    kind: ClassVar[str] = "boundary"
    topic_id: UUID
    partition: int
    generation: int
    leader_epoch: int
    boundary: int
    seeds: tuple[ProducerSeed, ...] | None
    """``None``: not known any more, it was noted down after B0 was set."""
    prefix_log_start: int
    prefix_max_timestamp: int
    """ms; the largest below B0 and the offset of its first record, or -1."""
    prefix_max_timestamp_offset: int


@dataclass(frozen=True, slots=True)
class BoundaryReset:
    """B0 is unset again: of every smaller generation; of this one, the boundary that is named."""

    kind: ClassVar[str] = "boundary-reset"
    topic_id: UUID
    partition: int
    generation: int
    boundary: int
    """-1: there was none."""
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class MigrationAborted:
    """No partition of the topic had B0: whatever was announced up to these generations never
    counted."""

    kind: ClassVar[str] = "migration-aborted"
    topic_id: UUID
    generations: tuple[tuple[int, int], ...]
    """(partition, generation), by partition."""


@dataclass(frozen=True, slots=True)
class AcceptedGap:
    """An operator has given up ``[first, end)``, which ends at B0."""

    kind: ClassVar[str] = "accepted-gap"
    topic_id: UUID
    partition: int
    generation: int
    leader_epoch: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class SuffixStart:
    """Nothing below ``start`` is read from the suffix of the log with this B0 any more."""

    kind: ClassVar[str] = "suffix-start"
    topic_id: UUID
    partition: int
    boundary: int
    start: int


@dataclass(frozen=True, slots=True)
class PrefixStart:
    """Kafka's log start below this B0 has moved to ``start``; at B0 the prefix is gone."""

    kind: ClassVar[str] = "prefix-start"
    topic_id: UUID
    partition: int
    boundary: int
    start: int


@dataclass(frozen=True, slots=True)
class HeldConfig:
    """A topic config that Tideline holds in Kafka, or has let go of. The latest word counts."""

    kind: ClassVar[str] = "held-config"
    topic_id: UUID
    key: str
    held: bool
    override_value: str | None
    user_value: str | None
    """What the user has set; ``None``: nothing."""
    noted_at_ms: int
    """By the clock of whoever wrote it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the suffix enforces from then on; ``None``: that limit stays. The latest word counts."""

    kind: ClassVar[str] = "limits"
    topic_id: UUID
    timestamp_type: str | None
    max_message_bytes: int | None
    timestamp_before_max_ms: int | None
    timestamp_after_max_ms: int | None
    noted_at_ms: int


@dataclass(frozen=True, slots=True)
class MergedSegment:
    """A segment of the tiered bucket holds these offsets of the suffix, in place of WAL objects.
    Its objects' keys follow from topic, ``base_offset`` and id, and its ``.snapshot`` has the
    producers after ``last_offset``. Sizes in bytes, times in ms."""

    kind: ClassVar[str] = "merged-segment"
    topic_id: UUID
    partition: int
    segment_id: UUID
    base_offset: int
    last_offset: int
    size_bytes: int
    max_timestamp: int
    record_count: int
    batch_count: int
    offset_index_bytes: int
    time_index_bytes: int


Record = (
    Topic
    | TopicDeleted
    | Boundary
    | BoundaryReset
    | MigrationAborted
    | AcceptedGap
    | SuffixStart
    | PrefixStart
    | HeldConfig
    | Limits
    | MergedSegment
)
KINDS = MappingProxyType({found.kind: found for found in Record.__args__})
"""By the name in the object: only ever added to, and fields never change under one version."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of the catalog."""

    history_id: UUID
    """Of the Postgres that it was told."""
    counted: bool
    record: Record


def log_of(record: Record) -> TopicIdPartition | None:
    """The partition that it is about; ``None``: it is about a topic."""
    partition = getattr(record, "partition", None)
    return None if partition is None else TopicIdPartition(record.topic_id, partition)


def object_key(prefix: str, entry: Entry) -> str:
    """Where it lies in the diskless bucket: the same entry is the same object of the same bytes, so
    that each is written once and never changed."""
    record = entry.record
    said = _json({"history_id": str(entry.history_id), **_plain(record)})
    name = hashlib.sha256(said).hexdigest()[:32]
    log = log_of(record)
    place = topic_id_to_base64(record.topic_id) + (f"/{log.partition}" if log else "")
    state = "" if entry.counted else ANNOUNCED
    return f"{prefix}{ROOT}v{VERSION}/{record.kind}/{place}/{name}{state}"


def encode(entry: Entry) -> bytes:
    body = _json(
        {
            "history_id": str(entry.history_id),
            "counted": entry.counted,
            "record": _plain(entry.record),
        }
    )
    return _head(body) + body


def decode(data: bytes) -> Entry:
    """Raises :class:`CutRecord`, :class:`DamagedRecord`, :class:`UnknownRecordVersion` or
    :class:`UnknownRecordKind` for what is not one whole record."""
    head = _HEAD.match(data)
    if head is None:
        if b"\n" not in data[:_LONGEST_HEAD] and len(data) < _LONGEST_HEAD:
            raise CutRecord(f"{len(data)} bytes end within the head of a catalog record")
        raise DamagedRecord(f"it begins with {data[:16]!r}")
    if int(head[1]) != VERSION:
        raise UnknownRecordVersion(int(head[1]))
    body = data[head.end() :]
    if len(body) < int(head[3]):
        raise CutRecord(f"{len(body)} bytes of a catalog record of {int(head[3])}")
    if head[0] != _head(body):
        raise DamagedRecord(f"its head says {head[0]!r}, its body is of {_head(body)!r}")
    try:
        return _entry(json.loads(body))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedRecord(
            f"a body of version {VERSION} that does not fit it ({error})"
        ) from error


def assert_known(folders: Iterable[str], prefix: str) -> None:
    """``folders``: "directories" that lie right under :data:`ROOT`, or under that of a version,
    each with ``prefix`` before it. Raises :class:`UnknownRecordVersion`,
    :class:`UnknownRecordKind` for what a newer version has made."""
    for folder in folders:
        version, _, kind = folder.removeprefix(prefix + ROOT).rstrip("/").partition("/")
        if version != f"v{VERSION}":
            raise UnknownRecordVersion(version)
        if kind and kind not in KINDS:
            raise UnknownRecordKind(kind)


def _head(body: bytes) -> bytes:
    return b"TLMETA %d %08x %d\n" % (VERSION, crc32c.crc32c(body), len(body))


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _plain(record: Record) -> dict[str, Any]:
    return {"kind": record.kind, **to_plain(record)}


def _entry(document: dict[str, Any]) -> Entry:
    plain = dict(document["record"])
    kind = plain.pop("kind")
    if not isinstance(kind, str):
        raise ValueError(f"a kind is a name, not {kind!r}")
    if kind not in KINDS:
        raise UnknownRecordKind(kind)
    if not isinstance(document["counted"], bool) or len(document) != 3:
        raise ValueError("it takes history_id, counted and record")
    record: Record = from_plain(KINDS[kind], plain)
    return Entry(UUID(document["history_id"]), document["counted"], record)
