"""What holds in every state, and over every step."""

from __future__ import annotations

from tests.model.state import CLASSIC, STORED, UNSET, State


def broken(state: State) -> str | None:
    """What a state breaks, in words; None if it breaks nothing."""
    if state.wrong:
        return state.wrong
    plane = state.plane
    boundary = plane.boundary
    prefix = state.log if boundary == UNSET else state.log[:boundary]
    whole = (*prefix, *plane.suffix)
    for record, offset in enumerate(state.told):
        if whole.count(record) > 1:
            return f"record {record} is there twice"
        if offset == STORED and record not in whole:
            return f"record {record}, told to be stored, is nowhere"
        if offset <= -10 and UNSET < boundary <= -10 - offset:
            return f"record {record} was told at {-10 - offset}, B0 is {boundary}"
        if offset < 0:
            continue
        if boundary == UNSET or offset < boundary:
            if offset >= len(state.log) or state.log[offset] != record:
                return f"record {record}, told at {offset}, is not there"
        elif state.plane.suffix[offset - boundary : offset - boundary + 1] != (record,):
            return f"record {record}, told at {offset}, is not in the suffix from {boundary} on"
    if boundary != UNSET and len(state.shown) > 0:
        return _shown_otherwise(state)
    if state.operator_aborted and plane.status in ("tracking", "active"):
        return "the abort is undone"
    return None


def _shown_otherwise(state: State) -> str | None:
    boundary, suffix = state.plane.boundary, state.plane.suffix
    below, above = state.shown[:boundary], state.shown[boundary:]
    if len(state.log) >= len(below) and state.log[: len(below)] != below:
        return f"shown {below}, the prefix is {state.log[:boundary]}"
    if suffix[: len(above)] != above:
        return f"shown {above} from B0 {boundary} on, where the suffix is {suffix}"
    return None


def broken_by_step(before: State, name: str, after: State) -> str | None:
    """I2: a boundary changes only from or to unset, and an unset one takes no older epoch.
    I4: what goes into the suffix changes nothing in Kafka's log, and the reverse. I1: a step of a
    gateway to which the topic is a classic one changes nothing in the control plane."""
    was, now = before.plane, after.plane
    if was.boundary != now.boundary:
        if UNSET not in (was.boundary, now.boundary):
            return f"I2: B0 went from {was.boundary} to {now.boundary}"
        if now.boundary != UNSET and now.boundary_epoch < was.boundary_epoch:
            return f"I2: B0 set at epoch {now.boundary_epoch}, after {was.boundary_epoch}"
        if was.boundary != UNSET and was.suffix:
            return "I2: B0 was reset under a suffix that holds records"
    elif was.suffix != now.suffix and before.log != after.log:
        return f"I4: {name} wrote to both logs"
    classic = all(process.kind == CLASSIC for process in before.processes)
    if classic and name in ("send", "append", "tell") and was != now:
        return f"I1: {name} of a classic topic changed the control plane"
    return None
