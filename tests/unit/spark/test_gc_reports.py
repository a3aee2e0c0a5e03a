"""Lists of what was deleted, and whether Postgres knows the run that wrote the last one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from spark.gc.history import HistoryUnknown, must_know, newest_reported
from spark.gc.reports import Report
from spark.gc.results import forget_old_results
from tideline.control_plane.garbage_model import GcRunRow
from tideline.object_store.client import ObjectEntry

NOW = datetime(2026, 11, 22, 23, 0, tzinfo=UTC)


@dataclass
class Bucket:
    objects: dict[str, bytes] = field(default_factory=dict)

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self.objects[key] = body

    def list_prefixes(self, bucket: str, prefix: str) -> Iterator[str]:
        below = (k[len(prefix) :] for k in self.objects if k.startswith(prefix))
        yield from sorted({prefix + k.split("/")[0] + "/" for k in below})

    def list_objects(self, bucket: str, prefix: str) -> Iterator[ObjectEntry]:
        for key in sorted(k for k in self.objects if k.startswith(prefix)):
            yield ObjectEntry(key, len(self.objects[key]), NOW)

    def delete(self, bucket: str, keys: Iterable[str]) -> None:
        for key in keys:
            del self.objects[key]


@dataclass
class Postgres:
    """Knows these runs, the newest first."""

    runs: list[tuple[int, UUID]]

    def gc_runs(self, limit: int) -> list[GcRunRow]:
        return [
            GcRunRow(number, run_id, "done", 0, 0, *[None] * 2, *[0] * 5, *[None] * 4, 0)
            for number, run_id in self.runs
        ]


def report(bucket: Bucket, number: int, run_id: UUID | None = None, at: datetime = NOW) -> Report:
    return Report(bucket, "b", number, run_id or uuid4(), at)


def test_a_report_is_lines_of_json_in_parts_of_one_run() -> None:
    bucket = Bucket()
    run_id = uuid4()
    one = report(bucket, 7, run_id)
    one.write([{"held": None}])
    one.write([{"key": "wal/a"}, {"key": "wal/b"}])
    first, second = sorted(bucket.objects)
    assert first == f"gc-reports/2026-11-22/0000000007-{run_id}-00000.jsonl.gz"
    lines = gzip.decompress(bucket.objects[second]).decode().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["wal/a", "wal/b"]


def test_reports_are_kept_for_their_days_and_nothing_else_is_touched() -> None:
    bucket = Bucket({"wal/a": b"", "gc-reports-of-somebody/2020-01-01/x": b""})
    for day in (1, 2, 22):
        report(bucket, day, at=NOW.replace(day=day)).write([])
    assert report(bucket, 30).forget_old(20) == 1
    assert len([k for k in bucket.objects if k.startswith("gc-reports/")]) == 2
    assert {"wal/a", "gc-reports-of-somebody/2020-01-01/x"} <= bucket.objects.keys()


def test_a_bucket_whose_last_run_is_known_may_be_collected() -> None:
    bucket = Bucket()
    must_know(newest_reported(bucket, "b"), Postgres([]))
    ids = [uuid4(), uuid4()]
    for number, run_id in enumerate(ids):
        report(bucket, number, run_id).write([])
    must_know(newest_reported(bucket, "b"), Postgres([(2, uuid4()), (1, ids[1])]))


@pytest.mark.parametrize("newest", [40, 41, 99])
def test_a_run_that_postgres_does_not_know_stops_the_collection(newest: int) -> None:
    """A Postgres that was restored; one that has counted on since; a clone."""
    bucket = Bucket()
    report(bucket, 41).write([])
    with pytest.raises(HistoryUnknown, match=r"run 41 .* does not know it.*tideline gc adopt"):
        must_know(newest_reported(bucket, "b"), Postgres([(newest, uuid4())]))


def test_two_runs_of_one_number_are_of_two_histories() -> None:
    bucket = Bucket()
    ours, theirs = uuid4(), uuid4()
    report(bucket, 41, ours).write([])
    report(bucket, 41, theirs).write([])
    with pytest.raises(HistoryUnknown, match=str(theirs)):
        must_know(newest_reported(bucket, "b"), Postgres([(41, ours)]))


@dataclass
class Aged(Bucket):
    """Objects are as many days old as their content says."""

    def list_objects(self, bucket: str, prefix: str) -> Iterator[ObjectEntry]:
        for entry in super().list_objects(bucket, prefix):
            age = timedelta(days=int(self.objects[entry.key]))
            yield ObjectEntry(entry.key, entry.size, NOW - age)


def test_results_of_runs_go_after_their_days_and_nothing_else_does() -> None:
    kept = f"a/runs/gc/{uuid4()}.json", f"a/runs/gc/{uuid4()}.json"
    old = [f"a/runs/{job}/{uuid4()}.json" for job in ("gc", "merge")]
    others = ["a/runs/notes.txt", "a/runs/gc/mine.json", f"runs/gc/{uuid4()}.json", "a/wal/x"]
    bucket = Aged({kept[0]: b"0", kept[1]: b"29"} | dict.fromkeys([*old, *others], b"31"))
    assert forget_old_results(bucket, "b", "a/", NOW, 30) == 2
    assert bucket.objects.keys() == {*kept, *others}
    assert forget_old_results(bucket, "b", "a/", NOW, 30) == 0
