"""Reads raw record batches from a partition's leader, in bounded pieces, and scans the tail of a
log for producer seeds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as fr
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_tail import LastSequence, ProducerTail, TailBatch
from tideline.kafka.batches import iter_fetched
from tideline.kafka.client import KafkaCluster
from tideline.kafka.errors import KafkaError, KafkaUnavailable
from tideline.kafka.observer import (
    CONSUMER,
    STALE_EPOCH_ERRORS,
    KafkaObserver,
    LeaderMoved,
    PartitionLayout,
    milliseconds,
)

logger = structlog.get_logger()

FETCH_BYTES = 4 * 1024 * 1024
EMPTY_ANSWERS_S = 60.0
"""How long a fetch is repeated that is answered without records, each time after what the broker
says of throttling."""
AGAIN_AFTER_S = 0.1


@dataclass(frozen=True, slots=True)
class FetchedPiece:
    """One answer. The first batch may begin before the offset asked; the last may be cut."""

    data: bytes
    high_watermark: int
    log_start: int
    aborted: tuple[tuple[int, int], ...] = ()
    """Producer id and first offset of each transaction that was, if that was asked for."""


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
        empty_answers_s: float = EMPTY_ANSWERS_S,
        apart: bool = False,
        committed: bool = False,
    ) -> FetchedPiece:
        """Batches from the one that holds ``offset`` on, at most about ``max_bytes``; none where
        the log ends.

        An answer without the partition (Kafka: ``FetchContext.getThrottledResponse``, of a client
        over its quota), or without records below the high watermark, says nothing of the log: the
        fetch is repeated. Raises :class:`LeaderMoved` if ``leader_epoch`` is not the broker's,
        :class:`KafkaError` for every other refusal, retriable ones also when ``empty_answers_s``
        are over. ``apart``: on a connection of its own, for what a broker may take long to answer.
        ``committed``: as ``read_committed``, which is told of aborted transactions.
        """
        request = _fetch_request(topic, partition, offset, leader_epoch, max_bytes, committed)
        what = f"fetch of {topic}-{partition} at {offset}"
        waited = 0.0
        while True:
            connection = await self._cluster.node(node, apart=apart)
            response = await connection.send(request, timeout_ms=self._timeout_ms)
            assert isinstance(response, FetchResponse)
            if response.error_code is not ErrorCode.none:
                raise KafkaError(response.error_code, what)
            found = [one for topic in response.responses for one in topic.partitions]
            if found:
                if found[0].error_code is not ErrorCode.none:
                    kind = LeaderMoved if found[0].error_code in STALE_EPOCH_ERRORS else KafkaError
                    raise kind(found[0].error_code, what)
                piece = FetchedPiece(
                    bytes(found[0].records or b""),
                    int(found[0].high_watermark),
                    int(found[0].log_start_offset),
                    tuple(
                        (int(one.producer_id), int(one.first_offset))
                        for one in found[0].aborted_transactions or ()
                    ),
                )
                if piece.data or offset >= piece.high_watermark:
                    return piece
            throttled_s = response.throttle_time.total_seconds()
            if waited >= empty_answers_s:
                raise KafkaError(
                    ErrorCode.throttling_quota_exceeded
                    if throttled_s
                    else ErrorCode.request_timed_out,
                    f"{what}: no records within {empty_answers_s:.0f} s of waiting, throttled for "
                    f"{throttled_s:.1f} s. See the fetch quotas of the worker's principal and "
                    "client id",
                )
            pause = max(AGAIN_AFTER_S, min(throttled_s, empty_answers_s - waited))
            await asyncio.sleep(pause)
            waited += pause


def _fetch_request(
    topic: str, partition: int, offset: int, leader_epoch: int, max_bytes: int, committed: bool
) -> fr.FetchRequest:
    return fr.FetchRequest(
        replica_id=BrokerId(CONSUMER),
        max_wait=i32Timedelta.parse(milliseconds(0)),
        min_bytes=i32(0),
        max_bytes=i32(max_bytes),
        isolation_level=i8(committed),
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


STEP_BYTES = 4 * 1024 * 1024
"""About as much is read at a time on the way back. Batches are whole: the last may be larger."""
LEAST_FETCH_BYTES = 64 * 1024
MAX_BACK_BYTES = 64 * 1024 * 1024
"""How far back a scan reads."""
LOCATE_BYTES = 8 * 1024 * 1024
"""How much is read for one producer that the scan did not reach: on from the time of its last
batch, and back from there."""
LOCATED_AT_ONCE = 20
RETRIED_WITHIN_MS = 15 * 60 * 1000
"""A client that was answered nothing gives a batch up within its ``delivery.timeout.ms`` (Java: two
minutes, librdkafka: five)."""
MAX_KEPT_TAILS = 10_000


class TailScanner:
    """Keeps one :class:`ProducerTail` per partition while its migration is under way.

    A broker tells one batch per producer; the last five come from the batch headers at the log's
    tail. The way back is read before the write pause and kept, step by
    step, so that an attempt that ends goes on from there; inside the pause only what was appended
    since is read.
    """

    def __init__(
        self,
        reader: LogReader,
        observer: KafkaObserver,
        *,
        max_back_bytes: int = MAX_BACK_BYTES,
        now_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._reader, self._observer = reader, observer
        self._max_back_bytes, self._now_ms = max_back_bytes, now_ms
        self._tails: dict[TopicIdPartition, tuple[int, ProducerTail]] = {}

    async def look_back(
        self,
        topic: str,
        log: TopicIdPartition,
        layout: PartitionLayout,
        active: Sequence[LastSequence],
        *,
        log_start: int,
        local_start: int,
        end: int,
    ) -> ProducerTail:
        """The tail up to ``end`` (exclusive, at most the high watermark), and back until it has
        what can be known of the ``active`` producers, at most ``max_back_bytes`` or to
        ``local_start`` (inclusive): not into remote storage. Those that it did not reach, and that
        may still send a batch again, are looked for by the time of their last one, from
        ``log_start`` (inclusive) on. For before the write pause.

        Continues the kept tail of the same leader epoch, else begins anew. Raises
        :class:`LeaderMoved`, and :class:`KafkaError`.
        """
        tail = self._kept(log, layout, end)
        if tail is None:
            tail = ProducerTail(end, end)
            self._keep(log, layout.leader_epoch, tail)
        await self._append(topic, layout, tail, end, most_bytes=self._max_back_bytes)
        await self._go_back(topic, layout, tail, active, local_start, self._max_back_bytes)
        since = self._now_ms() - RETRIED_WITHIN_MS
        away = [one for one in tail.unlocated(active) if one.last_timestamp >= since]
        away.sort(key=lambda one: -one.last_timestamp)
        for producer in away[:LOCATED_AT_ONCE]:
            found = await self._located(topic, layout, producer, log_start)
            tail.located[producer.producer_id] = found
        return tail

    async def _go_back(
        self,
        topic: str,
        layout: PartitionLayout,
        tail: ProducerTail,
        active: Sequence[LastSequence],
        first: int,
        max_bytes: int,
    ) -> None:
        """Extend ``tail`` back to ``first`` (inclusive), until it is satisfied or ``max_bytes``
        were read for it in all."""
        step, weight = 1, LEAST_FETCH_BYTES
        while (
            tail.scanned_from > first and tail.bytes_back < max_bytes and not tail.satisfied(active)
        ):
            start = max(first, tail.scanned_from - step)
            found = await self._before(topic, layout, start, tail.scanned_from, weight)
            tail.bytes_back += found.size
            if found.is_complete:
                offsets = tail.scanned_from - found.start
                tail.prepend(found.batches, found.start)
                # As many offsets as that many bytes seem to have, growing carefully.
                fitting = STEP_BYTES * offsets // max(found.size, 1)
                step = max(1, min(fitting, step * 8))
                weight = step * found.size // max(offsets, 1)
            elif found.size == 0:
                break  # retention has taken it
            else:
                step = max(1, step // 2)

    async def _located(
        self, topic: str, layout: PartitionLayout, producer: LastSequence, log_start: int
    ) -> list[TailBatch]:
        """The newest batches of ``producer``, also out of remote storage. None where they are gone,
        or where a broker says so much as that it cannot give them."""
        try:
            answer = await self._observer.offset(
                topic,
                layout.partition,
                producer.last_timestamp,
                node=layout.leader,
                leader_epoch=layout.leader_epoch,
            )
            position, spent = answer.offset, 0
            while position >= 0 and spent < LOCATE_BYTES:
                batches = await self._piece(topic, layout, position, FETCH_BYTES, apart=True)
                if batches is None:
                    break
                for batch in batches:
                    if _is_last_of(batch, producer):
                        behind = batch.last_offset + 1
                        tail = ProducerTail(behind, behind)
                        await self._go_back(
                            topic, layout, tail, [producer], log_start, LOCATE_BYTES
                        )
                        return tail.batches.get(producer.producer_id, [])
                spent += sum(batch.size_bytes for batch in batches)
                position = batches[-1].last_offset + 1
        except LeaderMoved:
            raise
        except (KafkaError, KafkaUnavailable) as error:
            logger.warning("producer.not_located", topic=topic, partition=layout.partition,
                        producer=producer.producer_id, error=str(error))  # fmt: skip
        return []

    async def catch_up(
        self, topic: str, log: TopicIdPartition, layout: PartitionLayout, end: int
    ) -> ProducerTail | None:
        """The kept tail, with what was appended since up to ``end`` (exclusive), and nothing else
        read: for inside the write pause. ``None``: none is kept of this leader epoch. Raises as
        :meth:`look_back`."""
        tail = self._kept(log, layout, end)
        if tail is not None:
            await self._append(topic, layout, tail, end)
        return tail

    def _kept(
        self, log: TopicIdPartition, layout: PartitionLayout, end: int
    ) -> ProducerTail | None:
        kept = self._tails.get(log)
        if kept is not None and kept[0] == layout.leader_epoch and kept[1].scanned_to <= end:
            return kept[1]
        return None

    def _keep(self, log: TopicIdPartition, epoch: int, tail: ProducerTail) -> None:
        self._tails.pop(log, None)
        self._tails[log] = (epoch, tail)
        while len(self._tails) > MAX_KEPT_TAILS:
            del self._tails[next(iter(self._tails))]

    def forget(self, log: TopicIdPartition) -> None:
        """The partition has crossed, or its migration has ended."""
        self._tails.pop(log, None)

    async def _append(
        self,
        topic: str,
        layout: PartitionLayout,
        tail: ProducerTail,
        end: int,
        *,
        most_bytes: int | None = None,
    ) -> None:
        """Piece by piece: what was read stays read when the next fetch fails. Where more than
        ``most_bytes`` came since, the tail begins anew at ``end``."""
        size = 0
        while tail.scanned_to < end:
            batches = await self._piece(topic, layout, tail.scanned_to, FETCH_BYTES)
            size += sum(batch.size_bytes for batch in batches or ())
            if batches is None or (most_bytes is not None and size > most_bytes):
                # Retention has taken what comes next: what was seen before it has a hole behind.
                tail.begin_anew(end)
                return
            tail.append(batches, min(end, batches[-1].last_offset + 1))

    async def _before(
        self, topic: str, layout: PartitionLayout, start: int, end: int, weight: int
    ) -> FoundBefore:
        """The batches of ``[start, end)``, from the one that holds ``start`` on: not all of them
        once more than twice the bytes of a step were read. ``weight``: bytes to ask for at a time,
        since what lies behind ``end`` comes with them."""
        weight = max(LEAST_FETCH_BYTES, min(weight, FETCH_BYTES))
        found: list[TailBatch] = []
        size, position = 0, start
        while position < end:
            batches = await self._piece(topic, layout, position, weight, apart=True)
            if batches is None:
                return FoundBefore([], start, 0, is_complete=False)
            inside = [b for b in batches if b.base_offset < end]
            found += inside
            size += sum(b.size_bytes for b in inside)
            position = batches[-1].last_offset + 1
            if position < end and size > 2 * STEP_BYTES:
                return FoundBefore([], start, size, is_complete=False)
        # Compaction may have taken every batch that was there.
        first = min([start, *(b.base_offset for b in found[:1])])
        return FoundBefore(found, first, size, is_complete=True)

    async def _piece(
        self,
        topic: str,
        layout: PartitionLayout,
        position: int,
        max_bytes: int,
        *,
        apart: bool = False,
    ) -> list[TailBatch] | None:
        """The batches of one fetch, at least one; ``None``: the log begins behind ``position``."""
        try:
            piece = await self._reader.fetch(
                topic,
                layout.partition,
                position,
                node=layout.leader,
                leader_epoch=layout.leader_epoch,
                max_bytes=max_bytes,
                apart=apart,
            )
        except KafkaError as error:
            if error.code is ErrorCode.offset_out_of_range:
                return None
            raise
        batches = list(tail_batches(piece.data))
        if not batches or batches[-1].last_offset < position:
            raise KafkaError(
                ErrorCode.request_timed_out,
                f"fetch of {topic}-{layout.partition} at {position}: no whole batch, below the "
                f"high watermark {piece.high_watermark}",
            )
        return batches


def _is_last_of(batch: TailBatch, producer: LastSequence) -> bool:
    return (batch.producer_id, batch.producer_epoch, batch.last_sequence) == (
        producer.producer_id,
        producer.producer_epoch,
        producer.last_sequence,
    )


@dataclass(frozen=True, slots=True)
class FoundBefore:
    """A step on the way back: its batches and its first offset (inclusive)."""

    batches: list[TailBatch]
    start: int
    size: int
    """Bytes that were read for it."""
    is_complete: bool


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
            size_bytes=header.size,
        )
