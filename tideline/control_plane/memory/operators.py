"""What operators decided, and requests to migrate with what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tideline.control_plane.errors import InvalidInput, NothingToCallOff
from tideline.control_plane.model import (
    MigrationRequest,
    OperatorAction,
    PlannedTopic,
    RequestState,
)

OPEN = (RequestState.RECEIVED, RequestState.RETRYING, RequestState.STARTED)
WAITING = (RequestState.RECEIVED, RequestState.RETRYING)


def assert_said(action: str, topic: str, decided_by: str, reason: str) -> None:
    """Who decides, and why, must be said."""
    if not decided_by.strip() or not reason.strip():
        raise InvalidInput(
            f"{action} of topic {topic}: who decides it ({decided_by!r}) and why ({reason!r}) "
            "must be said"
        )


@dataclass(slots=True)
class Operators:
    actions: list[OperatorAction] = field(default_factory=list)
    requests: dict[UUID, MigrationRequest] = field(default_factory=dict)
    """By topic id, the newest of each."""
    plans: dict[str, dict[str, PlannedTopic]] = field(default_factory=dict)
    """By plan and topic."""

    def record(
        self,
        topic: str,
        topic_id: UUID,
        partition: int | None,
        action: str,
        decided_by: str,
        reason: str,
        details: Mapping[str, Any],
        now: datetime,
    ) -> None:
        assert_said(action, topic, decided_by, reason)
        self.actions.append(
            OperatorAction(
                topic, topic_id, partition, action, decided_by, reason, dict(details), now
            )
        )

    def request(
        self, topic: str, topic_id: UUID, requested_by: str, options: dict[str, Any], now: datetime
    ) -> None:
        """Another request while one waits joins it."""
        known = self.requests.get(topic_id)
        joins = known is not None and known.state in WAITING
        since = known.requested_at if known is not None and joins else now
        self.requests[topic_id] = MigrationRequest(
            topic, topic_id, requested_by, options, since, changed_at=now
        )

    def pending(self, now: datetime) -> list[MigrationRequest]:
        waiting = [
            request
            for request in self.requests.values()
            if request.state in WAITING
            and (request.next_try_at is None or request.next_try_at <= now)
        ]
        return sorted(waiting, key=lambda request: request.requested_at)

    def settle(
        self,
        topic_id: UUID,
        requested_at: datetime,
        state: RequestState,
        reason: str,
        retry_after_ms: int,
        now: datetime,
    ) -> bool:
        """Whether it was this request, and open."""
        known = self.requests.get(topic_id)
        if known is None or known.requested_at != requested_at or known.state not in OPEN:
            return False
        retries = state is RequestState.RETRYING
        self.requests[topic_id] = replace(
            known,
            state=state,
            reason=reason,
            tries=known.tries + retries,
            next_try_at=now + timedelta(milliseconds=retry_after_ms) if retries else None,
            changed_at=now,
        )
        return True

    def call_off(self, topic_id: UUID, decided_by: str, reason: str, now: datetime) -> None:
        known = self.requests.get(topic_id)
        if known is None or known.state not in (*WAITING, RequestState.CALLED_OFF):
            state = "unknown" if known is None else known.state
            raise NothingToCallOff(
                f"the request to migrate topic id {topic_id} is {state}: nothing waits to be "
                "called off"
            )
        if known.state is RequestState.CALLED_OFF:
            return
        self.record(known.topic, topic_id, None, "call_off_request", decided_by, reason, {}, now)
        self.requests[topic_id] = replace(
            known,
            state=RequestState.CALLED_OFF,
            reason=reason,
            next_try_at=None,
            changed_at=now,
        )
