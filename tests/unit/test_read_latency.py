"""The benchmark of reads compares each tier with the direct read of the same turn."""

from __future__ import annotations

from benchmarks.read_latency import DIRECT, WAYS, ReadLatency, to_markdown


def test_every_tier_is_told_as_a_multiple_of_the_direct_read_and_with_the_machines_load() -> None:
    result = ReadLatency(2, {way: [4.0, 30.0] for way in WAYS}, (1.0, 9.0))
    result.took[DIRECT] = [2.0, 10.0]
    assert result.ratios("tiered prefix") == [2.0, 3.0]
    told = to_markdown(result, "2 cores").splitlines()
    assert "load 1 to 9" in told[0]
    assert [line.split(" | ")[0] for line in told[-len(WAYS) :]] == [f"| {way}" for way in WAYS]
    assert told[-1] == "| WAL objects | 17.0 | 30.0 | 2.5 |"
