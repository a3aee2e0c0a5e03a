"""A tail past B0, kept: raw batches of a replica's log, in the object store for forensics."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from tideline.domain.ids import TopicIdPartition, topic_id_to_base64
from tideline.kafka.batches import BatchHeader, iter_fetched
from tideline.kafka.log_reader import LogReader
from tideline.object_store.inventory import SegmentInventory

MAX_EXPORT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LastKept:
    """The newest batch of a log that is kept. Kafka's logs that agree on one batch agree on
    everything before it, so a log that still has it has only grown since."""

    base_offset: int
    leader_epoch: int
    crc: int

    @classmethod
    def of(cls, batch: BatchHeader) -> LastKept:
        return cls(batch.base_offset, batch.partition_leader_epoch, batch.crc)


@dataclass(frozen=True, slots=True)
class ExportedTail:
    to: int
    """Where what was exported ends (exclusive)."""
    bytes: int
    sha256: str
    address: str | None
    """``None``: the broker served nothing new of it."""
    last: LastKept | None = None
    from_the_start: bool = True
    """Not behind what was kept before: the log is another one than it was."""


def _nobody_waits() -> None:
    """For a caller that need not be told that the export goes on."""


async def export_tail(
    reader: LogReader,
    inventory: SegmentInventory,
    topic: str,
    log: TopicIdPartition,
    served: tuple[int, int],
    node: int,
    alive: Callable[[], None] = _nobody_waits,
    *,
    behind: LastKept | None = None,
    max_bytes: int = MAX_EXPORT_BYTES,
) -> ExportedTail:
    """Keep the batches of ``served`` (offsets; the end is exclusive) that ``node`` has.

    ``behind``: what is kept already; only what follows it is exported, unless the log does not
    have it any more. At most about ``max_bytes`` at once. An object's key says its offsets and its
    content: what is exported again is the same object, another log of the same offsets is another.

    Raises ``KafkaError``, ``KafkaUnavailable``, ``ObjectStoreUnavailable``, ``InvalidBatch``.
    """
    start, end = served
    position = start if behind is None else behind.base_offset
    data = bytearray()
    first, last, checked = -1, behind, behind is None
    while position < end and len(data) < max_bytes:
        alive()
        piece = await reader.fetch(topic, log.partition, position, node=node)
        whole = list(iter_fetched(piece.data))
        if not whole or whole[-1].last_offset < position:
            break
        position, begin = whole[-1].last_offset + 1, 0
        if not checked:
            if LastKept.of(whole[0]) != behind:
                return await export_tail(
                    reader, inventory, topic, log, served, node, alive, max_bytes=max_bytes
                )
            checked, begin = True, whole[0].end
            del whole[0]
        if whole:
            first = whole[0].base_offset if first < 0 else first
            data += piece.data[begin : whole[-1].end]
            last = LastKept.of(whole[-1])
    address = None
    sha256 = hashlib.sha256(data).hexdigest()
    if data:
        key = (
            f"forensics/{topic}-{topic_id_to_base64(log.topic_id)}/{log.partition}/"
            f"{first:020d}-{position:020d}-{sha256[:16]}.batches"
        )
        address = await inventory.export(key, bytes(data))
    return ExportedTail(position, len(data), sha256, address, last, behind is None)
