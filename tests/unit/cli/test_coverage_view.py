"""What ``tideline coverage`` tells of the last verdicts."""

from __future__ import annotations

import io
from typing import Any
from uuid import UUID

from rich.console import Console

from tideline.cli.coverage import advice, as_json, coverage_table
from tideline.control_plane.tiering_model import CoverageStatusRow


def row(partition: int, complete: bool | None, **values: Any) -> CoverageStatusRow:
    return CoverageStatusRow(
        topic="orders", topic_id=UUID(int=1), partition=partition, log_id=1, state="HYBRID",
        generation=1, boundary=30, tiering_complete=bool(complete), complete=complete,
        **{"reason": None, **values},
    )  # fmt: skip


def test_a_partition_that_is_not_covered_says_which_offsets_and_what_to_do() -> None:
    lines = advice(
        [row(0, True), row(1, False, reason="offsets [0, 10): lost",
                           detail={"remedies": ["restore them"]})]
    )  # fmt: skip
    assert lines == ["orders-1: offsets [0, 10): lost", "  remedy: restore them"]


def test_a_merged_segment_that_cannot_be_read_is_told_of_a_covered_partition_too() -> None:
    (line,) = advice([row(0, True, detail={"merged_gaps": [{"start": 40, "end": 50}]})])
    assert line.startswith("orders-0: merged segments of [40, 50) cannot be read")


def test_every_partition_has_its_line() -> None:
    screen = Console(width=200, record=True, file=io.StringIO())
    screen.print(coverage_table([row(0, True, since=0, observed_at=1), row(1, None)]))
    text = screen.export_text()
    assert "orders-0" in text
    assert "covered" in text
    assert "no run has looked yet" in text


def test_times_are_text_for_programs() -> None:
    written = as_json(row(0, True, since=0, observed_at=None))
    assert written["since"].isoformat() == "1970-01-01T00:00:00+00:00"
    assert written["observed_at"] is None
