"""Counters of the tiering pipeline, kept in Postgres: a job lives only as long as its run."""

from __future__ import annotations

from collections.abc import Mapping

from tideline.control_plane.jobs_connection import JobsConnection


class JobsTotals:
    """Part of :class:`tideline.control_plane.jobs.JobsControlPlane`."""

    _connection: JobsConnection

    def add_tiering_totals(self, sums: Mapping[str, int]) -> None:
        """Add to counters of :mod:`tideline.domain.tiering_totals`; none ever decreases. Repeated
        after a broken connection it may count twice."""
        self._connection.fetch(
            "SELECT tideline.add_tiering_totals(%s::text[], %s::bigint[])",
            list(sums), list(sums.values()),
        )  # fmt: skip

    def tiering_totals(self) -> dict[str, int]:
        """Every counter that was ever added to."""
        rows = self._connection.fetch("SELECT * FROM tideline.read_tiering_totals()")
        return {row["total"]: int(row["value"]) for row in rows}
