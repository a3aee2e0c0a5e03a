"""One run of a topic's workflow: its stages, in order, and what steers them.

The stage follows from what was done and what the partitions report; nothing is tracked before the
preflight has passed; configs are asked for stage by stage and only here. Every wait may last for
weeks: a long history continues as new in the stage that it is in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from tideline.domain import failures
    from tideline.domain.messages import (
        PAUSED_REASON,
        AbortDecision,
        ConfigStage,
        ConfigStep,
        GrowthFound,
        PartitionShare,
        PartitionSituation,
        PlaceRequest,
        TopicActivity,
        TopicOutcome,
        TopicStep,
    )
    from tideline.domain.migration_input import InvalidMigrationInput
    from tideline.domain.operator_choices import (
        CompletionOutcome,
        CompletionRequest,
        ConfigurationRecord,
        ConfigureOutcome,
        ConfigureRequest,
        Decider,
        Progress,
        changed_options,
        too_late,
    )
    from tideline.domain.waits import Waits
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
    from workflows.phases import NOT_THERE, TOPIC_IS_GONE
    from workflows.readiness import TopicReadiness
    from workflows.reporting import now
    from workflows.topic_state import Stage, TopicState

SHARE_LASTS = timedelta(seconds=20)
"""After so long it is asked again what operators allow."""
THROUGH_WITHIN = timedelta(seconds=5)
PREFLIGHT_LASTS = timedelta(minutes=1)
"""A topic that waited longer for its place is looked at again before anything of it changes."""
PROVING_BOUND_S = 20 * 60.0
"""One attempt at what proves, for each partition, what remote storage has. A worker that dies is
noticed by its heartbeats."""
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
        self.waiting_reason, self.waits = "", Waits.NOTHING
        self.retrying = RetryUntilSuccess(self._waits_because, history_is_long)
        self.fan_out = FanOut(state, self._arm, changed)
        self.readiness = TopicReadiness(state, self.fan_out, self._waits_because)
        self._changed = changed
        self._deciding = asyncio.Lock()
        self._arming_failed: CallFailed | None = None
        self._reading_share = False
        self._untracked_tries = 0
        self._ends_cancelled = False

    @property
    def _step(self) -> TopicStep:
        return TopicStep(self.state.ref, self.state.options)

    @property
    def _place(self) -> PlaceRequest:
        return PlaceRequest(self.state.ref, workflow.info().first_execution_run_id)

    async def migrate(self) -> TopicOutcome:
        """To the end: ``hybrid`` or ``aborted``."""
        state = self.state
        reconciling = asyncio.create_task(self._reconcile())
        looking = asyncio.create_task(self.readiness.run())
        sharing = asyncio.create_task(self._keep_share())
        try:
            while state.stage is not Stage.ENDED:
                try:
                    if history_is_long():
                        await self._continue_as_new()
                    if state.aborted:
                        await self._restore()
                        break
                    if state.must_freeze:
                        self._move_to(Stage.FREEZING)
                    if state.must_cross_again:
                        state.armed = state.rolled = False
                        self._move_to(Stage.CROSSING)
                    if state.must_track_again:
                        self._move_to(Stage.TRACKING)
                    if state.paused and state.must_open:
                        await self._open()
                    await self._while_paused()
                    await self._run_stage()
                except Interrupted:
                    continue
                except asyncio.CancelledError:
                    await self._cancelled()
        except CallFailed as failure:
            await self._leave_place()
            raise refused(failure) from failure
        finally:
            reconciling.cancel()
            looking.cancel()
            sharing.cancel()
        if self._ends_cancelled:
            raise asyncio.CancelledError
        return self._outcome()

    def _outcome(self) -> TopicOutcome:
        state, reasons = self.state, []
        if state.aborted:
            return TopicOutcome(state.ref.topic, state.ref.topic_id, "aborted")
        if state.forced_by:
            left = ", ".join(map(str, state.incomplete))
            reasons.append(
                f"completion forced by {state.forced_by}: prefix of partition {left} not complete"
            )
        if state.grown:
            reasons.append(state.grown)
        return TopicOutcome(
            state.ref.topic, state.ref.topic_id, "hybrid", state.boundaries(), "; ".join(reasons)
        )

    async def _while_paused(self) -> None:
        if self.state.paused:
            self._waits_because(PAUSED_REASON, Waits.PAUSED)
            await workflow.wait_condition(
                lambda: not self.state.paused or self._urgent() or history_is_long()
            )
            self._waits_because("")
            if self._urgent() or self.state.paused:
                raise Interrupted

    async def _run_stage(self) -> None:
        state = self.state
        match state.stage:
            case Stage.VALIDATING:
                validate = slow(TopicActivity.VALIDATE_TOPIC, seconds=PROVING_BOUND_S)
                await self._do(validate, reraise=REFUSALS)
                if await self._waited_for_place():
                    await self._do(validate, reraise=REFUSALS)
                self._move_to(Stage.TRACKING)
            case Stage.TRACKING:
                state.untracked = state.armed = False
                await self._begin_tracking()
                if state.aborted:
                    return
                await self._do(slow(TopicActivity.AWAIT_TRACKING), reraise=NOT_THERE)
                await self._configs(ConfigStage.TRACKED)
                await self._read_share()
                self._untracked_tries = 0
                self._move_to(Stage.CROSSING)
            case Stage.CROSSING:
                if state.must_open:
                    await self._open()
                await self._until(lambda: state.all_crossed)
                self._move_to(Stage.ROLLING)
            case Stage.ROLLING:
                state.sealed = True
                await self._configs(ConfigStage.CROSSED)
                prove = slow(TopicActivity.PROVE_COVERAGE_FOR_ROLL, seconds=PROVING_BOUND_S)
                await self._do(prove, reraise=NOT_THERE)
                await self._configs(ConfigStage.ROLLING)
                state.rolled = True
                self._move_to(Stage.TIERING)
            case Stage.TIERING:
                await self._until(lambda: state.all_done)
                self._move_to(Stage.FREEZING)
            case Stage.FREEZING:
                await self._configs(ConfigStage.FROZEN)
                if state.forced_by:
                    await self.fan_out.end_all()
                call = slow(TopicActivity.TELL_OF_GROWTH, GrowthFound)
                found = await self._call(call, self._step, self._urgent, NOT_THERE)
                state.grown = found.reason
                await self._leave_place()
                self._move_to(Stage.ENDED)

    async def _open(self) -> None:
        await self._configs(ConfigStage.TRACKED)
        self.state.sealed = False

    async def _waited_for_place(self) -> bool:
        """Take one of the places of topics that migrate at once. True: it took so long that what
        the preflight saw is old."""
        self.state.asked_for_place = True
        since = workflow.now()
        await self.retrying.call(slow(TopicActivity.TAKE_PLACE), self._place, self._urgent)
        return workflow.now() - since > PREFLIGHT_LASTS

    async def _read_share(self) -> None:
        """What operators allow of this topic's partitions; what held before, if nobody can say."""
        call = quick(TopicActivity.PARTITION_SHARE, PartitionShare)
        try:
            found: PartitionShare = await perform(call, self._place, self._asks_no_share)
        except CallFailed as failure:
            workflow.logger.info("share_not_read", extra={"why": failure.message})
        else:
            self.state.share = found.partitions
            self._changed()

    def _shares(self) -> bool:
        return self.state.stage is Stage.CROSSING and not self.state.paused

    def _asks_no_share(self) -> bool:
        return self.fan_out.settling or self._urgent()

    async def _keep_share(self) -> None:
        """While partitions cross. Until cancelled."""
        while True:
            await workflow.wait_condition(self._shares)
            await workflow.sleep(SHARE_LASTS)
            if self._shares() and not self._asks_no_share():
                self._reading_share = True
                try:
                    await self._read_share()
                except Interrupted:
                    continue
                finally:
                    self._reading_share = False

    async def _leave_place(self) -> None:
        """If that fails, whoever waits finds out that this workflow has ended."""
        if not self.state.asked_for_place:
            return
        try:
            await perform(quick(TopicActivity.LEAVE_PLACE), self._place)
        except CallFailed as failure:
            workflow.logger.info("place_not_given_back", extra={"why": failure.message})
        self.state.asked_for_place = False

    async def _begin_tracking(self) -> None:
        """An abort waits while a try is under way, so that it is not overtaken; not for all of
        them."""
        begin, tries = slow(TopicActivity.BEGIN_TRACKING), 0
        while True:
            async with self._deciding:
                if self.state.aborted:
                    return
                try:
                    await perform(begin, self._step)
                except CallFailed as failure:
                    if failure.kind in REFUSALS:
                        raise
                    tries += 1
                    self._waits_because(failure.message, failure.waits)
                else:
                    if tries:
                        self._waits_because("")
                    return
            await self.retrying.wait_before_retry(tries, self._urgent)
            if history_is_long():
                raise Interrupted

    async def _do(self, call: Call, reraise: tuple[str, ...]) -> None:
        await self._call(call, self._step, self._urgent, reraise)

    async def _call(
        self, call: Call, given: Any, interrupted: Callable[[], bool], reraise: tuple[str, ...]
    ) -> Any:
        """As :meth:`RetryUntilSuccess.call`. Raises :class:`Interrupted` when the topic has to be
        tracked again first, and may be; later and later while that is found as it is tracked."""
        try:
            return await self.retrying.call(call, given, interrupted, reraise)
        except CallFailed as failure:
            if failure.kind != failures.UNTRACKED or not self.state.may_track_again:
                raise
            self.state.untracked = True
            self._waits_because(failure.message, failure.waits)
            self._untracked_tries += 1
            await self.retrying.wait_before_retry(self._untracked_tries, self._urgent)
            raise Interrupted from failure

    async def _reconcile(self) -> None:
        """Partitions are looked after from the crossing on; by a run that continues another also
        while it ends, when they must hear of that."""
        await workflow.wait_condition(self._has_partitions)
        try:
            await self.fan_out.reconcile()
        except CallFailed as failure:
            self._arming_failed = failure

    def _has_partitions(self) -> bool:
        return self.state.stage not in (Stage.VALIDATING, Stage.TRACKING, Stage.ENDED)

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Wait for the partitions; meanwhile the fan-out starts and steers them."""
        while not reached():
            await workflow.wait_condition(
                lambda: reached() or self._urgent() or self._has_failed() or self._is_long()
            )
            if self._arming_failed is not None:
                raise self._arming_failed
            if self.state.gone:
                raise CallFailed(failures.UNKNOWN_TOPIC, self.state.gone)
            if self._urgent():
                raise Interrupted
            if not reached():
                await self._continue_as_new()

    def _has_failed(self) -> bool:
        return bool(self.state.gone) or self._arming_failed is not None

    async def _continue_as_new(self) -> NoReturn:
        """In the stage that it is in: each can be begun again."""
        await self.fan_out.settle()
        await self._until_through()
        await workflow.wait_condition(lambda: not self.readiness.busy and not self._reading_share)
        await workflow.wait_condition(workflow.all_handlers_finished)
        self.fan_out.hand_over()
        workflow.continue_as_new(Continued(self.state.to_carry()))

    async def _until_through(self) -> None:
        """Partitions that were let through are nearly always over in a moment, and the next run
        need not ask after them."""
        if not self.state.through:
            return
        try:
            await workflow.wait_condition(lambda: not self.state.through, timeout=THROUGH_WITHIN)
        except TimeoutError:
            workflow.logger.info("goes_on_while_partitions_cross")

    def _urgent(self) -> bool:
        state = self.state
        return (
            state.aborted or state.must_cross_again or state.must_track_again or state.must_freeze
        )

    def _is_long(self) -> bool:
        return history_is_long() or self.fan_out.crowded

    # Topic configs

    async def _arm(self) -> None:
        """Just before the first write pause: ``flush.messages=1``, if that is the durability."""
        await self._configs(ConfigStage.ARMED, self._arming_must_end)

    def _arming_must_end(self) -> bool:
        return self._urgent() or self.fan_out.settling

    async def _configs(
        self, stage: ConfigStage, must_end: Callable[[], bool] | None = None
    ) -> None:
        """Ask for the topic configs of ``stage``. A topic that is past it, as when this workflow
        was started anew, keeps what it has; only the freeze must come true."""
        may_be_past = () if stage is ConfigStage.FROZEN else (failures.STALE_STAGE,)
        reraise = (*NOT_THERE, *may_be_past)
        given = ConfigStep(self.state.ref, self.state.options, stage)
        interrupted = must_end or self._urgent
        if stage is ConfigStage.RESTORED:
            interrupted = not_interrupted
        try:
            proves = stage in (ConfigStage.ARMED, ConfigStage.ROLLING)
            bound = PROVING_BOUND_S if proves else 60
            call = slow(TopicActivity.RECONCILE_CONFIGS, seconds=bound)
            await self._call(call, given, interrupted, reraise)
        except CallFailed as failure:
            if failure.kind != failures.STALE_STAGE:
                raise
            workflow.logger.info("stage_is_past", extra={"why": failure.message})

    # What operators decide

    def problem_with(self, request: ConfigureRequest) -> str:
        """Why the options cannot be changed so, or empty."""
        try:
            _, changed = changed_options(self.state.options, request.options)
        except InvalidMigrationInput as error:
            return str(error)
        state = self.state
        progress = Progress(
            armed=state.armed,
            all_crossed=bool(state.partitions) and state.all_crossed,
            frozen=state.stage is Stage.FREEZING,
        )
        return "; ".join(filter(None, (too_late(name, progress) for name in changed)))

    async def configure(self, request: ConfigureRequest) -> ConfigureOutcome:
        """Keep who changes what, then change it. Raises :class:`CallFailed`."""
        _, changed = changed_options(self.state.options, request.options)
        if changed:
            record = ConfigurationRecord(self.state.ref, request.decider, changed)
            await perform(quick(TopicActivity.RECORD_CONFIGURATION), record)
            if why := self.problem_with(request):
                raise CallFailed(failures.REFUSED, f"meanwhile it became too late: {why}")
            self.state.options, _ = changed_options(self.state.options, request.options)
            self.state.configured = True
            self.state.hold_after_first()
            self.fan_out.steer_all()
            self.retrying.retry_now()
            self.readiness.retry_now()
            self._changed()
        return ConfigureOutcome(self.state.options, changed)

    async def force_completion(self, decider: Decider) -> CompletionOutcome:
        """Postgres decides. Raises :class:`CallFailed` while a partition has no B0."""
        force = quick(TopicActivity.FORCE_COMPLETION, CompletionOutcome)
        request = CompletionRequest(self.state.ref, decider)
        outcome: CompletionOutcome = await perform(force, request)
        if outcome.incomplete:
            self.state.forced_by, self.state.incomplete = decider.by, outcome.incomplete
            self._changed()
        return outcome

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
            observe = quick(TopicActivity.OBSERVE_PARTITION, PartitionSituation)
            situation: PartitionSituation = await perform(observe, self.state.ref.partition(0))
            if not situation.tracked:
                return AbortDecision(True, "nothing was changed yet", tracked=False)
        abort = quick(TopicActivity.ABORT_MIGRATION, AbortDecision)
        decision: AbortDecision = await perform(abort, self._step)
        return decision

    async def _restore(self) -> None:
        """After the abort has won: partitions end, configs and tracking go back."""
        state = self.state
        self._move_to(Stage.ABORTING)
        if state.restore or state.running():
            await self.fan_out.end_all()
        if state.restore:
            await self._configs(ConfigStage.RESTORED)
            await self.retrying.call(slow(TopicActivity.STOP_TRACKING), self._step)
        await self._leave_place()
        self._move_to(Stage.ENDED)

    async def _cancelled(self) -> None:
        """A cancel, as the Temporal UI offers it, asks for an abort; the workflow ends as cancelled
        when that has restored the topic."""
        self.fan_out.go_on()  # it may have come while this run was about to end
        try:
            decision = await self.decide_abort()
        except CallFailed as failure:
            decision = AbortDecision(False, failure.message)
        if decision.won:
            self._ends_cancelled = True
            return
        why = f"a cancel was refused, as an abort would be: {decision.reason}"
        self._waits_because(why, Waits.OPERATOR)

    # What operators see

    def _move_to(self, stage: Stage) -> None:
        self.state.stage, self.state.since = stage, now()
        self.waiting_reason, self.waits = "", Waits.NOTHING
        self._changed()

    def _waits_because(self, reason: str, waits: Waits = Waits.NOTHING) -> None:
        if reason != self.waiting_reason:
            self.waiting_reason, self.waits = reason, waits
            self._changed()


def undecided(what: str, failure: CallFailed) -> ApplicationError:
    """How an update fails, with the activity's own words."""
    decided = failure.kind in (failures.REFUSED, failures.UNTRACKED)
    again = "" if decided else ", try again"
    return ApplicationError(f"{what}{again}: {failure.message}", type=failure.kind)


def refused(failure: CallFailed) -> ApplicationError:
    """How a refusal ends the workflow: with the refusal's own words."""
    return ApplicationError(failure.message, type=failure.kind, non_retryable=True)
