"""What a gateway process does: routes, forwards, asks, tells, acknowledges, registers, dies."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.kafka import Step
from tests.model.state import (
    ACTIVE,
    APPENDED,
    CLASSIC,
    CONFIRMED,
    FROZEN,
    LAPSED,
    LOST_BY_KAFKA,
    NOTHING,
    PENDING,
    QUIESCING,
    REFUSED,
    RELEASED,
    RETIRED,
    SENT,
    STORED,
    SUFFIX,
    UNSET,
    VALID,
    Plane,
    Process,
    Produce,
    Scope,
    State,
    is_active,
    spend,
    with_process,
)


def send(state: State, scope: Scope) -> Iterator[Step]:
    """A producer sends a record of which it has heard nothing yet, to any gateway."""
    left = spend(state, "send")
    if left is None:
        return
    for record, told in enumerate(state.told):
        if told != UNSET:
            continue
        for at, process in enumerate(state.processes):
            free = process.produce is None and process.parked == UNSET
            if process.up and free:
                yield (record, at), _route(state._replace(left=left), at, process, record)


def unpark(state: State, scope: Scope) -> Iterator[Step]:
    for at, process in enumerate(state.processes):
        if process.parked == UNSET or not process.up or process.kind == QUIESCING:
            continue
        if process.kind != PENDING or process.lease != LAPSED:
            freed = process._replace(parked=UNSET)
            yield (process.parked, at), _route(state, at, freed, process.parked)


def _route(state: State, at: int, process: Process, record: int) -> State:
    if process.kind == SUFFIX:
        return _commit(with_process(state, at, process), record)
    gated = process.kind != CLASSIC
    if gated and (process.kind == QUIESCING or process.lease == LAPSED):
        return with_process(state, at, process._replace(parked=record))
    produce = Produce(record, SENT, UNSET, process.incarnation, process.closed, gated)
    return with_process(state, at, process._replace(produce=produce))


def _commit(state: State, record: int) -> State:
    """To the suffix, at once told. The seeds know what lies below B0, also when Kafka has lost it
    since; a reset boundary refuses."""
    plane = state.plane
    if plane.boundary == UNSET:
        return state
    for seeded, offset in plane.seeds:
        if seeded == record:
            is_lost = offset != STORED and state.log[offset : offset + 1] != (record,)
            return _tell(state, record, LOST_BY_KAFKA if is_lost else offset)
    if record in plane.suffix:
        return _tell(state, record, plane.boundary + plane.suffix.index(record))
    offset = plane.boundary + len(plane.suffix)
    state = state._replace(plane=plane._replace(suffix=(*plane.suffix, record)))
    return _tell(state, record, offset)


def _tell(state: State, record: int, offset: int) -> State:
    before = state.told[record]
    if before in (LOST_BY_KAFKA, offset) or (offset < 0 <= before):
        return state
    if before >= 0:
        return state._replace(wrong=f"record {record} is told at {before} and at {offset}")
    told = (*state.told[:record], offset, *state.told[record + 1 :])
    return state._replace(told=told)


def _answered(state: State, produce: Produce) -> bool:
    """Whether Kafka's acks=all answer is there."""
    offset = produce.offset
    return produce.stage in (APPENDED, CONFIRMED) and offset < state.high_watermark


def confirms(plane: Plane, incarnation: int, scope: Scope) -> bool:
    """What Postgres says of an incarnation while B0 is unset."""
    if not is_active(plane, incarnation) or plane.boundary != UNSET:
        return False
    if plane.quiesce != "closed":
        return True
    witness = incarnation in plane.witnesses or not scope.has("witnesses")
    return witness and all(incarnation != by for by, _ in plane.acknowledged)


def ask(state: State, scope: Scope) -> Iterator[Step]:
    """Ask Postgres after Kafka's answer, before the lease alone would let it be told."""
    if not scope.has("confirm"):
        return
    for at, process in enumerate(state.processes):
        produce = process.produce
        if produce is None or produce.stage != APPENDED or not _may_ask(process, produce):
            continue
        if not _answered(state, produce):
            continue
        boundary = state.plane.boundary
        if confirms(state.plane, process.incarnation, scope) or produce.offset < boundary:
            confirmed = process._replace(produce=produce._replace(stage=CONFIRMED))
            yield (at, "yes"), with_process(state, at, confirmed)
        elif boundary != UNSET:
            yield (at, "withhold"), with_process(state, at, process._replace(produce=None))


def _may_ask(process: Process, produce: Produce) -> bool:
    holds = (process.incarnation, process.closed) == (produce.incarnation, produce.closed)
    waits = process.kind in (PENDING, QUIESCING) and produce.gated
    return holds and waits and process.lease != LAPSED


def tell(state: State, scope: Scope) -> Iterator[Step]:
    """The acknowledgement goes to the producer, or is withheld since it lies at or past B0."""
    for at, process in enumerate(state.processes):
        produce = process.produce
        if not process.up or produce is None or not _answered(state, produce):
            continue
        done = with_process(state, at, process._replace(produce=None))
        if process.kind == SUFFIX and produce.gated and produce.stage != CONFIRMED:
            if produce.offset >= process.number:
                yield (produce.record, "withheld", at), done
                continue
        elif not _relays(process, produce, scope):
            continue
        highest = max(process.highest, produce.offset)
        done = with_process(state, at, process._replace(produce=None, highest=highest))
        yield (produce.record, produce.offset, at), _tell(done, produce.record, produce.offset)


def _relays(process: Process, produce: Produce, scope: Scope) -> bool:
    if not produce.gated or produce.stage == CONFIRMED or process.kind == CLASSIC:
        return True
    return not scope.has("confirm") and _may_ask(process, produce)


def lose_answer(state: State, scope: Scope) -> Iterator[Step]:
    """Whatever would tell a producer something: the gateway has told it, and nobody has heard."""
    left = spend(state, "lose")
    if left is None:
        return
    for transition in (tell, send, unpark):
        for (record, *_), after in transition(state, scope):
            if after.told != state.told:
                now = spend(after, "lose")
                assert now is not None
                yield (record,), after._replace(told=state.told, left=now)


def tell_error(state: State, scope: Scope) -> Iterator[Step]:
    """A final error of Kafka. As a gateway knows B0 it sends the record to the suffix instead."""
    for at, process in enumerate(state.processes):
        produce = process.produce
        if not process.up or produce is None or produce.stage != REFUSED:
            continue
        done = with_process(state, at, process._replace(produce=None))
        if scope.has("final errors gated") and produce.gated:
            yield (produce.record, "is sent again", at), done
        else:
            wrong = f"record {produce.record} is refused for good by a log that B0 has left behind"
            yield (produce.record, "is told the error", at), done._replace(wrong=wrong)


def learn(state: State, scope: Scope) -> Iterator[Step]:
    """Read the row: a new route. From quiescing on it thaws; without a lease it freezes."""
    kind, number = _route_in(state.plane)
    for at, process in enumerate(state.processes):
        if process.up and process.incarnation and (process.kind, process.number) != (kind, number):
            frozen = kind == QUIESCING and (process.frozen_ceiling or process.lease == LAPSED)
            known = process._replace(kind=kind, number=number, frozen_ceiling=frozen)
            yield (at, kind, number), with_process(state, at, known)


def _route_in(plane: Plane) -> tuple[str, int]:
    if plane.boundary != UNSET:
        return SUFFIX, plane.boundary
    if plane.status in ("none", "aborted"):
        return CLASSIC, 0
    if plane.quiesce == "closed":
        return QUIESCING, plane.generation
    return PENDING, plane.round


def say_tracked(state: State, scope: Scope) -> Iterator[Step]:
    """It tracks the topic durably and what it forwarded before is answered: a call leaves."""
    for at, process in enumerate(state.processes):
        if not process.up or process.kind != PENDING or process.telling_round == process.number:
            continue
        drained = process.produce is None or process.produce.gated
        if drained and process.incarnation not in state.plane.tracked_by:
            said = process._replace(telling_round=process.number)
            yield (at, process.number), with_process(state, at, said)


def hear_tracked(state: State, scope: Scope) -> Iterator[Step]:
    """The call arrives, perhaps after an abort and in another round."""
    plane = state.plane
    for at, process in enumerate(state.processes):
        if not process.telling_round or plane.status != "tracking":
            continue
        if not is_active(plane, process.incarnation):
            continue
        if scope.has("rounds") and process.telling_round != plane.round:
            continue
        tracked_by = plane.tracked_by | {process.incarnation}
        heard = with_process(state, at, process._replace(telling_round=0))
        yield (
            (at, process.telling_round, plane.round),
            heard._replace(plane=plane._replace(tracked_by=tracked_by)),
        )


def acknowledge_quiesce(state: State, scope: Scope) -> Iterator[Step]:
    """Nothing that it forwarded is unanswered; the ceiling freezes at what it sees now."""
    plane = state.plane
    if plane.quiesce != "closed":
        return
    for at, process in enumerate(state.processes):
        here = (process.kind, process.number) == (QUIESCING, plane.generation)
        if not process.up or not here or process.closed == plane.generation:
            continue
        in_flight = process.produce is not None and (process.produce.gated or scope.has("drained"))
        if in_flight or not is_active(plane, process.incarnation):
            continue
        seen = process
        if scope.readers and process.lease != LAPSED and not process.frozen_ceiling:
            seen = observed(process, state.high_watermark, state.epoch)
        closed = seen._replace(closed=plane.generation, frozen_ceiling=True)
        acknowledged = plane.acknowledged | {(process.incarnation, process.highest)}
        yield (
            (at, plane.generation),
            with_process(state, at, closed)._replace(
                plane=plane._replace(acknowledged=acknowledged)
            ),
        )


def observed(process: Process, end: int, epoch: int) -> Process:
    if epoch != process.ceiling_epoch:
        return process._replace(ceiling=end, ceiling_epoch=epoch)
    return process._replace(ceiling=max(process.ceiling, end))


def renew(state: State, scope: Scope) -> Iterator[Step]:
    for at, process in enumerate(state.processes):
        if process.lease == VALID or not process.up:
            continue
        if is_active(state.plane, process.incarnation):
            renewed = with_process(state, at, process._replace(lease=VALID))
            if scope.has("fence compares"):
                watched = state.plane.watched - {process.incarnation}
                renewed = renewed._replace(plane=state.plane._replace(watched=watched))
            yield (at,), renewed


def lease_runs_out(state: State, scope: Scope) -> Iterator[Step]:
    """Nothing is heard of a process for its lease and a margin; its own clock may stand still."""
    left = spend(state, "expire")
    for at, process in enumerate(state.processes):
        if process.lease == VALID and left is not None:
            spent = state._replace(left=left)
            yield (at, "lapsed"), with_process(spent, at, process._replace(lease=LAPSED))
            if scope.frozen_clocks:
                yield (at, "frozen"), with_process(spent, at, process._replace(lease=FROZEN))
        elif process.lease == FROZEN:
            yield (at, "lapsed"), with_process(state, at, process._replace(lease=LAPSED))


def register(state: State, scope: Scope) -> Iterator[Step]:
    """A new incarnation. The process drops what it had pending for the one before."""
    left = spend(state, "register")
    if left is None:
        return
    plane = state.plane
    for at, process in enumerate(state.processes):
        running = process.up or process.waits
        if not running or is_active(plane, process.incarnation):
            continue
        place = _place(scope, at)
        holder, status = plane.registered[place]
        if status == RETIRED:
            continue
        if status == ACTIVE and scope.has("registration compares") and _lives(state, holder):
            continue
        number = 1 + max(incarnation for incarnation, _ in plane.registered)
        number = max(number, 1 + max(p.incarnation for p in state.processes))
        registered = list(plane.registered)
        registered[place] = (number, ACTIVE)
        fresh = _dropped(state._replace(left=left), at)
        process = fresh.processes[at]._replace(
            up=True,
            waits=False,
            incarnation=number,
            lease=VALID,
            before=frozenset(),
            asks_first="",
        )
        if scope.has("loads first"):
            kind, known = _route_in(plane)
            # The barrier may be passed: what Kafka shows from now on may lie past the log end read.
            frozen = kind == QUIESCING
            process = process._replace(kind=kind, number=known, frozen_ceiling=frozen)
        fresh = with_process(fresh, at, process)
        replaced = plane.replaced if status == RELEASED else plane.replaced | {(place, holder)}
        mine = state.processes[at].before | {state.processes[at].incarnation}
        plane_now = plane._replace(
            registered=tuple(registered), replaced=_accounted(replaced, place, mine)
        )
        yield (at, number), _forgotten(fresh._replace(plane=plane_now))


def _place(scope: Scope, at: int) -> int:
    """Of a process's gateway in ``Plane.registered``."""
    return sorted(set(scope.ids)).index(scope.ids[at])


def _accounted(
    replaced: frozenset[tuple[int, int]], place: int, dead: frozenset[int]
) -> frozenset[tuple[int, int]]:
    return replaced - {(place, incarnation) for incarnation in dead}


def _lives(state: State, incarnation: int) -> bool:
    return any(p.incarnation == incarnation and p.lease == VALID for p in state.processes)


def _dropped(state: State, at: int) -> State:
    """Its connections end: what Kafka has not taken yet may still arrive there."""
    process = state.processes[at]
    late = state.late
    if process.produce is not None and process.produce.stage == SENT:
        late = tuple(sorted((*late, process.produce.record)))
    process = process._replace(produce=None, parked=UNSET, fetched=UNSET, telling_round=0)
    return with_process(state._replace(late=late), at, process)


def _forgotten(state: State) -> State:
    """Nobody is left that knows what an unclean election lost."""
    told = tuple(LOST_BY_KAFKA if offset <= -10 else offset for offset in state.told)
    return state._replace(told=told)


forget_lost = _forgotten


def crash(state: State, scope: Scope) -> Iterator[Step]:
    left = spend(state, "crash")
    if left is None:
        return
    for at, process in enumerate(state.processes):
        if process.up or process.waits:
            yield (at,), _ended(state._replace(left=left), at)


def _ended(state: State, at: int) -> State:
    dropped = _dropped(state, at)
    process = dropped.processes[at]
    before = process.before | ({process.incarnation} if process.incarnation else frozenset())
    gone = process._replace(up=False, waits=False, lease=LAPSED, before=before)
    return _forgotten(with_process(dropped, at, gone))


def stop(state: State, scope: Scope) -> Iterator[Step]:
    """A clean stop: nothing is pending, and the lease is released."""
    left = spend(state, "crash")
    plane = state.plane
    for at, process in enumerate(state.processes):
        idle = process.produce is None and process.parked == UNSET and process.fetched == UNSET
        if left is None or not process.up or not idle:
            continue
        if is_active(plane, process.incarnation):
            registered = tuple(
                (by, RELEASED if by == process.incarnation else status)
                for by, status in plane.registered
            )
            gone = process._replace(
                up=False, lease=LAPSED, telling_round=0, asks_first="stopped ones ask first"
            )
            stopped = with_process(state._replace(left=left), at, gone)
            yield (at,), _forgotten(stopped._replace(plane=plane._replace(registered=registered)))


def start(state: State, scope: Scope) -> Iterator[Step]:
    """Postgres does not answer. With its disk it knows what it knew when that was written; without,
    nothing until Postgres has told it."""
    for at, process in enumerate(state.processes):
        if process.up or process.waits:
            continue
        if scope.disk_kept and process.kind != NOTHING and _may_serve_alone(state, scope, at):
            yield (at, "with its disk"), with_process(state, at, _started(process))
        if scope.disk_lost:
            closed = scope.has("fail closed")
            known = Process(up=not closed, waits=closed, kind=NOTHING if closed else CLASSIC)
            yield (at, "without its disk"), with_process(state, at, known)


def _may_serve_alone(state: State, scope: Scope, at: int) -> bool:
    """Whether nobody has promised that it does not."""
    process = state.processes[at]
    retired = state.plane.registered[_place(scope, at)][1] == RETIRED
    return not (
        (process.asks_first and scope.has(process.asks_first))
        or (retired and scope.has("retired ones stay away"))
    )


def start_refused(state: State, scope: Scope) -> Iterator[Step]:
    """Postgres answers, and does not let it in: it is retired, its id is held, its password is
    wrong. It waits; some may be let in later."""
    for at, process in enumerate(state.processes):
        if not (process.up or process.waits):
            waiting = _started(process)._replace(up=False, waits=True)
            yield (at, "waits"), with_process(state, at, waiting)
            if not scope.has("refused ones wait"):
                yield (at, "serves by its disk"), with_process(state, at, _started(process))


def _started(process: Process) -> Process:
    kind = PENDING if process.kind == QUIESCING else process.kind
    number = 0 if kind == PENDING else process.number
    return Process(
        kind=kind,
        number=number,
        before=process.before,
        asks_first=process.asks_first,
    )


def account(state: State, scope: Scope) -> Iterator[Step]:
    """Its id is held by another: it says that whoever held its disk before is dead."""
    for at, process in enumerate(state.processes):
        serves = process.up and not process.incarnation
        if process.waits or (serves and not scope.has("stood for")):
            replaced = _accounted(state.plane.replaced, _place(scope, at), process.before)
            if replaced != state.plane.replaced:
                accounted = process._replace(asks_first="accounted ones ask first")
                now = with_process(state, at, accounted)
                yield (at,), now._replace(plane=state.plane._replace(replaced=replaced))


def end_refused(state: State, scope: Scope) -> Iterator[Step]:
    """It serves from its snapshot, reaches Postgres and is refused: retired, or its id is held by
    one that is not its own dead."""
    for at, process in enumerate(state.processes):
        holder, status = state.plane.registered[_place(scope, at)]
        held = status == ACTIVE and holder not in process.before
        if process.up and not process.incarnation and (held or status == RETIRED):
            yield (at,), _ended(state, at)


def put_back(state: State, scope: Scope) -> Iterator[Step]:
    """The disk of a process that does not run: a machine's image, a volume, a backup. It is of
    before the topic was tracked, of an earlier round, or of before B0, and does not name whom it
    was put back under."""
    left = spend(state, "put_back")
    if left is None:
        return
    for at, process in enumerate(state.processes):
        if process.up or process.waits:
            continue
        for kind in (CLASSIC, PENDING):
            if kind != process.kind and state.plane.round:
                older = Process(up=False, kind=kind, asks_first="older disks ask first")
                yield (at, kind), with_process(state._replace(left=left), at, older)
