"""Which process of a run takes which file (docs/decisions/0006-tests-side-by-side.md).

Tests with a stack wait: for a lease, an outage, a group. Those without want nothing but a core.
So of three processes or more the last begins with files that need no stack, and the others with
those that do. The second of them takes those from their end, where nearly all of the time is
waiting for what was killed: waits lie beside work then all the time, and what is left at last is
short. Who has done its own takes of what is left; the last one starts a stack for it only where
there is enough left to be worth it.
"""

from __future__ import annotations

from collections.abc import Collection

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

WITH_A_STACK = ("tests/nightly/airflow/", "tests/integration/", "tests/fault/")
WITHOUT_STACK_FROM = 3
"""Processes: fewer have a stack each."""
LONG = ("tests/nightly/airflow/test_dags.py", "tests/nightly/spark/test_standalone_cluster.py")
"""Minutes each: whoever began one of these at the end would be waited for."""
FROM_THE_END = 1
WORTH_A_STACK = 4
"""Files: its start and end take both cores for half a minute."""


def next_file(
    files: Collection[str], process: int, processes: int, has_a_stack: bool = False
) -> str | None:
    """The file that ``process`` of ``processes``, counted from zero, takes next out of ``files``,
    which are in their order; ``None``: nothing is left for it."""
    if processes < WITHOUT_STACK_FROM:
        return next(iter(files), None)
    with_a_stack = sorted(filter(needs_a_stack, files), key=lambda file: file not in LONG)
    without = [file for file in files if not needs_a_stack(file)]
    if process != processes - 1:
        if process == FROM_THE_END:
            with_a_stack.reverse()
        return next(iter([*with_a_stack, *without]), None)
    if not (has_a_stack or len(with_a_stack) >= WORTH_A_STACK):
        with_a_stack = []
    return next(iter([*without, *with_a_stack]), None)


def needs_a_stack(file: str) -> bool:
    return file.startswith(WITH_A_STACK)


class SideBySide(LoadFileScheduling):
    """pytest-xdist's own, but for which file comes next."""

    def _next_for(self, node: WorkerController) -> str | None:
        process = int(node.gateway.id.removeprefix("gw"))
        taken = any(needs_a_stack(file) for file in self.assigned_work.get(node, ()))
        return next_file(self.workqueue, process, self.numnodes, taken)

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._next_for(node)
        if file is not None:
            self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if not node.shutting_down and self._next_for(node) is None:
            node.shutdown()
        super()._reschedule(node)
