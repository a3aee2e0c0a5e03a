"""Reads raw record batches from a partition's leader, in bounded pieces, and scans the tail of a
log for producer seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as fr
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_tail import LastSequence, ProducerTail, TailBatch
from tideline.kafka.batches import iter_fetched
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError
from tideline.kafka.observer import (
    CONSUMER,
    STALE_EPOCH_ERRORS,
    LeaderMoved,
    PartitionLayout,
    milliseconds,
)

FETCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FetchedPiece:
    """One answer. The first batch may begin before the offset asked; the last may be cut."""

    data: bytes
    high_watermark: int
    log_start: int


class LogReader:
    """Sessionless fetches that never wait for data."""

    def __init__(self, cluster: KafkaCluster, timeout_ms: int = 10_000) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        node: int,
        leader_epoch: int = -1,
        max_bytes: int = FETCH_BYTES,
    ) -> FetchedPiece:
        """Batches from the one that holds ``offset`` on, at most about ``max_bytes``.

        Raises :class:`LeaderMoved` if ``leader_epoch`` is not the broker's, :class:`KafkaError`
        for every other refusal.
        """
        request = fr.FetchRequest(
            replica_id=BrokerId(CONSUMER),
            max_wait=i32Timedelta.parse(milliseconds(0)),
            min_bytes=i32(0),
            max_bytes=i32(max_bytes),
            isolation_level=i8(0),
            topics=(
                fr.FetchTopic(
                    topic=TopicName(topic),
                    partitions=(
                        fr.FetchPartition(
                            partition=i32(partition),
                            current_leader_epoch=i32(leader_epoch),
                            fetch_offset=i64(offset),
                            partition_max_bytes=i32(max_bytes),
                        ),
                    ),
                ),
            ),
            forgotten_topics_data=(),
        )
        connection = await self._cluster.node(node)
        response = await connection.send(request, timeout_ms=self._timeout_ms)
        assert isinstance(response, FetchResponse)
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, f"fetch of {topic}-{partition}")
        found = response.responses[0].partitions[0]
        if found.error_code is not ErrorCode.none:
            kind = LeaderMoved if found.error_code in STALE_EPOCH_ERRORS else KafkaError
            raise kind(found.error_code, f"fetch of {topic}-{partition} at {offset}")
        return FetchedPiece(
            bytes(found.records or b""), int(found.high_watermark), int(found.log_start_offset)
        )


STEP_OFFSETS = 2_000
MAX_BACK_BYTES = 64 * 1024 * 1024
"""How far back a scan reads; producers idle for longer are seeded from their last sequence."""
MAX_KEPT_TAILS = 10_000


class TailScanner:
    """Keeps one :class:`ProducerTail` per partition while its migration is under way.

    The broker remembers one batch per producer for us to ask for; the last five come from the
    batch headers at the log's tail. The long scan is done before the write pause and kept; inside
    the pause only what was appended since is read.
    """

    def __init__(self, reader: LogReader, *, max_back_bytes: int = MAX_BACK_BYTES) -> None:
        self._reader = reader
        self._max_back_bytes = max_back_bytes
        self._tails: dict[TopicIdPartition, tuple[int, ProducerTail]] = {}

    async def scan(
        self,
        topic: str,
        log: TopicIdPartition,
        layout: PartitionLayout,
        active: Sequence[LastSequence],
        *,
        local_start: int,
        end: int,
    ) -> ProducerTail:
        """The tail up to ``end`` (exclusive, at most the high watermark).

        Continues the kept scan of the same leader epoch, else starts anew. Never reads below
        ``local_start``, so never from remote storage. Raises :class:`LeaderMoved`.
        """
        kept = self._tails.get(log)
        if kept is not None and kept[0] == layout.leader_epoch and kept[1].scanned_to <= end:
            tail = kept[1]
        else:
            tail = ProducerTail(end, end)
        if tail.scanned_to < end:
            start = tail.scanned_to
            found, _ = await self._read(topic, layout, start, end)
            tail.append(found, end)
        spent = 0
        while (
            tail.scanned_from > local_start
            and spent < self._max_back_bytes
            and not tail.satisfied(active)
        ):
            start = max(local_start, tail.scanned_from - STEP_OFFSETS)
            found, size = await self._read(topic, layout, start, tail.scanned_from)
            tail.prepend(found, start)
            spent += size
        self._keep(log, layout.leader_epoch, tail)
        return tail

    def _keep(self, log: TopicIdPartition, epoch: int, tail: ProducerTail) -> None:
        self._tails.pop(log, None)
        self._tails[log] = (epoch, tail)
        while len(self._tails) > MAX_KEPT_TAILS:
            del self._tails[next(iter(self._tails))]

    def forget(self, log: TopicIdPartition) -> None:
        """The partition has crossed, or its migration has ended."""
        self._tails.pop(log, None)

    async def _read(
        self, topic: str, layout: PartitionLayout, start: int, end: int
    ) -> tuple[list[TailBatch], int]:
        found: list[TailBatch] = []
        size = 0
        position = start
        while position < end:
            piece = await self._reader.fetch(
                topic,
                layout.partition,
                position,
                node=layout.leader,
                leader_epoch=layout.leader_epoch,
            )
            batches = list(tail_batches(piece.data))
            size += len(piece.data)
            if not batches or batches[-1].last_offset < position:
                # Nothing at or past the position: the rest was removed by retention meanwhile.
                break
            found += [b for b in batches if start <= b.base_offset < end]
            position = batches[-1].last_offset + 1
        return found, size


def tail_batches(data: bytes) -> Iterable[TailBatch]:
    """The headers of the whole batches in ``data``."""
    for header in iter_fetched(data):
        yield TailBatch(
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            max_timestamp=header.max_timestamp,
            is_control=header.is_control,
        )
