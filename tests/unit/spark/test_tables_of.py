"""Rows that come in batches of any size are told log by log."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark.common.packing import tables_of


@given(
    st.lists(st.integers(1, 4), max_size=8),
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
)
def test_each_log_is_one_table_however_its_rows_are_cut(logs: list[int], sizes: list[int]) -> None:
    ids = [number for number, rows in enumerate(logs) for _ in range(rows)]
    whole = pa.RecordBatch.from_pydict({"log_id": ids, "row": list(range(len(ids)))})
    batches, at = [], 0
    while at < len(ids):
        size = max(1, sizes[at % len(sizes)])
        batches += [whole.slice(at, size), whole.slice(0, 0)]
        at += size
    tables = list(tables_of(batches))
    assert [table["log_id"].to_pylist() for table in tables] == [
        [number] * rows for number, rows in enumerate(logs)
    ]
    assert [row for table in tables for row in table["row"].to_pylist()] == whole["row"].to_pylist()
