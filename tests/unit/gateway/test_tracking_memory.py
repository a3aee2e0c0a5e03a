"""What a gateway holds of every partition that is tracked (seed 002, 8.3)."""

from __future__ import annotations

from benchmarks.tracking import memory

MOST_BYTES = 1_000
"""A hundred thousand partitions take less than 100 MB."""


def test_a_tracked_partition_takes_less_than_a_kilobyte_however_many_there_are() -> None:
    few, many = memory(1_000), memory(10_000)
    assert few < MOST_BYTES
    assert many < MOST_BYTES
