"""Tiered storage of one topic, made read-only, switched off, or enabled again.

What always holds: the workflow has the id of the topic's migration, so of the two one runs at a
time; what the user had as local retention is remembered before it is held, and given back after the
proof. Every wait may last for weeks, and another target may be given meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from tideline.domain import failures
    from tideline.domain.messages import Query, TopicActivity, TopicMigrationInput, TopicRef
    from tideline.domain.migration_input import InvalidMigrationInput
    from tideline.domain.tiered_storage import (
        PATHS,
        LocalRetention,
        Step,
        Target,
        TieringState,
        configs_of,
    )
    from tideline.domain.tiered_storage_change import (
        SWITCH,
        TIERED_STORAGE_WORKFLOW,
        ConfigsToSet,
        DeletionLook,
        Proof,
        Remaining,
        Review,
        ReviewRequest,
        TieredStorageActivity,
        TieredStorageInput,
        TieredStorageOutcome,
        TieredStorageProgress,
        TieredStorageQuery,
        TieredStorageStatus,
        TieredStorageUpdate,
        parse_change,
        to_json,
        users_local_retention,
        wanted_local_retention,
    )
    from tideline.domain.waits import Waits
    from workflows.calls import (
        Call,
        CallFailed,
        Interrupted,
        RetryUntilSuccess,
        history_is_long,
        perform,
        slow,
    )
    from workflows.given import INVALID_INPUT, NO_INPUT, accept, accepted, typed
    from workflows.phases import TOPIC_IS_GONE
    from workflows.reporting import SearchAttributes, markdown_table, now

REFUSALS = (failures.REFUSED, *TOPIC_IS_GONE)
REVIEWING, ENDED = "reviewing", "ended"
LOOK_AGAIN = (timedelta(seconds=1), timedelta(seconds=30))
"""First and longest wait between two looks at a deletion."""
PROVING_BOUND_S = 20 * 60.0
LISTING_BOUND_S = 20 * 60.0
"""One attempt that lists the objects of all partitions, and deletes what is left of them. One that
is cut short begins again at the first partition."""
REVIEW = slow(TieredStorageActivity.REVIEW, Review, seconds=LISTING_BOUND_S)
DELETE = slow(TieredStorageActivity.DELETE, Remaining, seconds=LISTING_BOUND_S)


@dataclass(frozen=True, slots=True)
class ContinuedChange:
    """The input of a run that continues another."""

    continued: TieredStorageProgress


@workflow.defn(name=TIERED_STORAGE_WORKFLOW)
class TieredStorageChange:
    """Started with JSON as short as ``{"topic": "orders", "target": "read-only"}``."""

    @workflow.init
    def __init__(self, raw: RawValue = NO_INPUT) -> None:
        self._refusal = ""
        self._given: TieredStorageInput | None = None
        self._progress: TieredStorageProgress | None = None
        self._redirected = False
        self._waiting_reason, self._waits = "", Waits.NOTHING
        self._since = now()
        self._step = REVIEWING
        self._search_attributes = SearchAttributes()
        self._retrying = RetryUntilSuccess(self._waits_because, self._must_end)
        try:
            self._read(raw)
        except InvalidMigrationInput as error:
            self._refusal = str(error)

    def _read(self, raw: RawValue) -> None:
        value = typed(raw)
        if isinstance(value, dict) and "continued" in value:
            self._progress = accepted(ContinuedChange, raw).continued
        else:
            self._given = parse_change(value)

    @workflow.run
    async def run(self, raw: RawValue = NO_INPUT) -> TieredStorageOutcome:
        """Fails, with nothing changed, when the target is refused."""
        try:
            if self._progress is None:
                self._progress = await self._begin()
            outcome = await self._reach(self._progress)
        except CallFailed as failure:
            await self._end()
            message = failure.message + self._what_stays()
            raise ApplicationError(message, type=failure.kind, non_retryable=True) from failure
        await self._end()
        return outcome

    async def _end(self) -> None:
        """Whoever gives another target from now on is told to ask the workflow that comes next."""
        self._enter(ENDED)
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _begin(self) -> TieredStorageProgress:
        given = self._given
        if given is None:
            raise ApplicationError(self._refusal, type=INVALID_INPUT, non_retryable=True)
        call = slow(TopicActivity.RESOLVE_TOPIC, TopicRef)
        try:
            ref: TopicRef = await self._call(call, TopicMigrationInput(given.topic))
        except Interrupted:
            workflow.continue_as_new(to_json(given))
        if ref.workflow_id != workflow.info().workflow_id:
            raise ApplicationError(
                f"start it under the id {ref.workflow_id}: there it and the topic's migration "
                "exclude each other (`tideline tiered-storage` does so)",
                type=failures.REFUSED,
                non_retryable=True,
            )
        return TieredStorageProgress(ref, given)

    async def _reach(self, progress: TieredStorageProgress) -> TieredStorageOutcome:
        while True:
            try:
                await self._take_steps(progress)
            except Interrupted:
                if not self._redirected:
                    await workflow.wait_condition(workflow.all_handlers_finished)
                if not self._redirected:  # nor was it by a handler that was waited for
                    workflow.continue_as_new(ContinuedChange(progress))
            if not self._redirected:
                break
            self._redirected = False
            progress.steps.clear()
        return TieredStorageOutcome(
            progress.ref.topic,
            progress.ref.topic_id,
            progress.given.target,
            progress.was,
            progress.collected,
            progress.note,
        )

    async def _take_steps(self, progress: TieredStorageProgress) -> None:
        """Raises ``Interrupted`` when a new run is due or another target was given."""
        if not progress.steps:
            await self._review(progress)
        while progress.steps:
            step = Step(progress.steps[0])
            self._enter(step.value)
            match step:
                case Step.FINISH_DELETION:
                    await self._finish_deletion(progress)
                case Step.PROVE:
                    await self._prove(progress)
                case _:
                    await self._set(step, progress)
            progress.steps.pop(0)
            if self._redirected and progress.steps:
                raise Interrupted

    async def _review(self, progress: TieredStorageProgress) -> None:
        self._enter(REVIEWING)
        request = ReviewRequest(progress.ref, progress.given)
        found: Review = await self._call(REVIEW, request)
        if not progress.held:
            progress.users = users_local_retention(progress.given, found.users)
            # What an earlier run has left held is let go of by the step that gives back.
            progress.held = progress.users != found.users
        progress.was = progress.was or found.state
        path = PATHS[TieringState(found.state), Target(progress.given.target)]
        progress.steps = [step.value for step in path.steps]
        progress.collect_at = ""

    async def _set(self, step: Step, progress: TieredStorageProgress) -> None:
        users = progress.users or LocalRetention()
        if step is Step.RELEASE:
            users = wanted_local_retention(progress.given, users)
        if step is Step.HOLD:
            progress.held = True
        configs = configs_of(step, users, held=progress.held)
        # A release that Kafka refuses (the total was lowered meanwhile) waits and says so: the
        # topic is safe as it is.
        reraise = TOPIC_IS_GONE if step is Step.RELEASE else REFUSALS
        # A release proves once more.
        seconds = PROVING_BOUND_S if step is Step.RELEASE else 60.0
        call = slow(TieredStorageActivity.SET, seconds=seconds)
        await self._call(call, ConfigsToSet(progress.ref, configs), reraise)
        if step is not Step.HOLD:
            progress.held = False

    async def _prove(self, progress: TieredStorageProgress) -> None:
        """A local retention that somebody sets meanwhile is what the topic gets at the end."""
        call = slow(TieredStorageActivity.PROVE, Proof, seconds=PROVING_BOUND_S)
        while True:
            found: Proof = await self._call(call, progress.ref)
            if found.users is None:
                return
            progress.users = found.users
            await self._set(Step.HOLD, progress)

    async def _finish_deletion(self, progress: TieredStorageProgress) -> None:
        if not progress.collect_at:
            after = timedelta(seconds=progress.given.collect_after_s)
            progress.collect_at = (workflow.now() + after).isoformat()
        collect_at = datetime.fromisoformat(progress.collect_at)
        wait = LOOK_AGAIN[0]
        while True:
            late = workflow.now() >= collect_at
            look = DeletionLook(progress.ref, collect=late)
            found: Remaining = await self._call(DELETE, look)
            progress.collected += found.collected
            if found.nothing:
                return
            if late and not found.objects:
                progress.note = (
                    f"Kafka's metadata still list {found.segments} segments, of which nothing is "
                    "in the bucket any more"
                )
                return
            self._waits_because(
                f"{found.describe()}; what Kafka has not deleted by {progress.collect_at} is "
                "collected",
                Waits.DELETION,
            )
            await self._sleep(min(wait, max(collect_at - workflow.now(), LOOK_AGAIN[0])))
            wait = min(wait * 2, LOOK_AGAIN[1])

    async def _sleep(self, bound: timedelta) -> None:
        try:
            await workflow.wait_condition(lambda: self._redirected, timeout=bound)
        except TimeoutError:
            if history_is_long():
                raise Interrupted from None
        else:
            raise Interrupted

    async def _call(self, call: Call, given: Any, reraise: tuple[str, ...] = REFUSALS) -> Any:
        """Nothing cuts an activity short: one that goes on unseen might write after the next has
        begun. Another target counts between two tries."""
        result = await self._retrying.call(call, given, reraise=reraise)
        self._waits_because("")
        return result

    def _must_end(self) -> bool:
        return self._redirected or history_is_long()

    # What operators see, and another target

    @workflow.query(name=Query.STATUS)
    def status(self) -> TieredStorageStatus:
        """Which step it is in, and what it waits for."""
        progress = self._progress
        given = progress.given if progress is not None else self._given
        return TieredStorageStatus(
            given.topic if given is not None else "",
            progress.ref.topic_id if progress is not None else "",
            given.target if given is not None else "",
            self._step,
            self._since,
            self._waiting_reason,
            progress is not None and progress.held,
            progress.steps[1:] if progress is not None else [],
        )

    @workflow.query(name=TieredStorageQuery.UNFINISHED)
    def unfinished(self) -> TieredStorageInput | None:
        """What would go on where this run is, while local retention is held."""
        progress = self._progress
        given = progress.given if progress is not None else self._given
        if given is None:
            return None
        if progress is None or progress.users is None:
            return given if given.before_hold is not None else None
        return replace(given, before_hold=progress.users) if progress.held else None

    @workflow.update(name=TieredStorageUpdate.TARGET)
    async def target(self, raw: RawValue = NO_INPUT) -> TieredStorageStatus:
        """Another target from now on; the one of before is not pursued any more. Refused, and
        nothing changes, where a start with this target would be."""
        progress, given = self._current(), accepted(TieredStorageInput, raw)
        try:
            await perform(REVIEW, ReviewRequest(progress.ref, given))
        except CallFailed as failure:
            raise ApplicationError(failure.message, type=failure.kind) from failure
        self._current()
        progress.given, self._redirected = given, True
        self._retrying.retry_now()
        return self.status()

    @target.validator
    def _may_have_target(self, raw: RawValue = NO_INPUT) -> None:
        given, topic = accept(SWITCH, raw), self._current().ref.topic
        if given.topic != topic:
            raise ApplicationError(
                f"topic: {given.topic!r}; this workflow is of {topic!r}, name that one",
                type=failures.REFUSED,
            )

    def _current(self) -> TieredStorageProgress:
        """Raises when no other target can be given: ``Waiting`` while that is a matter of moments
        (the topic is being looked up, or this run ends)."""
        if self._refusal:
            raise ApplicationError(self._refusal, type=failures.REFUSED)
        if self._progress is None:
            raise ApplicationError("the topic is being looked up", type=failures.WAITING)
        if self._step == ENDED:
            raise ApplicationError("the workflow is ending", type=failures.WAITING)
        return self._progress

    def _what_stays(self) -> str:
        progress = self._progress
        if progress is None or not progress.held or progress.users is None:
            return ""
        users = ", ".join(f"{key}={value}" for key, value in progress.users.configs().items())
        return f". Local retention stays at the total; before it was {users} (None: not set)"

    def _enter(self, step: str) -> None:
        self._step, self._since = step, now()
        self._show()

    def _waits_because(self, reason: str, waits: Waits = Waits.NOTHING) -> None:
        if reason != self._waiting_reason:
            self._waiting_reason, self._waits = reason, waits
            self._show()

    def _show(self) -> None:
        known = self.status()
        self._search_attributes.update(
            topic=known.topic,
            phase=f"tiered storage: {known.step}",
            waiting_reason=known.waiting_reason,
            waits=self._waits,
        )
        rows: list[tuple[str, object]] = [
            ("topic", f"{known.topic} {known.topic_id}".rstrip()),
            ("target", known.target),
            ("step", known.step),
            ("then", ", ".join(known.then)),
            ("since", known.since),
            ("waits because", known.waiting_reason),
            ("local retention", "held at the total" if known.holds_local_retention else ""),
        ]
        workflow.set_current_details(markdown_table(rows))
