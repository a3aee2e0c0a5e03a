"""Where Kafka's part of a log ends when an operator has accepted a log gap below B0."""

from __future__ import annotations


def prefix_end(accepted_gap_from: int, boundary: int) -> int:
    """Where the prefix ends, exclusive: at B0, or where an accepted log gap begins. -1 without a
    B0."""
    return accepted_gap_from if accepted_gap_from >= 0 else boundary


def past_gap(start: int, prefix_end: int, boundary: int) -> int:
    """The log start that a log start of Kafka's means. Offsets from ``prefix_end`` (exclusive end
    of the prefix) up to B0 are an accepted log gap: whoever stands in it stands at B0."""
    return boundary if 0 <= prefix_end <= start < boundary else start
