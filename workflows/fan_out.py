"""Starts the partitions' workflows, a bounded number at once, and steers them.

A partition's workflow outlives its topic's (``ParentClosePolicy.ABANDON``) and answers to
whichever runs under the topic's id, so starting one that runs already means: ask it to report. One
that nobody asked tells by its outcome alone, which only the run that started it gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ChildWorkflowError, TemporalError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from tideline.domain.messages import (
        ABORTED,
        CROSSED,
        DONE,
        ENDINGS,
        FORCED,
        GONE,
        PARTITION_WORKFLOW,
        TO_DO,
        PartitionMigrationInput,
        PartitionOutcome,
        PartitionReport,
        Signal,
        Steering,
        WaitsFor,
    )
    from tideline.domain.migration import Phase
    from tideline.domain.waits import Waits
    from workflows.calls import Interrupted
    from workflows.reporting import now, search_attributes_at_start
    from workflows.topic_state import TopicState

MOST_AT_ONCE = 50
"""Starts and signals under way."""
SLICE = 200
"""Of starts and signals, after which it is looked whether something else must come first: a new
run, or a write pause that may begin."""
MOST_CHILDREN = 1_000
"""Open children of one run; Temporal allows 2000. A new run begins with none."""
CHECK_SILENT_EVERY = timedelta(minutes=5)
"""How often partitions that this run has not started itself are checked on."""
START_AGAIN_AFTER = timedelta(seconds=5)
TASK_TIMEOUT = timedelta(seconds=5)
"""A worker that dies inside a write pause is noticed after this, well within the quiesce's hold."""

Child = ChildWorkflowHandle[PartitionMigrationInput, PartitionOutcome]
_PHASE_OF_OUTCOME = {
    CROSSED: Phase.READINESS,
    "ready": DONE,
    ABORTED: ABORTED,
    GONE: GONE,
    FORCED: FORCED,
}


class FanOut:
    """Acts on the state's wishes; :meth:`reconcile` runs beside the topic's stages. ``changed`` is
    called when there is news to show that no report has brought."""

    def __init__(
        self,
        state: TopicState,
        arm: Callable[[], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        self._state = state
        self._arm = arm
        self._changed = changed
        self._children: dict[int, Child] = {}
        self._lost = set(state.lost)
        self._to_steer = set(state.to_steer)
        self._restarts: dict[int, asyncio.Task[None]] = {}
        self._busy = False
        self._settling = False

    @property
    def crowded(self) -> bool:
        """This run has started as many children as one run should."""
        return len(self._children) >= MOST_CHILDREN

    @property
    def settling(self) -> bool:
        """Whoever works must come to an end: another run begins."""
        return self._settling

    def receive(self, report: PartitionReport) -> None:
        """A partition says where it stands."""
        self._state.receive(report)
        if (
            report.waits_for is WaitsFor.PERMIT
            and 0 <= report.partition < len(self._state.permits)
            and self._state.permits[report.partition] >= report.round
        ):
            self._to_steer.add(report.partition)
        if report.waits_for is WaitsFor.READY and self._is_told(report):
            # It has not heard of it, or was started anew.
            self._state.not_waiting(report.partition)
            self.tell_of_look([report.partition])

    def _is_told(self, report: PartitionReport) -> bool:
        state = self._state
        is_ready = state.ready.get(str(report.partition), 0) >= report.round
        return is_ready or str(report.partition) in state.own_look

    def tell_of_look(self, partitions: Iterable[int]) -> None:
        """They are ready, or have to look for themselves. One that has no workflow any more needs
        none to be ready, and gets another one to look."""
        for partition in partitions:
            report = self._state.partitions[partition]
            if not report.rests:
                self._to_steer.add(partition)
            elif str(partition) in self._state.own_look:
                self._state.receive(replace(report, rests=False))
                self._lost.add(partition)
            else:
                self._state.told_of_ready(partition, now())
        self._changed()

    def steer_all(self) -> None:
        self._to_steer.update(self._state.running())

    async def settle(self) -> None:
        """Begin nothing more, and wait until nothing is under way."""
        self._settling = True
        await workflow.wait_condition(lambda: not self._busy)

    def go_on(self) -> None:
        """No other run begins, after all."""
        self._settling = False

    def hand_over(self) -> None:
        """Leave in the state what the next run has to do. It gets no outcome of a partition that
        this one has started, and asks it to tell."""
        self._state.to_steer = sorted(self._to_steer)
        self._state.lost = sorted(self._lost | self._children.keys() | self._restarts.keys())

    async def end_all(self) -> None:
        """After an abort or a forced completion: steer every partition and wait until it has ended,
        a minute at most; one that does not hear of an abort is fenced by its generation."""
        self._state.force_resting(now())
        self.steer_all()
        try:
            await workflow.wait_condition(
                lambda: not self._state.tally.running, timeout=timedelta(minutes=1)
            )
        except TimeoutError:
            workflow.logger.warning("partitions_did_not_end")
        self._state.force_resting(now())  # those that came to rest meanwhile

    async def reconcile(self) -> None:
        """Start, permit and steer until cancelled."""
        looking = asyncio.create_task(self._look_after_silent())
        try:
            while True:
                await workflow.wait_condition(self._has_work)
                self._busy = True
                try:
                    await self._work()
                except Interrupted:
                    continue  # arming made way: it is asked for again with the next permit
                finally:
                    self._busy = False
        finally:
            looking.cancel()

    async def _look_after_silent(self) -> None:
        """Look after partitions that an earlier run has started, some at a time: one that was
        terminated meanwhile is started again, the others report."""
        while True:
            await asyncio.sleep(CHECK_SILENT_EVERY.total_seconds())
            self._lost.update(self._state.to_look_after(self._children, MOST_AT_ONCE))

    def _has_work(self) -> bool:
        if self._settling:
            return False
        if self._to_steer or self._state.to_permit():
            return True
        if self.crowded or self._state.aborted:
            return False  # what is lost is not started again then: it would be work for ever
        return bool(self._lost or self._state.to_start())

    async def _work(self) -> None:
        state = self._state
        if not self.crowded and not state.aborted:
            starting = self._slice([*sorted(self._lost), *state.to_start()])
            self._lost.difference_update(starting)
            let_through = set()
            for partition in starting:
                if state.partitions[partition].phase == TO_DO:
                    state.receive(PartitionReport(partition, Phase.VALIDATE, now()))
                    if state.starts_with_permit:
                        state.let_through(partition)
                        let_through.add(partition)
            await _together(self._start(p, p in let_through) for p in starting)
        if permitted := state.to_permit():
            if not state.armed:
                await self._arm()
                state.armed = True
            for partition in permitted:
                state.permits[partition] = state.partitions[partition].round
            self._to_steer.update(permitted)
        steering = self._slice(sorted(self._to_steer), first=permitted)
        self._to_steer.difference_update(steering)
        await _together(self._steer(p, state.steering(p)) for p in steering)

    def _slice(self, wanted: list[int], first: Sequence[int] = ()) -> list[int]:
        """As many as are one piece of work, ``first`` among them."""
        if len(wanted) <= SLICE:
            return wanted
        return list(dict.fromkeys([*first, *wanted]))[:SLICE]

    async def _start(self, partition: int, let_through: bool) -> None:
        ref = self._state.ref
        given = PartitionMigrationInput(
            ref.partition(partition),
            self._state.options,
            ref.workflow_id,
        )
        given.state.round = self._state.round_to_start(partition)
        given.state.steering = self._state.steering(partition)
        try:
            child: Child = await workflow.start_child_workflow(
                PARTITION_WORKFLOW,
                given,
                result_type=PartitionOutcome,
                id=ref.partition_workflow_id(partition),
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                task_timeout=TASK_TIMEOUT,
                parent_close_policy=ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                search_attributes=search_attributes_at_start(ref.topic),
                static_summary=f"partition {ref.topic}-{partition}",
                static_details=f"Moves partition {partition} of topic {ref.topic} from tiered to "
                f"diskless storage. Steered by `{ref.workflow_id}`.",
            )
        except WorkflowAlreadyStartedError:
            if let_through:
                # It asks: nobody knows what it waits for, and it would not give the permit back.
                self._state.take_back(partition)
            steering = replace(self._state.steering(partition), report_again=True)
            await self._steer(partition, steering)
            return
        self._children[partition] = child
        child.add_done_callback(lambda _: self._ended(partition, child))

    def _ended(self, partition: int, child: Child) -> None:
        """Its last report may have been lost; its result, or the lack of one, is not."""
        self._children.pop(partition, None)
        if self._state.partitions[partition].phase in ENDINGS or child.cancelled():
            return
        if error := child.exception():
            why = str(error.cause or error) if isinstance(error, ChildWorkflowError) else str(error)
            again = asyncio.create_task(self._start_again(partition, why))
            self._restarts[partition] = again
            again.add_done_callback(lambda _: self._restarts.pop(partition, None))
            return
        outcome = child.result()
        crossed = outcome.outcome == CROSSED
        self.receive(
            PartitionReport(
                partition,
                _PHASE_OF_OUTCOME[outcome.outcome],
                now(),
                outcome.boundary,
                outcome.leader_epoch,
                WaitsFor.READY if crossed else WaitsFor.NOTHING,
                outcome.reason,
                outcome.round,
                crossed,
            )
        )
        self._changed()

    async def _start_again(self, partition: int, why: str) -> None:
        """Somebody cancelled or terminated it: a migration is stopped by an abort of the topic."""
        known = self._state.partitions[partition]
        reason = f"its workflow was ended from outside ({why}); it is started again"
        # It does not ask while it does not run.
        told = replace(known, since=now(), waiting_reason=reason, waits=Waits.RESTART)
        self._state.receive(replace(told, waits_for=WaitsFor.NOTHING))
        self._state.not_through(partition)
        self._changed()
        await asyncio.sleep(START_AGAIN_AFTER.total_seconds())
        self._lost.add(partition)

    async def _steer(self, partition: int, steering: Steering) -> None:
        workflow_id = self._state.ref.partition_workflow_id(partition)
        try:
            await workflow.get_external_workflow_handle(workflow_id).signal(Signal.STEER, steering)
            if steering.ready:
                self._state.told_of_ready(partition, now())
        except TemporalError:
            # It has ended: by itself, then its report or result says so, or from outside.
            if partition not in self._children and partition in self._state.running():
                self._lost.add(partition)


async def _together(work: Iterable[Awaitable[None]]) -> None:
    """All of ``work``, :data:`MOST_AT_ONCE` at a time."""
    places = asyncio.Semaphore(MOST_AT_ONCE)

    async def one(item: Awaitable[None]) -> None:
        async with places:
            await item

    await asyncio.gather(*(one(item) for item in work))
