"""The choices of an operator for a migration.

Types are no strings here (no ``from __future__ import annotations``): Temporal's sandbox reads
them while a workflow continues, when this module is known to it by its importers only.
"""

from dataclasses import dataclass
from enum import StrEnum


class Durability(StrEnum):
    """What must be true of the prefix before B0 is persisted (docs/phases.md, phase 4)."""

    FSYNCED = "fsynced"
    """Each replica flushed each append: ``flush.messages=1`` was armed before the quiesce."""
    REPLICATED = "replicated"
    """Every in-sync replica has it, perhaps only in page cache."""
    TIERED = "tiered"
    """The whole prefix is in remote storage first. The longest pause."""


class OpenTransactionsPolicy(StrEnum):
    """What to do with a transaction that is still open at the drain deadline."""

    WAIT = "wait"
    """Go on waiting, with the reason shown."""
    ABORT = "abort"
    """Abort it, which fences the application that runs it."""


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """Choices of an operator. Times in ms."""

    durability: Durability = Durability.FSYNCED
    open_transactions: OpenTransactionsPolicy = OpenTransactionsPolicy.WAIT
    drain_deadline_ms: int = 60_000
    quiesce_hold_ms: int = 10_000
    """A quiesce is void after this: gateways un-park and the attempt starts anew."""
    parallel_partitions: int = 4
    """How many partitions of the topic are between validate and B0 at once."""
    segment_wait_ms: int = 30_000
    """``inkless.migration.segment.wait.ms``: then the wait for tiering shows its reason."""
    attested_closed_to_bypass: bool = True
    """The operator attests that clients reach the brokers only through gateways."""
