"""Whether partitions are ready is looked for once for a whole topic: a partition that waits for
remote storage costs nothing while it waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from tideline.domain.messages import ReadinessFound, ReadinessRequest, TopicActivity
    from tideline.domain.waits import Waits
    from workflows.calls import CallFailed, Interrupted, RetryUntilSuccess, slow
    from workflows.fan_out import FanOut
    from workflows.phases import NOT_THERE
    from workflows.reporting import with_age
    from workflows.topic_state import Stage, TopicState

LOOK = slow(TopicActivity.AWAIT_READINESS, ReadinessFound, seconds=300)


class TopicReadiness:
    """Looks while some partition waits for it; :meth:`run` runs beside the topic's stages.
    ``show`` gets the reason why partitions are not ready yet, and an empty one when they are."""

    def __init__(
        self, state: TopicState, fan_out: FanOut, show: Callable[[str, Waits], None]
    ) -> None:
        self._state, self._fan_out, self._show = state, fan_out, show
        self._retrying = RetryUntilSuccess(show)
        self._misses = 0
        self.busy = False

    def retry_now(self) -> None:
        """Look at once."""
        self._retrying.retry_now()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await workflow.wait_condition(lambda: not self._must_stop())
            self.busy = True
            try:
                await self._look()
            except Interrupted:
                continue
            finally:
                self.busy = False

    def _must_stop(self) -> bool:
        return self._fan_out.settling or not self._state.may_look_for_ready

    async def _look(self) -> None:
        state = self._state
        asked = {partition: state.partitions[partition].round for partition in state.wants_ready()}
        request = ReadinessRequest(state.ref, state.options, list(asked))
        try:
            found: ReadinessFound = await self._retrying.call(
                LOOK, request, self._must_stop, reraise=NOT_THERE
            )
        except CallFailed:
            # Each partition finds out for itself that its topic is gone, and ends so. Of those
            # whose workflow has ended one is enough: the topic's ends by that.
            resting = [p for p in asked if state.partitions[p].rests]
            one = [] if state.somebody_looks else resting[:1]
            found = ReadinessFound(own_look=[*(asked.keys() - resting), *one])
        ready, own_look = (
            [p for p in partitions if state.still_wants_ready(p, asked[p])]
            for partitions in (found.ready, found.own_look)
        )
        for partition in ready:
            state.found_ready(partition)
        for partition in own_look:
            state.must_look_itself(partition)
        decided = [*ready, *own_look]
        self._fan_out.tell_of_look(decided)
        self._misses = 0 if decided else self._misses + 1
        self._tell(found.reasons, len(request.partitions) - len(decided))
        if not decided:
            # The activity has waited already; longer and longer for what takes so long.
            await self._retrying.wait_before_retry(self._misses, self._must_stop)

    def _tell(self, reasons: Mapping[str, str], waiting: int) -> None:
        state = self._state
        if state.stage is not Stage.TIERING:
            return
        first = next(iter(reasons.items()), None)
        if first is None or not waiting:
            self._show("", Waits.NOTHING)
            return
        others = f"; {waiting - 1} more are not ready" if waiting > 1 else ""
        reason = f"partition {first[0]}: {first[1]}{others}"
        told = with_age(reason, state.since, state.options.segment_wait_ms)
        self._show(told, Waits.SEGMENTS)
