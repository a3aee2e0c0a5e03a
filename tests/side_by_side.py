"""Which process of a run takes which file (docs/decisions/0006-tests-side-by-side.md).

As many processes as ``--stacks`` says, the first ones, take files that need the embedded stack, and
begin with them: such tests wait, for a lease, an outage, a group. The others take only files that
need none, which want nothing but a core. The second process with a stack takes those files from
their end, so that what waits longest lies beside what works. Who has done its own takes of what is
left and needs no stack.
"""

from __future__ import annotations

from collections.abc import Collection

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

WITH_A_STACK = (
    "tests/integration/",
    "tests/nightly/airflow/",
    "tests/nightly/faults/",
    "tests/nightly/fuzz/",
    "tests/nightly/own_stack/",
    "tests/nightly/stack/",
)
"""The run's, or one of their own beside it."""
LONG = (
    "tests/nightly/airflow/test_dags.py",
    "tests/nightly/own_stack/test_kafka_releases.py",
    "tests/nightly/stack/test_standalone_cluster.py",
)
"""Minutes each: whoever began one of these at the end would be waited for."""
FROM_THE_END = 1


def next_file(files: Collection[str], process: int, processes: int, stacks: int) -> str | None:
    """The file that ``process`` of ``processes``, counted from zero, takes next out of ``files``,
    which are in their order; ``None``: nothing is left for it. One that takes the place of a
    process that has died, whose number is beyond theirs, does at last what needs a stack."""
    with_a_stack = sorted(filter(needs_a_stack, files), key=lambda file: file not in LONG)
    if process == FROM_THE_END:
        with_a_stack.reverse()
    if stacks <= process < processes:
        with_a_stack = []
    without = [file for file in files if not needs_a_stack(file)]
    if process >= processes:
        return next(iter([*without, *with_a_stack]), None)
    return next(iter([*with_a_stack, *without]), None)


def needs_a_stack(file: str) -> bool:
    return file.startswith(WITH_A_STACK)


class SideBySide(LoadFileScheduling):
    """pytest-xdist's own, but for which file comes next."""

    def _next_for(self, node: WorkerController) -> str | None:
        process = int(node.gateway.id.removeprefix("gw"))
        return next_file(self.workqueue, process, self.numnodes, self.config.option.stacks)

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._next_for(node)
        if file is not None:
            self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if not node.shutting_down and self._next_for(node) is None:
            node.shutdown()
        super()._reschedule(node)
