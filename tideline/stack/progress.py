"""Shows a start: what, where, how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tideline.stack.startup import Progress, Report, Step

_STYLES = {Step.READY: "green", Step.FAILED: "red", Step.WAITING: "dim", Step.ABANDONED: "dim"}


@contextmanager
def live_progress(console: Console) -> Iterator[Report]:
    """A live table on a terminal; one line per part that is ready or failed elsewhere."""
    if not console.is_terminal:
        yield lambda step: _line(console, step)
        return
    board = _Board()
    with Live(board, console=console, refresh_per_second=8):
        yield board.update


class _Board:
    def __init__(self) -> None:
        self._steps: dict[str, Progress] = {}
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()

    def update(self, step: Progress) -> None:
        with self._lock:
            self._steps[step.name] = step
            self._seen[step.name] = time.monotonic()

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False)
        with self._lock:
            steps = [(step, self._seen[step.name]) for step in self._steps.values()]
        for step, seen in steps:
            ended = step.step in (Step.READY, Step.FAILED, Step.ABANDONED, Step.WAITING)
            seconds = step.seconds + (0 if ended else time.monotonic() - seen)
            table.add_row(
                step.name,
                f"[{_STYLES.get(step.step, 'yellow')}]{step.step}",
                f"{seconds:.1f} s",
                step.where,
                step.note,
            )
        return table


def _line(console: Console, step: Progress) -> None:
    if step.step in (Step.READY, Step.FAILED):
        console.print(str(step), markup=False, highlight=False, soft_wrap=True)
