"""What jobs read in bulk, in key ranges, so that many tasks can read side by side."""

from __future__ import annotations

from collections.abc import Iterator

from tideline.control_plane.jobs_connection import JobsConnection
from tideline.control_plane.jobs_model import (
    BatchRow,
    MergedSegmentRow,
    MergedSegmentState,
    PartitionRow,
    WalFileRow,
)

PAGE = 5_000
"""Rows per call: some 10 ms, and less than 1 MB in memory."""


class JobsReading:
    """Part of :class:`tideline.control_plane.jobs.JobsControlPlane`."""

    _connection: JobsConnection

    def log_id_range(self) -> tuple[int, int]:
        """``[lo, hi)`` of the log ids in use; equal when there are none."""
        (row,) = self._connection.fetch("SELECT * FROM tideline.log_id_range()")
        return row["lo"], row["hi"]

    def file_id_range(self) -> tuple[int, int]:
        """``[lo, hi)`` of the WAL file ids in use; equal when there are none."""
        (row,) = self._connection.fetch("SELECT * FROM tideline.file_id_range()")
        return row["lo"], row["hi"]

    def partitions(self, lo: int, hi: int) -> Iterator[PartitionRow]:
        """Partitions with a log id in ``[lo, hi)``, by log id; deleted ones too."""
        return self._connection.pages(
            "SELECT * FROM tideline.tiering_partitions(%s, %s, %s)",
            (lo, hi),
            lambda row: (row["log_id"] + 1, hi),
            lambda row: PartitionRow(**row),
            PAGE,
        )

    def batches(self, lo: int, hi: int) -> Iterator[BatchRow]:
        """Batches of the WAL region of the logs in ``[lo, hi)``, by log and offset. Read page by
        page: what is committed or merged meanwhile may or may not be among them.
        """
        return self._connection.pages(
            "SELECT * FROM tideline.tiering_batches(%s, %s, %s, %s)",
            (lo, hi, -1),
            lambda row: (row["log_id"], hi, row["last_offset"]),
            lambda row: BatchRow(**row),
            PAGE,
        )

    def merged_segments(self, lo: int, hi: int) -> Iterator[MergedSegmentRow]:
        """Merged segments of the logs in ``[lo, hi)`` in every state, by log and last offset."""
        return self._connection.pages(
            "SELECT * FROM tideline.tiering_segments(%s, %s, %s, %s, %s)",
            (lo, hi, -1, None),
            lambda row: (row["log_id"], hi, row["last_offset"], row["segment_id"]),
            lambda row: MergedSegmentRow(**{**row, "state": MergedSegmentState(row["state"])}),
            PAGE,
        )

    def wal_files(self, lo: int, hi: int) -> Iterator[WalFileRow]:
        """WAL keys with a file id in ``[lo, hi)``, by id."""
        return self._connection.pages(
            "SELECT * FROM tideline.tiering_wal_files(%s, %s, %s)",
            (lo, hi),
            lambda row: (row["file_id"] + 1, hi),
            lambda row: WalFileRow(**row),
            PAGE,
        )
