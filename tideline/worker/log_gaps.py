"""Looks into log gaps that the watches found: what of each remote segments hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import structlog

from tideline.domain.coverage import OffsetRange
from tideline.domain.ids import TopicIdPartition
from tideline.domain.log_gap import gap_detail
from tideline.domain.watched import Finding, FindingKind
from tideline.errors import TidelineError
from tideline.migration.connections import WorkerServices
from tideline.migration.gaps import who_holds

log = structlog.get_logger()

MAX_LOOKED_INTO = 20
"""Gaps per look: each lists a partition's objects. The others are told as they were."""


def is_gap(finding: Finding) -> bool:
    """Whether no replica that answered reaches what Kafka must hold."""
    return finding.kind is FindingKind.SHORT and "gap" in finding.detail


class GapLooker:
    """One gap after another, the one that was looked into longest ago first."""

    def __init__(self, services: WorkerServices) -> None:
        self._services = services
        self._known: dict[TopicIdPartition, tuple[int, OffsetRange, dict[str, Any]]] = {}
        """By log: at which look, which gap, and what was found."""
        self._look = 0

    async def look(
        self, gaps: Sequence[tuple[str, TopicIdPartition, Finding]]
    ) -> dict[TopicIdPartition, Finding]:
        """The findings with who holds what; without it where remote segments cannot be asked."""
        self._look += 1
        logs = {at for _, at, _ in gaps}
        self._known = {at: known for at, known in self._known.items() if at in logs}
        longest_ago = sorted(gaps, key=lambda g: self._known[g[1]][0] if g[1] in self._known else 0)
        for topic, at, finding in longest_ago[:MAX_LOOKED_INTO]:
            gap = _range(finding)
            try:
                parts = await who_holds(self._services, topic, at, gap)
            except TidelineError as error:
                log.warning("gap_not_looked_into", log=str(at), reason=str(error))
                continue
            self._known[at] = (self._look, gap, gap_detail(gap, parts))
        return {at: self._told(at, finding) for _, at, finding in gaps}

    def _told(self, at: TopicIdPartition, finding: Finding) -> Finding:
        known = self._known.get(at)
        if known is None or known[1] != _range(finding):
            return finding
        return replace(finding, detail={**finding.detail, "gap": known[2]})


def _range(finding: Finding) -> OffsetRange:
    gap = finding.detail["gap"]
    return OffsetRange(gap["first"], gap["end"])
