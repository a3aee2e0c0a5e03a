"""A run leaves nothing behind in its process: a million of them may follow each other."""

from __future__ import annotations

import gc
import os

from tests.simulation.run import simulate

MORE = 500
"""Objects that the test's own surroundings may add; a run that is kept is 12,000."""


def _left_after_runs(many: int) -> tuple[int, int]:
    """Objects that the collector knows, and open files."""
    for _ in range(many):
        simulate(2)
    return len(gc.get_objects()), len(os.listdir("/proc/self/fd"))


def test_runs_leave_no_objects_and_no_open_files() -> None:
    _left_after_runs(1)  # fills what is kept for the life of a process
    objects, files = _left_after_runs(1)
    later, files_later = _left_after_runs(3)
    assert later < objects + MORE
    assert files_later <= files  # other tests of this process may have left some behind
