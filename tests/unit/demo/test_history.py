"""Rewritten history is counted from object listings, never assumed."""

from __future__ import annotations

from datetime import UTC, datetime

from tideline.demo.history import count_rewritten, last_segment_starts
from tideline.object_store.client import ObjectEntry

OLD = datetime(2026, 1, 1, tzinfo=UTC)
NEW = datetime(2026, 1, 2, tzinfo=UTC)


def segment(start: int, size: int = 10, etag: str = "a", when: datetime = OLD) -> ObjectEntry:
    return ObjectEntry(f"orders-id/3/{start:020d}-uuid{start}{when.day}.log", size, when, etag)


def listing(*objects: ObjectEntry) -> dict[str, ObjectEntry]:
    return {stored.key: stored for stored in objects}


def test_untouched_history_and_new_segments_behind_it_count_nothing() -> None:
    before = listing(segment(0), segment(100))
    after = {**before, **listing(segment(200, when=NEW))}
    assert count_rewritten(before, after, last_segment_starts(before.values())).total == 0


def test_an_object_written_again_under_its_key_counts_its_size() -> None:
    before = listing(segment(0))
    key = next(iter(before))
    after = {key: ObjectEntry(key, 10, NEW, "a")}
    assert count_rewritten(before, after, {3: 0}).changed_bytes == 10


def test_history_copied_under_another_key_counts_its_size() -> None:
    before = listing(segment(0), segment(100))
    after = {**before, **listing(segment(0, size=7, when=NEW))}
    assert count_rewritten(before, after, {3: 100}).copied_bytes == 7


def test_an_object_that_vanished_counts_its_size() -> None:
    before = listing(segment(0))
    assert count_rewritten(before, {}, {3: 0}).missing_bytes == 10
