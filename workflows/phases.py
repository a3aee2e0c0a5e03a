"""The seven phases of one partition, as a table: how the activity of each is run, and what the
failures mean after which a partition does more than try again.

What always holds: nothing of the write pause (quiesce, roll and flush, seed and persist) counts
after the quiesce's hold. When one of the three fails for good, producers are let go first, and the
attempt starts anew with a new generation.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio.common import RetryPolicy

from tideline.domain import failures
from tideline.domain.messages import BoundaryObservation, QuiesceResult
from tideline.domain.migration import Phase
from workflows.calls import NOT_RETRIED_BY_TEMPORAL, TRIED_FOR, Call, slow

URGENT = RetryPolicy(
    initial_interval=timedelta(milliseconds=20),
    backoff_coefficient=1.5,
    maximum_interval=timedelta(milliseconds=500),
    non_retryable_error_types=NOT_RETRIED_BY_TEMPORAL,
)
"""Producers are parked: try again at once, until the hold is over."""

TURN = timedelta(minutes=1)
"""A quiesce waits for its turn among this worker's write pauses before it parks anybody."""


def _in_write_pause(
    phase: Phase, result: type | None = None, beyond_hold: timedelta = timedelta(0)
) -> Call:
    return Call(phase, result, retry=URGENT, beyond_hold=beyond_hold)


PHASE_CALLS: dict[str, Call] = {
    call.name: call
    for call in (
        slow(Phase.VALIDATE),
        slow(Phase.DRAIN_TRANSACTIONS),
        _in_write_pause(Phase.QUIESCE, QuiesceResult, TURN),
        _in_write_pause(Phase.ROLL_AND_FLUSH, BoundaryObservation),
        _in_write_pause(Phase.SEED_AND_PERSIST),
        # Exporting a divergent tail may take minutes.
        slow(Phase.ZOMBIE_CLEANUP, seconds=600),
        slow(Phase.READINESS, seconds=120),
    )
}

BOUNDARY_WAS_RESET = (failures.BOUNDARY_RESET,)
"""B0 was unset by the control plane: the partition migrates anew."""
TOPIC_IS_GONE = (failures.UNKNOWN_TOPIC, failures.TOPIC_CHANGED)
NOT_THERE = (*TOPIC_IS_GONE, failures.UNTRACKED)
"""Another try would not change it."""
ASK_POSTGRES = (failures.STALE_GENERATION, failures.REFUSED, failures.STALE_LEADER_EPOCH)
"""Perhaps somebody else has moved the partition: observe before the next try."""

TRIED_IN_PROCESS = {
    Phase.VALIDATE: TRIED_FOR,
    Phase.DRAIN_TRANSACTIONS: TRIED_FOR,
    Phase.ZOMBIE_CLEANUP: timedelta(milliseconds=500),
}
"""Phases that mostly have nothing to wait for, and for how long they are tried so. That a partition
has crossed is told behind the try: until then it holds a permit that another one waits for."""
DECIDED = (*NOT_THERE, *BOUNDARY_WAS_RESET, *ASK_POSTGRES)
"""Failures of a try in process that another try would not change."""
