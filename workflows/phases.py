"""The seven phases of one partition, as a table: which activity, its limits, and what follows a
failure.

What always holds: nothing of the write pause (quiesce, roll and flush, seed and persist) counts
after the quiesce's hold. When one of the three fails for good, producers are let go first, and the
attempt starts anew with a new generation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from temporalio.common import RetryPolicy

from tideline.domain import failures
from tideline.domain.messages import BoundaryObservation, QuiesceResult
from tideline.domain.migration import Phase
from tideline.domain.options import MigrationOptions

NOT_RETRIED_BY_TEMPORAL = [*failures.NON_RETRYABLE, failures.WAITING]
"""The workflow decides what follows these. A wait is repeated by the workflow, too, because only
the workflow can show its reason."""

PATIENT = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=5),
    maximum_attempts=6,
    non_retryable_error_types=NOT_RETRIED_BY_TEMPORAL,
)
"""About ten seconds of an unreachable part; then the workflow shows it and goes on trying."""

URGENT = RetryPolicy(
    initial_interval=timedelta(milliseconds=20),
    backoff_coefficient=1.5,
    maximum_interval=timedelta(milliseconds=500),
    non_retryable_error_types=NOT_RETRIED_BY_TEMPORAL,
)
"""Producers are parked: try again at once, until the hold is over."""


class OnFailure(StrEnum):
    """What follows when a phase's activity has failed for good."""

    SHOW_AND_TRY_AGAIN = "show_and_try_again"
    REOPEN_AND_START_ANEW = "reopen_and_start_anew"
    """Let producers go, then begin again at the drain, with a new generation."""


Bound = Callable[[MigrationOptions], timedelta]


def _seconds(seconds: float) -> Bound:
    return lambda _: timedelta(seconds=seconds)


def _hold(options: MigrationOptions) -> timedelta:
    return timedelta(milliseconds=options.quiesce_hold_ms)


def _turn_and_hold(options: MigrationOptions) -> timedelta:
    """A quiesce waits for its turn among this worker's write pauses before it parks anybody."""
    return _hold(options) + timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class PhaseSpec:
    """How the activity of one phase is run."""

    phase: Phase
    waits: bool
    """It may take long, so it must not occupy a slot that a write pause needs."""
    local: bool
    """Run as a local activity: inside the write pause each round trip to Temporal would be paid by
    every producer. What that gives up (progress that survives the worker) the control plane
    makes good: a repeated phase takes a newer generation, and B0 is persisted once."""
    start_to_close: Bound
    """One attempt."""
    schedule_to_close: Bound | None
    """All attempts together; ``None``: bounded by the retry policy's attempts."""
    heartbeat: timedelta | None
    retry: RetryPolicy
    on_failure: OnFailure
    result: type | None = None


def _slow(phase: Phase, seconds: float = 60) -> PhaseSpec:
    return PhaseSpec(
        phase=phase,
        waits=True,
        local=False,
        start_to_close=_seconds(seconds),
        schedule_to_close=None,
        heartbeat=timedelta(seconds=15),
        retry=PATIENT,
        on_failure=OnFailure.SHOW_AND_TRY_AGAIN,
    )


def _in_write_pause(phase: Phase, result: type | None, bound: Bound = _hold) -> PhaseSpec:
    return PhaseSpec(
        phase=phase,
        waits=False,
        local=True,
        start_to_close=bound,
        schedule_to_close=bound,
        heartbeat=None,
        retry=URGENT,
        on_failure=OnFailure.REOPEN_AND_START_ANEW,
        result=result,
    )


PHASE_SPECS: dict[Phase, PhaseSpec] = {
    spec.phase: spec
    for spec in (
        _slow(Phase.VALIDATE),
        _slow(Phase.DRAIN_TRANSACTIONS),
        _in_write_pause(Phase.QUIESCE, QuiesceResult, _turn_and_hold),
        _in_write_pause(Phase.ROLL_AND_FLUSH, BoundaryObservation),
        _in_write_pause(Phase.SEED_AND_PERSIST, None),
        # Exporting a divergent tail may take minutes.
        _slow(Phase.ZOMBIE_CLEANUP, 600),
        _slow(Phase.READINESS, 120),
    )
}

LEFT_BY_A_RESET = (failures.BOUNDARY_RESET,)
"""B0 was unset by the control plane: the partition migrates anew."""
TOPIC_IS_GONE = (failures.UNKNOWN_TOPIC, failures.TOPIC_CHANGED)
ASK_POSTGRES = (failures.STALE_GENERATION, failures.REFUSED, failures.STALE_LEADER_EPOCH)
"""Perhaps somebody else has moved the partition: look before the next try."""


def pause_before_next_try(failed: int) -> timedelta:
    """Between tries of the workflow: 0.5 s after the first failure, doubled up to 15 s."""
    return timedelta(seconds=min(15.0, 0.5 * 2 ** min(failed - 1, 10)))
