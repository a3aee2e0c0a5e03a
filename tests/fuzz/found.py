"""Frames that something was wrong with once: a gateway has to take them, or end their connection,
and say so without a traceback. :mod:`tests.fuzz.shrink` makes them of what a run has found."""

from __future__ import annotations

FOUND = {
    "ListOffsets, whose topics are null, which they may not be": (
        "0002000600000000ffff00ffffffff000000"
    ),
    "AddPartitionsToTxn, whose topics are null, which they may not be": (
        "0018000300000000ffff000274000000000000000500000000"
    ),
    "OffsetForLeaderEpoch of before flexible versions, whose topics are null": (
        "0017000300000000ffffffffffffffffffff"
    ),
}
"""In hex, without the length prefix."""
