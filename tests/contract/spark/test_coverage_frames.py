"""Verdicts on generated metadata whose truth is known: one Spark run for all situations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from spark.common.entry import failure_of
from spark.common.metadata_records import MALFORMED, UNKNOWN, MetadataRecord
from spark.common.packing import Objects, kind_bits
from spark.common.rows import from_frame, to_frame
from spark.coverage.frames import CoveredLog, merged_digests, verdicts
from spark.coverage.judge import CoverageVerdict, Gap
from spark.coverage.report import detail, reason, remedies
from spark.coverage.tasks import Bucket, ListedSegment, objects_of
from tideline.domain.coverage import AIVEN_KINDS, OWN_KINDS
from tideline.domain.remote_log import SegmentState

STARTED, FINISHED, DELETING, DELETED = map(int, SegmentState)
LONG_AGO, NOW = 1_000, 10_000_000
TOPIC = UUID(int=7)
MERGED = """log_id bigint, segment_id binary, base_offset bigint, last_offset bigint,
size_bytes bigint, state string"""


@dataclass
class World:
    """Partitions of one topic, with what would be observed of them."""

    logs: list[CoveredLog] = field(default_factory=list)
    events: list[MetadataRecord] = field(default_factory=list)
    objects: list[ListedSegment] = field(default_factory=list)
    merged: list[tuple[Any, ...]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    _ids: int = 0

    def log(self, name: str, boundary: int, *, start: int = 0, merged_to: int | None = None,
            lineage: tuple[tuple[int, int], ...] = ((0, 0),)) -> int:  # fmt: skip
        number = len(self.logs) + 1
        self.names[number] = name
        self.logs.append(
            CoveredLog(
                number, TOPIC, number, start, boundary, boundary, merged_to or boundary,
                tuple(e for e, _ in lineage), tuple(s for _, s in lineage),
            )
        )  # fmt: skip
        return number

    def record(self, log: int, **columns: Any) -> None:
        named = {"topic_id": TOPIC, "partition": log, "event_timestamp": 1} | columns
        self.events.append(MetadataRecord(log % 3, len(self.events), **named))

    def update(self, log: int, segment: UUID, state: int) -> None:
        self.record(log, kind=1, segment_id=segment, state=state)

    def segment(self, log: int, first: int, last: int, *, state: int = FINISHED, epoch: int = 0,
                size: int = 100, listed: int | None = 100,
                kinds: frozenset[str] = OWN_KINDS) -> UUID:  # fmt: skip
        """A copy and, unless ``listed`` is None, its objects."""
        self._ids += 1
        segment = UUID(int=self._ids << 70 | self._ids)
        self.record(
            log, kind=0, segment_id=segment, start_offset=first, end_offset=last,
            size_bytes=size, state=STARTED, txn_index_empty=True,
            epochs=(epoch,), epoch_starts=(first,),
        )  # fmt: skip
        for reached in range(1, state + 1):
            self.update(log, segment, reached)
        if listed is not None:
            self.objects.append(
                ListedSegment(log, segment, first, listed, kind_bits(kinds), LONG_AGO)
            )
        return segment

    def verdicts(
        self, spark: SparkSession, bucket: Bucket | None = None
    ) -> dict[str, CoverageVerdict]:
        found = verdicts(
            to_frame(spark, CoveredLog, self.logs, 2),
            to_frame(spark, MetadataRecord, self.events, 2),
            spark.createDataFrame(self.merged, MERGED),
            bucket or to_frame(spark, ListedSegment, self.objects, 2),
            NOW,
        )
        return {self.names[one.log_id]: one for one in from_frame(CoverageVerdict, found)}


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[str, CoverageVerdict]:
    w = World()
    whole = w.log("whole", 30)
    for first in (0, 10, 20):
        w.segment(whole, first, first + 9)
    start = w.log("gap at the start", 30)
    w.segment(start, 10, 29)
    middle = w.log("gap in the middle", 30)
    w.segment(middle, 0, 9)
    w.segment(middle, 20, 29)
    w.log("nothing was ever copied", 30)
    overlap = w.log("overlaps with a deposed leader", 30, lineage=((0, 0), (2, 10)))
    w.segment(overlap, 0, 14)
    w.segment(overlap, 5, 14)
    w.segment(overlap, 10, 29, epoch=1)
    w.segment(overlap, 10, 29, epoch=2)
    started = w.log("started only", 20)
    w.segment(started, 0, 9)
    w.segment(started, 10, 19, state=STARTED)
    deleting = w.log("being deleted", 20)
    w.segment(deleting, 0, 9, state=DELETING)
    w.segment(deleting, 10, 19)
    deleted = w.log("deleted", 20)
    w.segment(deleted, 0, 9, state=DELETED, listed=None)
    w.segment(deleted, 10, 19)
    missing = w.log("missing object", 20)
    w.segment(missing, 0, 9, listed=None)
    w.segment(missing, 10, 19)
    index = w.log("missing index", 10)
    w.segment(index, 0, 9, kinds=OWN_KINDS - {"index"})
    short = w.log("truncated object", 10)
    w.segment(short, 0, 9, listed=99)
    grown = w.log("B0 was reset upwards, and the log start moved", 40, start=10)
    w.segment(grown, 0, 29, kinds=AIVEN_KINDS)
    gone = w.log("the prefix is gone", 10, start=10)
    w.segment(gone, 0, 9, listed=None)
    w.log("born diskless", 0, lineage=())
    again = w.log("illegal history", 10)
    w.update(again, w.segment(again, 0, 9), STARTED)
    orphan = w.log("orphan", 10)
    w.segment(orphan, 0, 9)
    w.objects.append(ListedSegment(orphan, UUID(int=1 << 100), 3, 50, 0, LONG_AGO))
    w.objects.append(ListedSegment(orphan, UUID(int=2 << 100), 4, 50, 0, NOW))
    merged = w.log("merged segments", 10, merged_to=40)
    w.segment(merged, 0, 9)
    for number, (first, state, listed) in enumerate(
        ((10, "COPY_SEGMENT_FINISHED", 70), (20, "COPY_SEGMENT_FINISHED", 69),
         (30, "COPY_SEGMENT_FINISHED", None), (40, "COPY_SEGMENT_STARTED", None))
    ):  # fmt: skip
        segment = UUID(int=number + (9 << 90))
        w.merged.append((merged, segment.bytes, first, first + 9, 70, state))
        if listed is not None:
            w.objects.append(
                ListedSegment(merged, segment, first, listed, kind_bits(OWN_KINDS), LONG_AGO)
            )
    w.record(99, kind=0, segment_id=UUID(int=5), start_offset=0, end_offset=9, size_bytes=1,
             state=FINISHED, txn_index_empty=True, epochs=(0,), epoch_starts=(0,))  # fmt: skip
    return w.verdicts(spark)


COVERED = ["whole", "overlaps with a deposed leader", "the prefix is gone", "born diskless",
           "illegal history", "orphan", "merged segments"]  # fmt: skip
GAPS = {
    "gap at the start": (0, 10, "starts_late"),
    "gap in the middle": (10, 20, "absent"),
    "nothing was ever copied": (0, 30, "absent"),
    "started only": (10, 20, "copying"),
    "being deleted": (0, 10, "being_deleted"),
    "deleted": (0, 10, "starts_late"),
    "missing object": (0, 10, "bad_objects"),
    "missing index": (0, 10, "bad_objects"),
    "truncated object": (0, 10, "bad_objects"),
    "B0 was reset upwards, and the log start moved": (30, 40, "absent"),
}


def test_every_partition_has_one_verdict(found: dict[str, CoverageVerdict]) -> None:
    assert sorted(found) == sorted([*COVERED, *GAPS])


@pytest.mark.parametrize("name", COVERED)
def test_is_covered(found: dict[str, CoverageVerdict], name: str) -> None:
    assert found[name].complete
    assert found[name].gaps == ()
    assert remedies(found[name]) == []


@pytest.mark.parametrize("name", GAPS)
def test_is_not_covered_and_says_which_offsets_and_why(
    found: dict[str, CoverageVerdict], name: str
) -> None:
    start, end, cause = GAPS[name]
    verdict = found[name]
    assert not verdict.complete
    assert verdict.gaps == (Gap(start, end, cause),)
    assert verdict.covered_to == start
    assert verdict.missing_offsets == end - start
    assert f"[{start}, {end})" in reason(verdict)
    assert detail(verdict)["remedies"] == remedies(verdict) != []


def test_overlaps_are_counted_and_a_deposed_leaders_segment_is_named(
    found: dict[str, CoverageVerdict],
) -> None:
    verdict = found["overlaps with a deposed leader"]
    assert verdict.overlapping == 1
    assert verdict.foreign_count == 1
    assert verdict.foreign[0].startswith(f"{10:020d}-")


def test_bad_objects_are_named_with_what_is_wrong(found: dict[str, CoverageVerdict]) -> None:
    assert found["truncated object"].broken[0].problem == (
        "its log object has 99 bytes instead of 100 (compressed or encrypted?)"
    )
    assert found["missing index"].broken[0].problem == ("its index object is not in the bucket")
    assert "log object is not" in found["missing object"].broken[0].problem


def test_only_old_objects_that_nobody_knows_are_orphans(found: dict[str, CoverageVerdict]) -> None:
    assert found["orphan"].orphan_count == 1
    assert found["orphan"].orphans[0].startswith(f"{3:020d}-")
    assert all(v.orphan_count == 0 for n, v in found.items() if n != "orphan")


def test_a_bad_merged_segment_is_reported_and_does_not_decide(
    found: dict[str, CoverageVerdict],
) -> None:
    verdict = found["merged segments"]
    assert verdict.merged_segments == 3
    assert verdict.merged_broken_count == 2
    assert [(g.start, g.end) for g in verdict.merged_gaps] == [(20, 40)]


def test_a_state_that_goes_back_is_an_anomaly_and_takes_nothing_away(
    found: dict[str, CoverageVerdict],
) -> None:
    assert found["illegal history"].anomalies == 1


@pytest.mark.parametrize("kind", [MALFORMED, UNKNOWN])
def test_a_record_that_is_not_understood_stops_the_judgement(
    spark: SparkSession, kind: int
) -> None:
    w = World()
    w.segment(w.log("whole", 10), 0, 9)
    w.record(5, kind=kind, topic_id=None, partition=None)
    with pytest.raises(Exception, match="MetadataNotUnderstood") as raised:
        w.verdicts(spark)
    failure = failure_of(raised.value)
    assert failure is not None
    assert "in partition 2 at offset 2: nothing is judged" in failure.message


def test_digests_are_made_of_the_merged_segments_of_those_logs_that_are_asked_for(
    spark: SparkSession,
) -> None:
    rows = [
        (log, UUID(int=log << 80 | first).bytes, first, first + 9, 70, "COPY_SEGMENT_FINISHED")
        for log in (5, 6, 8)
        for first in (0, 10)
    ]
    found = merged_digests(spark.createDataFrame(rows, MERGED), [5, 7, 8])
    assert found.keys() == {5, 8}, "7 has none"
    assert found[5] != found[8]


@dataclass(frozen=True, slots=True)
class Noted(Bucket):
    """Lists what a world has, and notes in a file whose objects it listed."""

    notes: Path
    objects: tuple[ListedSegment, ...]

    def listed(self, log_id: int, prefix: str) -> Objects:
        with self.notes.open("a") as file:
            file.write(f"{prefix}\n")
        return objects_of([one for one in self.objects if one.log_id == log_id])


def test_objects_are_listed_again_only_where_something_is_not_as_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    w = World()
    names = ["whole", "changed", "merged since", "an impossible record", "broken", "an orphan"]
    ids = [w.log(name, 20) for name in names]
    for log in ids:
        w.segment(log, 0, 9)
        w.segment(log, 10, 19)
    broken = w.objects.pop(9)
    assert broken.log_id == ids[4]
    w.objects.append(ListedSegment(ids[5], UUID(int=1 << 100), 3, 50, 0, LONG_AGO))
    w.logs = [replace(log, prefix=f"p{log.log_id}") for log in w.logs]
    notes = tmp_path / "listed"

    def look() -> dict[str, CoverageVerdict]:
        notes.write_text("")
        bucket = Noted(None, "", "", notes, tuple(w.objects))  # type: ignore[arg-type]
        return w.verdicts(spark, bucket)

    first = look()
    assert sorted(notes.read_text().split()) == [f"p{log}" for log in ids], "nobody had looked"
    assert [name for name in names if first[name].objects_digest is None] == names[4:]
    assert {verdict.objects_seen_at for verdict in first.values()} == {NOW}
    w.logs = [
        replace(log, seen_at=5, seen_digest=bytes.fromhex(digest))
        if (digest := first[w.names[log.log_id]].objects_digest) is not None
        else log
        for log in w.logs
    ]
    w.segment(ids[1], 20, 29, state=STARTED, listed=None)
    w.merged.append((ids[2], UUID(int=9 << 90).bytes, 20, 29, 70, "COPY_SEGMENT_FINISHED"))
    w.update(ids[3], UUID(int=12345), FINISHED)
    second = look()
    assert sorted(notes.read_text().split()) == [f"p{log}" for log in ids[1:]]
    assert second["whole"] == replace(first["whole"], objects_seen_at=5)
    assert [name for name in names if not second[name].complete] == ["broken"]
    moved = [replace(log, prefix=f"another/{log.prefix}") for log in w.logs[:1]]
    for logs, name, server in (
        (moved, "", ""),
        (w.logs[:1], "another bucket", ""),
        (w.logs[:1], "", "https://another.store"),
    ):
        notes.write_text("")
        bucket = Noted(None, name, server, notes, tuple(w.objects))  # type: ignore[arg-type]
        again = replace(w, logs=logs).verdicts(spark, bucket)["whole"]
        assert again.complete
        assert again.objects_digest != first["whole"].objects_digest
        assert notes.read_text().split() == [log.prefix for log in logs], "nobody looked there"
    w.objects.clear()
    third = look()
    assert third["whole"].complete, "it is not looked at before an audit is due"
    assert not third["changed"].complete
