"""The tail of each partition's log, scanned for producer seeds.

The broker remembers one batch per producer for us to ask for; the last five come from the batch
headers at the log's tail. The long scan is done before the write pause and kept; inside the
pause only what was appended since is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tideline.domain.ids import TopicIdPartition
from tideline.domain.producer_tail import LastSequence, ProducerTail, TailBatch
from tideline.kafka.batches import iter_fetched
from tideline.kafka.layout import PartitionLayout
from tideline.kafka.log_reader import LogReader

STEP_OFFSETS = 2_000
MAX_BACK_BYTES = 64 * 1024 * 1024
"""How far back a scan reads; producers idle for longer are seeded from their last sequence."""
MAX_KEPT_TAILS = 10_000


class TailScanner:
    """Keeps one :class:`ProducerTail` per partition while its migration is under way."""

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
