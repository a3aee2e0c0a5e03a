"""What an operator sees in the Temporal UI: search attributes and the current details."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio import workflow
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    SearchAttributeUpdate,
    TypedSearchAttributes,
)

PHASE = SearchAttributeKey.for_keyword("TidelinePhase")
TOPIC = SearchAttributeKey.for_keyword("TidelineTopic")
BOUNDARY = SearchAttributeKey.for_int("TidelineBoundary")
WAITING_REASON = SearchAttributeKey.for_text("TidelineWaitingReason")

MAX_REASON = 500
"""Characters of a waiting reason that are kept as a search attribute."""


def at_start(topic: str) -> TypedSearchAttributes:
    """Search attributes of a workflow that is being started."""
    return TypedSearchAttributes([SearchAttributePair(TOPIC, topic)])


@dataclass(slots=True)
class Shown:
    """Remembers what was written, so that only changes cost an event."""

    topic: str = ""
    phase: str = ""
    waiting_reason: str = ""
    boundary: int = -1

    def show(self, *, topic: str, phase: str, waiting_reason: str, boundary: int = -1) -> None:
        """Update the search attributes that differ."""
        reason = waiting_reason[:MAX_REASON]
        updates: list[SearchAttributeUpdate[Any]] = []
        if topic != self.topic:
            updates.append(TOPIC.value_set(topic))
        if phase != self.phase:
            updates.append(PHASE.value_set(phase))
        if reason != self.waiting_reason:
            updates.append(
                WAITING_REASON.value_set(reason) if reason else WAITING_REASON.value_unset()
            )
        if boundary != self.boundary:
            updates.append(
                BOUNDARY.value_set(boundary) if boundary >= 0 else BOUNDARY.value_unset()
            )
        if updates:
            workflow.upsert_search_attributes(updates)
        self.topic, self.phase = topic, phase
        self.waiting_reason, self.boundary = reason, boundary


def table(rows: list[tuple[str, object]]) -> str:
    """A Markdown table of two columns; empty values are left out."""
    lines = [f"| {name} | {value} |" for name, value in rows if value not in ("", None)]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def now() -> str:
    """The workflow's time, ISO 8601 in UTC."""
    return workflow.now().isoformat(timespec="milliseconds")
