"""Which ACLs name a host and which share groups there are, for the watch: the preflight refuses a
topic for either, and both may come when it is tracked."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from tideline.domain.watched import Finding, HostAcl, access_findings
from tideline.errors import TidelineError
from tideline.migration.connections import WorkerServices

log = structlog.get_logger()


class AccessLook:
    """One question for all topics. What cannot be asked stays as it was told last."""

    def __init__(self, services: WorkerServices) -> None:
        self._services = services
        self._acls: tuple[HostAcl, ...] = ()
        self._share_groups: Mapping[str, tuple[str, ...]] = {}

    async def ask(self) -> None:
        try:
            self._acls = await self._services.topics.host_acls()
        except TidelineError as error:
            log.debug("acls_not_watched", reason=str(error))
        try:
            self._share_groups = await self._services.topics.share_groups()
        except TidelineError as error:
            log.debug("share_groups_not_watched", reason=str(error))

    def findings(self, topic: str) -> list[Finding]:
        return access_findings(topic, self._acls, self._share_groups.get(topic, ()))
