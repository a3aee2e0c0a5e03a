"""One partition from tiered to hybrid: seven phases, in order, each an activity.

What always holds: B0 is persisted at most once; before it every step can be undone, after it the
workflow only goes forward. A failed write pause lets producers go before anything else happens.
This workflow never fails by itself: what it cannot do it shows, and tries again.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from tideline.domain import failures
    from tideline.domain.messages import (
        ABORTED,
        CROSSED,
        DONE,
        ENDINGS,
        FORCED,
        GONE,
        PARTITION_WORKFLOW,
        BoundaryObservation,
        PartitionMigrationInput,
        PartitionOutcome,
        PartitionRef,
        PartitionReport,
        PartitionSituation,
        PartitionState,
        PartitionStatus,
        PauseOutcome,
        PhaseInput,
        Query,
        QuiesceResult,
        Signal,
        Steering,
        TopicActivity,
        TopicRef,
        Unsettled,
        Update,
        WaitsFor,
    )
    from tideline.domain.migration import PHASE_ORDER, UNDEFINED_OFFSET, Phase, phase_rule
    from tideline.domain.operator_choices import DECIDER
    from tideline.domain.options import MigrationOptions
    from tideline.domain.waits import Waits
    from workflows import phases
    from workflows.calls import (
        CallFailed,
        Interrupted,
        RetryUntilSuccess,
        history_is_long,
        perform,
        quick,
        tried_in_process,
    )
    from workflows.given import NO_INPUT, accept, keep
    from workflows.reporting import (
        Reporter,
        SearchAttributes,
        markdown_table,
        now,
        reportable,
        with_age,
    )


@workflow.defn(name=PARTITION_WORKFLOW)
class PartitionMigration:
    """Started by the topic's workflow; outlives it, and reports to whichever runs under its id. It
    ends when the partition has crossed and is cleaned: readiness is its topic's workflow's."""

    @workflow.init
    def __init__(self, given: PartitionMigrationInput) -> None:
        self._given = given
        self._ref = given.ref
        self._state = given.state
        self._waiting_reason, self._waits = "", Waits.NOTHING
        self._failed_tries = 0
        self._phase_began = workflow.time()
        self._search_attributes = SearchAttributes()
        self._reporter = Reporter(given.topic_workflow_id)
        self._cancelled = False
        self._retrying = RetryUntilSuccess(
            self._waits_because, lambda: not self._cancelled and history_is_long()
        )

    @workflow.run
    async def run(self, given: PartitionMigrationInput) -> PartitionOutcome:
        """Returns how it ended: ``crossed``, ``ready``, ``aborted``, ``forced`` or ``gone``."""
        reporting = asyncio.create_task(self._reporter.run())
        state = self._state
        try:
            if not state.phase or state.unsettled == Unsettled.WHETHER_BEGUN:
                await self._begin()
            elif state.unsettled:
                await self._settle()
            await self._to_its_end()
        except asyncio.CancelledError:
            self._cancelled = True
            asked = state.unsettled == Unsettled.PRODUCERS_PARKED
            if asked or parks_producers(state) or state.phase == Phase.QUIESCE:
                await self._let_producers_go()
            raise
        await workflow.wait_condition(workflow.all_handlers_finished)
        reporting.cancel()
        ended = "ready" if state.phase == DONE else state.phase
        return PartitionOutcome(
            partition=self._ref.partition,
            outcome=CROSSED if self._rests() else ended,
            boundary=state.boundary,
            leader_epoch=state.leader_epoch,
            reason=self._waiting_reason,
            round=state.round,
        )

    def _is_over(self) -> bool:
        return has_ended(self._state) or self._rests()

    async def _to_its_end(self) -> None:
        while not self._is_over():
            await self._step(Phase(self._state.phase))
        if self._rests():
            self._show_rest()
        else:
            self._enter(self._state.phase)
        await self._reporter.flushed()
        await workflow.wait_condition(workflow.all_handlers_finished)
        if not self._is_over():
            # Somebody wanted more of one that rests, while it told.
            await self._to_its_end()

    def _rests(self) -> bool:
        """Nothing is left but what the topic's workflow does for all of its partitions."""
        return may_rest(self._state)

    def _show_rest(self) -> None:
        """Whoever started it gets the outcome; whoever has asked since is told."""
        self._upsert()
        workflow.set_current_details(details(self.status()))
        if self._state.tells:
            self._report()

    # The steps

    async def _begin(self) -> None:
        """A first run validates; one that finds B0 persisted goes on behind it."""
        self._move_to(Phase.VALIDATE)
        situation = await self._whether_begun()
        if situation.quiesced and not situation.crossed:
            # A worker died inside the write pause, and what comes first may have to wait now.
            situation = await self._let_producers_go()
        if situation.tracked:
            self._believe(situation)

    async def _whether_begun(self) -> PartitionSituation:
        self._state.unsettled = Unsettled.WHETHER_BEGUN
        observe = quick(TopicActivity.OBSERVE_PARTITION, PartitionSituation)
        try:
            situation: PartitionSituation = await perform(tried_in_process(observe), self._ref)
        except CallFailed as failure:
            workflow.logger.info("not_observed_at_once", extra={"why": failure.message})
            return await self._ask(Unsettled.WHETHER_BEGUN)
        self._state.unsettled = ""
        return situation

    async def _settle(self) -> None:
        """The run before this one ended while it asked."""
        asks = Unsettled(self._state.unsettled)
        self._believe(await self._ask(asks))
        if asks is Unsettled.PRODUCERS_PARKED and not (
            has_ended(self._state) or crossed(self._state)
        ):
            self._move_to(Phase.DRAIN_TRANSACTIONS)

    async def _step(self, phase: Phase) -> None:
        await self._gate(phase)
        if self._rests():
            return
        if self._state.steering.aborted:
            self._move_to(ABORTED)
            return
        if is_forced(self._state):
            self._move_to(FORCED)
            return
        if phase is Phase.READINESS and is_ready(self._state):
            self._move_to(DONE)
            return
        self._state.untracked = False  # the next try finds out
        self._enter(phase)
        if phase is Phase.READINESS and not self._state.tiering_since:
            self._state.tiering_since = now()
        try:
            result = await self._perform(phase)
        except Interrupted:
            return
        except CallFailed as failure:
            await self._after_failure(phase, failure)
        else:
            self._advance(phase, result)

    async def _perform(self, phase: Phase) -> Any:
        call, given = phases.PHASE_CALLS[phase], self._input()
        if self._is_tried_in_process(phase):
            try:
                once = tried_in_process(call, phases.TRIED_IN_PROCESS[phase])
                return await perform(once, given, self._must_end)
            except CallFailed as failure:
                self._give_permit_back(phase)
                if failure.kind in phases.DECIDED:
                    raise
            self._show()
        return await perform(call, given, self._must_end)

    def _is_tried_in_process(self, phase: str) -> bool:
        return phase in phases.TRIED_IN_PROCESS and not self._failed_tries

    def _give_permit_back(self, phase: Phase) -> None:
        """If it has to wait before its write pause: others have their turn meanwhile, and it asks
        like them."""
        may = phase in (Phase.VALIDATE, Phase.DRAIN_TRANSACTIONS, Phase.QUIESCE)
        if may and self._state.steering.permit >= self._state.round:
            self._state.round += 1
            self._report()

    def _advance(self, phase: Phase, result: Any) -> None:
        state = self._state
        state.durations_ms[phase] = round((workflow.time() - self._phase_began) * 1000, 1)
        match result:
            case QuiesceResult():
                state.generation = result.generation
            case BoundaryObservation():
                state.boundary, state.leader_epoch = result.boundary, result.leader_epoch
        self._failed_tries = 0
        self._waiting_reason = ""
        following = PHASE_ORDER.index(phase) + 1
        self._move_to(PHASE_ORDER[following] if following < len(PHASE_ORDER) else DONE)

    async def _after_failure(self, phase: Phase, failure: CallFailed) -> None:
        self._failed_tries += 1
        reason, waits = failure.message, failure.waits
        if phases.PHASE_CALLS[phase].parks_producers:
            self._state.round += 1
            self._believe(await self._let_producers_go())
            if has_ended(self._state) or crossed(self._state):
                return
            self._move_to(Phase.DRAIN_TRANSACTIONS)
            waits = Waits.WRITE_PAUSE
            reason = (
                f"write pause {self._state.write_pauses} ended without B0, producers go on: "
                f"{phase} failed: {reason}"
            )
        elif failure.kind in phases.TOPIC_IS_GONE:
            self._waiting_reason = reason
            self._move_to(GONE)
            return
        elif failure.kind in phases.BOUNDARY_WAS_RESET:
            self._state.round += 1
            self._forget_boundary()
            self._move_to(Phase.DRAIN_TRANSACTIONS)
        elif failure.kind in phases.ASK_POSTGRES:
            self._believe(await self._ask(Unsettled.WHERE_IT_STANDS))
            if has_ended(self._state):
                return
        self._state.untracked = failure.kind == failures.UNTRACKED and not crossed(self._state)
        self._waits_because(self._with_its_age(phase, failure.kind, reason), waits)
        # An activity that waits has waited for seconds already. For tiering every partition of the
        # topic waits at the same time, and longer than for anything else.
        waited = failure.kind == failures.WAITING and phase is not Phase.READINESS
        await self._retrying.wait_before_retry(1 if waited else self._failed_tries, self._must_end)

    def _with_its_age(self, phase: Phase, kind: str, reason: str) -> str:
        if phase is not Phase.READINESS or kind != failures.WAITING:
            return reason
        since, allowed_ms = self._state.tiering_since, self._options().segment_wait_ms
        return with_age(reason, since, allowed_ms)

    async def _let_producers_go(self) -> PartitionSituation:
        """Reopen the quiesce; nothing is reopened if B0 turns out to be persisted."""
        return await self._ask(Unsettled.PRODUCERS_PARKED)

    async def _ask(self, asks: Unsettled) -> PartitionSituation:
        """Postgres' answer, however long it takes; perhaps a new run gets it."""
        self._state.unsettled = asks
        try:
            situation: PartitionSituation
            if asks is Unsettled.PRODUCERS_PARKED:
                reopen = quick(TopicActivity.REOPEN_PARTITION, PartitionSituation)
                situation = await self._retrying.call(reopen, self._input())
            else:
                observe = quick(TopicActivity.OBSERVE_PARTITION, PartitionSituation)
                situation = await self._retrying.call(observe, self._ref)
        except Interrupted:
            await self._continue_as_new()
        self._state.unsettled = ""
        return situation

    def _believe(self, situation: PartitionSituation) -> None:
        """Postgres is right about where the partition stands."""
        state = self._state
        if situation.why == "untracked" and crossed(state):
            return  # clients know B0: whoever brings its row back, or begins anew, is waited for
        if not situation.tracked:
            self._forget_boundary()
            if situation.why != "untracked":
                self._move_to(GONE if situation.why == "deleted" else ABORTED)
        elif situation.crossed:
            state.generation = situation.generation
            state.boundary, state.leader_epoch = situation.boundary, situation.leader_epoch
            if phase_rule(Phase(state.phase)).abortable:
                self._move_to(Phase.ZOMBIE_CLEANUP)
        else:
            self._forget_boundary()
            if crossed(self._state):
                # B0 was unset by an attempt whose answer was lost.
                self._state.round += 1
                self._move_to(Phase.DRAIN_TRANSACTIONS)

    def _forget_boundary(self) -> None:
        self._state.boundary, self._state.leader_epoch = UNDEFINED_OFFSET, -1

    # Waiting

    async def _gate(self, phase: Phase) -> None:
        """Wait until nobody has paused the partition and the topic lets it go on."""
        while (reason := blocked_because(self._state)) and not self._rests():
            paused = reason == paused_because(self._state)
            if paused:
                self._give_permit_back(phase)
            self._waits_because(reason, Waits.PAUSED if paused else Waits.TOPIC)
            await workflow.wait_condition(partial(self._is_news, reason))
            if paused:
                self._give_permit_back(phase)  # it came meanwhile
            self._waiting_reason = ""
            await self._continue_if_long()
        if not parks_producers(self._state):
            await self._continue_if_long()

    def _is_news(self, reason: str) -> bool:
        return blocked_because(self._state) != reason or history_is_long()

    async def _continue_if_long(self) -> None:
        if history_is_long():
            await self._continue_as_new()

    async def _continue_as_new(self) -> NoReturn:
        await self._reporter.flushed()
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(replace(self._given, state=self._state))

    def _must_end(self) -> bool:
        return self._state.steering.aborted or is_forced(self._state)

    def _options(self) -> MigrationOptions:
        return self._state.steering.options or self._given.options

    def _input(self) -> PhaseInput:
        state = self._state
        return PhaseInput(
            self._ref, self._options(), state.generation, state.boundary, state.leader_epoch
        )

    # What operators and the topic's workflow see

    def _move_to(self, phase: str) -> None:
        if phase != self._state.phase:
            self._state.phase, self._state.since = phase, now()
            self._state.tiering_since = ""

    def _enter(self, phase: str) -> None:
        """Begin ``phase``. Inside the write pause nothing is written that costs a round trip."""
        self._phase_began = workflow.time()
        if phase == Phase.QUIESCE:
            self._state.write_pauses += 1
        if not self._is_soon_over(phase):
            self._show()
        workflow.set_current_details(details(self.status()))

    def _is_soon_over(self, phase: str) -> bool:
        in_pause = phase == Phase.QUIESCE or parks_producers(self._state)
        return in_pause or self._is_tried_in_process(phase)

    def _show(self) -> None:
        """What this phase is, to operators and the topic's workflow."""
        self._upsert()
        phase = self._state.phase
        told = phase == DONE and is_ready(self._state)
        if phase not in (Phase.QUIESCE, Phase.VALIDATE) and not told:
            self._report()

    def _waits_because(self, reason: str, waits: Waits) -> None:
        if reason == self._waiting_reason and not self._state.untracked:
            return
        self._waiting_reason, self._waits = reason, waits
        self._upsert()
        self._report()
        workflow.set_current_details(details(self.status()))

    def _upsert(self) -> None:
        known = self.status()
        self._search_attributes.update(
            topic=known.topic,
            phase=known.phase,
            waiting_reason=known.waiting_reason,
            waits=self._waits,
            boundary=known.boundary,
        )

    def _report(self) -> None:
        report = report_of(self._ref, self._state, self._waiting_reason)
        waits = self._waits if report.waiting_reason else Waits.NOTHING
        self._reporter.send(replace(report, rests=self._rests(), waits=waits))

    @workflow.query(name=Query.STATUS)
    def status(self) -> PartitionStatus:
        """Where this partition stands, and what comes next."""
        return status_of(self._ref, self._state, self._waiting_reason)

    # Steering

    @workflow.signal(name=Signal.STEER)
    def steer(self, steering: Steering) -> None:
        """The topic's workflow says what it wants."""
        before = self._state.steering
        if (before.paused and not steering.paused) or before.options != steering.options:
            self._retrying.retry_now()
        self._state.steering = replace(steering, report_again=False)
        self._state.tells = self._state.tells or steering.report_again
        if steering.report_again and self._state.phase:
            self._report()

    @workflow.update(name=Update.PAUSE)
    async def pause(self, raw: RawValue = NO_INPUT) -> PauseOutcome:
        """Stop before the next phase that may be paused; a write pause is finished first."""
        self._state.paused = True
        said = "stops before the next phase; a write pause is finished first"
        return PauseOutcome(True, said + await self._keep(Update.PAUSE, raw))

    @workflow.update(name=Update.RESUME)
    async def resume(self, raw: RawValue = NO_INPUT) -> PauseOutcome:
        """Go on, and try again at once what is being waited for."""
        self._state.paused = False
        self._retrying.retry_now()
        unkept = await self._keep(Update.RESUME, raw)
        if self._state.steering.paused:
            said = "the topic's migration is still paused: resume that, too"
            return PauseOutcome(True, said + unkept)
        return PauseOutcome(False, "goes on" + unkept)

    async def _keep(self, action: Update, raw: RawValue) -> str:
        topic = TopicRef(self._ref.topic, self._ref.topic_id, 0, self._ref.cluster_id)
        return await keep(action, raw, topic, self._ref.partition)

    @pause.validator
    @resume.validator
    def _may_steer(self, raw: RawValue = NO_INPUT) -> None:
        accept(DECIDER, raw)
        if has_ended(self._state):
            raise ApplicationError(
                f"{self._ref.topic}-{self._ref.partition} has ended ({self._state.phase}): "
                "there is nothing to pause or resume",
                type=failures.REFUSED,
            )


# What follows from the state, and its reports. Pure.


def has_ended(state: PartitionState) -> bool:
    """No phase is left to run."""
    return state.phase in ENDINGS


def crossed(state: PartitionState) -> bool:
    """B0 is persisted, not only observed."""
    if state.phase in (DONE, FORCED):
        return True
    return state.phase not in ("", *ENDINGS) and not phase_rule(Phase(state.phase)).abortable


def is_forced(state: PartitionState) -> bool:
    """The topic's completion was forced, and nothing of this partition needs more than that."""
    return state.steering.completed and crossed(state)


def is_ready(state: PartitionState) -> bool:
    """The topic's workflow has found the prefix to be complete, and knows that this is over."""
    return state.steering.ready >= state.round


def may_rest(state: PartitionState) -> bool:
    """It has crossed and is cleaned, and nobody wants more of it than to become ready."""
    steering = state.steering
    if state.phase != Phase.READINESS or state.boundary == UNDEFINED_OFFSET:
        return False
    if steering.aborted or steering.completed:
        return False
    return waits_for(state) is WaitsFor.READY


def parks_producers(state: PartitionState) -> bool:
    """A write pause is under way: nothing may delay its end."""
    return state.phase in (Phase.ROLL_AND_FLUSH, Phase.SEED_AND_PERSIST)


def waits_for(state: PartitionState) -> WaitsFor:
    """What the next phase needs from the topic's workflow: nothing, while an operator has paused
    this partition, so that nobody else waits for it."""
    if state.paused:
        return WaitsFor.NOTHING
    if state.untracked:
        return WaitsFor.TRACKING
    if state.phase == Phase.QUIESCE and state.steering.permit < state.round:
        return WaitsFor.PERMIT
    if state.phase == Phase.READINESS and not (is_ready(state) or state.steering.own_look):
        return WaitsFor.READY
    return WaitsFor.NOTHING


def blocked_because(state: PartitionState) -> str:
    """Why the next phase must not begin yet; empty: it may."""
    steering = state.steering
    if steering.aborted or is_forced(state):
        return ""
    if reason := paused_because(state):
        return reason
    match waits_for(state):
        case WaitsFor.PERMIT:
            return "drained; waits for the topic's workflow to let the write pause begin"
        case WaitsFor.READY:
            return (
                "waits until every partition has its B0, the topic's segments are rolled and the "
                "prefix is in remote storage: the topic's workflow looks for all partitions"
            )
    return ""


def paused_because(state: PartitionState) -> str:
    """Who must resume it before the next phase; empty: nobody."""
    if not phase_rule(Phase(state.phase)).pausable_before:
        return ""
    if state.paused:
        return "paused by an operator: resume this partition's workflow"
    if state.steering.paused:
        return "the topic's migration is paused by an operator: resume it"
    return ""


def report_of(ref: PartitionRef, state: PartitionState, waiting_reason: str) -> PartitionReport:
    """For the topic's workflow."""
    known = crossed(state)
    return PartitionReport(
        partition=ref.partition,
        phase=state.phase,
        since=state.since,
        boundary=state.boundary if known else UNDEFINED_OFFSET,
        leader_epoch=state.leader_epoch if known else -1,
        waits_for=waits_for(state),
        waiting_reason=reportable(waiting_reason),
        round=state.round,
        unsure=state.unsettled == Unsettled.WHETHER_BEGUN,
    )


def status_of(ref: PartitionRef, state: PartitionState, waiting_reason: str) -> PartitionStatus:
    """For the ``status`` query."""
    known = crossed(state)
    idle = state.phase in ("", *ENDINGS)
    return PartitionStatus(
        topic=ref.topic,
        partition=ref.partition,
        phase=state.phase,
        since=state.since,
        waiting_reason=waiting_reason,
        boundary=state.boundary if known else UNDEFINED_OFFSET,
        leader_epoch=state.leader_epoch if known else -1,
        generation=state.generation,
        write_pauses=state.write_pauses,
        paused=state.paused or state.steering.paused,
        next_step="nothing" if idle else phase_rule(Phase(state.phase)).next_step,
        durations_ms=dict(state.durations_ms),
    )


def details(known: PartitionStatus) -> str:
    """For the Temporal UI, as Markdown."""
    boundary = f"{known.boundary} (leader epoch {known.leader_epoch})"
    return markdown_table(
        [
            ("partition", f"{known.topic}-{known.partition}"),
            ("phase", f"**{known.phase}** since {known.since}"),
            ("waits because", known.waiting_reason),
            ("B0", boundary if known.boundary != UNDEFINED_OFFSET else ""),
            ("generation", known.generation or ""),
            ("write pauses", known.write_pauses or ""),
            ("next", known.next_step),
            *((f"{name} took", f"{ms:g} ms") for name, ms in known.durations_ms.items()),
        ]
    )
