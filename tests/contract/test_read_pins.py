"""What somebody reads is not collected while the pin holds, and for a day at most."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.contract.tiering import Tiered
from tideline.control_plane.errors import InvalidInput
from tideline.control_plane.table_model import SuffixPlace
from tideline.domain.ids import TopicIdPartition

HOUR_MS = 3_600_000


async def merged(tiered: Tiered) -> TopicIdPartition:
    log = await tiered.diskless(files=2, batches=2)
    tiered.worker.split(log.topic_id)
    while tiered.worker.merge(log, max_batches=2):
        pass
    return log


def age(tiered: Tiered, table: str, *columns: str) -> None:
    for column in columns:
        tiered.scene.sql(f"UPDATE {table} SET {column} = {column} - interval '2 hours'")


def all_due(tiered: Tiered) -> set[str]:
    """What a run would count, what it would delete, and what a dry run shows as due."""
    files = tiered.plane.claim_dead_files(HOUR_MS)
    objects = [d.object_key for d in tiered.plane.claim_dead_objects(HOUR_MS)]
    counted = sum(a.objects for a in tiered.plane.measure_garbage(1, HOUR_MS, HOUR_MS))
    shown = [r for r in tiered.plane.preview_garbage(HOUR_MS, 100) if r.due]
    assert counted == len(shown) == len(files) + len(objects)
    return {*files, *objects}


async def test_what_dies_while_somebody_reads_waits_for_the_reader(tiered: Tiered) -> None:
    pin = uuid4()
    tiered.plane.pin_reads(pin, "a query", HOUR_MS)
    await merged(tiered)
    tiered.plane.claim_dead_files(HOUR_MS)
    age(tiered, "wal_files", "unreferenced_at")
    age(tiered, "marked_objects", "marked_at")
    age(tiered, "read_pins", "pinned_at")
    (held,) = tiered.plane.read_pins()
    assert (held.pin_id, held.reader) == (pin, "a query")
    assert all_due(tiered) == set()
    tiered.plane.unpin_reads(pin)
    tiered.plane.unpin_reads(pin)
    assert tiered.plane.read_pins() == []
    assert len(all_due(tiered)) == 2


async def test_what_was_dead_before_a_reader_began_goes(tiered: Tiered) -> None:
    await merged(tiered)
    tiered.plane.claim_dead_files(HOUR_MS)
    age(tiered, "wal_files", "unreferenced_at")
    age(tiered, "marked_objects", "marked_at")
    tiered.plane.pin_reads(uuid4(), "a query", HOUR_MS)
    assert len(all_due(tiered)) == 2


async def test_a_pin_that_nobody_renews_is_over_and_none_lasts_longer_than_a_day(
    tiered: Tiered,
) -> None:
    pin = uuid4()
    tiered.plane.pin_reads(pin, "killed", HOUR_MS)
    tiered.scene.sql("UPDATE read_pins SET expires_at = clock_timestamp()")
    assert tiered.plane.read_pins() == []
    tiered.plane.pin_reads(pin, "killed", HOUR_MS)
    tiered.plane.pin_reads(pin, "killed", 60_000)
    (held,) = tiered.plane.read_pins()
    assert held.expires_ms - held.pinned_ms >= HOUR_MS, "renewing never shortens it"
    tiered.scene.sql("UPDATE read_pins SET pinned_at = pinned_at - interval '23 hours 30 minutes'")
    tiered.plane.pin_reads(pin, "killed", 24 * HOUR_MS)
    (held,) = tiered.plane.read_pins()
    assert held.expires_ms - held.pinned_ms == 24 * HOUR_MS
    with pytest.raises(InvalidInput, match="pins nothing"):
        tiered.plane.pin_reads(pin, "killed", 0)


async def test_a_suffix_is_told_in_one_snapshot_by_place_and_offset(tiered: Tiered) -> None:
    log = await tiered.diskless(files=4, batches=2)
    (row,) = [r for r in tiered.plane.partitions(*tiered.plane.log_id_range()) if r.log == log]
    lo, hi = tiered.plane.topic_log_ids(row.topic)
    assert lo <= row.log_id < hi
    assert tiered.plane.topic_log_ids("no-such-topic") == (0, 0)

    def told(start: int, end: int, chunk: int) -> list[tuple[SuffixPlace, int, int]]:
        found = tiered.plane.table_suffix(row.log_id, start, end, chunk)
        return [(r.place, r.base_offset, r.last_offset) for r in found]

    end = row.high_watermark
    whole = (SuffixPlace.LOG, row.boundary, end - 1)
    assert sorted(told(row.boundary, end, 1 << 30)) == sorted(
        [whole, (SuffixPlace.WAL, row.boundary, end - 1)]
    )
    single = [one for one in told(row.boundary, end, 1) if one[0] is SuffixPlace.WAL]
    assert len(single) == 8
    assert [one[1] for one in single[1:]] == [one[2] + 1 for one in single[:-1]]
    tiered.worker.split(log.topic_id)
    assert tiered.worker.merge(log, max_batches=3)
    after = told(row.boundary, end, 1 << 30)
    (segment,) = [one for one in after if one[0] is SuffixPlace.MERGED]
    (wal,) = [one for one in after if one[0] is SuffixPlace.WAL]
    assert segment[1] == row.boundary
    assert wal == (SuffixPlace.WAL, segment[2] + 1, end - 1)
    assert [one[0] for one in told(wal[1], end, 1 << 30) if one[0] is not SuffixPlace.LOG] == [
        SuffixPlace.WAL
    ]
