"""The life of a migration: states, the moves between them, and phases, as data. Postgres is the
authority on states and refuses any other move (infra/postgres/functions).

What always holds: B0 is written once, in the phase ``SEED_AND_PERSIST``. Before that every
step can be undone by an abort; after it the migration only goes forward
(seed 000 "Choosing and persisting the boundary", seed 002 §3.2 and §7.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

UNDEFINED_OFFSET = -1
"""The sentinel for "no boundary" (seed 000, State model)."""


class MigrationState(StrEnum):
    """Where a partition's records live (seed 002 §4.1.2)."""

    TIERED_ONLY = "TIERED_ONLY"
    """Only Kafka's tiered log. Before a migration, and after an abort."""
    MIGRATING = "MIGRATING"
    """Tracked by every gateway; B0 is not known yet."""
    HYBRID = "HYBRID"
    """Offsets below B0 in the tiered log, from B0 on in object storage. The stable end state."""
    DISKLESS_ONLY = "DISKLESS_ONLY"
    """No tiered prefix: born diskless (B0 = 0), migrated while empty, or the prefix expired."""


_S = MigrationState
STATE_MOVES: Mapping[MigrationState, frozenset[MigrationState]] = {
    _S.TIERED_ONLY: frozenset({_S.MIGRATING}),
    _S.MIGRATING: frozenset({_S.HYBRID, _S.DISKLESS_ONLY, _S.TIERED_ONLY}),
    _S.HYBRID: frozenset({_S.DISKLESS_ONLY, _S.MIGRATING}),
    _S.DISKLESS_ONLY: frozenset({_S.HYBRID}),
}
"""Which state may follow which. B0 is written out of MIGRATING, which an abort leaves for
TIERED_ONLY; a B0 whose suffix is empty may be reset; the tiered region of a hybrid log may expire,
and one without may get one by tiering. Postgres refuses every other move, whoever writes it
(``infra/postgres/functions/states.sql``)."""


class Phase(StrEnum):
    """The seven phases of one partition's migration, in their order (docs/phases.md)."""

    VALIDATE = "validate"
    DRAIN_TRANSACTIONS = "drain_transactions"
    QUIESCE = "quiesce"
    ROLL_AND_FLUSH = "roll_and_flush"
    SEED_AND_PERSIST = "seed_and_persist"
    ZOMBIE_CLEANUP = "zombie_cleanup"
    READINESS = "readiness"


class PhaseStatus(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PhaseRule:
    """What an operator and the workflow may assume of one phase."""

    phase: Phase
    abortable: bool
    """B0 is unset until this phase ends, so an abort may still win."""
    pausable_before: bool
    """A pause is honoured before this phase starts; never inside the write pause."""
    inside_write_pause: bool
    next_step: str
    """What happens when the phase is done, in an operator's words."""


PHASES: tuple[PhaseRule, ...] = (
    PhaseRule(Phase.VALIDATE, True, True, False, "drain open transactions"),
    PhaseRule(Phase.DRAIN_TRANSACTIONS, True, True, False, "quiesce: park producers"),
    PhaseRule(Phase.QUIESCE, True, True, True, "observe the log end on every replica"),
    PhaseRule(Phase.ROLL_AND_FLUSH, True, False, True, "seed producer state and persist B0"),
    PhaseRule(Phase.SEED_AND_PERSIST, True, False, True, "look for zombie tails and log gaps"),
    PhaseRule(Phase.ZOMBIE_CLEANUP, False, True, False, "wait until the prefix is tiered up to B0"),
    PhaseRule(Phase.READINESS, False, True, False, "nothing: the partition is hybrid"),
)

PHASE_ORDER: tuple[Phase, ...] = tuple(rule.phase for rule in PHASES)


def phase_rule(phase: Phase) -> PhaseRule:
    return PHASES[PHASE_ORDER.index(phase)]


MOST_WRITE_PAUSES = 2
"""Permits of one topic that partitions have asked for, at once: more pauses would make each longer,
because they share brokers, gateways and worker. A partition that was permitted counts until it
reports again: crossed, or back at the drain because its pause failed."""
LET_THROUGH = 3
"""So many that were started with a permit count as one: each spends less than a third of the time
until it is heard of inside its write pause. One that has to wait before that gives its permit
back. Within one worker process pauses follow one another, unless they last longer than a quarter
of the hold. Nobody is let through with durability ``tiered``, where each lasts as long."""

CROSSING_AT_ONCE = LET_THROUGH * MOST_WRITE_PAUSES
"""Partitions of one topic between validation and B0 with nothing in their way, once it is armed."""
