"""Breadth first through every state of a scope: the first broken one has the shortest schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.model import gateway, kafka, readers, worker
from tests.model.invariants import broken, broken_by_step
from tests.model.kafka import Step
from tests.model.state import Scope, State, initial

Transition = Callable[[State, Scope], Iterator[Step]]

TRANSITIONS: tuple[Transition, ...] = (
    gateway.send,
    gateway.unpark,
    kafka.append,
    kafka.append_late,
    kafka.replicate,
    kafka.move_leader,
    kafka.move_leader_unclean,
    gateway.ask,
    gateway.tell,
    gateway.lose_answer,
    gateway.tell_error,
    gateway.learn,
    gateway.say_tracked,
    gateway.hear_tracked,
    gateway.acknowledge_quiesce,
    gateway.renew,
    gateway.lease_runs_out,
    gateway.register,
    gateway.crash,
    gateway.stop,
    gateway.start,
    gateway.start_refused,
    gateway.account,
    gateway.end_refused,
    gateway.put_back,
    worker.begin_tracking,
    worker.begin_tracking_stalled,
    worker.activate,
    worker.close,
    worker.close_again,
    worker.look,
    worker.fence,
    worker.pass_barrier,
    worker.read_log_end,
    worker.read_producers,
    worker.confirm_end,
    worker.persist,
    worker.seal,
    worker.quiesce_runs_out,
    worker.abort,
    worker.reset,
    worker.retire,
    worker.attest,
    readers.fetch,
    readers.show,
    readers.show_suffix,
    readers.observe_by_debug_reader,
    readers.validate_position,
)


@dataclass(slots=True)
class Searched:
    states: int = 0
    transitions: int = 0
    seconds: float = 0.0
    """CPU time."""
    fired: set[str] = field(default_factory=set)
    """Names of the transitions that happened at least once."""
    problem: str | None = None
    schedule: tuple[tuple[str, tuple[object, ...]], ...] = ()
    """The steps to the problem: names and what they were about."""

    @property
    def holds(self) -> bool:
        return self.problem is None


def search(scope: Scope) -> Searched:
    """Every state that ``scope`` can reach, or those up to the first broken one."""
    began = time.process_time()
    result = Searched()
    start = initial(scope)
    came_from: dict[State, tuple[State, str, tuple[object, ...]] | None] = {start: None}
    level = [start]
    transitions = [t for t in TRANSITIONS if t.__name__ not in scope.left_out]
    while level and result.problem is None:
        level = _next_level(level, scope, transitions, came_from, result)
    result.states = len(came_from)
    result.seconds = time.process_time() - began
    return result


def _next_level(
    level: list[State],
    scope: Scope,
    transitions: list[Transition],
    came_from: dict[State, tuple[State, str, tuple[object, ...]] | None],
    result: Searched,
) -> list[State]:
    following = []
    for state in level:
        for transition in transitions:
            name = transition.__name__
            for about, after in transition(state, scope):
                result.transitions += 1
                result.fired.add(name)
                before = len(came_from)
                came_from.setdefault(after, (state, name, about))  # hashed once, and that is dear
                problem = broken_by_step(state, name, after)
                if len(came_from) > before:
                    following.append(after)
                    if problem is None:
                        problem = broken(after)
                if problem is not None:
                    result.problem = problem
                    result.schedule = _steps(came_from, state, (name, about))
                    return []
    return following


def _steps(
    came_from: dict[State, tuple[State, str, tuple[object, ...]] | None],
    state: State,
    last: tuple[str, tuple[object, ...]],
) -> tuple[tuple[str, tuple[object, ...]], ...]:
    steps = [last]
    while (origin := came_from[state]) is not None:
        state, name, about = origin
        steps.append((name, about))
    return tuple(reversed(steps))
