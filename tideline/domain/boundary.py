"""B0: when it may be set, set again, aborted or reset (seed 000, I2; schedules 5, 7, 13, 14, 20).

What always holds: B0 is set at most once between resets, at an epoch that never goes back, under a
closed generation that every gateway which may act has acknowledged, above every offset that a
gateway has acknowledged, together with seeds that all lie below it.
``infra/postgres/functions/boundary.sql`` repeats these rules in SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tideline.domain.fencing import QuiesceState
from tideline.domain.migration import UNDEFINED_OFFSET, MigrationState
from tideline.domain.producer_state import ProducerSeed


class Refusal(StrEnum):
    """Why a boundary was not written. Each is an error class of ``tideline.control_plane``."""

    STALE_LEADER_EPOCH = "StaleLeaderEpoch"
    BOUNDARY_ALREADY_SET = "BoundaryAlreadySet"
    SEED_MISMATCH = "SeedMismatch"
    STALE_GENERATION = "StaleGeneration"
    NOT_MIGRATING = "NotMigrating"
    SEED_NOT_BELOW_BOUNDARY = "SeedNotBelowBoundary"
    QUIESCE_NOT_CLOSED = "QuiesceNotClosed"
    BOUNDARY_BELOW_ACKNOWLEDGED = "BoundaryBelowAcknowledged"
    ABORT_REFUSED = "AbortRefused"
    RESET_REFUSED = "ResetRefused"


@dataclass(frozen=True, slots=True)
class BoundaryState:
    """What the row of a partition knows."""

    state: MigrationState = MigrationState.MIGRATING
    generation: int = 0
    quiesce: QuiesceState = QuiesceState.OPEN
    boundary: int = UNDEFINED_OFFSET
    epoch: int = -1
    """Leader epoch of the last B0; stays after a reset, as a fence."""
    seeds: frozenset[ProducerSeed] | None = None
    high_watermark: int = UNDEFINED_OFFSET

    @property
    def is_set(self) -> bool:
        """Whether B0 is known."""
        return self.boundary != UNDEFINED_OFFSET


@dataclass(frozen=True, slots=True)
class Proposal:
    """A boundary, its leader epoch, and the producer state at it."""

    boundary: int
    leader_epoch: int
    generation: int
    seeds: frozenset[ProducerSeed] = frozenset()


def propose(
    row: BoundaryState,
    proposal: Proposal,
    *,
    deadline_passed: bool,
    gateways_missing: int,
    highest_acknowledged: int,
) -> BoundaryState | Refusal:
    """The row with B0, or why not.

    The same boundary with the same seeds succeeds again and changes nothing, at its epoch or a
    higher one: a retry after a leader change finds its own success. ``highest_acknowledged`` is
    the last offset (inclusive, -1: none) that a gateway of this generation has acknowledged.
    """
    if proposal.leader_epoch < max(row.epoch, 0):
        return Refusal.STALE_LEADER_EPOCH
    if row.is_set:
        if proposal.boundary != row.boundary:
            return Refusal.BOUNDARY_ALREADY_SET
        return row if proposal.seeds == row.seeds else Refusal.SEED_MISMATCH
    if proposal.generation != row.generation:
        return Refusal.STALE_GENERATION
    if row.state is MigrationState.TIERED_ONLY:
        return Refusal.NOT_MIGRATING
    if any(seed.last_offset >= proposal.boundary for seed in proposal.seeds):
        return Refusal.SEED_NOT_BELOW_BOUNDARY
    if row.quiesce is not QuiesceState.CLOSED or deadline_passed or gateways_missing:
        return Refusal.QUIESCE_NOT_CLOSED
    if proposal.boundary <= highest_acknowledged:
        return Refusal.BOUNDARY_BELOW_ACKNOWLEDGED
    return replace(
        row,
        state=MigrationState.HYBRID if proposal.boundary else MigrationState.DISKLESS_ONLY,
        quiesce=QuiesceState.OPEN,
        boundary=proposal.boundary,
        epoch=proposal.leader_epoch,
        seeds=proposal.seeds,
        high_watermark=proposal.boundary,
    )


def next_generation(row: BoundaryState) -> BoundaryState | Refusal:
    """A new attempt: everything older is stale, an older quiesce void."""
    if row.state is MigrationState.TIERED_ONLY:
        return Refusal.NOT_MIGRATING
    return replace(row, generation=row.generation + 1, quiesce=QuiesceState.OPEN)


def close(row: BoundaryState, generation: int) -> BoundaryState | Refusal:
    """Quiesce ``generation``. Once reopened it stays so."""
    if generation != row.generation:
        return Refusal.STALE_GENERATION
    if row.state is MigrationState.TIERED_ONLY:
        return Refusal.NOT_MIGRATING
    if row.is_set:
        return Refusal.BOUNDARY_ALREADY_SET
    if row.quiesce is QuiesceState.REOPENED:
        return Refusal.QUIESCE_NOT_CLOSED
    return replace(row, quiesce=QuiesceState.CLOSED)


def reopen(row: BoundaryState) -> BoundaryState:
    """End the quiesce without a B0."""
    if row.quiesce is QuiesceState.CLOSED and not row.is_set:
        return replace(row, quiesce=QuiesceState.REOPENED)
    return row


def abort(rows: Sequence[BoundaryState]) -> list[BoundaryState] | Refusal:
    """Every partition of a topic back to tiered only, or none: one with B0 refuses it."""
    if any(row.is_set for row in rows):
        return Refusal.ABORT_REFUSED
    return [
        row
        if row.state is MigrationState.TIERED_ONLY
        else replace(
            row,
            state=MigrationState.TIERED_ONLY,
            generation=row.generation + 1,
            quiesce=QuiesceState.OPEN,
            seeds=None,
        )
        for row in rows
    ]


def reset(row: BoundaryState, generation: int) -> BoundaryState | Refusal:
    """Unset B0 while the suffix is empty; the epoch stays (seed 000, "Local Log Reconciliation").

    Refused once the suffix holds data, which a reset would orphan, and where there is no prefix.
    """
    if generation != row.generation:
        return Refusal.STALE_GENERATION
    if not row.is_set:
        return row
    if row.high_watermark > row.boundary or row.state is not MigrationState.HYBRID:
        return Refusal.RESET_REFUSED
    return replace(
        row,
        state=MigrationState.MIGRATING,
        quiesce=QuiesceState.OPEN,
        boundary=UNDEFINED_OFFSET,
        seeds=None,
        high_watermark=UNDEFINED_OFFSET,
    )
