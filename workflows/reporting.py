"""Sends a partition's newest report to its topic's workflow, without making the phases wait."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import TemporalError

with workflow.unsafe.imports_passed_through():
    from tideline.domain.messages import PartitionReport, Signal


class Reporter:
    """Keeps one report in hand: an older one that was not sent yet is replaced.

    A topic's workflow that does not run gets nothing; when one starts again it asks.
    """

    def __init__(self, topic_workflow_id: str) -> None:
        self._topic_workflow_id = topic_workflow_id
        self._in_hand: PartitionReport | None = None
        self._sending = False

    def send(self, report: PartitionReport) -> None:
        """Send ``report`` soon."""
        self._in_hand = report

    async def run(self) -> None:
        """Send until cancelled."""
        topic = workflow.get_external_workflow_handle(self._topic_workflow_id)
        while True:
            await workflow.wait_condition(lambda: self._in_hand is not None)
            report, self._in_hand, self._sending = self._in_hand, None, True
            try:
                await topic.signal(Signal.REPORT, report)
            except TemporalError as error:
                workflow.logger.info("report_not_delivered", extra={"why": str(error)})
            finally:
                self._sending = False

    async def flushed(self) -> None:
        """Wait until nothing is in hand."""
        await workflow.wait_condition(lambda: self._in_hand is None and not self._sending)
