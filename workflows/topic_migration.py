"""One topic from tiered to hybrid: the workflow that every trigger meets at, and its stages.

What always holds: there is one workflow id per topic id; a start under any other id finds that
one, starting it if need be, and returns its result. A wrong input changes nothing. The stage
follows from what was done and what the partitions report; nothing is tracked before the preflight
has passed; configs are asked for stage by stage and only here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from tideline.domain import failures
    from tideline.domain.messages import (
        TOPIC_WORKFLOW,
        AbortDecision,
        ConfigStage,
        ConfigStep,
        JoinRequest,
        PartitionRef,
        PartitionReport,
        PartitionSituation,
        PauseOutcome,
        Query,
        Signal,
        TopicActivity,
        TopicMigrationInput,
        TopicMigrationStatus,
        TopicOutcome,
        TopicRef,
        TopicStep,
        Update,
    )
    from tideline.domain.migration_input import InvalidMigrationInput, parse_migration_input
    from workflows.calls import (
        Call,
        CallFailed,
        Interrupted,
        RetryUntilSuccess,
        history_is_long,
        not_interrupted,
        perform,
        quick,
        slow,
    )
    from workflows.fan_out import FanOut
    from workflows.phases import TOPIC_IS_GONE
    from workflows.reporting import SearchAttributes, markdown_table, now
    from workflows.topic_state import Stage, TopicState

INVALID_INPUT = "InvalidInput"
NO_INPUT = RawValue(Payload())
"""Started without any input, as the Temporal UI allows."""
JOINED_FOR = timedelta(days=365)
"""Longer than a migration that is paused over the holidays."""
OPEN_AFTER_RESET = "open-the-classic-log-after-a-reset"
"""A partition whose B0 was reset takes classic produces again: the seal goes at once, not only
with the arming before its write pause."""
REFUSALS = (failures.PREFLIGHT_REFUSED, failures.REFUSED, *TOPIC_IS_GONE)
"""Before anything is tracked these end the workflow."""


@workflow.defn(name=TOPIC_WORKFLOW)
class TopicMigration:
    """Started with JSON as short as ``{"topic": "orders"}``."""

    @workflow.init
    def __init__(self, raw: RawValue = NO_INPUT) -> None:
        self._refusal = ""
        self._given: TopicMigrationInput | None = None
        self._run: TopicRun | None = None
        self._early: list[PartitionReport] = []
        self._follows = ""
        self._search_attributes = SearchAttributes()
        try:
            self._read(raw)
        except InvalidMigrationInput as error:
            self._refusal = str(error)

    def _read(self, raw: RawValue) -> None:
        if raw is NO_INPUT:
            self._given = parse_migration_input(None)
            return
        converter = workflow.payload_converter()
        try:
            value = converter.from_payload(raw.payload)
        except Exception as error:
            raise InvalidMigrationInput(f"the input is not JSON: {error}") from error
        if isinstance(value, dict) and "continued" in value:
            state = converter.from_payload(raw.payload, Continued).continued
            self._run = TopicRun(state, self._changed)
        else:
            self._given = parse_migration_input(value)

    @workflow.run
    async def run(self, raw: RawValue = NO_INPUT) -> TopicOutcome:
        """Returns ``hybrid`` or ``aborted``. Fails, with nothing changed, when it is refused."""
        if self._run is None:
            if self._given is None:
                raise ApplicationError(self._refusal, type=INVALID_INPUT, non_retryable=True)
            ref = await self._resolve(self._given)
            if ref.workflow_id != workflow.info().workflow_id:
                return await self._join(ref, self._given)
            self._run = TopicRun(TopicState(ref, self._given.options, since=now()), self._changed)
        self._run.state.begin()
        for report in self._early:
            self._run.fan_out.receive(report)
        self._changed()
        outcome = await self._run.migrate()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return outcome

    async def _resolve(self, given: TopicMigrationInput) -> TopicRef:
        retrying = RetryUntilSuccess(workflow.set_current_details)
        try:
            call = slow(TopicActivity.RESOLVE_TOPIC, TopicRef)
            ref: TopicRef = await retrying.call(call, given, reraise=REFUSALS)
        except CallFailed as failure:
            raise refused(failure) from failure
        return ref

    async def _join(self, ref: TopicRef, given: TopicMigrationInput) -> TopicOutcome:
        self._follows = ref.workflow_id
        workflow.set_current_details(f"Follows `{ref.workflow_id}`: look and steer there.")
        self._search_attributes.update(topic=ref.topic, phase="following", waiting_reason="")
        call = Call(
            TopicActivity.JOIN_TOPIC_MIGRATION,
            waits=True,
            start_to_close=JOINED_FOR,
            heartbeat=timedelta(seconds=30),
            result=TopicOutcome,
        )
        try:
            outcome: TopicOutcome = await perform(call, JoinRequest(ref, given))
        except CallFailed as failure:
            raise refused(failure) from failure
        return outcome

    # What operators see

    @workflow.query(name=Query.STATUS)
    def status(self) -> TopicMigrationStatus:
        """Where the topic and each of its partitions stand, and what comes next."""
        run = self._run
        if run is None:
            topic = self._given.topic if self._given is not None else ""
            where = f"follows {self._follows}" if self._follows else "resolving the topic"
            return TopicMigrationStatus(topic, "", where, "", self._refusal, False, "")
        return run.state.status(run.waiting_reason)

    def _changed(self) -> None:
        run = self._run
        if run is None:
            return
        known = run.state.status(run.waiting_reason)
        self._search_attributes.update(
            topic=known.topic, phase=known.stage, waiting_reason=known.waiting_reason
        )
        workflow.set_current_details(markdown_table(run.state.details(known)))

    # Steering

    @workflow.signal(name=Signal.REPORT)
    def report(self, report: PartitionReport) -> None:
        """A partition says where it stands."""
        if self._run is None:
            self._early.append(report)
        else:
            self._run.fan_out.receive(report)
            self._changed()

    @workflow.update(name=Update.PAUSE)
    def pause(self) -> PauseOutcome:
        """No partition begins another phase; write pauses that run are finished first."""
        return self._set_paused(True, "no further phase begins; running write pauses are finished")

    @workflow.update(name=Update.RESUME)
    def resume(self) -> PauseOutcome:
        """Go on, and try again at once what is being waited for."""
        outcome = self._set_paused(False, "goes on")
        self._running().retrying.retry_now()
        return outcome

    @workflow.update(name=Update.ABORT)
    async def abort(self) -> AbortDecision:
        """Undo everything, if no partition has its B0 yet. Says whether that was so."""
        try:
            return await self._running().decide_abort()
        except CallFailed as failure:
            raise ApplicationError(
                f"the abort was not decided, try again: {failure.message}", type=failure.kind
            ) from failure

    @pause.validator
    def _may_pause(self) -> None:
        self._running()

    @resume.validator
    def _may_resume(self) -> None:
        self._running()

    @abort.validator
    def _may_abort(self) -> None:
        self._running()

    def _set_paused(self, paused: bool, explanation: str) -> PauseOutcome:
        run = self._running()
        run.state.paused = paused
        run.fan_out.steer_all()
        self._changed()
        return PauseOutcome(paused, explanation)

    def _running(self) -> TopicRun:
        """Raises when there is nothing to steer."""
        if self._follows:
            raise ApplicationError(
                f"this workflow follows {self._follows}: steer that one", type=failures.REFUSED
            )
        if self._run is None:
            raise ApplicationError(
                self._refusal or "the topic is being resolved: try again in a moment",
                type=failures.REFUSED,
            )
        if self._run.state.stage in (Stage.ENDED, Stage.ABORTING):
            raise ApplicationError(
                f"the migration of {self._run.state.ref.topic!r} is {self._run.state.stage}: "
                "there is nothing to steer",
                type=failures.REFUSED,
            )
        return self._run


@dataclass(frozen=True, slots=True)
class Continued:
    """The input of a run that continues another."""

    continued: TopicState


class TopicRun:
    """One run of the workflow over its state. ``changed`` is called when there is news to show."""

    def __init__(self, state: TopicState, changed: Callable[[], None]) -> None:
        self.state = state
        self.waiting_reason = ""
        self.retrying = RetryUntilSuccess(self._waits_because)
        self.fan_out = FanOut(state, self._arm)
        self._changed = changed
        self._deciding = asyncio.Lock()
        self._step = TopicStep(state.ref, state.options)

    async def migrate(self) -> TopicOutcome:
        """To the end: ``hybrid`` or ``aborted``."""
        state = self.state
        reconciling = asyncio.create_task(self._reconcile())
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
            reconciling.cancel()
        return TopicOutcome(state.ref.topic, state.ref.topic_id, "hybrid", state.boundaries())

    async def _while_paused(self) -> None:
        if self.state.paused:
            self._waits_because("paused by an operator")
            await workflow.wait_condition(lambda: not self.state.paused or self._urgent())
            self._waits_because("")
            if self._urgent():
                raise Interrupted

    async def _run_stage(self) -> None:
        state, step = self.state, self._step
        match state.stage:
            case Stage.VALIDATING:
                await self._do(slow(TopicActivity.VALIDATE_TOPIC), reraise=REFUSALS)
                self._move_to(Stage.TRACKING)
            case Stage.TRACKING:
                async with self._deciding:
                    if state.aborted:
                        return
                    begin = slow(TopicActivity.BEGIN_TRACKING)
                    await self.retrying.call(begin, step, reraise=REFUSALS)
                await self._do(slow(TopicActivity.AWAIT_TRACKING), reraise=TOPIC_IS_GONE)
                await self._configs(ConfigStage.TRACKED)
                self._move_to(Stage.CROSSING)
            case Stage.CROSSING:
                if state.sealed and workflow.patched(OPEN_AFTER_RESET):
                    await self._configs(ConfigStage.TRACKED)
                    state.sealed = False
                await self._until(lambda: state.all_crossed)
                self._move_to(Stage.ROLLING)
            case Stage.ROLLING:
                state.sealed = True
                await self._configs(ConfigStage.CROSSED)
                prove = slow(TopicActivity.PROVE_COVERAGE_FOR_ROLL, seconds=120)
                await self._do(prove, reraise=TOPIC_IS_GONE)
                await self._configs(ConfigStage.ROLLING)
                state.rolled = True
                self.fan_out.steer_all()
                self._move_to(Stage.TIERING)
            case Stage.TIERING:
                await self._until(lambda: state.all_done)
                self._move_to(Stage.FREEZING)
            case Stage.FREEZING:
                await self._configs(ConfigStage.FROZEN)
                self._move_to(Stage.ENDED)

    async def _do(self, call: Call, reraise: tuple[str, ...]) -> None:
        await self.retrying.call(call, self._step, self._urgent, reraise)

    async def _reconcile(self) -> None:
        """Partitions are looked after from the crossing on."""
        begun = (Stage.CROSSING, Stage.ROLLING, Stage.TIERING)
        await workflow.wait_condition(lambda: self.state.stage in begun)
        await self.fan_out.reconcile()

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
                await self.fan_out.settle()
                await workflow.wait_condition(workflow.all_handlers_finished)
                self.fan_out.hand_over()
                workflow.continue_as_new(Continued(self.state))

    def _urgent(self) -> bool:
        return self.state.aborted or self.state.must_cross_again

    def _is_long(self) -> bool:
        return history_is_long() or self.fan_out.crowded

    # Topic configs

    async def _arm(self) -> None:
        """Just before the first write pause: ``flush.messages=1``, if that is the durability."""
        await self._configs(ConfigStage.ARMED)

    async def _configs(self, stage: ConfigStage) -> None:
        """Ask for the topic configs of ``stage``. A topic that is past it, as when this workflow
        was started anew, keeps what it has; only the freeze must come true."""
        may_be_past = () if stage is ConfigStage.FROZEN else (failures.STALE_STAGE,)
        reraise = (*TOPIC_IS_GONE, *may_be_past)
        given = ConfigStep(self.state.ref, self.state.options, stage)
        interrupted = self._urgent if stage is not ConfigStage.RESTORED else not_interrupted
        try:
            call = slow(TopicActivity.RECONCILE_CONFIGS)
            await self.retrying.call(call, given, interrupted, reraise)
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
            situation: PartitionSituation = await perform(observe, first)
            if not situation.tracked:
                return AbortDecision(True, "nothing was changed yet", tracked=False)
        abort = quick(TopicActivity.ABORT_MIGRATION, AbortDecision)
        decision: AbortDecision = await perform(abort, self._step)
        return decision

    async def _restore(self) -> TopicOutcome:
        """After the abort has won: partitions end, configs and tracking go back."""
        state = self.state
        self._move_to(Stage.ABORTING)
        if state.restore:
            await self.fan_out.end_all()
            await self._configs(ConfigStage.RESTORED)
            await self.retrying.call(slow(TopicActivity.STOP_TRACKING), self._step)
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
        self._waits_because(f"a cancel was refused, as an abort would be: {decision.reason}")

    # What operators see

    def _move_to(self, stage: Stage) -> None:
        self.state.stage, self.state.since = stage, now()
        self.waiting_reason = ""
        self._changed()

    def _waits_because(self, reason: str) -> None:
        if reason != self.waiting_reason:
            self.waiting_reason = reason
            self._changed()


def refused(failure: CallFailed) -> ApplicationError:
    """How a refusal ends the workflow: with the refusal's own words."""
    return ApplicationError(failure.message, type=failure.kind, non_retryable=True)
