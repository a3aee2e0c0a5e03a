"""How rows that SQL answers are read where a call's annotation does not say it, and as what B0 and
the producers at it are given to SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

import structlog
from psycopg.types.json import Jsonb

from tideline.control_plane.calls import Row, attributes, documents, mapper, rows
from tideline.control_plane.model import (
    BatchCoordinates,
    BoundaryToPersist,
    CommitError,
    CommittedBatch,
    ConfigOverride,
    FoundBatches,
    LogProducer,
    MigrationChanges,
    MigrationRequest,
    MigrationStatusChanges,
    MovedHighWatermark,
    OperatorAction,
    PartitionMigrationStatus,
    SegmentCoordinates,
    SuffixOffset,
    TopicMigrationSummary,
    TopicStatus,
    TrackedChanges,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
    WatchFinding,
)
from tideline.control_plane.table_model import VerifyVerdict
from tideline.control_plane.told_model import Told, told_by_topic
from tideline.domain.ack_gate import Standing
from tideline.domain.history import ServerIdentity
from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_tail import ProducerSeed
from tideline.domain.topic_configs import CREATE_TIME, LOG_APPEND_TIME

log = structlog.get_logger()


def seeds_given(seeds: Iterable[ProducerSeed]) -> tuple[Jsonb]:
    """In one order, so that equal seeds have one row_readers."""
    ordered = sorted(seeds, key=lambda s: (s.producer_id, s.producer_epoch, s.base_offset))
    return documents(ordered)


def boundary_given(boundary: BoundaryToPersist) -> Iterable[object]:
    yield from attributes("log", "boundary", "leader_epoch", "generation")(boundary)
    yield from seeds_given(boundary.seeds)
    prefix = ("prefix_log_start", "prefix_max_timestamp", "prefix_max_timestamp_offset")
    yield from attributes(*prefix)(boundary)


def tracked_topics(found: Sequence[Row]) -> list[TrackedTopic]:
    return list(map(_topic, found))


def tracked_topic(found: Sequence[Row]) -> TrackedTopic | None:
    return _topic(found[0]) if found else None


def _topic(row: Row) -> TrackedTopic:
    """Partitions and overrides are jsonb arrays; a topic has them by number and by key.

    What a newer version has written and this one cannot read is not guessed, and costs no other
    topic its reading: the partition has no row here, or the topic no partitions, so that nobody
    serves it (architecture "Fencing 3").
    """
    overrides = {view["key"]: mapper(ConfigOverride)(view) for view in row["overrides"]}
    views = {view["partition"]: _partition(view) for view in row["partitions"]}
    partitions = {number: view for number, view in views.items() if view is not None}
    whole = {**row, "partitions": partitions, "overrides": overrides}
    try:
        return mapper(TrackedTopic)(whole)
    except ValueError as error:
        _log_unknown(row["name"], error)
        known = {"kind": TrackingKind.MIGRATED, "status": TopicStatus.ACTIVE, "partitions": {}}
        return mapper(TrackedTopic)({**whole, **known})


def _partition(view: Row) -> TrackedPartition | None:
    try:
        return mapper(TrackedPartition)(view)
    except ValueError as error:
        _log_unknown(f"{view['topic_id']}-{view['partition']}", error)
        return None


def _log_unknown(what: str, error: ValueError) -> None:
    log.error(
        "tracked.unknown_to_this_version",
        of=what,
        error=str(error),
        remedy="upgrade this process to the version of those that write it; until then it serves "
        "nothing of this",
    )


def tracked_changes(found: Sequence[Row]) -> TrackedChanges:
    """The first row says how far it goes; the others are what :func:`tracked_topics` reads, a name
    under which nothing is tracked, or partitions of a topic that is as it was otherwise."""
    reading, *changes = found
    whole = [row for row in changes if not row["by_partition"]]
    return TrackedChanges(
        upto=reading["upto"],
        identity=mapper(ServerIdentity)(reading["identity"]),
        names=frozenset(row["changed"] for row in whole),
        topics=tuple(tracked_topics([row for row in whole if row["name"] is not None])),
        rows={
            TopicIdPartition(row["topic_id"], view["partition"]): _partition(view)
            for row in changes
            if row["by_partition"]
            for view in row["partitions"]
        },
    )


def migration_changes(found: Sequence[Row]) -> MigrationChanges:
    reading, *changes = found
    summaries = rows(TopicMigrationSummary)([row for row in changes if row["topic"] is not None])
    return MigrationChanges(reading["upto"], reading["whole"], _names(changes), tuple(summaries))


def status_changes(found: Sequence[Row]) -> MigrationStatusChanges:
    reading, *changes = found
    read = [row for row in changes if row["phases"] is not None]
    moved = [row for row in changes if row["topic"] is not None and row["phases"] is None]
    return MigrationStatusChanges(
        reading["upto"],
        reading["whole"],
        _names(changes),
        tuple(rows(PartitionMigrationStatus)(read)),
        tuple(rows(MovedHighWatermark)(moved)),
    )


def told(found: Sequence[Row]) -> dict[str, Told]:
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        by_kind[row["kind"]].append(row["told"])
    return told_by_topic(
        rows(MigrationRequest)(by_kind["request"]),
        rows(OperatorAction)(by_kind["action"]),
        rows(VerifyVerdict)(by_kind["verdict"]),
        rows(WatchFinding)(by_kind["finding"]),
    )


def _names(changes: Iterable[Row]) -> frozenset[str]:
    return frozenset(row["changed"] for row in changes if row["changed"] is not None)


def partition_view(found: Sequence[Row]) -> TrackedPartition | None:
    view = found[0]["tracked_partition"] if found else None
    return mapper(TrackedPartition)(view) if view else None


def committed(found: Sequence[Row]) -> list[CommittedBatch]:
    """As :func:`~tideline.control_plane.calls.rows` has them; each object has hundreds."""
    return [
        CommittedBatch(
            CommitError(row["error"]),
            row["base_offset"],
            row["append_time"],
            row["log_start"],
            row["high_watermark"],
        )
        for row in found
    ]


def _coordinates(row: Row) -> BatchCoordinates | None:
    if row["object_key"] is None:
        return None
    return BatchCoordinates(
        object_key=row["object_key"],
        byte_offset=row["byte_offset"],
        byte_size=row["byte_size"],
        base_offset=row["base_offset"],
        last_offset=row["last_offset"],
        timestamp_type=LOG_APPEND_TIME if row["log_append_time"] else CREATE_TIME,
        append_time=row["append_time"],
        max_timestamp=row["max_timestamp"],
    )


def found_batches(found: Sequence[Row]) -> list[FoundBatches]:
    """Rows come in the order of the requests, one per batch and one without any for none."""
    return [_found(list(answer)) for _, answer in groupby(found, key=lambda row: row["request"])]


def _found(answer: Sequence[Row]) -> FoundBatches:
    segment = answer[0]["segment"]
    return FoundBatches(
        error=answer[0]["error"],
        log_start=answer[0]["log_start"],
        high_watermark=answer[0]["high_watermark"],
        batches=tuple(filter(None, map(_coordinates, answer))),
        segment=None if segment is None else mapper(SegmentCoordinates)(segment),
    )


def suffix_offset(found: Sequence[Row]) -> SuffixOffset:
    (row,) = found
    return SuffixOffset(
        error=row["error"],
        offset=row["found_offset"],
        timestamp=row["found_timestamp"],
        batch=_coordinates(row),
        segments=tuple(map(mapper(SegmentCoordinates), row["segments"])),
        suffix_start=row["suffix_start"],
    )


def standings(found: Sequence[Row]) -> dict[TopicIdPartition, Standing]:
    standing = mapper(Standing)
    return {TopicIdPartition(row["topic_id"], row["partition"]): standing(row) for row in found}


def overrides_by_key(found: Sequence[Row]) -> dict[str, ConfigOverride]:
    return {override.key: override for override in rows(ConfigOverride)(found)}


def high_watermarks(found: Sequence[Row]) -> dict[TopicIdPartition, int]:
    return {mapper(TopicIdPartition)(row): row["high_watermark"] for row in found}


def log_producers(found: Sequence[Row]) -> dict[TopicIdPartition, list[LogProducer]]:
    told: dict[TopicIdPartition, list[LogProducer]] = {}
    for row in found:
        told.setdefault(mapper(TopicIdPartition)(row), []).append(mapper(LogProducer)(row))
    return told
