"""What the planner is told of Kafka's part of a topic: where each log begins, its lineage, and its
remote segments. Brokers are asked for metadata only; no record comes from them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

from kio.schema.errors import ErrorCode

from spark.common.stores import shared_store
from tideline.control_plane.tiering_model import PartitionRow
from tideline.domain.coverage import OffsetRange
from tideline.domain.ids import TopicIdPartition
from tideline.domain.remote_log import EpochStart, RemoteLogIndex, RemoteSegment
from tideline.domain.table import PrefixPiece, TableRefused, TableUnreadable
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import DEBUG_CONSUMER, KafkaObserver, OffsetSpec, TopicLayout
from tideline.kafka.remote_log_reader import RemoteLogFollower
from tideline.kafka.segment_files import SegmentFile
from tideline.kafka.txn_index import AbortedTxn, MalformedTxnIndex, decode_txn_index
from tideline.object_store.client import ObjectMissing
from tideline.object_store.inventory import segment_stem
from tideline.settings import JobsSettings

APPLICATION = "tideline-table"
AT_ONCE = 32
"""Partitions that brokers are asked for side by side, and objects that are read so."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Kafka's log of one partition, as far as it lies below B0."""

    log_start: int
    lineage: tuple[EpochStart, ...] = ()
    """Empty: nothing of it is left."""


def has_prefix(row: PartitionRow) -> bool:
    """Whether Kafka may have offsets of the partition."""
    return row.kind == "migrated" and row.state != "DISKLESS_ONLY" and row.boundary > 0


def prefixes(
    settings: JobsSettings, rows: Iterable[PartitionRow]
) -> dict[TopicIdPartition, Prefix]:
    """Of those of ``rows`` that :func:`has_prefix` names.

    Raises ``KafkaUnavailable``, ``KafkaError``, :class:`TableRefused` when Kafka has another topic
    of this name.
    """
    wanted = [row for row in rows if has_prefix(row)]
    return asyncio.run(_prefixes(settings, wanted)) if wanted else {}


async def _prefixes(
    settings: JobsSettings, rows: Sequence[PartitionRow]
) -> dict[TopicIdPartition, Prefix]:
    async with KafkaCluster.of(settings, APPLICATION) as cluster:
        observer = KafkaObserver(cluster, settings.kafka_request_timeout_ms)
        slots = asyncio.Semaphore(AT_ONCE)

        async def layout(topic: str, topic_id: UUID) -> TopicLayout:
            async with slots:
                found = await observer.topic(topic, topic_id=topic_id)
            if found is None:
                raise TableRefused(f"Kafka has no topic {topic!r} any more")
            return found

        topics = list({(row.topic, row.topic_id) for row in rows})
        layouts = await asyncio.gather(*(layout(*one) for one in topics))
        of_topic = {topic_id: one for (_, topic_id), one in zip(topics, layouts, strict=True)}

        async def look(row: PartitionRow) -> Prefix:
            async with slots:
                return await _look(observer, of_topic[row.topic_id], row)

        found = await asyncio.gather(*(look(row) for row in rows))
    return {row.log: one for row, one in zip(rows, found, strict=True)}


def remote_segments(
    settings: JobsSettings, found: Mapping[TopicIdPartition, Prefix]
) -> RemoteLogIndex:
    """Of the topics of which something is left of a prefix. The metadata topic is read once, after
    the logs' starts were: retention that moves one meanwhile makes a part missing and never an old
    one readable. Raises as :func:`prefixes`, and ``MetadataNotUnderstood``."""
    needed = {log.topic_id for log, one in found.items() if one.lineage}
    return asyncio.run(_read(settings, needed)) if needed else RemoteLogIndex()


async def _read(settings: JobsSettings, topic_ids: set[UUID]) -> RemoteLogIndex:
    async with KafkaCluster.of(settings, APPLICATION) as cluster:
        return await RemoteLogFollower(cluster, settings.kafka_request_timeout_ms).once(topic_ids)


async def _look(observer: KafkaObserver, layout: TopicLayout, row: PartitionRow) -> Prefix:
    where = layout.partitions.get(row.partition)
    if where is None or where.leader < 0:
        raise KafkaError(
            ErrorCode.leader_not_available,
            f"{row.topic}-{row.partition} has no leader: nobody tells where its prefix begins",
        )
    start = await observer.offset(
        row.topic, row.partition, OffsetSpec.EARLIEST, node=where.leader, replica_id=DEBUG_CONSUMER
    )
    if start.offset >= row.prefix_end:
        return Prefix(start.offset)
    return Prefix(start.offset, await observer.lineage(row.topic, where, start.offset))


def object_key_stem(settings: JobsSettings, segment: RemoteSegment) -> str:
    """The key of a remote segment's objects, without the suffix."""
    return segment_stem(
        settings.s3_tiered_prefix, segment.topic, segment.log, segment.start_offset,
        segment.segment_id,
    )  # fmt: skip


def aborted_transactions(
    settings: JobsSettings, cover: Iterable[PrefixPiece], told_from: int
) -> tuple[AbortedTxn, ...]:
    """Those whose abort marker lies in ``cover``, which must reach from the first offset that is
    read to the end of the prefix: a marker may lie far behind its records. ``told_from``:
    :func:`tideline.domain.coverage.txn_indexes_told_from` of its log.

    Raises :class:`TableUnreadable`, and as the object store does.
    """
    pieces = [piece for piece in cover if not piece.segment.txn_index_empty]
    if not pieces:
        return ()
    store = shared_store(settings)

    def read(piece: PrefixPiece) -> list[AbortedTxn]:
        key = object_key_stem(settings, piece.segment) + SegmentFile.TXN_INDEX
        try:
            found = decode_txn_index(store.get(settings.s3_tiered_bucket, key))
        except (ObjectMissing, MalformedTxnIndex) as error:
            if isinstance(error, ObjectMissing) and piece.segment.start_offset < told_from:
                return []
            raise TableUnreadable(
                f"aborted transactions of offsets {piece.range}: {key}: {error}; restore the "
                "object, or read with isolation=read_uncommitted (a plugin that packs the indexes "
                "of segments with transactions is not supported)",
                piece.range.start,
                piece.range.end - 1,
            ) from error
        return [one for one in found if piece.range.start <= one.last_offset < piece.range.end]

    with ThreadPoolExecutor(min(AT_ONCE, len(pieces))) as threads:
        return tuple(one for found in threads.map(read, pieces) for one in found)


def overlapping(transactions: Sequence[AbortedTxn], wanted: OffsetRange) -> tuple[AbortedTxn, ...]:
    """Those that may have records in ``wanted``."""
    return tuple(
        one
        for one in transactions
        if one.first_offset < wanted.end and one.last_offset >= wanted.start
    )
