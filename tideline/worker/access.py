"""Which ACLs name a host and which share groups there are, for the watch: the preflight refuses a
topic for either, and both may come when it is tracked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from time import monotonic
from typing import TypeVar
from uuid import UUID

import structlog

from tideline.control_plane.model import TrackedTopic, WatchFinding
from tideline.domain.watched import Finding, FindingKind, HostAcls, access_finding
from tideline.errors import TidelineError
from tideline.migration.connections import WorkerServices

T = TypeVar("T")
log = structlog.get_logger()

ASK_EVERY_S = 300.0
"""A broker answers with every ACL of topics, which may be 100,000, and each broker with all of its
share groups."""


class AccessLook:
    """One question for all topics. What cannot be asked stays as it was told last, by this process
    or, before the first answer, by the one before."""

    def __init__(self, services: WorkerServices, clock: Callable[[], float] = monotonic) -> None:
        self._services = services
        self._clock = clock
        self._due = float("-inf")
        self._acls: HostAcls | None = None
        self._share_groups: Mapping[str, tuple[str, ...]] | None = None
        self._before: dict[tuple[UUID, FindingKind], Finding] = {}

    def told_before(self, found: Iterable[WatchFinding]) -> None:
        """What Postgres has as found and not ended."""
        self._before = {
            (f.topic_id, f.kind): Finding(f.kind, f.subject, f.detail)
            for f in found
            if f.kind in (FindingKind.ACL, FindingKind.SHARE_GROUP)
        }

    async def ask(self) -> None:
        """Where that is due; nothing is raised."""
        if self._clock() < self._due:
            return
        self._due = self._clock() + ASK_EVERY_S
        topics = self._services.topics
        if (acls := await _or_none("acls", topics.host_acls())) is not None:
            self._acls = HostAcls(acls)
        if (groups := await _or_none("share_groups", topics.share_groups())) is not None:
            self._share_groups = groups

    def findings(self, topic: TrackedTopic) -> list[Finding]:
        """Of a topic that has an id."""
        assert topic.topic_id is not None
        found = []
        for kind, names in (
            (FindingKind.ACL, None if self._acls is None else self._acls.of(topic.name)),
            (FindingKind.SHARE_GROUP, self._groups_on(topic.name)),
        ):
            if names is not None:
                found += access_finding(kind, names)
            elif (before := self._before.get((topic.topic_id, kind))) is not None:
                found.append(before)
        return found

    def _groups_on(self, topic: str) -> tuple[str, ...] | None:
        return None if self._share_groups is None else self._share_groups.get(topic, ())


async def _or_none(what: str, asked: Awaitable[T]) -> T | None:
    try:
        return await asked
    except TidelineError as error:
        log.debug("access_not_watched", what=what, reason=str(error))
        return None
