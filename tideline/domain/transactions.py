"""When is a partition free of transactions, and what is done about one that is not?

What always holds: B0 is never chosen while a transaction is open on the partition, nor while a
coordinator is still to write a marker into it: that marker would be appended at or past B0
(schedules.md, 6). Gateways refuse new transactions meanwhile, so the wait ends (seed 004).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tideline.domain.foreign_text import quoted
from tideline.domain.ids import TopicPartition

OPEN_STATES = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""Coordinator states in which the transaction may still append to its partitions."""


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer with a transaction open on the partition (DescribeProducers)."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    """``currentTxnStartOffset``: the first offset of the open transaction."""
    last_timestamp: int = -1
    """ms."""


@dataclass(frozen=True, slots=True)
class CoordinatorTransaction:
    """A transaction as its coordinator sees it (DescribeTransactions). Times in ms."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    start_time: int
    timeout_ms: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Blocker:
    """What keeps a partition from being drained."""

    producer_id: int
    producer_epoch: int
    state: str
    since: int
    """ms; when the transaction began, or -1."""
    transactional_id: str | None = None
    """``None``: no coordinator knows it, a *hanging* transaction."""
    coordinator_epoch: int = -1
    start_offset: int = -1

    @property
    def hanging(self) -> bool:
        """Open on the partition, but no coordinator will ever end it."""
        return self.transactional_id is None

    def describe(self) -> str:
        """In an operator's words."""
        who = (
            "hanging transaction"
            if self.transactional_id is None
            else f"transaction {quoted(self.transactional_id)}"
        )
        return f"{who} of producer {self.producer_id} is {self.state} since {self.since}"


def blockers(
    partition: TopicPartition,
    open_before: Iterable[OpenProducer],
    transactions: Iterable[CoordinatorTransaction],
    open_after: Iterable[OpenProducer],
) -> tuple[Blocker, ...]:
    """What keeps ``partition`` from being drained.

    The partition's leader is asked before and after the coordinators. A producer that is open
    only before has ended meanwhile; one that no coordinator names counts as hanging only if the
    same transaction (by its start offset) is open in both, else it was between two answers.
    """
    found: dict[int, Blocker] = {}
    for txn in transactions:
        if txn.state in OPEN_STATES and partition in txn.partitions:
            found[txn.producer_id] = Blocker(
                txn.producer_id,
                txn.producer_epoch,
                txn.state,
                txn.start_time,
                txn.transactional_id,
            )
    before = {(p.producer_id, p.start_offset) for p in open_before}
    for producer in open_after:
        if producer.producer_id in found:
            continue
        known = (producer.producer_id, producer.start_offset) in before
        found[producer.producer_id] = Blocker(
            producer.producer_id,
            producer.producer_epoch,
            "open on the partition, unknown to every coordinator" if known else "just seen",
            producer.last_timestamp,
            None,
            producer.coordinator_epoch,
            producer.start_offset if known else -1,
        )
    return tuple(sorted(found.values(), key=lambda b: b.producer_id))


class Remedy(StrEnum):
    """What the drain does about a blocker."""

    WAIT = "wait"
    FENCE = "fence"
    """InitProducerId with its transactional id: aborts it and fences the application."""
    WRITE_ABORT_MARKER = "write_abort_marker"
    """WriteTxnMarkers at the leader. Only for a hanging one: for any other it would leave the
    coordinator Ongoing and break atomicity (docs/kafka.md, "Transactions")."""


def remedy(blocker: Blocker, *, deadline_passed: bool, abort_allowed: bool) -> Remedy:
    """What to do about ``blocker``. A prepared one always ends by itself."""
    if not (deadline_passed and abort_allowed):
        return Remedy.WAIT
    if blocker.hanging:
        return Remedy.WRITE_ABORT_MARKER if blocker.start_offset >= 0 else Remedy.WAIT
    return Remedy.FENCE if blocker.state == "Ongoing" else Remedy.WAIT
