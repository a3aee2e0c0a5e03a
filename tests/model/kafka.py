"""What stock Kafka does with the partition: append, replicate, move the leader, truncate."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.state import (
    APPENDED,
    CONFIRMED,
    LOST_BY_KAFKA,
    REFUSED,
    SENT,
    UNSET,
    Process,
    Scope,
    State,
    is_active,
    lost_at,
    spend,
    with_process,
)

Step = tuple[tuple[object, ...], State]


def append(state: State, scope: Scope) -> Iterator[Step]:
    """The leader takes a forwarded produce; one that it has already is answered with its offset.
    A sealed log refuses it for good."""
    for at, process in enumerate(state.processes):
        produce = process.produce
        if produce is None or produce.stage != SENT:
            continue
        if produce.record in state.log:
            offset, log = state.log.index(produce.record), state.log
        elif state.plane.sealed:
            refused = process._replace(produce=produce._replace(stage=REFUSED))
            yield (produce.record, "is refused by the sealed log"), with_process(state, at, refused)
            continue
        else:
            offset, log = len(state.log), (*state.log, produce.record)
        taken = process._replace(produce=produce._replace(stage=APPENDED, offset=offset))
        yield (produce.record, offset), with_process(state, at, taken)._replace(log=log)


def append_late(state: State, scope: Scope) -> Iterator[Step]:
    """What lies in the socket of a dead process or connection."""
    for record in set(state.late):
        rest = list(state.late)
        rest.remove(record)
        log = state.log
        if record not in log and not state.plane.sealed:
            log = (*log, record)
        yield (record,), state._replace(late=tuple(rest), log=log)


def replicate(state: State, scope: Scope) -> Iterator[Step]:
    if state.high_watermark < len(state.log):
        yield (len(state.log),), state._replace(high_watermark=len(state.log))


def move_leader(state: State, scope: Scope) -> Iterator[Step]:
    """To a replica in sync: what no other replica had is gone, and was never answered."""
    left = spend(state, "move")
    if left is not None:
        for end in range(state.high_watermark, len(state.log) + 1):
            yield (end,), _truncated(state, end)._replace(left=left)


def move_leader_unclean(state: State, scope: Scope) -> Iterator[Step]:
    """Kafka loses what it has acknowledged. The rows of Postgres must not make more of it."""
    left = spend(state, "unclean")
    if left is None or not state.high_watermark:
        return
    end = state.high_watermark - 1
    boundary = state.plane.boundary
    told = tuple(_after_loss(state, offset, end) for offset in state.told)
    cut = _truncated(state, end)
    boundary = state.plane.boundary
    shown = state.shown[:end] if len(state.shown) <= boundary or boundary < 0 else state.shown
    yield (end,), cut._replace(left=left, told=told, shown=shown)


def _after_loss(state: State, offset: int, end: int) -> int:
    """What a told offset is from now on. One past B0 is not Kafka's to lose."""
    boundary = state.plane.boundary
    if offset < end or UNSET < boundary <= offset:
        return offset
    knows = any(
        process.up and process.highest >= offset and is_active(state.plane, process.incarnation)
        for process in state.processes
    )
    return lost_at(offset) if boundary == UNSET and knows else LOST_BY_KAFKA


def _truncated(state: State, end: int) -> State:
    processes = tuple(_without(process, end) for process in state.processes)
    return state._replace(
        log=state.log[:end],
        high_watermark=min(state.high_watermark, end),
        epoch=state.epoch + 1,
        processes=processes,
    )


def _without(process: Process, end: int) -> Process:
    """Answers for what is gone do not come; a fetch's answer is of the new leader."""
    produce = process.produce
    if produce is not None and produce.stage in (APPENDED, CONFIRMED) and produce.offset >= end:
        process = process._replace(produce=None)
    if process.fetched > end:
        process = process._replace(fetched=end)
    return process
