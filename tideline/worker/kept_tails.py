"""Exports of tails past B0 that grow: each look keeps what is new, a bounded amount of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tideline.domain.ids import TopicIdPartition
from tideline.domain.watched import Finding, FindingKind
from tideline.errors import TidelineError
from tideline.kafka.batches import InvalidBatch
from tideline.migration.connections import WorkerServices
from tideline.migration.tails import LastKept, export_tail

MAX_LOOK_BYTES = 64 * 1024 * 1024
"""Of all tails together, at one look. What is left over is kept by the next ones."""
MAX_TAIL_BYTES = 16 * 1024 * 1024
"""Of one tail, so that the largest does not keep others waiting."""
PROGRESS = ("exported_to", "last_batch", "of_broker", "object", "objects", "bytes")
"""Keys of a finding's detail that say what is kept of the tail. They stand in Postgres, so that a
worker goes on where another one was."""


class TailKeeper:
    """One tail after another, the one that was served longest ago first."""

    def __init__(self, services: WorkerServices) -> None:
        self._services = services
        self._served: dict[TopicIdPartition, int] = {}
        self._look = 0

    async def keep(
        self, tails: Sequence[tuple[str, TopicIdPartition, Finding]]
    ) -> dict[TopicIdPartition, Finding]:
        """The findings with what is kept of each tail by now, and where.

        Raises ``ControlPlaneUnavailable``.
        """
        self._look += 1
        self._served = {at: self._served.get(at, 0) for _, at, _ in tails}
        if not tails:
            return {}
        known = {
            TopicIdPartition(row.topic_id, int(row.subject)): row.detail
            for row in await self._services.control_plane.findings()
            if row.kind is FindingKind.TAIL
        }
        left = MAX_LOOK_BYTES
        kept: dict[TopicIdPartition, Finding] = {}
        for topic, at, tail in sorted(tails, key=lambda t: self._served[t[1]]):
            before = {k: v for k, v in known.get(at, {}).items() if k in PROGRESS}
            detail = {**tail.detail, **before}
            if left > 0:
                news = await self._export(topic, at, tail, before, min(left, MAX_TAIL_BYTES))
                self._served[at] = self._look
                left -= news.get("bytes", 0) - before.get("bytes", 0)
                detail |= news
            kept[at] = replace(tail, detail=detail)
        return kept

    async def _export(
        self,
        topic: str,
        at: TopicIdPartition,
        tail: Finding,
        before: dict[str, Any],
        max_bytes: int,
    ) -> dict[str, Any]:
        """What changed of the progress."""
        boundary = int(tail.detail["boundary"])
        ends: dict[str, int] = tail.detail["log_ends"]
        node = max(ends, key=lambda n: (ends[n], n == before.get("of_broker")))
        to = int(before.get("exported_to", boundary))
        grown_only = to <= ends[node] and "last_batch" in before
        if grown_only and to == ends[node] and before.get("of_broker") == node:
            return {}
        try:
            new = await export_tail(
                self._services.reader,
                self._services.inventory,
                topic,
                at,
                (boundary, ends[node]),
                int(node),
                behind=LastKept(*before["last_batch"]) if grown_only else None,
                max_bytes=max_bytes,
            )
        except (TidelineError, InvalidBatch) as error:
            return {"not_exported": str(error)}
        if new.address is None or new.last is None:
            return {"of_broker": node} if grown_only and not new.from_the_start else {}
        last = new.last
        return {
            "exported_to": new.to,
            "last_batch": [last.base_offset, last.leader_epoch, last.crc],
            "of_broker": node,
            "object": new.address,
            "objects": before.get("objects", 0) + 1,
            "bytes": before.get("bytes", 0) + new.bytes,
        }
