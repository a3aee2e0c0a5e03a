"""Which process of a run takes which file (docs/decisions/0006-tests-side-by-side.md).

Tests with a stack wait: for a lease, an outage, a group. Those without want nothing but a core.
So of three processes or more the last has no stack and takes files that need none, and the others
begin with those that do, and take of what is left.
"""

from __future__ import annotations

from collections.abc import Collection

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

WITH_A_STACK = ("tests/airflow/", "tests/integration/", "tests/fault/")
WITHOUT_STACK_FROM = 3
"""Processes: fewer have a stack each."""


def next_file(files: Collection[str], process: int, processes: int) -> str | None:
    """The file that ``process`` of ``processes``, counted from zero, takes next out of ``files``,
    which are in their order; ``None``: nothing is left for it."""
    if processes < WITHOUT_STACK_FROM:
        return next(iter(files), None)
    without = (file for file in files if not file.startswith(WITH_A_STACK))
    if process == processes - 1:
        return next(without, None)
    with_a_stack = (file for file in files if file.startswith(WITH_A_STACK))
    return next(with_a_stack, None) or next(without, None)


class SideBySide(LoadFileScheduling):
    """pytest-xdist's own, but for which file comes next."""

    def _next_for(self, node: WorkerController) -> str | None:
        process = int(node.gateway.id.removeprefix("gw"))
        return next_file(self.workqueue, process, self.numnodes)

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._next_for(node)
        if file is not None:
            self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if not node.shutting_down and self._next_for(node) is None:
            node.shutdown()
        super()._reschedule(node)
