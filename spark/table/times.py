"""The offset at a time, from object storage: what ListOffsets answers, without a broker."""

from __future__ import annotations

from spark.table.plan import Plan
from spark.table.rows import arrow_rows
from spark.table.scan import Scanner
from tideline.domain.table import Bounds, Isolation


def offset_at(plan: Plan, partition: int, timestamp: int) -> int:
    """Of the first record at or after ``timestamp`` (ms) in the order of offsets; the end of the
    log if there is none.

    Reads one batch where the indexes are dense. Raises as the planning and the reading do.
    """
    bounds = Bounds(not_before=timestamp)
    whole = plan.whole[partition]
    pieces = plan.pieces({partition: whole}, bounds, Isolation.READ_UNCOMMITTED, split=False)
    with Scanner(plan.settings, not_before=timestamp) as scanner:
        for piece in pieces:
            for batch in arrow_rows(scanner, piece, Isolation.READ_UNCOMMITTED, rows_at_once=1):
                for offset, at in zip(
                    batch.column("offset").to_pylist(),
                    batch.column("timestamp").cast("int64").to_pylist(),
                    strict=True,
                ):
                    if at >= timestamp * 1000:
                        return int(offset)
    return whole.end
