"""A hybrid topic as a table is what stock consumers are handed of it, row by row."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka import KafkaError as LibrdkafkaError
from pyspark.errors import PySparkException, StreamingQueryException

from spark.common.entry import failure_of
from spark.table.source import register
from spark.verify.job import verify
from tests.aged_topic import run, settings_of
from tests.harness import Case, migration_case
from tests.support.waiting import HANGS_S, flushed, until
from tests.tiering_now import tier
from tests.tiering_topic import CODECS
from tideline.cli.status import verified
from tideline.control_plane.cataloged_jobs import connect_jobs
from tideline.domain.table import TableRefused, TableUnreadable
from tideline.object_store.client import ObjectStoreClient
from tideline.stack import Stack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Row = tuple[Any, ...]
BEGUN_MS = int(time.time() * 1_000) - 3_600_000
"""Not so long ago that retention would take the records."""
STEP_MS = 100


def write(
    case: Case, first: int, records: int, *, transaction: str = "", value_bytes: int = 90
) -> None:
    """By a producer per codec, or in one transaction that is committed or aborted."""
    dice = random.Random(first)
    producers = [
        Producer({"bootstrap.servers": case.bootstrap, "compression.type": codec, "linger.ms": 5,
                  **({"transactional.id": f"{case.topic}-{codec}"} if transaction else {})})
        for codec in (CODECS[first % 5 : first % 5 + 1] if transaction else CODECS)
    ]  # fmt: skip
    for number, producer in enumerate(producers):
        if transaction:
            producer.init_transactions(HANGS_S)
            producer.begin_transaction()
        for n in range(first, first + records):
            producer.produce(
                case.topic,
                value=[b"%d " % n + dice.randbytes(value_bytes), b"", None][
                    n % 29 // 27 + n % 31 // 30
                ],
                key=[None, b"", b"%d" % n][n % 3],
                partition=n % case.partitions,
                headers=[("a", b"%d" % n), ("a", None), ("ü", b"")]
                if n % 4 == number % 4
                else None,
                timestamp=BEGUN_MS + n * STEP_MS,
            )
            if n % 40 == 0:
                flushed(producer, 60)
        if transaction == "commit":
            producer.commit_transaction(HANGS_S)
        elif transaction:
            flushed(producer, 60)
            producer.abort_transaction(HANGS_S)
        flushed(producer, 60)


def served(case: Case, isolation: str) -> dict[int, list[Row]]:
    """All of the topic, by a stock consumer through the gateways."""
    consumer = Consumer({
        "bootstrap.servers": case.bootstrap, "group.id": "table", "auto.offset.reset": "error",
        "isolation.level": isolation, "enable.partition.eof": True, "enable.auto.commit": False,
    })  # fmt: skip
    consumer.assign([TopicPartition(case.topic, p, 0) for p in range(case.partitions)])
    found: dict[int, list[Row]] = {p: [] for p in range(case.partitions)}
    ended = set[int]()

    def all_read() -> bool:
        for message in consumer.consume(1_000, 0.2):
            error = message.error()
            if error is None:
                found[message.partition()].append(row_of(message))  # type: ignore[index]
            elif error.code() == LibrdkafkaError._PARTITION_EOF:
                ended.add(message.partition())  # type: ignore[arg-type]
            else:
                raise KafkaException(error)
        return len(ended) == case.partitions

    try:
        until(f"{case.topic} to be read to its end", all_read)
    finally:
        consumer.close()
    return found


def row_of(message: Message) -> Row:
    kind, at = message.timestamp()
    headers = message.headers()
    return (
        message.offset(), at, kind - 1, message.key(), message.value(),
        list(headers) if headers else None, message.leader_epoch(),
    )  # fmt: skip


def table(spark: SparkSession, case: Case, **options: object) -> DataFrame:
    reader = spark.read.format("tideline").option("topic", case.topic)
    return reader.options(**{k: str(v) for k, v in options.items()}).load()


def rows(frame: DataFrame, case: Case) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {p: [] for p in range(case.partitions)}
    columns = frame.selectExpr("*", "unix_millis(timestamp) AS ms").toArrow().to_pylist()
    for row in sorted(columns, key=lambda one: one["offset"]):
        assert row["topic"] == case.topic
        headers = row["headers"] and [(h["key"], h["value"]) for h in row["headers"]]
        found[row["partition"]].append(
            (row["offset"], row["ms"], row["timestampType"], row["key"], row["value"], headers,
             row["leaderEpoch"])
        )  # fmt: skip
    return found


@dataclass
class Hybrid:
    """A topic with a prefix of all codecs and transactions, merged segments, and WAL objects."""

    case: Case
    spark: SparkSession
    stack: Stack
    refused: str

    def same_as_served(self) -> int:
        """How many records there are."""
        counts = []
        for isolation in ("read_committed", "read_uncommitted"):
            wanted = served(self.case, isolation)
            found = rows(table(self.spark, self.case, isolation=isolation), self.case)
            for partition, expected in wanted.items():
                assert found[partition] == expected, f"{isolation}, partition {partition}"
            counts.append(sum(map(len, wanted.values())))
        committed, everything = counts
        assert 0 < committed < everything
        return everything


@pytest.fixture(scope="module")
def hybrid(stack: Stack, spark: SparkSession) -> Iterator[Hybrid]:
    register(spark, settings_of(stack))
    with migration_case(stack, history=0, name="table", partitions=2) as case:
        write(case, 0, 120)
        write(case, 1_000, 60, transaction="abort", value_bytes=40_000)
        write(case, 2_000, 40, transaction="commit")
        write(case, 3_001, 40, transaction="abort")
        write(case, 4_000, 40)
        with pytest.raises(PySparkException) as told:
            table(spark, case).count()
        failure = failure_of(told.value)
        assert failure is not None
        case.trigger()
        case.until_ready(180)
        write(case, 5_000, 60)
        yield Hybrid(case, spark, stack, failure.message)
    # Reads of these tests are over: what dies from now on need not be kept for them.
    with connect_jobs(settings_of(stack), application_name="test") as plane:
        for pin in plane.read_pins():
            plane.unpin_reads(pin.pin_id)


def test_a_table_is_what_consumers_are_handed_before_and_after_merge(hybrid: Hybrid) -> None:
    assert f"topic '{hybrid.case.topic}' is not known" in hybrid.refused
    assert hybrid.same_as_served() > 900
    assert tier(hybrid.stack, hybrid.case.topic) > 1
    write(hybrid.case, 6_000, 40)
    assert hybrid.same_as_served() > 1_100


def test_offsets_times_and_partitions_are_chosen_by_options_and_by_filters(hybrid: Hybrid) -> None:
    case, spark = hybrid.case, hybrid.spark
    whole = rows(table(spark, case), case)
    b0, second = case.boundaries()
    exact = table(
        spark, case,
        startingOffsets=f'{{"{case.topic}": {{"0": {b0 - 3}, "1": -1}}}}',
        endingOffsets=f'{{"{case.topic}": {{"0": {b0 + 2}, "1": -1}}}}',
    )  # fmt: skip
    across = [row for row in whole[0] if b0 - 3 <= row[0] < b0 + 2]
    assert rows(exact, case) == {0: across, 1: []}
    filtered = table(spark, case).where(f"partition = 1 AND offset >= {second - 5}")
    assert rows(filtered, case) == {0: [], 1: [r for r in whole[1] if r[0] >= second - 5]}
    since = BEGUN_MS + 5_000 * STEP_MS
    young = table(spark, case).where(f"timestamp >= timestamp_millis({since})")
    assert rows(young, case) == {
        p: [r for r in found if r[1] >= since] for p, found in whole.items()
    }
    by_time = rows(table(spark, case, startingTimestamp=since), case)
    for partition, found in whole.items():
        first = next(n for n, row in enumerate(found) if row[1] >= since)
        assert by_time[partition] == found[first:]
    with pytest.raises(PySparkException) as told:
        table(spark, case, startingOffsets=f'{{"{case.topic}": {{"0": 999999, "1": 0}}}}').count()
    assert "offset 999999" in str(told.value)
    assert failure_of(told.value).exit_code == TableRefused.exit_code  # type: ignore[union-attr]


def test_a_stream_reads_each_record_once_and_goes_on_where_it_was(
    hybrid: Hybrid, tmp_path: Path
) -> None:
    case, spark = hybrid.case, hybrid.spark

    def start(target: str) -> StreamingQuery:
        return (
            spark.readStream.format("tideline")
            .option("topic", case.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "900")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / target))
            .trigger(availableNow=True)
            .start()
        )

    def follow(target: str) -> int:
        """Spark gives a source's Python ten seconds to start, however busy the machine is
        (``PythonWorkerFactory.createSimpleWorker``), and the query ends: it is started again."""
        for left in reversed(range(5)):
            query = start(target)
            try:
                until("the stream to end", partial(query.awaitTermination, 1), 120)
            except StreamingQueryException as error:
                if not left or "worker failed to connect back" not in str(error):
                    raise
            else:
                break
        return len(query.recentProgress)

    assert follow("checkpoint") > 1, "the limit makes several batches"
    kept = spark.read.parquet(str(tmp_path / "rows"))
    assert rows(kept, case) == rows(table(spark, case), case)
    write(case, 7_000, 10)
    follow("checkpoint")
    kept = spark.read.parquet(str(tmp_path / "rows"))
    assert rows(kept, case) == rows(table(spark, case), case)
    with connect_jobs(settings_of(hybrid.stack), application_name="test") as plane:
        pins = plane.read_pins()
    assert pins, "a batch read keeps its pin"


@contextmanager
def damaged(stack: Stack, bucket: str, key: str, at: int) -> Iterator[None]:
    """One bit of an object is another one meanwhile."""
    store = ObjectStoreClient(settings_of(stack))
    right = store.get(bucket, key)
    wrong = bytearray(right)
    wrong[at] ^= 1
    store.put(bucket, key, bytes(wrong))
    try:
        yield
    finally:
        store.put(bucket, key, right)


def test_verify_finds_nothing_wrong_and_then_names_the_offset_of_a_damaged_batch(
    hybrid: Hybrid,
) -> None:
    case, spark, stack = hybrid.case, hybrid.spark, hybrid.stack
    found = run(stack, spark, lambda job: verify(job, [case.topic]))
    (told,) = found["topics"]
    assert (told["differences"], told["gone"]) == (0, 0), told
    assert told["records"] == sum(map(len, served(case, "read_uncommitted").values()))
    some = run(stack, spark, lambda job: verify(job, [case.topic], 0.2))["topics"][0]
    assert 0 < some["records"] <= told["records"]
    settings = settings_of(stack)
    with connect_jobs(settings, application_name="test") as plane:
        (verdict,) = plane.verify_verdicts(case.topic)
        assert "no difference" in verified(verdict)
        segment = next(
            s for s in plane.merged_segments(*plane.log_id_range()) if s.topic == case.topic
        )
    key = segment.object_key_stem + ".log"
    with damaged(stack, settings.s3_tiered_bucket, key, segment.size_bytes - 1):
        with pytest.raises(PySparkException) as unreadable:
            table(spark, case).count()
        failure = failure_of(unreadable.value)
        assert failure is not None
        assert f"{case.topic}-{segment.partition}: offset " in failure.message
        assert f"to {segment.last_offset} does not match" in failure.message
        assert failure.exit_code == TableUnreadable.exit_code
        with pytest.raises(AssertionError, match="differences in 1 of 1 topics"):
            run(stack, spark, lambda job: verify(job, [case.topic]))
    with connect_jobs(settings, application_name="test") as plane:
        (verdict,) = plane.verify_verdicts(case.topic)
    assert verdict.differences > 0
    first = verdict.detail[0]
    assert first["partition"] == segment.partition
    assert segment.base_offset <= first["offset"] <= segment.last_offset
    assert f"at offset {first['offset']}" in verified(verdict)
    assert time.time() - verdict.verified_at.timestamp() < 600
    again = run(stack, spark, lambda job: verify(job, [case.topic], 0.01))["topics"][0]
    assert again["differences"] == 0, "the object is whole again, and its range was looked at"
    assert again["records"] >= segment.last_offset - segment.base_offset + 1
