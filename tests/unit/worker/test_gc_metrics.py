"""Gauges of the collection, from its newest runs."""

from __future__ import annotations

from uuid import UUID

from prometheus_client import CollectorRegistry

from tideline.control_plane.garbage_model import GcRunRow
from tideline.worker.metrics import GcGauges

NAMES = ("held_objects", "last_done_timestamp_seconds", "deleted_objects", "orphans")


def row(number: int, state: str, *, due: int = 0, gone: int = 0, by: str | None = None) -> GcRunRow:
    held, why = ("too much", "fine") if state == "held" else (None, None)
    return GcRunRow(
        number, UUID(int=number), state, 0, number * 1_000, None, None, due, 0, 0, 0, gone,
        held, by, why if by else None, None, 5,
    )  # fmt: skip


def shown(*newest_first: GcRunRow) -> list[float | None]:
    registry = CollectorRegistry()
    GcGauges(registry).update(newest_first)
    return [registry.get_sample_value(f"inkless_gc_{name}") for name in NAMES]


def test_a_held_run_is_shown_until_somebody_allows_it_or_a_newer_one_is_done() -> None:
    done = row(3, "done", gone=4)
    assert shown() == [0, 0, 0, 0]
    assert shown(row(4, "held", due=9), done) == [9, 3, 4, 5]
    assert shown(row(5, "running"), row(4, "held", due=9), done) == [9, 3, 4, 5]
    assert shown(row(4, "held", due=9, by="ann"), done) == [0, 3, 4, 5]
    assert shown(row(5, "done", gone=9), row(4, "held", due=9, by="ann"), done) == [0, 5, 9, 5]
