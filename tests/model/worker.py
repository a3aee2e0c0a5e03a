"""What the worker and the operator do over the rows of Postgres."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.gateway import forget_lost
from tests.model.kafka import Step
from tests.model.state import (
    ACTIVE,
    FENCED,
    NOTHING,
    RETIRED,
    STORED,
    UNSET,
    VALID,
    Plane,
    Scope,
    State,
    Worker,
    is_active,
    spend,
    with_process,
)


def begin_tracking(state: State, scope: Scope) -> Iterator[Step]:
    """The operator starts the migration, also after an abort."""
    left = spend(state, "start")
    if left is not None and state.plane.status in ("none", "aborted"):
        plane = _next_round(state.plane)
        begun = state._replace(plane=plane, left=left, operator_aborted=False, worker=Worker())
        yield (plane.round,), begun


def begin_tracking_stalled(state: State, scope: Scope) -> Iterator[Step]:
    """An attempt of the aborted run wakes up, or its workflow was restored."""
    if not scope.has("runs end") and state.plane.status == "aborted":
        plane = _next_round(state.plane)
        yield (plane.round,), state._replace(plane=plane)


def _next_round(plane: Plane) -> Plane:
    return plane._replace(status="tracking", round=plane.round + 1, tracked_by=frozenset())


def activate(state: State, scope: Scope) -> Iterator[Step]:
    """Every gateway that ever registered and is not retired tracks the topic, whatever became of
    it, and of those nothing that was replaced may still run."""
    plane = state.plane
    if plane.status != "tracking":
        return
    waited = {
        by
        for by, status in plane.registered
        if status == ACTIVE or (status != RETIRED and scope.has("tracking by fenced ones"))
    }
    unaccounted = scope.has("tracking by replaced ones") and any(
        plane.registered[place][1] != RETIRED for place, _ in plane.replaced
    )
    if waited <= plane.tracked_by and not unaccounted:
        yield (), state._replace(plane=plane._replace(status="active"))


def close(state: State, scope: Scope) -> Iterator[Step]:
    """Take the next generation and close it."""
    left = spend(state, "close")
    plane = state.plane
    if left is None or plane.status != "active" or plane.boundary != UNSET:
        return
    closed = plane._replace(
        generation=plane.generation + 1,
        quiesce="closed",
        witnesses=_active(plane),
        acknowledged=frozenset(),
    )
    yield (closed.generation,), state._replace(plane=closed, left=left, worker=Worker())


def close_again(state: State, scope: Scope) -> Iterator[Step]:
    """The call is repeated since its answer was lost."""
    plane = state.plane
    if plane.quiesce == "closed" and not scope.has("witnesses stay"):
        witnesses = _active(plane)
        if witnesses != plane.witnesses:
            yield (plane.generation,), state._replace(plane=plane._replace(witnesses=witnesses))


def _active(plane: Plane) -> frozenset[int]:
    return frozenset(by for by, status in plane.registered if status == ACTIVE)


def _quiesced(plane: Plane) -> bool:
    return _active(plane) <= {by for by, _ in plane.acknowledged}


def look(state: State, scope: Scope) -> Iterator[Step]:
    """The worker has seen the renewals of an incarnation stand still for a lease and a margin."""
    plane = state.plane
    if plane.quiesce != "closed":
        return
    living = {p.incarnation for p in state.processes if p.lease == VALID}
    for by in _active(plane) - {by for by, _ in plane.acknowledged} - plane.watched - living:
        yield (by,), state._replace(plane=plane._replace(watched=plane.watched | {by}))


def fence(state: State, scope: Scope) -> Iterator[Step]:
    plane = state.plane
    for by in plane.watched:
        if is_active(plane, by):
            registered = tuple(
                (known, FENCED if known == by else status) for known, status in plane.registered
            )
            fenced = plane._replace(registered=registered, watched=plane.watched - {by})
            yield (by,), forget_lost(state._replace(plane=fenced))


def pass_barrier(state: State, scope: Scope) -> Iterator[Step]:
    plane = state.plane
    if plane.quiesce == "closed" and state.worker.at == "idle" and _quiesced(plane):
        yield (plane.generation,), state._replace(worker=Worker("barrier", plane.generation))


def read_log_end(state: State, scope: Scope) -> Iterator[Step]:
    """LSO = HW = the log end of every replica, all at one leader epoch."""
    worker, end = state.worker, len(state.log)
    if worker.at == "barrier" and end == state.high_watermark:
        known = () if scope.producers else tuple((r, at) for at, r in enumerate(state.log))
        at = "read" if scope.producers else "confirmed"
        read = worker._replace(at=at, log_end=end, epoch=state.epoch, seeds=known)
        yield (end,), state._replace(worker=read)


def read_producers(state: State, scope: Scope) -> Iterator[Step]:
    """Of each its last sequence, as the leader has it now; their batches were looked for below the
    log end that was read, as far back as is read."""
    worker = state.worker
    if worker.at != "read" or worker.epoch != state.epoch:
        return
    whole = tuple(
        (record, offset if offset < worker.log_end else STORED)
        for offset, record in enumerate(state.log)
    )
    unreached = tuple((record, STORED) for record, _ in whole)
    for seeds in sorted({whole, unreached}):
        yield (seeds,), state._replace(worker=worker._replace(at="producers", seeds=seeds))


def confirm_end(state: State, scope: Scope) -> Iterator[Step]:
    """The log's end is read again, at the same epoch. Else all of it is looked at anew."""
    worker = state.worker
    if worker.at != "producers":
        return
    settled = (len(state.log), state.epoch) == (worker.log_end, worker.epoch)
    if settled or not scope.has("end read again"):
        yield (len(state.log),), state._replace(worker=worker._replace(at="confirmed"))
    else:
        yield (len(state.log),), state._replace(worker=Worker("barrier", worker.generation))


def persist(state: State, scope: Scope) -> Iterator[Step]:
    """The point of no return, decided under the row's lock."""
    plane, worker = state.plane, state.worker
    if worker.at != "confirmed" or plane.boundary != UNSET or plane.quiesce != "closed":
        return
    if worker.generation != plane.generation or not _quiesced(plane):
        return
    if worker.epoch < plane.boundary_epoch:
        return
    highest = max((offset for _, offset in plane.acknowledged), default=UNSET)
    if scope.has("highest told") and worker.log_end <= highest:
        return
    crossed = plane._replace(
        boundary=worker.log_end,
        boundary_epoch=worker.epoch,
        quiesce="open",
        suffix=(),
        seeds=tuple(seed for seed in worker.seeds if _is_taken_over(seed, scope)),
    )
    yield (worker.log_end,), state._replace(plane=crossed, worker=Worker())


def _is_taken_over(seed: tuple[int, int], scope: Scope) -> bool:
    return scope.has("seeds") and (seed[1] != STORED or scope.has("seeds without offsets"))


def seal(state: State, scope: Scope) -> Iterator[Step]:
    """Kafka refuses what it has not got; after B0 only."""
    if state.plane.boundary != UNSET and not state.plane.sealed:
        yield (), state._replace(plane=state.plane._replace(sealed=True))


def quiesce_runs_out(state: State, scope: Scope) -> Iterator[Step]:
    """The deadline passes: the generation is void, gateways take produces again."""
    if state.plane.quiesce == "closed":
        plane = state.plane._replace(quiesce="reopened")
        yield (plane.generation,), state._replace(plane=plane, worker=Worker())


def abort(state: State, scope: Scope) -> Iterator[Step]:
    left = spend(state, "abort")
    plane = state.plane
    if left is None or plane.status not in ("tracking", "active") or plane.boundary != UNSET:
        return
    aborted = plane._replace(status="aborted", generation=plane.generation + 1, quiesce="open")
    yield (
        (),
        state._replace(plane=aborted, left=left, operator_aborted=True, worker=Worker()),
    )


def reset(state: State, scope: Scope) -> Iterator[Step]:
    """B0 fell below the log's start: back to "no boundary", only while the suffix is empty."""
    left = spend(state, "reset")
    plane = state.plane
    if left is None or plane.boundary == UNSET:
        return
    if plane.suffix and scope.has("reset while empty"):
        return
    plane = plane._replace(
        boundary=UNSET,
        suffix=(),
        seeds=(),
        generation=plane.generation + 1,
        quiesce="open",
        sealed=False,
    )
    yield (), state._replace(plane=plane, left=left, worker=Worker())


def retire(state: State, scope: Scope) -> Iterator[Step]:
    """An operator has seen that no process of a gateway runs, and says that none will."""
    left = spend(state, "retire")
    plane = state.plane
    for place, gateway in enumerate(sorted(set(scope.ids))):
        by, status = plane.registered[place]
        of_it = zip(scope.ids, state.processes, strict=True)
        runs = any((p.up or p.waits) for known, p in of_it if known == gateway)
        if left is not None and not runs and status != RETIRED:
            registered = list(plane.registered)
            registered[place] = (by, RETIRED)
            now = plane._replace(registered=tuple(registered))
            yield (gateway,), state._replace(plane=now, left=left)


def attest(state: State, scope: Scope) -> Iterator[Step]:
    """An operator has seen that no process runs under an incarnation that was replaced, or in its
    place, and has removed the disk that names it."""
    left = spend(state, "attest")
    plane = state.plane
    if left is None:
        return
    for replaced in plane.replaced:
        if any(replaced[1] == p.incarnation and (p.up or p.waits) for p in state.processes):
            continue
        now = state._replace(plane=plane._replace(replaced=plane.replaced - {replaced}), left=left)
        if not scope.has("gone with its disk"):
            yield (replaced[1],), now
        elif not any(replaced[1] in p.before and p.up for p in state.processes):
            yield (replaced[1],), _without_disk(now, replaced[1])


def _without_disk(state: State, incarnation: int) -> State:
    for at, process in enumerate(state.processes):
        if incarnation in process.before and not process.up:
            empty = process._replace(kind=NOTHING, number=0, before=frozenset(), asks_first="")
            state = with_process(state, at, empty)
    return state
