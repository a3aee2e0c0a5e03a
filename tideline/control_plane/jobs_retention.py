"""What retention reads of suffixes. Offsets are inclusive unless they are called before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tideline.control_plane.jobs_connection import JobsConnection

CUT_BATCHES = 2_000_000
"""Batches that one call looks at: a few seconds, far below the statement timeout."""


@dataclass(frozen=True, slots=True)
class SuffixUnit:
    """A merged segment (region 1), or all WAL batches of a log (region 2; timestamp −1)."""

    log_id: int
    region: int
    start_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class WalCut:
    """How many WAL batches retention removes of one log, and up to where (exclusive)."""

    log_id: int
    before_offset: int
    by_time: int
    by_size: int
    removed_bytes: int


@dataclass(frozen=True, slots=True)
class CutRequest:
    """From ``from_offset`` on; ``cutoff_ms`` and ``excess_bytes`` as in ``LeadingRun``."""

    log_id: int
    from_offset: int
    cutoff_ms: int
    excess_bytes: int


class JobsRetention:
    """Part of :class:`tideline.control_plane.jobs.JobsControlPlane`."""

    _connection: JobsConnection

    def retention_suffix(self, log_ids: Sequence[int], sized: Sequence[bool]) -> list[SuffixUnit]:
        """The units of these logs' suffixes, in one snapshot; WAL batches only where ``sized``."""
        rows = self._connection.fetch(
            "SELECT * FROM tideline.retention_suffix(%s::bigint[], %s::boolean[])",
            list(log_ids), list(sized),
        )  # fmt: skip
        return [SuffixUnit(**row) for row in rows]

    def retention_wal_cut(
        self, wanted: Sequence[CutRequest], limit: int = CUT_BATCHES
    ) -> list[WalCut]:
        """Where retention cuts the WAL region of each log. Logs that ``limit`` batches did not
        reach are left out."""
        rows = self._connection.fetch(
            "SELECT * FROM tideline.retention_wal_cut"
            "(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s)",
            [w.log_id for w in wanted],
            [w.from_offset for w in wanted],
            [w.cutoff_ms for w in wanted],
            [w.excess_bytes for w in wanted],
            limit,
        )
        return [WalCut(**row) for row in rows]
