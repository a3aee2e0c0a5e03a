"""What an operator sees in the Temporal UI, and what a topic's workflow hears of its partitions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    SearchAttributeUpdate,
    TypedSearchAttributes,
)
from temporalio.exceptions import TemporalError

with workflow.unsafe.imports_passed_through():
    from tideline.domain.messages import WAITING_MEMO, PartitionReport, SearchAttribute, Signal
    from tideline.domain.waits import Waits

PHASE = SearchAttributeKey.for_keyword(SearchAttribute.PHASE)
TOPIC = SearchAttributeKey.for_keyword(SearchAttribute.TOPIC)
BOUNDARY = SearchAttributeKey.for_int(SearchAttribute.BOUNDARY)
WAITS = SearchAttributeKey.for_keyword(SearchAttribute.WAITS)

MAX_REASON = 2_000
"""Characters of a waiting reason that are kept in the memo: each list of workflows carries it."""
MAX_REPORTED = 1_500
"""Bytes of one in a report, as JSON: a topic's workflow keeps the newest report of each partition.
The partition's own workflow has it whole."""
_LONGEST_ESCAPE = 12
"""Bytes: a character outside of the basic plane is written as two escapes."""


def with_age(reason: str, since: str, allowed_ms: int) -> str:
    """``reason``, and since when (ISO), of a wait for tiering that lasts longer than it may. There
    is no way back from there: it goes on, and is told."""
    if workflow.now() - datetime.fromisoformat(since) <= timedelta(milliseconds=allowed_ms):
        return reason
    return f"tiering takes longer than segment_wait_ms={allowed_ms}, since {since}: {reason}"


def search_attributes_at_start(topic: str) -> TypedSearchAttributes:
    """Of a workflow that is being started."""
    return TypedSearchAttributes([SearchAttributePair(TOPIC, topic)])


@dataclass(slots=True)
class SearchAttributes:
    """Remembers what was written, so that only changes cost an event."""

    topic: str = ""
    phase: str = ""
    waiting_reason: str = ""
    boundary: int = -1

    def update(
        self, *, topic: str, phase: str, waiting_reason: str, waits: Waits, boundary: int = -1
    ) -> None:
        """Write those that differ; the reason itself into the memo."""
        reason = waiting_reason[:MAX_REASON]
        updates: list[SearchAttributeUpdate[Any]] = []
        if topic != self.topic:
            updates.append(TOPIC.value_set(topic))
        if phase != self.phase:
            updates.append(PHASE.value_set(phase))
        if reason != self.waiting_reason:
            updates.append(WAITS.value_set(waits or Waits.OTHER) if reason else WAITS.value_unset())
        if boundary != self.boundary:
            updates.append(
                BOUNDARY.value_set(boundary) if boundary >= 0 else BOUNDARY.value_unset()
            )
        if updates:
            workflow.upsert_search_attributes(updates)
        if reason != self.waiting_reason:
            workflow.upsert_memo({WAITING_MEMO: reason or None})
        self.topic, self.phase = topic, phase
        self.waiting_reason, self.boundary = reason, boundary


def reportable(reason: str) -> str:
    """As much of it as a report has room for."""
    if len(reason) * _LONGEST_ESCAPE <= MAX_REPORTED:
        return reason
    room = MAX_REPORTED
    for at, character in enumerate(reason):
        plain = character.isascii() and character.isprintable() and character not in '"\\'
        room -= 1 if plain else _LONGEST_ESCAPE
        if room < 0:
            return reason[:at]
    return reason


def markdown_table(rows: list[tuple[str, object]]) -> str:
    """Two columns; empty values are left out."""
    lines = [f"| {name} | {value} |" for name, value in rows if value not in ("", None)]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def now() -> str:
    """The workflow's time, ISO 8601 in UTC."""
    return workflow.now().isoformat(timespec="milliseconds")


class Reporter:
    """Sends a partition's newest report to its topic's workflow, without making the phases wait.

    An older one that was not sent yet is replaced. A topic's workflow that does not run gets
    nothing; when one starts again it asks.
    """

    def __init__(self, topic_workflow_id: str) -> None:
        self._topic_workflow_id = topic_workflow_id
        self._pending: PartitionReport | None = None
        self._sending = False

    def send(self, report: PartitionReport) -> None:
        self._pending = report

    async def run(self) -> None:
        """Send until cancelled."""
        topic = workflow.get_external_workflow_handle(self._topic_workflow_id)
        while True:
            await workflow.wait_condition(lambda: self._pending is not None)
            report, self._pending, self._sending = self._pending, None, True
            try:
                await topic.signal(Signal.REPORT, report)
            except TemporalError as error:
                workflow.logger.info("report_not_delivered", extra={"why": str(error)})
            finally:
                self._sending = False

    async def flushed(self) -> None:
        """Wait until nothing is pending or under way."""
        await workflow.wait_condition(lambda: self._pending is None and not self._sending)
