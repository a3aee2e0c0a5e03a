"""What `tideline tiering status` says of a partition, and what it tells to do."""

from __future__ import annotations

from uuid import UUID

import pytest
from rich.console import Console

from tideline.cli.tiering import size, tiering_row, tiering_table
from tideline.control_plane.tiering_model import TieringStatusRow


def status(**more: object) -> TieringStatusRow:
    """A partition where nothing is to be done."""
    return TieringStatusRow(
        **{
            "topic": "orders", "topic_id": UUID(int=1), "partition": 0, "log_id": 1,
            "state": "HYBRID", "boundary": 10, "tiered_high_offset": -1,
            "diskless_start_offset": 10, "high_watermark": 10, "pending_batches": 0,
            "pending_bytes": 0, "pending_split_batches": 0, "pending_split_files": 0,
            "eligible_bytes": 0, "merged_segments": 0, "merged_bytes": 0, "paused": False,
            "requested_at": None, "failures": 0, "parked": False, "parked_reason": None, **more,
        }
    )  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({}, "nothing"),
        ({"pending_batches": 3}, "local.retention.ms"),
        ({"pending_batches": 3, "eligible_bytes": 9}, "split by the next run"),
        ({"pending_split_files": 1}, "enough for a segment"),
        ({"eligible_bytes": 9, "failures": 2, "parked_reason": "CRC"}, "tried again"),
        ({"failures": 5, "parked": True}, "`tideline tiering resume orders`"),
        ({"failures": 5, "parked": True, "paused": True}, "nothing is tiered until then"),
    ],
)
def test_the_next_step_is_the_first_that_applies(found: dict[str, object], says: str) -> None:
    assert says in tiering_row(status(**found)).next_step


def test_offsets_that_do_not_exist_are_null_not_minus_one() -> None:
    row = tiering_row(status())
    assert row.tiered_high_offset is None
    assert row.diskless_start_offset == 10


def test_the_table_shows_what_is_parked_and_why() -> None:
    console = Console(width=300, record=True)
    row = tiering_row(status(failures=5, parked=True, parked_reason="wal/a: the CRC is wrong"))
    console.print(tiering_table([row]))
    shown = console.export_text()
    assert "parked after 5 failures: wal/a: the CRC is wrong" in shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB")]
)
def test_sizes_are_short(count: int, shown: str) -> None:
    assert size(count) == shown
