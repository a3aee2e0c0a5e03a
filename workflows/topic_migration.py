"""One topic from tiered to hybrid: the workflow that every trigger meets at, and its stages.

What always holds: there is one workflow id per topic id; a start under any other id finds that
one, starting it if need be, and returns its result. A wrong input changes nothing. The stage
follows from what was done and what the partitions report; nothing is tracked before the preflight
has passed; configs are asked for stage by stage and only here.
"""

from __future__ import annotations

from dataclasses import replace

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from tideline.domain import failures
    from tideline.domain.messages import (
        TOPIC_WORKFLOW,
        AbortDecision,
        JoinRequest,
        PartitionReport,
        PauseOutcome,
        Query,
        Signal,
        TopicActivity,
        TopicMigrationInput,
        TopicMigrationStatus,
        TopicOutcome,
        TopicRef,
        Update,
    )
    from tideline.domain.migration_input import InvalidMigrationInput, parse_migration_input
    from tideline.domain.operator_choices import (
        DECIDER,
        UPDATES,
        CompletionOutcome,
        ConfigureOutcome,
        ConfigureRequest,
        Decider,
        GapOutcome,
        GapRequest,
        GapStep,
    )
    from tideline.domain.waits import Waits
    from workflows.calls import (
        CallFailed,
        Interrupted,
        RetryUntilSuccess,
        history_is_long,
        perform,
        slow,
    )
    from workflows.following import Following, follow
    from workflows.given import INVALID_INPUT, NO_INPUT, accept, accepted, keep, typed
    from workflows.reporting import SearchAttributes, markdown_table, now
    from workflows.topic_run import REFUSALS, Continued, TopicRun, refused, undecided
    from workflows.topic_state import Stage, TopicState


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
        self._following: JoinRequest | None = None
        self._search_attributes = SearchAttributes()
        try:
            self._read(raw)
        except InvalidMigrationInput as error:
            self._refusal = str(error)

    def _read(self, raw: RawValue) -> None:
        value = typed(raw)
        if isinstance(value, dict) and "continued" in value:
            state = accepted(Continued, raw).continued
            state.begin()  # signals of the first task come before :meth:`run`
            self._run = TopicRun(state, self._changed)
        elif isinstance(value, dict) and "follows" in value:
            self._following = accepted(Following, raw).follows
        else:
            self._given = parse_migration_input(value)

    @workflow.run
    async def run(self, raw: RawValue = NO_INPUT) -> TopicOutcome:
        """Returns ``hybrid`` or ``aborted``. Fails, with nothing changed, when it is refused."""
        if self._following is not None:
            return await self._follow(self._following)
        if self._run is None:
            if self._given is None:
                raise ApplicationError(self._refusal, type=INVALID_INPUT, non_retryable=True)
            ref = await self._resolve(self._given)
            if ref.workflow_id != workflow.info().workflow_id:
                return await self._follow(JoinRequest(ref, self._given))
            self._run = TopicRun(TopicState(ref, self._given.options, since=now()), self._changed)
        self._run.state.begin()
        for report in self._early:
            self._run.fan_out.receive(report)
        self._changed()
        outcome = await self._run.migrate()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return outcome

    async def _resolve(self, given: TopicMigrationInput) -> TopicRef:
        def show(reason: str, _: Waits) -> None:
            workflow.set_current_details(reason)

        retrying = RetryUntilSuccess(show, history_is_long)
        try:
            call = slow(TopicActivity.RESOLVE_TOPIC, TopicRef)
            ref: TopicRef = await retrying.call(call, given, reraise=REFUSALS)
        except Interrupted:
            workflow.continue_as_new(given)
        except CallFailed as failure:
            raise refused(failure) from failure
        return ref

    async def _follow(self, request: JoinRequest) -> TopicOutcome:
        def report(reason: str, waits: Waits = Waits.NOTHING) -> None:
            self._show_followed(request.ref, reason, waits)

        report("")
        try:
            return await follow(request, report)
        except CallFailed as failure:
            raise refused(failure) from failure

    def _show_followed(self, ref: TopicRef, reason: str, waits: Waits = Waits.NOTHING) -> None:
        self._follows = ref.workflow_id
        known = f"Follows `{ref.workflow_id}`: look and steer there."
        workflow.set_current_details(f"{known} {reason}".rstrip())
        self._search_attributes.update(
            topic=ref.topic, phase="following", waiting_reason=reason, waits=waits
        )

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
        state = run.state
        reason = state.reason(run.waiting_reason)
        self._search_attributes.update(
            topic=state.ref.topic,
            phase=state.stage,
            waiting_reason=reason,
            waits=state.waits(run.waits),
        )
        workflow.set_current_details(markdown_table(state.details(reason)))

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
    async def pause(self, raw: RawValue = NO_INPUT) -> PauseOutcome:
        """No partition begins another phase; write pauses that run are finished first."""
        ref = self._set_paused(True)
        said = "no further phase begins; running write pauses are finished"
        return PauseOutcome(True, said + await keep(Update.PAUSE, raw, ref))

    @workflow.update(name=Update.RESUME)
    async def resume(self, raw: RawValue = NO_INPUT) -> PauseOutcome:
        """Go on, and try again at once what is being waited for."""
        ref = self._set_paused(False)
        self._running().retrying.retry_now()
        self._running().readiness.retry_now()
        return PauseOutcome(False, "goes on" + await keep(Update.RESUME, raw, ref))

    @workflow.update(name=Update.ABORT)
    async def abort(self, raw: RawValue = NO_INPUT) -> AbortDecision:
        """Undo everything, if no partition has its B0 yet. Says whether that was so."""
        run = self._running()
        try:
            decision = await run.decide_abort()
        except CallFailed as failure:
            raise ApplicationError(
                f"the abort was not decided, try again: {failure.message}", type=failure.kind
            ) from failure
        details = {"won": decision.won, "reason": decision.reason}
        unkept = await keep(Update.ABORT, raw, run.state.ref, details=details)
        return replace(decision, reason=(decision.reason + unkept).removeprefix("; "))

    @workflow.update(name=Update.CONFIGURE)
    async def configure(self, raw: RawValue = NO_INPUT) -> ConfigureOutcome:
        """Other options from now on, in every partition: in force with its next try."""
        try:
            return await self._running().configure(accepted(ConfigureRequest, raw))
        except CallFailed as failure:
            raise undecided("options were not changed", failure) from failure

    @workflow.update(name=Update.COMPLETE)
    async def complete(self, raw: RawValue = NO_INPUT) -> CompletionOutcome:
        """Freeze copying and seal the classic log although prefixes are not complete."""
        try:
            return await self._running().force_completion(accepted(Decider, raw))
        except CallFailed as failure:
            raise undecided("the completion was not forced", failure) from failure

    @workflow.update(name=Update.ACCEPT_GAP)
    async def accept_gap(self, raw: RawValue = NO_INPUT) -> GapOutcome:
        """Give up a range below B0 that no replica and no remote segment holds."""
        run = self._running()
        try:
            call = slow(TopicActivity.ACCEPT_GAP, GapOutcome)
            step = GapStep(run.state.ref, accepted(GapRequest, raw))
            outcome: GapOutcome = await perform(call, step)
        except CallFailed as failure:
            raise undecided("the gap was not accepted", failure) from failure
        run.fan_out.steer_all()
        return outcome

    @configure.validator
    def _may_configure(self, raw: RawValue = NO_INPUT) -> None:
        request = accept(UPDATES[Update.CONFIGURE], raw)
        if why := self._running().problem_with(request):
            raise ApplicationError(why, type=failures.REFUSED)

    @accept_gap.validator
    def _may_accept_gap(self, raw: RawValue = NO_INPUT) -> None:
        request = accept(UPDATES[Update.ACCEPT_GAP], raw)
        reports = self._running().state.partitions
        if why := request.problem([report.boundary for report in reports]):
            raise ApplicationError(why, type=failures.REFUSED)

    @pause.validator
    @resume.validator
    @abort.validator
    @complete.validator
    def _may_steer(self, raw: RawValue = NO_INPUT) -> None:
        accept(DECIDER, raw)
        self._running()

    def _set_paused(self, paused: bool) -> TopicRef:
        run = self._running()
        run.state.paused = paused
        run.fan_out.steer_all()
        self._changed()
        return run.state.ref

    def _running(self) -> TopicRun:
        """Raises when there is nothing to steer; ``Waiting`` while the topic is resolved."""
        if self._follows:
            raise ApplicationError(
                f"this workflow follows {self._follows}: steer that one", type=failures.REFUSED
            )
        if self._refusal:
            raise ApplicationError(self._refusal, type=failures.REFUSED)
        if self._run is None:
            raise ApplicationError("the topic is being resolved", type=failures.WAITING)
        if self._run.state.stage in (Stage.ENDED, Stage.ABORTING):
            raise ApplicationError(
                f"the migration of {self._run.state.ref.topic!r} is {self._run.state.stage}: "
                "there is nothing to steer",
                type=failures.REFUSED,
            )
        return self._run
