"""Judges a history by what Kafka promises, knowing nothing of how it came about.

    violations = judge(operations, Bounds(stale=5.0, answer=30.0))

An empty list says that the history breaks no promise. A record that was acknowledged and that no
fetch showed counts as lost: whoever records a history reads each partition to its end, last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.history.answers import (
    back,
    by_time,
    fatal,
    groups,
    nothing,
    readers,
    sent_later,
    stale,
    starts,
    stuck,
)
from tests.history.contents import (
    acknowledged,
    after_what_was_told,
    contents,
    gaps,
    order,
    transactions,
)
from tests.history.log import Log, known_until
from tests.history.operations import (
    Away,
    Commit,
    Committed,
    Deleted,
    EpochEnd,
    Fetch,
    ListOffsets,
    Operation,
    Partition,
    Produce,
    TransactionEnd,
    Truncated,
)
from tests.history.violations import Bounds, Teller, Violation

_LISTS: dict[type, str] = {
    Produce: "produces",
    Fetch: "fetches",
    ListOffsets: "lists",
    EpochEnd: "epochs",
    Commit: "commits",
    Committed: "committed",
    Deleted: "deleted",
    Truncated: "truncated",
}
RULES = (
    contents,
    acknowledged,
    gaps,
    order,
    after_what_was_told,
    fatal,
    stale,
    starts,
    back,
    by_time,
    sent_later,
    readers,
    nothing,
    groups,
)


def judge(operations: Iterable[Operation], bounds: Bounds | None = None) -> list[Violation]:
    """Every promise that the history breaks; the same breach is told once."""
    bounds = bounds or Bounds()
    logs: dict[Partition, Log] = defaultdict(Log)
    ends: dict[str, TransactionEnd] = {}
    away: list[Away] = []
    for operation in operations:
        if isinstance(operation, TransactionEnd):
            ends[operation.transaction] = operation
        elif isinstance(operation, Away):
            away.append(operation)
        else:
            getattr(logs[operation.partition], _LISTS[type(operation)]).append(operation)
    finish = max((known_until(log) for log in logs.values()), default=0.0)
    found: list[Violation] = []
    for partition, log in sorted(logs.items()):
        told, log.away = Teller(partition, found), away
        for rule in RULES:
            rule(log, told, bounds)
        transactions(log, ends, told)
        stuck(log, told, bounds, finish)
    return found
