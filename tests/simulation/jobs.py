"""Seeds that several processes take in turn, and whose results are told in order."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import TypeVar, cast

T = TypeVar("T")


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
            child = context.Process(target=_serve, args=(far, work), daemon=True)
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
                except EOFError:
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
        for child in children.values():
            child.terminate()
            child.join()


def _serve(asker: Connection, work: Callable[[int], object]) -> None:
    """Until whoever asks is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            seed = asker.recv()
        except EOFError:
            return
        asker.send(work(seed))
