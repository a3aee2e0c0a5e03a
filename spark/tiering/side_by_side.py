"""The partitions of one task: one after the other, and side by side where their segments are small.

A small segment waits for the stores most of the time: two transactions and eight objects, of which
the last ones follow each other. What a task holds in memory is bounded by the segments that it
builds at once, whosesoever they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from uuid import UUID

from spark.tiering.merge_partition import SEGMENTS_AT_ONCE, MergeOrder, merge_partition
from spark.tiering.outcomes import MergeOutcome
from spark.tiering.segment_build import ReadRanges
from spark.tiering.services import Services


def merge_partitions(
    services: Services,
    worker: UUID,
    orders: Iterable[MergeOrder],
    *,
    claim_ms: int,
    read: ReadRanges,
) -> Iterator[MergeOutcome]:
    """What :func:`merge_partition` makes of each, as it comes. What ends one of them ends the task,
    when those that are under way have ended: none keeps a claim that its next attempt would have to
    wait for."""
    told: SimpleQueue[MergeOutcome | Future[None]] = SimpleQueue()
    under_way: dict[Future[None], int] = {}

    def merge(order: MergeOrder) -> None:
        for outcome in merge_partition(services, worker, order, claim_ms=claim_ms, read=read):
            told.put(outcome)

    def until(segments: int) -> Iterator[MergeOutcome]:
        """Until no more than so many are being built."""
        while sum(under_way.values()) > segments:
            found = told.get()
            if isinstance(found, MergeOutcome):
                yield found
            else:
                del under_way[found]
                found.result()

    with ThreadPoolExecutor(SEGMENTS_AT_ONCE, thread_name_prefix="partition") as pool:
        for order in orders:
            segments = order.segments_at_once(order.pending_bytes)
            yield from until(SEGMENTS_AT_ONCE - segments)
            future = pool.submit(merge, order)
            under_way[future] = segments
            future.add_done_callback(told.put)
        yield from until(0)
