"""The stages of a topic's migration, from the preflight to the freeze, or to the abort.

What always holds: the stage follows from what was done and what the partitions report; nothing is
tracked before the preflight has passed; configs are asked for stage by stage and only here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from tideline.domain import failures
    from tideline.domain.messages import (
        AbortDecision,
        ConfigStage,
        ConfigStep,
        PartitionRef,
        PartitionSituation,
        TopicActivity,
        TopicOutcome,
        TopicStep,
    )
    from workflows.calls import Call, CallFailed, Interrupted, perform, quick, slow
    from workflows.fan_out import FanOut
    from workflows.insisting import Insistent, never
    from workflows.phases import TOPIC_IS_GONE
    from workflows.showing import now
    from workflows.topic_state import Stage, TopicState

LONG_HISTORY = 4_000
"""Events after which the workflow continues as new."""
REFUSALS = (failures.PREFLIGHT_REFUSED, failures.REFUSED, *TOPIC_IS_GONE)
"""Before anything is tracked these end the workflow."""


@dataclass(frozen=True, slots=True)
class Continued:
    """The input of a run that continues another."""

    continued: TopicState


class TopicRun:
    """One run of the workflow over its state. ``changed`` is called when there is news to show."""

    def __init__(self, state: TopicState, changed: Callable[[], None]) -> None:
        self.state = state
        self.waiting_reason = ""
        self.insistent = Insistent(self._wait_for)
        self.fan_out = FanOut(state, self._arm)
        self._changed = changed
        self._deciding = asyncio.Lock()
        self._step = TopicStep(state.ref, state.options)

    async def migrate(self) -> TopicOutcome:
        """To the end: ``hybrid`` or ``aborted``."""
        state = self.state
        tending = asyncio.create_task(self._tend())
        try:
            while state.stage is not Stage.ENDED:
                if state.aborted:
                    return await self._restore()
                if state.must_cross_again:
                    state.armed = state.rolled = False
                    self._move_to(Stage.CROSSING)
                try:
                    await self._while_paused()
                    await self._run_stage()
                except Interrupted:
                    continue
                except asyncio.CancelledError:
                    await self._cancelled()
        except CallFailed as failure:
            raise refused(failure) from failure
        finally:
            tending.cancel()
        return TopicOutcome(state.ref.topic, state.ref.topic_id, "hybrid", state.boundaries())

    async def _while_paused(self) -> None:
        if self.state.paused:
            self._wait_for("paused by an operator")
            await workflow.wait_condition(lambda: not self.state.paused or self._urgent())
            self._wait_for("")
            if self._urgent():
                raise Interrupted

    async def _run_stage(self) -> None:
        state, step = self.state, self._step
        match state.stage:
            case Stage.VALIDATING:
                await self._do(slow(TopicActivity.VALIDATE_TOPIC), leave=REFUSALS)
                self._move_to(Stage.TRACKING)
            case Stage.TRACKING:
                async with self._deciding:
                    if state.aborted:
                        return
                    begin = slow(TopicActivity.BEGIN_TRACKING)
                    await self.insistent.call(begin, step, leave=REFUSALS)
                await self._do(slow(TopicActivity.AWAIT_TRACKING), leave=TOPIC_IS_GONE)
                await self._hold_configs(ConfigStage.TRACKED)
                self._move_to(Stage.CROSSING)
            case Stage.CROSSING:
                await self._until(lambda: state.all_crossed)
                self._move_to(Stage.ROLLING)
            case Stage.ROLLING:
                await self._hold_configs(ConfigStage.CROSSED)
                prove = slow(TopicActivity.PROVE_COVERAGE_FOR_ROLL, seconds=120)
                await self._do(prove, leave=TOPIC_IS_GONE)
                await self._hold_configs(ConfigStage.ROLLING)
                state.rolled = True
                self.fan_out.steer_all()
                self._move_to(Stage.TIERING)
            case Stage.TIERING:
                await self._until(lambda: state.all_done)
                self._move_to(Stage.FREEZING)
            case Stage.FREEZING:
                await self._hold_configs(ConfigStage.FROZEN)
                self._move_to(Stage.ENDED)

    async def _do(self, call: Call, leave: tuple[str, ...]) -> None:
        await self.insistent.call(call, self._step, self._urgent, leave)

    async def _tend(self) -> None:
        """Partitions are looked after from the crossing on."""
        begun = (Stage.CROSSING, Stage.ROLLING, Stage.TIERING)
        await workflow.wait_condition(lambda: self.state.stage in begun)
        await self.fan_out.tend()

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Wait for the partitions; meanwhile the fan-out starts and steers them."""
        while not reached():
            await workflow.wait_condition(
                lambda: reached() or self._urgent() or bool(self.state.gone) or self._is_long()
            )
            if self.state.gone:
                raise CallFailed(failures.UNKNOWN_TOPIC, self.state.gone)
            if self._urgent():
                raise Interrupted
            if not reached():
                await self.fan_out.rest()
                await workflow.wait_condition(workflow.all_handlers_finished)
                self.fan_out.hand_over()
                workflow.continue_as_new(Continued(self.state))

    def _urgent(self) -> bool:
        return self.state.aborted or self.state.must_cross_again

    def _is_long(self) -> bool:
        info = workflow.info()
        return (
            info.get_current_history_length() > LONG_HISTORY
            or info.is_continue_as_new_suggested()
            or self.fan_out.crowded
        )

    # Topic configs

    async def _arm(self) -> None:
        """Just before the first write pause: ``flush.messages=1``, if that is the durability."""
        await self._hold_configs(ConfigStage.ARMED)

    async def _hold_configs(self, stage: ConfigStage) -> None:
        """Ask for the topic configs of ``stage``. A topic that is past it, as when this workflow
        was started anew, keeps what it has; only the freeze must come true."""
        may_be_past = () if stage is ConfigStage.FROZEN else (failures.STALE_STAGE,)
        leave = (*TOPIC_IS_GONE, *may_be_past)
        given = ConfigStep(self.state.ref, self.state.options, stage)
        interrupted = self._urgent if stage is not ConfigStage.RESTORED else never
        try:
            call = slow(TopicActivity.RECONCILE_CONFIGS)
            await self.insistent.call(call, given, interrupted, leave)
        except CallFailed as failure:
            if failure.kind != failures.STALE_STAGE:
                raise
            workflow.logger.info("stage_is_past", extra={"why": failure.message})

    # Abort

    async def decide_abort(self) -> AbortDecision:
        """Ask Postgres, by the one update that wins only while no B0 is set.

        Raises :class:`CallFailed` when Postgres gives no answer.
        """
        state = self.state
        async with self._deciding:
            if state.aborted:
                return AbortDecision(True, "the migration is being aborted already")
            if state.stage is Stage.ENDED:
                return AbortDecision(False, "the migration has ended")
            decision = await self._ask_postgres()
            if decision.won:
                state.aborted, state.restore = True, decision.tracked
        return decision

    async def _ask_postgres(self) -> AbortDecision:
        if self.state.stage is Stage.VALIDATING:
            first = PartitionRef(self.state.ref.topic, self.state.ref.topic_id, 0)
            observe = quick(TopicActivity.OBSERVE_PARTITION, PartitionSituation)
            situation: PartitionSituation = await perform(observe, first, never)
            if not situation.tracked:
                return AbortDecision(True, "nothing was changed yet", tracked=False)
        abort = quick(TopicActivity.ABORT_MIGRATION, AbortDecision)
        decision: AbortDecision = await perform(abort, self._step, never)
        return decision

    async def _restore(self) -> TopicOutcome:
        """After the abort has won: partitions end, configs and tracking go back."""
        state = self.state
        self._move_to(Stage.ABORTING)
        if state.restore:
            await self.fan_out.end_all()
            await self._hold_configs(ConfigStage.RESTORED)
            await self.insistent.call(slow(TopicActivity.STOP_TRACKING), self._step)
        self._move_to(Stage.ENDED)
        return TopicOutcome(state.ref.topic, state.ref.topic_id, "aborted")

    async def _cancelled(self) -> None:
        """A cancel, as the Temporal UI offers it, asks for an abort."""
        try:
            decision = await self.decide_abort()
        except CallFailed as failure:
            decision = AbortDecision(False, failure.message)
        if decision.won:
            await self._restore()
            raise asyncio.CancelledError
        self._wait_for(f"a cancel was refused, as an abort would be: {decision.reason}")

    # What is shown

    def _move_to(self, stage: Stage) -> None:
        self.state.stage, self.state.since = stage, now()
        self.waiting_reason = ""
        self._changed()

    def _wait_for(self, reason: str) -> None:
        if reason != self.waiting_reason:
            self.waiting_reason = reason
            self._changed()


def refused(failure: CallFailed) -> ApplicationError:
    """How a refusal ends the workflow: with the refusal's own words."""
    return ApplicationError(failure.message, type=failure.kind, non_retryable=True)
