"""What can be told of a partition from the state of its workflow. Pure."""

from __future__ import annotations

from tideline.domain.messages import (
    DONE,
    ENDINGS,
    PartitionRef,
    PartitionReport,
    PartitionState,
    PartitionStatus,
    WaitsFor,
)
from tideline.domain.migration import UNDEFINED_OFFSET, Phase, phase_rule
from workflows.showing import table


def has_ended(state: PartitionState) -> bool:
    """No phase is left to run."""
    return state.phase in ENDINGS


def crossed(state: PartitionState) -> bool:
    """B0 is persisted, not only observed."""
    if state.phase == DONE:
        return True
    return state.phase not in ("", *ENDINGS) and not phase_rule(Phase(state.phase)).abortable


def parks_producers(state: PartitionState) -> bool:
    """A write pause is under way: nothing may delay its end."""
    return state.phase in (Phase.ROLL_AND_FLUSH, Phase.SEED_AND_PERSIST)


def waits_for(state: PartitionState) -> WaitsFor:
    """What the next phase needs from the topic's workflow."""
    if state.phase == Phase.QUIESCE and state.steering.permit < state.round:
        return WaitsFor.PERMIT
    if state.phase == Phase.READINESS and not state.steering.rolled:
        return WaitsFor.ROLL
    return WaitsFor.NOTHING


def held_because(state: PartitionState) -> str:
    """Why the next phase must not begin yet; empty: it may."""
    steering = state.steering
    if steering.aborted:
        return ""
    if phase_rule(Phase(state.phase)).pausable_before:
        if state.paused:
            return "paused by an operator: resume this partition's workflow"
        if steering.paused:
            return "the topic's migration is paused by an operator: resume it"
    match waits_for(state):
        case WaitsFor.PERMIT:
            return "drained; waits for the topic's workflow to let the write pause begin"
        case WaitsFor.ROLL:
            return "waits until every partition has its B0 and the topic's segments are rolled"
    return ""


def report(ref: PartitionRef, state: PartitionState, waiting_reason: str) -> PartitionReport:
    """For the topic's workflow."""
    known = crossed(state)
    return PartitionReport(
        partition=ref.partition,
        phase=state.phase,
        since=state.since,
        boundary=state.boundary if known else UNDEFINED_OFFSET,
        leader_epoch=state.leader_epoch if known else -1,
        waits_for=waits_for(state),
        waiting_reason=waiting_reason,
        round=state.round,
    )


def status(ref: PartitionRef, state: PartitionState, waiting_reason: str) -> PartitionStatus:
    """For the ``status`` query."""
    known = crossed(state)
    idle = state.phase in ("", *ENDINGS)
    return PartitionStatus(
        topic=ref.topic,
        partition=ref.partition,
        phase=state.phase,
        since=state.since,
        waiting_reason=waiting_reason,
        boundary=state.boundary if known else UNDEFINED_OFFSET,
        leader_epoch=state.leader_epoch if known else -1,
        generation=state.generation,
        write_pauses=state.write_pauses,
        paused=state.paused or state.steering.paused,
        next_step="nothing" if idle else phase_rule(Phase(state.phase)).next_step,
        durations_ms=dict(state.durations_ms),
    )


def details(known: PartitionStatus) -> str:
    """For the Temporal UI, as Markdown."""
    boundary = f"{known.boundary} (leader epoch {known.leader_epoch})"
    return table(
        [
            ("partition", f"{known.topic}-{known.partition}"),
            ("phase", f"**{known.phase}** since {known.since}"),
            ("waits because", known.waiting_reason),
            ("B0", boundary if known.boundary != UNDEFINED_OFFSET else ""),
            ("generation", known.generation or ""),
            ("write pauses", known.write_pauses or ""),
            ("next", known.next_step),
            *((f"{name} took", f"{ms:g} ms") for name, ms in known.durations_ms.items()),
        ]
    )
