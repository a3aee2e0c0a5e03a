"""The coverage job against real brokers, objects and Postgres."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from spark.common import metadata_topic
from spark.common.entry import Job, Outcome, carry_out, failure_of
from spark.common.record_tables import tell
from spark.common.rows import to_frame
from spark.common.snapshots import SnapshotStore
from spark.coverage import job as coverage
from spark.coverage.frames import CoveredLog
from spark.coverage.kept import VerdictStore
from spark.coverage.tasks import segments_listed
from tests.harness import Case, command, migration_case
from tests.records_asked import asked, of_the_page
from tests.support.waiting import HANGS_S, flushed
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.control_plane.tiering_model import CoverageStatusRow
from tideline.domain.ids import TopicIdPartition
from tideline.errors import ExitCode
from tideline.object_store.client import ObjectEntry, ObjectStoreClient
from tideline.object_store.inventory import partition_prefix
from tideline.settings import JobsSettings
from tideline.stack import Stack


@dataclass
class Covered:
    """A hybrid topic of one partition whose prefix has several segments."""

    case: Case
    settings: JobsSettings
    spark: SparkSession

    def run(self, dry_run: bool = False, audit: bool = False, **settings: str) -> Outcome:
        """The job as it runs in production, in the session of the tests."""
        return self._run([self.case.topic], dry_run, audit, settings)

    def run_over_all(self, audit: bool = False) -> Outcome:
        """As on its schedule."""
        return self._run([], False, audit, {})

    def _run(
        self, topics: list[str], dry_run: bool, audit: bool, settings: Mapping[str, str]
    ) -> Outcome:
        changed = JobsSettings.of({**self.case.stack.environment("jobs"), **settings})
        job = Job("coverage", changed)
        job.__dict__ |= {"spark": self.spark, "parallelism": 2}
        return carry_out(
            job,
            lambda job: coverage.coverage(job, topics, dry_run, audit),
            whole=False,
            dry=dry_run,
        )

    def not_covered_since(self) -> tuple[datetime | None, int]:
        """As docs/records.md asks for it, and how often a run found it so."""
        tell(self.settings, self.store, print, now=True)
        query = of_the_page(
            "NOT complete", **{"'orders'": f"'{self.case.topic}'", "partition = 3": "partition = 0"}
        )
        (row,) = asked(self.settings, "coverage_verdicts", query)
        return row["since"], row["looked"]

    @property
    def store(self) -> ObjectStoreClient:
        return ObjectStoreClient(self.settings)

    @property
    def prefix(self) -> str:
        log = TopicIdPartition(self.case.topic_id, 0)
        return partition_prefix(self.settings.s3_tiered_prefix, self.case.topic, log)

    def objects(self) -> list[ObjectEntry]:
        return list(self.store.list_objects(self.settings.s3_tiered_bucket, self.prefix))

    def status(self) -> CoverageStatusRow:
        with connect_jobs(self.settings, application_name="test") as plane:
            (row,) = plane.coverage_status(self.case.topic)
        return row

    def tiering_complete(self) -> bool:
        return bool(self.case.rows("tiering_complete")[0][0])


@pytest.fixture(scope="module")
def covered(stack: Stack, spark: SparkSession) -> Iterator[Covered]:
    with migration_case(stack, name="coverage", history=0) as case:
        producer = Producer({"bootstrap.servers": case.bootstrap, "compression.type": "none"})
        for number in range(80):
            producer.produce(case.topic, bytes([number]) * 50_000, partition=0)
            producer.poll(0)
        flushed(producer, 60)
        case.trigger()
        case.until_ready()
        yield Covered(case, JobsSettings.of(stack.environment("jobs")), spark)


def middle(covered: Covered) -> tuple[ObjectEntry, int, int]:
    """The .log object of a segment inside the prefix, and the offsets [start, end) it holds."""
    logs = [entry for entry in covered.objects() if entry.key.endswith(".log")]
    starts = [segment.start_offset for segment in segments_listed(0, logs)]
    assert len(logs) >= 3, "the prefix must have several segments"
    return logs[1], starts[1], starts[2]


def test_a_whole_prefix_is_covered_and_reported(covered: Covered) -> None:
    stray = f"{covered.prefix}{0:020d}-{'A' * 22}.log"
    covered.store.put(covered.settings.s3_tiered_bucket, stray, b"of a copy that nobody finished")
    outcome = covered.run()
    covered.store.delete(covered.settings.s3_tiered_bucket, [stray])
    details: dict[str, Any] = dict(outcome.details)
    assert (details["covered"], details["not_covered"], details["unobserved"]) == (1, 0, 0)
    assert details["recorded"] == 1
    assert covered.status().complete is True
    assert covered.tiering_complete()
    folder = details["report"].removeprefix(f"s3://{covered.settings.s3_bucket}/")
    report = pq.read_table(
        io.BytesIO(
            covered.store.get(covered.settings.s3_bucket, f"{folder}partitions-0000.parquet")
        )
    ).to_pylist()
    assert [(row["topic"], row["complete"]) for row in report] == [(covered.case.topic, True)]
    assert report[0]["segments"] >= 3
    summary = covered.store.get(covered.settings.s3_bucket, f"{folder}summary.md").decode()
    assert "1 covered, 0 not covered" in summary
    assert "The objects of 1 partitions were listed." in summary


def test_the_next_run_goes_on_from_the_kept_fold_and_lists_nothing_that_has_not_changed(
    covered: Covered,
) -> None:
    covered.run(audit=True)
    first = covered.status()
    topic = metadata_topic.identity(covered.settings)
    snapshots = SnapshotStore(
        covered.store, covered.settings.s3_bucket, covered.settings.diskless_prefix, topic
    )
    kept = snapshots.keys()
    with_records = [e for e in metadata_topic.extents(covered.settings) if e.end > e.start]
    assert kept.keys() == {one.partition for one in with_records}
    found = dict(covered.run().details)
    assert (found["covered"], found["objects_listed"]) == (1, 0)
    assert snapshots.keys() == kept, "so few records are read again"
    second = covered.status()
    assert second.objects_seen_at == first.objects_seen_at
    assert (first.observed_at or 0) < (second.observed_at or 0)
    assert dict(covered.run(audit=True).details)["objects_listed"] == 1
    place = with_records[0].partition
    for key in kept[place]:
        covered.store.put(covered.settings.s3_bucket, key, b"torn")
    assert dict(covered.run().details)["covered"] == 1
    assert snapshots.keys()[place][0] not in kept[place], "what is torn is not gone on from"


def test_what_has_not_changed_since_the_last_run_over_everything_is_not_judged_again(
    covered: Covered, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[int] = []

    def noted(spark: SparkSession, row: type, rows: Sequence[CoveredLog], tasks: int) -> DataFrame:
        judged.extend(one.log_id for one in rows)
        return to_frame(spark, row, rows, tasks)

    monkeypatch.setattr(coverage, "to_frame", noted)
    log_id = covered.status().log_id

    def is_judged(run: Callable[[], Outcome] = covered.run_over_all) -> bool:
        judged.clear()
        run()
        assert covered.status().complete
        return log_id in judged

    assert is_judged(lambda: covered.run_over_all(audit=True))
    first = covered.status()
    assert not is_judged()
    second = covered.status()
    assert (first.observed_at or 0) < (second.observed_at or 0)
    assert replace(second, observed_at=first.observed_at, run_id=first.run_id) == first
    assert not is_judged(covered.run), "nor by a run over its topic"
    assert is_judged(lambda: covered.run(audit=True)), "which keeps nothing"
    assert is_judged(), "its objects were seen since"
    assert not is_judged()
    of = metadata_topic.identity(covered.settings)
    kept = VerdictStore(
        covered.store, covered.settings.s3_bucket, covered.settings.diskless_prefix, of.cluster_id
    )
    covered.store.put(covered.settings.s3_bucket, kept.key, b"torn")
    assert is_judged()
    assert not is_judged()
    case = covered.case
    (deleted,) = case.admin.delete_records([TopicPartition(case.topic, 0, 1)]).values()
    assert deleted.result(HANGS_S).low_watermark == 1
    assert is_judged(), "its log start has moved"


def test_a_lost_object_clears_readiness_with_its_offsets_and_its_return_sets_it(
    covered: Covered,
) -> None:
    bucket = covered.settings.s3_tiered_bucket
    lost, start, end = middle(covered)
    kept = covered.store.get(bucket, lost.key)
    covered.store.delete(bucket, [lost.key])
    try:
        found = dict(covered.run().details)
        assert (found["cleared"], found["objects_listed"]) == (0, 0), "not before an audit"
        assert dict(covered.run(audit=True).details)["cleared"] == 1
        assert not covered.tiering_complete()
        verdict = covered.status()
        assert verdict.complete is False
        assert verdict.detail["gaps"] == [{"start": start, "end": end, "cause": "bad_objects"}]
        assert "restore the objects" in verdict.detail["remedies"][0]
        shown = command(covered.case.stack, "coverage", covered.case.topic, wait=True).answer()
        assert f"[{start}, {end})" in shown
        assert "remedy: restore the objects" in shown
        since, looked = covered.not_covered_since()
        assert since is not None
        assert (round(since.timestamp() * 1000), looked) == (verdict.since, 1)
    finally:
        covered.store.put(bucket, lost.key, kept)
    assert covered.run(dry_run=True).details["newly_complete"] == 1
    assert not covered.tiering_complete(), "a dry run changes nothing"
    assert covered.run().details["newly_complete"] == 1
    assert covered.tiering_complete()
    assert covered.status().complete is True
    assert covered.not_covered_since() == (None, 0)
    runs = asked(
        covered.settings, "job_runs",
        "SELECT outcome, count(*) AS runs FROM job_runs WHERE job = 'coverage' GROUP BY outcome",
    )  # fmt: skip
    assert [(row["outcome"], row["runs"] >= 3) for row in runs] == [("ok", True)]


@pytest.mark.parametrize(
    ("setting", "value", "store"),
    [
        ("TIDELINE_S3_ENDPOINT", "http://127.0.0.1:9", "S3"),
        ("TIDELINE_KAFKA_BOOTSTRAP", "127.0.0.1:9", "Kafka"),
    ],
)
def test_a_store_that_is_away_fails_the_run_and_decides_nothing(
    covered: Covered, setting: str, value: str, store: str
) -> None:
    before = covered.status()
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9") as raised:
        covered.run(**{setting: value})
    failure = failure_of(raised.value)
    assert failure is not None
    assert (failure.store, failure.exit_code) == (store, ExitCode.UNREACHABLE)
    assert failure.message.startswith(f"{store} is away: ")
    assert covered.status() == before
