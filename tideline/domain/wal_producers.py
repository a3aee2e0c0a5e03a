"""What the batches of a bucket tell of a log's idempotent producers (decision 0022).

Postgres judges a batch by what its producer wrote before, also where that has been deleted since,
and the objects with it. What always holds: of a producer whose last batch may be missing nothing is
said, neither that a batch of it was refused nor that it was taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from tideline.domain.log_batch import LogBatch
from tideline.domain.producer_state import (
    NOBODY_KNOWS,
    KnownProducers,
    ProducerEntry,
    RememberedBatch,
    follows,
    judge,
    known_from,
    remember,
)
from tideline.domain.wal_footer import FooterBatch

SURELY_KEPT_MS = 5 * 60 * 1000
"""Postgres has not forgotten a producer that wrote within this time: the brokers'
``producer.id.expiration.ms`` is longer. Nor has it written 2^31 records meanwhile."""


def producers_after(
    known: KnownProducers, rows: Iterable[LogBatch], start: int = 0
) -> dict[int, ProducerEntry]:
    """Producer state when ``rows``, in offset order, were appended after ``known``, the state at
    ``start``.

    A row that does not follow its producer's state was committed all the same: the state had
    expired, or what came between is not in the bucket. Which of the two nobody knows, so its
    producer may have appended more before it.
    """
    producers, are_all = dict(known.entries), known.are_all
    for row in rows:
        # Who wrote what is missing nobody knows.
        are_all = are_all and row.base_offset <= start
        start = row.last_offset + 1
        batch = row.footer
        if batch.producer_id < 0:
            continue
        entry = producers.get(batch.producer_id)
        is_next = (
            are_all
            if entry is None
            else judge(entry, batch.producer_epoch, batch.base_sequence, batch.last_sequence).error
            == "NONE"
        )
        producers[batch.producer_id] = remember(
            entry if is_next else known_from(batch.producer_epoch, batch.base_sequence),
            batch.producer_epoch,
            RememberedBatch(
                batch.base_sequence, batch.last_sequence, row.base_offset, row.append_time
            ),
            row.append_time,
        )
    return producers


def unbroken_runs(rows: Iterable[LogBatch]) -> list[list[LogBatch]]:
    """``rows``, in offset order, cut where an offset is missing between two."""
    runs: list[list[LogBatch]] = []
    for row in rows:
        if runs and row.base_offset <= runs[-1][-1].last_offset + 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def producers_at_end(
    at_start: KnownProducers, start: int | None, rows: Sequence[LogBatch]
) -> KnownProducers:
    """Behind the last of ``rows``, which are in offset order; at ``start`` if they end before it.
    ``at_start``: those before the batch at ``start``."""
    runs = unbroken_runs(rows)
    last = runs[-1] if runs else []
    if start is not None and (not last or last[-1].last_offset + 1 < start):
        return at_start
    if start is None or last[0].base_offset > start:
        return KnownProducers(producers_after(NOBODY_KNOWS, last))
    before = at_start
    if not at_start.are_all:
        below = producers_after(NOBODY_KNOWS, (row for row in last if row.base_offset < start))
        before = KnownProducers({**below, **at_start.entries})
    after = producers_after(before, (row for row in last if row.base_offset >= start), start)
    return KnownProducers(after, at_start.are_all)


def told_until(rows: Iterable[LogBatch], end: int) -> dict[int, ProducerEntry]:
    """Producers at offset ``end`` by the rows below it, as far as no offset is missing: the objects
    of what was merged outlive the merge for a while."""
    below = unbroken_runs([row for row in rows if row.last_offset < end])
    if not below or below[-1][-1].last_offset + 1 != end:
        return {}
    return producers_after(NOBODY_KNOWS, below[-1])


def in_full(
    newest: Mapping[int, ProducerEntry], told: Mapping[int, ProducerEntry]
) -> dict[int, ProducerEntry]:
    """``newest``, a state with one batch of each producer, with as many as are ``told`` of one that
    ends with the same batch."""
    return {
        number: mine
        if (mine := told.get(number)) is not None and _end_alike(mine, entry)
        else entry
        for number, entry in newest.items()
    }


def _end_alike(one: ProducerEntry, other: ProducerEntry) -> bool:
    return (one.epoch, one.last_sequence, one.batches[-1:] and one.batches[-1].base_offset) == (
        other.epoch,
        other.last_sequence,
        other.batches[-1:] and other.batches[-1].base_offset,
    )


def why_not_taken(producers: KnownProducers, batches: Iterable[FooterBatch]) -> str:
    """Why nobody knows that a commit takes ``batches`` at the offset of ``producers``, or ``""``:
    then it does."""
    entries = dict(producers.entries)
    for batch in batches:
        if batch.producer_id < 0:
            continue
        entry = entries.get(batch.producer_id)
        if entry is None and not producers.are_all:
            return f"what producer {batch.producer_id} wrote before is not in the bucket"
        judged = judge(entry, batch.producer_epoch, batch.base_sequence, batch.last_sequence)
        if judged.error != "NONE":
            return "its sequences do not follow those of its producer at the end"
        sequences = RememberedBatch(batch.base_sequence, batch.last_sequence, -1, -1)
        entries[batch.producer_id] = remember(entry, batch.producer_epoch, sequences, -1)
    return ""


def taken_whole(
    known: KnownProducers,
    rows: Iterable[LogBatch],
    tail: Sequence[tuple[str, UUID, Sequence[FooterBatch]]],
    earliest: Mapping[str, int],
) -> set[str]:
    """Of the objects of ``tail`` the keys of those of which a commit takes every batch, wherever in
    the log it comes. ``known``: of an offset from which on nothing is missing but what is in the
    tail. ``rows``: told ones from there on, in offset order; from before if nothing is ``known``.
    ``tail``: key, stream, batches, in the order of each stream. ``earliest``: the first offset at
    which each may lie; what is told behind it need not have been there when it was committed."""
    streams: dict[int, set[UUID]] = defaultdict(set)
    for _, stream, batches in tail:
        for batch in batches:
            streams[batch.producer_id].add(stream)
    last: dict[int, tuple[int, int, int]] = {}
    """By producer, of its last batch: epoch, last sequence, last offset. Those of the tail have no
    offset: what is behind them in their stream is behind them in the log."""

    def add(batch: FooterBatch, last_offset: int) -> None:
        last[batch.producer_id] = batch.producer_epoch, batch.last_sequence, last_offset

    def is_taken(batch: FooterBatch, first: int) -> bool:
        if len(streams[batch.producer_id]) > 1:
            return False  # Which of them came first is not known.
        if batch.producer_id not in last:
            return known.are_all
        epoch, sequence, last_offset = last[batch.producer_id]
        if batch.producer_epoch == epoch and last_offset >= first:
            return False
        return follows(batch.producer_epoch, batch.base_sequence, epoch, sequence)

    for producer_id, entry in known.entries.items():
        if producer_id in streams:
            last[producer_id] = entry.epoch, entry.last_sequence, -1
    for row in rows:
        one = row.footer
        if one.producer_id in streams:
            add(one, row.last_offset)
    whole = set()
    for key, _, batches in tail:
        of_producers = [batch for batch in batches if batch.producer_id >= 0]
        taken = []
        for batch in of_producers:
            if is_taken(batch, earliest[key]):
                taken.append(batch)
                add(batch, -1)
        if len(taken) == len(of_producers):
            whole.add(key)
    return whole
