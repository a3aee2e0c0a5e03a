"""The rules of B0, as a table of situations (seed 000, I2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tideline.domain.boundary import (
    BoundaryState,
    Proposal,
    Refusal,
    abort,
    close,
    next_generation,
    propose,
    reopen,
    reset,
)
from tideline.domain.fencing import QuiesceState
from tideline.domain.migration import UNDEFINED_OFFSET, MigrationState
from tideline.domain.producer_state import ProducerSeed

SEED = ProducerSeed(7, 0, 0, 4, 5, 9, 1_000)
CLOSED = BoundaryState(generation=4, quiesce=QuiesceState.CLOSED)
PROPOSAL = Proposal(10, 2, 4, frozenset({SEED}))


def outcome(
    row: BoundaryState,
    proposal: Proposal = PROPOSAL,
    *,
    deadline_passed: bool = False,
    gateways_missing: int = 0,
    highest_acknowledged: int = 9,
) -> BoundaryState | Refusal:
    return propose(
        row,
        proposal,
        deadline_passed=deadline_passed,
        gateways_missing=gateways_missing,
        highest_acknowledged=highest_acknowledged,
    )


def persisted() -> BoundaryState:
    row = outcome(CLOSED)
    assert isinstance(row, BoundaryState)
    return row


def test_b0_is_set_with_its_epoch_and_opens_the_suffix() -> None:
    row = persisted()
    assert (row.boundary, row.epoch, row.high_watermark) == (10, 2, 10)
    assert row.state is MigrationState.HYBRID
    assert row.quiesce is QuiesceState.OPEN


def test_an_empty_partition_has_no_prefix() -> None:
    row = outcome(CLOSED, Proposal(0, 2, 4), highest_acknowledged=-1)
    assert isinstance(row, BoundaryState)
    assert row.state is MigrationState.DISKLESS_ONLY


@pytest.mark.parametrize(
    ("row", "proposal", "situation", "refusal"),
    [
        (CLOSED, replace(PROPOSAL, generation=3), {}, Refusal.STALE_GENERATION),
        (replace(CLOSED, epoch=3), PROPOSAL, {}, Refusal.STALE_LEADER_EPOCH),
        (CLOSED, PROPOSAL, {"deadline_passed": True}, Refusal.QUIESCE_NOT_CLOSED),
        (CLOSED, PROPOSAL, {"gateways_missing": 1}, Refusal.QUIESCE_NOT_CLOSED),
        (reopen(CLOSED), PROPOSAL, {}, Refusal.QUIESCE_NOT_CLOSED),
        (
            CLOSED,
            PROPOSAL,
            {"highest_acknowledged": 10},
            Refusal.BOUNDARY_BELOW_ACKNOWLEDGED,
        ),
        (CLOSED, replace(PROPOSAL, boundary=9), {}, Refusal.SEED_NOT_BELOW_BOUNDARY),
        (
            replace(CLOSED, state=MigrationState.TIERED_ONLY),
            PROPOSAL,
            {},
            Refusal.NOT_MIGRATING,
        ),
    ],
)
def test_a_boundary_is_refused(
    row: BoundaryState, proposal: Proposal, situation: dict[str, int], refusal: Refusal
) -> None:
    assert outcome(row, proposal, **situation) is refusal  # type: ignore[arg-type]


def test_once_set_only_the_same_input_succeeds() -> None:
    row = persisted()
    assert outcome(row) == row
    assert outcome(row, replace(PROPOSAL, leader_epoch=5)) == row
    assert outcome(row, replace(PROPOSAL, leader_epoch=1)) is Refusal.STALE_LEADER_EPOCH
    assert outcome(row, replace(PROPOSAL, boundary=11)) is Refusal.BOUNDARY_ALREADY_SET
    assert outcome(row, replace(PROPOSAL, seeds=frozenset())) is Refusal.SEED_MISMATCH


def test_after_a_reset_the_epoch_still_fences() -> None:
    row = reset(persisted(), 4)
    assert isinstance(row, BoundaryState)
    assert (row.boundary, row.epoch) == (UNDEFINED_OFFSET, 2)
    assert row.state is MigrationState.MIGRATING
    stale = replace(PROPOSAL, leader_epoch=1)
    assert outcome(replace(row, quiesce=QuiesceState.CLOSED), stale) is Refusal.STALE_LEADER_EPOCH


def test_a_suffix_with_data_is_not_reset() -> None:
    row = replace(persisted(), high_watermark=11)
    assert reset(row, 4) is Refusal.RESET_REFUSED
    assert reset(row, 3) is Refusal.STALE_GENERATION


def test_a_partition_without_prefix_is_not_reset() -> None:
    row = replace(persisted(), state=MigrationState.DISKLESS_ONLY)
    assert reset(row, 4) is Refusal.RESET_REFUSED


def test_a_generation_is_closed_at_most_once() -> None:
    assert close(reopen(CLOSED), 4) is Refusal.QUIESCE_NOT_CLOSED
    fresh = next_generation(reopen(CLOSED))
    assert isinstance(fresh, BoundaryState)
    assert fresh.generation == 5
    assert isinstance(close(fresh, 5), BoundaryState)


def test_one_partition_with_b0_refuses_the_abort_of_all() -> None:
    assert abort([CLOSED, persisted()]) is Refusal.ABORT_REFUSED
    aborted = abort([CLOSED, CLOSED])
    assert isinstance(aborted, list)
    assert {(row.state, row.generation) for row in aborted} == {(MigrationState.TIERED_ONLY, 5)}
    assert abort(aborted) == aborted
