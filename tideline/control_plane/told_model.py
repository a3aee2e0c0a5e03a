"""What is told of a topic beside where its migration stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tideline.control_plane.model import MigrationRequest, OperatorAction, WatchFinding
from tideline.control_plane.table_model import VerifyVerdict


@dataclass(frozen=True, slots=True)
class Told:
    """Of one topic."""

    request: MigrationRequest | None = None
    """The newest one by config change, and what became of it."""
    actions: tuple[OperatorAction, ...] = ()
    """What operators decided, oldest first."""
    verdict: VerifyVerdict | None = None
    """What the last verification found."""
    findings: tuple[WatchFinding, ...] = ()
    """What the worker's watches found, those that have ended too."""


def told_by_topic(
    requests: Iterable[MigrationRequest],
    actions: Iterable[OperatorAction],
    verdicts: Iterable[VerifyVerdict],
    findings: Iterable[WatchFinding],
) -> dict[str, Told]:
    """By name; each kind in the order in which it comes, of requests and verdicts the last."""
    told: dict[str, Told] = {}
    for request in requests:
        told[request.topic] = replace(told.get(request.topic, Told()), request=request)
    for action in actions:
        known = told.get(action.topic, Told())
        told[action.topic] = replace(known, actions=(*known.actions, action))
    for verdict in verdicts:
        told[verdict.topic] = replace(told.get(verdict.topic, Told()), verdict=verdict)
    for finding in findings:
        known = told.get(finding.topic, Told())
        told[finding.topic] = replace(known, findings=(*known.findings, finding))
    return told
