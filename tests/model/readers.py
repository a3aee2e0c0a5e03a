"""What consumers are shown and told: fetches, OffsetForLeaderEpoch, out of range, debug readers."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.gateway import confirms, observed
from tests.model.kafka import Step
from tests.model.state import (
    CLASSIC,
    LAPSED,
    PENDING,
    QUIESCING,
    SUFFIX,
    UNSET,
    Process,
    Scope,
    State,
    with_process,
)


def fetch(state: State, scope: Scope) -> Iterator[Step]:
    """Kafka answers a fetch; the answer is at the gateway."""
    for at, process in enumerate(state.processes):
        idle = process.fetched == UNSET and process.up
        if scope.readers and idle and state.high_watermark > len(state.shown):
            fetched = process._replace(fetched=state.high_watermark)
            yield (at, state.high_watermark), with_process(state, at, fetched)


def show(state: State, scope: Scope) -> Iterator[Step]:
    """The answer goes to the consumer, cut where it may lie past B0."""
    for at, process in enumerate(state.processes):
        if process.fetched == UNSET or not process.up:
            continue
        limit, process = _limit(state, process, scope)
        end = min(process.fetched, limit)
        shown = with_process(state, at, process._replace(fetched=UNSET))
        yield (at, max(end, 0)), _shown(shown, state.log[: max(end, 0)])


def _limit(state: State, process: Process, scope: Scope) -> tuple[int, Process]:
    """The first offset that must not be shown, and what the process has seen by now."""
    if process.kind == CLASSIC:
        return process.fetched, process
    if process.kind == SUFFIX:
        return process.number, process
    if _may_move(state, process, scope):
        return process.fetched, observed(process, process.fetched, state.epoch)
    if scope.has("ceiling by epoch") and process.ceiling_epoch != state.epoch:
        return UNSET, process
    return process.ceiling, process


def _may_move(state: State, process: Process, scope: Scope) -> bool:
    """Whether what Kafka shows now lies below any B0 that may yet be set."""
    if scope.has("confirm"):
        return confirms(state.plane, process.incarnation, scope)
    return process.lease != LAPSED and not process.frozen_ceiling


def show_suffix(state: State, scope: Scope) -> Iterator[Step]:
    """A gateway that knows B0 shows the whole log: prefix, then suffix."""
    plane = state.plane
    if not scope.readers or plane.boundary == UNSET:
        return
    for at, process in enumerate(state.processes):
        knows = process.up and (process.kind, process.number) == (SUFFIX, plane.boundary)
        end = plane.boundary + len(plane.suffix)
        whole = (*state.log[: plane.boundary], *plane.suffix)
        if knows and plane.suffix and len(whole) == end > len(state.shown):
            yield (at, end), _shown(state, whole)


def _shown(state: State, values: tuple[int, ...]) -> State:
    common = min(len(values), len(state.shown))
    if values[:common] != state.shown[:common]:
        return state._replace(wrong=f"shown {state.shown}, then {values}")
    return state._replace(shown=values) if len(values) > common else state


def observe_by_debug_reader(state: State, scope: Scope) -> Iterator[Step]:
    """ListOffsets of a debug consumer answers the leader's log end, replicated or not."""
    if not scope.debug_reader or scope.has("ceiling by consumers"):
        return
    for at, process in enumerate(state.processes):
        follows = process.up and process.kind in (PENDING, QUIESCING)
        if follows and process.lease != LAPSED and not process.frozen_ceiling:
            seen = observed(process, len(state.log), state.epoch)
            if seen != process:
                yield (at, len(state.log)), with_process(state, at, seen)


def validate_position(state: State, scope: Scope) -> Iterator[Step]:
    """A consumer asks where its epoch ends, or fetches behind what Kafka has. Kafka's answer is
    right as long as no B0 can have been set below it."""
    position = len(state.shown)
    if not scope.readers or len(state.log) >= position or state.plane.boundary == UNSET:
        return
    for at, process in enumerate(state.processes):
        if not process.up or process.kind not in (PENDING, QUIESCING):
            continue
        if scope.has("epochs confirmed") and not confirms(state.plane, process.incarnation, scope):
            continue
        wrong = f"a consumer at {position} is told that the log ends at {len(state.log)}"
        yield (at, position, len(state.log)), state._replace(wrong=wrong)
