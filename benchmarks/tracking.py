"""What holds a gateway's event loop up, as it was and as it is: `python -m benchmarks.tracking`.

No stack: the parts alone, in one process, both ways one after the other. *Pause* is the longest
time in which the event loop did nothing else; a tenth of the lease is 300 ms.
"""

from __future__ import annotations

import asyncio
import gc
import struct
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import count
from uuid import UUID

from tideline.background import cancel_and_wait, keep
from tideline.control_plane.model import (
    TopicStatus,
    TrackedPartition,
    TrackedTopic,
    TrackingKind,
)
from tideline.domain.migration import MigrationState
from tideline.gateway.tracking.view import TrackingView
from tideline.kafka.batches import HEADER_BYTES, LOG_OVERHEAD, MAGIC, iter_fetched, truncate_at
from tideline.kafka.decoding import beside_the_loop
from tideline.object_store.byte_ranges import ByteRange, ReadRanges, coalesce

PARTITIONS_PER_TOPIC = 100
ROUNDS = 5
TICK_S = 0.001


def tracked(partitions: int) -> list[TrackedTopic]:
    """Hybrid topics of 100 partitions each."""
    return [
        TrackedTopic(
            name=f"topic-{number}",
            topic_id=(topic_id := UUID(int=number + 1)),
            kind=TrackingKind.MIGRATED,
            status=TopicStatus.ACTIVE,
            timestamp_type="CreateTime",
            max_message_bytes=1_048_588,
            partitions={
                partition: TrackedPartition(
                    topic_id=topic_id,
                    partition=partition,
                    state=MigrationState.HYBRID,
                    generation=1,
                    quiesced=False,
                    boundary=1_000 + partition,
                    boundary_epoch=3,
                    high_watermark=2_000 + partition,
                    suffix_start=1_000 + partition,
                    prefix_max_timestamp=-1,
                    prefix_max_timestamp_offset=-1,
                    ready=True,
                )
                for partition in range(PARTITIONS_PER_TOPIC)
            },
            overrides={},
        )
        for number in range(partitions // PARTITIONS_PER_TOPIC)
    ]


async def pause(work: Callable[[], Awaitable[object]]) -> float:
    """The longest pause of the event loop while ``work`` ran, in ms; the best of all rounds."""
    longest = last = 0.0

    async def tick() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    found = []
    for _ in range(ROUNDS):
        longest, last = 0.0, time.perf_counter()
        ticking = keep(tick(), "tick")
        await asyncio.sleep(0.01)
        longest = 0.0
        await work()
        await asyncio.sleep(0.01)
        await cancel_and_wait(ticking)
        found.append((longest - TICK_S) * 1000)
    return min(found)


async def full_reading(partitions: int) -> tuple[float, float]:
    """A reading in which one partition has changed, taken over on the loop and from a thread."""
    view = TrackingView(lambda: True)
    topics, generation = tracked(partitions), count(2)
    view.replace_all(topics)

    def changed() -> list[TrackedTopic]:
        first = topics[0]
        row = replace(first.partitions[0], generation=next(generation))
        return [replace(first, partitions={**first.partitions, 0: row}), *topics[1:]]

    async def on_the_loop() -> None:
        view.replace_all(changed())

    async def from_a_thread() -> None:
        reading = changed()
        view.replace_all(await asyncio.to_thread(view.read_anew, reading))

    return await pause(on_the_loop), await pause(from_a_thread)


def memory(partitions: int) -> float:
    """Bytes that a gateway holds for each tracked partition: its row in the view, its offsets, and
    what each topic adds, spread over its partitions (seed 002, 8.3)."""
    # What all views share is there before.
    TrackingView(lambda: True).replace_all(tracked(PARTITIONS_PER_TOPIC))
    gc.collect()
    tracemalloc.start()
    try:
        view = TrackingView(lambda: True)
        view.replace_all(tracked(partitions))
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        assert view.has_topics(), "it is still held"
        return held / partitions
    finally:
        tracemalloc.stop()


def by_comparing(batches: Sequence[ByteRange], read: Sequence[ByteRange]) -> None:
    """How batches were matched with what was read of their objects: each with each."""
    for batch in batches:
        next(r for r in read if r.key == batch.key and r.start <= batch.start < r.end)


def by_searching(batches: Sequence[ByteRange], read: Sequence[ByteRange]) -> None:
    """How they are matched now."""
    held = ReadRanges({part: memoryview(bytes(part.size)) for part in read})
    for batch in batches:
        held.slice(batch)


def matching(batches: int) -> tuple[float, float]:
    """Both ways, in ms: one batch per object, as a topic with little traffic has them."""
    wanted = [ByteRange(f"wal/{number}", 0, 100) for number in range(batches)]
    read = coalesce(wanted)
    found = []
    for way in (by_comparing, by_searching):
        began = time.perf_counter()
        way(wanted, read)
        found.append((time.perf_counter() - began) * 1000)
    return found[0], found[1]


def small_batches(megabytes: int) -> bytes:
    """Batches of one empty record each, from offset 0 on."""
    size = HEADER_BYTES + 10
    head = struct.Struct(">qiiB44x")
    rest = bytes(size - head.size)
    return b"".join(
        head.pack(offset, size - LOG_OVERHEAD, 0, MAGIC) + rest
        for offset in range(megabytes * 1_000_000 // size)
    )


async def prefix_answer(megabytes: int) -> tuple[float, float]:
    """The end of an answer's batches below B0, found on the loop from whole headers, and beside it
    from the fields that decide."""
    records = small_batches(megabytes)

    async def on_the_loop() -> None:
        assert all(header.last_offset < len(records) for header in iter_fetched(records))

    async def beside() -> None:
        assert await beside_the_loop(None, truncate_at, records, len(records)) is records

    return await pause(on_the_loop), await pause(beside)


def show(what: str, before: float, after: float) -> None:
    print(f"{what:<46} {before:>9.1f} ms {after:>9.1f} ms {before / max(after, 0.1):>7.1f}x")


async def main() -> None:
    print(f"{'':<46} {'before':>12} {'now':>12}")
    for partitions in (10_000, 50_000):
        before, after = await full_reading(partitions)
        show(f"pause: one change among {partitions:,} partitions", before, after)
    for batches in (500, 4_000):
        show(f"matching {batches:,} batches, one per object", *matching(batches))
    for megabytes in (5, 55):
        show(f"pause: {megabytes} MB of small batches", *await prefix_answer(megabytes))
    print()
    for partitions in (10_000, 50_000):
        print(
            f"memory of each of {partitions:,} tracked partitions: {memory(partitions):,.0f} bytes"
        )


if __name__ == "__main__":
    asyncio.run(main())
