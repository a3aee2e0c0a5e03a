"""Seeds that several processes take in turn, and whose results are told in order."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import TypeVar, cast

T = TypeVar("T")
ENDS_S = 10.0
"""How long a process may go on with the seed that it has when nobody asks any more: one that is
ended in the midst of it leaves its files behind."""


class Died(Exception):
    """A process ended without an answer to the seed that it had."""


def in_order(work: Callable[[int], T], seeds: Iterable[int], jobs: int) -> Generator[T, None, None]:
    """What ``work`` returns for each of ``seeds``, in their order, by ``jobs`` processes that are
    forked here: what is imported is shared. Who stops asking ends them. Raises :class:`Died`, in
    its seed's turn, where one was ended or raised something."""
    context = multiprocessing.get_context("fork")
    rest, asked = iter(seeds), deque[int]()
    told: dict[int, T | Died] = {}
    at: dict[Connection, int] = {}
    children: dict[Connection, ForkProcess] = {}
    idle: list[Connection] = []
    gc.freeze()  # a collection in a child would copy every page that it shares
    try:
        for _ in range(jobs):
            near, far = context.Pipe()
            others = [*children, near]
            child = context.Process(target=_serve, args=(far, others, work), daemon=True)
            child.start()
            far.close()
            children[near] = child
            idle.append(near)
        while True:
            while idle and (seed := next(rest, None)) is not None:
                near = idle.pop()
                near.send(seed)
                at[near] = seed
                asked.append(seed)
            if not asked:
                return
            for ready in wait(list(at)):
                near = cast("Connection", ready)
                seed = at.pop(near)
                try:
                    told[seed] = near.recv()
                except (EOFError, OSError):
                    children[near].join()
                    told[seed] = Died(f"seed {seed}: its process died, {children[near].exitcode}")
                else:
                    idle.append(near)
            while asked and asked[0] in told:
                found = told.pop(asked.popleft())
                if isinstance(found, Died):
                    raise found
                yield found
    finally:
        gc.unfreeze()
        for near in children:
            near.close()
        for child in children.values():
            child.join(ENDS_S)
            child.terminate()
            child.join()


def _serve(asker: Connection, others: Iterable[Connection], work: Callable[[int], object]) -> None:
    """Until whoever asks is gone, whose ends of all connections a fork has, too."""
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError):
        while True:
            found = work(asker.recv())
            with suppress(OSError):
                asker.send(found)
