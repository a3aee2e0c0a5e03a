"""What a history says of one partition, and what follows for its ends."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from tests.history.operations import (
    Away,
    Commit,
    Committed,
    Deleted,
    EpochEnd,
    Fetch,
    ListOffsets,
    Outcome,
    Produce,
    Request,
    Truncated,
    Value,
    Which,
)


@dataclass(slots=True)
class Log:
    """What a history says of one partition."""

    produces: list[Produce] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    lists: list[ListOffsets] = field(default_factory=list)
    epochs: list[EpochEnd] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    deleted: list[Deleted] = field(default_factory=list)
    truncated: list[Truncated] = field(default_factory=list)
    away: list[Away] = field(default_factory=list)
    """Of all clients, of other partitions, too."""

    def may_be_gone(self, offset: int, by: float = inf) -> bool:
        return any(offset < deletion.before and deletion.at <= by for deletion in self.deleted)

    def cut_between(self, offset: int, after: float, before: float) -> bool:
        """Whether Kafka lost this offset between two times."""
        return any(cut.offset <= offset and after <= cut.at <= before for cut in self.truncated)


def away_for(log: Log, request: Request, since: float, until: float) -> float:
    """How long between two times the client of ``request`` reached nobody, in s."""
    if not log.away:
        return 0.0
    client = request.producer if isinstance(request, Produce) else getattr(request, "reader", "")
    name = re.split("[.@]", client)[0]
    spans = [(max(a.since, since), min(a.until, until)) for a in log.away if a.client == name]
    return sum(max(0.0, end - start) for start, end in spans)


def answered_at(request: Request, never: float = inf) -> float:
    return never if request.answered is None else request.answered


def acknowledgements(log: Log) -> Iterator[tuple[int, Value, Produce]]:
    for produce in log.produces:
        if produce.outcome is Outcome.ACKNOWLEDGED and produce.base_offset is not None:
            for place, value in enumerate(produce.values):
                yield produce.base_offset + place, value, produce


def shown(log: Log) -> Iterator[tuple[int, Value, Fetch]]:
    for fetch in log.fetches:
        for offset, value in fetch.records:
            yield offset, value, fetch


def ends(log: Log) -> Iterator[tuple[float, float, int, Request]]:
    """(invoked, answered, end of the log as told, who told it)"""
    for fetch in log.fetches:
        if fetch.error is None and fetch.answered is not None:
            end = fetch.high_watermark
            if end is not None and not fetch.read_committed:
                yield fetch.invoked, fetch.answered, end, fetch
    for asked in log.lists:
        if asked.which is Which.LATEST and asked.answered is not None and asked.offset is not None:
            yield asked.invoked, asked.answered, asked.offset, asked


def known_ends(log: Log) -> list[tuple[float, int]]:
    """(when, highest end of the log told until then), in order of time."""
    told = [(answered, end) for _, answered, end, _ in ends(log)]
    told += [
        (f.answered, f.position_after) for f in log.fetches if f.answered is not None and f.records
    ]
    told += [(p.answered, o + 1) for o, _, p in acknowledgements(log) if p.answered is not None]
    told.sort()
    highest = -1
    for place, (at, end) in enumerate(told):
        highest = max(highest, end)
        told[place] = (at, highest)
    return told


def reached(known: list[tuple[float, int]], by: float) -> int:
    """The highest end of the log that was told at `by` or earlier; -1 before the first."""
    before = bisect_right(known, (by, inf))
    return known[before - 1][1] if before else -1


def known_until(log: Log) -> float:
    times = [0.0]
    for request in requests(log):
        times += [request.invoked, answered_at(request, request.invoked)]
    return max(times)


def requests(log: Log) -> Iterator[Request]:
    yield from log.produces
    yield from log.fetches
    yield from log.lists
    yield from log.epochs
    yield from log.commits
    yield from log.committed
