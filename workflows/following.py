"""A start under another id than the topic's own: it follows the topic's workflow to its end.

It waits on a timer between short looks. An activity that waited would hold a place on the queue on
which the followed migration waits: enough starts by hand, and none would ever go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from tideline.domain import failures
    from tideline.domain.messages import Followed, JoinRequest, TopicActivity, TopicOutcome
    from tideline.domain.waits import Waits
    from workflows.calls import Interrupted, RetryUntilSuccess, history_is_long, slow

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
"""Between two looks: doubled each time."""


@dataclass(frozen=True, slots=True)
class Following:
    """The input of a run that continues a follower's."""

    follows: JoinRequest


async def follow(request: JoinRequest, report: Callable[[str, Waits], None]) -> TopicOutcome:
    """The outcome of the topic's own workflow. ``report`` gets the reason why it cannot be looked
    at, and an empty one when it can. Raises :class:`workflows.calls.CallFailed` when that workflow
    has failed."""
    retrying = RetryUntilSuccess(report, history_is_long)
    look, wait_s = slow(TopicActivity.FOLLOW_TOPIC_MIGRATION, Followed), FIRST_WAIT_S
    while True:
        try:
            found: Followed = await retrying.call(look, request, reraise=(failures.REFUSED,))
        except Interrupted:
            _continue(request)
        if found.outcome is not None:
            return found.outcome
        request = replace(request, joined=True)
        await workflow.sleep(wait_s)
        wait_s = min(wait_s * 2, LONGEST_WAIT_S)
        if history_is_long():
            _continue(request)


def _continue(request: JoinRequest) -> NoReturn:
    workflow.continue_as_new(Following(request))
