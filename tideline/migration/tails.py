"""A tail past B0, kept: raw batches of a replica's log, in the object store for forensics."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from tideline.domain.ids import TopicIdPartition, topic_id_to_base64
from tideline.kafka.batches import iter_fetched
from tideline.kafka.log_reader import LogReader
from tideline.object_store.inventory import SegmentInventory

MAX_EXPORT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ExportedTail:
    to: int
    """Where what was exported ends (exclusive)."""
    bytes: int
    sha256: str
    address: str | None
    """``None``: the broker served nothing of it."""


def _nobody_waits() -> None:
    """For a caller that need not be told that the export goes on."""


async def export_tail(
    reader: LogReader,
    inventory: SegmentInventory,
    topic: str,
    log: TopicIdPartition,
    boundary: int,
    served: tuple[int, int],
    node: int,
    alive: Callable[[], None] = _nobody_waits,
) -> ExportedTail:
    """Keep the batches of ``served`` (offsets; the end is exclusive) that ``node`` has.

    The same range is the same object again. Raises ``KafkaError``, ``KafkaUnavailable``,
    ``ObjectStoreUnavailable``.
    """
    position, end = served
    data = bytearray()
    while position < end and len(data) < MAX_EXPORT_BYTES:
        alive()
        piece = await reader.fetch(topic, log.partition, position, node=node)
        whole = list(iter_fetched(piece.data))
        if not whole or whole[-1].last_offset < position:
            break
        data += piece.data[: whole[-1].end]
        position = whole[-1].last_offset + 1
    address = None
    if data:
        key = (
            f"forensics/{topic}-{topic_id_to_base64(log.topic_id)}/{log.partition}/"
            f"{boundary:020d}-{position:020d}.batches"
        )
        address = await inventory.export(key, bytes(data))
    return ExportedTail(position, len(data), hashlib.sha256(data).hexdigest(), address)
